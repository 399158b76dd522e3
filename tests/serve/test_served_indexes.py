"""Indexes are exchanged without losing a request, and a broken folder leaves the old one."""

from __future__ import annotations

import asyncio
import gc
import shutil
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
from support.serving import queries, serving, texts, write_index
from support.waiting import until

from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.search.query import words
from dupmae_ir.serve.catalogue import OpenIndexes
from dupmae_ir.serve.config import ServeConfig

pytestmark = pytest.mark.jvm


def point(link: Path, target: Path) -> None:
    """Make ``link`` lead to ``target``, atomically."""
    new = link.with_name(link.name + ".new")
    new.symlink_to(target)
    new.replace(link)


def hits_of(client: Any, query: str) -> list[tuple[str, float]]:
    reply = client.post("/api/search", {"query": query}).json
    return [(h["docid"], h["score"]) for h in reply["results"][0]["hits"]]


def test_another_index_takes_the_place(folders: dict[str, Path], tmp_path: Path) -> None:
    link = tmp_path / "live"
    point(link, folders["docs"])
    with serving(f"live={link}", folders["other"]) as client:
        before = hits_of(client, "lock queue")
        other = client.post("/api/search", {"query": "lock queue", "index": "other"})
        assert client.post("/api/reload").json == {"changes": []}
        point(link, folders["other"])
        assert hits_of(client, "lock queue") == before
        assert client.post("/api/reload").json == {"changes": [{"index": "live", "what": "opened"}]}
        after = client.post("/api/search", {"query": "lock queue"}).json
        assert after["generation"] == 2
        assert after["results"] == other.json["results"] != before
        assert (
            'dupmae_ir_reloads_total{index="live",result="opened"} 1.0'
            in client.get("/metrics").text
        )


@pytest.mark.parametrize("engine", ["postings", "lucene"])
def test_an_exchange_frees_the_old_generation(
    folders: dict[str, Path], tmp_path: Path, engine: str
) -> None:
    """Without a full garbage collection, which stops all requests: for 0.1 s once torch is loaded."""
    link = tmp_path / "live"
    point(link, folders["docs"])
    with serving(f"live={link}", impact_search=engine) as client:
        client.post("/api/search", {"query": "lock queue", "texts": True, "explain": True})
        searcher = client.service.catalogue.get("live").searcher
        old = [weakref.ref(searcher), weakref.ref(searcher.index.only_segment)]
        del searcher
        gc.disable()
        try:
            point(link, folders["other"])
            client.post("/api/reload")
            # The thread that used it last may not be done with it yet.
            assert until(lambda: [one() for one in old] == [None, None])
        finally:
            gc.enable()


@pytest.mark.parametrize("engine", ["postings", "lucene"])
def test_the_old_generation_answers_after_its_folder_is_gone(tmp_path: Path, engine: str) -> None:
    """Everything that a search reads is open before the first request, texts and explanations included."""
    folder = write_index(tmp_path / "I", texts(20))
    with serving(folder, impact_search=engine) as client:
        asked = {"query": "lock queue", "texts": True, "explain": True}
        whole = write_index(tmp_path / "J", texts(20))
        with serving(whole, impact_search=engine) as same:
            expected = same.post("/api/search", asked).json["results"]
        shutil.rmtree(folder)
        assert client.post("/api/reload").json == {"changes": [{"index": "I", "what": "failed"}]}
        assert client.post("/api/reload").json == {"changes": []}  # the same fault is reported once
        assert client.post("/api/search", asked).json["results"] == expected
        whole.rename(folder)
        assert client.post("/api/reload").json == {"changes": [{"index": "I", "what": "opened"}]}


def test_a_folder_of_indexes(folders: dict[str, Path], tmp_path: Path) -> None:
    served = tmp_path / "served"
    served.mkdir()
    (served / "no index").mkdir()
    point(served / "a", folders["docs"])
    with serving(indexes=str(served)) as client:
        assert client.service.catalogue.names == ["a"]
        point(served / "b", folders["dense"])
        client.post("/api/reload")
        assert client.service.catalogue.names == ["a", "b"]
        (served / "a").unlink()
        assert client.post("/api/reload").json == {"changes": [{"index": "a", "what": "removed"}]}
        assert client.post("/api/search", {"query": "lock", "index": "a"}).status == 404
        assert client.post("/api/search", {"query": "lock", "index": "b"}).status == 200


def test_changes_are_noticed_by_themselves(folders: dict[str, Path], tmp_path: Path) -> None:
    point(tmp_path / "live", folders["docs"])
    with serving(tmp_path / "live", reload_seconds=0.02) as client:
        point(tmp_path / "live", folders["other"])
        deadline = time.monotonic() + 10
        while client.get("/api/indexes").json["indexes"][0]["generation"] == 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_the_first_request_opens_nothing(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hit is described before, so what splits texts into terms is ready."""
    described: list[str] = []
    spans = words.word_spans
    monkeypatch.setattr(words, "word_spans", lambda text: (described.append(text), spans(text))[1])
    with serving(folders["docs"]):
        assert any("Title of" in text for text in described)


def test_what_cannot_be_opened_fails_at_the_start(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such index"):
        OpenIndexes(ServeConfig(index=(str(tmp_path / "none"),))).open_all()
    with pytest.raises(InputError, match="contains no finished index"):
        OpenIndexes(ServeConfig(indexes=str(tmp_path))).open_all()
    with pytest.raises(UsageError, match="two indexes are named 'docs'"):
        ServeConfig(index=(str(folders["docs"]), f"docs={folders['other']}"))


@pytest.mark.parametrize("requests", [40, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_no_request_is_lost_while_indexes_are_exchanged(
    folders: dict[str, Path], tmp_path: Path, requests: int
) -> None:
    """Eight clients, the index exchanged all the while: every answer is that of the generation that it names."""
    asked = queries(50)
    expected: dict[str, dict[str, Any]] = {}
    for name in ("docs", "other"):
        with serving(folders[name]) as client:
            for query in asked:
                reply = client.post("/api/search", {"query": query, "hits": 5, "texts": True}).json
                expected.setdefault(reply["index_id"], {})[query] = reply["results"]
    assert len(expected) == 2
    link = tmp_path / "live"
    stop = threading.Event()
    exchanges = 0
    point(link, folders["docs"])
    with serving(link) as client:

        def exchange() -> None:
            nonlocal exchanges
            while not stop.is_set():
                point(link, folders["other" if exchanges % 2 == 0 else "docs"])
                assert [c.what for c in client.service.reload()] == ["opened"]
                exchanges += 1

        async def one(number: int) -> int:
            answered = 0
            while answered < requests // 8 or exchanges < 2:
                query = asked[(8 * answered + number) % len(asked)]
                reply = await client.call(
                    "POST", "/api/search", {"query": query, "hits": 5, "texts": True}
                )
                assert reply.status == 200
                assert reply.json["results"] == expected[reply.json["index_id"]][query]
                seen.add(reply.json["generation"])
                answered += 1
            return answered

        async def all_clients() -> int:
            return sum(await asyncio.gather(*map(one, range(8))))

        seen: set[int] = set()
        exchanger = threading.Thread(target=exchange)
        exchanger.start()
        try:
            assert client.run(all_clients()) >= requests
        finally:
            stop.set()
            exchanger.join()
    assert exchanges >= 2
    assert len(seen) >= 2
    assert (
        len(list(Path("/proc/self/fd").iterdir())) < 900
    )  # closed generations leave no files open
