"""The manifest of an index, ``meta.json``: its segments, the size and sha256 of every file, and its own digest.

It is written last, so a folder without it is unfinished. Every change of an index replaces it in one step. An edited
manifest is refused, because its digest differs.

    "documents", "digest", ...    what the index has now; counts are sums over all segments
    "generation"                  how many changes were made since the index was encoded
    "segments"                    [{path, digest, documents, ..., files: {name: {bytes, sha256}}}], see SegmentRecord
    "deleted"                     {path, rows, bytes, sha256} of the list of deleted rows, or null
    "encoder", "settings", ...    what made the index; "origin" is its first digest
    "record"                      in the record of an index, which has no segments: see :func:`record_of`
    "manifest_sha256"             the digest of all other values
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from dupmae_ir import __version__, pyserini
from dupmae_ir.errors import IndexMismatch, InputError, UsageError
from dupmae_ir.index.format import excerpts
from dupmae_ir.index.format.faiss import vectors_offset
from dupmae_ir.index.format.forward import FILES
from dupmae_ir.index.format.integrity import (
    AGAIN,
    EXCERPTS,
    FileRecord,
    Files,
    describe,
    names_of,
    part_of,
)
from dupmae_ir.index.format.quantisation import is_scale
from dupmae_ir.io.locks import exclusive, lock_path, remove_stale
from dupmae_ir.io.publishing import read_json_object, write_json

if TYPE_CHECKING:
    from hashlib import _Hash

    from dupmae_ir.types import EncoderOptions

META = "meta.json"
FORMAT = 4
SEGMENTS = "segments"
"""The folder of the segments and of the lists of deleted rows."""
OWN_DIGEST = "manifest_sha256"
SUMS = ("empty_documents", "postings", "sum_of_impacts", "clipped", "dropped", "truncated")
"""Counts of all segments, rows that were deleted since included."""
_NEEDED = (
    "documents",
    "parts",
    "dim",
    "scale",
    "postings",
    "digest",
    "generation",
    "segments",
    "deleted",
    OWN_DIGEST,
)
_OBJECTS = ("encoder", "versions", "settings", "shard", "config", "record")
"""Keys whose value, if there is one, is an object."""
_BLOCK = 1 << 22
"""Bytes read at a time for a digest."""

Meta = dict[str, Any]
"""The contents of ``meta.json``."""


class Losses(NamedTuple):
    """What an index does not have of its documents, in counts."""

    clipped: int = 0  #: weights above 255, stored as 255
    dropped: int = 0  #: weights that were rounded to 0
    truncated: int = 0  #: documents of which the model read the beginning alone


NO_LOSSES = Losses()


@dataclass(frozen=True)
class SegmentRecord:
    """A segment of an index."""

    path: str  #: its folder inside the index
    digest: str  #: its id, the digest of its contents
    documents: int
    empty_documents: int  #: documents without impacts
    postings: int
    sum_of_impacts: int
    clipped: int  #: weights that were above 255
    dropped: int  #: weights that were rounded to 0
    truncated: int  #: documents of which the model read the beginning alone
    lucene: bool  #: whether its impacts are in Lucene, too
    made_by: str  #: the command that made it
    files: Files  #: by name in its folder

    @property
    def losses(self) -> Losses:
        """What its parts do not have of its documents."""
        return Losses(self.clipped, self.dropped, self.truncated)

    def has(self, part: str) -> bool:
        """Whether files of ``part`` are recorded: ``excerpts``, ``texts``, ``postings``, ``cls/rotated``."""
        return any(part_of(name) == part for name in self.files)


@dataclass(frozen=True)
class DeletedRecord:
    """The list of deleted rows: its path inside the index, how many rows it has, its size and sha256."""

    path: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """``meta.json``, read and checked."""

    documents: int  #: without deleted documents
    parts: tuple[str, ...]
    dim: int | None
    scale: float | None
    digest: str  #: changes with every change of what a search finds; the segment's if there is one, without deletions
    generation: int
    segments: tuple[SegmentRecord, ...]
    deleted: DeletedRecord | None
    meta: Meta  #: the complete contents of the file

    @classmethod
    def of(cls, meta: Meta) -> Manifest:
        """The manifest with these contents. Raises :class:`IndexMismatch` for segments that cannot be read."""
        try:
            return cls(
                documents=meta["documents"],
                parts=tuple(meta["parts"]),
                dim=meta["dim"],
                scale=meta["scale"],
                digest=meta["digest"],
                generation=int(meta["generation"]),
                segments=tuple(_segment_record(segment) for segment in meta["segments"]),
                deleted=_deleted_record(meta["deleted"]),
                meta=meta,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise IndexMismatch(f"{META}: its segments cannot be read ({e}); {AGAIN}") from None

    @property
    def plain(self) -> bool:
        """Whether the index is one segment without deleted rows."""
        return len(self.segments) == 1 and self.deleted is None

    def files(self) -> Iterator[tuple[str, FileRecord]]:
        """(path inside the index, record) of every file but ``meta.json`` itself.

        Raises :class:`IndexMismatch` for a path that does not stay inside the index.
        """
        for segment in self.segments:
            for name, record in segment.files.items():
                yield _check_inside(f"{segment.path}/{name}"), record
        if self.deleted:
            file = FileRecord(self.deleted.bytes, self.deleted.sha256)
            yield _check_inside(self.deleted.path), file


def _segment_record(value: Mapping[str, Any]) -> SegmentRecord:
    files = {}
    for name, file in value["files"].items():
        files[name] = FileRecord(int(file["bytes"]), str(file["sha256"]))
    return SegmentRecord(**{**value, "files": files})


def _deleted_record(value: Mapping[str, Any] | None) -> DeletedRecord | None:
    if not value:
        return None
    return DeletedRecord(**value)


def _check_inside(name: str) -> str:
    """``name`` if it stays inside the index: a pulled manifest must not name any other file of this machine."""
    components = name.split("/")
    # An empty component also stands for a path that begins with /; a backslash separates folders on Windows.
    outside = any(component in ("", ".", "..") for component in components)
    if outside or "\\" in name or "\0" in name:
        raise IndexMismatch(
            f"{META} records a file outside the index, {name!r}; do not trust this index"
        )
    return name


def read_manifest(path: str | Path, record: bool = False) -> Manifest:
    """The manifest of an index folder; with ``record``, also of the record of an index.

    Raises as :func:`read_meta`, and :class:`UsageError` for a record without ``record``.
    """
    manifest = Manifest.of(read_meta(path))
    if not manifest.segments and not record:
        raise UsageError(
            f"{path} is the record of an index, to search it through a `server`; here, use the index"
        )
    return manifest


def read_meta(path: str | Path) -> Meta:
    """The contents of the ``meta.json`` of an index folder.

    Raises :class:`InputError` for a path that is not a finished index, is of another format, or has a damaged
    ``meta.json``.
    """
    path = Path(path)
    if not path.is_dir():
        raise InputError(f"{path}: no such index; make one with dupmae-ir encode")
    try:
        meta = json.loads((path / META).read_text(encoding="utf-8"))
    except FileNotFoundError:
        if any(path.glob("segments_*")):
            raise InputError(
                f"{path} is a Lucene index, as for BM25, not an index of encoded documents"
            ) from None
        raise InputError(
            f"{path} is not a finished index (no meta.json); run its encode command again"
        ) from None
    except (ValueError, RecursionError) as e:
        raise InputError(f"{path / META} cannot be read: {e}; {AGAIN}") from None
    if not isinstance(meta, dict) or "format" not in meta:
        raise InputError(f"{path / META} does not describe an index of this package")
    problem = meta_problem(meta)
    if problem:
        raise InputError(f"{path / META} {problem}; {AGAIN}")
    return meta


def recorded_options(meta: Meta) -> EncoderOptions:
    """The options that load the encoder of an index as it was, without device and dtype."""
    recorded = meta.get("encoder") or {}
    parts = tuple(meta["parts"])
    names = [
        "document_length",
        "query_length",
        "top_k",
        "title_separator",
        "dimensions",
        "fold_terms",
        "language",
    ]
    if "ot" in parts:
        names.append("activation")
    if "cls" in parts:
        names.append("normalize")
    options: dict[str, Any] = {name: recorded.get(name) for name in names}
    options["head"] = None
    if "ot" in parts and recorded.get("ot") == "lexical":
        options["head"] = "lexical"
    return cast("EncoderOptions", {**options, "parts": parts})


def meta_problem(meta: Meta) -> str | None:
    """Why these are not the contents of a ``meta.json`` of this version; None if they are."""
    if meta.get("format") != FORMAT:
        by = (meta.get("versions") or {}).get("dupmae_ir", "unknown")
        return f"has index format {meta.get('format')!r}, this dupmae_ir {__version__} reads {FORMAT} (written by {by})"
    missing = [key for key in _NEEDED if key not in meta]
    if missing:
        return f"lacks {', '.join(missing)}"
    problem = _value_problem(meta)
    if problem:
        return f"is not possible: {problem}"
    if manifest_digest(meta) != meta[OWN_DIGEST]:
        return "was edited or damaged after it was written (its digest differs)"
    return None


def _value_problem(meta: Meta) -> str | None:
    """A message about the first value that no index can have; None if all are possible."""
    parts = meta["parts"]
    if parts not in (["cls"], ["ot"], ["cls", "ot"]):
        return f'parts must be ["cls"], ["ot"] or ["cls", "ot"], got {parts!r}'
    for key in ("documents", *SUMS):
        if key in meta and not _is_count(meta[key]):
            return f"{key} must be a whole number of at least 0, got {meta[key]!r}"
    if "cls" in parts and not (_is_count(meta["dim"]) and meta["dim"]):
        return f"dim must be a whole number of at least 1, got {meta['dim']!r}"
    if "ot" in parts and not is_scale(meta["scale"]):
        return f"scale must be a positive number, got {meta['scale']!r}"
    if not isinstance(meta["digest"], str):
        return f"digest must be a string, got {meta['digest']!r}"
    for key in _OBJECTS:
        if meta.get(key) is not None and not isinstance(meta[key], dict):
            return f"{key} must be an object, got {meta[key]!r}"
    if not (isinstance(meta["segments"], list) and (meta["segments"] or meta.get("record"))):
        return f"segments must be a list of at least one, got {meta['segments']!r}"
    return None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def manifest_digest(meta: Mapping[str, Any]) -> str:
    """sha256 of all other values, whatever the order of keys and the white space of the file."""
    values = {key: value for key, value in meta.items() if key != OWN_DIGEST}
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def with_segments(
    meta: Mapping[str, object],
    segments: Sequence[SegmentRecord],
    deleted: DeletedRecord | None = None,
) -> Meta:
    """``meta`` with these segments and deleted rows, and the counts and digests that follow from them."""
    facts: Meta = {"format": FORMAT}
    for name in ("documents", *SUMS):
        facts[name] = sum(getattr(segment, name) for segment in segments)
    if deleted:
        facts["documents"] -= deleted.rows
    if len(segments) == 1 and deleted is None:
        # A compacted index has the digest of an index that was made at once.
        facts["digest"] = segments[0].digest
    else:
        digests = [segment.digest for segment in segments]
        digests.append(deleted.sha256 if deleted else "")
        facts["digest"] = hashlib.sha256(json.dumps(digests).encode()).hexdigest()
    facts["segments"] = [_segment_values(segment) for segment in segments]
    facts["deleted"] = dataclasses.asdict(deleted) if deleted else None

    # The order of the file: counts, what `meta` has, and the long values at the end.
    at_the_end = ("segments", "deleted", OWN_DIGEST)
    order = [key for key in (*facts, *meta) if key not in at_the_end]
    values = {**meta, **facts}
    ordered = {key: values[key] for key in (*order, "segments", "deleted")}
    # As JSON gives it back, so that the digest is the one that a reader computes.
    record: Meta = json.loads(json.dumps(ordered))
    return {**record, OWN_DIGEST: manifest_digest(record)}


def _segment_values(segment: SegmentRecord) -> Meta:
    files = {name: file._asdict() for name, file in segment.files.items()}
    return {**dataclasses.asdict(segment), "files": files}


def record_of(meta: Meta, **facts: object) -> Meta:
    """The manifest of the record of an index: what a search needs to know if a server has the rows.

    ``facts``: ``columns``, the names of the metadata, None for an index without texts; ``frequencies``, the document
    frequencies that a lexical encoder needs, compressed.
    """
    names = ("format", *_NEEDED, "encoder", "versions", "origin")
    record: Meta = {name: meta.get(name) for name in names}
    record |= {"segments": [], "deleted": None, "record": facts}
    return {**record, OWN_DIGEST: manifest_digest(record)}


def record_part(path: Path, segment: SegmentRecord, part: str) -> SegmentRecord | None:
    """Record the files of an optional part (``postings``, ``cls/rotated``) of a segment that was just put in place.

    Returns the new record; None if the index no longer has the segment.
    """
    # The manifest is read again under its lock: another process may have changed the index since it was opened.
    with changing(path):
        manifest = read_manifest(path)
        segments = {record.path: record for record in manifest.segments}
        current = segments.get(segment.path)
        if current is None or current.digest != segment.digest:
            return None
        folder = path / segment.path
        files = {name: record for name, record in current.files.items() if part_of(name) != part}
        files |= describe(folder, names_of(folder, part))
        changed = dataclasses.replace(current, files=files)
        segments[segment.path] = changed
        write_meta(path, with_segments(manifest.meta, list(segments.values()), manifest.deleted))
        return changed


def changing(path: Path) -> AbstractContextManager[None]:
    """Hold the lock of ``meta.json``, which is replaced within the block.

    The job that changes the index holds another lock, and this one only for the moment of the replacement.
    Building a part of a segment holds its own job's lock, not the index's, so both may replace the manifest.
    """
    return exclusive(lock_path(path / META), f"updating {path / META}", wait=True)


def sweep_lock(path: Path) -> None:
    """Remove the lock of ``meta.json`` that a killed process left inside the index."""
    remove_stale(lock_path(path / META))


def write_meta(folder: Path, meta: Mapping[str, Any]) -> None:
    """Write ``meta.json``, which makes ``folder`` a finished index."""
    write_json(folder / META, meta)


def link_parts(path: Path, segment: SegmentRecord, parts: Sequence[str]) -> bool:
    """Make ``I/cls`` and ``I/ot``, which stock Pyserini reads, links to the first segment, each replaced in one step.

    False if the system has no links: then these folders are only in the segment.
    """
    for part in parts:
        link = path / part
        destination = Path(segment.path, part)  # relative, so that the index can be moved
        if link.is_symlink() and link.readlink() == destination:
            continue
        if link.is_dir() and not link.is_symlink():
            shutil.rmtree(link)  # what a copy of the index made of the link
        # Under another name first: the rename replaces the old link in one step, which symlink cannot.
        new_link = path / f".{part}.link"
        try:
            new_link.unlink(missing_ok=True)
            new_link.symlink_to(destination, target_is_directory=True)
        except (OSError, NotImplementedError):
            return False
        new_link.replace(link)
    return True


def make_empty(folder: Path) -> None:
    """Create ``folder``. Raises :class:`UsageError` if it exists and is not an empty folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not an empty folder; an index is written into a fresh one")
    folder.mkdir(parents=True, exist_ok=True)


