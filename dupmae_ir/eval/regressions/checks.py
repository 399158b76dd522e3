"""Checks that an index and a run are the ones the case describes. Each problem found points to its cause.

An index is checked before it is searched: a value slightly too low does not show what is wrong with the index, but its
number of documents or sum of impacts does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from dupmae_ir.errors import DupmaeError
from dupmae_ir.eval.regressions.workspace import CollectionFiles
from dupmae_ir.index.index import Index
from dupmae_ir.index.lucene.bm25 import BM25Searcher
from dupmae_ir.io.collections import read_collection
from dupmae_ir.types import Run

COMPARED = ("documents", "dim", "postings", "sum_of_impacts", "scale")
"""Statistics compared with those of the accepted index."""
DRIFT = 0.002
"""Relative difference allowed for impacts and scale in another environment, where rounding differs."""
SHOWN = 3


def index_statistics(folder: Path, mode: str) -> dict[str, Any]:
    """Statistics recorded in the index; for a BM25 index, its number of documents only."""
    if mode == "bm25":
        return {"documents": BM25Searcher(folder, 0.9, 0.4).documents}
    meta = Index.open(folder).meta
    names = ("documents", "dim", "scale", "postings", "sum_of_impacts", "clipped", "digest", "shard")
    return {**{k: meta.get(k) for k in names}, "encoder": meta.get("encoder", {}).get("digest")}


def index_problems(
    folder: Path,
    statistics: Mapping[str, Any],
    key: Mapping[str, Any],
    files: CollectionFiles,
    accepted: Mapping[str, Any],
    same: bool,
) -> list[str]:
    """Problems of an index; empty if it passes.

    ``accepted``: statistics of the accepted index; ``same``: it was built in the same environment, so that statistics
    must be equal.
    """
    problems = _index_problems(folder, statistics, key, files, accepted, same)
    return [f"index: {problem}" for problem in problems]


def _index_problems(
    folder: Path,
    statistics: Mapping[str, Any],
    key: Mapping[str, Any],
    files: CollectionFiles,
    accepted: Mapping[str, Any],
    same: bool,
) -> Iterator[str]:
    documents = statistics["documents"]
    if shard := statistics.get("shard"):
        yield f"this is shard {shard['number']} of {shard['of']}, not merged: {documents:,} documents"
    if files.documents is not None and documents != files.documents:
        yield f"{documents:,} documents, but {files.name} has {files.documents:,}"
    if "encoder" in statistics:
        encoder, weights = statistics["encoder"], key["weights"]
        if encoder != weights:
            yield f"built with other weights ({encoder[:12]}) than those of the case's model ({weights[:12]})"
        yield from _content_problems(folder, files)
    for name in COMPARED:
        now, then = statistics.get(name), accepted.get(name)
        if then is not None and not _is_close(now, then, name, same):
            label = name.replace("_", " ")
            yield f"{label} is {_number(now)}, accepted was {_number(then)}{_cause(name, statistics, accepted)}"


def _content_problems(folder: Path, files: CollectionFiles) -> Iterator[str]:
    """Checks the files against meta.json, and document ids against the collection, row by row."""
    index = Index.open(folder)
    try:
        index.verify()
    except DupmaeError as e:
        yield str(e)
    rows = enumerate(zip(index.docids, read_collection(files.corpus), strict=False))
    wrong = [(row, docid, document.docid) for row, (docid, document) in rows if docid != document.docid]
    if wrong:
        row, docid, expected = wrong[0]
        yield (
            f"document ids differ from the collection's: row {row} is {docid!r}, expected {expected!r} "
            f"({len(wrong)} such rows: ids swapped, or a part missing)"
        )


def run_problems(run: Run, judged: Collection[str], files: CollectionFiles, without_hits: int) -> list[str]:
    """Problems of a run: judged topics that are missing, or topics that retrieve themselves where this is excluded.

    ``without_hits``: topics for which the search found nothing, as BM25 may.
    """
    problems = []
    missing = [q for q in judged if q not in run]
    if len(missing) > without_hits:
        problems.append(f"run: {len(missing)} of {len(judged)} judged topics are missing ({_some(missing)})")
    if files.remove_query:
        own = [q for q, hits in run.items() if any(hit.docid == q for hit in hits)]
        if own:
            problems.append(
                f"run: self-retrieval not removed: {len(own)} topics retrieve themselves ({_some(own)}); search "
                f"{files.name} with remove_query"
            )
    return problems


def _is_close(now: float | None, then: float, name: str, same: bool) -> bool:
    if now is None or same or name in ("documents", "dim"):
        return now == then
    return abs(now - then) <= DRIFT * abs(then)


def _cause(name: str, statistics: Mapping[str, Any], accepted: Mapping[str, Any]) -> str:
    now, then = statistics.get("scale"), accepted.get("scale")
    if name in ("sum_of_impacts", "postings") and now != then:
        return f" (scale {_number(now)} instead of {_number(then)})"
    return ""


def _number(value: float | None) -> str:
    return f"{value:,}" if isinstance(value, int) else "none" if value is None else f"{value:g}"


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
