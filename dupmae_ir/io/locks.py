"""One writer at a time: a lock that the kernel releases with the process, however that ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dupmae_ir.console import say
from dupmae_ir.errors import UsageError


@contextmanager
def exclusive(path: str | Path, what: str, wait: bool = False) -> Iterator[None]:
    """Hold the lock file ``path`` or raise :class:`UsageError` at once; ``what`` says what its holder is doing.
    With ``wait`` stand in line instead.

    The file is removed afterwards; a kill leaves it behind, unlocked and harmless.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = _acquire(path, what, wait)
    try:
        os.truncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(fd)


def _acquire(path: Path, what: str, wait: bool) -> int:
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            holder = os.read(fd, 32).decode(errors="replace").strip()
            os.close(fd)
            by = f"process {holder}" if holder else "another process"
            raise UsageError(f"{by} is {what}; wait until it is done, or stop it") from None
        if _is_current(fd, path):
            return fd
        # The former holder removed the file between our open and our lock: lock the new one.
        os.close(fd)


def _is_current(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def in_line(path: Path, what: str, quiet: bool) -> Iterator[None]:
    """Hold the lock beside ``path``; stand in line for it, and say so."""
    lock = path.with_name(f".{path.name}.lock")
    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive(lock, what))
        except UsageError as busy:
            say(f"{busy} (waiting)", quiet)
            stack.enter_context(exclusive(lock, what, wait=True))
        yield
