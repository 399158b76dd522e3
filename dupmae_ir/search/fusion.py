"""Fusion methods: reciprocal ranks and interpolation.

Neither computes the exact hybrid score (``--hybrid``, DupMAE Eq. 12, weighted or not). They combine two lists of
limited depth and assume a score for a document that only one list contains (``missing``):

    zero    its score in the other list is 0 (``pyserini.fusion``)
    min     its score is the lowest of that list (``pyserini.search.hybrid``)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from dupmae_ir.config import Config, option
from dupmae_ir.types import Hit, Run, best_first

METHODS = ("rrf", "interpolation")
RRF_K = 60  #: Cormack, Clarke and Buettcher (SIGIR 2009)
_BY_SCORES = ("fusion=interpolation", "method=interpolation")
fusion_option = partial(option, group="fusion")


@dataclass(frozen=True, kw_only=True)
class FusionOptions(Config):
    """Parameters of the fusion methods; shared by ``search`` and :class:`Fusion`."""

    rrf_k: int = fusion_option(
        RRF_K, "rrf: added to every rank", at_least=0, only_with=("fusion=rrf", "method=rrf")
    )
    alpha: float = fusion_option(
        0.5,
        "interpolation: weight of the dense list, 1 - alpha of the impact list",
        at_least=0,
        at_most=1,
        only_with=_BY_SCORES,
    )
    normalize: bool = fusion_option(
        False, "scale the scores of each list to one range first", only_with=_BY_SCORES
    )
    missing: str = fusion_option(
        "zero",
        "interpolation: score of a document that a list lacks: 0, or the list's lowest score; rrf adds nothing",
        choices=("zero", "min"),
        only_with=_BY_SCORES,
    )


@dataclass(frozen=True)
class Fusion(FusionOptions):
    """A fusion method and its parameters."""

    method: str = fusion_option("rrf", "fusion method", choices=METHODS)


def fuse(fusion: Fusion, dense: Sequence[Hit], impact: Sequence[Hit], k: int) -> list[Hit]:
    """The ``k`` best of two lists (best first)."""
    if fusion.method == "rrf":
        return rrf([dense, impact], fusion.rrf_k)[:k]
    return interpolate(dense, impact, fusion.alpha, fusion.normalize, fusion.missing)[:k]


def fuse_runs(
    fusion: Fusion, first: Mapping[str, Sequence[Hit]], second: Mapping[str, Sequence[Hit]], k: int
) -> Run:
    """The ``k`` best of two runs by query id; a query that a run lacks has an empty list there."""
    return {
        qid: fuse(fusion, first.get(qid, ()), second.get(qid, ()), k) for qid in {**first, **second}
    }


def rrf(lists: Sequence[Sequence[Hit]], rrf_k: int = RRF_K) -> list[Hit]:
    """Reciprocal rank fusion (Cormack, Clarke and Buettcher, SIGIR 2009): sum of ``1 / (rrf_k + rank)``, ranks from 1.

    A list adds nothing to the score of a document that it lacks.
    """
    scores: dict[str, float] = {}
    for hits in lists:
        for rank, hit in enumerate(hits, start=1):
            scores[hit.docid] = scores.get(hit.docid, 0.0) + 1.0 / (rrf_k + rank)
    return best_first(Hit(docid, score) for docid, score in scores.items())


def interpolate(
    first: Sequence[Hit],
    second: Sequence[Hit],
    alpha: float = 0.5,
    normalize: bool = False,
    missing: str = "zero",
) -> list[Hit]:
    """``alpha * first + (1 - alpha) * second``.

    ``normalize`` maps each list's lowest score to 0 and its highest to 1 (one score, or all equal, to 1) before
    a missing document gets 0 (``zero``) or the list's lowest score (``min``).
    """
    docids = sorted({hit.docid for hit in (*first, *second)})
    a = _complete_scores(first, docids, normalize, missing)
    b = _complete_scores(second, docids, normalize, missing)
    return best_first(Hit(docid, alpha * a[docid] + (1 - alpha) * b[docid]) for docid in docids)


def unit_range(low: float, high: float) -> Callable[[float], float]:
    """The linear map of [low, high] to [0, 1]; a single value maps to 1."""
    if high > low:
        return lambda score: (score - low) / (high - low)
    return lambda _: 1.0


def _complete_scores(
    hits: Sequence[Hit], docids: list[str], normalize: bool, missing: str
) -> dict[str, float]:
    """The score of each of ``docids``, those that the list lacks included."""
    scores = {hit.docid: float(hit.score) for hit in hits}
    if not scores:
        return dict.fromkeys(docids, 0.0)
    low = min(scores.values())
    if normalize:
        to_unit_range = unit_range(low, max(scores.values()))
        scores = {docid: to_unit_range(score) for docid, score in scores.items()}
        # 0, or 1 if all scores of the list are equal.
        low = to_unit_range(low)
    score_if_missing = low if missing == "min" else 0.0
    return {docid: scores.get(docid, score_if_missing) for docid in docids}
