"""The live rows of an index as a server stores them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence

import numpy as np

from dupmae_ir.errors import IndexMismatch
from dupmae_ir.index.format.segment import Segment
from dupmae_ir.index.format.texts import StoredDocument
from dupmae_ir.index.index import Index
from dupmae_ir.servers.protocol import Rows, Spec


def spec_of(index: Index) -> Spec:
    """What the rows of an index have in common."""
    encoder = index.meta.get("encoder") or {}
    return Spec(
        model=str(encoder.get("digest", "")),
        dim=index.dim or 0,
        terms=len(index.terms),
        scale=float(index.scale or 1.0),
    )


def batches(index: Index, size: int, first: int = 0) -> Iterator[Rows]:
    """The live rows of all segments, at most ``size`` at a time, without the ``first`` ones."""
    for segment, _, live in index.slices():
        rows = np.flatnonzero(live)
        rows, first = rows[first:], max(0, first - len(rows))
        for start in range(0, len(rows), size):
            yield _read(segment, rows[start : start + size])


def selected(rows: Rows, positions: Sequence[int]) -> Rows:
    """Some of the rows."""
    return Rows(
        [rows.docids[i] for i in positions],
        [rows.fingerprints[i] for i in positions],
        None if rows.cls is None else rows.cls[list(positions)],
        None if rows.impacts is None else [rows.impacts[i] for i in positions],
        None if rows.documents is None else [rows.documents[i] for i in positions],
    )


def largest_norm(rows: Rows) -> float:
    """The largest norm of the vectors; 0 without any."""
    if rows.cls is None:
        return 0.0
    wide = rows.cls.astype(np.float64)
    return float(np.sqrt(np.vecdot(wide, wide).max(initial=0.0)))


def _read(segment: Segment, numbers: np.ndarray) -> Rows:
    docids = [segment.docids[row] for row in numbers.tolist()]
    for docid in docids:
        if "\0" in docid:
            raise IndexMismatch(f"the document id {docid!r} contains a NUL character, which servers refuse; rename it")
    cls = np.ascontiguousarray(segment.vectors[numbers], np.float32) if segment.dim is not None else None
    impacts = [segment.forward.row(row) for row in numbers.tolist()] if segment.has_ot else None
    texts = segment.texts
    documents = None if texts is None else texts.get_all(numbers.tolist())
    prints = [
        _fingerprint(
            docid,
            None if cls is None else cls[place],
            None if impacts is None else impacts[place],
            None if documents is None else documents[place],
        )
        for place, docid in enumerate(docids)
    ]
    return Rows(docids, prints, cls, impacts, documents)


def _fingerprint(
    docid: str, cls: np.ndarray | None, impacts: tuple[np.ndarray, np.ndarray] | None, document: StoredDocument | None
) -> bytes:
    """16 bytes that differ for rows with other contents: id, vector, impacts, title, text or metadata."""
    texts = [docid, *([document.title, document.text, dict(document.metadata)] if document else [])]
    digest = hashlib.blake2b(json.dumps(texts, sort_keys=True).encode(), digest_size=16)
    if cls is not None:
        digest.update(cls.astype("<f4").tobytes())
    if impacts is not None:
        digest.update(impacts[0].astype("<u4").tobytes())
        digest.update(impacts[1].astype("u1").tobytes())
    return digest.digest()
