"""Ranks a batch of encoded queries by one mode: dense, impact, hybrid, or a fusion of two lists.

:class:`Ranker` chooses the algorithm. All of them return the exact top k of the requested score:

* :mod:`~dupmae_ir.search.exact.certified_topk` works with any index;
* :mod:`~dupmae_ir.search.exact.one_pass` is faster for large batches and requires postings;
* a fusion (:mod:`~dupmae_ir.search.fusion`) ranks by each part alone and combines the two lists.
"""

from __future__ import annotations

import dataclasses
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
from dupmae_ir.search.exact.one_pass import MAX_HITS, scanned_top, summed_top
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
    #: upper bound on the score of an unseen document; None if none is unseen or nothing bounds it
    bound: float | None
    kth: float | None  #: score of the last hit
    hits: int
    depth_bm25: int | None = None  #: length of the BM25 candidate list
    depth_sum: int | None = None  #: length of the list of an engine that ranks by the sum
    #: first hits that a reranker has ordered; the rest of the report is about candidates
    reranked: int | None = None
    rerank_seconds: float | None = None  #: what that took
    #: what must hold for an exact list to be exact, in words; None if all of it was checked
    assumes: str | None = None


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
    #: parts to choose from; fewer where BM25 joins an index with one
    available: tuple[str, ...] = MODES["hybrid"]
    allowed: RowSet | None = None  #: the rows to search; None for all
    condition: Node | None = None  #: the condition on metadata that selects them, if one alone does
    #: length of the list after the first hits are reranked; None for no reranking
    shown: int | None = None

    @property
    def name(self) -> str:
        """The mode, or ``fused``."""
        return "fused" if self.fusion else self.mode

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the index that are searched: ``cls``, ``ot``."""
        mode = "hybrid" if self.fusion else self.mode
        parts = MODES[mode]
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
        bm25 = self._bm25_part(queries)
        outcomes = None
        if bm25 is None:
            outcomes = self._one_pass(dense, impact, excluded)
        if outcomes is None:
            outcomes = self._certified(dense, impact, self.request.hits, excluded, bm25)

        parts = (("dense", dense), ("impact", impact), ("bm25", bm25))
        names = [name for name, part in parts if part is not None]
        server = self.index.server(self.settings)
        if server and server.sums and len(names) == 2:
            # The server ranked by the sum: there is one list instead of two.
            names = ["sum"]
        answers = []
        # Without its vectors the list of an index is only that of its words.
        is_complete = self.index.folder.missing is None
        for query, outcome in zip(queries, outcomes, strict=True):
            report = _report(query, outcome, names, is_complete)
            if server:
                report = dataclasses.replace(report, assumes=server.assumes)
            answers.append(Answer(query, self._hits(outcome), report))
        return answers

    def blank(self, query: Query) -> Answer:
        """The answer to a query without text: no hits."""
        if self.request.fusion:
            return Answer(query, [], None)
        parts = self.request.parts
        report = ListReport(
            qid=query.qid,
            exact=True,
            depth_dense=0 if "cls" in parts else None,
            depth_impact=0 if "ot" in parts else None,
            candidates=0,
            bound=None,
            kth=None,
            hits=0,
            depth_bm25=0 if self.settings.bm25_index else None,
        )
        return Answer(query, [], report)

    def _bm25_part(self, queries: Sequence[Query]) -> Bm25Part | None:
        """The third summand; None without a BM25 index."""
        bm25_index = self.index.bm25(self.settings)
        if not bm25_index:
            return None
        texts = [query.text for query in queries]
        return bm25_index.queries(texts, self.settings.workers, self.request.allowed)

    def _parts(self) -> tuple[Dense | None, Impact | None]:
        """The parts of the score for this batch; None for a part that is not searched."""
        request = self.request
        settings = self.settings
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
        settings = self.settings
        request = self.request
        weights = self.index.weights(settings)
        server = self.index.server(settings)
        if server is None:
            parts = self._weighted_parts(dense, impact, bm25)
            max_depth = settings.max_depth
            first = 0
        else:
            unit = 1.0
            if impact is not None and not request.raw_impacts:
                unit = self.index.scale**2
            parts = server.parts(
                self.encoded,
                dense,
                impact,
                unit,
                weights,
                self.index.rows,
                request.allowed,
                request.condition,
            )
            max_depth = server.limited(settings.max_depth)
            first = server.first_depth(len(parts), hits)
        return exact_top(
            parts,
            len(excluded),
            self.index.folder.docid_rank,
            hits,
            excluded=excluded,
            # A document without a matching term is no hit of an impact search.
            floor=0.0 if dense is None else -np.inf,
            max_depth=max_depth,
            allowed=request.allowed,
            first=first,
        )

    def _weighted_parts(
        self, dense: Dense | None, impact: Impact | None, bm25: Bm25Part | None
    ) -> list[Part]:
        """The summands of the score; the score of a part alone is not weighted."""
        dense_weight, impact_weight = self.index.weights(self.settings)
        summands: list[tuple[Part, float]] = []
        if dense is not None:
            summands.append((dense, dense_weight))
        if impact is not None:
            summands.append((impact, impact_weight))
        if bm25 is not None:
            summands.append((bm25, self.settings.bm25_weight))
        if len(summands) == 1:
            return [part for part, _ in summands]
        return [Weighted(part, weight) for part, weight in summands]

    def _one_pass(
        self, dense: Dense | None, impact: Impact | None, excluded: Rows
    ) -> Sequence[Outcome] | None:
        """Outcomes from one pass over the postings; None if that does not apply or does not settle all queries."""
        settings = self.settings
        hits = self.request.hits
        if impact is None or settings.server or settings.max_depth:
            return None
        impact_search, _ = self.index.impact_search(settings)
        if impact_search != "postings":
            return None
        if dense is not None and hits > MAX_HITS:
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
        hits = self.request.hits
        workers = self.settings.workers
        postings = self.index.folder.segments[segment].postings
        if dense is None:
            return summed_top(impact, postings, ranks, hits, excluded, workers)
        weights = self.index.weights(self.settings)
        outcomes = scanned_top(
            dense, impact, postings, weights, ranks, hits, excluded, workers, best
        )
        settled = [outcome for outcome in outcomes if outcome is not None]
        if len(settled) < len(outcomes):
            return None
        return settled

    def _fused(
        self, queries: Sequence[Query], dense: Dense | None, impact: Impact | None, excluded: Rows
    ) -> list[Answer]:
        fusion = self.request.fusion
        depth = self.request.fusion_depth
        assert fusion is not None
        by_dense = self._certified(dense, None, depth, excluded)
        by_impact = self._certified(None, impact, depth, excluded)
        answers = []
        for query, dense_list, impact_list in zip(queries, by_dense, by_impact, strict=True):
            hits = fuse(fusion, self._hits(dense_list), self._hits(impact_list), self.request.hits)
            answers.append(Answer(query, hits, None))
        return answers

    def _hits(self, outcome: Outcome) -> RankedHits:
        return RankedHits(outcome.rows, outcome.scores, self.index.folder.docids)


def _report(query: Query, outcome: Outcome, parts: list[str], is_complete: bool) -> ListReport:
    depths = dict(zip(parts, outcome.depths, strict=True))
    return ListReport(
        qid=query.qid,
        exact=outcome.exact and is_complete,
        depth_dense=depths.get("dense"),
        depth_impact=depths.get("impact"),
        candidates=outcome.candidates,
        bound=outcome.bound if np.isfinite(outcome.bound) else None,
        kth=float(outcome.scores[-1]) if len(outcome.scores) else None,
        hits=len(outcome.rows),
        depth_bm25=depths.get("bm25"),
        depth_sum=depths.get("sum"),
    )
