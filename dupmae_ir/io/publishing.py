"""Atomic outputs: write to a temporary name, fsync, rename; and recovery after a kill in between.

Also the helpers for JSON files and digests of files that all rooms share.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from dupmae_ir.errors import OutputError


@contextmanager
def atomic_write(path: str | Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary file beside ``path`` for writing; it replaces ``path`` on success and is removed on failure.

    Temporary files of ``path`` that killed processes left are removed first. Raises :class:`OutputError` for a folder.
    """
    path = Path(path)
    if path.is_dir():
        raise OutputError(f"{path} is a folder; name a file to write")
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        encoding, newline = (None, None) if "b" in mode else ("utf-8", "\n")
        with open(aside, mode, encoding=encoding, newline=newline) as f:
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


def move_into_place(aside: str | Path, target: str | Path) -> None:
    """Move ``aside``, a file or folder on the same file system, to ``target``, durably.

    An older folder is moved away first and removed afterwards; :func:`recover` restores it after a kill in between.
    """
    aside = Path(aside)
    target = Path(target)
    if aside.is_dir():
        fsync_tree(aside)
        old = target.with_name(f".{target.name}.{os.getpid()}.old")
        if target.exists():
            target.replace(old)
        aside.replace(target)
        fsync_folder(target.parent)
        shutil.rmtree(old, ignore_errors=True)
    else:
        _fsync_file(aside)
        aside.replace(target)
        fsync_folder(target.parent)


def recover(target: str | Path) -> None:
    """Recover from a kill inside :func:`move_into_place`: restore the old folder, or remove it if the new one is in
    place. The caller holds the lock of ``target``."""
    target = Path(target)
    for old in _aside(target, "old"):
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.replace(target)


def sweep(target: str | Path) -> None:
    """Remove the temporary files of ``target`` whose processes have ended."""
    for aside in _aside(Path(target), "tmp"):
        if not _alive(int(aside.name.split(".")[-2])):
            aside.unlink(missing_ok=True)


def _aside(target: Path, kind: str) -> list[Path]:
    """``.NAME.PID.KIND`` beside ``target``."""
    ours = re.compile(rf"\.{re.escape(target.name)}\.\d+\.{kind}")
    try:
        return [
            target.with_name(e.name) for e in os.scandir(target.parent) if ours.fullmatch(e.name)
        ]
    except OSError:
        return []


def _alive(pid: int) -> bool:
    if os.name == "nt":
        return True  # unknown: on Windows os.kill ends the process, whatever the signal
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # it belongs to another user
    return True


def fsync_tree(folder: Path) -> None:
    """Write every file below ``folder`` to the disk."""
    for root, _, files in os.walk(folder):
        for name in files:
            _fsync_file(Path(root) / name)
        fsync_folder(Path(root))


def _fsync_file(path: Path) -> None:
    fd = os.open(
        path, os.O_RDWR if os.name == "nt" else os.O_RDONLY
    )  # Windows syncs what may be written
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fsync_folder(folder: Path) -> None:
    """Write a folder's entries to the disk, which makes a rename durable; a no-op on Windows, which opens no folder."""
    with suppress(PermissionError):
        _fsync_file(folder)


def read_json(path: str | Path) -> Any:
    """The JSON value in a file; None if there is no such file, or it cannot be read."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def read_json_object(path: str | Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is none."""
    value = read_json(path)
    return value if isinstance(value, dict) else {}


def sha256_file(path: str | Path, block_bytes: int = 1 << 18) -> str:
    """Hex digest of a file's bytes, read in blocks of ``block_bytes``. Python's lock is needed between them only."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as f:
        while block := f.read(block_bytes):
            digest.update(block)
    return digest.hexdigest()


def bytes_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    return sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())


def combined_digest(digests: Iterable[str]) -> str:
    """One hex digest for several digests in order; that of a single file is its own."""
    several = list(digests)
    return (
        several[0] if len(several) == 1 else hashlib.sha256("\n".join(several).encode()).hexdigest()
    )


def disk_full(error: BaseException, where: Path) -> OutputError | None:
    """The error for a full disk, also when faiss or Lucene raised it; None for any other error."""
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
    """Turn the error of a full disk into that of :func:`disk_full`."""
    try:
        yield
    except OSError as e:
        full = disk_full(e, where)
        if full:
            raise full from e
        raise
