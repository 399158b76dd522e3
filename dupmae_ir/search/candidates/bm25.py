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

MIN_FETCHED = 10_000
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
        selection = row_set(allowed, len(self.folder.docids))
        numbers = None
        if selection is not None:
            # A row of the folder has another number in the BM25 index, and deleted rows have none.
            numbers = row_set(selection.mask[self._rows], len(self._rows))
        return Bm25Part(self, texts, threads, numbers)

    def top(
        self, texts: Sequence[str], k: int, threads: int, allowed: RowSet | None = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """The ``k`` best rows of the folder for each text, best first, and their scores; only rows that match.

        ``allowed``: the document numbers of the BM25 index to search.
        """
        lists = self.bm25.top(texts, k, threads, allowed)
        return [(self._rows[numbers], scores) for numbers, scores in lists]

    def scores(self, text: str, rows: np.ndarray) -> np.ndarray:
        """Scores of (m,) rows of the folder: (m,) float64, 0 for a document without a word of the query."""
        wanted = [self.folder.docids[row] for row in rows.tolist()]
        scores = {}
        for number, score in self.bm25.scores(text, wanted):
            scores[int(self._rows[number])] = score
        return np.array([scores.get(row, 0.0) for row in rows.tolist()])


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
        missing = [query for query in queries if not self._suffices(query, depth)]
        if missing:
            count = max(depth, MIN_FETCHED)
            texts = [self.texts[query] for query in missing]
            lists = self.index.top(texts, count, self.threads, self.allowed)
            for query, (rows, scores) in zip(missing, lists, strict=True):
                self._lists[query] = (rows, scores)
                if len(rows) < count:
                    self._everything.add(query)
        return [self._candidates(query, depth) for query in queries]

    def _suffices(self, query: int, depth: int) -> bool:
        """Whether the list that was fetched for a query has ``depth`` rows, or all that match."""
        if query in self._everything:
            return True
        if query not in self._lists:
            return False
        rows, _ = self._lists[query]
        return len(rows) >= depth

    def scores(self, query: int, rows: np.ndarray) -> np.ndarray:
        """Lucene's scores of (m,) rows: (m,) float64."""
        if query not in self._lists:
            return self.index.scores(self.texts[query], rows)
        listed_rows, listed_scores = self._lists[query]
        scores = np.zeros(len(rows))
        is_listed = np.zeros(len(rows), bool)
        if len(listed_rows):
            order = np.argsort(listed_rows)
            positions = np.searchsorted(listed_rows, rows, sorter=order)
            # A row above the highest of the list would be looked up behind its end.
            entries = order[np.minimum(positions, len(order) - 1)]
            is_listed = listed_rows[entries] == rows
            scores[is_listed] = listed_scores[entries[is_listed]]
        if query not in self._everything and not is_listed.all():
            scores[~is_listed] = self.index.scores(self.texts[query], rows[~is_listed])
        return scores

    def _candidates(self, query: int, depth: int) -> Candidates:
        rows, scores = self._lists[query]
        if len(rows) <= depth and query in self._everything:
            return Candidates(rows, 0.0, True)
        last_score = float(scores[min(depth, len(rows)) - 1])
        return Candidates(rows[:depth], last_score * _ROUNDING, False)


def _matching_rows(bm25: BM25Searcher, folder: Index) -> np.ndarray:
    """(n,) int64: the folder's row of each document number of the BM25 index."""
    live = folder.live.tolist()
    row_of = {docid: row for row, docid in enumerate(folder.docids) if live[row]}
    numbers, docids = bm25.docids()
    theirs = set(docids)
    if theirs != row_of.keys() or len(docids) != len(theirs):
        difference = "ids occur twice"
        only_in_bm25 = [docid for docid in docids if docid not in row_of]
        only_in_folder = [docid for docid in row_of if docid not in theirs]
        if only_in_folder:
            difference = f"{only_in_folder[0]!r} is only in {folder.path}"
        elif only_in_bm25:
            difference = f"{only_in_bm25[0]!r} is only in {bm25.folder}"
        raise IndexMismatch(
            f"{bm25.folder} has {len(docids):,} documents and {folder.path} {len(row_of):,}, not the same ones: "
            f"{difference}; build it again with 'dupmae-ir index bm25' from the same collection"
        )
    rows = np.empty(len(docids), np.int64)
    rows[numbers] = [row_of[docid] for docid in docids]
    return rows
