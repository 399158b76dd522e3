"""The routes of Pyserini's servers have its shapes, compared with the source of the installed server if present."""

from __future__ import annotations

import importlib.util

import pytest
from support.serving import Client, texts

pytestmark = pytest.mark.jvm


def test_search_of_version_1(client: Client) -> None:
    asked = {"query": "lock queue", "hits": 3, "qid": "7", "ef_search": None, "encoder": None}
    reply = client.post("/v1/indexes/docs/search", asked)
    ours = client.post("/api/search", {"query": "lock queue", "hits": 3}).json["results"][0]["hits"]
    assert reply.json["query"]["qid"] == "7"
    assert reply.json["query"]["query_txt"] == "lock queue"
    assert [(c["docid"], c["score"]) for c in reply.json["candidates"]] == [
        (h["docid"], h["score"]) for h in ours
    ]
    assert reply.json["candidates"][0]["document_txt"] == texts(60)[ours[0]["docid"]]
    assert set(reply.json["candidates"][0]) == {
        "docid",
        "score",
        "document_txt",
        "document_img_path",
        "encoded_img",
    }
    assert client.post("/v1/indexes/nope/search", asked).status == 404


def test_the_rest_of_version_1(client: Client) -> None:
    assert client.get("/v1/indexes/docs/documents/d5").json == {
        "id": "d5",
        "title": "Title of d5",
        "contents": texts(60)["d5"],
    }
    status = client.get("/v1/indexes/docs/status").json
    assert status["downloaded"] is True
    assert int(status["size_bytes"]) > 1000
    assert client.get("/v1/indexes/?index_type=tf").json == ["docs", "other", "dense"]
    assert client.get("/v1/indexes/docs/settings").json["encoder"] == "testing:hashing"
    assert client.post("/v1/indexes/docs/settings", {"efSearch": "10"}).status == 405


def test_version_2(client: Client) -> None:
    reply = client.get("/v1/docs/search?query=lock%20queue&hits=2").json
    assert set(reply) == {"api", "index", "query", "candidates"}
    assert (reply["api"], reply["index"], reply["query"]) == ("v1", "docs", {"text": "lock queue"})
    assert [c["rank"] for c in reply["candidates"]] == [1, 2]
    assert reply["candidates"][0]["doc"]["id"] == reply["candidates"][0]["docid"]
    assert isinstance(
        client.get("/v1/docs/search?query=lock&parse=false").json["candidates"][0]["doc"], str
    )
    assert client.get("/v1/docs/doc/d5").json["doc"]["contents"] == texts(60)["d5"]
    assert client.get("/v1/docs/doc/nope").status == 404
    assert client.get("/v1//etc/search?query=lock").status == 404
    assert client.get("/v1/dense/search?query=lock").json["candidates"][0]["doc"] is None


@pytest.mark.skipif(
    importlib.util.find_spec("pyserini.server.models") is None,
    reason="needs the server of Pyserini 1.6",
)
def test_the_fields_are_those_of_the_installed_server() -> None:
    """Read from its source: importing it starts a JVM and downloads an index."""
    import ast
    from pathlib import Path

    from dupmae_ir.serve import pyserini_routes

    spec = importlib.util.find_spec("pyserini.server.models")
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    theirs = {
        node.name: {
            item.target.id
            for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        }
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    ours = {"QueryInfo": "QueryInfo", "Candidate": "PyseriniCandidate", "Hits": "PyseriniHits"}
    for name, own in {**ours, "IndexStatus": "IndexStatus"}.items():
        assert set(getattr(pyserini_routes, own).model_fields) == theirs[name]
