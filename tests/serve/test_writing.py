"""Documents written through the API are searched at once, and a change that fails changes nothing."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.serving import Client, serving, texts, write_index

from dupmae_ir.encode import changes
from dupmae_ir.index.changes.changes import run_compact as compact
from dupmae_ir.index.config import CompactConfig
from dupmae_ir.index.format.excerpts import Excerpts
from dupmae_ir.index.format.texts import MOST_COLUMNS
from dupmae_ir.io import jobs
from dupmae_ir.io.documents.passages import TokenMeasure
from dupmae_ir.types import Document, Encoder, Representation

pytestmark = pytest.mark.jvm


def put(client: Client, documents: dict[str, str], **more: Any) -> Any:
    body = {
        "documents": [
            {"docid": d, "text": t, "metadata": {"new": True}} for d, t in documents.items()
        ],
        **more,
    }
    return client.post("/api/indexes/I/documents", body)


def found(client: Client, query: str) -> list[str]:
    reply = client.post("/api/search", {"query": query, "mode": "impact"})
    return [hit["docid"] for hit in reply.json["results"][0]["hits"]]


def test_documents_are_written_and_searched(tmp_path: Path) -> None:
    folder = write_index(tmp_path / "I", texts(20))
    with serving(folder, writable=True) as client:
        first = put(client, {"n1": "zebra crossing", "n2": "zebra"}).json
        assert (first["added"], first["updated"], first["documents"], first["generation"]) == (
            2,
            0,
            22,
            2,
        )
        assert found(client, "zebra") == ["n2", "n1"] or set(found(client, "zebra")) == {"n1", "n2"}
        assert client.get("/api/documents/n1").json["document"]["metadata"] == {"new": True}
        second = put(client, {"n1": "giraffe", "n2": "zebra"}).json
        assert (second["added"], second["updated"], second["unchanged"]) == (0, 1, 1)
        assert (found(client, "zebra"), found(client, "giraffe")) == (["n2"], ["n1"])
        refused = put(client, {"n2": "other", "n3": "new"}, replace=False)
        assert refused.status == 409
        assert str(tmp_path) not in refused.text
        assert client.get("/api/documents/n3").status == 404
        missing = client.post("/api/indexes/I/delete", {"docids": ["n1", "nope"]})
        assert missing.status == 404
        assert found(client, "giraffe") == ["n1"]
        gone = client.post("/api/indexes/I/delete", {"docids": ["n1", "n2"]}).json
        assert (gone["deleted"], gone["documents"]) == (2, 20)
        assert found(client, "giraffe") == []
        assert client.get("/api/documents/n1").status == 404
        reply = client.post("/api/search", {"query": "lock queue", "hits": 20}).json
        compact(CompactConfig(index=str(folder), quiet=True))
        client.post("/api/reload")
        after = client.post("/api/search", {"query": "lock queue", "hits": 20}).json
        assert after["results"][0]["hits"] == reply["results"][0]["hits"]
        assert after["generation"] == reply["generation"] + 1


def test_a_late_change_ends_unchanged_and_goes_on_when_it_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    represent = changes.represent_with_excerpts
    encoded = []
    late = [0.0]

    def slow(
        encoder: Encoder,
        documents: Sequence[Document],
        separator: str,
        languages: Sequence[str] | None,
        measure: TokenMeasure | None,
    ) -> tuple[Representation, Excerpts | None]:
        encoded.extend(documents)
        late[0] = 60.0 if len(encoded) == 6 else 0.0
        return represent(encoder, documents, separator, languages, measure)

    monkeypatch.setattr(changes, "represent_with_excerpts", slow)
    monkeypatch.setattr(jobs, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + late[0]))
    with serving(write_index(tmp_path / "I", texts(20), window=2), writable=True) as client:
        new = {f"n{n}": f"zebra {n}" for n in range(16)}
        assert put(client, new).status == 504
        assert client.post("/api/indexes/I/delete", {"docids": ["d0"]}).status == 504
        late[0] = 0.0
        assert client.get("/api/indexes/I").json["generation"] == 1
        assert found(client, "zebra") == []
        reply = put(client, new).json
        assert (reply["added"], reply["documents"], len(encoded)) == (16, 36, 16)


def test_wrong_changes(client: Client, tmp_path: Path) -> None:
    assert put(client, {"a": "b"}).status in (404, 405)  # not started with --writable
    with serving(write_index(tmp_path / "I", texts(5)), writable=True) as writable:
        for body in (
            {},
            {"documents": []},
            {"documents": [{"docid": "", "text": ""}]},
            {"documents": [{"docid": "a"}]},
            {"documents": [{"docid": "a", "text": "", "metadata": {"year": math.nan}}]},
            {
                "documents": [
                    {
                        "docid": "a",
                        "text": "",
                        "metadata": {f"n{i}": i for i in range(MOST_COLUMNS + 1)},
                    }
                ]
            },
        ):
            assert writable.post("/api/indexes/I/documents", body).status == 422
        assert (
            writable.post(
                "/api/indexes/nope/documents", {"documents": [{"docid": "a", "text": ""}]}
            ).status
            == 404
        )
        assert writable.post("/api/indexes/I/delete", {"docids": []}).status == 422
        for docid in ("a\nb", "a\u2028b", "a\0b"):
            bad = writable.post(
                "/api/indexes/I/documents", {"documents": [{"docid": docid, "text": "x"}]}
            )
            assert bad.status == 422
            assert bad.json["detail"][0]["loc"] == ["body", "documents", 0, "docid"]
            assert "white space or a control character" in bad.json["detail"][0]["msg"]
        twice = writable.post(
            "/api/indexes/I/documents", {"documents": [{"docid": "a", "text": "x"}] * 2}
        )
        assert twice.status == 422
        assert "two documents of the request have this id" in twice.text
        there = {"documents": [{"docid": "d0", "text": "x"}], "replace": False}
        assert (
            "a document of this id exists" in writable.post("/api/indexes/I/documents", there).text
        )
        assert writable.get("/api/indexes/I").json["documents"] == 5


def test_queries_and_changes_at_once(tmp_path: Path) -> None:
    """Every answer is that of a whole generation: all documents of a change, or none."""
    with serving(write_index(tmp_path / "I", texts(20)), writable=True) as client:

        async def ask() -> None:
            while not done:
                reply = await client.call(
                    "POST", "/api/search", {"query": "zebra", "mode": "impact", "hits": 50}
                )
                sizes.add(len(reply.json["results"][0]["hits"]))

        async def write() -> None:
            for round_ in range(3):
                documents = [{"docid": f"z{round_}-{n}", "text": "zebra"} for n in range(5)]
                reply = await client.call(
                    "POST", "/api/indexes/I/documents", {"documents": documents}
                )
                assert reply.status == 200
            done.append(True)

        async def both() -> None:
            await asyncio.gather(ask(), ask(), write())

        done: list[bool] = []
        sizes: set[int] = set()
        client.run(both())
        assert sizes <= {0, 5, 10, 15}
        assert len(found(client, "zebra")) == 10
