"""What processes that run for hours ask of the system: a service, and a watcher of a folder."""

from __future__ import annotations

import ctypes
import sys

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
