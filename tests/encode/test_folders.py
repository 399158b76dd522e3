"""``encode --corpus FOLDER``: documents of every format, killed and resumed; collections of other libraries."""

from __future__ import annotations

import json
import os
import re
import sys
import types
from collections import namedtuple

import pytest
from support.document_samples import FILES, write_folder
from support.encode_runs import arguments, content, meta

from dupmae_ir.encode.__main__ import main
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.index.__main__ import main as index_main
from dupmae_ir.index.index import Index
from dupmae_ir.io.collections import LinesCollection
from dupmae_ir.io.documents.collection import DocumentCollection
from dupmae_ir.io.sources import CorpusOptions, HfDataset, IrDataset
from dupmae_ir.search.__main__ import main as search

pytestmark = pytest.mark.jvm


@pytest.fixture
def docs(tmp_path):
    return write_folder(tmp_path / "my docs")


def test_a_folder_becomes_an_index_with_its_texts(docs, tmp_path, encode, capsys):
    (docs / "broken.pdf").write_bytes(b"%PDF nothing")
    (docs / "picture.png").write_bytes(b"\x89PNG")
    status, said = encode(docs, tmp_path / "I", "--passage-length", 40, "--passage-overlap", 8)
    assert status == 0
    assert f"  from {len(FILES)} files (" in said
    assert "...); left out: 1 (.png 1)\n" in said
    assert "  1 read in an encoding that had to be guessed:\n    src/latin.txt: cp1252, " in said
    assert "  1 could not be read:\n    broken.pdf: " in said
    index = Index.open(tmp_path / "I")
    source = DocumentCollection([str(docs)], 40, 8)
    assert [(d.docid, d.title, d.text, d.metadata) for d in source] == [
        tuple(index.texts.get(row)) for row in range(index.documents)
    ]
    assert set(index.texts.columns) == {
        "path",
        "type",
        "title",
        "heading",
        "start",
        "end",
        "page",
        "encoding",
        "modified",
    }
    assert meta(tmp_path / "I")["sources"] == source.report
    status, said = encode(docs, tmp_path / "I", "--passage-length", 40, "--passage-overlap", 8)
    assert (status, "nothing to do" in said, "broken.pdf" in said) == (0, True, True)
    status, said = encode(docs, tmp_path / "I")
    assert status == 2
    assert "--passage-length 40 (requested 300), --passage-overlap 8 (requested 40)" in said
    (docs / "notes.txt").write_text("Other notes.")
    status, said = encode(docs, tmp_path / "I", "--passage-length", 40, "--passage-overlap", 8)
    assert (status, "the contents of --corpus" in said) == (2, True)


def test_several_unquoted_paths(docs, tmp_path, encode, capsys):
    paths = [str(docs / "guide"), str(docs / "notes.txt")]
    command = ["--model", "testing:hashing", "--index", str(tmp_path / "I"), "--corpus", *paths]
    assert main(command) == 0
    capsys.readouterr()
    stored = [d.metadata["path"] for d in Index.open(tmp_path / "I").texts.get_all(range(3))]
    assert stored[0].startswith("guide/")
    assert main([*command[:4], "--corpus", paths[0], "--corpus", paths[1]]) == 0
    assert "nothing to do" in capsys.readouterr().err
    assert (
        search(
            [
                "--index",
                str(tmp_path / "I"),
                "--query",
                "install",
                "--json",
                "--dense",
                "--hits",
                "1",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["hits"][0]["text"]


def test_a_resumed_run_is_that_of_an_undisturbed_one(docs, tmp_path, encode, monkeypatch):
    small = ("--passage-length", 16, "--passage-overlap", 4, "--window", 8, "--scale", 50)
    assert encode(docs, tmp_path / "I", *small)[0] == 0
    monkeypatch.setattr(
        "dupmae_ir.encode.run.build_index", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    assert encode(docs, tmp_path / "J", *small)[0] == 130
    monkeypatch.undo()
    status, said = encode(docs, tmp_path / "J", *small)
    assert (status, "from an earlier run" in said) == (0, True)
    assert content(tmp_path / "J") == content(tmp_path / "I")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"a.jsonl": b'{"_id": "1", "text": "x"}\n{"_id"', "b.md": b"text"},
            "choose with --read-as",
        ),
        ({"a.pdf": b"x"}, "no text in any of its 1 files"),
        ({"a.tsv": b"no tab"}, "neither a JSON object nor"),
        ({".hidden": b"x"}, "no files in it"),
    ],
)
def test_bad_input_fails_before_the_model_is_loaded(tmp_path, encode, monkeypatch, files, message):
    monkeypatch.setattr(
        "dupmae_ir.encode.window_encoding.load_encoder",
        lambda *a, **k: pytest.fail("the model was loaded"),
    )
    write_folder(tmp_path / "docs", files)
    status, said = encode(tmp_path / "docs", tmp_path / "I")
    assert (status, message in said) == (2, True)
    assert said.count("\n") == 1


