"""Generations of an index: which segments it has, and which of their rows are deleted.

    I/                              the first segment, complete by itself: stock Pyserini reads its cls/ and ot/
    I/segments/0001/                further segments, each an index folder
    I/segments/deleted-000003.npy   (m,) int64: rows deleted in generation 3, ascending
    I/meta.json                     "generation": {number, segments, deleted, documents, digest}

Rows are numbered through all segments in their order: the rows of the first, then those of ``0001``, and so on. A
document that is updated is deleted from its segment and added to a new one, so segments never change. Replacing
``meta.json`` is what makes a generation the current one; files that it does not name belong to no generation.

A manifest with further segments or deleted rows has format 2, which versions that would search only the first segment
refuse. :mod:`dupmae_ir.index.format.segments` reads a generation, :mod:`dupmae_ir.index.changes.changes` writes the
next one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dupmae_ir.errors import IndexMismatch
from dupmae_ir.index.format.integrity import AGAIN, content_problem
from dupmae_ir.index.format.manifest import META, Meta
from dupmae_ir.io.publishing import atomic_write, sha256_file

SEGMENTS = "segments"
KEY = "generation"


@dataclass(frozen=True)
class SegmentRecord:
    """A segment beside the first: its folder inside the index, its rows, and its index id."""

    path: str
    documents: int
    digest: str


@dataclass(frozen=True)
class DeletedRecord:
    """The file of deleted rows: its path inside the index, how many rows it has, its size and sha256."""

    path: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Generation:
    """``documents`` are those that are not deleted; ``digest`` changes with every change of what is found."""

    number: int
    documents: int
    digest: str
    segments: tuple[SegmentRecord, ...] = ()
    deleted: DeletedRecord | None = None

    @property
    def plain(self) -> bool:
        """Whether the index is one segment without deleted rows."""
        return not self.segments and self.deleted is None


def generation_of(meta: Mapping[str, Any]) -> Generation:
    """The generation that a manifest describes; an index that was never changed is in generation 0."""
    found = meta.get(KEY)
    if found is None:
        return Generation(0, meta["documents"], meta["digest"])
    try:
        return Generation(
            int(found["number"]),
            int(found["documents"]),
            str(found["digest"]),
            tuple(SegmentRecord(**segment) for segment in found["segments"]),
            DeletedRecord(**found["deleted"]) if found["deleted"] else None,
        )
    except (KeyError, TypeError, ValueError) as e:
        raise IndexMismatch(f"{META}: {KEY} cannot be read ({e}); {AGAIN}") from None


def next_generation(
    meta: Mapping[str, Any], documents: int, segments: Sequence[SegmentRecord], deleted: DeletedRecord | None
) -> Generation:
    """The generation after that of ``meta``."""
    number = generation_of(meta).number + 1
    parts = [meta["digest"], *(segment.digest for segment in segments), deleted.sha256 if deleted else ""]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest() if segments or deleted else meta["digest"]
    return Generation(number, documents, digest, tuple(segments), deleted)


def with_generation(meta: Mapping[str, Any], generation: Generation, made_by: str) -> Meta:
    """A manifest of that generation, not sealed yet. ``made_by`` names the command."""
    record = {**dataclasses.asdict(generation), "made_by": made_by}
    return {**meta, "format": 1 if generation.plain else 2, KEY: record}


def write_deleted(index: Path, number: int, rows: np.ndarray) -> DeletedRecord | None:
    """Write the deleted rows of generation ``number``, ascending; None where there are none."""
    if not len(rows):
        return None
    name = f"{SEGMENTS}/deleted-{number:06d}.npy"
    with atomic_write(index / name, "wb") as f:
        np.save(f, np.asarray(rows, np.int64), allow_pickle=False)
    return DeletedRecord(name, len(rows), (index / name).stat().st_size, sha256_file(index / name))


def read_deleted(index: Path, record: DeletedRecord | None, rows: int) -> np.ndarray:
    """(m,) int64: the deleted rows, ascending. ``rows``: how many the segments have.

    Raises :class:`FileNotFoundError` for a file of an older generation that was removed, :class:`IndexMismatch` for a
    damaged one.
    """
    if record is None:
        return np.zeros(0, np.int64)
    path = index / record.path
    path.stat()
    if problem := content_problem(path, {"sha256": record.sha256}):
        raise IndexMismatch(f"{problem}; {AGAIN}")
    found = np.load(path, allow_pickle=False)
    if len(found) != record.rows or (len(found) and not 0 <= found[0] <= found[-1] < rows):
        raise IndexMismatch(f"{path}: {len(found)} rows of {rows}, not those that {META} describes; {AGAIN}")
    return found
