"""The REST API answers what the Searcher answers, and refuses what it should."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.serving import Client, queries, serving, texts

from dupmae_ir.search.searcher import Searcher
from dupmae_ir.types import Query

pytestmark = pytest.mark.jvm


@pytest.fixture(scope="module")
def searcher(folders: dict[str, Path]) -> Searcher:
    return Searcher.open(folders["docs"], impact_search="postings", threads=1)


@pytest.mark.parametrize("mode", ["dense", "impact", "hybrid"])
@pytest.mark.parametrize("hits", [1, 7, 100])
def test_search_equals_the_searcher(
    client: Client, searcher: Searcher, mode: str, hits: int
) -> None:
    asked = queries(5)
    reply = client.post("/api/search", {"query": asked, "mode": mode, "hits": hits}).json
    assert (reply["index"], reply["mode"], reply["generation"]) == ("docs", mode, 1)
    answers = list(
        searcher.answers([Query(str(n), text) for n, text in enumerate(asked)], hits, mode)
    )
    for result, answer in zip(reply["results"], answers, strict=True):
        assert [(h["docid"], h["score"]) for h in result["hits"]] == [
            tuple(hit) for hit in answer.hits
        ]
        assert [h["rank"] for h in result["hits"]] == list(range(1, len(answer.hits) + 1))
        assert answer.report is not None
        assert result["certificate"]["exact"] is True
        assert result["certificate"]["kth"] == answer.report.kth
        assert result["certificate"]["bound"] == answer.report.bound


def test_within_restricts_and_is_certified(client: Client, searcher: Searcher) -> None:
    ids = [f"d{n}" for n in range(0, 60, 7)]
    reply = client.post(
        "/api/search", {"query": "lock queue", "hits": 5, "within": [*ids, "unknown"]}
    ).json["results"][0]
    assert [(h["docid"], h["score"]) for h in reply["hits"]] == [
        tuple(hit) for hit in searcher.search("lock queue", 5, within=ids)
    ]
    assert {h["docid"] for h in reply["hits"]} <= set(ids)
    assert reply["certificate"]["exact"] is True
    assert (
        client.post("/api/search", {"query": "lock", "within": []}).json["results"][0]["hits"] == []
    )


def test_filters(client: Client, searcher: Searcher) -> None:
    asked = {"query": "lock queue", "hits": 5, "filter": "year >= 2050 and not year = 2055"}
    result = client.post("/api/search", asked).json["results"][0]
    expected = searcher.search("lock queue", 5, filter=asked["filter"])
    assert (
        [(h["docid"], h["score"]) for h in result["hits"]] == [tuple(hit) for hit in expected] != []
    )
    assert {h["docid"] for h in result["hits"]} <= {f"d{n}" for n in range(50, 60)} - {"d55"}
    assert result["certificate"]["exact"] is True
    by_url = client.get(
        "/api/search?query=lock%20queue&hits=5&filter=year%3E%3D2050%20and%20not%20year=2055"
    )
    assert by_url.json["results"] == [result]
    wrong = client.post("/api/search", {"query": "a", "filter": "year >= "})
    assert (wrong.status, wrong.json["detail"][0]["loc"]) == (422, ["filter"])
    assert "expected a value" in wrong.text
    assert client.post("/api/search", {"query": "a", "filter": "yaer = 1"}).status == 422
    assert (
        client.post("/api/search", {"query": "a", "filter": "year = 1", "index": "dense"}).status
        == 409
    )
    assert client.get("/api/indexes/docs").json["metadata"] == ["year"]


def test_by_url_is_the_same(client: Client) -> None:
    by_url = client.get("/api/search?query=lock%20queue&hits=3&texts=true&explain=true").json
    assert (
        by_url
        == client.post(
            "/api/search", {"query": "lock queue", "hits": 3, "texts": True, "explain": True}
        ).json
    )


def test_texts_and_explanations(client: Client, searcher: Searcher) -> None:
    asked = {"query": "lock queue", "hits": 3, "texts": True, "explain": True, "terms": 1}
    for hit in client.post("/api/search", asked).json["results"][0]["hits"]:
        (why,) = searcher.describe("lock queue", [hit["docid"]])
        shares = hit["explanation"]
        document = hit["document"]
        assert (shares["dense"], shares["matched_terms"]) == (why.explanation.dense, len(why.words))
        assert hit["score"] == pytest.approx(shares["dense"] + shares["impact"], rel=1e-12)
        assert [t["share"] for t in shares["terms"]] == [word.share for word in why.words[:1]]
        assert document["text"] == texts(60)[hit["docid"]]
        assert document["title"] == f"Title of {hit['docid']}"
    assert all(
        h["document"] is None and h["explanation"] is None for h in _hits(client, {"query": "lock"})
    )


def _hits(client: Client, asked: dict[str, Any]) -> list[dict[str, Any]]:
    reply = client.post("/api/search", asked)
    assert reply.status == 200, reply.text
    found: list[dict[str, Any]] = reply.json["results"][0]["hits"]
    return found


def test_a_named_index_and_the_default(client: Client) -> None:
    other = client.post("/api/search", {"query": "lock", "index": "other"}).json
    assert other["index"] == "other"
    assert other["index_id"] != client.post("/api/search", {"query": "lock"}).json["index_id"]


def test_blank_queries_have_no_hits(client: Client) -> None:
    results = client.post("/api/search", {"query": ["  ", "lock", "\n"]}).json["results"]
    assert [len(r["hits"]) for r in results] == [0, 10, 0]


def test_encode_as_the_encoder_does(client: Client, searcher: Searcher) -> None:
    reply = client.post("/api/encode", {"texts": ["lock queue lock", "path"]}).json
    found = searcher.encoder.encode_queries(["lock queue lock", "path"])
    assert found.cls is not None
    assert [e["vector"] for e in reply["encodings"]] == found.cls.tolist()
    terms = reply["encodings"][0]["terms"]
    assert len(terms) == 2
    assert terms[0]["weight"] > terms[1]["weight"]
    documents = client.post(
        "/api/encode", {"texts": ["lock"], "kind": "document", "vectors": False}
    ).json
    assert documents["encodings"][0]["vector"] is None


def test_explain(client: Client, searcher: Searcher) -> None:
    found = client.post("/api/explain", {"query": "lock wait", "docids": ["d3", "d1"]}).json[
        "documents"
    ]
    for one, docid in zip(found, ["d3", "d1"], strict=True):
        (hit,) = searcher.describe("lock wait", [docid])
        why = hit.explanation
        assert (one["docid"], one["score"], one["dense"], one["impact"]) == (
            docid,
            why.score,
            why.dense,
            why.impact,
        )
        assert [t["share"] for t in one["terms"]] == [word.share for word in hit.words]
        assert all(set(t) == {"term", "share", "expansion", "text_words"} for t in one["terms"])


def test_documents_by_id(client: Client) -> None:
    assert client.get("/api/documents/d5").json["document"]["metadata"] == {"year": 2005}
    assert client.get("/api/documents/../../etc/passwd").status == 404
    assert client.get("/api/documents/d5?index=dense").status == 404


def test_the_list_of_indexes(client: Client) -> None:
    listed = {i["index"]: i for i in client.get("/api/indexes").json["indexes"]}
    assert list(listed) == ["docs", "other", "dense"]
    assert listed["docs"]["modes"] == ["hybrid", "dense", "impact"]
    assert (listed["dense"]["modes"], listed["dense"]["texts"], listed["docs"]["texts"]) == (
        ["dense"],
        False,
        True,
    )
    assert client.get("/api/indexes/other").json == listed["other"]


WRONG = [
    ({}, 422),
    ({"query": ""}, 422),
    ({"query": []}, 422),
    ({"query": "a", "hits": 0}, 422),
    ({"query": "a", "hits": 1001}, 422),
    ({"query": "a", "hits": "ten"}, 422),
    ({"query": "a", "mode": "magic"}, 422),
    ({"query": "a", "hist": 3}, 422),
    ({"query": "x" * 4097}, 422),
    ({"query": ["x"] * 129}, 422),
    ({"query": {"a": 1}}, 422),
    ({"query": "a", "hits": True}, 422),
    ({"query": "a", "texts": 1}, 422),
    ({"query": "a\ud800"}, 422),
    ({"query": "a", "index": "nope"}, 404),
    ({"query": "a", "index": "../docs"}, 404),
    ({"query": "a", "index": "dense", "mode": "impact"}, 409),
]


@pytest.mark.parametrize(("asked", "status"), WRONG, ids=[str(w[0])[:40] for w in WRONG])
def test_wrong_requests(
    client: Client, asked: dict[str, Any], status: int, folders: dict[str, Path]
) -> None:
    reply = client.post("/api/search", asked)
    assert reply.status == status
    assert "detail" in reply.json
    assert str(folders["docs"].parent) not in reply.text


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff\xfe", b"[" * 5000, b"null", b"NaN", b'{"query": "\\ud800"}']
)
def test_bodies_that_are_no_request(client: Client, body: bytes) -> None:
    reply = client.post("/api/search", body)
    assert reply.status in (400, 422)
    json.loads(reply.body)


def test_one_wrong_request_leaves_the_others_of_its_batch(
    client: Client, searcher: Searcher
) -> None:
    async def together() -> list[Any]:
        asked = [
            {"query": "lock"},
            {"query": "a", "index": "nope"},
            {"query": "wait", "hits": 3},
            {"query": "lock"},
        ]
        return list(await asyncio.gather(*(client.call("POST", "/api/search", a) for a in asked)))

    replies = client.run(together())
    assert [r.status for r in replies] == [200, 404, 200, 200]
    assert [h["docid"] for h in replies[2].json["results"][0]["hits"]] == [
        h.docid for h in searcher.search("wait", 3)
    ]
    assert replies[0].json == replies[3].json


def test_a_fault_of_the_server_is_500_without_details(
    folders: dict[str, Path], monkeypatch: Any, caplog: Any
) -> None:
    with serving(folders["docs"]) as client:
        searcher = client.service.catalogue.get().searcher
        monkeypatch.setattr(searcher, "answers", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):  # starlette raises again for the server's log
            client.post("/api/search", {"query": "a"})
        monkeypatch.undo()
        assert client.post("/api/search", {"query": "a"}).status == 200


def test_state(client: Client) -> None:
    assert client.get("/health").json["status"] == "ok"
    assert client.get("/ready").json == {"status": "ready", "indexes": 3, "waiting": 0}
    before = client.get("/metrics").text
    client.post("/api/search", {"query": ["a", "b"]})
    after = client.get("/metrics").text
    line = 'dupmae_ir_requests_total{method="POST",route="/api/search",status="200"} '
    assert _sample(after, line) == _sample(before, line) + 1
    assert (
        _sample(after, 'dupmae_ir_lists_total{certified="yes"} ')
        == _sample(before, 'dupmae_ir_lists_total{certified="yes"} ') + 2
    )
    assert _sample(after, 'dupmae_ir_documents{index="docs"} ') == 60


def _sample(text: str, start: str) -> float:
    return sum(
        float(line.removeprefix(start)) for line in text.splitlines() if line.startswith(start)
    )


def test_the_schema_states_the_limits(folders: dict[str, Path]) -> None:
    with serving(folders["docs"], max_hits=50, max_queries=4, max_characters=99) as client:
        schema = client.get("/openapi.json").json["components"]["schemas"]["SearchRequest"][
            "properties"
        ]
        assert schema["hits"]["maximum"] == 50
        assert [s.get("maxLength", s.get("maxItems")) for s in schema["query"]["anyOf"]] == [99, 4]
        assert client.post("/api/search", {"query": "a", "hits": 51}).status == 422
        assert client.post("/api/search", {"query": ["a"] * 5}).status == 422
        assert client.post("/api/search", {"query": "a" * 100}).status == 422
        assert client.post("/api/search", {"query": ["a" * 99] * 4, "hits": 50}).status == 200
