"""Queries that are asked at the same time: computed together by the threads that ask, or by a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest

from dupmae_ir.search import query_batching
from dupmae_ir.search.query_batching import Busy, Pending, QueryBatches

WAIT = 30.0
Batch = list[Pending[int, int]]


class Slow:
    """Doubles numbers. The first call waits for :attr:`go`; -1 is an error, and what was asked is noted."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.started = threading.Event()
        self.asked: list[tuple[object, list[int]]] = []
        self.raises: BaseException | None = None

    def __call__(self, batch: Batch) -> None:
        works = [pending.work for pending in batch]
        self.asked.append((batch[0].kind, works))
        if not self.started.is_set():
            self.started.set()
            assert self.go.wait(WAIT)
        if self.raises:
            error = self.raises
            self.raises = None
            raise error
        if -1 in works:
            raise ValueError("minus one")
        for pending in batch:
            pending.future.set_result(2 * pending.work)


def asked(
    batches: QueryBatches[int, int],
    slow: Slow,
    asks: Sequence[tuple[str, int]],
    compute: Callable[[Batch], None] | None = None,
) -> list[Future[int]]:
    """A call computes; these are made meanwhile, in this order."""
    first = in_thread(batches.ask, compute or slow, 1, "a")
    assert slow.started.wait(WAIT)
    others = []
    for number, (kind, ask) in enumerate(asks, start=1):
        others.append(in_thread(batches.ask, compute or slow, ask, kind))
        reached(lambda: batches.waiting >= number)  # noqa: B023 # called before the next one
    return [first, *others]


def in_thread(call: Callable[..., int], *arguments: object) -> Future[int]:
    """The result of a call in a thread, which Python does not wait for at its end: a call that hangs fails one test."""
    future = Future[int]()

    def run() -> None:
        try:
            future.set_result(call(*arguments))
        except BaseException as e:  # as an executor does
            future.set_exception(e)

    threading.Thread(target=run, daemon=True).start()
    return future


def reached(condition: Callable[[], bool]) -> None:
    """Wait for a condition that no event tells."""
    for _ in range(int(WAIT * 1000)):
        if condition():
            return
        threading.Event().wait(0.001)
    raise AssertionError("not reached")


def test_a_call_that_is_alone_is_computed_alone() -> None:
    slow = Slow()
    slow.go.set()
    batches = QueryBatches[int, int]()
    assert [batches.ask(slow, ask, "a") for ask in (1, 2)] == [2, 4]
    assert slow.asked == [("a", [1]), ("a", [2])]


def test_calls_made_meanwhile_are_computed_together_by_kind() -> None:
    slow = Slow()
    futures = asked(QueryBatches(), slow, [("a", 2), ("b", 3), ("a", 4)])
    slow.go.set()
    assert [future.result(WAIT) for future in futures] == [2, 4, 6, 8]
    assert sorted((str(kind), sorted(asks)) for kind, asks in slow.asked) == [
        ("a", [1]),
        ("a", [2, 4]),
        ("b", [3]),
    ]


def test_a_batch_has_a_limit() -> None:
    slow = Slow()
    futures = asked(QueryBatches(max_batch=2), slow, [("a", ask) for ask in range(2, 7)])
    slow.go.set()
    assert [future.result(WAIT) for future in futures] == [2, 4, 6, 8, 10, 12]
    assert sorted(len(asks) for _, asks in slow.asked) == [1, 1, 2, 2]


def test_as_many_threads_compute_as_are_allowed() -> None:
    slow = Slow()
    batches = QueryBatches[int, int](2)
    first = in_thread(batches.ask, slow, 1, "a")
    assert slow.started.wait(WAIT)
    assert batches.ask(slow, 2, "a") == 4  # while the first one waits
    slow.go.set()
    assert first.result(WAIT) == 2


def test_an_error_belongs_to_the_call_that_causes_it() -> None:
    slow = Slow()
    first, good, bad = asked(QueryBatches(), slow, [("a", 2), ("a", -1)])
    slow.go.set()
    assert (first.result(WAIT), good.result(WAIT)) == (2, 4)
    with pytest.raises(ValueError, match="minus one"):
        bad.result(WAIT)


def test_an_interrupted_call_leaves_the_others_to_be_answered() -> None:
    slow = Slow()
    first, *others = asked(QueryBatches(), slow, [("a", 2), ("a", 3)])
    slow.raises = KeyboardInterrupt()
    slow.go.set()
    with pytest.raises(KeyboardInterrupt):
        first.result(WAIT)
    assert [future.result(WAIT) for future in others] == [4, 6]


