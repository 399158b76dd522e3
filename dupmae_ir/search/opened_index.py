"""An index folder opened for searching: each part is opened on first use and shared by all searchers of the folder."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import cast

import numpy as np

from dupmae_ir.device import pick_impact_search
from dupmae_ir.errors import UnknownName, UsageError
from dupmae_ir.index.dense_kinds import FLAT, ROTATED
from dupmae_ir.index.format.rotated import PART, open_rotated
from dupmae_ir.index.format.row_set import RowSet, row_set
from dupmae_ir.index.format.segment import Segment
from dupmae_ir.index.index import Index
from dupmae_ir.index.lucene.bm25 import BM25Searcher
from dupmae_ir.models.inference.pair_model import LazyCrossEncoder, PairModel
from dupmae_ir.models.names import model_folder
from dupmae_ir.search.candidates.bm25 import Bm25Index
from dupmae_ir.search.candidates.dense import DenseIndex, FlatOnDemand, open_flat
from dupmae_ir.search.candidates.excerpts import ExcerptIndex
from dupmae_ir.search.candidates.impact import ImpactIndex, Postings
from dupmae_ir.search.candidates.rotated_dense import RotatedIndex
from dupmae_ir.search.candidates.segments import SegmentedDense, SegmentedImpact, Splits
from dupmae_ir.search.candidates.served import ServedSegment
from dupmae_ir.search.candidates.server import ServerIndex
from dupmae_ir.search.config import SearchSettings
from dupmae_ir.types import Encoder, Reranker


class OpenedIndex:
    """The parts of ``folder`` as :class:`SearchSettings` select them; of all segments, if it has several."""

    def __init__(self, folder: Index, served: ServedSegment | None = None) -> None:
        """``served``: the only segment of ``folder``, if it is in memory."""
        self.folder = folder
        self._served = served
        self._dense: dict[str, SegmentedDense] = {}
        self._impact_searches: dict[str, tuple[str, str]] = {}
        self._impact: dict[str, SegmentedImpact] = {}
        self._bm25: dict[tuple[str, float, float], Bm25Index] = {}
        self._rerankers: dict[str, Reranker] = {}
        self._servers: dict[tuple[str, str | None, bool, float], ServerIndex] = {}

    def for_rows(self, settings: SearchSettings, texts: bool = False) -> OpenedIndex:
        """This index. For a record: an index without rows, which reads them, with their ``texts``, from the server on
        demand."""
        if self.folder.segments:
            return self
        server = self.server(settings)
        if server is None:
            raise UsageError(
                f"{self.folder.path} is the record of an index; give the `server` that has its rows"
            )
        segment = ServedSegment(self.folder, server, texts)
        live = np.ones(self.folder.documents, np.bool_)
        opened = OpenedIndex(
            Index(self.folder.path, self.folder.manifest, [cast(Segment, segment)], live), segment
        )
        opened._servers = self._servers
        return opened

    @property
    def parts(self) -> tuple[str, ...]:
        """``cls`` and ``ot``, as far as the index has them."""
        return tuple(self.folder.meta["parts"])

    @property
    def scale(self) -> float:
        """The impact scale; 1 for an index without impacts."""
        return self.folder.scale or 1.0

    def weights(self, settings: SearchSettings) -> tuple[float, float]:
        """The weights of the dense and the impact score in the sum: those of the settings, else the index's."""
        dense, impact = self.folder.part_weights
        if settings.dense_weight is not None:
            dense = settings.dense_weight
        if settings.impact_weight is not None:
            impact = settings.impact_weight
        return dense, impact

    def dense(self, settings: SearchSettings) -> SegmentedDense:
        """The dense part. Raises :class:`IndexMismatch` if ``settings.dense_index`` is not built or out of date."""
        key = settings.dense_index
        if key not in self._dense:
            segments = [self._dense_of(segment, key) for segment in self.folder.segments]
            self._dense[key] = SegmentedDense(self.folder, self._splits, segments)
        return self._dense[key]

    def _dense_of(self, segment: Segment, kind: str) -> DenseIndex:
        """The dense part of a segment; ``auto`` is its codes if it has them. One without documents has none."""
        excerpts = self.folder.excerpts
        if excerpts is not None:
            if kind == ROTATED:
                raise UsageError(
                    f"{self.folder.path}: vectors of excerpts have no codes; leave `dense_index` out"
                )
            assert segment.excerpts is not None, "every segment of the index has them"
            return ExcerptIndex(segment.vectors, segment.excerpts, excerpts["share"])
        has_codes = kind == ROTATED or segment.has_part(PART)
        if kind == FLAT or not segment.documents or not has_codes:
            return open_flat(segment)
        return RotatedIndex(FlatOnDemand(segment), segment.vectors, open_rotated(segment))

    def impact_search(self, settings: SearchSettings) -> tuple[str, str]:
        """How impacts are searched, ``lucene`` or ``postings``, and the reason for the choice."""
        requested = settings.impact_search
        if requested not in self._impact_searches:
            choices = []
            for segment in self.folder.segments:
                choices.append(
                    pick_impact_search(requested, segment.path, segment.postings_problem)
                )
            # All segments are searched in one way: by Lucene, if one of them has to be.
            by_lucene = [choice for choice in choices if choice[0] == "lucene"]
            self._impact_searches[requested] = (by_lucene or choices)[0]
        return self._impact_searches[requested]

    def impact(self, settings: SearchSettings) -> SegmentedImpact:
        """The impact part. The engine itself is opened when candidates are first needed."""
        how, _ = self.impact_search(settings)
        if how not in self._impact:
            segments = [_impact(segment, how) for segment in self.folder.segments]
            self._impact[how] = SegmentedImpact(self.folder, self._splits, segments)
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
        key = (settings.server, settings.table, settings.approximate, settings.timeout)
        if key not in self._servers:
            self._servers[key] = ServerIndex(self.folder, *key)
        return self._servers[key]

    def reranker(self, settings: SearchSettings, encoder: Encoder) -> Reranker | None:
        """The reranker of the settings; None without one. Raises :class:`UsageError` for an index without texts."""
        if settings.rerank is None:
            return None
        if settings.rerank not in self._rerankers:
            if not self.folder.has_texts:
                raise UsageError(
                    f"{self.folder.path}: stores no texts, which `rerank` reads; encode with `store_texts`"
                )
            self._rerankers[settings.rerank] = _open_reranker(settings.rerank, encoder)
        return self._rerankers[settings.rerank]

    def rows(self, docids: Sequence[str]) -> np.ndarray:
        """(m,) int64: the rows of documents; -1 for one that the index does not contain."""
        if self._served:
            return self._served.rows(docids)
        names = self.folder.docids
        order = self._by_docid
        rows = np.full(len(docids), -1)
        # A binary search needs no dictionary of all ids.
        for number, docid in enumerate(docids):
            position = bisect.bisect_left(order, docid, key=lambda row: names[row])
            if position < len(order) and names[order[position]] == docid:
                rows[number] = order[position]
        return rows

    def known_rows(self, docids: Sequence[str]) -> np.ndarray:
        """:meth:`rows`. Raises :class:`UnknownName` for a document that the index does not contain."""
        rows = self.rows(docids)
        if -1 in rows:
            path = self.folder.path
            docid = docids[rows.tolist().index(-1)]
            raise UnknownName(f"{path} has no document {docid!r}; {path}/docid lists all ids")
        return rows

    @cached_property
    def live(self) -> RowSet | None:
        """The rows that are not deleted; None for all."""
        return row_set(self.folder.live, self.folder.rows)

    @cached_property
    def _by_docid(self) -> np.ndarray:
        """(n,) rows in the order of their docids, without deleted ones."""
        order = np.argsort(self.folder.docid_rank)
        return order[self.folder.live[order]]

    @cached_property
    def _splits(self) -> Splits:
        return Splits(self.folder)


def _impact(segment: Segment, how: str) -> ImpactIndex:
    def open_postings() -> Postings:
        return segment.postings if how == "postings" else segment.searcher

    return ImpactIndex(
        open_postings, segment.forward, segment.terms, segment.scale or 1.0, segment.documents
    )


def _open_reranker(model: str, encoder: Encoder) -> Reranker:
    device = encoder.settings.device

    def with_torch() -> Reranker:
        # Torch takes a second to import.
        from dupmae_ir.models.reranker import open_reranker

        return open_reranker(model, encoder, device)

    if device == "cpu":
        quick = _read_pair_model(model_folder(model))
        if quick is not None:
            return LazyCrossEncoder(quick, with_torch)
    return with_torch()


@lru_cache(1)
def _read_pair_model(folder: Path) -> PairModel | None:
    """The same for all indexes of a process."""
    return PairModel.read(folder)
