"""Queries that are asked at the same time, computed together.

A search reads all vectors from memory, for one query as for many, and threads beyond the number of processors only take
each other's caches away. So what is asked while a batch is computed gathers, and the next batch takes all of it, up to
a limit. There are two ways to ask:

* :meth:`QueryBatches.ask` computes in the thread that asks, or waits for another thread that asks and computes this
  query with its own. This is how a Searcher works.
* :meth:`QueryBatches.submit` gives the work to one thread (:meth:`QueryBatches.start`). This is how the service works.

Who were answered together ask again together, so a batch waits a little for as many as were answered and came
meanwhile: not longer than ``wait``, nor than a part of the last batch's time. Without that, eight clients become two
groups of four, each too small to gain much. A client that is alone never waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from dupmae_ir.errors import DupmaeError

Work = TypeVar("Work")
Result = TypeVar("Result")

MAX_BATCH = 64
"""Queries computed together, so that the first of them does not wait for any number of others."""
PATIENCE = 0.25
"""Waiting for more work takes at most this part of the time of the batch before."""


class Busy(DupmaeError):
    """The queue is full. ``retry_after``: seconds after which a place is likely to be free."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"the queue is full; try again in {retry_after} s")
        self.retry_after = retry_after


class Announced(Future[Result]):
    """A future that calls ``announce`` before anybody can know its result."""

    announce: Callable[[], None] | None = None

    def set_result(self, result: Result) -> None:
        """As of any future."""
        self._announce()
        super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        """As of any future."""
        self._announce()
        super().set_exception(exception)

    def _announce(self) -> None:
        if self.announce is not None:
            self.announce()


@dataclass(eq=False)
class Pending(Generic[Work, Result]):
    """Work in the queue and the future of its result. Only work of one ``kind`` is computed together; ``weight``:
    number of queries; ``client``: whose turn it is."""

    work: Work
    kind: object = None
    weight: int = 1
    client: Hashable = None
    future: Announced[Result] = field(default_factory=Announced)


Compute = Callable[[list[Pending[Work, Result]]], None]
"""Sets the future of each piece of work in a batch. When it raises, what has no result yet is computed again, one piece
alone, so that the error belongs to the work that causes it."""