def test_the_others_of_an_interrupted_thread_wait_again() -> None:
    slow = Slow()

    def compute(batch: Batch) -> None:
        if len(batch) > 1:
            raise KeyboardInterrupt
        slow(batch)

    batches = QueryBatches[int, int]()
    first, *others = asked(batches, slow, [("a", 2), ("a", 3)], compute)
    slow.go.set()
    assert first.result(WAIT) == 2
    errors = [future.exception(WAIT) for future in others]
    assert sorted(map(type, filter(None, errors)), key=str) == [KeyboardInterrupt]
    assert [future.result() for future, error in zip(others, errors, strict=True) if not error] in (
        [4],
        [6],
    )
    assert batches.ask(slow, 5, "a") == 10  # a thread may compute again


class Held:
    """Answers a batch of names when it may, and notes the batches."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.free = threading.Event()
        self.begun = threading.Event()

    def __call__(self, batch: list[Pending[Any, Any]]) -> None:
        self.batches.append([pending.work for pending in batch])
        self.begun.set()
        assert self.free.wait(WAIT)
        for pending in batch:
            pending.future.set_result(pending.work)


@contextmanager
def started(compute: Any, **settings: Any) -> Iterator[QueryBatches[Any, Any]]:
    batches = QueryBatches[Any, Any](**settings)
    batches.start(compute)
    yield batches
    if isinstance(compute, Held):
        compute.free.set()
    batches.stop(WAIT)


def first(batches: QueryBatches[Any, Any], held: Held) -> Future[Any]:
    """A request that occupies the thread."""
    future = batches.submit("first")
    assert held.begun.wait(WAIT)
    return future


def test_requests_gather_behind_a_batch() -> None:
    held = Held()
    with started(held) as batches:
        futures = [first(batches, held), *(batches.submit(n) for n in range(5))]
        held.free.set()
        assert [f.result(WAIT) for f in futures] == ["first", 0, 1, 2, 3, 4]
        assert held.batches == [["first"], [0, 1, 2, 3, 4]]


def test_heavy_work_is_a_batch_alone() -> None:
    held = Held()
    with started(held, max_batch=3) as batches:
        futures = [
            first(batches, held),
            *(batches.submit(n, w) for n, w in enumerate((1, 2, 1, 9, 1))),
        ]
        held.free.set()
        [f.result(WAIT) for f in futures]
        assert held.batches == [["first"], [0, 1], [2], [3], [4]]


def test_clients_take_turns() -> None:
    """What a client asks waits for one batch of another client's work, not for all of it."""
    held = Held()
    with started(held, max_batch=2) as batches:
        futures = [first(batches, held), *(batches.submit(n, 2, client="many") for n in range(4))]
        futures.append(batches.submit("one", client="few"))
        held.free.set()
        [f.result(WAIT) for f in futures]
        assert held.batches == [["first"], [0], ["one"], [1], [2], [3]]


def test_who_comes_later_has_no_turns_to_catch_up_on() -> None:
    batches = QueryBatches[Any, Any](max_batch=1)
    order = list[str]()
    go = threading.Event()

    def compute(batch: list[Pending[Any, Any]]) -> None:
        assert go.wait(WAIT)
        order.append(batch[0].work)
        if len(order) == 4:
            futures.extend(batches.submit("new", client="new") for _ in range(3))
        batch[0].future.set_result(None)

    batches.start(compute)
    futures = [batches.submit("old", client="old") for _ in range(6)]
    go.set()
    reached(lambda: len(order) == 9)
    batches.stop(WAIT)
    assert order[4:] in (["old", "new", "old", "new", "new"], ["new", "old", "new", "old", "new"])


def test_cancelled_work_is_skipped() -> None:
    held = Held()
    with started(held) as batches:
        first(batches, held)
        gone = batches.submit("gone")
        other = batches.submit("other")
        assert gone.cancel()
        held.free.set()
        assert other.result(WAIT) == "other"
        assert held.batches[1] == ["other"]


def test_a_fault_reaches_its_requests_and_the_thread_goes_on() -> None:
    def compute(batch: list[Pending[Any, Any]]) -> None:
        for pending in batch:
            pending.future.set_result(1 / pending.work)

    with started(compute) as batches:
        with pytest.raises(ZeroDivisionError):
            batches.submit(0).result(WAIT)
        assert batches.submit(4).result(WAIT) == 0.25


def test_stopping_answers_what_waits_and_refuses_the_rest() -> None:
    held = Held()
    with started(held) as batches:
        waiting = [first(batches, held), batches.submit("second")]
        stopper = threading.Thread(target=batches.stop)
        stopper.start()
        held.free.set()
        stopper.join(WAIT)
        assert [f.result(0) for f in waiting] == ["first", "second"]
        with pytest.raises(Busy):
            batches.submit("third")