def check_target(target: Path) -> None:
    """Raise :class:`UsageError` if ``target`` is neither new, nor an empty folder, nor an index folder."""
    if target.exists() and not target.is_dir():
        raise UsageError(
            f"{target} is a file; `index` must name a folder, new or of an older index"
        )
    try:
        meta = read_json_object(target / META)
        is_index = {"format", "documents", "parts", "digest"} <= meta.keys()
        is_occupied = target.is_dir() and any(target.iterdir()) and not is_index
    except OSError:
        return  # not readable: reported where it is used
    if is_occupied:
        raise UsageError(
            f"{target}: a folder that is not an index; it was left unchanged, name another `index`"
        )


def content_digest(folder: str | Path, dim: int | None) -> str:
    """sha256 over ids, vectors, excerpts and impacts: equal exactly for equal content, whatever Lucene named its
    segments."""
    folder = Path(folder)
    digest = hashlib.sha256()
    _digest_file(digest, folder / "docid")
    if dim is not None:
        _digest_file(digest, folder / "cls" / "index", vectors_offset(dim))
    if (folder / EXCERPTS).is_dir():
        for name in excerpts.FILES:
            _digest_file(digest, folder / EXCERPTS / name)
    if (folder / "forward").is_dir():
        for name in FILES:
            _digest_file(digest, folder / "forward" / name)
        _digest_file(digest, folder / "terms.txt")
    return digest.hexdigest()


def versions(java: bool = False) -> dict[str, str | None]:
    """What could change an index: this package, Python and the libraries; with ``java`` also the JVM that runs."""
    from importlib import metadata  # only here: a search need not wait for it

    numbers: dict[str, str | None] = {"dupmae_ir": __version__, "python": platform.python_version()}
    for name in ("torch", "transformers", "faiss", "pyserini"):
        try:
            numbers[name] = metadata.version("faiss-cpu" if name == "faiss" else name)
        except metadata.PackageNotFoundError:
            numbers[name] = None
    numbers["java"] = pyserini.start_jvm().version if java else None
    return numbers


def _digest_file(digest: _Hash, path: Path, start: int = 0) -> None:
    """Add the length and the bytes from ``start`` on."""
    # With the length, bytes cannot move from the end of a file to the beginning of the next.
    digest.update((path.stat().st_size - start).to_bytes(8, "big"))
    with open(path, "rb") as f:
        f.seek(start)
        while block := f.read(_BLOCK):
            digest.update(block)
