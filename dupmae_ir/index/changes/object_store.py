"""Index folders in object stores: pushed with the manifest last, pulled into the cache and checked.

    s3://bucket/I/meta.json      the manifest, written last: without it, an index is unfinished and never opened
    s3://bucket/I/cls/index ...  the files of the index, as in the folder
    s3://bucket/I/upload.json    size and sha256 of every object that is there whole; what it lists is not sent again

An object store has no rename and no locks. So nothing is built there: an index is made, and opened, in a folder on this
machine, ``CACHE/indexes/NAME-DIGEST/NAME`` (:func:`local_folder`), and every way of naming an index goes through
:func:`local_index`, which returns that folder, up to date.

Sizes and digests are those of the index's own manifests, so a copy made by other tools is as good as one pushed here.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from dupmae_ir.console import byte_bar
from dupmae_ir.errors import DupmaeError, EnvironmentProblem, IndexMismatch, InputError, OutputError, UsageError
from dupmae_ir.index.changes.generations import generation_of
from dupmae_ir.index.changes.places import generations_folder, remove_retired
from dupmae_ir.index.format import integrity, manifest
from dupmae_ir.index.format.manifest import META, Meta
from dupmae_ir.io.locks import exclusive, lock_path
from dupmae_ir.io.publishing import atomic_write, disk_full, exchange, move_into_place, sha256_file
from dupmae_ir.io.transfer import Moved, Remote, cache_folder, is_url, json_object, offline_by

UPLOAD = "upload.json"
AGAIN = "push the index again with --overwrite, or restore the object from a backup"


class Stored(NamedTuple):
    """Size in bytes and sha256 of a file, as a manifest records them."""

    bytes: int
    sha256: str


def local_folder(remote: Remote) -> Path:
    """Where the index of a URL is built, and where its copy is kept, on this machine."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", remote.name).lstrip(".") or "index"
    return cache_folder() / "indexes" / f"{name}-{hashlib.sha256(remote.url.encode()).hexdigest()[:12]}" / name


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

    def publish(self, result: dict[str, Any]) -> dict[str, Any]:
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
            raise EnvironmentProblem(f"{remote}: is not in the cache ({folder}), and {variable} is set")
        return folder
    pull(remote, folder)
    return folder


def need_folder(path: str | Path, command: str) -> None:
    """Raise :class:`UsageError` for a URL where a command changes an index, which it can in a folder only."""
    if is_url(path):
        shown = Remote(str(path))
        raise UsageError(
            f"{shown}: {command} needs a folder of this machine: dupmae-ir index pull {shown} --index I, change I, and "
            f"dupmae-ir index push I --to {shown}"
        )


def push(folder: str | Path, remote: Remote, *, overwrite: bool = False, quiet: bool = False) -> dict[str, Any]:
    """Copy a finished index folder to a URL and return how many files it has and how many were sent.

    Objects that are there whole are not sent again, unless with ``overwrite``. The manifest goes last, so the index
    appears at once. A later generation of the index that is there (after ``index add``, ``postings``, ...) replaces it
    at once, too, where no object changes; otherwise the older manifest is removed first. A push that was killed is
    continued by the next.

    Raises :class:`UsageError` where the URL has another index, or a later generation, and ``overwrite`` is not set,
    :class:`IndexMismatch` for a damaged folder, :class:`EnvironmentProblem`, naming the object, where the store does
    not answer.
    """
    folder = Path(folder)
    meta = manifest.read_meta(folder)
    wanted = {name: stored or _described(folder / name) for name, stored in files_of(folder, meta)}
    raw = (folder / META).read_bytes()
    record = _prepared(remote, meta, raw, wanted, overwrite)
    total = sum(stored.bytes for stored in wanted.values())
    sent = 0
    with byte_bar(f"pushing {remote.name}", total, quiet) as bar:
        counted = _Counted(bar)
        for name, stored in wanted.items():
            if record.get(name) == stored and (remote / name).size() == stored.bytes:
                counted(stored.bytes)
                continue
            _send(folder / name, remote / name, stored, counted)
            record[name] = stored
            _write_record(remote, record)
            sent += 1
    (remote / META).write(raw)
    _remove_others(remote, record, wanted)
    return {"to": str(remote), "files": len(wanted), "sent_now": sent, "bytes": total, "digest": meta["digest"]}


