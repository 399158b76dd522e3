"""The queue: what arrives together is answered together, a full queue refuses, and faults stay with their batch."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from dupmae_ir.serve import batching
from dupmae_ir.serve.batching import Batcher, Busy, Waiting


@dataclass
class Work:
    name: Any
    weight: int = 1


class Held:
    """Answers a batch when it may, and notes the batches."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.free = threading.Event()
        self.begun = threading.Event()

    def __call__(self, batch: list[Waiting]) -> None:
        self.batches.append([w.work.name for w in batch])
        self.begun.set()
        assert self.free.wait(10)
        for w in batch:
            w.future.set_result(w.work.name)


@contextmanager
def batcher(answer: Any, capacity: int = 100, most: int = 100, wait: float = 0.0) -> Iterator[Batcher]:
    made = Batcher(answer, capacity, most, wait)
    made.start()
    yield made
    if isinstance(answer, Held):
        answer.free.set()
    made.stop(10)


def first(made: Batcher, held: Held) -> Future[Any]:
    """A request that occupies the thread."""
    future = made.enqueue(Work("first"))
    assert held.begun.wait(10)
    return future


def test_requests_gather_behind_a_batch() -> None:
    held = Held()
    with batcher(held) as made:
        futures = [first(made, held), *(made.enqueue(Work(n)) for n in range(5))]
        held.free.set()
        assert [f.result(10) for f in futures] == ["first", 0, 1, 2, 3, 4]
        assert held.batches == [["first"], [0, 1, 2, 3, 4]]


def test_batches_have_a_limit_and_heavy_work_goes_alone() -> None:
    held = Held()
    with batcher(held, most=3) as made:
        futures = [first(made, held), *(made.enqueue(Work(n, w)) for n, w in enumerate((1, 2, 1, 9, 1)))]
        held.free.set()
        [f.result(10) for f in futures]
        assert held.batches == [["first"], [0, 1], [2], [3], [4]]


def test_a_full_queue_refuses_and_says_when() -> None:
    held = Held()
    with batcher(held, capacity=3) as made:
        first(made, held)
        made.enqueue(Work("a", 2))
        made.enqueue(Work("b"))
        assert made.waiting == 3
        with pytest.raises(Busy) as refused:
            made.enqueue(Work("c"))
        assert 1 <= refused.value.retry_after <= 60


def test_cancelled_work_is_skipped() -> None:
    held = Held()
    with batcher(held) as made:
        first(made, held)
        gone, kept = made.enqueue(Work("gone")), made.enqueue(Work("kept"))
        assert gone.cancel()
        held.free.set()
        assert kept.result(10) == "kept"
        assert held.batches[1] == ["kept"]


def test_timeouts_free_the_client() -> None:
    held = Held()
    with batcher(held) as made:
        first(made, held)
        with pytest.raises(TimeoutError):
            asyncio.run(made.submit(Work("late"), 0.05))


def test_a_fault_reaches_its_requests_and_the_thread_goes_on() -> None:
    def answer(batch: list[Waiting]) -> None:
        for w in batch:
            w.future.set_result(1 / w.work.name)

    with batcher(answer) as made:
        with pytest.raises(ZeroDivisionError):
            made.enqueue(Work(0)).result(10)
        assert made.enqueue(Work(4)).result(10) == 0.25


def test_stopping_answers_what_waits_and_refuses_the_rest() -> None:
    held = Held()
    with batcher(held) as made:
        waiting = [first(made, held), made.enqueue(Work("second"))]
        stopper = threading.Thread(target=made.stop)
        stopper.start()
        held.free.set()
        stopper.join(10)
        assert [f.result(0) for f in waiting] == ["first", "second"]
        with pytest.raises(Busy):
            made.enqueue(Work("third"))


def test_a_batch_waits_for_as_many_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a batch of two, one request waits for a second."""
    held = Held()
    with batcher(held, wait=60) as made:
        answer_two(made, held)
        monkeypatch.setattr(batching, "PATIENCE", 1e12)
        both = [made.enqueue(Work("c"))]
        assert not both[0].done()
        both.append(made.enqueue(Work("d")))
        assert [f.result(10) for f in both] == ["c", "d"]
        assert held.batches == [["first"], ["a", "b"], ["c", "d"]]


@pytest.mark.parametrize(("wait", "patience"), [(0.01, 1e12), (60, 1e-6)])
def test_waiting_is_bounded(monkeypatch: pytest.MonkeyPatch, wait: float, patience: float) -> None:
    """By ``wait``, and by a part of the last batch's time."""
    held = Held()
    with batcher(held, wait=wait) as made:
        answer_two(made, held)
        monkeypatch.setattr(batching, "PATIENCE", patience)
        assert made.enqueue(Work("lonely")).result(10) == "lonely"


def test_a_client_that_is_alone_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "PATIENCE", 1e12)
    held = Held()
    held.free.set()
    with batcher(held, wait=60) as made:
        assert [made.enqueue(Work(n)).result(10) for n in range(3)] == [0, 1, 2]


def answer_two(made: Batcher, held: Held) -> None:
    """Answer one request, then two together."""
    waiting = [first(made, held), made.enqueue(Work("a")), made.enqueue(Work("b"))]
    held.free.set()
    [f.result(10) for f in waiting]
