"""Shards: merged, they are the unsharded index to the last bit; what does not belong together is refused."""

from __future__ import annotations

import re
import shutil

import pytest
from support.encode_runs import content, meta, write_corpus
from support.index_samples import write_edited

from dupmae_ir.encode.merge import main

pytestmark = pytest.mark.jvm


def merge(capsys, *arguments) -> tuple[int, str]:
    status = main([str(a) for a in arguments])
    return status, capsys.readouterr().err


@pytest.mark.parametrize(("documents", "of"), [(700, 2), (730, 3), (1210, 11)])
def test_merged_shards_are_the_unsharded_index(tmp_path, encode, capsys, documents, of):
    corpus = write_corpus(tmp_path / "c.jsonl", documents)
    settings = ["--window", 100, "--top-k", 7, "--document-length", 20]
    assert encode(corpus, tmp_path / "whole", *settings)[0] == 0
    for i in range(of):
        assert encode(corpus, tmp_path / f"I.{i}", *settings, "--shard", f"{i}/{of}")[0] == 0
    shards = sorted(tmp_path.glob("I.*"))  # as a shell sorts them: I.10 before I.2
    assert merge(capsys, *shards, "--index", tmp_path / "I")[0] == 0
    assert content(tmp_path / "I") == content(tmp_path / "whole")
    one = meta(tmp_path / "I")
    other = meta(tmp_path / "whole")
    for key in (
        "digest",
        "documents",
        "empty_documents",
        "postings",
        "sum_of_impacts",
        "clipped",
        "dropped",
        "truncated",
        "scale",
        "encoder",
        "inputs",
        "settings",
    ):
        assert one[key] == other[key], key
    # So the unsharded command knows it as its own.
    assert "already complete" in encode(corpus, tmp_path / "I", *settings)[1]


def test_clipped_weights_are_counted_over_all_shards(corpus, tmp_path, encode, capsys):
    settings = ["--window", 100, "--scale", 300]
    assert encode(corpus, tmp_path / "whole", *settings)[0] == 0
    for i in (0, 1):
        encode(corpus, tmp_path / f"I.{i}", *settings, "--shard", f"{i}/2")
    merge(capsys, tmp_path / "I.1", tmp_path / "I.0", "--index", tmp_path / "I")
    assert meta(tmp_path / "I")["clipped"] == meta(tmp_path / "whole")["clipped"] > 0


@pytest.fixture
def three(corpus, tmp_path, encode):
    """Three dense shards of one collection."""
    for i in range(3):
        assert (
            encode(
                corpus, tmp_path / f"I.{i}", "--window", 100, "--parts", "cls", "--shard", f"{i}/3"
            )[0]
            == 0
        )
    return [tmp_path / f"I.{i}" for i in range(3)]


def edited(index, **changes):
    """The index under other meta data."""
    write_edited(index, {**meta(index), **changes})
    return index


def test_gaps_and_duplicates_are_refused(three, tmp_path, capsys):
    a, b, c = three
    for shards, message in [
        ((a, c), "missing of 3 shards: 1 "),
        ((a,), "missing of 3 shards: 1, 2 "),
        (
            (a, b, c, shutil.copytree(b, tmp_path / "again")),
            "again and .*I.1 are both shard 1 of 3",
        ),
        ((a, b, tmp_path / "nowhere"), "nowhere: no such index"),
        ((a, tmp_path / "corpus.jsonl"), "corpus.jsonl"),
    ]:
        status, said = merge(capsys, *shards, "--index", tmp_path / "I")
        assert status == 2
        assert said.count("\n") == 1
        assert re.search(message, said), said
        assert not (tmp_path / "I").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (lambda m: {"settings": {**m["settings"], "model": "other"}}, "(`model` "),
        (
            lambda m: {"settings": {**m["settings"], "document_length": 9}},
            "`document_length` 64 (requested 9)",
        ),
        (lambda m: {"settings": {**m["settings"], "window": 50}}, "`window` 100 (requested 50)"),
        (lambda m: {"shard": {**m["shard"], "of": 4}}, "shards of 3 and of 4"),
        (
            lambda m: {"scale": 17.0},
            "have scales None and 17.0; encode one of them again with `scale` None",
        ),
        (lambda m: {"inputs": [{**m["inputs"][0], "sha256": "0"}]}, "different collections"),
        (lambda m: {"shard": None}, "is a whole index, not a shard"),
    ],
)
def test_shards_that_do_not_belong_together(three, tmp_path, capsys, changes, message):
    edited(three[1], **changes(meta(three[1])))
    status, said = merge(capsys, *three, "--index", tmp_path / "I")
    assert status == 2
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "I").exists()


def test_an_older_index_stays_until_overwrite(three, tmp_path, capsys):
    assert merge(capsys, *three, "--index", tmp_path / "I")[0] == 0
    before = (tmp_path / "I" / "meta.json").stat().st_ino
    status, message = merge(capsys, *three, "--index", tmp_path / "I")
    assert status == 0
    assert "already complete" in message
    assert merge(capsys, *three, "--index", three[0])[0] == 2
    assert (tmp_path / "I" / "meta.json").stat().st_ino == before
    assert merge(capsys, *three, "--index", tmp_path / "I", "--overwrite")[0] == 0
    assert not [p.name for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_more_shards_than_windows(corpus, tmp_path, encode):
    status, said = encode(corpus, tmp_path / "I", "--shard", "2/3", "--parts", "cls")
    assert status == 2
    assert (
        "the collection has only 2 window(s); use at most 2 shards, or a smaller --window" in said
    )
