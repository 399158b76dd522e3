"""Outputs appear whole or not at all: write aside, fsync, rename."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from dupmae_ir.errors import OutputError


@contextmanager
def atomic_write(path: str | Path, mode: str = "w", encoding: str | None = "utf-8") -> Iterator[IO[Any]]:
    """Open a neighbour of ``path`` for writing; on success it replaces ``path``, on failure it vanishes."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(aside, mode, encoding=None if "b" in mode else encoding, newline=None if "b" in mode else "\n") as f:
            yield f
            f.flush()
            os.fsync(f.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def write_json(path: str | Path, value: Any) -> None:
    """Atomic, indented, UTF-8, keys in the order given."""
    with atomic_write(path) as f:
        json.dump(value, f, indent=2, ensure_ascii=False)
        f.write("\n")


def replace_folder(aside: str | Path, target: str | Path) -> None:
    """Make ``aside`` take the place of ``target``. An older ``target`` is moved away first and then removed,
    so a kill in between leaves one of the two whole."""
    aside, target = Path(aside), Path(target)
    fsync_tree(aside)
    old = target.with_name(f".{target.name}.{os.getpid()}.old")
    if target.exists():
        target.replace(old)
    aside.replace(target)
    fsync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def fsync_tree(folder: Path) -> None:
    """Every file below ``folder`` to the disk."""
    for root, _, files in os.walk(folder):
        for name in files:
            fd = os.open(Path(root) / name, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        fsync_folder(Path(root))


def fsync_folder(folder: Path) -> None:
    """A rename is durable only when its folder is; a no-op where folders cannot be opened (Windows)."""
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sha256_file(path: str | Path) -> str:
    """Hex digest of a file's bytes, read in blocks."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def disk_full(error: BaseException, where: Path) -> OutputError | None:
    """The one line for a full disk, however deep in faiss or Lucene it was met; None for any other error."""
    seen: BaseException | None = error
    while seen is not None:
        no_space = isinstance(seen, OSError) and seen.errno in (errno.ENOSPC, errno.EDQUOT)
        if no_space or "No space left on device" in str(seen) or "Disk quota exceeded" in str(seen):
            return OutputError(
                f"{where}: the disk is full; nothing is lost: free some space and run the same command again"
            )
        seen = seen.__cause__ or seen.__context__
    return None


@contextmanager
def disk_full_is_one_line(where: Path) -> Iterator[None]:
    """A full disk, met by anything in here, becomes :func:`disk_full`'s error."""
    try:
        yield
    except OSError as e:
        if full := disk_full(e, where):
            raise full from e
        raise
