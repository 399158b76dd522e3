"""Everything that can be wrong with an encode command: one clear line, the right status, nothing lost."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.encode_runs import content, meta, write_corpus
from support.small_disks import enlarge, small_disk

from dupmae_ir.encode.__main__ import main

GOOD = '{"id": "ok", "contents": "fine text"}\n'
HASHING = ("--model", "testing:hashing")


def corpus_of(name: str, data: str | bytes) -> Callable[[Path], list[Any]]:
    def make(folder: Path) -> list[Any]:
        (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)
        return [*HASHING, "--corpus", folder / name]

    return make


def flags(*more: Any) -> Callable[[Path], list[Any]]:
    def make(folder: Path) -> list[Any]:
        return [*HASHING, "--corpus", write_corpus(folder / "good.jsonl", 30), *more]

    return make


def recipe(text: str) -> Callable[[Path], list[Any]]:
    def make(folder: Path) -> list[Any]:
        (folder / "r.toml").write_text(text)
        return [*flags()(folder), "--recipe", folder / "r.toml"]

    return make


def model_folder(files: dict[str, str]) -> Callable[[Path], list[Any]]:
    def make(folder: Path) -> list[Any]:
        model = folder / "model"
        model.mkdir()
        for name, text in files.items():
            (model / name).write_text(text)
        return ["--model", model, "--corpus", write_corpus(folder / "good.jsonl", 30)]

    return make


def empty_folder(folder: Path) -> list[Any]:
    (folder / "empty").mkdir()
    return [*HASHING, "--corpus", folder / "empty"]


BAD: dict[str, tuple[Callable[[Path], list[Any]], str]] = {
    # the collection
    "no such corpus": (
        lambda f: [*HASHING, "--corpus", f / "nowhere.jsonl"],
        "nowhere.jsonl: no such file or folder",
    ),
    "empty file": (corpus_of("c.jsonl", ""), "c.jsonl: no documents in it"),
    "folder without a collection": (empty_folder, "no files in it"),
    "unreadable": (
        lambda f: [*HASHING, "--corpus", "/proc/self/mem"],
        "/proc/self/mem: cannot be read",
    ),
    "broken JSON": (corpus_of("c.jsonl", GOOD + '{"id": "x", \n'), "c.jsonl:2: broken JSON"),
    "JSON cut short": (corpus_of("c.jsonl", GOOD + '{"id": "x", "cont'), "c.jsonl:2: broken JSON"),
    "JSON array": (corpus_of("c.json", "[" + GOOD + "]"), "c.json:1: a JSON array"),
    "not an object": (corpus_of("c.jsonl", GOOD + "17\n"), "c.jsonl:2: a single value"),
    "no id": (corpus_of("c.jsonl", '{"contents": "a"}'), "c.jsonl:1: no id"),
    "empty id": (corpus_of("c.jsonl", '{"id": "", "contents": "a"}'), "c.jsonl:1: empty id"),
    "id with a blank": (
        corpus_of("c.jsonl", '{"id": "a b", "contents": "a"}'),
        "c.jsonl:1: the id 'a b' contains white",
    ),
    "id of 40 kB": (
        corpus_of("c.jsonl", GOOD + json.dumps({"id": "x" * 40000, "contents": "a"}) + "\n"),
        "has 40,000 bytes; Lucene takes at most 32,766",
    ),
    "id of a wrong type": (
        corpus_of("c.jsonl", '{"id": [1], "contents": "a"}'),
        "c.jsonl:1: the id 'id' is [1]",
    ),
    "duplicate id": (corpus_of("c.jsonl", GOOD + GOOD), "c.jsonl:2: duplicate id 'ok'"),
    "no text": (corpus_of("c.jsonl", '{"id": "x", "body": "a"}'), "c.jsonl:1: no text"),
    "text of a wrong type": (
        corpus_of("c.jsonl", '{"id": "x", "text": 5}'),
        "c.jsonl:1: 'text' is 5",
    ),
    "binary": (corpus_of("c.jsonl", GOOD.encode() + b"\0\0"), "c.jsonl:2: a binary file"),
    "not UTF-8": (corpus_of("c.tsv", b"1\tcaf\xe9\n"), "c.tsv:1: not UTF-8"),
    "UTF-16": (corpus_of("c.jsonl", GOOD.encode("utf-16")), "c.jsonl:1: UTF-16"),
    "tsv without a tab": (corpus_of("c.tsv", "1\ta\n2 b\n"), "c.tsv:2: 1 column(s), expected 2"),
    "tsv of three columns": (corpus_of("c.tsv", "1\ta\tb\n"), "c.tsv:1: 3 columns"),
    "truncated gzip": (
        corpus_of("c.jsonl.gz", gzip.compress(os.urandom(9999).hex().encode())[:-99]),
        "truncated",
    ),
    "damaged gzip": (
        corpus_of("c.jsonl.gz", gzip.compress(GOOD.encode())[:-8] + b"\1" * 8),
        "damaged gzip",
    ),
    "fields that are not there": (
        flags("--fields", "headline"),
        "good.jsonl:1: no text: expected 'headline'",
    ),
    "a docid field that is not there": (
        flags("--docid-field", "key"),
        "good.jsonl:1: no id: expected 'key'",
    ),
    "empty delimiter": (flags("--delimiter", ""), "delimiter between fields is empty"),
    # the model
    "no such model": (lambda f: [*flags()(f)[2:], "--model", f / "no-model"], "no-model"),
    "empty model folder": (model_folder({}), "model"),
    "broken model": (model_folder({"config.json": "{"}), "model"),
    # the settings
    "no corpus named": (lambda f: list(HASHING), "--corpus"),
    "unknown flag": (flags("--no-such-flag"), "--no-such-flag"),
    "window 0": (flags("--window", 0), "--window must be greater than 0, got 0"),
    "window of a word": (flags("--window", "many"), "--window"),
    "negative top-k": (flags("--top-k", -3), "--top-k must be greater than 0, got -3"),
    "scale 0": (flags("--scale", 0), "--scale must be greater than 0, got 0"),
    "scale nan": (flags("--scale", "nan"), "--scale must be greater than 0, got nan"),
    "scale without impacts": (
        flags("--scale", 5, "--parts", "cls"),
        "--scale applies only with --parts ot or with --parts cls,ot",
    ),
    "unknown part": (flags("--parts", "sparse"), "--parts sparse: choose from cls,ot | cls | ot"),
    "unknown activation": (flags("--activation", "gelu"), "gelu"),
    "shard 4/4": (flags("--shard", "4/4"), "--shard 4/4: expected I/N with I from 0 to N-1"),
    "shard of a word": (flags("--shard", "first"), "--shard first: expected I/N"),
    "shard without documents": (flags("--shard", "1/2"), "only 1 window(s); use at most 1 shards"),
    "no such recipe": (flags("--recipe", "no-such.toml"), "no-such.toml: no such recipe"),
    "recipe with a typing error": (
        recipe("widow = 5"),
        "r.toml: no setting named 'widow'. Did you mean 'window'?",
    ),
    "recipe of a wrong type": (recipe('window = "5"'), "r.toml: window: expected int, got '5'"),
    "recipe that is no TOML": (recipe("window ="), "r.toml: not valid TOML"),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """An index that must not come to harm."""
    folder = tmp_path_factory.mktemp("finished")
    index = folder / "I"
    corpus = write_corpus(folder / "corpus.jsonl", 40)
    assert (
        main(
            [*HASHING, "--corpus", str(corpus), "--index", str(index), "--parts", "cls", "--quiet"]
        )
        == 0
    )
    return index


def run(arguments: list[Any], capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    try:
        status = main([str(a) for a in arguments])
    except SystemExit as e:
        status = int(e.code or 0)
    out, err = capfd.readouterr()
    assert out == ""
    return status, err


def assert_one_line(said: str, *parts: str) -> None:
    assert said.count("\n") == 1, said
    assert said.startswith("dupmae-ir encode: ")
    assert "Traceback" not in said
    for part in parts:
        assert part in said, said


@pytest.mark.parametrize("case", BAD)
def test_one_line_and_nothing_lost(case, tmp_path, finished, capfd):
    make, message = BAD[case]
    before = content(finished)
    record = meta(finished)
    # Also --overwrite must not touch the old index before the new one is complete.
    status, said = run([*make(tmp_path), "--index", finished, "--overwrite"], capfd)
    assert status == 2
    assert_one_line(said, message)
    assert content(finished) == before
    assert meta(finished) == record
    assert sorted(p.name for p in finished.parent.iterdir()) == ["I", "corpus.jsonl"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: p.write_text("mine"), "is a file; --index must name a folder"),
        (
            lambda p: (p.mkdir(), (p / "thesis.tex").write_text("mine")),
            "a folder that is not an index",
        ),
        (
            lambda p: (p.mkdir(), (p / "meta.json").write_text('{"mine": 1}')),
            "a folder that is not an index",
        ),
        (lambda p: (p.mkdir(), (p / "meta.json").write_text("{")), "a folder that is not an index"),
    ],
)
def test_a_target_that_is_not_an_index_is_not_touched(tmp_path, capfd, make, message):
    target = tmp_path / "target"
    make(target)
    for more in ([], ["--overwrite"]):
        status, said = run([*flags()(tmp_path), "--index", target, *more], capfd)
        assert status == 2
        assert_one_line(said, message)
        assert target.is_file() or len(list(target.iterdir())) == 1


def test_the_parent_is_a_file(tmp_path, capfd):
    (tmp_path / "file").write_text("x")
    status, said = run([*flags()(tmp_path), "--index", tmp_path / "file" / "I"], capfd)
    assert status != 0
    assert_one_line(said, str(tmp_path / "file"))


def test_closed_standard_input(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    status, said = run([*HASHING, "--corpus", "-", "--index", tmp_path / "I"], capfd)
    assert status == 2
    assert_one_line(said, "<standard input>: is closed")


@pytest.mark.jvm
def test_a_full_disk_loses_nothing(tmp_path, capfd):
    """Sizes from "not even one part" to "all but the last file": Python, faiss and Lucene each meet the wall."""
    corpus = write_corpus(tmp_path / "c.jsonl", 900)
    command = [*HASHING, "--corpus", corpus, "--window", 100, "--quiet"]
    assert run([*command, "--index", tmp_path / "whole"], capfd)[0] == 0
    failures = 0
    for kilobytes in (8, 60, 140, 180, 240, 300, 340, 400):
        disk = tmp_path / f"disk{kilobytes}"
        with small_disk(disk, kilobytes):
            status, said = run([*command, "--index", disk / "I"], capfd)
            if status:
                failures += 1
                assert status == 1
                assert_one_line(said, "free some", "run the same command again")
                assert not (disk / "I").exists()
            enlarge(disk)
            assert run([*command, "--index", disk / "I"], capfd) == (0, "")
            assert content(disk / "I") == content(tmp_path / "whole")
            assert [p.name for p in disk.iterdir()] == ["I"]
    assert failures >= 4
