"""Collections, shards and indexes in an S3-compatible store: the same bytes as in folders, whatever fails."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.encode_runs import content, meta, start, write_corpus
from support.store_server import Network, s3_server

from dupmae_ir.__main__ import main
from dupmae_ir.index.changes.object_store import local_folder
from dupmae_ir.index.format.integrity import FileRecord
from dupmae_ir.index.format.manifest import read_manifest, with_segments
from dupmae_ir.io.transfer import Remote

pytest.importorskip("s3fs", reason="needs the extra: pip install 'dupmae-ir[s3]'")
pytest.importorskip("moto.server", reason="needs moto[s3] and flask-cors, of the extra dev")

import fsspec

pytestmark = [
    pytest.mark.jvm,
    # Connections of clients that a test gave up are closed by the garbage collector.
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
]
SETTINGS = ("--window", 100, "--quiet")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def bucket(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty bucket; credentials and the address of the server are in the environment only."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "tester",
        "AWS_SECRET_ACCESS_KEY": "the-secret-key",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("DUPMAE_IR_CACHE", str(tmp_path / "cache"))
    connect(monkeypatch, server)
    name = re.sub("[^a-z0-9]", "", tmp_path.name.lower())[-40:] + "x"
    files().mkdir(name)
    yield f"s3://{name}"
    connect(monkeypatch, server)
    files().rm(name, recursive=True)


CONNECTED: list[str] = []


def connect(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Let all that follows use the server at ``url``; clients, which take long to make, are kept where they can be."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    if CONNECTED[-1:] != [url]:
        fsspec.get_filesystem_class("s3").clear_instance_cache()
    CONNECTED.append(url)


def files() -> Any:
    """The store, as its own client sees it."""
    return fsspec.filesystem("s3", use_listings_cache=False)


@pytest.fixture
def network(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Network]]:
    """Connect through a network that stops after some bytes."""
    made: list[Network] = []

    def connected(limit: int) -> Network:
        made.append(Network(urlsplit(server).port or 0, 1 << 30))
        connect(monkeypatch, made[-1].url)
        files().exists(
            "none/none"
        )  # a client takes a while to start, on a busy machine longer than the patience below
        made[-1].limit = limit
        return made[-1]

    yield connected
    for one in made:
        one.close()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run a command here; gives (exit status, standard error)."""

    def command(*words: Any) -> tuple[int, str]:
        status = main([str(word) for word in words])
        return status, capsys.readouterr().err

    return command


def encoded(corpus: Any, index: Any, *more: Any) -> list[Any]:
    return [
        "encode",
        "--model",
        "testing:hashing",
        "--corpus",
        corpus,
        "--index",
        index,
        *SETTINGS,
        *more,
    ]


def copy_of(url: str) -> Path:
    return local_folder(Remote(url))


def forget(url: str) -> None:
    """As on another machine: no copy in the cache."""
    shutil.rmtree(copy_of(url))


def names(url: str) -> set[str]:
    base = url.removeprefix("s3://")
    return {name.removeprefix(f"{base}/") for name in files().find(base)}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "corpus.jsonl", 700)


@pytest.fixture(scope="module")
def made(corpus: Path) -> Path:
    """The index in a folder, made without a store."""
    assert main([str(word) for word in encoded(corpus, corpus.parent / "whole")]) == 0
    return corpus.parent / "whole"


