"""Calls of several threads that are computed together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import pytest

from dupmae_ir.search import query_batching
from dupmae_ir.search.query_batching import Compute, QueryBatches

WAIT = 30.0


class Slow:
    """Doubles numbers. The first call waits for :attr:`go`; -1 is an error, and what was asked is kept."""

    def __init__(self) -> None:
        self.go, self.started = threading.Event(), threading.Event()
        self.asked: list[tuple[str, list[int]]] = []
        self.raises: BaseException | None = None

    def __call__(self, kind: str, asks: list[int]) -> Sequence[int]:
        self.asked.append((kind, asks))
        if not self.started.is_set():
            self.started.set()
            assert self.go.wait(WAIT)
        if self.raises:
            found, self.raises = self.raises, None
            raise found
        if -1 in asks:
            raise ValueError("minus one")
        return [2 * ask for ask in asks]


def asked(
    batches: QueryBatches[str, int, int],
    slow: Slow,
    asks: Sequence[tuple[str, int]],
    compute: Compute[str, int, int] | None = None,
) -> list[Future[int]]:
    """A call computes; these are made meanwhile, in this order."""
    first = in_thread(batches, compute or slow, "a", 1)
    assert slow.started.wait(WAIT)
    others = []
    for number, (kind, ask) in enumerate(asks, start=1):
        others.append(in_thread(batches, compute or slow, kind, ask))
        reached(lambda: len(batches._waiting) >= number)  # noqa: B023 # called before the next one
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
    batches = QueryBatches[str, int, int](1)
    assert [batches(slow, "a", ask) for ask in (1, 2)] == [2, 4]
    assert slow.asked == [("a", [1]), ("a", [2])]


def test_calls_made_meanwhile_are_computed_together_by_kind() -> None:
    slow = Slow()
    found = asked(QueryBatches(1), slow, [("a", 2), ("b", 3), ("a", 4)])
    slow.go.set()
    assert [future.result(WAIT) for future in found] == [2, 4, 6, 8]
    assert sorted((kind, sorted(asks)) for kind, asks in slow.asked) == [("a", [1]), ("a", [2, 4]), ("b", [3])]


def test_no_more_than_the_most_are_computed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_batching, "MOST", 2)
    slow = Slow()
    found = asked(QueryBatches(1), slow, [("a", ask) for ask in range(2, 7)])
    slow.go.set()
    assert [future.result(WAIT) for future in found] == [2, 4, 6, 8, 10, 12]
    assert sorted(len(asks) for _, asks in slow.asked) == [1, 1, 2, 2]


def test_as_many_threads_compute_as_there_are_places() -> None:
    slow = Slow()
    batches = QueryBatches[str, int, int](2)
    first = in_thread(batches, slow, "a", 1)
    assert slow.started.wait(WAIT)
    assert batches(slow, "a", 2) == 4  # while the first one waits
    slow.go.set()
    assert first.result(WAIT) == 2


def test_an_error_belongs_to_the_call_that_causes_it() -> None:
    slow = Slow()
    first, good, bad = asked(QueryBatches(1), slow, [("a", 2), ("a", -1)])
    slow.go.set()
    assert (first.result(WAIT), good.result(WAIT)) == (2, 4)
    with pytest.raises(ValueError, match="minus one"):
        bad.result(WAIT)


def test_an_interrupted_call_leaves_the_others_to_be_answered() -> None:
    slow = Slow()
    first, *others = asked(QueryBatches(1), slow, [("a", 2), ("a", 3)])
    slow.raises = KeyboardInterrupt()
    slow.go.set()
    with pytest.raises(KeyboardInterrupt):
        first.result(WAIT)
    assert [future.result(WAIT) for future in others] == [4, 6]


def test_the_others_of_an_interrupted_thread_wait_again() -> None:
    slow = Slow()

    def compute(kind: str, asks: list[int]) -> Sequence[int]:
        if len(asks) > 1:
            raise KeyboardInterrupt
        return slow(kind, asks)

    batches = QueryBatches[str, int, int](1)
    first, *others = asked(batches, slow, [("a", 2), ("a", 3)], compute)
    slow.go.set()
    assert first.result(WAIT) == 2
    errors = [future.exception(WAIT) for future in others]
    assert sorted(map(type, filter(None, errors)), key=str) == [KeyboardInterrupt]
    assert [future.result() for future, error in zip(others, errors, strict=True) if not error] in ([4], [6])
    assert batches(slow, "a", 5) == 10  # the place is free again
