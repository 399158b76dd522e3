"""The BM25 part of a hybrid score: candidates and scores from a Lucene index of the same collection.

A score is Lucene's, in float32. It does not depend on the other documents of the list: Lucene adds the shares of the
query's words in float64, where the sum of so few float32 numbers is exact, and rounds it once.

Documents correspond by id, so the rows of the two indexes may be in different orders.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dupmae_ir.errors import IndexMismatch
from dupmae_ir.index.format.row_set import RowSet, row_set
from dupmae_ir.index.index import Index
from dupmae_ir.index.lucene.bm25 import BM25Searcher
from dupmae_ir.search.exact.certified_topk import Candidates

KEPT = 10_000
"""Hits fetched per query at least. In a collection with fewer matches no document needs a second query."""
_ROUNDING = 1 + 2.0**-22
"""Margin of a bound for the rounding of float32, generously."""


class Bm25Index:
    """A BM25 index whose documents are those of an index folder."""

    def __init__(self, bm25: BM25Searcher, folder: Index) -> None:
        """Match the documents by id. Raises :class:`IndexMismatch` if the two indexes have different documents."""
        self.bm25 = bm25
        self.folder = folder
        self._rows = _matching_rows(bm25, folder)

    def queries(
        self, texts: Sequence[str], threads: int = 1, allowed: np.ndarray | RowSet | None = None
    ) -> Bm25Part:
        """The BM25 part of a search for these texts; ``allowed``: the folder's rows to search, (n,) bool."""
        chosen = row_set(allowed, len(self.folder.docids))
        # A row of the folder has another number in the BM25 index, and deleted rows have none.
        numbers = None if chosen is None else row_set(chosen.mask[self._rows], len(self._rows))
        return Bm25Part(self, texts, threads, numbers)

    def top(
        self, texts: Sequence[str], k: int, threads: int, allowed: RowSet | None = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """The ``k`` best rows of the folder for each text, best first, and their scores; only rows that match.

        ``allowed``: the document numbers of the BM25 index to search.
        """
        return [
            (self._rows[rows], scores) for rows, scores in self.bm25.top(texts, k, threads, allowed)
        ]

    def scores(self, text: str, rows: np.ndarray) -> np.ndarray:
        """Scores of (m,) rows of the folder: (m,) float64, 0 for a document without a word of the query."""
        docids = self.folder.docids
        matches = {
            int(self._rows[row]): score
            for row, score in self.bm25.scores(text, [docids[row] for row in rows.tolist()])
        }
        return np.array([matches.get(row, 0.0) for row in rows.tolist()])


class Bm25Part:
    """One batch of queries against a :class:`Bm25Index`; a :class:`~dupmae_ir.search.exact.certified_topk.Part`."""

    def __init__(
        self, index: Bm25Index, texts: Sequence[str], threads: int, allowed: RowSet | None = None
    ) -> None:
        self.index = index
        self.allowed = allowed
        self.texts = texts
        self.threads = threads
        self._lists: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._everything: set[int] = set()  #: queries for which the list has all matches

    def top(self, queries: Sequence[int], depth: int) -> list[Candidates]:
        """The ``depth`` best rows of each query; a row outside the list of all matches scores 0."""
        missing = [
            q
            for q in queries
            if q not in self._everything
            and (q not in self._lists or depth > len(self._lists[q][0]))
        ]
        least = max(depth, KEPT)
        lists = (
            self.index.top([self.texts[q] for q in missing], least, self.threads, self.allowed)
            if missing
            else []
        )
        for query, matches in zip(missing, lists, strict=True):
            self._lists[query] = matches
            if len(matches[0]) < least:
                self._everything.add(query)
        return [self._candidates(query, depth) for query in queries]

    def scores(self, query: int, rows: np.ndarray) -> np.ndarray:
        """Lucene's scores of (m,) rows: (m,) float64."""
        if query not in self._lists:
            return self.index.scores(self.texts[query], rows)
        known, values = self._lists[query]
        order = np.argsort(known)
        known, values = known[order], values[order]
        positions = np.minimum(np.searchsorted(known, rows), max(0, len(known) - 1))
        listed = known[positions] == rows if len(known) else np.zeros(len(rows), bool)
        out = np.zeros(len(rows))
        out[listed] = values[positions[listed]]
        if query not in self._everything and not listed.all():
            out[~listed] = self.index.scores(self.texts[query], rows[~listed])
        return out

    def _candidates(self, query: int, depth: int) -> Candidates:
        rows, scores = self._lists[query]
        if len(rows) <= depth and query in self._everything:
            return Candidates(rows, 0.0, True)
        return Candidates(rows[:depth], float(scores[min(depth, len(rows)) - 1]) * _ROUNDING, False)


def _matching_rows(bm25: BM25Searcher, folder: Index) -> np.ndarray:
    """(n,) int64: the folder's row of each document number of the BM25 index."""
    live = folder.live.tolist()
    row_of = {docid: row for row, docid in enumerate(folder.docids) if live[row]}
    numbers, docids = bm25.docids()
    theirs = set(docids)
    if theirs != row_of.keys() or len(docids) != len(theirs):
        here = next(
            (f"{docid!r} is only in {folder.path}" for docid in row_of if docid not in theirs), None
        )
        there = next(
            (f"{docid!r} is only in {bm25.folder}" for docid in docids if docid not in row_of), None
        )
        raise IndexMismatch(
            f"{bm25.folder} has {len(docids):,} documents and {folder.path} {len(row_of):,}, not the same ones: "
            f"{here or there or 'ids occur twice'}; build it again with 'dupmae-ir index bm25' from the same "
            "collection"
        )
    rows = np.empty(len(docids), np.int64)
    rows[numbers] = [row_of[docid] for docid in docids]
    return rows