@pytest.fixture
def whole(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(made, tmp_path / "whole", symlinks=True)


@pytest.fixture(scope="module")
def vectors(corpus: Path) -> Path:
    """An index of vectors alone, which has few files."""
    assert (
        main([str(word) for word in encoded(corpus, corpus.parent / "vectors", "--parts", "cls")])
        == 0
    )
    return corpus.parent / "vectors"


@pytest.mark.parametrize("zipped", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_a_collection_and_its_index_are_those_of_folders(
    bucket, corpus, whole, run, tmp_path, zipped
):
    url = f"{bucket}/corpus.jsonl" + ".gz" * zipped
    files().pipe(url, gzip.compress(corpus.read_bytes()) if zipped else corpus.read_bytes())
    index = f"{bucket}/indexes/I"
    assert run(*encoded(url, index)) == (0, "")
    assert names(index) == {*files_of(copy_of(index)), "meta.json", "upload.json"}
    assert meta(copy_of(index))["inputs"][0]["path"] == url
    forget(index)
    said = run("search", "--index", index, "--query", "word1 word7", "--hits", 5, "--json")
    assert said[0] == 0
    assert content(copy_of(index)) == content(whole)
    assert meta(copy_of(index))["digest"] == meta(whole)["digest"]
    # The same command again has nothing to do, here and where nothing is cached; other settings are refused.
    if zipped:
        forget(index)
    assert run(*encoded(url, index)) == (0, "")
    status, said = run(*encoded(url, index, "--top-k", 5))
    assert (status, said.count("\n")) == (2, 1)
    assert f"{index} already exists with other settings: --top-k 32 (requested 5)" in said


@pytest.mark.nightly  # a cluster is nine processes
def test_ray_workers_read_from_the_store_and_write_the_same_index_into_it(
    bucket, corpus, whole, monkeypatch
):
    pytest.importorskip("ray", reason="needs the extra: pip install 'dupmae-ir[ray]'")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    url = f"{bucket}/corpus.jsonl"
    index = f"{bucket}/indexes/I"
    files().pipe(url, corpus.read_bytes())
    words = encoded(url, index, "--server", "ray", "--workers", 2)
    done = subprocess.run(
        [sys.executable, "-m", "dupmae_ir", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert content(copy_of(index)) == content(whole)
    assert meta(copy_of(index))["digest"] == meta(whole)["digest"]


def test_search_answers_as_from_the_folder(bucket, whole, tmp_path, capsys, run):
    index = f"{bucket}/I"
    assert run("index", "push", whole, "--to", index, "--quiet") == (0, "")
    topics = tmp_path / "topics.tsv"
    topics.write_text("1\tword1 word7\n2\tword30\n")
    for name in (str(whole), index):
        path = tmp_path / f"{name == index}.trec"
        words = [
            "--topics",
            topics,
            "--hits",
            20,
            "--output",
            path,
            "--quiet",
            "--impact-search",
            "postings",
        ]
        assert (
            run("index", "postings", "--index", whole, "--quiet")[0] == 0 if name != index else True
        )
        assert run("index", "push", whole, "--to", index, "--quiet")[0] == 0
        assert run("search", "--index", name, *words) == (0, "")
    assert (tmp_path / "True.trec").read_text() == (tmp_path / "False.trec").read_text()
    case = ["search", "--query", "word1 word7", "--index"]
    answers = []
    for name in (str(whole), index):
        assert main([*case, name, "--quiet"]) == 0
        answers.append(capsys.readouterr().out.replace(name, "INDEX"))
    assert answers[0] == answers[1]


def test_a_folder_of_files_is_read_in_order(bucket, corpus, whole, run, tmp_path):
    lines = corpus.read_bytes().splitlines(keepends=True)
    for number, start_at in enumerate(range(0, 700, 70)):
        files().pipe(
            f"{bucket}/c/part{number + 1}.jsonl", b"".join(lines[start_at : start_at + 70])
        )
    files().pipe(f"{bucket}/c/README.txt", b"no document")
    assert run(*encoded(f"{bucket}/c/", tmp_path / "I")) == (0, "")
    assert content(tmp_path / "I") == content(whole)


def test_shards_are_merged_from_the_store_into_it(bucket, corpus, vectors, run):
    shards = [f"{bucket}/I.{number}" for number in range(2)]
    for number, shard in enumerate(shards):
        assert run(*encoded(corpus, shard, "--parts", "cls", "--shard", f"{number}/2")) == (0, "")
        forget(shard)
    merge = ["encode.merge", "--index", f"{bucket}/I", "--quiet"]
    status, said = run(*merge, shards[1])
    assert (status, said) == (
        2,
        "dupmae-ir encode.merge: missing of 2 shards: 0 (numbers start at 0); encode them, or name them\n",
    )
    assert run(*merge, *reversed(shards)) == (0, "")
    forget(f"{bucket}/I")
    assert run("index", "show", f"{bucket}/I", "--quiet") == (0, "")
    assert content(copy_of(f"{bucket}/I")) == content(vectors)


@pytest.mark.nightly
def test_a_kill_in_the_middle_of_an_upload(
    bucket, server, network, corpus, whole, run, monkeypatch
):
    index = f"{bucket}/I"
    stops = network(120_000)
    process = start(corpus, index, *SETTINGS)
    try:
        assert stops.stalled.wait(60), process.communicate()
    finally:
        process.kill()
        process.communicate()
    connect(monkeypatch, server)
    before = names(index)
    assert "upload.json" in before
    assert 3 < len(before) < len(files_of(copy_of(index)))
    assert "meta.json" not in before
    status, said = run("search", "--index", index, "--query", "word1")
    assert (status, said.count("\n")) == (2, 1)
    assert f"{index} is not a finished index (its upload has not ended" in said
    times = {
        name: files().info(f"{index}/{name}")["LastModified"] for name in before - {"upload.json"}
    }
    time.sleep(1.1)  # the store counts whole seconds
    assert run(*encoded(corpus, index)) == (0, "")
    again = {
        name for name, at in times.items() if files().info(f"{index}/{name}")["LastModified"] != at
    }
    assert len(again) <= 1, "what was there whole was sent again"
    forget(index)
    assert run("index", "verify", index, "--quiet") == (0, "")
    assert content(copy_of(index)) == content(whole)


@pytest.mark.nightly
def test_a_network_that_stalls_ends_in_one_line(
    bucket, server, network, corpus, vectors, run, tmp_path, monkeypatch
):
    index = f"{bucket}/I"
    files().pipe(f"{bucket}/corpus.jsonl", corpus.read_bytes())
    late = "no byte for 2 s (DUPMAE_IR_PATIENCE); check the network and run the same command again"

    def stalled(limit: int, *words: Any) -> str:
        monkeypatch.setenv("DUPMAE_IR_PATIENCE", "2")
        stops = network(limit)
        begun = time.monotonic()
        status, said = run(*words)
        assert stops.stalled.is_set()
        assert (status, said.count("\n")) == (1, 1), said
        assert time.monotonic() - begun < 30
        assert said.endswith(f": {late}\n")
        monkeypatch.delenv("DUPMAE_IR_PATIENCE")  # a busy machine is slow, too
        connect(monkeypatch, server)
        return said.removesuffix(f": {late}\n")

    assert stalled(3000, *encoded(f"{bucket}/corpus.jsonl", tmp_path / "I")) == (
        f"dupmae-ir encode: {bucket}/corpus.jsonl"
    )
    sent = stalled(40_000, "index", "push", vectors, "--to", index, "--quiet")
    assert sent.removeprefix(f"dupmae-ir index push: {index}/") in {
        *files_of(vectors),
        "upload.json",
    }
    assert run("index", "push", vectors, "--to", index, "--quiet") == (0, "")
    received = stalled(60_000, "search", "--index", index, "--query", "word1")
    assert received.removeprefix(f"dupmae-ir search: {index}/") in files_of(vectors)
    assert not copy_of(index).exists()
    assert run("index", "show", index, "--quiet") == (0, "")
    assert content(copy_of(index)) == content(vectors)


@pytest.mark.parametrize(
    "damage", ["changed", "missing", "manifest", pytest.param("shorter", marks=pytest.mark.nightly)]
)
def test_a_damaged_object_is_refused_by_name(bucket, vectors, run, damage):
    index = f"{bucket}/I"
    assert run("index", "push", vectors, "--to", index, "--quiet") == (0, "")
    name = (
        "meta.json"
        if damage == "manifest"
        else next(n for n in files_of(vectors) if n.endswith("cls/index"))
    )
    url = f"{index}/{name}"
    good = (vectors / name).read_bytes()
    bad = {
        "changed": good[:-1] + bytes([good[-1] ^ 1]),
        "shorter": good[:-1],
        "manifest": good.replace(b'"documents": 700', b'"documents": 701'),
    }
    files().rm(url) if damage == "missing" else files().pipe(url, bad[damage])
    status, said = run("search", "--index", index, "--query", "word1")
    assert (status, said.count("\n")) == (2, 1)
    how = {
        "missing": "is missing",
        "shorter": f"is damaged: {len(good) - 1:,} bytes, expected {len(good):,}",
        "manifest": "was edited or damaged after it was written (its digest differs); push the index again with",
    }
    assert f"{url} {how.get(damage, 'is damaged')}" in said
    assert not copy_of(index).exists()
    # The advice of the message helps.
    assert run("index", "push", vectors, "--to", index, "--quiet", "--overwrite") == (0, "")
    assert run("index", "show", index, "--quiet") == (0, "")
    assert content(copy_of(index)) == content(vectors)


def files_of(index: Path) -> set[str]:
    """The files that the manifest of an index records."""
    return {name for name, _ in read_manifest(index).files()}


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "cls/../../outside", "a\\b"])
def test_a_manifest_that_names_files_outside_is_refused(bucket, vectors, run, tmp_path, name):
    index = f"{bucket}/I"
    assert run("index", "push", vectors, "--to", index, "--quiet") == (0, "")
    manifest = read_manifest(vectors)
    segment = manifest.segments[0]
    segment = dataclasses.replace(segment, files={name: FileRecord(1, "0"), **segment.files})
    hostile = with_segments(manifest.meta, [segment])
    files().pipe(f"{index}/meta.json", json.dumps(hostile).encode())
    status, said = run("search", "--index", index, "--query", "word1")
    assert (status, said.count("\n")) == (2, 1)
    assert "records a file outside the index" in said
    assert not list(tmp_path.rglob("outside"))


def test_a_full_disk_names_the_object_and_is_continued(bucket, vectors, run, monkeypatch):
    index = f"{bucket}/I"
    assert run("index", "push", vectors, "--to", index, "--quiet") == (0, "")
    fetch = Remote.fetch

    def full(self: Remote, target: Path, *more: Any) -> str:
        if self.name == "index":
            raise OSError(28, os.strerror(28), str(target))
        return fetch(self, target, *more)

    with monkeypatch.context() as patch:
        patch.setattr(Remote, "fetch", full)
        status, said = run("search", "--index", index, "--query", "word1")
    assert (status, said.count("\n")) == (1, 1)
    assert f"the disk is full, at {index}/segments/" in said
    fetched: list[str] = []
    monkeypatch.setattr(
        Remote, "fetch", lambda self, *more: fetched.append(self.name) or fetch(self, *more)
    )
    assert run("index", "show", index, "--quiet") == (0, "")
    assert 0 < len(fetched) < len(files_of(vectors))
    assert content(copy_of(index)) == content(vectors)


def test_a_changed_index_replaces_the_old_one_at_once(
    bucket, corpus, vectors, run, tmp_path, monkeypatch
):
    whole = shutil.copytree(vectors, tmp_path / "vectors", symlinks=True)
    index = f"{bucket}/I"
    assert run("index", "push", whole, "--to", index, "--quiet") == (0, "")
    assert run("index", "show", index, "--quiet") == (0, "")
    more = write_corpus(tmp_path / "more.jsonl", 60, seed=1)
    more.write_text(more.read_text().replace('"_id": "d', '"_id": "new'))
    assert run("index", "add", "--index", whole, "--corpus", more, "--quiet") == (0, "")
    assert run("index", "delete", "--index", whole, "--ids", "d3", "--quiet") == (0, "")
    removed: list[str] = []
    remove = Remote.remove
    monkeypatch.setattr(Remote, "remove", lambda self: removed.append(self.name) or remove(self))
    assert run("index", "push", whole, "--to", index, "--quiet") == (0, "")
    assert "meta.json" not in removed, "for a moment there was no index"
    # Only what is new is received; a stale folder does not replace it.
    fetched: list[str] = []
    fetch = Remote.fetch
    monkeypatch.setattr(
        Remote, "fetch", lambda self, *more: fetched.append(str(self)) or fetch(self, *more)
    )
    assert run("index", "pull", index, "--index", tmp_path / "copy", "--quiet") == (0, "")
    everything = len(fetched)
    assert run("index", "show", index, "--quiet") == (0, "")
    assert all("/segments/" in name for name in fetched[everything:])
    assert content(copy_of(index)) == content(tmp_path / "copy") == content(whole)
    assert run(*encoded(corpus, tmp_path / "stale", "--parts", "cls")) == (0, "")
    status, said = run("index", "push", tmp_path / "stale", "--to", index)
    assert (status, said) == (
        2,
        f"dupmae-ir index push: {index} already has another index; pass --overwrite to replace "
        "it, or name another URL\n",
    )
    status, said = run("index", "add", "--index", index, "--corpus", more)
    assert (status, said.count("\n")) == (2, 1)
    assert said == (
        f"dupmae-ir index add: {index}: dupmae-ir index add needs a folder of this machine: copy the index with "
        "dupmae-ir index pull, change it, and copy it back with dupmae-ir index push\n"
    )


def test_offline_the_copy_is_used(bucket, vectors, run, monkeypatch):
    index = f"{bucket}/I"
    assert run("index", "push", vectors, "--to", index, "--quiet") == (0, "")
    monkeypatch.setenv("DUPMAE_IR_OFFLINE", "1")
    status, said = run("index", "show", index)
    assert (status, said.count("\n")) == (1, 1)
    assert f"{index}: is not in the cache" in said
    monkeypatch.delenv("DUPMAE_IR_OFFLINE")
    assert run("index", "show", index, "--quiet") == (0, "")
    monkeypatch.setenv("DUPMAE_IR_OFFLINE", "1")
    connect(monkeypatch, "http://127.0.0.1:9")
    assert run("index", "show", index, "--quiet") == (0, "")


def test_credentials_are_not_recorded_and_not_printed(bucket, corpus, run, tmp_path, capsys):
    index = f"{bucket}/I"
    assert run(*encoded(corpus, index, "--parts", "cls"))[0] == 0
    for name in names(index):
        assert b"the-secret-key" not in files().cat(f"{index}/{name}")
    for words in (
        encoded(f"s3://me:the-secret-key@{bucket[5:]}/c.jsonl", tmp_path / "I"),
        encoded("https://host/c.jsonl?X-Amz-Signature=the-secret-key", tmp_path / "I"),
        encoded(corpus, f"s3://me:the-secret-key@{bucket[5:]}/J"),
        ["search", "--index", f"s3://me:the-secret-key@{bucket[5:]}/I", "--query", "a"],
    ):
        status, said = run(*words)
        assert (status, said.count("\n")) == (2, 1)
        assert "must not contain credentials" in said
        assert "the-secret-key" not in said


def test_mistakes_are_one_line(bucket, corpus, whole, run, tmp_path, monkeypatch):
    cases: list[tuple[int, str, list[Any]]] = [
        (
            2,
            f"{bucket}/none.jsonl: no such file or folder",
            encoded(f"{bucket}/none.jsonl", tmp_path / "I"),
        ),
        (
            2,
            "only collections with a document on each line",
            encoded(f"{bucket}/a.pdf", tmp_path / "I"),
        ),
        (
            2,
            f"{bucket}/none is not a finished index (no meta.json)",
            ["search", "--index", f"{bucket}/none", "--query", "a"],
        ),
        (2, "Protocol not known: nope", encoded("nope://a/b.jsonl", tmp_path / "I")),
        (2, "--to I: expected a URL", ["index", "push", whole, "--to", "I"]),
        (2, "needs a folder of this machine", ["serve", "--index", f"{bucket}/I"]),
    ]
    for expected, message, words in cases:
        status, said = run(*words)
        assert (status, said.count("\n"), message in said) == (expected, 1, True), said
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *more: None)
    status, said = run(*encoded(f"{bucket}/c.jsonl", tmp_path / "I"))
    assert (status, said) == (
        1,
        "dupmae-ir encode: s3:// needs fsspec: pip install 'dupmae-ir[s3]'\n",
    )
