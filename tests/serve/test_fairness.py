"""Large requests go by in pieces: others are answered in between, and nobody computes what nobody waits for."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.serving import LONG, Client, running, serving, texts, wait_until_searching, write_index

from dupmae_ir.models.analyzer import word_spans
from dupmae_ir.search.query import words
from dupmae_ir.search.query.words import QueryWords
from dupmae_ir.search.query_batching import Pending
from dupmae_ir.serve import batch_handler, run
from dupmae_ir.serve.batch_handler import HitFields, IndexTask, Ranking, Search, WorkPiece
from dupmae_ir.serve.catalogue import OpenIndex
from dupmae_ir.serve.config import ServeConfig
from dupmae_ir.serve.http_server import LARGE_BODIES_PER_SECOND, LARGE_BODY, Pace, Server
from dupmae_ir.serve.service import LARGE

SMALL = {"query": "lock wait", "hits": 3}


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Some documents of 90,000 characters."""
    documents = {**texts(5), "long": "lock " * 18_000, "\u202elong/2": "queue wait " * 9_000}
    with serving(
        write_index(tmp_path_factory.mktemp("long") / "docs", documents), max_answer=500_000
    ) as client:
        yield client


class Slow:
    """Work of ``count`` items that take 20 ms each; how many were begun."""

    def __init__(self, count: int) -> None:
        self.begun = 0
        self.task = IndexTask[int, int](None, self.run, range(count))

    def run(self, _: OpenIndex, items: Sequence[int]) -> list[int]:
        self.begun += len(items)
        time.sleep(0.02)
        return list(items)


def test_a_large_request_is_answered_as_its_parts(client: Client) -> None:
    whole = client.post("/api/search", LONG).json["results"]
    parts = [
        client.post("/api/search", {**LONG, "query": query}).json["results"][0]
        for query in LONG["query"][:3]
    ]
    for one, other in zip(whole[:3], parts, strict=True):
        assert [(hit["rank"], hit["docid"], hit["document"]) for hit in one["hits"]] == [
            (hit["rank"], hit["docid"], hit["document"]) for hit in other["hits"]
        ]
        assert [hit["explanation"]["terms"] for hit in one["hits"]] == [
            hit["explanation"]["terms"] for hit in other["hits"]
        ]
    assert [len(result["hits"]) for result in whole] == [60] * len(LONG["query"])


def test_others_are_answered_between_the_pieces(client: Client) -> None:
    async def both() -> tuple[int, int]:
        slow = Slow(30)
        task = asyncio.ensure_future(client.service.ask(slow.task))
        while not slow.begun:
            await asyncio.sleep(0.001)
        before = slow.begun
        await client.call("POST", "/api/search", SMALL)
        between = slow.begun - before
        _, results = await task
        assert results == list(range(30))
        return between, slow.begun

    between, total = client.run(both())
    assert between <= 8
    assert total == 30


def test_many_queries_make_a_search_large() -> None:
    few, many = (
        Search(Ranking(None, None, 10), ["lock"] * count, HitFields())
        for count in (batch_handler.MAX_QUERIES, batch_handler.MAX_QUERIES + 1)
    )
    assert not few.large
    assert many.large


def test_many_ids_make_a_search_large() -> None:
    """Each of them has to be looked up."""
    few, many = (
        Search(Ranking(None, None, 10, ("d1",) * count), ["lock"], HitFields())
        for count in (batch_handler.MAX_IDS, batch_handler.MAX_IDS + 1)
    )
    assert not few.large
    assert many.large


def test_a_long_condition_makes_a_search_large() -> None:
    """It has to be read, in a millisecond for a thousand characters."""
    short, long = (
        Search(Ranking(None, None, 10, None, "x" * count), ["lock"], HitFields())
        for count in (batch_handler.MAX_FILTER_CHARACTERS, batch_handler.MAX_FILTER_CHARACTERS + 1)
    )
    assert not short.large
    assert long.large


