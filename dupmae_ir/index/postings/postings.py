"""Impact postings for whole topic sets: the index's own impacts by term, searched by compiled loops, without Java.

Lucene skips postings that cannot reach the top ten, which pays for a single query and few hits. For a thousand hits of
each of many queries (evaluation, hard negatives) nearly every posting counts, and summing all of them in an accumulator
that fits the processor's cache is much faster. Hits, integer scores and the order of ties are the same as Lucene's.

    I/postings/meta.json        format, counts, the window, and the digest of the index they were made from
    I/postings/starts.npy       (w + 1,) int64: where the postings of each window begin
    I/postings/pointers.npy     (w * (V + 1),) uint32: where those of each term begin, from the window's start
    I/postings/maxima.npy       (w * V,) uint8: the term's highest impact in the window
    I/postings/rows.npy         (s,) uint16: row within the window
    I/postings/impacts.npy      (s,) uint8
    I/postings/columns.npy      (w * V,) uint16: the number of the term's column in the window, from 1; 0 without one
    I/postings/column_starts.npy  (w + 1,) int64: where the columns of each window begin
    I/postings/dense.npy        (d,) uint8: columns, the impacts of all rows of a window, zeros included

A window is a run of ``window`` rows; its postings are contiguous, sorted by term and then by row. Terms of at least one
row in :data:`DENSE` have a column instead of postings, which the processor adds many rows at a time. A search processes
window by window and skips those in which even the highest impacts could not lift a document into a query's top k.

A search that is restricted to some rows masks the accumulator, or, for few rows, reads their impacts from the forward
index instead of the postings of all rows.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, Self

import numpy as np

from dupmae_ir.console import megabytes
from dupmae_ir.device import need_packages
from dupmae_ir.errors import IndexMismatch, UsageError
from dupmae_ir.index.format.forward import Forward, NpyWriter, mapped
from dupmae_ir.index.format.manifest import sweep_lock
from dupmae_ir.index.format.quantisation import HIGHEST_IMPACT
from dupmae_ir.index.format.row_set import RowSet
from dupmae_ir.index.postings.arrays import Files, Kept, Queries
from dupmae_ir.index.postings.compiling import pays
from dupmae_ir.io.jobs import Job
from dupmae_ir.io.publishing import write_json

FORMAT = 1
FILES: dict[str, type] = {
    "starts": np.int64,
    "pointers": np.uint32,
    "maxima": np.uint8,
    "rows": np.uint16,
    "impacts": np.uint8,
    "columns": np.uint16,
    "column_starts": np.int64,
    "dense": np.uint8,
}
WINDOW = 1 << 16
"""Rows of a window, whose accumulator takes 256 KB. Smaller windows measured slower: each has a cost per term."""
DENSE = 8
"""Terms of at least one row in this many have a column. A column takes as long to add as postings of one row in twenty,
and as much room as postings of one row in three; this value lies between the fastest and the smallest choice."""
MOST_ROWS = 1 << 16
"""Number of rows that a uint16 can address."""
HIGHEST_SCORE = (1 << 31) - 1
_AGAIN = "rebuild them with: dupmae-ir index postings --index"
_TOGETHER = 64
"""Queries searched together, so that a window is read from memory once for all of them."""
_KEYS = 1 << 23
"""Candidates that one thread keeps at a time, for all of its queries: 64 MB."""
_SPARE = 4096
"""Rows that a list of best sums may contain beyond four times ``k``."""

FEW = 64
"""At most one allowed row in this many is scored by the forward index rather than by postings."""
SLACK = 256
"""Keys that a list of candidates must have room for beyond the ``k`` best, so that a group always fits."""
_ALL = np.zeros(0, np.bool_)
_ALL.flags.writeable = False  # as the mask of a RowSet: one compiled signature

Others = Callable[[slice | np.ndarray], np.ndarray]


class ImpactParts(Protocol):
    """What postings are made from: a finished :class:`~dupmae_ir.index.index.Index` with impacts."""

    meta: dict[str, Any]

    @property
    def path(self) -> Path:
        """The index folder."""
        ...

    @property
    def documents(self) -> int:
        """Number of documents."""
        ...

    @property
    def terms(self) -> Sequence[str]:
        """The index term of each vocabulary id."""
        ...

    @property
    def forward(self) -> Forward:
        """The impacts by document."""
        ...

    def check_part(self, part: str, fix: str = ..., everything: bool = ...) -> None:
        """Raise :class:`IndexMismatch`, ending with ``fix``, unless the files of ``part`` are the recorded ones."""
        ...

    def part_problem(self, part: str) -> str | None:
        """Why ``part`` is not the recorded one, by ids and sizes."""
        ...

    def record_part(self, part: str) -> None:
        """Record the files of ``part`` in the manifest."""
        ...


def folder_of(index: str | Path) -> Path:
    """Where the postings of an index folder are."""
    return Path(index) / "postings"


def export_postings(index: ImpactParts, window: int = WINDOW, tick: Callable[[int], object] | None = None) -> Path:
    """Write ``I/postings/`` of a finished index from its forward index and return it, replacing an older one.

    Memory does not grow with the collection. ``tick`` is called with the number of rows of each finished window. Raises
    :class:`IndexMismatch` for an index without impacts, :class:`UsageError` while another process writes it.
    """
    with PostingsJob(index, window, overwrite=True) as job:
        job.build(tick)
    return folder_of(index.path)


class PostingsJob(Job):
    """Writes the postings of an index. Their ``meta.json`` is the record; unusable ones are replaced."""

    def __init__(self, index: ImpactParts, window: int = WINDOW, overwrite: bool = False, quiet: bool = True) -> None:
        self.index, self.window = index, window
        self.forward = index.forward
        index.check_part("forward", everything=True)
        super().__init__(
            folder_of(index.path),
            "index postings",
            {"window": window},
            {"index": index.meta["digest"]},
            overwrite=overwrite,
            resumable=False,
            quiet=quiet,
        )

    def __enter__(self) -> Self:
        """As :meth:`Job.__enter__`; then, after recovery, decide whether the existing postings are usable."""
        super().__enter__()
        sweep_lock(self.index.path)
        self.overwrite = self.overwrite or not _usable(self.index)
        return self

    def build(self, tick: Callable[[int], object] | None = None) -> dict[str, Any]:
        """Write and publish the postings; returns their counts and size in bytes."""
        made = self.begin() / "postings"
        made.mkdir()
        write_postings(self.forward, made, self.index.meta["digest"], self.window, tick)
        result = self.publish(made, {})
        self.index.record_part("postings")
        return result | _counts(self.index)

    def recorded(self) -> dict[str, Any]:
        """The ``meta.json`` of the existing postings as a job's record."""
        meta = _read_meta(self.target, self.index)
        return {
            "made_by": f"dupmae-ir {self.command}",
            "settings": {"window": meta["window"]},
            "inputs": {"index": meta["digest"]},
            "result": _counts(self.index),
        }

    def write_record(self, made: Path, record: Mapping[str, Any]) -> None:
        """Add the record to the ``meta.json`` that is already there."""
        write_json(made / "meta.json", {**json.loads((made / "meta.json").read_text(encoding="utf-8")), **record})

    def check_replaceable(self) -> None:
        """A folder of this name in an index folder is always this command's."""


