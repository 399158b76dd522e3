"""Searches through a server by processes that have the record of an index, and no index: lists, refusals, sizes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.mutable_index import TOPICS, Living
from support.server_samples import documents, load

import dupmae_ir
from dupmae_ir.__main__ import main
from dupmae_ir.errors import IndexMismatch, InputError, UsageError
from dupmae_ir.index.index import Index
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.servers.protocol import ServerFailed
from dupmae_ir.types import Document

CLIENT = """
import dataclasses, json, sys
from support.mutable_index import TOPICS
from dupmae_ir.search.fusion import Fusion
from dupmae_ir.search.searcher import Searcher

index, url, known = sys.argv[1], sys.argv[2], sys.argv[3].split()
searcher, out = Searcher.open(index, server=url, table="mine", batch_size=2), []
ways = [dict(mode=mode, hits=hits) for mode in ("dense", "impact", "hybrid") for hits in (5, 1000)]
ways += [dict(hits=7, filter="year >= 2019"), dict(hits=7, within=[*known, "nobody"]), dict(hits=3, within=["nobody"])]
ways += [dict(hits=7, filter="year > 3000"), dict(mode="impact", raw_impacts=True), dict(hits=1000, remove_query=True)]
ways += [dict(hits=4, fusion=Fusion("interpolation", missing="min"), fusion_depth=9)]
for way in ways:
    for answer in searcher.answers([*TOPICS, TOPICS[0]._replace(qid=known[0])], **way):
        out.append([str(way), [[h.docid, h.score.hex()] for h in answer.hits], answer.report and vars(answer.report)])
text = TOPICS[0].text
described = [dataclasses.asdict(hit) for hit in searcher.describe(text, known[:2])]
out += [repr(searcher.explain_all(text, known)), described, searcher.document(known[0]), searcher.row("nobody")]
print(json.dumps(out, default=list, sort_keys=True))
"""


def run(*words: str) -> str:
    """The output of a process of its own: milvus-lite keeps its file until the process ends."""
    paths = [str(Path(dupmae_ir.__file__).parents[1]), str(Path(__file__).parents[1])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-W", "ignore", *words]
    process = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert process.returncode == 0, process.stderr
    return process.stdout


def some_documents() -> list[Document]:
    """Documents with metadata; copies, whose scores are the same; and one without a term."""
    some = documents()[:50]
    copies = [
        document._replace(docid=f"{'AZ'[n % 2]}-{document.docid}")
        for n, document in enumerate(some[::2])
    ]
    return [*some, *copies, Document("empty", "", "", {"year": 2020})]


def push(index: Path, record: Path, *more: str) -> int:
    """Write the record of an index."""
    return main(["index", "push", str(index), "--to", str(record), "--record", "--quiet", *more])


@pytest.fixture(params=["pgvector", "qdrant", pytest.param("milvus", marks=pytest.mark.nightly)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the table ``mine`` is loaded to."""
    if request.param == "pgvector":
        return str(request.getfixturevalue("postgres"))
    pytest.importorskip({"qdrant": "qdrant_client", "milvus": "milvus_lite"}[request.param])
    return f"{request.param}://{tmp_path / 'server.db'}"


@pytest.mark.filterwarnings("ignore")  # milvus-lite closes its sockets when it likes
def test_lists_are_those_of_a_machine_with_the_index(tmp_path: Path, url: str) -> None:
    living = Living(tmp_path, some_documents())
    record = tmp_path / "R"
    away = tmp_path / "elsewhere"
    known = [document.docid for document in some_documents()[:12]]
    for change in range(2):
        if change:  # several segments, deleted rows
            living.delete(known[2:4])
            living.update(
                [living.documents[known[0]]._replace(text="sort a list of dates by month")]
            )
            known = [*known[:2], *known[4:]]
        run(
            "-m",
            "dupmae_ir",
            "servers",
            "load",
            "--index",
            str(living.index),
            "--to",
            url,
            "--table",
            "mine",
        )
        assert push(living.index, record) == 0
        assert [path.name for path in record.iterdir()] == ["meta.json"]
        expected = json.loads(run("-c", CLIENT, str(living.index), url, " ".join(known)))
        living.index.rename(away)
        assert json.loads(run("-c", CLIENT, str(record), url, " ".join(known))) == expected
        away.rename(living.index)
    lists = [
        found
        for way, found, report in expected[:-4]
        if way == "{'mode': 'hybrid', 'hits': 1000}" and report["exact"]
    ]
    plain = Searcher.open(living.index, batch_size=2, impact_search="postings").answers(
        TOPICS, 1000, "hybrid"
    )
    assert lists[: len(TOPICS)] == [
        [[hit.docid, hit.score.hex()] for hit in answer.hits] for answer in plain
    ]


@pytest.fixture(scope="module")
def living(tmp_path_factory: pytest.TempPathFactory) -> Living:
    """An index that no test changes."""
    return Living(tmp_path_factory.mktemp("records"), some_documents())


@pytest.fixture(scope="module")
def record(living: Living) -> Path:
    """Its record."""
    assert push(living.index, living.where / "mine") == 0
    return living.where / "mine"