def test_large_bodies_are_parsed_one_after_another(client: Client) -> None:
    """In their order, with time for others in between."""
    body = {**SMALL, "within": ["lock"] * 20_000}
    size = len(json.dumps(body))
    assert size > LARGE_BODY

    async def asked() -> float:
        started = time.monotonic()
        answers = [client.call("POST", "/api/search", body) for _ in range(3)]
        statuses = [answer.status for answer in await asyncio.gather(*answers)]
        assert statuses == [200] * 3
        return time.monotonic() - started

    assert client.run(asked()) >= 2 * size / LARGE_BODIES_PER_SECOND


def test_what_a_pace_lets_through_keeps_its_order() -> None:
    async def order() -> list[int]:
        pace = Pace(rate=100)
        passed = list[int]()

        async def one(number: int) -> None:
            await pace.wait(1)
            passed.append(number)

        await asyncio.gather(*map(one, range(5)))
        return passed

    assert asyncio.run(order()) == list(range(5))


def test_two_large_requests_at_a_time(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third keeps nothing in memory while it waits."""
    monkeypatch.setattr(client.service, "_large", asyncio.Semaphore(2))

    async def three() -> list[int]:
        slow = [Slow(6) for _ in range(3)]
        tasks = [asyncio.ensure_future(client.service.ask(one.task)) for one in slow]
        while not slow[1].begun:
            await asyncio.sleep(0.001)
        begun = [one.begun for one in slow]
        await asyncio.gather(*tasks)
        return begun

    assert client.run(three())[2] == 0


def test_a_piece_of_a_large_request_is_computed_alone(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the longest wait of a small one is for one such piece."""
    batches: list[list[bool]] = []
    compute = client.service.answerer.__call__
    submit = client.service.batcher.submit
    arrived = threading.Semaphore(0)

    def counted(*arguments: Any) -> Any:
        future = submit(*arguments)
        arrived.release()
        return future

    def noted(_: object, batch: list[Pending[WorkPiece, None]]) -> None:
        if not batches:
            # All four are in the queue or in this batch, however busy the machine is.
            assert all(arrived.acquire(timeout=20) for _ in range(4))
        batches.append([pending.work.work.large for pending in batch])
        compute(batch)

    monkeypatch.setattr(client.service.batcher, "submit", counted)
    monkeypatch.setattr(type(client.service.answerer), "__call__", noted)

    async def four() -> None:
        large = [client.service.ask(Slow(6).task) for _ in range(2)]
        small = [
            client.call("POST", "/api/search", {**SMALL, "query": text})
            for text in ("lock pipe", "lock fork")
        ]
        await asyncio.gather(*large, *small)

    client.run(four())
    assert sum(map(sum, batches)) > 2
    assert [batch for batch in batches if any(batch)] == [[True]] * sum(map(any, batches))
    assert [False, False] in batches[:4]


def test_a_timeout_ends_the_work(folders: dict[str, Path]) -> None:
    with serving(folders["docs"], request_timeout=0.1) as client:
        slow = Slow(100)

        async def ask() -> None:
            with pytest.raises(TimeoutError):
                await client.service.ask(slow.task)

        client.run(ask())
        assert client.post("/api/search", SMALL).status == 200
        begun = slow.begun
        time.sleep(0.1)
        assert slow.begun == begun < 20


def test_the_answer_of_a_client_that_leaves_is_freed(client: Client) -> None:
    """Even while its task and its error are kept, as they are until Python looks for cycles."""

    async def ask() -> int:
        queries = [f"lock {n}" for n in range(100)]
        asked = Search(Ranking(None, None, 20), queries, HitFields(True, 5))
        task = asyncio.ensure_future(client.service.ask(asked))
        while len(asked.lists) <= 2 * batch_handler.SMALL:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])
        # Answered after the piece that was under way, which may add its lists.
        await client.call("POST", "/api/search", SMALL)
        return len(asked.lists)

    assert client.run(ask()) <= batch_handler.SMALL


