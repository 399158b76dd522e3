"""``dupmae-ir index compact``: an index of several segments, rewritten as one without the deleted documents.

The new folder is built beside the old one from its stored vectors and impacts, without an encoder, and exchanged with
it in one step. Readers that opened the old folder keep it until they are done.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from tqdm import tqdm

from dupmae_ir import __version__
from dupmae_ir.config import to_dict
from dupmae_ir.console import progress
from dupmae_ir.index.changes.builder import IndexBuilder
from dupmae_ir.index.changes.changes import ChangeJob, build_optional, optional_parts
from dupmae_ir.index.changes.generations import Generation, with_generation
from dupmae_ir.index.changes.places import generations_folder, remove_retired
from dupmae_ir.index.config import CompactConfig
from dupmae_ir.index.format import manifest
from dupmae_ir.index.format.segments import SegmentedIndex
from dupmae_ir.index.index import Index
from dupmae_ir.io.publishing import exchange

_BLOCK = 4096
"""Documents copied at a time."""
_KEPT = ("encoder", "scale_source", "settings", "running")


def run(config: CompactConfig) -> dict[str, Any]:
    """Compact the index and return a summary; one in a single piece is left as it is."""
    with ChangeJob(config.index, "index compact", quiet=config.quiet) as job:
        index = job.current()
        if isinstance(index, Index):
            return job.unchanged(index, {"removed_now": 0})
        index.verify()  # every byte is about to be copied, and sealed as part of the new index
        made = _fresh(generations_folder(job.target), index.generation.number + 1)
        try:
            with progress("compact", "documents", index.documents, config.quiet) as bar:
                _write(config, index, made, bar)
            exchange(made, job.target)
        except BaseException:
            if manifest.read_meta(job.target)["digest"] == index.folders[0].meta["digest"]:
                shutil.rmtree(made, ignore_errors=True)
            raise
        removed = index.rows - index.documents
        del index  # it holds the old folder
        remove_retired(job.target)
        return {**job.summary(Index.open(job.target)), "removed_now": removed, "status": "complete"}


def _fresh(folder: Path, number: int) -> Path:
    """A path with nothing at it, also where this process still holds what a failed compaction left."""
    names = (f"{number:06d}{f'-{attempt}' if attempt else ''}" for attempt in itertools.count())
    return next(folder / name for name in names if not (folder / name).exists())


def _write(config: CompactConfig, index: SegmentedIndex, made: Path, bar: tqdm[Any]) -> None:
    first = index.folders[0]
    terms = index.terms if index.has_ot else None
    texts = index.has_texts
    with IndexBuilder(made, dim=index.dim, terms=terms, scale=index.scale, texts=texts) as builder:
        for folder, _, live in index.slices():
            clipped, dropped = folder.meta["clipped"], folder.meta["dropped"]
            for rows in _blocks(np.flatnonzero(live)):
                vectors = folder.vectors[rows] if folder.dim is not None else None
                impacts = _impacts(folder, rows) if folder.has_ot else None
                digests = None if folder.digests is None else [folder.digests[row].tobytes() for row in rows]
                docids = [folder.docids[row] for row in rows]
                documents = folder.texts.get_all(rows.tolist()) if texts and folder.texts else None
                builder.add_impacts(docids, vectors, impacts, clipped, dropped, documents, digests)
                clipped = dropped = 0
                bar.update(len(rows))
        builder.finish(
            {
                "made_by": "dupmae-ir index compact",
                "version": __version__,
                **{name: first.meta.get(name) for name in _KEPT},
                "inputs": _inputs(index),
                "optional": sorted(part for part in optional_parts(first) if part == "postings" or part[:4] == "cls/"),
                "work": None,
                "shard": None,
                "compacted_from": [{"digest": f.meta["digest"], "documents": f.documents} for f in index.folders],
                "config": to_dict(config),
            }
        )
    build_optional(first, made)
    meta = manifest.read_meta(made)
    after = Generation(index.generation.number + 1, index.documents, meta["digest"])
    manifest.write_meta(made, manifest.sealed(with_generation(meta, after, "dupmae-ir index compact"), meta["files"]))


def _inputs(index: SegmentedIndex) -> list[dict[str, Any]]:
    """The input files of all segments, each once."""
    found = [source for folder in index.folders for source in folder.meta.get("inputs") or []]
    return list({(source["path"], source["sha256"]): source for source in found}.values())


def _blocks(rows: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(rows), _BLOCK):
        yield rows[start : start + _BLOCK]


def _impacts(folder: Index, rows: np.ndarray) -> sp.csr_matrix:
    """The impacts of some rows of a segment, in their order."""
    found = [folder.forward.row(row) for row in rows.tolist()]
    indptr = np.concatenate(([0], np.cumsum([len(terms) for terms, _ in found])))
    terms = np.concatenate([terms for terms, _ in found]).astype(np.int32)
    impacts = np.concatenate([impacts for _, impacts in found])
    return sp.csr_matrix((impacts, terms, indptr), shape=(len(rows), len(folder.terms)))