def test_a_record_is_no_index(
    living: Living, record: Path, postgres: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for words in (
        ["search", "--index", str(record), "--query", "sort"],
        [
            "search",
            "--index",
            str(record),
            str(living.index),
            "--query",
            "sort",
            "--server",
            postgres,
        ],
        ["servers", "load", "--index", str(record), "--to", postgres],
        ["index", "show", str(record)],
        ["index", "push", str(record), "--to", str(tmp_path / "again"), "--record"],
        ["index", "delete", "--index", str(record), "--ids", "a"],
    ):
        assert main(words) == 2, words
        error = capfd.readouterr().err
        assert "is the record of an index" in error, words
        assert error.count("\n") == 1, words
    assert (
        push(living.index, living.index) == 2
    )  # a record in the place of an index, and an index in that of a record
    assert main(["index", "push", str(living.index), "--to", f"file://{record}", "--quiet"]) == 2
    assert capfd.readouterr().err.count("already has another index") == 2
    assert Index.open(living.index).documents == Index.open(record, record=True).documents
    changed = tmp_path / "mine"
    changed.mkdir()
    (changed / "meta.json").write_text(
        (record / "meta.json").read_text().replace('"documents": 76', '"documents": 77')
    )
    with pytest.raises(InputError, match="was edited or damaged"):
        Searcher.open(changed, server=postgres, table="mine")


def test_another_state_of_the_table_is_refused(tmp_path: Path, postgres: str) -> None:
    living = Living(tmp_path, some_documents()[:20])
    record = tmp_path / "R"
    table = "changing_records"
    load(living, postgres, table)
    assert push(living.index, record) == 0
    through = Searcher.open(record, server=postgres, table=table)
    found = through.search(TOPICS[0].text, 3)
    living.delete([hit.docid for hit in found[:1]])
    load(living, postgres, table)
    for ask in (
        lambda: through.search(TOPICS[0].text, 3),
        lambda: Searcher.open(record, server=postgres, table=table),
    ):
        with pytest.raises(
            IndexMismatch, match=f"table {table} holds 19 documents of another state of {record}"
        ):
            ask()
    assert push(living.index, record) == 0  # a later generation
    later = Searcher.open(record, server=postgres, table=table)
    assert later.search(TOPICS[0].text, 2) == found[1:3]
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"UPDATE {table} SET cls = cls + cls WHERE docid = %s", [found[1].docid])
    with pytest.raises(ServerFailed, match="another program changed its rows"):
        later.document(found[1].docid)


def test_what_only_the_index_can_do_is_one_line(
    living: Living, record: Path, tmp_path: Path
) -> None:
    pytest.importorskip("qdrant_client")
    url = f"qdrant://{tmp_path / 'q'}"
    load(living, url, "mine")
    searcher = Searcher.open(record, server=url)  # the table has the name of the record's folder
    for options, words in {
        ("filter", "yaer > 2000"): "the index has no metadata 'yaer'; known: ",
        ("filter", "lang > 'de'"): "no filter with the same meaning .the order of strings.",
        ("filter", len): "is a record, which takes ids or, if texts are stored, a condition",
    }.items():
        with pytest.raises(UsageError, match=words):
            searcher.search("sort", **dict([options]))
    with pytest.raises(UsageError, match="is a record, which takes ids"):
        searcher.search("sort", filter="year > 2000", within=["empty"])
    with pytest.warns(UserWarning, match="has no document 'nobody'"):
        assert [hit.docid for hit in searcher.search("sort", within=["empty", "nobody"])] == [
            "empty"
        ]
    with pytest.raises(UsageError, match="give the `server` that has its rows"):
        searcher.with_settings(server=None).search("sort")


def test_a_record_behind_a_url(
    living: Living,
    postgres: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the embedded model, whose weights of words depend on how many documents have them."""
    monkeypatch.setenv("DUPMAE_IR_CACHE", str(tmp_path / "cache"))
    url = f"file://{tmp_path}/bucket/mine"
    index = tmp_path / "I"
    words = ["--corpus", str(living.where / "c.jsonl"), "--index", str(index), "--quiet"]
    assert main(["encode", *words, "--document-length", "32"]) == 0
    assert (
        main(
            [
                "servers",
                "load",
                "--index",
                str(index),
                "--to",
                postgres,
                "--table",
                "embedded",
                "--quiet",
            ]
        )
        == 0
    )
    assert main(["index", "push", str(index), "--to", url, "--record"]) == 0
    assert "is complete" in capfd.readouterr().err
    search = [
        "--query",
        "sort a list of dates",
        "--json",
        "--server",
        postgres,
        "--table",
        "embedded",
    ]
    answers = []
    for where in (str(index), url):
        assert main(["search", "--index", where, *search]) == 0
        answers.append(json.loads(capfd.readouterr().out))
        if where == str(index):
            index.rename(tmp_path / "away")
    assert answers[0]["hits"] == answers[1]["hits"]
    assert answers[0]["report"] == answers[1]["report"]
    assert answers[1]["hits"][0]["text"]
    assert main(["index", "pull", url, "--index", str(tmp_path / "copy"), "--quiet"]) == 0
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["meta.json"]
