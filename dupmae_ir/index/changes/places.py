"""Where an opened index is, also after ``index compact`` put another folder in its place.

Compaction exchanges the whole folder ``I`` for a new one. A reader that opened the old one keeps reading it: a
:class:`Place` holds a shared lock on the folder's ``docid``, a file that no command changes, and finds the folder again
by the inode of that file in ``.I.generations/``, where the exchange leaves it. :func:`remove_retired` deletes what no
reader holds.

The lock is the kernel's (``flock``), so it ends with the process that held it, however it ends.
"""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dupmae_ir.errors import UsageError

try:
    import fcntl
except ImportError:  # Windows, where a file that is open cannot be removed anyway
    fcntl = None  # type: ignore[assignment]

HELD = "docid"
"""The file on which readers hold a shared lock."""


def make_empty(folder: Path) -> None:
    """Create ``folder``. Raises :class:`UsageError` where it exists and is not an empty folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not an empty folder; an index is written into a fresh one")
    folder.mkdir(parents=True, exist_ok=True)


class Place:
    """The folder ``path``, held until the last reference to this object is gone.

    A folder without a readable ``docid``, or on a file system without locks, is not held, only located.
    """

    def __init__(self, path: str | Path) -> None:
        self.given = Path(path)
        self.held: tuple[int, int] | None = None
        while (fd := _shared(self.given / HELD)) is not None:
            found = os.fstat(fd)
            self.held = found.st_dev, found.st_ino
            if _inode(self.given / HELD) == self.held:
                weakref.finalize(self, os.close, fd)
                return
            os.close(fd)  # exchanged while it was being opened
        self.held = None

    @property
    def path(self) -> Path:
        """Where the folder is now."""
        if self.held is None or self.is_at(self.given):
            return self.given
        return next(filter(self.is_at, retired(self.given)), self.given)

    def is_at(self, path: Path) -> bool:
        """Whether ``path`` is this folder. The file is open, so no other one can get its inode."""
        return _inode(path / HELD) == self.held


_KNOWN: weakref.WeakValueDictionary[str, Place] = weakref.WeakValueDictionary()


def place_of(path: str | Path) -> Place:
    """The place of a folder. All who open the same folder share one, and with it one open file."""
    known = _KNOWN.get(str(path))
    if known is None or known.held is None or not known.is_at(known.given):
        known = _KNOWN[str(path)] = Place(path)
    return known


def generations_folder(index: str | Path) -> Path:
    """Where a compaction builds the new folder of ``index``, and where it leaves the old one."""
    real = Path(os.path.realpath(index))
    return real.with_name(f".{real.name}.generations")


def retired(index: str | Path) -> list[Path]:
    """Folders that a compaction left, or began."""
    with suppress(OSError):
        return sorted(generations_folder(index).iterdir())
    return []


def remove_retired(index: str | Path) -> int:
    """Remove the folders that no reader holds; returns how many are left. The caller holds the lock of ``index``."""
    left = 0
    for path in retired(index):
        with _alone(path / HELD) as free:
            if free:
                shutil.rmtree(path, ignore_errors=True)
            else:
                left += 1
    with suppress(OSError):
        generations_folder(index).rmdir()
    return left


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _shared(path: Path) -> int | None:
    """A descriptor of ``path`` with a shared lock; None where that is not possible."""
    if fcntl is None:
        return None
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
    except OSError:
        os.close(fd)
        return None
    return fd


@contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Lock ``path`` within the block. False if another process holds it; True for a file that is missing."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        yield True
        return
    try:
        yield _locked(fd)
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks, on which no reader holds one
    return True
