"""A teacher without training: the scores of BM25's and a model's lists, fused.

For a query with the lists of its best ``depth`` documents by BM25 and by the model over the whole collection:

    min-max    mean of both scores, each mapped linearly so that its list spans [0, 1]; 0 where a list lacks a document
    rrf        1 / (rrf_k + rank by BM25) + 1 / (rrf_k + rank by the model); nothing where a list lacks a document
    sum        BM25 + dense_weight * the model's score, exact for every candidate
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dupmae_ir.device import processors
from dupmae_ir.errors import InputError
from dupmae_ir.finetune.data.mined import Mined, counted
from dupmae_ir.finetune.mine.search import ModelSearch, open_bm25
from dupmae_ir.finetune.score.config import ScoreConfig
from dupmae_ir.search.fusion.methods import interpolate, rrf
from dupmae_ir.types import Hit, Query

Scores = Mapping[str, float]
"""docid -> fused score; a document that is missing has the score 0."""


class FusedTeacher:
    """Scores of the candidates of mined queries. The indexes are built in ``work``, or continued there.

    Args:
        config: the fusion and the model.
        mined: all queries that will be scored.
        source: the collection that was mined.
        work: folder for the two indexes.

    Raises :class:`InputError` with counts for positives that the collection lacks, which no list can contain.
    """

    def __init__(self, config: ScoreConfig, mined: Sequence[Mined], source: str, work: Path) -> None:
        self.config = config
        names = ("parts", "device", "dtype", "query_length", "document_length", "threads", "impact_search", "quiet")
        search = ModelSearch(config.model, **{name: getattr(config, name) for name in names})
        self.bm25 = open_bm25(source, work / "bm25", config.k1, config.b, config.quiet)
        self.searcher = search.open(source, work / "index")
        self._require(mined, source)
        weights = {"dense_weight": config.dense_weight, "impact_weight": config.dense_weight}
        changes: dict[str, Any] = {"bm25_index": str(work / "bm25"), "k1": config.k1, "b": config.b, **weights}
        self.summed = self.searcher.with_settings(**changes) if config.fusion == "sum" else None

    def __call__(self, window: Sequence[Mined]) -> list[dict[str, Any]]:
        """One row per query, positives first."""
        fused = self._lists(window) if self.summed is None else [self._sum(m) for m in window]
        return [
            {"qid": m.qid, "scores": {d: float(f"{scores.get(d, 0.0):.7g}") for d in candidates(m)}}
            for m, scores in zip(window, fused, strict=True)
        ]

    def _require(self, mined: Sequence[Mined], source: str) -> None:
        absent = [
            f"{p.docid} of query {m.qid}" for m in mined for p in m.positives if self.searcher.row(p.docid) is None
        ]
        if absent:
            what = counted(absent, f"positive is not in {source}", f"positives are not in {source}")
            raise InputError(
                f"{self.config.mined}: {what}, so no list contains them; mine in a collection that has them, or use a "
                "cross-encoder"
            )

    def _lists(self, window: Sequence[Mined]) -> list[Scores]:
        config, queries = self.config, [Query(m.qid, m.query) for m in window]
        by_model = {a.query.qid: a.hits for a in self.searcher.answers(queries, config.depth, config.parts)}
        by_bm25 = self.bm25.search(queries, config.depth, config.threads or processors())
        fuse = _fusion(config)
        return [{h.docid: h.score for h in fuse(by_bm25[q.qid], by_model[q.qid])} for q in queries]

    def _sum(self, mined: Mined) -> Scores:
        assert self.summed is not None
        return {e.docid: e.score for e in self.summed.explain_all(mined.query, candidates(mined))}


def candidates(mined: Mined) -> list[str]:
    """The ids to score: the positives, then the negatives."""
    return [*(p.docid for p in mined.positives), *mined.negatives]


def _fusion(config: ScoreConfig) -> Callable[[Sequence[Hit], Sequence[Hit]], list[Hit]]:
    if config.fusion == "rrf":
        return lambda first, second: rrf([first, second], config.rrf_k)
    return lambda first, second: interpolate(first, second, 0.5, normalize=True)