def test_passages_of_files_are_encoded_in_mixed_precision(tmp_path):
    write_folder(tmp_path / "docs", {"a.txt": b"cat sat"})
    write_folder(tmp_path, {"lines.jsonl": b'{"id": 1, "contents": "cat sat"}'})
    dtypes = []
    for number, (corpus, *more) in enumerate(
        (["docs"], ["docs", "--dtype", "float32"], ["lines.jsonl"])
    ):
        folder = tmp_path / f"I{number}"
        assert (
            main(
                [
                    "--corpus",
                    str(tmp_path / corpus),
                    "--index",
                    str(folder),
                    "--parts",
                    "cls",
                    *more,
                ]
            )
            == 0
        )
        dtypes.append(Index.open(folder).meta["encoder"]["dtype"])
    assert dtypes == ["mixed", "float32", "float32"]


KINDS = {
    "lines": [
        {"corpus.jsonl": b'{"_id": "1", "text": "x"}', "notes.txt": b"text"},
        {"docs1.jsonl": b'{"id": 1, "contents": "x"}', "README.md": b"text"},
        {"a.tsv": b"1\tx"},
        {"part.json": b'{"id": 1, "contents": "x"}'},
    ],
    "documents": [
        {"a.txt": b"text"},
        {"sub/a.jsonl": b'{"_id": "1", "text": "x"}'},
        {"settings.json": b'{\n "a": 1\n}', "b.md": b"x"},
        {"list.json": b"[1, 2]"},
        {"settings.json": b'{"a": 1}', "events.jsonl": b'{"at": 1}\n{"at": 2}', "b.md": b"x"},
    ],
}


@pytest.mark.parametrize(
    ("kind", "files"), [(kind, files) for kind, some in KINDS.items() for files in some]
)
def test_what_a_folder_is_read_as(tmp_path, kind, files):
    write_folder(tmp_path, files)
    found = CorpusOptions(corpus=str(tmp_path)).collection()
    assert type(found) is {"lines": LinesCollection, "documents": DocumentCollection}[kind]
    assert (
        type(CorpusOptions(corpus=str(tmp_path), read_as="documents").collection())
        is DocumentCollection
    )


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("a.txt", b"Some text.", DocumentCollection),
        ("a.txt", b"1\tone\n2\ttwo", LinesCollection),
        ("a.txt", b"A title\twith a tab\nmore", DocumentCollection),
        ("corpus", b'{"_id": "1", "text": "x"}', LinesCollection),
        ("README", b"Text.", DocumentCollection),
        ("a.md", b"1\tone", DocumentCollection),
        ("a.csv", b"a,b\n1,2", DocumentCollection),
        ("a.json", b'{"_id": "1", "text": "x"}', LinesCollection),
        ("a.tsv.gz", b"1\tone", LinesCollection),
    ],
)
def test_what_a_file_is_read_as(tmp_path, name, data, kind):
    (tmp_path / name).write_bytes(data)
    assert type(CorpusOptions(corpus=str(tmp_path / name)).collection()) is kind


def test_misuse():
    with pytest.raises(UsageError, match="`passage_overlap` 60 must be at most half"):
        CorpusOptions(corpus="x", passage_length=100, passage_overlap=60)
    with pytest.raises(UsageError, match="cannot be combined"):
        CorpusOptions(corpus=("irds:x", "y")).collection()
    assert CorpusOptions(corpus=("x",)) == CorpusOptions(corpus="x")
    assert len(arguments("c", "i")) == 6


# ---------------------------------------------------------------- ir_datasets and Hugging Face datasets

Doc = namedtuple("Doc", "doc_id title text url year")


def standin(monkeypatch, documents):
    """A module with the interface of ir_datasets."""
    module = types.ModuleType("ir_datasets")
    module.__spec__ = types.SimpleNamespace(name="ir_datasets")
    data = types.SimpleNamespace(
        has_docs=lambda: bool(documents), docs_iter=lambda: iter(documents)
    )
    module.load = {"mine/train": data}.__getitem__
    monkeypatch.setitem(sys.modules, "ir_datasets", module)


