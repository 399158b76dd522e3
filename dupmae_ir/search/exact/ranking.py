"""Ranks a batch of encoded queries by one mode: dense, impact, hybrid, or a fusion of two lists.

:class:`Ranker` chooses the algorithm. All of them return the exact top k of the requested score:

* :mod:`~dupmae_ir.search.exact.certified_topk` works with any index;
* :mod:`~dupmae_ir.search.exact.one_pass` is faster for large batches and requires postings;
* a fusion (:mod:`~dupmae_ir.search.fusion`) ranks by each part alone and combines the two lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dupmae_ir.index.conditions import Node
from dupmae_ir.index.format.row_set import RowSet
from dupmae_ir.search.candidates.bm25 import Bm25Part
from dupmae_ir.search.candidates.dense import DensePart
from dupmae_ir.search.candidates.impact import ImpactPart
from dupmae_ir.search.candidates.rotated_dense import Best
from dupmae_ir.search.candidates.segments import Dense, Impact, Rows, in_segments
from dupmae_ir.search.config import MODES, SearchSettings
from dupmae_ir.search.exact.certified_topk import Outcome, Part, Weighted, exact_top
from dupmae_ir.search.exact.hits import RankedHits
from dupmae_ir.search.exact.one_pass import MOST_HITS, scanned_top, summed_top
from dupmae_ir.search.fusion import Fusion, fuse
from dupmae_ir.search.opened_index import OpenedIndex
from dupmae_ir.search.query.encoder import EncodedQuery
from dupmae_ir.types import Hit, Query


@dataclass(frozen=True)
class ListReport:
    """Evidence for one query's list; a line of ``--report``. Depths are None for a part that was not searched."""

    qid: str
    exact: bool  #: certified: no document outside the list belongs in it
    depth_dense: int | None  #: length of the dense candidate list
    depth_impact: int | None  #: length of the impact candidate list
    candidates: int  #: documents scored exactly
    bound: (
        float | None
    )  #: upper bound on the score of an unseen document; None if none is unseen or nothing bounds it
    kth: float | None  #: score of the last hit
    hits: int
    depth_bm25: int | None = None  #: length of the BM25 candidate list
    depth_sum: int | None = None  #: length of the list of an engine that ranks by the sum
    reranked: int | None = (
        None  #: first hits that a reranker has ordered; the rest of the report is about candidates
    )
    rerank_seconds: float | None = None  #: what that took


@dataclass(frozen=True)
class Answer:
    """One query's hits, best first. ``report`` is None for BM25 and for fused lists.

    Dense, impact and hybrid lists are :class:`~dupmae_ir.search.exact.hits.RankedHits`, with arrays of rows and scores.
    """

    query: Query
    hits: Sequence[Hit]
    report: ListReport | None


