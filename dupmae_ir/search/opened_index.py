"""An index folder opened for searching: each part is opened on first use and shared by all searchers of the folder."""

from __future__ import annotations

import bisect
from functools import cached_property

import numpy as np

from dupmae_ir.device import pick_impact_search
from dupmae_ir.errors import UnknownName
from dupmae_ir.index.config import FLAT
from dupmae_ir.index.format.row_set import RowSet, row_set
from dupmae_ir.index.format.segments import AnyIndex, SegmentedIndex, folders_of, live_rows
from dupmae_ir.index.index import Index
from dupmae_ir.index.lucene.bm25 import BM25Searcher
from dupmae_ir.search.candidates.bm25 import Bm25Index
from dupmae_ir.search.candidates.dense import DenseIndex, open_flat
from dupmae_ir.search.candidates.impact import ImpactIndex, Postings
from dupmae_ir.search.candidates.segments import SegmentedDense, SegmentedImpact, Splits
from dupmae_ir.search.candidates.server import ServerIndex
from dupmae_ir.search.config import SearchSettings


class OpenedIndex:
    """The parts of ``folder`` as :class:`SearchSettings` select them; of all segments, if it has several."""

    def __init__(self, folder: AnyIndex) -> None:
        self.folder = folder
        self._dense: dict[tuple[str, int, int], DenseIndex | SegmentedDense] = {}
        self._engines: dict[str, tuple[str, str]] = {}
        self._impact: dict[str, ImpactIndex | SegmentedImpact] = {}
        self._bm25: dict[tuple[str, float, float], Bm25Index] = {}
        self._servers: dict[tuple[str, str | None, bool, float], ServerIndex] = {}

    @property
    def parts(self) -> tuple[str, ...]:
        """``cls`` and ``ot``, as far as the index has them."""
        return tuple(self.folder.meta["parts"])

    @property
    def scale(self) -> float:
        """The impact scale; 1 for an index without impacts."""
        return self.folder.scale or 1.0

    def dense(self, settings: SearchSettings) -> DenseIndex | SegmentedDense:
        """The dense part. Raises :class:`IndexMismatch` if ``settings.dense_index`` is not built or out of date."""
        key = (settings.dense_index, settings.nprobe, settings.ef_search)
        if key not in self._dense:
            if isinstance(self.folder, SegmentedIndex):
                segments = [_dense(folder, *key) for folder in self.folder.folders]
                self._dense[key] = SegmentedDense(self.folder, self._splits, segments)
            else:
                self._dense[key] = _dense(self.folder, *key)
        return self._dense[key]

    def impact_search(self, settings: SearchSettings) -> tuple[str, str]:
        """How impacts are searched, ``lucene`` or ``postings``, and the reason for the choice."""
        if (wanted := settings.impact_search) not in self._engines:
            folders = folders_of(self.folder)
            choices = [pick_impact_search(wanted, folder.path, folder.postings_problem) for folder in folders]
            self._engines[wanted] = next((choice for choice in choices if choice[0] == "lucene"), choices[0])
        return self._engines[wanted]

    def impact(self, settings: SearchSettings) -> ImpactIndex | SegmentedImpact:
        """The impact part. The engine itself is opened when candidates are first needed."""
        how, _ = self.impact_search(settings)
        if how not in self._impact:
            if isinstance(self.folder, SegmentedIndex):
                segments = [_impact(folder, how) for folder in self.folder.folders]
                self._impact[how] = SegmentedImpact(self.folder, self._splits, segments)
            else:
                self._impact[how] = _impact(self.folder, how)
        return self._impact[how]

    def bm25(self, settings: SearchSettings) -> Bm25Index | None:
        """The BM25 index that joins hybrid scores; None without one.

        Raises :class:`IndexMismatch` for a folder that is not a Lucene index or has other documents.
        """
        if settings.bm25_index is None:
            return None
        key = (settings.bm25_index, settings.k1, settings.b)
        if key not in self._bm25:
            self._bm25[key] = Bm25Index(BM25Searcher(*key), self.folder)
        return self._bm25[key]

    def server(self, settings: SearchSettings) -> ServerIndex | None:
        """The copy of the index on a server that proposes candidates; None without one.

        Raises :class:`IndexMismatch` for a collection that does not hold this index.
        """
        if settings.server is None:
            return None
        key = (settings.server, settings.collection, settings.approximate, settings.timeout)
        if key not in self._servers:
            self._servers[key] = ServerIndex.open(self.folder, *key)
        return self._servers[key]

    def row(self, docid: str) -> int | None:
        """The row of a document; None if the index does not contain it."""
        docids = self.folder.docids
        place = bisect.bisect_left(self._by_docid, docid, key=lambda row: docids[row])
        found = place < len(self._by_docid) and docids[self._by_docid[place]] == docid
        return int(self._by_docid[place]) if found else None

    def known_row(self, docid: str) -> int:
        """The row of a document. Raises :class:`UnknownName` if the index does not contain it."""
        row = self.row(docid)
        if row is None:
            path = self.folder.path
            raise UnknownName(f"{path} has no document {docid!r}; {path}/docid lists all ids")
        return row

    @cached_property
    def live(self) -> RowSet | None:
        """The rows that are not deleted; None for all."""
        return row_set(live_rows(self.folder), self.folder.rows)

    @cached_property
    def _by_docid(self) -> np.ndarray:
        """(n,) rows in the order of their docids, without deleted ones."""
        order = np.argsort(self.folder.docid_rank)
        return order[live_rows(self.folder)[order]]

    @cached_property
    def _splits(self) -> Splits:
        assert isinstance(self.folder, SegmentedIndex)
        return Splits(self.folder)


def _dense(folder: Index, kind: str, nprobe: int, ef_search: int) -> DenseIndex:
    """The dense part of a segment. One without documents has no other kind than the flat one."""
    if kind == FLAT or not folder.documents:
        return open_flat(folder)
    from dupmae_ir.search.candidates.quantised_dense import (
        open_dense,  # imports faiss, which takes a twentieth of a second
    )

    return open_dense(folder, kind, nprobe, ef_search)


def _impact(folder: Index, how: str) -> ImpactIndex:
    def open_postings() -> Postings:
        return folder.postings if how == "postings" else folder.searcher

    return ImpactIndex(open_postings, folder.forward, folder.terms, folder.scale or 1.0, folder.documents)
