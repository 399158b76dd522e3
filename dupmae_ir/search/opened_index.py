"""An index folder opened for searching: each part is opened on first use and shared by all searchers of the folder."""

from __future__ import annotations

import bisect
from functools import cached_property

import numpy as np

from dupmae_ir.device import pick_engine
from dupmae_ir.errors import UnknownName
from dupmae_ir.index.bm25 import BM25Searcher
from dupmae_ir.index.folder import IndexFolder
from dupmae_ir.search.bm25 import Bm25Index
from dupmae_ir.search.config import SearchSettings
from dupmae_ir.search.dense import DenseIndex
from dupmae_ir.search.impact import ImpactIndex, Postings
from dupmae_ir.search.quantised_dense import open_dense


class OpenedIndex:
    """The parts of ``folder`` as :class:`SearchSettings` select them."""

    def __init__(self, folder: IndexFolder) -> None:
        self.folder = folder
        self._dense: dict[tuple[str, int, int], DenseIndex] = {}
        self._impact: dict[str, ImpactIndex] = {}
        self._bm25: dict[tuple[str, float, float], Bm25Index] = {}

    @property
    def parts(self) -> tuple[str, ...]:
        """``cls`` and ``ot``, as far as the index has them."""
        return tuple(self.folder.meta["parts"])

    @property
    def scale(self) -> float:
        """The impact scale; 1 for an index without impacts."""
        return self.folder.scale or 1.0

    def dense(self, settings: SearchSettings) -> DenseIndex:
        """The dense part. Raises :class:`IndexMismatch` if ``settings.dense_index`` is not built or out of date."""
        key = (settings.dense_index, settings.nprobe, settings.ef_search)
        if key not in self._dense:
            self._dense[key] = open_dense(self.folder, *key)
        return self._dense[key]

    def engine(self, settings: SearchSettings) -> tuple[str, str]:
        """The engine for impacts, ``lucene`` or ``postings``, and the reason for the choice."""
        return pick_engine(settings.engine, self.folder.path)

    def impact(self, settings: SearchSettings) -> ImpactIndex:
        """The impact part. The engine itself is opened when candidates are first needed."""
        engine, _ = self.engine(settings)
        if engine not in self._impact:
            folder = self.folder

            def open_postings() -> Postings:
                return folder.postings if engine == "postings" else folder.searcher

            self._impact[engine] = ImpactIndex(
                open_postings, folder.forward, folder.terms, self.scale, folder.documents
            )
        return self._impact[engine]

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

    def row(self, docid: str) -> int | None:
        """The row of a document; None if the index does not contain it."""
        docids = self.folder.docids
        place = bisect.bisect_left(self._by_docid, docid, key=lambda row: docids[row])
        found = place < len(docids) and docids[self._by_docid[place]] == docid
        return int(self._by_docid[place]) if found else None

    def known_row(self, docid: str) -> int:
        """The row of a document. Raises :class:`UnknownName` if the index does not contain it."""
        row = self.row(docid)
        if row is None:
            path = self.folder.path
            raise UnknownName(f"{path} has no document {docid!r}; {path}/docid lists all ids")
        return row

    @cached_property
    def _by_docid(self) -> np.ndarray:
        """(n,) rows in the order of their docids."""
        return np.argsort(self.folder.docid_rank)
