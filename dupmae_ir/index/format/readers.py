"""Who reads a segment: a reader holds a shared lock on its ``docid``, a file that no command changes.

A change that takes a segment out of an index leaves its folder until the last reader is gone; the next change removes
it (:func:`remove_unread`). The lock is the kernel's (``flock``), so it ends with the process that held it, however it
ends.
"""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack, suppress
from pathlib import Path

from dupmae_ir.index.format.manifest import SEGMENTS, Manifest, link_parts

try:
    import fcntl
except ImportError:  # Windows, where a file that is open cannot be removed anyway
    fcntl = None  # type: ignore[assignment]

LOCKED = "docid"
"""The file on which readers hold a shared lock."""


class Reader:
    """Keeps the folder of a segment from being removed, until the last reference to this object is gone.

    Raises :class:`FileNotFoundError` where the folder was removed. On a file system without locks nothing is held.
    """

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(folder / LOCKED, os.O_RDONLY)
        if fcntl is None:
            return
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH)
        except OSError:
            return
        # It may have been removed between our open and our lock.
        if not os.path.samestat(os.fstat(self._fd), (folder / LOCKED).stat()):
            raise FileNotFoundError(2, os.strerror(2), str(folder / LOCKED))

    def __del__(self) -> None:
        if (fd := getattr(self, "_fd", None)) is not None:
            os.close(fd)


def remove_unread(folder: Path) -> None:
    """Remove the folder of a segment unless somebody reads it. The caller holds the lock of the index."""
    with ExitStack() as locks:
        if fcntl is not None:
            with suppress(OSError):  # removed in part, or on a file system without locks, on which no reader holds one
                fd = os.open(folder / LOCKED, os.O_RDONLY)
                locks.callback(os.close, fd)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return
        shutil.rmtree(folder, ignore_errors=True)


def sweep_segments(index: Path, manifest: Manifest) -> None:
    """Let ``I/cls`` and ``I/ot`` name the first segment, and remove what the manifest does not name and nobody reads.

    The caller holds the lock of the index.
    """
    link_parts(index, manifest.segments[0], manifest.parts)
    named = {Path(segment.path).name for segment in manifest.segments}
    named |= {Path(manifest.deleted.path).name} if manifest.deleted else set()
    for path in (index / SEGMENTS).iterdir():
        if path.name not in named:
            remove_unread(path) if path.is_dir() else path.unlink()