def test_descriptions_are_kept_only_for_passages(client: Client) -> None:
    """An explanation of all terms takes a part of their memory."""

    async def ask(passage: int | None) -> batch_handler.RankedQuery:
        asked = Search(Ranking(None, None, 5), ["lock"], HitFields(True, 5, passage))
        return (await client.service.ask(asked)).lists[0]

    explained, with_passages = (client.run(ask(passage)) for passage in (None, 80))
    assert explained.result.hits == with_passages.result.hits
    assert explained.result.hits[0].explanation
    assert explained.described == []
    assert len(with_passages.described) == len(with_passages.result.hits)


def test_a_client_that_leaves_ends_the_work(folders: dict[str, Path]) -> None:
    with running(folders["docs"]) as server:
        body = json.dumps(LONG).encode()
        head = f"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
            time.sleep(0.05)
        for _ in range(200):
            if b"dupmae_ir_waiting_queries 0.0" in server.request("GET", "/metrics")[2]:
                break
            time.sleep(0.05)
        assert b'status="499"' in server.request("GET", "/metrics")[2]


def test_a_full_queue_refuses_and_says_when(folders: dict[str, Path]) -> None:
    """Large requests have a queue of their own: they never take the places of small ones."""
    with serving(folders["docs"], queue=8, max_queries=8) as client:

        async def ask() -> None:
            slow = [Slow(8), Slow(1)]
            tasks = [asyncio.ensure_future(client.service.ask(one.task)) for one in slow]
            while not slow[0].begun:
                await asyncio.sleep(0.001)
            large = await client.call(
                "POST", "/api/encode", {"texts": ["a", "b"], "kind": "document"}
            )
            assert large.status == 429
            assert 1 <= int(large.headers["retry-after"]) <= 60
            assert (await client.call("POST", "/api/search", SMALL)).status == 200
            await asyncio.gather(*tasks)

        client.run(ask())


def test_an_answer_comes_from_one_generation(tmp_path: Path) -> None:
    """The index is exchanged while a large request is answered; what it began with stays open until its end."""
    folder = write_index(tmp_path / "I", texts(20))
    with serving(folder) as client:
        opened = client.service.catalogue.get().searcher
        ranking = Ranking(None, None, 20)
        closed = threading.Event()

        async def ask() -> Any:
            asked = Search(ranking, [f"lock {n}" for n in range(60)], HitFields(True, 5))
            task = asyncio.ensure_future(client.service.ask(asked))
            while not asked.lists:
                await asyncio.sleep(0.001)
            old = client.service.catalogue.get()
            object.__setattr__(old, "close", closed.set)
            os.utime(folder / "meta.json", ns=(1, 1))
            assert [change.what for change in client.service.reload()] == ["opened"]
            assert not closed.is_set() or asked.done
            return await task, old

        found, old = client.run(ask())
        assert found.generation is old
        assert [hit.docid for hit in found.results[-1].hits] == [
            h.docid for h in opened.search("lock 59", 20)
        ]
        assert client.post("/api/search", SMALL).json["generation"] == 2
        assert closed.is_set()


def test_a_large_request_that_waits_keeps_no_generation_open(tmp_path: Path) -> None:
    """When they did, 277 files were open at once in an index that changed every two seconds."""
    folder = write_index(tmp_path / "I", texts(20))
    with serving(folder) as client:

        async def ask() -> tuple[list[OpenIndex], OpenIndex]:
            works = [Slow(10) for _ in range(LARGE + 1)]
            tasks = [asyncio.ensure_future(client.service.ask(slow.task)) for slow in works]
            while not all(slow.begun for slow in works[:LARGE]):
                await asyncio.sleep(0.001)
            old = client.service.catalogue.get()
            os.utime(folder / "meta.json", ns=(1, 1))
            assert [change.what for change in client.service.reload()] == ["opened"]
            assert not works[LARGE].begun
            return [generation for generation, _ in await asyncio.gather(*tasks)], old

        generations, old = client.run(ask())
        assert generations[:LARGE] == [old] * LARGE
        assert generations[LARGE] is client.service.catalogue.get()


