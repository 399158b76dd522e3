"""Forward passes side by side, each on one thread.

Threads that share every product of one forward pass wait for each other after each of them. Where another program uses
a core, all wait for the thread that is not running. Batches of their own do not, and are computed by the same kernels
whatever the number of threads, so that results do not depend on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


def side_by_side(work: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """``work(item)`` for each item, in their order, on ``threads`` threads of which each is torch's only one.

    Few results wait at a time. An exception of ``work`` is raised in the place of its result. The number of threads
    that torch has outside is kept.
    """
    before, waiting, rest = torch.get_num_threads(), deque[Future[R]](), iter(items)
    try:
        with ThreadPoolExecutor(threads, "forward", torch.set_num_threads, (1,)) as pool:
            try:
                waiting.extend(pool.submit(work, item) for item in islice(rest, 2 * threads))
                while waiting:
                    yield waiting.popleft().result()
                    waiting.extend(pool.submit(work, item) for item in islice(rest, 1))
            finally:
                pool.shutdown(cancel_futures=True)
    finally:
        torch.set_num_threads(before)  # new threads would take the number of the workers