class QueryBatches(Generic[Work, Result]):
    """A queue of work, computed in batches.

    Args:
        threads: how many threads that :meth:`ask` compute at a time.
        max_batch: weight of a batch; a heavier piece of work is a batch alone.
        wait: most seconds for which a batch waits for more work.
        observe: called with each batch and its seconds.
    """

    def __init__(
        self,
        threads: int = 1,
        max_batch: int = MAX_BATCH,
        wait: float = 0.0,
        observe: Callable[
            [Sequence[Pending[Work, Result]], float], None
        ] = lambda _batch, _seconds: None,
    ) -> None:
        self.max_batch = max_batch
        self.wait = wait
        self.observe = observe
        self._free = threads
        self._queue: list[Pending[Work, Result]] = []
        # Guards the queue; notified of its changes and of results.
        self._changed = threading.Condition()
        # Pieces of work in the last batch, and those that waited when its first result came.
        self._expected = 0
        self._seconds = 0.0  # of the last batch
        self.pace = 0.02  #: seconds per unit of weight, a moving average
        self._turn = 0  # of the last batch
        self._next: dict[Hashable, int] = {}  # client -> its next turn, if that is later
        self._stopping = False
        self._thread: threading.Thread | None = None

    @property
    def waiting(self) -> int:
        """The weight in the queue."""
        return sum(pending.weight for pending in self._queue)

    def ask(self, compute: Compute[Work, Result], work: Work, kind: object = None) -> Result:
        """The result of ``work``, computed by this thread or by another one that asks. Raises what ``compute`` raises.

        ``compute`` is the same in all calls. It is not kept, since it may hold the owner of this object.
        """
        pending = self._enqueue(Pending(work, kind))
        with self._changed:
            try:
                computes = self._await_turn(pending)
            except BaseException:
                # Ctrl-C: nobody waits for this result any more.
                self._queue = [other for other in self._queue if other is not pending]
                raise
            if not computes:
                return pending.future.result()
            batch = self._take(pending)
        started = time.monotonic()
        try:
            self._compute(compute, batch)
            self._seconds = time.monotonic() - started
        finally:
            with self._changed:
                self._free += 1
                # After Ctrl-C in this thread, the work of others waits again.
                self._queue += [other for other in batch[1:] if not other.future.done()]
                self._changed.notify_all()
        return pending.future.result()

    def _await_turn(self, pending: Pending[Work, Result]) -> bool:
        """Wait, with the lock, until ``pending`` has its result, or this thread is to compute it; whether it is."""
        while True:
            self._changed.wait_for(
                lambda: pending.future.done() or (self._free > 0 and pending in self._queue)
            )
            if pending.future.done():
                return False
            self._free -= 1
            is_waiting = False
            try:
                self._gather(pending)
                is_waiting = pending in self._queue
            finally:
                if not is_waiting:
                    self._free += 1
                    self._changed.notify_all()
            if is_waiting:
                return True

    def submit(
        self, work: Work, weight: int = 1, kind: object = None, client: Hashable = None
    ) -> Future[Result]:
        """The result of ``work``, computed by the thread of :meth:`start`; clients take turns, and who comes later has
        no turns to catch up on. Raises :class:`Busy` after :meth:`stop`."""
        return self._enqueue(Pending(work, kind, weight, client)).future

    def start(self, compute: Compute[Work, Result]) -> None:
        """Start the thread."""
        self._thread = threading.Thread(
            target=self._run, args=(compute,), name="answers", daemon=True
        )
        self._thread.start()

    def stop(self, timeout: float | None = None) -> None:
        """Compute what is waiting, then end the thread; work that comes later is :class:`Busy`."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout)

    def _enqueue(self, pending: Pending[Work, Result]) -> Pending[Work, Result]:
        with self._changed:
            if self._stopping:
                raise Busy(1)
            self._queue.append(pending)
            self._changed.notify_all()
        return pending

    def _take(self, first: Pending[Work, Result]) -> list[Pending[Work, Result]]:
        """``first``, and what came in order after it of the same kind, out of the queue."""
        batch = [first]
        weight = first.weight
        for other in self._queue:
            if other is not first and other.kind == first.kind:
                weight += other.weight
                # The first that does not fit ends the batch: lighter work behind it must not overtake it.
                if weight > self.max_batch:
                    break
                batch.append(other)
        self._queue = [other for other in self._queue if other not in batch]
        return batch

    def _turn_of(self, pending: Pending[Work, Result]) -> int:
        return max(self._turn, self._next.get(pending.client, 0))

    def _run(self, compute: Compute[Work, Result]) -> None:
        while self._run_batch(compute):
            pass  # nothing of a batch is kept while the next one is awaited

    def _run_batch(self, compute: Compute[Work, Result]) -> bool:
        """Compute the next batch; False after :meth:`stop`."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._stopping)
            self._gather()
            if not self._queue:
                return False
            first = min(self._queue, key=self._turn_of)
            batch = self._take(first)
            later = {pending.client: self._turn_of(pending) + 1 for pending in batch}
            self._turn = self._turn_of(first)
            # Turns that have passed are forgotten, so the table does not grow with every client that ever asked.
            self._next = {
                client: turn for client, turn in self._next.items() if turn > self._turn
            } | later
        started = time.monotonic()
        self._compute(compute, batch)
        weight = sum(pending.weight for pending in batch)
        seconds = time.monotonic() - started
        self._seconds = seconds
        self.pace += 0.1 * (seconds / max(1, weight) - self.pace)
        self.observe(batch, seconds)
        return True

    def _gather(self, first: Pending[Work, Result] | None = None) -> None:
        """Wait a little, with the lock, for those who were answered together, and for those who came meanwhile; not any
        longer when another thread has taken ``first``."""
        until = time.monotonic() + min(self.wait, PATIENCE * self._seconds)
        expected = min(self._expected, self.max_batch)
        while len(self._queue) < expected and self.waiting < self.max_batch and not self._stopping:
            remaining = until - time.monotonic()
            if remaining <= 0 or not self._changed.wait(remaining):
                break
            if first is not None and first not in self._queue:
                break
        # Set again when the first result of the next batch comes.
        self._expected = 0

    def _compute(
        self, compute: Compute[Work, Result], batch: Sequence[Pending[Work, Result]]
    ) -> None:
        # Work that went back into the queue after Ctrl-C is running already; marking it a second time would raise.
        live = [p for p in batch if p.future.running() or p.future.set_running_or_notify_cancel()]
        if live:
            # Not by a callback: who has the result may ask again before it is called, and would be counted twice.
            live[0].future.announce = partial(self._expect, len(live))
        batches = [live] if live else []
        # The list grows in the loop: after an error, the work without a result is appended, each piece a batch.
        for current in batches:
            try:
                compute(current)
            except Exception as e:
                unanswered = [pending for pending in current if not pending.future.done()]
                # A piece alone is not tried again: the error is its own.
                if len(current) > 1:
                    batches += [[pending] for pending in unanswered]
                elif unanswered:
                    unanswered[0].future.set_exception(e)

    def _expect(self, answered: int) -> None:
        self._expected = answered + len(self._queue)
