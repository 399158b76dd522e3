"""What makes an index whole: ``meta.json``, its values, its own digest, and the counts of the parts.

``meta.json`` is written last, so a folder without it is unfinished. It records every file of the index (see
:mod:`dupmae_ir.index.format.integrity`) and its own digest, so that an edited one is refused. Indexes of dupmae_ir 0.1
lack these records: they open after :func:`check_counts`, and ``dupmae-ir index seal`` adds the records.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dupmae_ir import __version__, pyserini
from dupmae_ir.errors import IndexMismatch, InputError, UsageError
from dupmae_ir.index.format.faiss import flat_problem, vectors_offset
from dupmae_ir.index.format.forward import FILES
from dupmae_ir.index.format.integrity import AGAIN, PARTS, describe, has_marks, names_of, part_of
from dupmae_ir.index.format.quantisation import is_scale
from dupmae_ir.io.locks import exclusive, lock_path, remove_stale
from dupmae_ir.io.publishing import read_json_object, write_json

if TYPE_CHECKING:
    from hashlib import _Hash

    from dupmae_ir.index.format.forward import Forward

META = "meta.json"
FORMAT = 1
FORMATS = (1, 2)
"""Formats that can be read. 2 has further segments or deleted rows (see :mod:`dupmae_ir.index.changes.generations`)."""
SEAL = "manifest_sha256"
_NEEDED = ("documents", "parts", "dim", "scale", "postings", "digest")
_COUNTS = ("documents", "empty_documents", "postings", "sum_of_impacts", "clipped", "dropped")
_RECORDS = ("encoder", "versions", "settings", "shard", "config")
_BLOCK = 1 << 22

Meta = dict[str, Any]
"""The contents of ``meta.json``."""


def read_meta(path: str | Path) -> Meta:
    """The ``meta.json`` of an index folder.

    Raises :class:`InputError` for a path that is not a finished index, is of another format, or has a damaged
    ``meta.json``.
    """
    path = Path(path)
    if not path.is_dir():
        raise InputError(f"{path}: no such index; make one with: dupmae-ir encode --corpus C --index {path}")
    try:
        meta = json.loads((path / META).read_text(encoding="utf-8"))
    except FileNotFoundError:
        if any(path.glob("segments_*")):
            raise InputError(f"{path} is a Lucene index, as for BM25, not an index of encoded documents") from None
        raise InputError(f"{path} is not a finished index (no meta.json); run its encode command again") from None
    except (ValueError, RecursionError) as e:
        raise InputError(f"{path / META} cannot be read: {e}; {AGAIN}") from None
    if not isinstance(meta, dict) or "format" not in meta:
        raise InputError(f"{path / META} does not describe an index of this package")
    _check_meta(path, meta)
    return meta


def _check_meta(path: Path, meta: Meta) -> None:
    if meta["format"] not in FORMATS:
        raise InputError(
            f"{path} has index format {meta['format']!r}, this dupmae_ir {__version__} reads 1 and 2; "
            f"use the version that wrote it ({(meta.get('versions') or {}).get('dupmae_ir', 'unknown')}) or {AGAIN}"
        )
    if missing := [key for key in _NEEDED if key not in meta]:
        raise InputError(f"{path / META} lacks {', '.join(missing)}; {AGAIN}")
    if problem := _value_problem(meta):
        raise InputError(f"{path / META}: {problem}; {AGAIN}")
    if not is_sealed(meta):
        _check_unsealed(path, meta)
    elif manifest_digest(meta) != meta[SEAL]:
        raise InputError(f"{path / META} was edited or damaged after it was written (its digest differs); {AGAIN}")


def _value_problem(meta: Meta) -> str | None:
    """The first value that no index can have, in words; None where all are possible."""
    parts = meta["parts"]
    if parts not in (["cls"], ["ot"], ["cls", "ot"]):
        return f'parts must be ["cls"], ["ot"] or ["cls", "ot"], got {parts!r}'
    for key in _COUNTS:
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
    return None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_unsealed(path: Path, meta: Meta) -> None:
    """Refuse a manifest that lost its records, and one that leaves out a part that is there."""
    if SEAL in meta or "files" in meta or has_marks(path):
        raise InputError(f"{path / META} has lost its records of the files of this index; {AGAIN}")
    for part, folders in PARTS.items():
        if part not in meta["parts"] and (path / folders[0]).exists():
            raise InputError(f"{path / META} does not list the part {part}, but {path / folders[0]} exists; {AGAIN}")


def is_sealed(meta: Mapping[str, Any]) -> bool:
    """Whether the manifest records the files of the index and its own digest."""
    return isinstance(meta.get(SEAL), str) and isinstance(meta.get("files"), dict)


def manifest_digest(meta: Mapping[str, Any]) -> str:
    """sha256 of all other values, whatever the order of keys and the white space of the file."""
    text = json.dumps({k: v for k, v in meta.items() if k != SEAL}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def sealed(meta: Mapping[str, Any], files: Mapping[str, Any]) -> Meta:
    """``meta`` with the records of its files and its own digest, which come last."""
    record = {**{k: v for k, v in meta.items() if k != SEAL}, "files": dict(files)}
    record = json.loads(json.dumps(record))
    return {**record, SEAL: manifest_digest(record)}


def record_part(path: Path, part: str) -> Meta | None:
    """Record the files of an optional part (``postings``, ``cls/KIND``) that was just put in place.

    Returns the new contents of ``meta.json``; None for an index that is not sealed, which stays as it is.
    """
    with exclusive(lock_path(path / META), f"updating {path / META}", wait=True):
        meta = read_meta(path)
        if not is_sealed(meta):
            return None
        others = {name: record for name, record in meta["files"].items() if part_of(name) != part}
        meta = sealed(meta, others | describe(path, names_of(path, part)))
        write_meta(path, meta)
        return meta


def sweep_lock(path: Path) -> None:
    """Remove the lock of ``meta.json`` that a killed :func:`record_part` left inside the index."""
    remove_stale(lock_path(path / META))


def write_meta(folder: Path, meta: Mapping[str, Any]) -> None:
    """Write ``meta.json``, which makes ``folder`` a finished index."""
    write_json(folder / META, meta)


def check_target(target: Path) -> None:
    """Raise :class:`UsageError` if ``target`` is neither new, nor an empty folder, nor an index folder."""
    if target.exists() and not target.is_dir():
        raise UsageError(f"{target} is a file; --index must name a folder, new or of an older index")
    try:
        occupied = target.is_dir() and any(target.iterdir()) and not _is_index(target)
    except OSError:
        return  # not readable: reported where it is used
    if occupied:
        raise UsageError(f"{target}: a folder that is not an index; it was left unchanged, name another --index")


def _is_index(folder: Path) -> bool:
    return {"format", "documents", "parts", "digest"} <= read_json_object(folder / META).keys()


def check_docids(path: Path, meta: Meta) -> None:
    """Raise :class:`IndexMismatch` unless ``docid`` has one line per document."""
    if (lines := _count_lines(path / "docid")) != meta["documents"]:
        raise IndexMismatch(
            f"{path / 'docid'} has {lines} ids, but meta.json records {meta['documents']} documents; {AGAIN}"
        )


def check_vectors(path: Path, meta: Meta) -> None:
    """Raise :class:`IndexMismatch` unless the flat faiss index has the recorded shape and its ids are there."""
    problem = flat_problem(path / "cls" / "index", meta["documents"], meta["dim"])
    if problem is None and not (path / "cls" / "docid").is_file():
        problem = f"{path / 'cls' / 'docid'} is missing"
    if problem:
        raise IndexMismatch(f"{problem}; {AGAIN}")


def check_impacts(path: Path, meta: Meta, forward: Forward) -> None:
    """Raise :class:`IndexMismatch` unless there is a Lucene index and ``forward`` has the recorded counts."""
    found, recorded = (len(forward), len(forward.terms)), (meta["documents"], meta["postings"])
    if found != recorded:
        raise IndexMismatch(
            f"{path / 'forward'} has {found[1]} impacts of {found[0]} documents, "
            f"but meta.json records {recorded[1]} of {recorded[0]}; {AGAIN}"
        )


def check_lucene(path: Path) -> None:
    """Raise :class:`IndexMismatch` unless ``ot`` is a Lucene index."""
    if not any((path / "ot").glob("segments_*")):
        raise IndexMismatch(f"{path / 'ot'} is missing or not a Lucene index; {AGAIN}")


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
    found: dict[str, str | None] = {"dupmae_ir": __version__, "python": platform.python_version()}
    for name in ("torch", "transformers", "faiss", "pyserini"):
        try:
            found[name] = importlib.metadata.version("faiss-cpu" if name == "faiss" else name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    found["java"] = pyserini.start_jvm().version if java else None
    return found


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Write UTF-8 lines, each ended by a line feed."""
    with open(path, "w", encoding="utf-8", newline="\n") as f:
        f.writelines(f"{line}\n" for line in lines)


def read_lines(path: Path) -> list[str]:
    """The lines that :func:`write_lines` wrote. Raises :class:`IndexMismatch` for a missing file."""
    # Not splitlines(): vocabularies contain characters that it treats as line ends.
    try:
        return path.read_bytes().decode("utf-8").split("\n")[:-1]
    except FileNotFoundError:
        raise IndexMismatch(f"{path} is missing; {AGAIN}") from None
    except UnicodeDecodeError:
        raise IndexMismatch(f"{path} is damaged: not UTF-8 text; {AGAIN}") from None


def _count_lines(path: Path) -> int:
    count = 0
    try:
        with open(path, "rb") as f:
            while block := f.read(_BLOCK):
                count += block.count(b"\n")
    except FileNotFoundError:
        raise IndexMismatch(f"{path} is missing; {AGAIN}") from None
    return count


def _digest_file(digest: _Hash, path: Path, start: int = 0) -> None:
    """Add the length and the bytes from ``start`` on."""
    digest.update((path.stat().st_size - start).to_bytes(8, "big"))
    with open(path, "rb") as f:
        f.seek(start)
        while block := f.read(_BLOCK):
            digest.update(block)