def _prepared(
    remote: Remote, meta: Meta, raw: bytes, wanted: Mapping[str, Stored], overwrite: bool
) -> dict[str, Stored]:
    """The record of what is at the URL already and may stay, once nothing there can be mistaken for this index."""
    found, record = (remote / META).read(), _uploaded(remote)
    if found is None:
        return record
    if not overwrite and found != raw and not _follows(meta, json_object(found)):
        raise UsageError(f"{remote} already has another index; pass --overwrite to replace it, or name another URL")
    if overwrite or any(record.get(name, stored) != stored for name, stored in wanted.items()):
        (remote / META).remove()
    if overwrite:
        record = {}
        _write_record(remote, record)
    return record


def _follows(meta: Meta, found: dict[str, Any]) -> bool:
    """Whether an index is the one that was ``found``, changed since, or with other optional parts."""
    if found.get("digest") != meta["digest"]:
        return False
    mine, theirs = generation_of(meta), generation_of(found)
    return mine.number > theirs.number or (mine.number, mine.digest) == (theirs.number, theirs.digest)


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
        begun = "its upload has not ended: run the command that began it again" if _uploaded(remote) else "no meta.json"
        raise InputError(f"{remote} is not a finished index ({begun})")
    meta = _checked(remote, raw)
    with exclusive(lock_path(folder), f"pulling {remote} into {folder}", wait=True, quiet=quiet):
        if _is_copy(folder, raw):
            return False  # another process pulled it while this one waited
        made = _begun(folder, meta)
        try:
            _fetch_all(remote, meta, folder, made, quiet)
        except DupmaeError as e:
            raise type(e)(str(e).replace(str(made), str(remote))) from None
        with atomic_write(made / META, "wb") as f:
            f.write(raw)
        if folder.exists():
            exchange(made, folder)
        else:
            move_into_place(made, folder)
        remove_retired(folder)
    return True


def is_copy(remote: Remote, folder: Path) -> bool:
    """Whether ``folder`` has the manifest of the index of a URL."""
    raw = (remote / META).read()
    return raw is not None and _is_copy(folder, raw)


def files_of(folder: Path, meta: Meta) -> Iterator[tuple[str, Stored | None]]:
    """(name, size and sha256) of every file of an index but its own ``meta.json``. None for the ``meta.json`` of a
    further segment, which has a digest of itself, and is read from ``folder`` after it was yielded.

    Raises :class:`IndexMismatch` for an index without records of its files, and for records that no index has.
    """
    if not manifest.is_sealed(meta):
        raise IndexMismatch(f"{folder} does not record its files; record them with: dupmae-ir index seal {folder}")
    generation = generation_of(meta)
    records = dict(meta["files"])
    if deleted := generation.deleted:
        records[deleted.path] = {"bytes": deleted.bytes, "sha256": deleted.sha256}
    for name, record in records.items():
        yield _safe(folder, name), _stored(folder, record)
    for segment in generation.segments:
        yield _safe(folder, f"{segment.path}/{META}"), None
        inner = folder / segment.path
        for name, stored in files_of(inner, manifest.read_meta(inner)):
            yield f"{segment.path}/{name}", stored


def _safe(folder: Path, name: str) -> str:
    """The name. Raises :class:`IndexMismatch` for one that does not stay inside the folder."""
    if name.startswith("/") or set(name.split("/")) & {"", ".", ".."} or "\\" in name or "\0" in name:
        raise IndexMismatch(f"{folder / META}: records a file outside the index, {name!r}; do not trust this index")
    return name


def _stored(folder: Path, record: Mapping[str, object]) -> Stored:
    size, digest = record.get("bytes"), record.get("sha256")
    if not isinstance(size, int) or not isinstance(digest, str):
        raise IndexMismatch(f"{folder / META}: the records of files cannot be read; {AGAIN}")
    return Stored(size, digest)


def _described(path: Path) -> Stored:
    return Stored(path.stat().st_size, sha256_file(path))


class _Counted:
    """Passes a sum of bytes on to a bar."""

    def __init__(self, bar: Callable[[int], None]) -> None:
        self._bar, self._done = bar, 0

    def __call__(self, count: int) -> None:
        self._done += count
        self._bar(self._done)


