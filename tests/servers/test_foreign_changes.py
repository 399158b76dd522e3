"""Rows that another program edits, adds, removes or replaces in Qdrant and Milvus, which count no changes.

A search refuses what it can see: the number of rows, and every row that it reads or lists. What it cannot see is a row
that was edited so that no list contains it; the certificate names that assumption, and ``servers verify`` finds it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.mutable_index import TOPICS, Living
from support.server_samples import load, small_index

from dupmae_ir.__main__ import main
from dupmae_ir.errors import IndexMismatch
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.serve.batch_handler import certificate
from dupmae_ir.servers.config import VerifyTableConfig
from dupmae_ir.servers.load import verify
from dupmae_ir.servers.milvus import Milvus
from dupmae_ir.servers.protocol import RECORDS, ServerFailed, ServerHits, fingerprint_of, open_table
from dupmae_ir.servers.qdrant import Qdrant, _point
from dupmae_ir.types import Document, Metadata

# milvus-lite closes its sockets when it likes.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore::DeprecationWarning",
    "ignore::ResourceWarning",
)
TEXT = TOPICS[0].text


class QdrantProgram:
    """Another program that changes the points of the collection ``mine``."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def edit(self, docid: str, **values: Any) -> None:
        vector = values.pop("cls", None)
        if vector is not None:
            from qdrant_client import models

            point = models.PointVectors(id=_point(docid), vector={"cls": vector})
            self.client.update_vectors("mine", [point])
        if values:
            self.client.set_payload("mine", values, [_point(docid)])

    def remove(self, docid: str) -> None:
        self.client.delete("mine", [_point(docid)])

    def copy(self, docid: str, name: str) -> None:
        """Add a point with the vectors of a document, of the id ``name``."""
        from qdrant_client import models

        (point,) = self.client.retrieve("mine", [_point(docid)], with_vectors=True)
        copy = models.PointStruct(
            id=7, vector=point.vector, payload={**point.payload, "docid": name}
        )
        self.client.upsert("mine", [copy])


class MilvusProgram:
    """Another program that changes the rows of the collection ``mine``."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def _row(self, docid: str) -> dict[str, Any]:
        (row,) = self.client.query("mine", f"docid == {json.dumps(docid)}", output_fields=["*"])
        return {name: row[name] for name in row if name != "$meta"}

    def edit(self, docid: str, **values: Any) -> None:
        self.client.upsert("mine", [{**self._row(docid), **values}])

    def remove(self, docid: str) -> None:
        self.client.delete("mine", ids=[docid])

    def copy(self, docid: str, name: str) -> None:
        self.client.insert("mine", [{**self._row(docid), "docid": name}])


@pytest.fixture(scope="module")
def living(tmp_path_factory: pytest.TempPathFactory) -> Living:
    """An index that no test changes, and its record."""
    living = small_index(tmp_path_factory.mktemp("foreign"), 40)
    words = ["--to", str(living.where / "record"), "--record", "--quiet"]
    assert main(["index", "push", str(living.index), *words]) == 0
    return living


class Opened(NamedTuple):
    """The table ``mine``, searched with the folder or with the record of the index, and a program that changes it."""

    searcher: Searcher
    program: QdrantProgram | MilvusProgram
    best: list[str]  #: all documents by the dense score of ``TEXT``
    reads_rows: bool  #: whether the search has the record alone

    def refused(self, words: str, ask: Callable[[Searcher], object] | None = None) -> None:
        """A search is refused in one line."""
        with pytest.raises(ServerFailed, match=words) as caught:
            (ask or (lambda searcher: searcher.search(TEXT, 3, "dense")))(self.searcher)
        assert "\n" not in str(caught.value)

    def verify(self) -> dict[str, object]:
        """``servers verify``, by the searcher's client: a folder of Qdrant takes no second one."""
        table = self.searcher.server.table  # type: ignore[union-attr]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("dupmae_ir.servers.load.open_table", lambda *_: table)
            patch.setattr(type(table), "close", lambda _: None)
            return verify(VerifyTableConfig(where="qdrant:///any", table="mine", batch=7))


@pytest.fixture(
    params=[
        "qdrant, folder",
        "qdrant, record",
        pytest.param("milvus, folder", marks=pytest.mark.nightly),
        "milvus, record",
    ]
)
def opened(request: pytest.FixtureRequest, living: Living, tmp_path: Path) -> Iterator[Opened]:
    """A table that a test may change."""
    kind, _, index = request.param.partition(", ")
    pytest.importorskip({"qdrant": "qdrant_client", "milvus": "milvus_lite"}[kind])
    url = f"{kind}://{tmp_path / 'server.db'}"
    load(living, url, "mine")
    folder = {"folder": living.index, "record": living.where / "record"}[index]
    searcher = Searcher.open(folder, server=url, table="mine")
    plain = Searcher.open(living.index).search(TEXT, 40, "dense")
    table: Any = searcher.server.table  # type: ignore[union-attr]
    program = {"qdrant": QdrantProgram, "milvus": MilvusProgram}[kind](table._client)
    yield Opened(searcher, program, [hit.docid for hit in plain], index == "record")
    table.close()


