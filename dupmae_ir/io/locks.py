"""Exclusive locks on outputs. The kernel releases a lock when its process ends, however that happens.

Without ``fcntl``, on Windows, the package filelock takes its place, and errors do not name the process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dupmae_ir.console import say
from dupmae_ir.errors import UsageError

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]


@contextmanager
def exclusive(
    path: str | Path, what: str, *, wait: bool = False, quiet: bool = True
) -> Iterator[None]:
    """Hold the lock file ``path``, or raise :class:`UsageError` that names the process that does.

    ``what`` describes the holder's work in the error ("running encode into I"). With ``wait``, wait for the lock
    instead, and log it unless ``quiet``. The file is removed afterwards; a killed process leaves it behind, unlocked.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        with _portable(path, what, wait, quiet):
            yield
        return
    try:
        fd = _acquire(path, what, wait=False)
    except UsageError as busy:
        if not wait:
            raise
        say(f"{busy}; waiting", quiet)
        fd = _acquire(path, what, wait=True)
    try:
        os.truncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(fd)


def lock_path(target: str | Path) -> Path:
    """The lock file of an output: hidden, beside it."""
    return Path(target).with_name(f".{Path(target).name}.lock")


def remove_stale(path: str | Path) -> None:
    """Remove the lock file that a killed process left behind; one that a process holds stays."""
    if Path(path).exists():
        with suppress(UsageError), exclusive(path, ""):
            pass


@contextmanager
def _portable(path: Path, what: str, wait: bool, quiet: bool) -> Iterator[None]:
    """:func:`exclusive` by filelock."""
    from filelock import FileLock, Timeout  # only here: it imports asyncio

    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        busy = UsageError(f"another process is {what}; wait until it is done, or stop it")
        if not wait:
            raise busy from None
        say(f"{busy}; waiting", quiet)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
        with suppress(OSError):  # Windows keeps a file that is open, also in the next process
            path.unlink(missing_ok=True)


def _acquire(path: Path, what: str, wait: bool) -> int:
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            holder = os.read(fd, 32).decode(errors="replace").strip()
            os.close(fd)
            by = f"process {holder}" if holder else "another process"
            raise UsageError(f"{by} is {what}; wait until it is done, or stop it") from None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(fd), path.stat()):
                return fd
        # The former holder removed the file between our open and our lock: lock the new one.
        os.close(fd)