def _usable(index: ImpactParts) -> bool:
    try:
        _opened(folder_of(index.path), index)
    except IndexMismatch:
        return False
    return True


def _counts(index: ImpactParts) -> dict[str, Any]:
    size = sum(file.stat().st_size for file in folder_of(index.path).iterdir())
    return {"documents": index.documents, "postings": index.meta["postings"], "bytes": size}


def built(index: ImpactParts) -> dict[str, str]:
    """``{"postings": size in words}``, or why they are unusable; empty where there are none."""
    if not folder_of(index.path).is_dir():
        return {}
    try:
        _read_meta(folder_of(index.path), index)
    except IndexMismatch as e:
        return {"postings": f"unusable: {e}"}
    if problem := index.part_problem("postings"):
        return {"postings": f"unusable: {problem}; {_AGAIN} {index.path}"}
    return {"postings": megabytes(sum(f.stat().st_size for f in folder_of(index.path).iterdir()))}


def write_postings(
    forward: Forward, folder: Path, digest: str, window: int = WINDOW, tick: Callable[[int], object] | None = None
) -> None:
    """Write the files into ``folder``, which exists and is empty, window by window."""
    if not 1 <= window <= MOST_ROWS:
        raise UsageError(f"a window must have 1 to {MOST_ROWS} rows, got {window}")
    with contextlib.ExitStack() as files:
        out = {name: NpyWriter(folder / f"{name}.npy", kind) for name, kind in FILES.items()}
        for writer in out.values():
            files.callback(writer.close)
        for name in ("starts", "column_starts"):
            out[name].add(np.zeros(1))
        for first in range(0, len(forward), window):
            last = min(first + window, len(forward))
            for name, values in _window(forward, first, last).items():
                out[name].add(values)
            out["starts"].add(np.array([out["rows"].count]))
            out["column_starts"].add(np.array([out["dense"].count]))
            if tick:
                tick(last - first)
    meta = {
        "format": FORMAT,
        "documents": len(forward),
        "postings": len(forward.terms),
        "vocabulary": forward.vocabulary,
        "window": window,
        "sparse": out["rows"].count,
        "dense": out["dense"].count,
        "digest": digest,
    }
    write_json(folder / "meta.json", meta)