def test_an_ir_datasets_id(monkeypatch, tmp_path, encode):
    standin(
        monkeypatch,
        [Doc("a", "One", "first text", "http://x", 2020), Doc("b", "", "second text", "", 2021)],
    )
    assert encode("irds:mine/train", tmp_path / "I")[0] == 0
    store = Index.open(tmp_path / "I").texts
    assert store.get(0) == ("a", "One", "first text", {"url": "http://x", "year": 2020})
    assert store.get(1).text == "second text"
    assert encode("irds:mine/train", tmp_path / "I")[0] == 0
    status, said = encode("irds:mine/test", tmp_path / "J")
    assert (status, "ir_datasets has no data set 'mine/test'" in said) == (2, True)
    standin(monkeypatch, [Doc("a", "", "x", "", 1), Doc("a", "", "y", "", 1)])
    with pytest.raises(InputError, match="document 2: duplicate id 'a'"):
        list(IrDataset("irds:mine/train"))
    standin(monkeypatch, [Doc("a", "T", "x", "u", 1)])
    (found,) = IrDataset("irds:mine/train", ["title", "url"])
    assert (found.title, found.text) == ("", "T u")


def test_ir_datasets_is_not_installed(monkeypatch, tmp_path, encode):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None)
    status, said = encode("irds:mine", tmp_path / "I")
    assert (status, said) == (
        1,
        "dupmae-ir encode: irds:mine needs ir_datasets: pip install 'dupmae-ir[irds]'\n",
    )


def test_a_hugging_face_dataset_on_disk(tmp_path, encode):
    datasets = pytest.importorskip("datasets")
    rows = {"title": ["One", None], "text": ["first text", "second text"], "year": [2020, 2021]}
    made = datasets.Dataset.from_dict(rows)
    made.save_to_disk(tmp_path / "plain")
    datasets.DatasetDict({"train": made, "test": made}).save_to_disk(tmp_path / "splits")
    datasets.DatasetDict({"train": made.add_column("_id", ["a", "b"])}).save_to_disk(
        tmp_path / "one"
    )
    assert encode(tmp_path / "plain", tmp_path / "I")[0] == 0
    store = Index.open(tmp_path / "I").texts
    assert store.get_all([0, 1]) == [
        ("0", "One", "first text", {"year": 2020}),
        ("1", "", "second text", {"year": 2021}),
    ]
    status, said = encode(tmp_path / "splits", tmp_path / "J")
    assert (status, "has the splits train, test; name one, as" in said) == (2, True)
    assert [
        d.docid for d in CorpusOptions(corpus=str(tmp_path / "splits" / "test")).collection()
    ] == ["0", "1"]
    assert [d.docid for d in CorpusOptions(corpus=str(tmp_path / "one")).collection()] == ["a", "b"]
    assert isinstance(CorpusOptions(corpus=str(tmp_path / "one")).collection(), HfDataset)


def test_sync_of_a_folder(docs, tmp_path, encode, capsys, monkeypatch):
    """Only edited files are encoded; passages of files that cannot be read for now are kept."""
    assert (
        encode(
            docs,
            tmp_path / "I",
            "--passage-length",
            40,
            "--passage-overlap",
            8,
            "--read-as",
            "documents",
        )[0]
        == 0
    )
    (docs / "notes.txt").write_text("Entirely new notes about giraffes.")
    (docs / "src" / "module.py").unlink()
    (docs / "papers" / "seals.pdf").write_bytes(b"%PDF cut")
    (docs / "more.jsonl").write_text('{"a": "line"}')  # the folder is still one of documents
    command = ["sync", "--corpus", str(docs), "--index", str(tmp_path / "I"), "--json"]
    assert index_main(command) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert (result["updated_now"], result["added_now"]) == (1, 1)
    assert "passages of files that cannot be read now were kept" in captured.err
    assert re.fullmatch(r"\d+ passages of \d+ files", result["size"])
    assert "papers/seals.pdf: " in captured.err
    assert (
        search(["--index", str(tmp_path / "I"), "--query", "giraffes", "--json", "--hits", "40"])
        == 0
    )
    found = {hit["docid"].partition("#")[0] for hit in json.loads(capsys.readouterr().out)["hits"]}
    assert {"notes.txt", "papers/seals.pdf", "more.jsonl"} <= found
    assert "src/module.py" not in found
    touched = docs / "notes.txt"
    os.utime(touched, (1, 1))
    assert index_main(command) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["updated_now"], result["added_now"], result["deleted_now"]) == (0, 0, 0)
