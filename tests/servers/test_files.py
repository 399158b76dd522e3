"""Files for the tools of servers: limits of the servers, what searches find afterwards, kills, the contract of jobs."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fake_http import served
from support.fake_opensearch import StandIn as OpenSearch
from support.fake_vespa import StandIn as Vespa
from support.mutable_index import Living
from support.server_samples import assert_same, small_index

from dupmae_ir.__main__ import main
from dupmae_ir.errors import IndexMismatch, UsageError
from dupmae_ir.index.index import Index
from dupmae_ir.servers.config import FilesConfig
from dupmae_ir.servers.experimental.files import run

LONGEST_ID, LONGEST_REQUEST, LONGEST_KEYWORD = 512, 100_000_000, 32_766
"""Bytes, in OpenSearch and Elasticsearch: of a document's id, of a request, of a term."""


@pytest.fixture(scope="module")
def living(tmp_path_factory: pytest.TempPathFactory) -> Living:
    """An index that no test changes."""
    return small_index(tmp_path_factory.mktemp("files"))


def write(living: Living, output: Path, kind: str, **more: Any) -> dict[str, Any]:
    """The files of an index as the table ``mine``."""
    given = {"index": str(living.index), "output": str(output), "kind": kind, "table": "mine", "quiet": True}
    return run(FilesConfig(**given, **more))  # type: ignore[arg-type]


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def like_the_first(living: Living, part: str) -> list[str]:
    """The 10 documents with the best scores where the first document is the query."""
    index = Index.open(living.index).only_segment
    forward = [
        dict(zip(*(part.tolist() for part in index.forward.row(row)), strict=True)) for row in range(index.documents)
    ]
    dense = index.vectors[:].astype(np.float64) @ index.vectors[0].astype(np.float64)
    impact = np.array([sum(w * row.get(term, 0) for term, w in forward[0].items()) for row in forward], np.float64)
    weights = {"dense": (1, 0), "impact": (0, 1), "hybrid": (1, index.scale**-2)}[part]
    scores = weights[0] * dense + weights[1] * impact
    return [index.docids[row] for row in np.argsort(-scores, kind="stable")[:10]]


def check_bulk(data: bytes, properties: dict[str, Any]) -> list[str]:
    """The ids in a bulk file, which must have the form that the servers' references give, within their limits."""
    assert data.endswith(b"\n")
    assert len(data) <= LONGEST_REQUEST
    lines = [json.loads(line) for line in data.splitlines()]
    docids = []
    for action, source in zip(lines[::2], lines[1::2], strict=True):
        assert action.keys() == {"index"}
        assert action["index"].keys() == {"_id"}
        assert 0 < len(action["index"]["_id"].encode()) <= LONGEST_ID
        docids.append(action["index"]["_id"])
        assert source.keys() <= properties.keys()
        vector = properties["cls"]
        assert len(source["cls"]) == vector.get("dimension", vector.get("dims"))
        for feature, value in source["ot"].items():
            # rank_features: no dots in names, positive values, 9 significant bits
            assert re.fullmatch(r"\d+", feature)
            assert isinstance(value, int)
            assert 0 < value < 512
        for kind, types in {"num": (int, float), "str": (str,), "bool": (bool,)}.items():
            for name, values in source.get(kind, {}).items():
                assert re.fullmatch(r"[A-Za-z_][\w-]*", name)
                assert all(type(value) in types for value in values)
    return docids