def _window(forward: Forward, first: int, last: int) -> dict[str, np.ndarray]:
    """The postings of the rows from ``first`` to ``last`` (exclusive), by term and then by row."""
    indptr = np.asarray(forward.indptr[first : last + 1])
    terms = np.asarray(forward.terms[indptr[0] : indptr[-1]])
    order = np.argsort(terms, kind="stable")  # a radix sort for uint16; stable, so rows stay in order within a term
    rows = np.repeat(np.arange(last - first, dtype=np.uint16), np.diff(indptr))[order]
    impacts = np.asarray(forward.impacts[indptr[0] : indptr[-1]])[order]
    counts = np.bincount(terms, minlength=forward.vocabulary)
    starts = np.concatenate(([0], np.cumsum(counts)))
    maxima = np.zeros(forward.vocabulary, np.uint8)
    there = counts > 0  # reduceat cannot reduce an empty slice
    if there.any():
        maxima[there] = np.maximum.reduceat(impacts, starts[:-1][there])
    common = np.flatnonzero(there & (counts * DENSE >= last - first))[: np.iinfo(np.uint16).max]
    columns, dense = np.zeros(forward.vocabulary, np.uint16), np.zeros((len(common), last - first), np.uint8)
    columns[common] = np.arange(1, len(common) + 1)
    for column, term in enumerate(common):
        here = slice(starts[term], starts[term + 1])
        dense[column, rows[here]] = impacts[here]
    sparse = np.repeat(columns == 0, counts)
    return {
        "pointers": np.concatenate(([0], np.cumsum(np.where(columns == 0, counts, 0)))),
        "maxima": maxima,
        "rows": rows[sparse],
        "impacts": impacts[sparse],
        "columns": columns,
        "dense": dense.ravel(),
    }