def test_a_batch_waits_for_as_many_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a batch of two, one request waits for a second."""
    held = Held()
    with started(held, wait=60) as batches:
        answer_two(batches, held)
        monkeypatch.setattr(query_batching, "PATIENCE", 1e12)
        both = [batches.submit("c")]
        assert not both[0].done()
        both.append(batches.submit("d"))
        assert [f.result(WAIT) for f in both] == ["c", "d"]
        assert held.batches == [["first"], ["a", "b"], ["c", "d"]]


@pytest.mark.parametrize(("wait", "patience"), [(0.01, 1e12), (60, 1e-6)])
def test_waiting_is_bounded(monkeypatch: pytest.MonkeyPatch, wait: float, patience: float) -> None:
    """By ``wait``, and by a part of the last batch's time."""
    held = Held()
    with started(held, wait=wait) as batches:
        answer_two(batches, held)
        monkeypatch.setattr(query_batching, "PATIENCE", patience)
        assert batches.submit("lonely").result(WAIT) == "lonely"


def test_a_client_that_is_alone_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_batching, "PATIENCE", 1e12)
    held = Held()
    held.free.set()
    with started(held, wait=60) as batches:
        assert [batches.submit(n).result(WAIT) for n in range(3)] == [0, 1, 2]


def test_a_client_that_asks_again_at_once_is_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its second request comes before the thread goes on after the first result."""
    monkeypatch.setattr(query_batching, "PATIENCE", 1e12)
    held = Held()
    held.free.set()
    batches = QueryBatches[Any, Any](wait=60)
    again = Future[Any]()
    batches.submit("once").add_done_callback(lambda _: again.set_result(batches.submit("again")))
    batches.start(held)
    assert again.result(WAIT).result(WAIT) == "again"
    batches.stop(WAIT)


def answer_two(batches: QueryBatches[Any, Any], held: Held) -> None:
    """Answer one request, then two together."""
    waiting = [first(batches, held), batches.submit("a"), batches.submit("b")]
    held.free.set()
    [f.result(WAIT) for f in waiting]


def ask_two(batches: QueryBatches[int, int], slow: Slow) -> None:
    """Answer one call, then two together; the next one waits for a second."""
    futures = asked(batches, slow, [("a", 2), ("a", 3)])
    slow.go.set()
    assert [future.result(WAIT) for future in futures] == [2, 4, 6]


def test_a_call_waits_for_as_many_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow()
    batches = QueryBatches[int, int](wait=60)
    ask_two(batches, slow)
    monkeypatch.setattr(query_batching, "PATIENCE", 1e12)
    both = [in_thread(batches.ask, slow, ask, "a") for ask in (4, 5)]
    assert [future.result(WAIT) for future in both] == [8, 10]
    assert sorted(slow.asked[-1][1]) == [4, 5]


@pytest.mark.parametrize(("wait", "patience"), [(0.01, 1e12), (60, 1e-6)])
def test_a_call_waits_no_longer_than_it_may(
    monkeypatch: pytest.MonkeyPatch, wait: float, patience: float
) -> None:
    slow = Slow()
    batches = QueryBatches[int, int](wait=wait)
    ask_two(batches, slow)
    monkeypatch.setattr(query_batching, "PATIENCE", patience)
    assert in_thread(batches.ask, slow, 4, "a").result(WAIT) == 8


def test_a_call_that_another_thread_computes_meanwhile_is_computed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With two computing threads, the second takes along what the first one has while that waits for more."""
    slow = Slow()
    batches = QueryBatches[int, int](2, wait=60)
    monkeypatch.setattr(query_batching, "PATIENCE", 1e12)
    batches._expected, batches._seconds = 2, 1.0
    slow.go.set()
    both = [in_thread(batches.ask, slow, ask, "a") for ask in (4, 5)]
    assert [future.result(WAIT) for future in both] == [8, 10]
    assert sorted(ask for _, asks in slow.asked for ask in asks) == [4, 5]
    assert batches._free == 2


def test_a_call_interrupted_while_it_waits_for_others_leaves_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = Slow()
    slow.go.set()
    batches = QueryBatches[int, int]()

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(batches, "_gather", interrupt)
    with pytest.raises(KeyboardInterrupt):
        batches.ask(slow, 2, "a")
    monkeypatch.undo()
    assert batches.waiting == 0
    assert in_thread(batches.ask, slow, 3, "a").result(WAIT) == 6
    assert slow.asked == [("a", [3])]