def test_rows_that_are_edited_in_place(opened: Opened) -> None:
    best = opened.best[1]
    answer = next(iter(opened.searcher.answers(TOPICS, 3, "dense")))
    assert best in [hit.docid for hit in answer.hits]
    assert opened.verify()["status"] == "as loaded"
    if opened.reads_rows:
        opened.program.edit(best, text="another text")
        opened.refused(
            f"the row of '{best}' is not as it was loaded", lambda searcher: searcher.document(best)
        )
    vector = np.zeros(opened.searcher.index.dim or 0)
    vector[0] = 0.001
    opened.program.edit(best, cls=vector.tolist())
    words = "is not as it was loaded" if opened.reads_rows else "the server holds or computes other"
    opened.refused(words, lambda searcher: searcher.search(TEXT, 40, "dense"))
    # No list of three contains the row now, so no search reads it: the certificate says what it takes for granted, and
    # verify finds the row.
    answer = next(iter(opened.searcher.answers(TOPICS, 3, "dense")))
    assert best not in [hit.docid for hit in answer.hits]
    assert answer.report is not None
    assert str(answer.report.assumes).startswith("table mine is unchanged since 20")
    assert certificate(answer.report, None).assumes == answer.report.assumes
    with pytest.raises(ServerFailed, match=f"1 of 40 rows were edited, the first of them '{best}'"):
        opened.verify()


