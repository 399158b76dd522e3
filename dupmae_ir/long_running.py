"""What processes that run for hours ask of the system: a service, and a watcher of a folder."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

try:
    import resource
except ImportError:  # Windows, which has no such limit
    resource = None  # type: ignore[assignment]

ENOUGH_FILES = 65_536


def allow_open_files() -> None:
    """Raise this process's limit of open files as far as it may without asking, to :data:`ENOUGH_FILES` at most.

    The usual 1,024 (256 on macOS) are for programs that wait with ``select``. Each large file of an index and each
    client is an open file, and an index is open twice while a new one takes its place.
    """
    if resource is None:
        return
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH_FILES if most == resource.RLIM_INFINITY else min(most, ENOUGH_FILES)
    if limit != resource.RLIM_INFINITY and limit < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def give_back_memory() -> None:
    """Give freed memory back to the system, where the C library keeps it: glibc's, on Linux.

    Encodings and exchanged indexes leave gaps: after 120 changes of a folder, 130 of a watcher's 730 MB were free.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(0)


def leave_out_of_collections() -> None:
    """Leave all that is there now out of later collections: see :func:`modules_left_out_of_collections`."""
    gc.collect()
    gc.freeze()


@contextmanager
def modules_left_out_of_collections() -> Iterator[None]:
    """Meanwhile, Python looks for cycles only among objects that are newer than the modules.

    A full collection, during which no thread runs, looks at every object: 110,000 of a service, and 140,000 of torch,
    take 70 ms each. After the first collection since an import, all that is left is taken to be permanent. It is still
    freed when nothing refers to it any more, but not if it is part of a cycle.
    """
    known = 0

    def freeze(phase: str, info: dict[str, int]) -> None:
        nonlocal known
        if phase == "stop" and info["generation"] == 2 and len(sys.modules) > known:
            known = len(sys.modules)
            gc.freeze()

    gc.callbacks.append(freeze)
    try:
        yield
    finally:
        gc.callbacks.remove(freeze)
        gc.unfreeze()
