"""Passages of files in answers: their places, their neighbours and the complete text of a file."""

from __future__ import annotations

import pytest
from support.serving import serving

from dupmae_ir.encode.__main__ import main as encode

pytestmark = pytest.mark.jvm


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    docs = tmp_path_factory.mktemp("files") / "docs"
    (docs / "notes").mkdir(parents=True)
    sentences = [f"Sentence {i} is about lock number {i}." for i in range(60)]
    (docs / "notes" / "long one.txt").write_text(" ".join(sentences))
    (docs / "plan.md").write_text("# Plan\n\nWe leave.\n\n## Pets\n\nA queue of cats is at home.\n")
    index = docs.parent / "I"
    words = [
        "--passage-length",
        "60",
        "--passage-overlap",
        "20",
        "--model",
        "testing:hashing",
        "--quiet",
    ]
    assert encode(["--corpus", str(docs), "--index", str(index), *words]) == 0
    with serving(index) as client:
        yield client


def test_hits_have_path_page_and_heading(client):
    hits = client.post(
        "/api/search", {"query": "queue of cats", "hits": 3, "filter": 'path like "*.md"'}
    ).json
    assert {hit["path"] for hit in hits["results"][0]["hits"]} == {"plan.md"}
    assert all("heading" in hit and hit["page"] is None for hit in hits["results"][0]["hits"])
    under = client.post("/api/search", {"query": "queue", "filter": 'path under "notes"'}).json[
        "results"
    ][0]["hits"]
    assert {hit["path"] for hit in under} == {"notes/long one.txt"}
    info = client.get("/api/indexes/I").json
    assert info["files"] == 2
    assert f"of {info['documents']} passages of 2 files" in client.get("/?q=queue").text


def test_the_neighbours_of_a_passage(client):
    found = client.get("/api/documents/notes/long%20one.txt#3?neighbours=1").json
    assert [p["docid"].rpartition("#")[2] for p in found["passages"]] == ["2", "3", "4"]
    assert found["document"] == found["passages"][1]
    assert client.get("/api/documents/notes/long%20one.txt#0").json["passages"] == []


def test_a_file_is_put_together_from_its_overlapping_passages(client):
    whole = " ".join(f"Sentence {i} is about lock number {i}." for i in range(60))
    found = client.get("/api/files/notes/long one.txt").json
    assert (found["text"].split(), found["next_start"]) == (whole.split(), None)
    assert found["passages"] > 3
    assert client.get("/api/files/notes/long one.txt?start=10").json["text"] == found["text"][10:]
    wrong = client.get("/api/files/notes/long_one.txt")
    assert (wrong.status, "Did you mean 'notes/long one.txt'?" in wrong.json["detail"]) == (
        404,
        True,
    )
