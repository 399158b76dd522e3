"""Is this the index, and is this the run, that the case speaks of? Problems in words that point to the cause.

An index is looked at before anything is searched: a metric that is a little low says nothing about why, the number of
documents or the sum of impacts does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dupmae_ir.errors import DupmaeError
from dupmae_ir.eval.regressions.place import Data

COUNTED = ("documents", "dim", "postings", "sum_of_impacts", "scale")
"""Statistics that an accepted index is compared by."""
DRIFT = 0.002
"""Share by which impacts and scale may differ in another environment, whose last bits differ."""
SHOWN = 3


def statistics(folder: Path, mode: str) -> dict[str, Any]:
    """What the index says of itself; of a BM25 index its documents alone."""
    if mode == "bm25":
        from dupmae_ir.index.bm25 import BM25Searcher

        return {"documents": BM25Searcher(folder, 0.9, 0.4).documents}
    from dupmae_ir.index.folder import IndexFolder

    meta = IndexFolder.open(folder).meta
    kept = ("documents", "dim", "scale", "postings", "sum_of_impacts", "clipped", "digest", "shard")
    return {**{k: meta.get(k) for k in kept}, "encoder": meta.get("encoder", {}).get("digest")}


def index_problems(
    folder: Path, found: Mapping[str, Any], key: Mapping[str, Any], data: Data, accepted: Mapping[str, Any], same: bool
) -> list[str]:
    """``accepted``: statistics of the index when its values were accepted; ``same``: in the same environment."""
    return [f"index: {p}" for p in _index_problems(folder, found, key, data, accepted, same)]


def _index_problems(
    folder: Path, found: Mapping[str, Any], key: Mapping[str, Any], data: Data, accepted: Mapping[str, Any], same: bool
) -> Iterator[str]:
    if shard := found.get("shard"):
        yield f"this is shard {shard['number']} of {shard['of']}, not merged: {found['documents']:,} documents"
    if data.documents is not None and found["documents"] != data.documents:
        yield f"{found['documents']:,} documents, {data.name} has {data.documents:,}"
    if "encoder" in found:
        if found["encoder"] != key["weights"]:
            yield f"made with other weights ({found['encoder'][:12]}) than the case's model ({key['weights'][:12]})"
        yield from _content(folder, data)
    for name in COUNTED:
        now, then = found.get(name), accepted.get(name)
        if then is not None and not _close(now, then, name, same):
            what = name.replace("_", " ")
            yield f"{what} is {_number(now)}, {_number(then)} was accepted{_why(name, found, accepted)}"


def _content(folder: Path, data: Data) -> Iterator[str]:
    """The files are those that meta.json describes, and row r is the collection's document r."""
    from dupmae_ir.index.folder import IndexFolder
    from dupmae_ir.io.collections import read_collection

    index = IndexFolder.open(folder)
    try:
        index.verify()
    except DupmaeError as e:
        yield str(e)
    swapped = [
        (row, ours, theirs.docid)
        for row, (ours, theirs) in enumerate(zip(index.docids, read_collection(data.corpus), strict=False))
        if ours != theirs.docid
    ]
    if swapped:
        row, ours, theirs = swapped[0]
        yield (
            f"ids are not the collection's, row by row: row {row} is {ours!r} and should be {theirs!r} "
            f"({len(swapped)} such rows: ids swapped, or a part missing)"
        )


def run_problems(run: Mapping[str, Any], qrels: Mapping[str, Any], data: Data, empty: int) -> list[str]:
    """A run that lacks topics or finds the topics themselves where these are to be left out. ``empty``: topics that
    the search itself found nothing for, as BM25 may."""
    problems = []
    missing = [q for q in qrels if q not in run]
    if len(missing) > empty:
        problems.append(f"run: {len(missing)} of {len(qrels)} judged topics are missing ({_some(missing)})")
    if data.remove_query:
        own = [q for q, hits in run.items() if any(hit.docid == q for hit in hits)]
        if own:
            problems.append(
                f"run: self-retrieval kept: {len(own)} topics find themselves ({_some(own)}); {data.name} is searched "
                "with --remove-query"
            )
    return problems


def _close(now: Any, then: Any, name: str, same: bool) -> bool:
    if now is None or same or name in ("documents", "dim"):
        return bool(now == then)
    return abs(now - then) <= DRIFT * abs(then)


def _why(name: str, found: Mapping[str, Any], accepted: Mapping[str, Any]) -> str:
    if name in ("sum_of_impacts", "postings") and found.get("scale") != accepted.get("scale"):
        return f" (scale {_number(found.get('scale'))} instead of {_number(accepted.get('scale'))})"
    return ""


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "none" if value is None else f"{value:g}"


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