@dataclass(frozen=True)
class Request:
    """What to retrieve: ``hits`` documents by ``mode``, or by a fusion of two lists of ``fusion_depth``."""

    mode: str
    hits: int
    remove_query: bool = False
    raw_impacts: bool = False
    fusion: Fusion | None = None
    fusion_depth: int = 0
    available: tuple[str, ...] = MODES[
        "hybrid"
    ]  #: parts to choose from; fewer where BM25 joins an index with one
    allowed: RowSet | None = None  #: the rows to search; None for all
    condition: Node | None = None  #: the condition on metadata that selects them, if one alone does
    shown: int | None = (
        None  #: length of the list after the first hits are reranked; None for no reranking
    )

    @property
    def name(self) -> str:
        """The mode, or ``fused``."""
        return "fused" if self.fusion else self.mode

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the index that are searched: ``cls``, ``ot``."""
        parts = MODES["hybrid" if self.fusion else self.mode]
        return tuple(part for part in parts if part in self.available)


@dataclass(frozen=True)
class Ranker:
    """Answers one :class:`Request` for a batch of queries."""

    index: OpenedIndex
    settings: SearchSettings
    request: Request
    encoded: Sequence[EncodedQuery]

    def rank(self, queries: Sequence[Query]) -> list[Answer]:
        """The answers to the queries that were encoded, in order."""
        if not queries:
            return []
        excluded: Rows = [None] * len(queries)
        if self.request.remove_query:
            rows = self.index.rows([query.qid for query in queries]).tolist()
            excluded = [None if row < 0 else row for row in rows]
        dense, impact = self._parts()
        if self.request.fusion:
            return self._fused(queries, dense, impact, excluded)
        opened = self.index.bm25(self.settings)
        texts, allowed = [query.text for query in queries], self.request.allowed
        bm25 = opened.queries(texts, self.settings.workers, allowed) if opened else None
        outcomes = self._one_pass(dense, impact, excluded) if bm25 is None else None
        if outcomes is None:
            outcomes = self._certified(dense, impact, self.request.hits, excluded, bm25)
        parts = (("dense", dense), ("impact", impact), ("bm25", bm25))
        names = [name for name, part in parts if part is not None]
        server = self.index.server(self.settings)
        if server and server.sums and len(names) == 2:
            names = ["sum"]
        return [
            Answer(q, self._hits(o), _report(q, o, names))
            for q, o in zip(queries, outcomes, strict=True)
        ]

    def blank(self, query: Query) -> Answer:
        """The answer to a query without text: no hits."""
        if self.request.fusion:
            return Answer(query, [], None)
        dense, impact = (0 if part in self.request.parts else None for part in ("cls", "ot"))
        bm25 = 0 if self.settings.bm25_index else None
        return Answer(query, [], ListReport(query.qid, True, dense, impact, 0, None, None, 0, bm25))

    def _parts(self) -> tuple[Dense | None, Impact | None]:
        """The parts of the score for this batch; None for a part that is not searched."""
        request, settings = self.request, self.settings
        dense: Dense | None = None
        impact: Impact | None = None
        if "cls" in request.parts:
            vectors = np.stack([q.cls for q in self.encoded])
            dense = self.index.dense(settings).queries(vectors, settings.workers, request.allowed)
        if "ot" in request.parts:
            weights = [q.ot for q in self.encoded]
            impact = self.index.impact(settings).queries(
                weights, settings.workers, request.raw_impacts, request.allowed
            )
        return dense, impact

    def _certified(
        self,
        dense: Dense | None,
        impact: Impact | None,
        hits: int,
        excluded: Rows,
        bm25: Bm25Part | None = None,
    ) -> Sequence[Outcome]:
        settings, request = self.settings, self.request
        weights = self.index.weights(settings)
        weighted = ((dense, weights[0]), (impact, weights[1]), (bm25, settings.bm25_weight))
        summands = [(part, weight) for part, weight in weighted if part is not None]
        # The score of a part alone is not weighted.
        parts: list[Part] = [
            Weighted(part, weight) if len(summands) > 1 else part for part, weight in summands
        ]
        server = self.index.server(settings)
        if server is not None:
            unit, rows = (
                1.0 if request.raw_impacts or impact is None else self.index.scale**2,
                self.index.rows,
            )
            parts = server.parts(
                self.encoded, dense, impact, unit, weights, rows, request.allowed, request.condition
            )
        return exact_top(
            parts,
            len(excluded),
            self.index.folder.docid_rank,
            hits,
            excluded=excluded,
            # A document without a matching term is no hit of an impact search.
            floor=0.0 if dense is None else -np.inf,
            max_depth=server.limited(settings.max_depth) if server else settings.max_depth,
            allowed=request.allowed,
            first=server.first_depth(len(parts), hits) if server else 0,
        )

    def _one_pass(
        self, dense: Dense | None, impact: Impact | None, excluded: Rows
    ) -> Sequence[Outcome] | None:
        """Outcomes from one pass over the postings; None if that does not apply or does not settle all queries."""
        settings, hits = self.settings, self.request.hits
        if (
            impact is None
            or settings.server
            or self.index.impact_search(settings)[0] != "postings"
            or settings.max_depth
        ):
            return None
        if dense is not None and hits > MOST_HITS:
            return None
        return in_segments(dense, impact, excluded, hits, self._segment_pass)

    def _segment_pass(
        self,
        dense: DensePart | None,
        impact: ImpactPart,
        segment: int,
        ranks: np.ndarray,
        excluded: Rows,
        best: Best,
    ) -> Sequence[Outcome] | None:
        """One pass over the postings of one segment."""
        settings, hits, workers = self.settings, self.request.hits, self.settings.workers
        postings = self.index.folder.segments[segment].postings
        if dense is None:
            return summed_top(impact, postings, ranks, hits, excluded, workers)
        weights = self.index.weights(settings)
        outcomes = scanned_top(
            dense, impact, postings, weights, ranks, hits, excluded, workers, best
        )
        settled = [outcome for outcome in outcomes if outcome is not None]
        return settled if len(settled) == len(outcomes) else None

    def _fused(
        self, queries: Sequence[Query], dense: Dense | None, impact: Impact | None, excluded: Rows
    ) -> list[Answer]:
        fusion, hits, depth = self.request.fusion, self.request.hits, self.request.fusion_depth
        assert fusion is not None
        by_dense = self._certified(dense, None, depth, excluded)
        by_impact = self._certified(None, impact, depth, excluded)
        return [
            Answer(query, fuse(fusion, self._hits(d), self._hits(i), hits), None)
            for query, d, i in zip(queries, by_dense, by_impact, strict=True)
        ]

    def _hits(self, outcome: Outcome) -> RankedHits:
        return RankedHits(outcome.rows, outcome.scores, self.index.folder.docids)


def _report(query: Query, outcome: Outcome, parts: list[str]) -> ListReport:
    depths = dict(zip(parts, outcome.depths, strict=True))
    return ListReport(
        qid=query.qid,
        exact=outcome.exact,
        depth_dense=depths.get("dense"),
        depth_impact=depths.get("impact"),
        candidates=outcome.candidates,
        bound=outcome.bound if np.isfinite(outcome.bound) else None,
        kth=float(outcome.scores[-1]) if len(outcome.scores) else None,
        hits=len(outcome.rows),
        depth_bm25=depths.get("bm25"),
        depth_sum=depths.get("sum"),
    )