def test_rows_that_are_added_removed_or_replaced(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *_, last = opened.best
    opened.program.copy(last, "another")
    opened.refused("41 rows, and 40 were loaded")
    opened.program.remove(last)
    # As many rows as before.
    opened.refused(
        "did not write|not as it was loaded|has a document 'another' that",
        lambda searcher: searcher.search(TEXT, 40, "dense"),
    )
    with pytest.raises(ServerFailed, match=r"did not write|were edited|were replaced"):
        opened.verify()
    opened.program.copy(first, first)
    if isinstance(opened.program, QdrantProgram):
        opened.refused("has a row that dupmae-ir did not write: the point 7; delete it")
    else:
        # Milvus keeps two rows of one id, but milvus-lite does not.
        top = Milvus.top
        monkeypatch.setattr(Milvus, "top", lambda *some: [twice(hits) for hits in top(*some)])
        opened.refused("two rows of one document")
    opened.program.remove(opened.best[-2])
    opened.refused("39 rows, and 40 were loaded|did not write")


def twice(hits: ServerHits) -> ServerHits:
    """A list with its first row twice."""
    return ServerHits([hits.docids[0], *hits.docids], np.append(hits.scores[:1], hits.scores))


def test_a_load_repairs_what_others_changed(living: Living, tmp_path: Path) -> None:
    pytest.importorskip("qdrant_client")
    url = f"qdrant://{tmp_path / 'q'}"
    load(living, url, "mine")
    table: Any = open_table(url, "mine", 60.0)
    program = QdrantProgram(table._client)
    docids = sorted(living.documents)
    program.edit(docids[0], fingerprint="no digits")
    program.edit(docids[1], fingerprint="")
    table.close()
    with pytest.raises(ServerFailed, match="2 of 40 rows were edited"):
        verify(VerifyTableConfig(where=url, table="mine"))
    program.client = open_table(url, "mine", 60.0)._client  # type: ignore[attr-defined]
    program.remove(docids[2])
    program.client.close()
    counts = load(living, url, "mine")
    assert counts["written_now"] == 3
    assert main(["servers", "verify", "--from", url, "--table", "mine"]) == 0


def test_a_forged_fingerprint_and_a_second_row(
    living: Living, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("qdrant_client")
    url = f"qdrant://{tmp_path / 'q'}"
    load(living, url, "mine")
    table: Any = open_table(url, "mine", 60.0)
    docid = min(living.documents)
    (row,) = table.read([docid], ["cls", "ot", "title", "text", "metadata"])
    edited = row._replace(document=row.document._replace(text="another"))
    QdrantProgram(table._client).edit(
        docid, text="another", fingerprint=fingerprint_of(edited).hex()
    )
    table.close()
    with pytest.raises(ServerFailed, match="rows were replaced by others"):
        verify(VerifyTableConfig(where=url, table="mine"))
    stored = Qdrant.stored

    def twice_stored(table: Qdrant) -> Iterator[tuple[str, bytes]]:
        rows = list(stored(table))
        return iter([*rows, rows[-1]])

    monkeypatch.setattr(Qdrant, "stored", twice_stored)
    monkeypatch.setattr(Qdrant, "count", lambda *_: 41)
    with pytest.raises(ServerFailed, match="41 rows after loading 40"):
        load(living, url, "mine")
    monkeypatch.setattr(Qdrant, "count", lambda *_: 40)
    # The edited row, and the one that is there twice.
    assert load(living, url, "mine")["written_now"] == 1


@pytest.mark.parametrize("kind", ["pgvector", "qdrant", "milvus"])
def test_odd_values_return_as_they_were_loaded(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    texts = ["half \ud800 a pair", "nul \0 sign", "", "long " * 20_000, "e\u0301 \U0001f600"]
    metadata: list[Metadata] = [
        {"n": 1e16, "m": 2**53, "k": -0.0, "b": True},
        {"s": "nul \0", "list": [1, 2.5, "x", False]},
        {"empty": [], "s": ""},
        {"n": 0.1, "e": 5e-324},
        {},
    ]
    documents = [
        Document(f"d{n}", text, text[:30], values)
        for n, (text, values) in enumerate(zip(texts, metadata, strict=True))
    ]
    living = Living(tmp_path, documents)
    url = f"{kind}://{tmp_path / 'server.db'}"
    if kind == "pgvector":
        url = str(request.getfixturevalue("postgres"))
    else:
        pytest.importorskip({"qdrant": "qdrant_client", "milvus": "milvus_lite"}[kind])
    load(living, url, "odd")
    config = VerifyTableConfig(where=url, table="odd", batch=2)
    assert verify(config)["documents"] == 5
    if kind == "pgvector":
        psycopg = pytest.importorskip("psycopg")
        with psycopg.connect(url) as connection:
            # As a load does, so that the trigger does not count it.
            connection.execute("SET LOCAL dupmae_ir.loading = 'on'")
            connection.execute("UPDATE odd SET cls = cls + cls WHERE docid = 'd4'")
        with pytest.raises(ServerFailed, match="1 of 5 rows were edited, the first of them 'd4'"):
            verify(config)


def test_records_of_other_versions(
    living: Living, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("qdrant_client")
    url = f"qdrant://{tmp_path / 'q'}"
    load(living, url, "mine")
    table: Any = open_table(url, "mine", 60.0)
    fields = dict(table.record_fields())
    spec = fields["spec"]
    edits: dict[str, dict[str, object]] = {
        "its rows have layout 1, and this version reads layout 2": {"spec": {**spec, "format": 1}},
        "its rows have layout None": {"spec": {"dim": 3}},
        "layout None": {"spec": None},
        "its load record was edited or damaged": {"longest": "1.0"},
        "was edited or damaged;": {"longest": float("inf")},
        "edited or damaged; load": {"documents": True},
        "edited or damaged; load the": {"more": 1},
        "or damaged; load the": {"spec": {**spec, "dim": None}},
    }
    for words, values in edits.items():
        with pytest.raises(IndexMismatch, match=words) as caught:
            table.record_of({**fields, **values})
        assert "\n" not in str(caught.value)
    table._client.set_payload(RECORDS, {"spec": {**spec, "format": 1}}, [_point("mine")])
    table.close()
    search = ["search", "--index", str(living.index), "--server", url, "--table", "mine"]
    for command in (
        [*search, "--query", "sort"],
        ["servers", "load", "--index", str(living.index), "--to", url, "--table", "mine"],
        ["servers", "verify", "--from", url, "--table", "mine"],
    ):
        assert main(command) == 2
        error = capfd.readouterr().err
        assert "its rows have layout 1, and this version reads layout 2" in error
        assert error.strip().count("\n") == 0
    assert main(["servers", "drop", "--from", url, "--table", "mine", "--quiet"]) == 0
    assert load(living, url, "mine")["written_now"] == 40


def test_what_is_printed_and_what_is_in_the_files(
    living: Living, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("qdrant_client")
    url = f"qdrant://{tmp_path / 'q'}"
    load(living, url, "mine")
    search = ["search", "--index", str(living.index), "--server", url, "--table", "mine"]
    assert main([*search, "--query", TEXT, "--json"]) == 0
    answer = json.loads(capfd.readouterr().out)
    assumes = answer["report"]["assumes"]
    assert assumes.startswith("table mine is unchanged since 20")
    assert answer["server"]["assumes"] == assumes
    assert main([*search, "--query", TEXT]) == 0
    assert f"nothing missed if {assumes}" in "".join(capfd.readouterr()).replace("\n", " ")
    topics = tmp_path / "topics.tsv"
    topics.write_text(f"1\t{TEXT}\n")
    report = tmp_path / "report.jsonl"
    files = ["--output", str(tmp_path / "run.txt"), "--report", str(report)]
    assert main([*search, "--topics", str(topics), *files]) == 0
    assert f"certified exact if {assumes}: 1 of 1" in capfd.readouterr().err
    assert json.loads(report.read_text())["assumes"] == assumes
