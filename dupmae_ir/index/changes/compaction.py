"""``dupmae-ir index compact``: the documents of all segments, rewritten as one segment without the deleted ones.

The new segment is written from stored vectors and impacts, without an encoder, and takes the place of the others by a
new manifest, as every change does. Readers keep the segments that they opened.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from tqdm import tqdm

from dupmae_ir.console import progress
from dupmae_ir.index.changes.builder import IndexBuilder
from dupmae_ir.index.changes.changes import ChangeJob, build_optional
from dupmae_ir.index.config import CompactConfig
from dupmae_ir.index.format.manifest import SEGMENTS
from dupmae_ir.index.format.segment import Segment
from dupmae_ir.index.index import Index

_BLOCK = 4096
"""Documents copied at a time."""


def run(config: CompactConfig) -> dict[str, Any]:
    """Compact the index and return a summary; one in a single piece is left as it is."""
    with ChangeJob(config.index, "index compact", quiet=config.quiet) as job:
        index = job.current()
        if index.manifest.plain:
            return job.unchanged(index, {"removed_now": 0})
        index.verify()  # every byte is about to be copied, and recorded as part of the new segment
        new = job.target / SEGMENTS / "compacted"  # not named by a manifest: after a kill, the next change removes it
        try:
            with progress("compact", "documents", index.documents, config.quiet) as bar:
                _write(index, new, bar)
            build_optional(index, new)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        removed = index.rows - index.documents
        result = job.commit(index, np.zeros(0, np.int64), new, {"removed_now": removed}, alone=True)
        del index  # it reads the old segments
        job.sweep()
        return result


def _write(index: Index, new: Path, bar: tqdm[Any]) -> None:
    terms = index.terms if index.has_ot else None
    texts = index.has_texts
    with IndexBuilder(new, dim=index.dim, terms=terms, scale=index.scale, texts=texts) as builder:
        for segment, _, live in index.slices():
            clipped, dropped = segment.record.clipped, segment.record.dropped
            rows = np.flatnonzero(live)
            for start in range(0, len(rows), _BLOCK):
                block = rows[start : start + _BLOCK]
                vectors = segment.vectors[block] if segment.dim is not None else None
                impacts = _impacts(segment, block) if segment.has_ot else None
                digests = None if segment.digests is None else [segment.digests[row].tobytes() for row in block]
                docids = [segment.docids[row] for row in block]
                documents = segment.texts.get_all(block.tolist()) if texts and segment.texts else None
                builder.add_impacts(docids, vectors, impacts, clipped, dropped, documents, digests)
                clipped = dropped = 0
                bar.update(len(block))
        builder.finish({"made_by": "dupmae-ir index compact"})


def _impacts(segment: Segment, rows: np.ndarray) -> sp.csr_matrix:
    """The impacts of some rows of a segment, in their order."""
    documents = [segment.forward.row(row) for row in rows.tolist()]
    indptr = np.cumsum([0, *(len(terms) for terms, _ in documents)])
    terms = np.concatenate([terms for terms, _ in documents]).astype(np.int32)
    impacts = np.concatenate([impacts for _, impacts in documents])
    return sp.csr_matrix((impacts, terms, indptr), shape=(len(rows), len(segment.terms)))
