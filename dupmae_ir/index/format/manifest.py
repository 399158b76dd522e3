"""The manifest of an index, ``meta.json``: its segments, the size and sha256 of every file, and its own digest.

It is written last, so a folder without it is unfinished, and replaced in one step, which is what every change of an
index is. An edited one is refused, because its digest differs.

    "documents", "digest", ...    what the index has now; the counts are those of all segments
    "generation"                  how many changes were made since the index was encoded
    "segments"                    [{path, digest, documents, ..., files: {name: {bytes, sha256}}}], see SegmentRecord
    "deleted"                     {path, rows, bytes, sha256} of the list of deleted rows, or null
    "encoder", "settings", ...    what made the index; "origin" is its first digest
    "record"                      in the record of an index, which has no segments: see :func:`record_of`
    "manifest_sha256"             the digest of all of these
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dupmae_ir import __version__, pyserini
from dupmae_ir.errors import IndexMismatch, InputError, UsageError
from dupmae_ir.index.format.faiss import vectors_offset
from dupmae_ir.index.format.forward import FILES
from dupmae_ir.index.format.integrity import AGAIN, FileRecord, Files, describe, names_of, part_of
from dupmae_ir.index.format.quantisation import is_scale
from dupmae_ir.io.locks import exclusive, lock_path, remove_stale
from dupmae_ir.io.publishing import read_json_object, write_json

if TYPE_CHECKING:
    from hashlib import _Hash

    from dupmae_ir.types import EncoderOptions

META = "meta.json"
FORMAT = 3
SEGMENTS = "segments"
"""The folder of the segments and of the lists of deleted rows."""
OWN_DIGEST = "manifest_sha256"
SUMS = ("empty_documents", "postings", "sum_of_impacts", "clipped", "dropped")
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
_RECORDS = ("encoder", "versions", "settings", "shard", "config", "record")
_BLOCK = 1 << 22

Meta = dict[str, Any]
"""The contents of ``meta.json``."""


@dataclass(frozen=True)
class SegmentRecord:
    """A segment: its folder inside the index, its index id (the digest of its contents), its counts, its files by name
    in that folder, and the command that made it. ``lucene``: whether its impacts are in Lucene, too."""

    path: str
    digest: str
    documents: int
    empty_documents: int
    postings: int
    sum_of_impacts: int
    clipped: int
    dropped: int
    lucene: bool
    made_by: str
    files: Files

    def has(self, part: str) -> bool:
        """Whether files of ``part`` are recorded: ``texts``, ``postings``, ``cls/rotated``."""
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
    """``meta.json``, read and checked. ``documents`` are those that are not deleted. ``digest`` changes with every
    change of what is found; it is that of the segment for an index of one without deleted rows.
    """

    documents: int
    parts: tuple[str, ...]
    dim: int | None
    scale: float | None
    digest: str
    generation: int
    segments: tuple[SegmentRecord, ...]
    deleted: DeletedRecord | None
    meta: Meta  #: all of it, as in the file

    @classmethod
    def of(cls, meta: Meta) -> Manifest:
        """The manifest with these contents. Raises :class:`IndexMismatch` for segments that cannot be read."""
        try:
            return cls(
                meta["documents"],
                tuple(meta["parts"]),
                meta["dim"],
                meta["scale"],
                meta["digest"],
                int(meta["generation"]),
                tuple(_segment_record(segment) for segment in meta["segments"]),
                DeletedRecord(**meta["deleted"]) if meta["deleted"] else None,
                meta,
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
                yield _safe(f"{segment.path}/{name}"), record
        if self.deleted:
            yield _safe(self.deleted.path), FileRecord(self.deleted.bytes, self.deleted.sha256)


def _segment_record(value: Mapping[str, Any]) -> SegmentRecord:
    files = {
        name: FileRecord(int(file["bytes"]), str(file["sha256"]))
        for name, file in value["files"].items()
    }
    return SegmentRecord(**{**value, "files": files})


def _safe(name: str) -> str:
    if (
        name.startswith("/")
        or set(name.split("/")) & {"", ".", ".."}
        or "\\" in name
        or "\0" in name
    ):
        raise IndexMismatch(
            f"{META} records a file outside the index, {name!r}; do not trust this index"
        )
    return name


def read_manifest(path: str | Path, record: bool = False) -> Manifest:
    """The manifest of an index folder; with ``record``, also of a record. Raises what :func:`read_meta` raises."""
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
    if problem := meta_problem(meta):
        raise InputError(f"{path / META} {problem}; {AGAIN}")
    return meta


def recorded_options(meta: Meta) -> EncoderOptions:
    """The options that load the encoder of an index as it was, without device and dtype."""
    recorded, parts = meta.get("encoder") or {}, tuple(meta["parts"])
    names = [
        "document_length",
        "query_length",
        "top_k",
        "title_separator",
        "dimensions",
        "fold_terms",
        "language",
    ]
    names += (["activation"] if "ot" in parts else []) + (["normalize"] if "cls" in parts else [])
    options: dict[str, Any] = {name: recorded.get(name) for name in names}
    options["head"] = "lexical" if "ot" in parts and recorded.get("ot") == "lexical" else None
    return cast("EncoderOptions", {**options, "parts": parts})


def meta_problem(meta: Meta) -> str | None:
    """Why these are not the contents of a ``meta.json`` of this version, in words; None where they are."""
    if meta.get("format") != FORMAT:
        by = (meta.get("versions") or {}).get("dupmae_ir", "unknown")
        return f"has index format {meta.get('format')!r}, this dupmae_ir {__version__} reads {FORMAT} (written by {by})"
    if missing := [key for key in _NEEDED if key not in meta]:
        return f"lacks {', '.join(missing)}"
    if problem := _value_problem(meta):
        return f"is not possible: {problem}"
    if manifest_digest(meta) != meta[OWN_DIGEST]:
        return "was edited or damaged after it was written (its digest differs)"
    return None


def _value_problem(meta: Meta) -> str | None:
    """The first value that no index can have, in words; None where all are possible."""
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
    for key in _RECORDS:
        if meta.get(key) is not None and not isinstance(meta[key], dict):
            return f"{key} must be an object, got {meta[key]!r}"
    if not (isinstance(meta["segments"], list) and (meta["segments"] or meta.get("record"))):
        return f"segments must be a list of at least one, got {meta['segments']!r}"
    return None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def manifest_digest(meta: Mapping[str, Any]) -> str:
    """sha256 of all other values, whatever the order of keys and the white space of the file."""
    text = json.dumps(
        {k: v for k, v in meta.items() if k != OWN_DIGEST}, sort_keys=True, separators=(",", ":")
    )
    return hashlib.sha256(text.encode()).hexdigest()


def with_segments(
    meta: Mapping[str, object],
    segments: Sequence[SegmentRecord],
    deleted: DeletedRecord | None = None,
) -> Meta:
    """``meta`` with these segments and deleted rows, the counts and digests that follow from them."""
    parts = [*(segment.digest for segment in segments), deleted.sha256 if deleted else ""]
    one = len(segments) == 1 and deleted is None
    facts: Meta = {
        "format": FORMAT,
        **{
            name: sum(getattr(segment, name) for segment in segments)
            for name in ("documents", *SUMS)
        },
        "digest": segments[0].digest
        if one
        else hashlib.sha256(json.dumps(parts).encode()).hexdigest(),
        "segments": [
            {
                **dataclasses.asdict(segment),
                "files": {name: file._asdict() for name, file in segment.files.items()},
            }
            for segment in segments
        ],
        "deleted": dataclasses.asdict(deleted) if deleted else None,
    }
    facts["documents"] -= deleted.rows if deleted else 0
    last = ("segments", "deleted", OWN_DIGEST)  # the long values at the end of the file
    first = {
        **{k: None for k in facts if k not in last},
        **{k: v for k, v in meta.items() if k not in last},
    }
    record: Meta = json.loads(json.dumps({**first, **facts}))
    return {**record, OWN_DIGEST: manifest_digest(record)}


def record_of(meta: Meta, **facts: object) -> Meta:
    """The manifest of the record of an index: what a search needs to know of it where a server has the rows.

    ``facts``: ``columns``, the names of the metadata, None for an index without texts; ``frequencies``, those that a
    lexical encoder needs, compressed.
    """
    record: Meta = {
        name: meta.get(name) for name in ("format", *_NEEDED, "encoder", "versions", "origin")
    }
    record |= {"segments": [], "deleted": None, "record": facts}
    return {**record, OWN_DIGEST: manifest_digest(record)}


def record_part(path: Path, segment: SegmentRecord, part: str) -> SegmentRecord | None:
    """Record the files of an optional part (``postings``, ``cls/rotated``) of a segment that was just put in place.

    Returns the new record; None where the index no longer has the segment.
    """
    with changing(path):
        manifest = read_manifest(path)
        segments = {record.path: record for record in manifest.segments}
        current = segments.get(segment.path)
        if current is None or current.digest != segment.digest:
            return None
        folder = path / segment.path
        others = {name: record for name, record in current.files.items() if part_of(name) != part}
        changed = dataclasses.replace(
            current, files=others | describe(folder, names_of(folder, part))
        )
        segments[segment.path] = changed
        write_meta(path, with_segments(manifest.meta, list(segments.values()), manifest.deleted))
        return changed


def changing(path: Path) -> AbstractContextManager[None]:
    """Hold the lock of ``meta.json``, which is replaced within the block."""
    return exclusive(lock_path(path / META), f"updating {path / META}", wait=True)


def sweep_lock(path: Path) -> None:
    """Remove the lock of ``meta.json`` that a killed process left inside the index."""
    remove_stale(lock_path(path / META))


def write_meta(folder: Path, meta: Mapping[str, Any]) -> None:
    """Write ``meta.json``, which makes ``folder`` a finished index."""
    write_json(folder / META, meta)


def link_parts(path: Path, segment: SegmentRecord, parts: Sequence[str]) -> bool:
    """Let ``I/cls`` and ``I/ot``, which stock Pyserini reads, be links to the first segment, each replaced in one step.

    False where the system has no links: there, its folders are only in the segment.
    """
    for part in parts:
        link, to = path / part, Path(segment.path, part)
        if link.is_symlink() and link.readlink() == to:
            continue
        if link.is_dir() and not link.is_symlink():
            shutil.rmtree(link)  # what a copy of the index made of the link
        new = path / f".{part}.link"
        try:
            new.unlink(missing_ok=True)
            new.symlink_to(to, target_is_directory=True)
        except (OSError, NotImplementedError):
            return False
        new.replace(link)
    return True


def make_empty(folder: Path) -> None:
    """Create ``folder``. Raises :class:`UsageError` where it exists and is not an empty folder."""
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
        index = {"format", "documents", "parts", "digest"} <= read_json_object(target / META).keys()
        occupied = target.is_dir() and any(target.iterdir()) and not index
    except OSError:
        return  # not readable: reported where it is used
    if occupied:
        raise UsageError(
            f"{target}: a folder that is not an index; it was left unchanged, name another `index`"
        )


def content_digest(folder: str | Path, dim: int | None) -> str:
    """sha256 over ids, vectors and impacts: equal exactly for equal content, whatever Lucene named its segments."""
    folder = Path(folder)
    digest = hashlib.sha256()
    _digest_file(digest, folder / "docid")
    if dim is not None:
        _digest_file(digest, folder / "cls" / "index", vectors_offset(dim))
    if (folder / "forward").is_dir():
        for name in FILES:
            _digest_file(digest, folder / "forward" / name)
        _digest_file(digest, folder / "terms.txt")
    return digest.hexdigest()


def versions(java: bool = False) -> dict[str, str | None]:
    """What could change an index: this package, Python and the libraries; with ``java`` also the JVM that runs."""
    numbers: dict[str, str | None] = {"dupmae_ir": __version__, "python": platform.python_version()}
    for name in ("torch", "transformers", "faiss", "pyserini"):
        try:
            numbers[name] = importlib.metadata.version("faiss-cpu" if name == "faiss" else name)
        except importlib.metadata.PackageNotFoundError:
            numbers[name] = None
    numbers["java"] = pyserini.start_jvm().version if java else None
    return numbers


def read_lines(path: Path) -> list[str]:
    """UTF-8 lines, each ended by a line feed. Raises :class:`IndexMismatch` for a missing file."""
    # Not splitlines(): vocabularies contain characters that it treats as line ends.
    try:
        return path.read_bytes().decode("utf-8").split("\n")[:-1]
    except FileNotFoundError:
        raise IndexMismatch(f"{path} is missing; {AGAIN}") from None
    except UnicodeDecodeError:
        raise IndexMismatch(f"{path} is damaged: not UTF-8 text; {AGAIN}") from None


def _digest_file(digest: _Hash, path: Path, start: int = 0) -> None:
    """Add the length and the bytes from ``start`` on."""
    digest.update((path.stat().st_size - start).to_bytes(8, "big"))
    with open(path, "rb") as f:
        f.seek(start)
        while block := f.read(_BLOCK):
            digest.update(block)