def _uploaded(remote: Remote) -> dict[str, Stored]:
    """What the record of uploads says is there whole; empty without a readable record."""
    found = json_object((remote / UPLOAD).read()).get("files")
    rows = found.items() if isinstance(found, dict) else ()
    return {str(name): Stored(*row) for name, row in rows if isinstance(row, list) and len(row) == 2}


def _write_record(remote: Remote, record: Mapping[str, Stored]) -> None:
    (remote / UPLOAD).write_json({"files": record})


def _send(path: Path, to: Remote, stored: Stored, moved: Moved) -> None:
    if problem := integrity.size_problem(path, stored.bytes):
        raise IndexMismatch(f"{problem}; {integrity.AGAIN}")
    if to.send(path, moved) != stored.sha256:
        raise IndexMismatch(f"{path} is damaged: its sha256 is not the one that meta.json records; {integrity.AGAIN}")


def _remove_others(remote: Remote, record: Mapping[str, Stored], wanted: Mapping[str, Stored]) -> None:
    """Remove the objects of an older index that this one does not name."""
    others = [name for name in record if name not in wanted]
    for name in others:
        (remote / name).remove()
    if others:
        _write_record(remote, wanted)


def _is_copy(folder: Path, raw: bytes) -> bool:
    try:
        return (folder / META).read_bytes() == raw
    except OSError:
        return False


def _checked(remote: Remote, raw: bytes) -> Meta:
    """The manifest of a stored index. Raises :class:`IndexMismatch` for one that is damaged or records no files."""
    meta: Meta = dict(json_object(raw))
    known = meta.get("format") in manifest.FORMATS and manifest.is_sealed(meta)
    if known and manifest.manifest_digest(meta) == meta[manifest.SEAL]:
        return meta
    raise IndexMismatch(
        f"{remote / META} is damaged, of another version of dupmae_ir, or without the records of the index's files; "
        f"{AGAIN}"
    )


def _begun(folder: Path, meta: Meta) -> Path:
    """The folder in which this version of the index is received: new, or continued."""
    base = generations_folder(folder)
    names = (f"{meta[manifest.SEAL][:16]}{f'-{n}' if n else ''}" for n in itertools.count())
    # One with a manifest is an older copy, which a reader may still hold.
    made = next(base / name for name in names if not (base / name / META).exists())
    made.mkdir(parents=True, exist_ok=True)
    return made


def _fetch_all(remote: Remote, meta: Meta, older: Path, made: Path, quiet: bool) -> None:
    total = sum(record.get("bytes", 0) for record in meta["files"].values())
    with byte_bar(f"pulling {remote.name}", total, quiet) as bar:
        counted = _Counted(bar)
        for name, stored in files_of(made, meta):
            target = made / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if stored and not target.exists():
                _link(older / name, target, stored)
            try:
                _fetch(remote / name, target, stored, counted)
            except OSError as e:
                if disk_full(e, made) is None:
                    raise
                raise OutputError(
                    f"{older.parent}: the disk is full, at {remote / name}; what was received is kept: free some "
                    "space and run the same command again"
                ) from e


def _link(older: Path, target: Path, stored: Stored) -> None:
    """Use a file of an older copy, whose size agrees; its digest is compared like that of a received one."""
    with suppress(OSError):
        if older.stat().st_size == stored.bytes:
            os.link(older, target)


def _fetch(source: Remote, target: Path, stored: Stored | None, moved: Moved) -> None:
    """Receive one file and compare it with its record; one without a record is received again."""
    there = target.stat().st_size if target.exists() else 0
    if stored is None or there > stored.bytes:
        target.unlink(missing_ok=True)
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
    if stored is not None and found != stored:
        target.unlink()
        how = "its sha256 is not the one that meta.json records"
        if found.bytes != stored.bytes:
            how = f"{found.bytes:,} bytes, expected {stored.bytes:,}"
        raise IndexMismatch(f"{source} is damaged: {how}; {AGAIN}")


def _received(source: Remote, target: Path, moved: Moved) -> Stored:
    try:
        digest = source.fetch(target, moved)
    except FileNotFoundError:
        raise IndexMismatch(f"{source} is missing; {AGAIN}") from None
    return Stored(target.stat().st_size, digest)
