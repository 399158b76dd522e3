"""Calls of several threads, computed together.

A search reads all vectors from memory, for one query as for many, and threads beyond the number of processors only take
each other's caches away. So a few threads compute at a time; the others wait, and the next one that gets a place
computes for all that wait for the same kind of result. A call that is alone starts at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Kind = TypeVar("Kind")
Ask = TypeVar("Ask")
Result = TypeVar("Result")
Compute = Callable[[Kind, list[Ask]], Sequence[Result]]

MOST = 64
"""Calls computed together, so that the first of them does not wait for any number of others."""


class QueryBatches(Generic[Kind, Ask, Result]):
    """Computes together what several threads ask; ``places`` threads compute at a time."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._changed = threading.Condition()
        self._waiting: list[_Call[Kind, Ask, Result]] = []

    def __call__(self, compute: Compute[Kind, Ask, Result], kind: Kind, ask: Ask) -> Result:
        """The result of one ask; only asks of one ``kind`` are computed together.

        ``compute(kind, asks)`` returns a result for each ask, which must not depend on the others. It is the same in
        all calls, but is not kept, since it may hold the owner of this object. Raises what it raises for this ask.
        """
        call = _Call[Kind, Ask, Result](kind, ask)
        if calls := self._turn(call):
            try:
                _answer(compute, calls)
            finally:
                self._leave(calls)
        if call.error is not None:
            raise call.error
        return call.result[0]

    def _turn(self, call: _Call[Kind, Ask, Result]) -> list[_Call[Kind, Ask, Result]]:
        """Wait until another thread has answered ``call``, or there is a place: then take it, for these calls."""
        with self._changed:
            self._waiting.append(call)
            try:
                self._changed.wait_for(lambda: call.done or (self._places > 0 and call in self._waiting))
            except BaseException:  # Ctrl-C
                self._waiting = [other for other in self._waiting if other is not call]
                raise
            if call.done:
                return []
            others = (other for other in self._waiting if other.kind == call.kind and other is not call)
            calls = [call, *others][:MOST]
            self._waiting = [other for other in self._waiting if other not in calls]
            self._places -= 1
            return calls

    def _leave(self, calls: Sequence[_Call[Kind, Ask, Result]]) -> None:
        """Give the place back. After Ctrl-C in this thread, calls of others wait again."""
        with self._changed:
            self._places += 1
            self._waiting += [call for call in calls[1:] if not call.done]
            self._changed.notify_all()


def _answer(compute: Compute[Kind, Ask, Result], calls: Sequence[_Call[Kind, Ask, Result]]) -> None:
    """Set result or error of each call."""
    try:
        results = compute(calls[0].kind, [call.ask for call in calls])
        for call, result in zip(calls, results, strict=True):
            call.result = [result]
    except Exception as e:
        if len(calls) == 1:
            calls[0].error = e
            return
        for call in calls:  # one of them is the cause
            _answer(compute, [call])


class _Call(Generic[Kind, Ask, Result]):
    """One call, its result (a list of one) or its error."""

    def __init__(self, kind: Kind, ask: Ask) -> None:
        self.kind, self.ask = kind, ask
        self.result: list[Result] = []
        self.error: Exception | None = None

    @property
    def done(self) -> bool:
        return bool(self.result) or self.error is not None
