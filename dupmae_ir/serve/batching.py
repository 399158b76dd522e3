"""A bounded queue of requests and one thread that answers them in batches.

While a batch is computed, requests gather; the next batch takes all of them, up to a limit. Clients that were answered
together ask again together, so the thread waits a little for as many requests as were answered and came meanwhile: not
longer than ``wait``, nor than a part of the last batch's time. Without that, eight clients become two groups of four,
each too small to gain much. A client that is alone never waits.

One thread computes: the model and the engines use all processors for one batch, and nothing is searched while it is
exchanged.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from dupmae_ir.errors import DupmaeError

PATIENCE = 0.25
"""Waiting for more requests takes at most this part of the time of the batch before."""


class Busy(DupmaeError):
    """The queue is full. ``retry_after``: seconds after which a place is likely to be free."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"the queue is full; try again in {retry_after} s")
        self.retry_after = retry_after


class Work(Protocol):
    """What a request asks for."""

    @property
    def weight(self) -> int:
        """Places in the queue: the number of queries."""


@dataclass
class Waiting:
    """One piece of work in the queue and the future of its result."""

    work: Any
    weight: int
    future: Future[Any] = field(default_factory=Future)


class Batcher:
    """Runs ``answer(batch)`` on one thread; ``answer`` sets every future of the batch.

    Args:
        answer: called with the work of a batch, in the order of arrival.
        capacity: total weight that may wait.
        most: weight of a batch; a heavier piece of work is a batch alone.
        wait: most seconds to wait for more requests.
        observe: called with the weight and the seconds of each batch.
    """

    def __init__(
        self,
        answer: Callable[[list[Waiting]], None],
        capacity: int,
        most: int,
        wait: float,
        observe: Callable[[int, float], None] = lambda _weight, _seconds: None,
    ) -> None:
        self.answer, self.capacity, self.most, self.wait, self.observe = answer, capacity, most, wait, observe
        self._queue: deque[Waiting] = deque()
        self._changed = threading.Condition()
        self._weight = 0
        self._expected = 0  # requests answered in the last batch, and those that waited when its first answer came
        self._seconds = 0.0  # of the last batch
        self._pace = 0.02  # seconds per query, a moving average
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="answers", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout: float | None = None) -> None:
        """Answer what is waiting, then end the thread; requests that come later are :class:`Busy`."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    @property
    def waiting(self) -> int:
        """The weight in the queue."""
        return self._weight

    async def submit(self, work: Work, timeout: float) -> Any:
        """The result of ``work``. Raises :class:`Busy`, and :class:`TimeoutError` after ``timeout`` seconds."""
        return await asyncio.wait_for(asyncio.wrap_future(self.enqueue(work)), timeout)

    def enqueue(self, work: Work) -> Future[Any]:
        """Put ``work`` into the queue. Raises :class:`Busy`."""
        waiting = Waiting(work, work.weight)
        with self._changed:
            if self._stopping or self._weight + waiting.weight > self.capacity:
                raise Busy(min(60, max(1, math.ceil(self._weight * self._pace))))
            self._queue.append(waiting)
            self._weight += waiting.weight
            self._changed.notify_all()
        return waiting.future

    def _run(self) -> None:
        while self._run_batch():
            pass  # nothing of a batch is kept while the next one is awaited

    def _run_batch(self) -> bool:
        """Answer the next batch; False when the server stops."""
        batch = self._next()
        weight, started = sum(waiting.weight for waiting in batch), time.monotonic()
        live = [waiting for waiting in batch if waiting.future.set_running_or_notify_cancel()]
        if live:
            self._expected = 0
            live[0].future.add_done_callback(partial(self._expect, len(live)))
            self._answer(live)
        if batch:
            self._seconds = seconds = time.monotonic() - started
            self._pace += 0.1 * (seconds / max(1, weight) - self._pace)
            self.observe(weight, seconds)
        return bool(batch)

    def _expect(self, answered: int, _: Future[Any]) -> None:
        self._expected = answered + len(self._queue)

    def _answer(self, batch: list[Waiting]) -> None:
        try:
            self.answer(batch)
        except Exception as e:  # the thread must outlive any fault of an answer
            for waiting in batch:
                if not waiting.future.done():
                    waiting.future.set_exception(e)

    def _next(self) -> list[Waiting]:
        """The next batch; empty when the server stops."""
        with self._changed:
            while not self._queue and not self._stopping:
                self._changed.wait()
            self._linger(min(self._expected, self.most))
            batch: list[Waiting] = []
            weight = 0
            while self._queue and (not batch or weight + self._queue[0].weight <= self.most):
                batch.append(self._queue.popleft())
                weight += batch[-1].weight
            self._weight -= weight
            return batch

    def _linger(self, expected: int) -> None:
        until = time.monotonic() + min(self.wait, PATIENCE * self._seconds)
        while len(self._queue) < expected and self._weight < self.most and not self._stopping:
            remaining = until - time.monotonic()
            if remaining <= 0 or not self._changed.wait(remaining):
                return
