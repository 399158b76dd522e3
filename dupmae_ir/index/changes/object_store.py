"""Index folders in object stores: pushed with the manifest last, pulled into the cache and checked.

    s3://bucket/I/meta.json      the manifest, written last: without it, an index is unfinished and never opened
    s3://bucket/I/segments/...   the files of the index, as in the folder
    s3://bucket/I/upload.json    size and sha256 of every object that is complete there, and is not sent again

An object store has no rename and no locks. So nothing is built there: an index is made, and opened, in a folder on this
machine, ``CACHE/indexes/NAME-DIGEST/NAME`` (:func:`local_folder`), and every way of naming an index goes through
:func:`local_index`, which returns that folder, up to date.

Sizes and digests are those of the index's own manifest, so a copy made by other tools is as good as one pushed here.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dupmae_ir.console import byte_bar
from dupmae_ir.errors import (
    DupmaeError,
    EnvironmentProblem,
    IndexMismatch,
    InputError,
    OutputError,
    UsageError,
)
from dupmae_ir.index.config import PushResult
from dupmae_ir.index.format import integrity, manifest
from dupmae_ir.index.format.integrity import FileRecord
from dupmae_ir.index.format.manifest import META, Manifest, Meta, read_manifest
from dupmae_ir.index.format.segment import sweep_segments
from dupmae_ir.io.locks import exclusive, lock_path
from dupmae_ir.io.publishing import (
    atomic_write,
    disk_full,
    fsync_tree,
    move_into_place,
    sha256_file,
)
from dupmae_ir.io.transfer import Moved, Remote, cache_folder, is_url, json_object, offline_by

UPLOAD = "upload.json"
AGAIN = "push the index again with `overwrite`, or restore the object from a backup"


def local_folder(remote: Remote) -> Path:
    """Where the index of a URL is built, and where its copy is kept, on this machine."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", remote.name).lstrip(".") or "index"
    return (
        cache_folder()
        / "indexes"
        / f"{name}-{hashlib.sha256(remote.url.encode()).hexdigest()[:12]}"
        / name
    )


class Output:
    """The index that a command makes: a folder, or a URL, for which :attr:`target` is the copy in the cache.

    :meth:`prepare` makes that copy agree with what the URL has, so the command sees whether its work is done;
    :meth:`publish` pushes it. Within :meth:`named`, errors name the URL.
    """

    def __init__(self, index: str, *, overwrite: bool, quiet: bool) -> None:
        self.remote = Remote(index) if is_url(index) else None
        self.overwrite, self.quiet = overwrite, quiet
        self.target = str(local_folder(self.remote)) if self.remote else index

    @property
    def folder(self) -> Path:
        """The folder that the command makes."""
        return Path(self.target).absolute()

    @contextmanager
    def named(self) -> Iterator[None]:
        """Errors within name the URL instead of the copy in the cache."""
        try:
            yield
        except DupmaeError as e:
            if self.remote is None or self.target not in str(e):
                raise
            raise type(e)(str(e).replace(self.target, str(self.remote))) from None

    def prepare(self) -> None:
        """Pull a finished index that is at the URL, unless it is to be replaced."""
        if self.remote and not self.overwrite and (self.remote / META).read() is not None:
            pull(self.remote, self.folder, quiet=self.quiet)

    def publish(self, result: Mapping[str, object]) -> Mapping[str, object]:
        """Push the finished folder; returns the result of the command with the URL in the place of the folder."""
        if self.remote is None:
            return result
        push(self.folder, self.remote, overwrite=self.overwrite, quiet=self.quiet)
        return {**result, "index": str(self.remote), "folder": self.target}


def local_index(path: str | Path) -> Path:
    """The folder of an index: a path as it is, a URL as the folder that it was just pulled into.

    Raises what :func:`pull` raises. With ``DUPMAE_IR_OFFLINE=1`` the copy is used as it is.
    """
    if not is_url(path):
        return Path(path)
    remote = Remote(str(path))
    folder = local_folder(remote)
    if variable := offline_by():
        if not (folder / META).is_file():
            raise EnvironmentProblem(
                f"{remote}: is not in the cache ({folder}), and {variable} is set"
            )
        return folder
    pull(remote, folder)
    return folder


