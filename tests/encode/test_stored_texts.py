"""``encode`` keeps titles, texts and metadata in the index: the same after a resumption and from shards."""

from __future__ import annotations

import json

import pytest
from support.encode_runs import content, meta

from dupmae_ir.encode.merge import main as merge
from dupmae_ir.index.format.verification import problems
from dupmae_ir.index.index import Index
from dupmae_ir.io.collections import read_collection
from dupmae_ir.search.__main__ import main as search

pytestmark = pytest.mark.jvm


@pytest.fixture
def annotated(corpus):
    """The corpus with a year and a source for some of its documents."""
    lines = [json.loads(line) for line in corpus.read_text().splitlines()]
    for number, line in enumerate(lines):
        line |= {"metadata": {"year": 1990 + number % 40}} if number % 3 else {}
        line |= {"source": f"source {number % 5}"} if number % 2 else {}
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return corpus


def expected(corpus):
    return [(d.docid, d.title, d.text, d.metadata or {}) for d in read_collection(corpus)]


def test_texts_are_those_of_the_collection(annotated, tmp_path, encode):
    assert encode(annotated, tmp_path / "I")[0] == 0
    index = Index.open(tmp_path / "I")
    assert [tuple(index.texts.get(row)) for row in range(index.documents)] == expected(annotated)
    assert index.texts.columns == ["source", "year"]
    assert problems(tmp_path / "I") == []


def test_an_index_without_texts(annotated, tmp_path, encode, capsys):
    assert encode(annotated, tmp_path / "I", "--no-store-texts")[0] == 0
    assert Index.open(tmp_path / "I").texts is None
    assert not list((tmp_path / "I").glob("segments/*/texts"))
    status, error = encode(annotated, tmp_path / "I")
    assert status == 2
    assert "--store-texts false (requested none)" in error.lower()


def test_a_resumed_run_and_shards_give_the_same_bytes(annotated, tmp_path, encode, monkeypatch):
    small = ("--window", 100, "--scale", 50)
    assert encode(annotated, tmp_path / "I", *small)[0] == 0

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("dupmae_ir.encode.run.build_index", interrupted)
    assert encode(annotated, tmp_path / "J", *small)[0] == 130
    monkeypatch.undo()
    assert encode(annotated, tmp_path / "J", *small)[0] == 0
    assert content(tmp_path / "J") == content(tmp_path / "I")

    for number in range(3):
        assert encode(annotated, tmp_path / f"K.{number}", *small, "--shard", f"{number}/3")[0] == 0
    assert (
        merge([*(str(tmp_path / f"K.{n}") for n in range(3)), "--index", str(tmp_path / "K")]) == 0
    )
    assert content(tmp_path / "K") == content(tmp_path / "I")
    assert meta(tmp_path / "K")["digest"] == meta(tmp_path / "I")["digest"]


def test_shards_with_and_without_texts_are_not_merged(annotated, tmp_path, encode, capsys):
    assert (
        encode(annotated, tmp_path / "K.0", "--window", 100, "--shard", "0/2", "--no-store-texts")[
            0
        ]
        == 0
    )
    assert encode(annotated, tmp_path / "K.1", "--window", 100, "--shard", "1/2")[0] == 0
    assert (
        merge([str(tmp_path / "K.0"), str(tmp_path / "K.1"), "--index", str(tmp_path / "K")]) == 2
    )
    assert "made with other settings (`store_texts`" in capsys.readouterr().err


def test_changed_metadata_is_a_changed_input(annotated, tmp_path, encode, monkeypatch):
    monkeypatch.setattr("dupmae_ir.encode.run.build_index", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        encode(annotated, tmp_path / "I", "--window", 100)
    annotated.write_text(annotated.read_text().replace("1991", "1891"))
    status, error = encode(annotated, tmp_path / "I", "--window", 100)
    assert (status, "the input changed since the work began" in error) == (2, True)


def test_search_shows_the_texts_without_the_collection(annotated, tmp_path, encode, capsys):
    assert encode(annotated, tmp_path / "I")[0] == 0
    words = [
        "--index",
        str(tmp_path / "I"),
        "--query",
        "word7 word8",
        "--hits",
        "3",
        "--json",
        "--dense",
    ]
    assert search(words) == 0
    shown = json.loads(capsys.readouterr().out)["hits"]
    documents = {d.docid: d for d in read_collection(annotated)}
    assert [(h["title"], h["text"]) for h in shown] == [
        (documents[h["docid"]][2:0:-1]) for h in shown
    ]