def test_a_generation_is_closed_without_another_request(tmp_path: Path) -> None:
    """Its last request ends after the exchange, and no other one comes."""
    folder = write_index(tmp_path / "I", texts(5))
    with serving(folder) as client:
        catalogue = client.service.catalogue
        closed = threading.Event()
        with catalogue.hold(None) as old:
            object.__setattr__(old, "close", closed.set)
            os.utime(folder / "meta.json", ns=(1, 1))
            assert [change.what for change in catalogue.reload()] == ["opened"]
            assert not closed.is_set()
        assert catalogue.reload() == []
        assert closed.is_set()


def test_hits_of_an_answer_are_written_one_by_one(client: Client) -> None:
    """As the same JSON as all of them together."""

    async def ask(as_json: bool) -> batch_handler.SearchResult:
        queries = ["lock wait", "queue", "lock"]
        return await client.service.ask(
            Search(Ranking(None, None, 5), queries, HitFields(True, 5), as_json)
        )

    objects = client.run(ask(as_json=False))
    written = client.run(ask(as_json=True))
    assert len(objects.results) == len(written.lists) == 3
    for result, ranked in zip(objects.results, written.lists, strict=True):
        assert len(result.hits) == 5
        assert ranked.result.hits == []
        assert b"".join(ranked.pieces()) == result.model_dump_json().encode()


def test_an_answer_has_a_limit(long: Client) -> None:
    reply = long.post("/api/search", {"query": ["lock wait"] * 20, "hits": 7, "texts": True})
    assert reply.status == 422
    assert "the answer exceeds 500000 bytes; ask for fewer" in reply.text
    assert long.post("/api/search", {"query": ["lock wait"] * 20, "hits": 7}).status == 200


def test_the_page_shows_the_beginning_of_a_long_text(long: Client) -> None:
    page = long.get("/?q=lock").text
    assert len(page) < 1_000_000
    assert page.count("the rest is in the API: /api/documents/") == 2
    assert "\u202e" not in page