def need_folder(path: str | Path, command: str) -> None:
    """Raise :class:`UsageError` for a URL where a command changes an index, which it can in a folder only."""
    if is_url(path):
        shown = Remote(str(path))
        raise UsageError(
            f"{shown}: {command} needs a folder of this machine: copy the index with dupmae-ir index pull, change "
            "it, and copy it back with dupmae-ir index push"
        )


def push(
    folder: str | Path,
    remote: Remote,
    *,
    record: Meta | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> PushResult:
    """Copy a finished index folder, or its ``record`` alone, to a URL; returns how many files it has and how many were
    sent.

    Objects that are there whole are not sent again, unless with ``overwrite``. The manifest goes last, so the index
    appears at once. A later generation of the index that is there (after ``index add``, ``postings``, ...) replaces it
    at once, too, where no object changes; otherwise the older manifest is removed first. A push that was killed is
    continued by the next.

    Raises :class:`UsageError` where the URL has another index, or a later generation, and ``overwrite`` is not set,
    :class:`IndexMismatch` for a damaged folder, :class:`EnvironmentProblem`, naming the object, where the store does
    not answer.
    """
    folder = Path(folder)
    index = Manifest.of(record) if record else read_manifest(folder)
    wanted = dict(index.files())
    raw = json.dumps(record).encode() if record else (folder / META).read_bytes()
    uploaded = _prepare(remote, index, raw, wanted, overwrite)
    total = sum(stored.bytes for stored in wanted.values())
    sent = 0
    with byte_bar(f"pushing {remote.name}", total, quiet) as moved:
        for name, stored in wanted.items():
            if uploaded.get(name) == stored and (remote / name).size() == stored.bytes:
                moved(stored.bytes)
                continue
            path = folder / name
            if problem := integrity.size_problem(path, stored.bytes):
                raise IndexMismatch(f"{problem}; {integrity.AGAIN}")
            if (remote / name).send(path, moved) != stored.sha256:
                raise IndexMismatch(
                    f"{path} is damaged: its sha256 is not the one that meta.json records; {integrity.AGAIN}"
                )
            uploaded[name] = stored
            (remote / UPLOAD).write_json({"files": uploaded})
            sent += 1
    (remote / META).write(raw)
    if others := [name for name in uploaded if name not in wanted]:  # left over from an older index
        for name in others:
            (remote / name).remove()
        (remote / UPLOAD).write_json({"files": wanted})
    return {
        "index": str(folder),
        "to": str(remote),
        "files": len(wanted),
        "sent_now": sent,
        "bytes": total + len(raw),
        "digest": index.digest,
    }


def _prepare(
    remote: Remote, index: Manifest, raw: bytes, wanted: Mapping[str, FileRecord], overwrite: bool
) -> dict[str, FileRecord]:
    """Remove a manifest that this upload replaces. Returns the files that are already at the URL and may stay."""
    found, record = (remote / META).read(), _uploaded(remote)
    if found is None:
        return record
    # An index that follows is the one that was found, changed since, or with other optional parts.
    older = json_object(found)
    follows = (
        not manifest.meta_problem(older) and bool(older["segments"]) == bool(index.segments)
    ) and (
        index.digest == older["digest"]
        if index.generation == older["generation"]
        else index.generation > older["generation"]
        and index.meta.get("origin") == older.get("origin")
    )
    if not overwrite and found != raw and not follows:
        raise UsageError(
            f"{remote} already has another index; pass `overwrite` to replace it, or name another URL"
        )
    if overwrite or any(record.get(name, stored) != stored for name, stored in wanted.items()):
        (remote / META).remove()
    if overwrite:
        record = {}
        (remote / UPLOAD).write_json({"files": record})
    return record


def pull(remote: Remote, folder: Path, *, quiet: bool = False) -> bool:
    """Make ``folder`` a copy of the index of a URL; False where it is one already, by its manifest.

    Every byte is compared with the digests in the manifest before the copy appears, whole or not at all. Files of an
    older copy are used again, and what an interrupted pull received is continued. Readers of the older copy keep it.

    Raises :class:`InputError` where there is no finished index, :class:`IndexMismatch`, naming it, for an object that
    is damaged, :class:`OutputError` for a full disk.
    """
    raw = (remote / META).read()
    if raw is not None and _is_copy(folder, raw):
        return False
    if raw is None:
        begun = (
            "its upload has not ended: run the command that began it again"
            if _uploaded(remote)
            else "no meta.json"
        )
        raise InputError(f"{remote} is not a finished index ({begun})")
    meta = dict(json_object(raw))
    if problem := manifest.meta_problem(meta):
        raise IndexMismatch(f"{remote / META} {problem}; {AGAIN}")
    index = Manifest.of(meta)
    with exclusive(lock_path(folder), f"pulling {remote} into {folder}", wait=True, quiet=quiet):
        if _is_copy(folder, raw):
            return False  # another process pulled it while this one waited
        if not index.segments:  # a record is its manifest
            folder.mkdir(parents=True, exist_ok=True)
            _write(folder, raw)
            return True
        received = folder.with_name(f".{folder.name}.received")
        try:
            _fetch_all(remote, index, folder, received, quiet)
        except DupmaeError as e:
            raise type(e)(str(e).replace(str(received), str(remote))) from None
        if (folder / META).is_file():
            for name, _ in index.files():  # until the manifest names them, nobody reads them
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                if (received / name).exists():
                    (received / name).replace(folder / name)
            fsync_tree(folder / manifest.SEGMENTS)
            _write(folder, raw)
            shutil.rmtree(received, ignore_errors=True)
            sweep_segments(folder, index)
        else:
            _write(received, raw)
            sweep_segments(received, index)
            move_into_place(received, folder)
    return True


def _write(folder: Path, raw: bytes) -> None:
    with atomic_write(folder / META, "wb") as f:
        f.write(raw)


def is_copy(remote: Remote, folder: Path) -> bool:
    """Whether ``folder`` has the manifest of the index of a URL."""
    raw = (remote / META).read()
    return raw is not None and _is_copy(folder, raw)


def _uploaded(remote: Remote) -> dict[str, FileRecord]:
    """What the record of uploads says is there whole; empty without a readable record."""
    found = json_object((remote / UPLOAD).read()).get("files")
    rows = found.items() if isinstance(found, dict) else ()
    return {
        str(name): FileRecord(*row) for name, row in rows if isinstance(row, list) and len(row) == 2
    }


def _is_copy(folder: Path, raw: bytes) -> bool:
    try:
        return (folder / META).read_bytes() == raw
    except OSError:
        return False


def _fetch_all(remote: Remote, index: Manifest, folder: Path, received: Path, quiet: bool) -> None:
    """Receive every file that ``folder`` does not have already."""
    files = dict(index.files())
    with byte_bar(
        f"pulling {remote.name}", sum(record.bytes for record in files.values()), quiet
    ) as moved:
        for name, record in files.items():
            target, older = received / name, folder / name
            same_size = integrity.size_problem(older, record.bytes) is None
            if not target.exists() and same_size and sha256_file(older) == record.sha256:
                moved(record.bytes)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                _fetch(remote / name, target, record, moved)
            except OSError as e:
                if disk_full(e, received) is None:
                    raise
                raise OutputError(
                    f"{folder.parent}: the disk is full, at {remote / name}; what was received is kept: free some "
                    "space and run the same command again"
                ) from e


def _fetch(source: Remote, target: Path, stored: FileRecord, moved: Moved) -> None:
    """Receive one file and compare it with its record."""
    there = target.stat().st_size if target.exists() else 0
    if there > stored.bytes:
        target.unlink()
    elif there and there == stored.bytes:
        if sha256_file(target) == stored.sha256:
            moved(there)
            return
        target.unlink()
    continued = target.exists()
    found = _received(source, target, moved)
    if continued and found != stored:
        target.unlink()  # what it began with was of another version
        found = _received(source, target, moved)
    if found != stored:
        target.unlink()
        how = "its sha256 is not the one that meta.json records"
        if found.bytes != stored.bytes:
            how = f"{found.bytes:,} bytes, expected {stored.bytes:,}"
        raise IndexMismatch(f"{source} is damaged: {how}; {AGAIN}")


def _received(source: Remote, target: Path, moved: Moved) -> FileRecord:
    try:
        digest = source.fetch(target, moved)
    except FileNotFoundError:
        raise IndexMismatch(f"{source} is missing; {AGAIN}") from None
    return FileRecord(target.stat().st_size, digest)
