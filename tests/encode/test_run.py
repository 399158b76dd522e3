"""The command, end to end, in this process: what it makes, when it refuses, and that it resumes."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
import tracemalloc

import numpy as np
import pytest
from support.encode_runs import arguments, content, meta, start, write_corpus

from dupmae_ir.encode import run as run_module
from dupmae_ir.encode.__main__ import main
from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.run import run
from dupmae_ir.encode.windows import EncodedWindow
from dupmae_ir.errors import IndexMismatch
from dupmae_ir.index.__main__ import main as index_main
from dupmae_ir.index.index import Index
from dupmae_ir.index.postings.format import compare_postings
from dupmae_ir.io.collections import read_collection
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.testing import HashingEncoder
from dupmae_ir.types import Document, Representation

pytestmark = pytest.mark.jvm


def test_the_index_holds_what_the_encoder_said(corpus, tmp_path, encode):
    assert encode(corpus, tmp_path / "I", "--window", 100)[0] == 0
    folder = Index.open(tmp_path / "I")
    documents = list(read_collection(corpus))
    assert folder.docids == [d.docid for d in documents]
    expected = HashingEncoder().encode_documents([d.joined() for d in documents])
    np.testing.assert_array_equal(folder.only_segment.vectors, expected.cls)
    weights = expected.ot.toarray()
    scale = float(f"{255 / (1.1 * weights[:100].max()):.4g}")
    assert folder.scale == scale
    for row in range(len(documents)):
        terms, impacts = folder.forward.row(row)
        wanted = np.minimum(np.rint(weights[row].astype(np.float64) * scale), 255)
        assert dict(zip(terms.tolist(), impacts.tolist(), strict=True)) == {
            int(t): int(wanted[t]) for t in np.flatnonzero(wanted)
        }
    record = folder.meta
    assert record["empty_documents"] == sum(not d.text for d in documents) == 14
    assert record["inputs"][0]["documents"] == 700
    assert record["encoder"]["digest"] == HashingEncoder().digest
    assert sorted(p.name for p in tmp_path.iterdir()) == ["I", "corpus.jsonl"]


@pytest.mark.parametrize("parts", ["cls", "ot", "cls,ot"])
def test_documents_longer_than_the_model_reads_are_counted(tmp_path, encode, capsys, parts):
    corpus = write_corpus(tmp_path / "corpus.jsonl", 250)
    index = tmp_path / "I"
    long = 0
    for document in read_collection(corpus):
        long += len(document.joined().split()) > 18
    status, report = encode(
        corpus, index, "--window", 100, "--document-length", 20, "--parts", parts
    )
    assert status == 0
    assert f"{long} of 250 documents are longer than the 20 word pieces" in report
    assert meta(index)["truncated"] == long > 50
    index_main(["show", "--index", str(index)])
    assert f"{long} documents: the model read their beginnings" in capsys.readouterr().out

    # A new segment counts those that it has, and a compact index all of them.
    more = tmp_path / "more.jsonl"
    lines = [{"_id": "a", "text": "word " * 18}, {"_id": "b", "text": "word " * 19}]
    more.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert index_main(["add", "--index", str(index), "--corpus", str(more)]) == 0
    assert "1 of 2 documents are longer" in capsys.readouterr().err
    assert meta(index)["truncated"] == long + 1
    assert index_main(["compact", "--index", str(index)]) == 0
    assert meta(index)["truncated"] == long + 1


def test_nothing_is_said_of_documents_that_fit(corpus, tmp_path, encode):
    assert "longer than" not in encode(corpus, tmp_path / "I")[1]


@pytest.mark.parametrize("parts", ["cls", "ot"])
def test_one_part_alone(corpus, tmp_path, encode, parts):
    assert encode(corpus, tmp_path / "I", "--parts", parts)[0] == 0
    folder = Index.open(tmp_path / "I")
    assert folder.meta["parts"] == [parts]
    assert (tmp_path / "I" / parts).is_dir()
    assert len([p for p in ("cls", "ot") if (tmp_path / "I" / p).exists()]) == 1


def test_settings_reach_the_encoder_and_the_record(corpus, tmp_path, encode):
    more = [
        "--top-k",
        3,
        "--document-length",
        10,
        "--title-separator",
        "sep",
        "--scale",
        50,
        "--activation",
        "log1p",
    ]
    assert encode(corpus, tmp_path / "I", *more)[0] == 0
    record = meta(tmp_path / "I")
    assert (record["scale"], record["scale_source"]) == (50, "asked for")
    made_by = record["encoder"]
    assert (made_by["top_k"], made_by["document_length"], made_by["activation"]) == (3, 10, "log1p")
    assert made_by["title_separator"] == " [SEP] "
    assert max(np.diff(Index.open(tmp_path / "I").only_segment.forward.indptr)) <= 3


def test_a_recipe_is_the_same_as_its_flags(corpus, tmp_path, encode):
    recipe = tmp_path / "r.toml"
    recipe.write_text(f'corpus = "{corpus}"\ntop-k = 3\nparts = "ot"\nwindow = 100\n')
    assert (
        main(
            ["--model", "testing:hashing", "--index", str(tmp_path / "A"), "--recipe", str(recipe)]
        )
        == 0
    )
    assert encode(corpus, tmp_path / "B", "--top-k", 3, "--parts", "ot", "--window", 100)[0] == 0
    assert content(tmp_path / "A") == content(tmp_path / "B")


def test_a_finished_index_is_left_alone(corpus, tmp_path, encode, capsys):
    assert encode(corpus, tmp_path / "I")[0] == 0
    before = (tmp_path / "I" / "meta.json").stat()
    status, said = encode(corpus, tmp_path / "I")
    assert status == 0
    assert "already complete" in said
    assert (tmp_path / "I" / "meta.json").stat().st_ino == before.st_ino

    assert main([*arguments(corpus, tmp_path / "I"), "--json", "--quiet"]) == 0
    out = capsys.readouterr()
    assert json.loads(out.out)["status"] == "already complete"
    assert out.err == ""

    assert encode(corpus, tmp_path / "I", "--overwrite")[0] == 0
    assert (tmp_path / "I" / "meta.json").stat().st_ino != before.st_ino


def test_other_settings_or_input_need_overwrite(corpus, tmp_path, encode):
    assert encode(corpus, tmp_path / "I")[0] == 0
    before = content(tmp_path / "I")
    status, said = encode(corpus, tmp_path / "I", "--top-k", 5)
    assert status == 2
    assert (
        "other settings: --top-k 32 (requested 5). Name another --index, or pass --overwrite"
        in said
    )
    other = write_corpus(tmp_path / "other.jsonl", 60, seed=1)
    status, said = encode(other, tmp_path / "I")
    assert status == 2
    assert "the contents of --corpus" in said
    assert content(tmp_path / "I") == before
    assert encode(other, tmp_path / "I", "--overwrite")[0] == 0
    assert meta(tmp_path / "I")["documents"] == 60
    assert sorted(p.name for p in tmp_path.iterdir()) == ["I", "corpus.jsonl", "other.jsonl"]


@pytest.fixture
def stop_after(monkeypatch):
    """Make the encoder fail at its nth call, as if the power had gone."""
    plain = HashingEncoder.encode_documents

    def arm(calls: int) -> None:
        left = [calls]

        def dying(self, texts):
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            return plain(self, texts)

        monkeypatch.setattr(HashingEncoder, "encode_documents", dying)

    return arm


def test_an_interrupted_run_resumes_to_the_same_index(
    corpus, tmp_path, encode, stop_after, monkeypatch
):
    assert encode(corpus, tmp_path / "whole", "--window", 100)[0] == 0
    with monkeypatch.context():
        for done in (2, 1, 3):
            stop_after(done)
            status, said = encode(corpus, tmp_path / "I", "--window", 100)
            assert status == 130
            assert said.endswith(
                "\ndupmae-ir encode: interrupted; run the same command to resume\n"
            )
            assert not (tmp_path / "I").exists()
    monkeypatch.undo()
    calls = []
    plain = HashingEncoder.encode_documents
    monkeypatch.setattr(
        HashingEncoder, "encode_documents", lambda s, t: calls.append(len(t)) or plain(s, t)
    )
    assert encode(corpus, tmp_path / "I", "--window", 100)[0] == 0
    assert calls == [100]  # 2 + 1 + 3 of the 7 windows were there
    assert content(tmp_path / "I") == content(tmp_path / "whole")
    assert meta(tmp_path / "I")["digest"] == meta(tmp_path / "whole")["digest"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda rows: [rows[0].replace("word", "wort"), *rows[1:]],
            "the documents of window 0 differ",
        ),
        (lambda rows: rows[1:], "the documents of window 0 differ"),
        (lambda rows: rows[:150], "differ"),
        (lambda rows: rows[:100], "it is shorter now"),
    ],
)
def test_a_changed_input_is_refused_on_resuming(
    corpus, tmp_path, encode, stop_after, monkeypatch, change, message
):
    stop_after(2)
    assert encode(corpus, tmp_path / "I", "--window", 100, "--parts", "cls")[0] == 130
    monkeypatch.undo()
    corpus.write_text("".join(change(corpus.read_text().splitlines(keepends=True))))
    status, said = encode(corpus, tmp_path / "I", "--window", 100, "--parts", "cls")
    assert status == 2
    assert message in said
    assert "start over with --restart" in said
    assert encode(corpus, tmp_path / "I", "--window", 100, "--parts", "cls", "--restart")[0] == 0


def test_a_longer_input_is_refused_when_the_last_window_was_done(tmp_path, encode, monkeypatch):
    corpus = write_corpus(tmp_path / "c.jsonl", 150)
    monkeypatch.setattr(
        run_module, "build_index", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    assert encode(corpus, tmp_path / "I", "--window", 100)[0] == 130
    monkeypatch.undo()
    with corpus.open("a") as f:
        f.write('{"_id": "new", "text": "word1"}\n')
    assert "the documents of window 1 differ" in encode(corpus, tmp_path / "I", "--window", 100)[1]


def test_other_settings_are_refused_on_resuming(corpus, tmp_path, encode, stop_after, monkeypatch):
    stop_after(2)
    assert encode(corpus, tmp_path / "I", "--window", 100, "--parts", "cls")[0] == 130
    monkeypatch.undo()
    status, said = encode(
        corpus, tmp_path / "I", "--window", 100, "--parts", "cls", "--document-length", 9
    )
    assert status == 2
    assert (
        "unfinished work was begun with other settings: --document-length 64 (requested 9)" in said
    )
    assert encode(corpus, tmp_path / "I", "--window", 100, "--parts", "cls")[0] == 0


def test_an_overwrite_that_was_cut_short_leaves_the_old_index(
    corpus, tmp_path, encode, stop_after, monkeypatch
):
    assert encode(corpus, tmp_path / "I", "--parts", "cls")[0] == 0
    before = content(tmp_path / "I")
    stop_after(1)
    again = ["--overwrite", "--parts", "cls", "--document-length", 9, "--window", 100]
    assert encode(corpus, tmp_path / "I", *again)[0] == 130
    monkeypatch.undo()
    assert content(tmp_path / "I") == before
    # The old one is still known as complete, and asking for it does not disturb the new one's work.
    assert "already complete" in encode(corpus, tmp_path / "I", "--parts", "cls")[1]
    status, said = encode(corpus, tmp_path / "I", *again)
    assert status == 0
    assert "100 documents from an earlier run" in said
    assert content(tmp_path / "I") != before


def test_a_replacement_killed_between_its_two_renames_is_undone(corpus, tmp_path, encode):
    assert encode(corpus, tmp_path / "I", "--parts", "cls")[0] == 0
    (tmp_path / "I").rename(tmp_path / ".I.4711.old")
    (tmp_path / ".I.5.6.old").mkdir()  # belongs to an index named I.5
    assert "already complete" in encode(corpus, tmp_path / "I", "--parts", "cls")[1]
    shutil.copytree(tmp_path / "I", tmp_path / ".I.4711.old")
    assert "already complete" in encode(corpus, tmp_path / "I", "--parts", "cls")[1]
    assert sorted(p.name for p in tmp_path.iterdir()) == [".I.5.6.old", "I", "corpus.jsonl"]


def test_standard_input(corpus, tmp_path, encode, monkeypatch):
    assert encode(corpus, tmp_path / "A", "--parts", "cls")[0] == 0
    with corpus.open() as f:
        monkeypatch.setattr(sys, "stdin", f)
        assert encode("-", tmp_path / "B", "--parts", "cls")[0] == 0
    assert content(tmp_path / "A") == content(tmp_path / "B")
    assert (
        meta(tmp_path / "B")["inputs"][0]["sha256"] == meta(tmp_path / "A")["inputs"][0]["sha256"]
    )


def test_documents_without_any_text(tmp_path, encode):
    (tmp_path / "c.jsonl").write_text('{"id": "a", "contents": ""}\n{"id": "b", "contents": " "}\n')
    assert encode(tmp_path / "c.jsonl", tmp_path / "I")[0] == 0
    folder = Index.open(tmp_path / "I")
    assert folder.docids == ["a", "b"]
    assert folder.meta["empty_documents"] == 2
    assert np.isfinite(folder.only_segment.vectors).all()


def test_from_python(corpus, tmp_path):
    config = EncodeConfig(
        corpus=str(corpus),
        index=str(tmp_path / "I"),
        model="testing:hashing",
        parts="cls",
        quiet=True,
    )
    summary = run(config)
    assert (summary["status"], summary["documents"]) == ("complete", 700)
    assert run(config)["digest"] == summary["digest"]


def test_two_processes_do_not_write_one_index(corpus, tmp_path, encode):
    other = start(corpus, tmp_path / "I", "--window", 20, "--parts", "cls", delay=0.2)
    try:
        while not list(tmp_path.glob(".I.work/window-*")):
            assert other.poll() is None
            time.sleep(0.02)
        status, said = encode(corpus, tmp_path / "I", "--window", 20, "--parts", "cls")
        assert status == 2
        assert f"process {other.pid} is running encode into {tmp_path / 'I'}" in said
        assert said.count("\n") == 1
    finally:
        other.kill()
        other.communicate()
    assert encode(corpus, tmp_path / "I", "--window", 20, "--parts", "cls")[0] == 0


def test_ctrl_c_says_one_line(corpus, tmp_path):
    process = start(corpus, tmp_path / "I", "--window", 20, "--quiet", delay=0.2)
    while not list(tmp_path.glob(".I.work/window-*")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert (process.returncode, said) == (
        130,
        "\ndupmae-ir encode: interrupted; run the same command to resume\n",
    )


def test_memory_does_not_grow_with_the_collection(tmp_path, encode, monkeypatch):
    nothing = Representation(np.zeros((100, 16), np.float32), None)
    monkeypatch.setattr(HashingEncoder, "encode_documents", lambda self, texts: nothing)
    peaks = []
    for count in (1000, 5000):
        corpus = tmp_path / f"{count}.tsv"
        corpus.write_text("".join(f"{i}\t{'word ' * 200}\n" for i in range(count)))
        tracemalloc.start()
        assert (
            encode(corpus, tmp_path / f"I{count}", "--window", 100, "--parts", "cls", "--quiet")[0]
            == 0
        )
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # 4,000 documents more may cost the hashes of their ids, not their texts of 1,000 bytes each.
    assert peaks[1] - peaks[0] < 4000 * 100


def test_a_vector_that_is_not_finite_is_refused_with_its_window():
    vectors = np.ones((3, 2), np.float32)
    vectors[1, 0] = np.nan
    with pytest.raises(
        IndexMismatch, match=r"vector of document 'b' is not finite; check the model's weights"
    ):
        EncodedWindow.of(
            [Document(docid, "") for docid in "abc"],
            Representation(vectors, None),
            None,
            texts=False,
        )


def test_postings_are_written_unless_told_otherwise(corpus, tmp_path, encode):
    assert encode(corpus, tmp_path / "I", "--window", 100)[0] == 0
    folder = Index.open(tmp_path / "I")
    assert folder.only_segment.postings_problem() is None
    assert compare_postings(folder.only_segment) is None
    folder.verify()
    assert encode(corpus, tmp_path / "J", "--window", 100, "--no-postings")[0] == 0
    other = Index.open(tmp_path / "J")
    assert not other.only_segment.has_part("postings")
    assert other.meta["digest"] == folder.meta["digest"]
    status, said = encode(corpus, tmp_path / "J", "--window", 100)[:2]
    assert status == 2, said  # made with other settings
    assert Searcher.open(tmp_path / "I", HashingEncoder()).impact_search[0] == "postings"
    assert Searcher.open(tmp_path / "J", HashingEncoder()).impact_search[0] == "lucene"
