"""A second look at the first hits of a list: a reranker reads their texts and puts them into its own order."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from dupmae_ir.search.exact.ranking import Answer
from dupmae_ir.types import Document, Hit, Reranker, best_first

RERANK_SECONDS = 10.0
"""Time for a query, unless the settings say otherwise."""
_BATCH = 8  #: documents scored between two looks at the clock


def reranked(
    answer: Answer,
    scorer: Reranker,
    read: Callable[[str], Document],
    depth: int,
    seconds: float,
    hits: int,
    weight: float | None = None,
) -> Answer:
    """``answer`` with its first ``depth`` candidates in the order of ``scorer``, cut to ``hits``.

    Candidates that are not scored within ``seconds`` (0: no limit) keep their order below; so do those after
    ``depth``. Their scores are lowered by one number, so that a run in order of scores is in the order of the list.

    Args:
        answer: the candidates, best first; its report stays that of the candidates.
        scorer: the reranker.
        read: the document of an id.
        depth: candidates to score.
        seconds: time for them; at least one batch is scored.
        hits: length of the list.
        weight: order by the score of the search plus ``weight`` times that of the reranker, not by the latter alone.
    """
    started = time.perf_counter()
    candidates = list(answer.hits)
    scores: list[float] = []
    first = candidates[:depth]
    # The clock is read after a batch, so that the first is scored however short the time.
    while len(scores) < len(first):
        batch = [read(hit.docid) for hit in first[len(scores) : len(scores) + _BATCH]]
        scores += scorer.scores(answer.query.text, batch)
        if seconds and time.perf_counter() - started > seconds:
            break
    scored = []
    # Not strict: the time may have ended before all candidates had a score.
    for hit, score in zip(first, scores, strict=False):
        if weight is not None:
            score = hit.score + weight * score
        scored.append(Hit(hit.docid, score))
    ordered = best_first(scored)
    if ordered:
        # The best of the rest gets a score that is 1 below the lowest of those that were read.
        lowered = candidates[0].score - ordered[-1].score + 1.0
        ordered += [Hit(hit.docid, hit.score - lowered) for hit in candidates[len(scores) :]]
    report = answer.report and dataclasses.replace(
        answer.report,
        hits=min(hits, len(ordered)),
        reranked=len(scores),
        rerank_seconds=round(time.perf_counter() - started, 3),
    )
    return Answer(answer.query, ordered[:hits], report)