class PostingsSearcher:
    """Exact inner products of impact queries with the documents of an index.

    Same contract as :class:`~dupmae_ir.index.lucene.impacts.ImpactSearcher`, except that scores are exact to 2**31 and
    that a query may have any number of terms. ``docid_ranks`` returns (n,) int64, the rank of each row's id among all
    ids; it is called only for ``by_docid``. Raises :class:`IndexMismatch` for postings that are missing, damaged, or
    made from another index, and :class:`EnvironmentProblem` without numba.
    """

    def __init__(self, index: ImpactParts, docid_ranks: Callable[[], np.ndarray]) -> None:
        need_packages("search by postings", ("numba", "threadpoolctl"), "speed")
        self.folder = folder_of(index.path)
        self._index = index
        self._docid_ranks = docid_ranks
        self.meta, files = _opened(self.folder, index)
        self._files = Files(**files)
        self.window, self.documents = int(self.meta["window"]), index.documents

    @cached_property
    def _kernels(self) -> ModuleType:
        from dupmae_ir.index.postings import kernels

        return kernels

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {term: number for number, term in enumerate(self._index.terms)}

    @cached_property
    def _ranks(self) -> np.ndarray:
        return np.ascontiguousarray(self._docid_ranks(), np.int64)

    @cached_property
    def _rows_by_docid(self) -> np.ndarray:
        return np.argsort(self._ranks)

    def top(
        self,
        queries: Sequence[dict[str, int]],
        k: int,
        threads: int = 1,
        by_docid: bool = False,
        allowed: RowSet | None = None,
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """The ``k`` best (allowed) rows of each query and their scores: (m,) int64 twice, m <= k, best first.

        As :meth:`ImpactSearcher.top`: rows that share no term are never returned, and equal scores come in row order,
        also at rank k; with ``by_docid`` in ascending docid order. Raises :class:`UsageError` for a weight that is
        not a positive whole number, and for a query that could score 2**31 or more. ``threads`` groups of queries run
        at a time.
        """
        if k < 1:
            raise UsageError(f"the number of hits must be at least 1, got {k}")
        queries = list(queries)
        k = max(1, min(k, self.documents))
        compiled = pays(len(queries) * self.documents)
        room = max(k, min(2 * k, self.documents)) + SLACK
        share = -(-len(queries) // max(1, threads))
        together = max(1, min(_TOGETHER, share, _KEYS // room))
        groups = [self._packed(queries[start : start + together]) for start in range(0, len(queries), together)]

        def search(group: Queries) -> list[tuple[np.ndarray, np.ndarray]]:
            if not compiled or (allowed is not None and self._few(allowed)):
                return self._scored(group, k, by_docid, allowed)
            return self._search(group, k, room, by_docid, allowed)

        if threads <= 1 or len(groups) < 2:
            return [found for group in groups for found in search(group)]

        if by_docid:
            _ = self._rows_by_docid  # once, not by each thread
        with ThreadPoolExecutor(min(threads, len(groups))) as pool:
            return [found for part in pool.map(search, groups) for found in part]

    def _few(self, allowed: RowSet) -> bool:
        return len(allowed) * FEW <= self.documents

    def _scored(
        self, queries: Queries, k: int, by_docid: bool, allowed: RowSet | None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """As :meth:`_search`, by the scores of every allowed row, without compiled loops over postings."""
        rows = np.arange(self.documents) if allowed is None else allowed.rows
        places = self._ranks[rows] if by_docid else rows
        found = []
        for terms, weights in _each(queries):
            scores = self._row_sums(terms, weights, allowed)
            keys = (scores << 32) | ((1 << 32) - 1 - places)
            found.append(_ranked(keys[scores > 0], k, self._rows_by_docid if by_docid else None))
        return found

    def _row_sums(self, terms: np.ndarray, weights: np.ndarray, allowed: RowSet | None) -> np.ndarray:
        """Sums of impacts of every allowed row, int64: from the forward index for few rows, otherwise from postings."""
        if allowed is not None and self._few(allowed):
            return self._index.forward.scores(allowed.rows, terms, weights)
        sums = np.zeros(self.documents, np.int64)
        for w, first in enumerate(range(0, self.documents, self.window)):
            _add_window(self._files, w, terms, weights, sums[first : first + self.window])
        return sums if allowed is None else sums[allowed.rows]

    def _search(
        self, queries: Queries, k: int, room: int, by_docid: bool, allowed: RowSet | None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        ranks = self._ranks if by_docid else np.zeros(0, np.int64)
        mask = _ALL if allowed is None else allowed.mask
        count = len(queries.starts) - 1
        keys, counts = np.empty((count, room), np.int64), np.zeros(count, np.int64)
        self._kernels.search(self._files, self.window, self.documents, queries, ranks, mask, k, keys, counts)
        rows_of = self._rows_by_docid if by_docid else None
        return [_ranked(keys[q, :found], k, rows_of) for q, found in enumerate(counts.tolist())]

    def best_sums(
        self,
        queries: Sequence[dict[str, int]],
        others: Others,
        unit: float,
        slacks: np.ndarray,
        k: int,
        threads: int = 1,
        allowed: RowSet | None = None,
    ) -> list[tuple[np.ndarray, np.ndarray] | None]:
        """Candidates for the ``k`` best rows by another score plus ``unit`` times the integer sum of impacts.

        Returns for each query the rows (m,) int64, ascending, and their integer sums (m,) int64: every row that can be
        among the ``k`` best, at least ``k`` if the index has as many. None for a query with too many rows that the
        error bound cannot separate.

        Args:
            queries: maps of terms to positive integer weights.
            others: returns the other score of m rows (a slice or their numbers): (q, m) float32, which is modified.
            unit: what one unit of the integer sum adds to the score.
            slacks: (q,) the largest error of the other score and of one float32 addition.
            k: number of best rows.
            threads: groups of queries searched at a time.
            allowed: the rows to search.
        """
        if (allowed is not None and self._few(allowed)) or not pays(len(queries) * self.documents):
            return self._plain_sums(self._packed(queries), others, unit, slacks, k, allowed)
        room, count = min(4 * k, self.documents) + _SPARE, len(queries)
        rows, sums = np.empty((count, room), np.int32), np.empty((count, room), np.int32)
        kept = Kept(rows, sums, np.empty((count, room), np.float32))
        counts = self._keep(kept, queries, others, unit, slacks, k, threads, allowed)
        return [
            None if found < 0 else _within(rows[q, :found], sums[q, :found], kept.totals[q, :found], k, slacks[q])
            for q, found in enumerate(counts.tolist())
        ]

    def _keep(
        self,
        kept: Kept,
        queries: Sequence[dict[str, int]],
        others: Others,
        unit: float,
        slacks: np.ndarray,
        k: int,
        threads: int,
        allowed: RowSet | None,
    ) -> np.ndarray:
        """Fill ``kept``, window by window; returns the number of rows of each query, -1 where there was no room."""
        count = len(queries)
        shares = [slice(start, start + -(-count // threads)) for start in range(0, count, -(-count // threads))]
        groups = [self._packed(queries[share]) for share in shares]
        counts, floors = np.zeros(count, np.int64), np.full(count, -np.inf)

        def one(share: slice, group: Queries, w: int, scores: np.ndarray) -> None:
            own = Kept(kept.rows[share], kept.sums[share], kept.totals[share])
            fixed = (w, self._files, self.window, self.documents, group, unit)
            self._kernels.search_sum(*fixed, scores[share], k, slacks[share], own, counts[share], floors[share])

        with ThreadPoolExecutor(len(groups)) as pool:  # starts threads when they get work
            for w, first in enumerate(range(0, self.documents, self.window)):
                scores = _in_window(others, first, min(first + self.window, self.documents), count, allowed)
                if scores is not None:
                    each = map if len(groups) == 1 else pool.map
                    list(each(one, shares, groups, itertools.repeat(w), itertools.repeat(scores)))
        return counts

    def _plain_sums(
        self, queries: Queries, others: Others, unit: float, slacks: np.ndarray, k: int, allowed: RowSet | None
    ) -> list[tuple[np.ndarray, np.ndarray] | None]:
        """As :meth:`best_sums`, by the sums of every allowed row, without compiled loops over postings."""
        asked, found = _each(queries), list[tuple[np.ndarray, np.ndarray] | None]()
        rows = np.arange(self.documents) if allowed is None else allowed.rows
        scores = others(slice(0, self.documents) if allowed is None else rows)
        for (terms, weights), other, slack in zip(asked, scores, slacks, strict=True):
            sums = self._row_sums(terms, weights, allowed)
            found.append(_within(rows, sums, other + sums.astype(np.float32) * np.float32(unit), k, slack))
        return found

    def _packed(self, queries: Sequence[dict[str, int]]) -> Queries:
        """The queries' terms that the index has, one query after the other. Weights are checked together."""
        lengths = [len(query) for query in queries]
        weights = np.fromiter((w for query in queries for w in query.values()), np.float64, sum(lengths))
        if not ((weights >= 1) & (weights == np.rint(weights))).all():
            raise UsageError(_wrong_weight(queries))
        ids = self._ids
        terms = np.fromiter((ids.get(t, -1) for query in queries for t in query), np.int64, sum(lengths))
        known, owner = terms >= 0, np.repeat(np.arange(len(queries)), lengths)[terms >= 0]
        weights = weights[known]
        if (np.bincount(owner, weights, len(queries)) * HIGHEST_IMPACT > HIGHEST_SCORE).any():
            raise UsageError(
                "a query could score 2**31 or more, which search by postings cannot represent; scale its weights down"
            )
        starts = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=len(queries)))))
        return Queries(starts, terms[known], weights.astype(np.int32))


def _opened(folder: Path, index: ImpactParts) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The meta and the memory-mapped files of the postings of ``index``. Raises :class:`IndexMismatch`."""
    meta = _read_meta(folder, index)
    index.check_part("postings", f"{_AGAIN} {index.path}")
    windows, vocabulary = -(-index.documents // meta["window"]), int(meta["vocabulary"])
    lengths = {
        "starts": windows + 1,
        "pointers": windows * (vocabulary + 1),
        "maxima": windows * vocabulary,
        "rows": meta["sparse"],
        "impacts": meta["sparse"],
        "columns": windows * vocabulary,
        "column_starts": windows + 1,
        "dense": meta["dense"],
    }
    files = {}
    for name, kind in FILES.items():
        path = folder / f"{name}.npy"
        files[name] = mapped(path, f"{_AGAIN} {index.path}")
        files[name].flags.writeable = False  # also of an empty file, which is not mapped: one compiled signature
        if (len(files[name]), files[name].dtype) != (lengths[name], np.dtype(kind)):
            raise IndexMismatch(
                f"{path} has {len(files[name])} numbers of type {files[name].dtype}, but its meta.json records "
                f"{lengths[name]} of {np.dtype(kind)}; {_AGAIN} {index.path}"
            )
    files["pointers"] = files["pointers"].reshape(windows, vocabulary + 1)
    for name in ("maxima", "columns"):
        files[name] = files[name].reshape(windows, vocabulary)
    return meta, files


def _wrong_weight(queries: Sequence[dict[str, int]]) -> str:
    term, weight = next((t, w) for query in queries for t, w in query.items() if not (w >= 1 and float(w).is_integer()))
    return f"the query weight of {term!r} must be a positive whole number, got {weight!r}"


def _ranked(keys: np.ndarray, k: int, rows_of: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Keys, in any order, to the ``k`` best rows and their scores."""
    best = np.sort(keys)[: -k - 1 : -1]
    places = (1 << 32) - 1 - (best & ((1 << 32) - 1))
    return places if rows_of is None else rows_of[places], best >> 32


def compare_postings(index: ImpactParts) -> str | None:
    """Decode the postings of ``index`` and compare them with the forward index, window by window.

    Returns the first difference in words; None where both have the same impacts. Raises :class:`IndexMismatch` for
    postings that cannot be opened.
    """
    folder = folder_of(index.path)
    meta, files = _opened(folder, index)
    at = dict.fromkeys(("rows", "impacts", "dense"), 0)
    for window, first in enumerate(range(0, index.documents, meta["window"])):
        last = min(first + meta["window"], index.documents)
        if [files["starts"][window], files["column_starts"][window]] != [at["rows"], at["dense"]]:
            return f"{folder}: window {window} begins elsewhere than the files record"
        for name, expected in _window(index.forward, first, last).items():
            start = at.get(name, 0)
            found = files[name][start : start + len(expected)] if name in at else files[name][window]
            if not np.array_equal(found, expected):
                return f"{folder / name}.npy differs from the forward index in rows {first:,} to {last - 1:,}"
            if name in at:
                at[name] += len(expected)
    return None


def _add_window(files: Files, w: int, terms: np.ndarray, weights: np.ndarray, sums: np.ndarray) -> None:
    """Add the impacts of a query in window ``w`` to ``sums``, (n,) int64 of the window's rows."""
    begin, columns, pointers = int(files.starts[w]), files.columns[w], files.pointers[w]
    for term, weight in zip(terms.tolist(), weights.tolist(), strict=True):
        if column := int(columns[term]):
            start = int(files.column_starts[w]) + (column - 1) * len(sums)
            sums += files.dense[start : start + len(sums)].astype(np.int64) * weight
        else:
            of, to = begin + int(pointers[term]), begin + int(pointers[term + 1])
            sums[files.rows[of:to]] += files.impacts[of:to].astype(np.int64) * weight  # a row has a term once


def _each(queries: Queries) -> list[tuple[np.ndarray, np.ndarray]]:
    """Terms and weights of each query."""
    parts = [slice(start, end) for start, end in itertools.pairwise(queries.starts.tolist())]
    return [(queries.terms[part], queries.weights[part]) for part in parts]


def _in_window(others: Others, first: int, last: int, queries: int, allowed: RowSet | None) -> np.ndarray | None:
    """The other scores of a window's rows, -inf for rows that are not allowed; None if no row is allowed."""
    if allowed is None:
        return others(slice(first, last))
    rows = allowed.between(first, last)
    if not len(rows):
        return None
    scores = np.full((queries, last - first), -np.inf, np.float32)
    scores[:, rows - first] = others(rows)
    return scores


def _within(
    rows: np.ndarray, sums: np.ndarray, totals: np.ndarray, k: int, slack: float
) -> tuple[np.ndarray, np.ndarray]:
    """The kept rows that can still be among the ``k`` best, with their sums."""
    if k < len(totals):
        kth = np.partition(totals, len(totals) - k)[len(totals) - k]
        near = totals >= float(kth) - 2 * slack
        rows, sums = rows[near], sums[near]
    return rows.astype(np.int64), sums.astype(np.int64)


def _read_meta(folder: Path, index: ImpactParts) -> dict[str, Any]:
    again = f"{_AGAIN} {index.path}"
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise IndexMismatch(f"{folder} has no postings; build them with: {again.partition(': ')[2]}") from None
    except ValueError as e:
        raise IndexMismatch(f"{folder / 'meta.json'} cannot be read: {e}; {again}") from None
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise IndexMismatch(f"{folder}: the postings are not of format {FORMAT}; {again}")
    expected = {
        "documents": index.documents,
        "postings": index.meta["postings"],
        "vocabulary": len(index.terms),
        "digest": index.meta["digest"],
    }
    if differing := [name for name, value in expected.items() if meta.get(name) != value]:
        raise IndexMismatch(f"{folder} was made from another index ({', '.join(differing)} differ); {again}")
    numbers = [meta.get(name) for name in ("window", "sparse", "dense")]
    if not all(isinstance(number, int) for number in numbers) or not 1 <= meta["window"] <= MOST_ROWS:
        raise IndexMismatch(f"{folder / 'meta.json'} lacks numbers; {again}")
    return meta
