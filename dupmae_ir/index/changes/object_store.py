"""Index folders in object stores: pushed with the manifest last, pulled into the cache and checked.

    s3://bucket/I/meta.json      the manifest, written last: without it, an index is unfinished and never opened
    s3://bucket/I/segments/...   the files of the index, as in the folder
    s3://bucket/I/upload.json    size and sha256 of every object that is complete there and is not sent again

An object store has no rename and no locks. So nothing is built there: an index is made, and opened, in a folder on this
machine, ``CACHE/indexes/NAME-DIGEST/NAME`` (:func:`local_folder`). Every command resolves the name of an index with
:func:`local_index`, which returns that folder, up to date.

Sizes and digests are taken from the index's manifest, so a copy made by other tools is as good as one pushed here.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dupmae_ir.console import byte_bar
from dupmae_ir.errors import (
    DupmaeError,
    EnvironmentProblem,
    IndexMismatch,
    InputError,
    OutputError,
    UsageError,
)
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

if TYPE_CHECKING:
    from dupmae_ir.index.config import PushResult

UPLOAD = "upload.json"
AGAIN = "push the index again with `overwrite`, or restore the object from a backup"


def local_folder(remote: Remote) -> Path:
    """Where the index of a URL is built, and where its copy is kept, on this machine."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", remote.name).lstrip(".") or "index"
    # Indexes of equal names in different buckets must not share a folder.
    url_digest = hashlib.sha256(remote.url.encode()).hexdigest()[:12]
    return cache_folder() / "indexes" / f"{name}-{url_digest}" / name


class Output:
    """The index that a command makes: a folder, or a URL. For a URL, :attr:`target` is the copy in the cache.

    :meth:`prepare` makes that copy agree with what the URL has, so the command sees whether its work is done;
    :meth:`publish` pushes it. Within :meth:`named`, errors name the URL.
    """

    def __init__(self, index: str, *, overwrite: bool, quiet: bool) -> None:
        self.overwrite = overwrite
        self.quiet = quiet
        self.remote: Remote | None = None
        self.target = index
        if is_url(index):
            self.remote = Remote(index)
            self.target = str(local_folder(self.remote))

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

    Raises as :func:`pull`. With ``DUPMAE_IR_OFFLINE=1`` the copy is used as it is.
    """
    if not is_url(path):
        return Path(path)
    remote = Remote(str(path))
    folder = local_folder(remote)
    variable = offline_by()
    if variable:
        if not (folder / META).is_file():
            raise EnvironmentProblem(
                f"{remote}: is not in the cache ({folder}), and {variable} is set"
            )
        return folder
    pull(remote, folder)
    return folder


def need_folder(path: str | Path, command: str) -> None:
    """Raise :class:`UsageError` for a URL: ``command`` changes an index, which is possible only in a folder."""
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

    Objects that are complete there are not sent again, unless with ``overwrite``. The manifest is sent last, so the
    index appears in one step. A later generation of the same index (after ``index add``, ``postings``, ...) replaces
    the older one in one step, too, if no object changes; otherwise the older manifest is removed first. A push that was
    killed is continued by the next.

    Raises :class:`UsageError` if the URL has another index, or a later generation, and ``overwrite`` is not set,
    :class:`IndexMismatch` for a damaged folder, :class:`EnvironmentProblem`, naming the object, if the store does not
    answer.
    """
    folder = Path(folder)
    if record:
        index = Manifest.of(record)
        raw = json.dumps(record).encode()
    else:
        index = read_manifest(folder)
        raw = (folder / META).read_bytes()
    files = dict(index.files())
    uploaded = _prepare(remote, index, raw, files, overwrite)
    total = sum(file.bytes for file in files.values())
    sent = 0
    with byte_bar(f"pushing {remote.name}", total, quiet) as moved:
        for name, file in files.items():
            if uploaded.get(name) == file and (remote / name).size() == file.bytes:
                moved(file.bytes)
                continue
            path = folder / name
            problem = integrity.size_problem(path, file.bytes)
            if problem:
                raise IndexMismatch(f"{problem}; {integrity.AGAIN}")
            if (remote / name).send(path, moved) != file.sha256:
                raise IndexMismatch(
                    f"{path} is damaged: its sha256 is not the one that meta.json records; {integrity.AGAIN}"
                )
            # After each object, so that a killed push is continued from there.
            uploaded[name] = file
            (remote / UPLOAD).write_json({"files": uploaded})
            sent += 1
    # Last: until now readers see no index, or the older one.
    (remote / META).write(raw)
    # Objects of an older index are removed only now that no manifest names them.
    superseded = [name for name in uploaded if name not in files]
    if superseded:
        for name in superseded:
            (remote / name).remove()
        (remote / UPLOAD).write_json({"files": files})
    return {
        "index": str(folder),
        "to": str(remote),
        "files": len(files),
        "sent_now": sent,
        "bytes": total + len(raw),
        "digest": index.digest,
    }


def _prepare(
    remote: Remote, index: Manifest, raw: bytes, files: Mapping[str, FileRecord], overwrite: bool
) -> dict[str, FileRecord]:
    """Remove a manifest that this upload replaces. Returns the files that are already at the URL and may stay."""
    remote_raw = (remote / META).read()
    uploaded = _uploaded(remote)
    if remote_raw is None:
        return uploaded
    if not overwrite and remote_raw != raw and not _follows(index, json_object(remote_raw)):
        raise UsageError(
            f"{remote} already has another index; pass `overwrite` to replace it, or name another URL"
        )
    # The old manifest may not stay while objects that it describes change: a reader would take them for damaged.
    changes = any(uploaded.get(name, file) != file for name, file in files.items())
    if overwrite or changes:
        (remote / META).remove()
    if overwrite:
        uploaded = {}
        (remote / UPLOAD).write_json({"files": uploaded})
    return uploaded