def test_words_are_looked_for_once_in_a_text(long: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    generation = long.service.catalogue.get()
    read: list[str] = []
    monkeypatch.setattr(words, "word_spans", lambda text: (read.append(text), word_spans(text))[1])
    generation.searcher.describe("lock", ["long"])
    assert [len(text) for text in read if len(text) > 100] == [words.LONGEST_READ]


def test_a_query_is_read_once_for_all_hits(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = QueryWords.__init__

    def read_query(self: QueryWords, encoder: Any, query: str) -> None:
        read.append(query)
        original(self, encoder, query)

    monkeypatch.setattr(QueryWords, "__init__", read_query)
    queries = ["lock fork lock", "pipe loop pipe"]
    assert client.post("/api/search", {"query": queries, "hits": 20, "explain": True}).status == 200
    assert (
        client.post("/api/explain", {"query": queries[0], "docids": ["d1", "d2", "d3"]}).status
        == 200
    )
    assert read == queries


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/search", {"query": "lock", "hits": 20, "explain": True, "texts": True}),
        ("/api/search", {"query": "lock", "hits": 20}),
        ("/api/explain", {"query": "lock", "docids": [f"d{n}" for n in range(20)]}),
    ],
)
def test_a_piece_ends_after_any_hit(
    client: Client, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    """Where no time is left, every document is a piece by itself."""
    pieces: list[object] = []
    submit = client.service.batcher.submit
    monkeypatch.setattr(batch_handler, "SLICE", -1.0)
    monkeypatch.setattr(
        client.service.batcher, "submit", lambda *a, **k: (pieces.append(a), submit(*a, **k))[1]
    )
    assert client.post(path, body).status == 200
    assert len(pieces) == 20


def test_threads_take_short_turns_and_collections_are_short(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    interval = sys.getswitchinterval()
    seen = list[tuple[float, float]]()

    async def serve(*_: object, **__: object) -> None:
        frozen = gc.get_freeze_count()
        seen.append((sys.getswitchinterval(), frozen / (frozen + len(gc.get_objects()))))

    monkeypatch.setattr(Server, "serve", serve)
    run.run(ServeConfig(index=(str(folders["docs"]),), port=0, quiet=True, threads=1))
    assert (sys.getswitchinterval(), gc.get_freeze_count()) == (interval, 0)
    ((turn, frozen),) = seen
    assert turn <= 0.001
    assert frozen > 0.99  # the routes as well, which are more objects than the modules


def test_a_stop_ends_the_process_whatever_it_computes(folders: dict[str, Path]) -> None:
    with running(folders["docs"], "--stop-seconds", 1, "--request-timeout", 100) as server:
        threads = [
            threading.Thread(target=_ignore, args=(server.request, "POST", "/api/search", LONG, 20))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        wait_until_searching(server)
        started = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(20)
        assert time.monotonic() - started < 10
        for thread in threads:
            thread.join(30)


def test_a_stop_ends_a_process_whose_thread_never_ends() -> None:
    """The timer of the server, in a process of its own."""
    code = (
        "import signal, threading, time\n"
        "from dupmae_ir.serve.http_server import Server\n"
        "import uvicorn\n"
        "server = Server(uvicorn.Config(None), lambda: None, 0.3)\n"
        "server.handle_exit(signal.SIGTERM, None)\n"
        "threading.Thread(target=lambda: [0 for _ in iter(int, 1)]).start()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "ended 0.3 s after the signal, with work unfinished\n"


def _ignore(call: Any, *arguments: Any) -> None:
    with contextlib.suppress(Exception):
        call(*arguments)


def test_a_piece_has_few_long_queries() -> None:
    search = Search(Ranking(None, None, 5), ["short"] * 10, HitFields())
    assert len(search.texts(64)) == batch_handler.SMALL
    assert len(search.texts(3)) == 3
    search = Search(Ranking(None, None, 5), ["x" * 4096] * 10, HitFields())
    assert len(search.texts(64)) == 1


def test_a_filter_has_few_comparisons(client: Client) -> None:
    """Each looks at all distinct values; a list of values is one."""
    condition = " or ".join(f"year = {n}" for n in range(60))
    reply = client.post("/api/search", {**SMALL, "filter": condition})
    assert reply.status == 422
    assert "more than 50 comparisons; `in` takes a list of values" in reply.text
    listed = f"year in ({', '.join(str(2000 + n) for n in range(60))})"
    assert client.post("/api/search", {**SMALL, "filter": listed}).status == 200


def test_a_plain_query_goes_first(client: Client) -> None:
    """It takes no time besides ranking, so it does not wait for what others have to describe."""
    generation = client.service.catalogue.get()
    slow = Slow(3)
    plain = Search(Ranking(None, None, 5), ["lock"], HitFields())
    client.service.answerer(
        [Pending(WorkPiece(work, generation, work.texts(8))) for work in (slow.task, plain)]
    )
    assert plain.done


def test_the_fewest_turns_go_first(client: Client) -> None:
    """In one batch with a large request, a small one is done in any case, and large ones take turns."""
    generation = client.service.catalogue.get()
    slow = [Slow(3), Slow(3)]
    small = Slow(1)
    batch = [Pending(WorkPiece(one.task, generation, ())) for one in (*slow, small)]
    slow[0].task.turns = 2
    slow[1].task.turns = 1
    client.service.answerer(batch)
    assert [one.begun for one in (*slow, small)] == [0, 0, 1]
    client.service.answerer(batch := [Pending(WorkPiece(one.task, generation, ())) for one in slow])
    assert [one.begun for one in slow] == [0, 1]
    assert all(pending.future.done() for pending in batch)


def test_a_request_that_had_a_turn_is_not_put_off_by_all_that_come_later(client: Client) -> None:
    """Each of 200 batches brings as much as a slice of time allows, and the first request needs one more turn."""
    generation = client.service.catalogue.get()
    first = Slow(2)
    batches = 0
    while not first.task.done:
        batches += 1
        assert batches < 200, "it waits for as long as others come"
        newer = [Slow(1) for _ in range(8)]
        batch = [Pending(WorkPiece(one.task, generation, ())) for one in (*newer, first)]
        client.service.answerer(batch)
        assert first.begun + sum(one.begun for one in newer) >= 1
    assert batches > 1