@pytest.mark.parametrize("kind", ["opensearch", "elasticsearch"])
def test_bulk_files_keep_to_the_limits_of_the_engines(living: Living, tmp_path: Path, kind: str) -> None:
    made = write(living, tmp_path / "out", kind, megabytes=0.02)
    body = json.loads((tmp_path / "out" / "index.json").read_text())
    properties = body["mappings"]["properties"]
    types = {name: field["type"] for name, field in properties.items()}
    vector = {"opensearch": "knn_vector", "elasticsearch": "dense_vector"}[kind]
    assert types == {
        "fingerprint": "keyword",
        "names": "keyword",
        "stored": "object",
        "cls": vector,
        "ot": "rank_features",
        "num": "object",
        "str": "object",
        "bool": "object",
    }
    assert body["mappings"]["dynamic_templates"][-1]["str"]["mapping"]["ignore_above"] * 4 < LONGEST_KEYWORD
    parts = sorted((tmp_path / "out").glob("bulk-*.ndjson"))
    assert len(parts) == made["parts"] > 3
    assert all(part.stat().st_size <= 20_000 for part in parts)
    assert sum(part.stat().st_size for part in parts) == made["bytes"]
    docids = [docid for part in parts for docid in check_bulk(part.read_bytes(), properties)]
    assert sorted(docids) == sorted(living.documents)
    assert len(docids) == made["documents"]


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_the_commands_of_the_guide_load_opensearch(living: Living, tmp_path: Path, packed: bool) -> None:
    if not shutil.which("curl") or not shutil.which("bash"):
        pytest.skip("no curl")
    write(living, tmp_path / "out", "opensearch", megabytes=0.1, gzip=packed)
    guide = (tmp_path / "out" / "README.md").read_text()
    commands = re.findall(r"```sh\n(.*?)```", guide, re.S)[0]
    standin = OpenSearch()
    with served(standin) as port:
        commands = commands.replace("localhost:9200", f"127.0.0.1:{port}")
        assert str(port) in commands
        done = subprocess.run(
            ["bash", "-euc", commands], cwd=tmp_path / "out", capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count('"errors": false') == len(list((tmp_path / "out").glob("bulk-*")))
        assert_same(living, f"opensearch://127.0.0.1:{port}", "mine", ["hybrid"], [10])
        for part in ("dense", "impact"):
            query = json.loads((tmp_path / "out" / f"query-{part}.json").read_text())
            found = standin.search("mine", standin.indexes["mine"], query)
            assert [hit["_id"] for hit in found] == like_the_first(living, part)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_vespa_searches_what_is_fed(living: Living, tmp_path: Path, packed: bool) -> None:
    made = write(living, tmp_path / "out", "vespa", megabytes=0.05, gzip=packed, approximate=packed)
    parts = sorted((tmp_path / "out").glob("feed-*.jsonl*"))
    assert len(parts) == made["parts"] > 3
    standin = Vespa()
    standin.deploy(tmp_path / "out" / "application")
    for part in [*parts, tmp_path / "out" / "record.jsonl"]:
        data = gzip.decompress(part.read_bytes()) if part.suffix == ".gz" else part.read_bytes()
        standin.feed([json.loads(line) for line in data.splitlines()])
    with served(standin) as port:
        assert_same(living, f"vespa://127.0.0.1:{port}", "mine", ["hybrid"], [10])
    for part in ("dense", "impact", "hybrid"):
        found = standin.search(json.loads((tmp_path / "out" / f"query-{part}.json").read_text()))
        assert [hit["fields"]["docid"] for hit in found["children"]] == like_the_first(living, part)
    schema = (tmp_path / "out" / "application" / "schemas" / "mine.sd").read_text()
    assert ("attribute | index" in schema) == packed


KILLED = """
import os, signal, sys
from dupmae_ir.io import publishing
left = int(sys.argv.pop())
replace = publishing.Path.replace
def counted(*given):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(*given)
publishing.Path.replace = counted
from dupmae_ir.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def test_killed_at_any_file_it_continues_with_the_same_bytes(living: Living, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    made = write(living, whole, "opensearch", megabytes=0.05)
    words = ["servers", "files", "--index", str(living.index), "--output", str(broken), "--kind", "opensearch"]
    words += ["--table", "mine", "--megabytes", "0.05", "--quiet"]
    for left in (6, 5):
        command = [sys.executable, "-c", KILLED, *words, str(left)]
        killed = subprocess.run(command, capture_output=True, text=True, check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert not broken.exists()
    first = next(tmp_path.glob(".broken.work/files/bulk-00000.ndjson"))
    written = first.stat().st_mtime_ns
    again = write(living, broken, "opensearch", megabytes=0.05)
    assert {**again, "output": ""} == {**made, "output": ""}
    assert contents(broken) == contents(whole)
    assert (broken / first.name).stat().st_mtime_ns == written  # not written again
    assert not list(tmp_path.glob(".*.work"))


def test_the_contract_of_jobs(living: Living, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out"
    words = ["servers", "files", "--index", str(living.index), "--output", str(output), "--kind", "vespa"]
    assert main(words) == 0
    error = capfd.readouterr().err
    assert re.search(r"168 documents for vespa, table \w+, 1 file, \d+", error)
    before = contents(output)
    assert main([*words, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["status"] == "already complete"
    assert contents(output) == before
    assert main([*words, "--megabytes", "1"]) != 0
    assert "already exists with other settings: --megabytes 10.0 (requested 1.0)" in capfd.readouterr().err
    assert main([*words[:-1], "opensearch", "--approximate"]) == 2
    with pytest.raises(UsageError, match="expected a lower-case letter"):
        write_as(living, tmp_path / "other", "No")


def write_as(living: Living, output: Path, table: str) -> None:
    """The files of a table of another name."""
    run(FilesConfig(index=str(living.index), output=str(output), kind="vespa", table=table, quiet=True))


def test_files_of_a_changed_index_are_its_live_rows(tmp_path: Path) -> None:
    living = small_index(tmp_path, 40)
    first, *others = sorted(living.documents)
    living.delete(others[:5])
    living.update([living.documents[first]._replace(text="sort a list of dates by month")])
    write(living, tmp_path / "out", "elasticsearch")
    body = json.loads((tmp_path / "out" / "index.json").read_text())
    data = (tmp_path / "out" / "bulk-00000.ndjson").read_bytes()
    assert sorted(check_bulk(data, body["mappings"]["properties"])) == sorted(living.documents)
    record = json.loads((tmp_path / "out" / "record.json").read_text())
    assert (record["state"], record["digest"]) == ("complete", Index.open(living.index).digest)
    living.delete(others[5:6])
    with pytest.raises(IndexMismatch, match="the contents of `index`"):
        write(living, tmp_path / "out", "elasticsearch")
