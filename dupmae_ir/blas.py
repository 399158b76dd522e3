"""The number of threads of numpy's BLAS, which all threads of the process share."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadpoolctl import LibController, ThreadpoolController


@contextmanager
def blas_threads(threads: int) -> Iterator[None]:
    """Products of numpy take ``threads`` threads inside this context; without threadpoolctl, as many as ever.

    The number belongs to the whole process. While several threads are inside, the smallest of their numbers holds, and
    when the last has left, BLAS has as many threads as before the first. A BLAS that runs on OpenMP has a number for
    each thread.
    """
    _, of_threads = _libraries()
    _NUMBERS.add(threads)
    try:
        with nullcontext() if of_threads is None else of_threads.limit(limits=threads):
            yield
    finally:
        _NUMBERS.remove(threads)


class _Numbers:
    """The numbers wanted by all threads that are inside the context, and those from before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: list[int] = []
        self._before: list[int] = []

    def add(self, threads: int) -> None:
        """A thread has entered."""
        with self._lock:
            if not self._wanted:
                self._before = [library.get_num_threads() for library in _libraries()[0]]
            self._wanted.append(threads)
            self._set()

    def remove(self, threads: int) -> None:
        """A thread leaves, not always in the order of entering."""
        with self._lock:
            self._wanted.remove(threads)
            self._set()

    def _set(self) -> None:
        for library, before in zip(_libraries()[0], self._before, strict=True):
            # threadpoolctl 3.8 ignores all threads but the first to set a number, silently.
            release = getattr(library, "clear_controlling_thread", lambda **_: None)
            release(force=True)
            library.set_num_threads(min(self._wanted, default=before))
            release(force=True)


_NUMBERS = _Numbers()


@cache
def _libraries() -> tuple[Sequence[LibController], ThreadpoolController | None]:
    """(BLAS libraries with one number for the process, those with a number for each thread), of those that are loaded
    at the first call. Finding them takes a millisecond, as long as a query."""
    if importlib.util.find_spec("threadpoolctl") is None:
        return (), None
    from threadpoolctl import ThreadpoolController

    blas = ThreadpoolController().select(user_api="blas")
    of_threads = blas.select(threading_layer="openmp")
    return [one for one in blas.lib_controllers if one not in of_threads.lib_controllers], of_threads