def _follows(index: Manifest, older: Meta) -> bool:
    """Whether ``index`` is the index of the manifest ``older`` after changes, or with other optional parts."""
    if manifest.meta_problem(older):
        return False
    if bool(older["segments"]) != bool(index.segments):  # one is a record, the other an index
        return False
    if index.generation == older["generation"]:
        return bool(index.digest == older["digest"])
    same_origin = index.meta.get("origin") == older.get("origin")
    return bool(index.generation > older["generation"] and same_origin)


def pull(remote: Remote, folder: Path, *, quiet: bool = False) -> bool:
    """Make ``folder`` a copy of the index of a URL; False if it is one already, by its manifest.

    Every byte is compared with the digests in the manifest before the copy appears, complete or not at all. Files of an
    older copy are used again, and an interrupted pull is continued. Readers of the older copy keep it.

    Raises :class:`InputError` if there is no finished index, :class:`IndexMismatch`, naming it, for an object that is
    damaged, :class:`OutputError` for a full disk.
    """
    raw = (remote / META).read()
    if raw is None:
        problem = "no meta.json"
        if _uploaded(remote):
            problem = "its upload has not ended: run the command that began it again"
        raise InputError(f"{remote} is not a finished index ({problem})")
    if _is_copy(folder, raw):
        return False
    meta = dict(json_object(raw))
    meta_problem = manifest.meta_problem(meta)
    if meta_problem:
        raise IndexMismatch(f"{remote / META} {meta_problem}; {AGAIN}")
    index = Manifest.of(meta)
    with exclusive(lock_path(folder), f"pulling {remote} into {folder}", wait=True, quiet=quiet):
        if _is_copy(folder, raw):
            return False  # another process pulled it while this one waited
        if not index.segments:  # a record is only a manifest
            folder.mkdir(parents=True, exist_ok=True)
            _write_meta(folder, raw)
            return True
        received = folder.with_name(f".{folder.name}.received")
        try:
            _fetch_all(remote, index, folder, received, quiet)
        except DupmaeError as e:
            raise type(e)(str(e).replace(str(received), str(remote))) from None
        if (folder / META).is_file():
            _update_copy(folder, received, index, raw)
        else:
            # The first copy appears by one rename, with its manifest.
            _write_meta(received, raw)
            sweep_segments(received, index)
            move_into_place(received, folder)
    return True


def _update_copy(folder: Path, received: Path, index: Manifest, raw: bytes) -> None:
    """Add the received files to an older copy, which stays a complete index at every moment.

    First the files, which nothing reads until a manifest names them. Then, once they are on the disk, the manifest.
    The files of the older generation are removed last.
    """
    for name, _ in index.files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (received / name).exists():
            (received / name).replace(folder / name)
    fsync_tree(folder / manifest.SEGMENTS)
    _write_meta(folder, raw)
    shutil.rmtree(received, ignore_errors=True)
    sweep_segments(folder, index)


def _write_meta(folder: Path, raw: bytes) -> None:
    """Write the manifest byte for byte as it is at the URL: :func:`is_copy` compares the bytes."""
    with atomic_write(folder / META, "wb") as f:
        f.write(raw)


def is_copy(remote: Remote, folder: Path) -> bool:
    """Whether ``folder`` has the manifest of the index of a URL."""
    raw = (remote / META).read()
    return raw is not None and _is_copy(folder, raw)


def _uploaded(remote: Remote) -> dict[str, FileRecord]:
    """The objects that are complete at the URL, by the record of uploads; empty without a readable record."""
    files = json_object((remote / UPLOAD).read()).get("files")
    if not isinstance(files, dict):
        return {}
    uploaded = {}
    for name, values in files.items():
        if isinstance(values, list) and len(values) == 2:
            uploaded[str(name)] = FileRecord(*values)
    return uploaded


def _is_copy(folder: Path, raw: bytes) -> bool:
    try:
        return (folder / META).read_bytes() == raw
    except OSError:
        return False


def _fetch_all(remote: Remote, index: Manifest, folder: Path, received: Path, quiet: bool) -> None:
    """Receive every file that ``folder`` does not have already."""
    files = dict(index.files())
    total = sum(record.bytes for record in files.values())
    with byte_bar(f"pulling {remote.name}", total, quiet) as moved:
        for name, record in files.items():
            target = received / name
            older = folder / name
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


def _fetch(source: Remote, target: Path, record: FileRecord, moved: Moved) -> None:
    """Receive one file, continuing an interrupted transfer, and compare it with its record."""
    size = target.stat().st_size if target.exists() else 0
    if size > record.bytes:
        target.unlink()
    elif size and size == record.bytes:
        if sha256_file(target) == record.sha256:
            moved(size)
            return
        target.unlink()
    continued = target.exists()
    received = _receive(source, target, moved)
    if continued and received != record:
        # The beginning may belong to an older version of the object: receive all of it once more.
        target.unlink()
        received = _receive(source, target, moved)
    if received != record:
        target.unlink()
        problem = "its sha256 is not the one that meta.json records"
        if received.bytes != record.bytes:
            problem = f"{received.bytes:,} bytes, expected {record.bytes:,}"
        raise IndexMismatch(f"{source} is damaged: {problem}; {AGAIN}")


def _receive(source: Remote, target: Path, moved: Moved) -> FileRecord:
    """Receive a file from where ``target`` ends. Returns its size and sha256."""
    try:
        digest = source.fetch(target, moved)
    except FileNotFoundError:
        raise IndexMismatch(f"{source} is missing; {AGAIN}") from None
    return FileRecord(target.stat().st_size, digest)
