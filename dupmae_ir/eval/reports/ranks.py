"""Ranks of the relevant documents: recall at every rank, and documents that only one of two lists finds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from dupmae_ir.io.runs import trec_order
from dupmae_ir.types import Hit, Qrels

DEEPEST = 1000  #: length of the recall curve


@dataclass(frozen=True)
class Ranks:
    """The ranks of the relevant documents of every evaluated query, in trec_eval's order of the run."""

    found: dict[str, dict[str, int]]  #: query id -> relevant docid -> its rank from 1, for documents in the run
    relevant: dict[str, int]  #: query id -> number of relevant documents
    depth: int  #: longest list of the run, at most ``DEEPEST``


def relevant_ranks(
    qrels: Qrels, run: Mapping[str, Iterable[Hit]], level: int = 1, complete: bool = True, remove_unjudged: bool = False
) -> Ranks:
    """Ranks of the documents graded ``level`` or better; the other settings are :func:`evaluate`'s."""
    found: dict[str, dict[str, int]] = {}
    relevant: dict[str, int] = {}
    depth = 0
    for qid, grades in qrels.items():
        scores = {d: s for d, s in run.get(qid, ()) if not remove_unjudged or d in grades}
        if not grades or not (scores or complete):
            continue
        order = trec_order(scores)
        depth = max(depth, len(order))
        found[qid] = {d: rank for rank, d in enumerate(order, 1) if grades.get(d, 0) >= level}
        relevant[qid] = sum(grade >= level for grade in grades.values())
    return Ranks(found, relevant, min(depth, DEEPEST))


def recall_curve(ranks: Ranks) -> np.ndarray:
    """(depth,) float64: R@1, R@2, ... as in trec_eval; a query without relevant documents counts as 0."""
    gains = np.zeros(ranks.depth + 1)
    for qid, places in ranks.found.items():
        for rank in places.values():
            if rank <= ranks.depth:
                gains[rank] += 1 / ranks.relevant[qid]
    return np.asarray(np.cumsum(gains)[1:] / max(1, len(ranks.relevant)))


@dataclass(frozen=True)
class Complement:
    """Relevant documents found by the same parts, and how many of them the sum finds."""

    parts: str  #: both, only [CLS], only OT or neither
    documents: int
    in_sum: int  #: of those, found by the hybrid list
    qids: tuple[str, ...]  #: queries with such a document, by id


def complementarity(cls: Ranks, ot: Ranks, hybrid: Ranks, depth: int = 10) -> list[Complement]:
    """Relevant documents by which of [CLS] and OT finds them within ``depth`` ranks, the success of DupMAE's
    appendix A.1: both, only [CLS], only OT, neither, in this order."""
    cells: dict[tuple[bool, bool], list[tuple[str, bool]]] = {}
    for qid, total in cls.relevant.items():
        places = [r.found.get(qid, {}) for r in (cls, ot, hybrid)]
        anywhere = set().union(*places)
        for docid in anywhere:
            by_cls, by_ot, by_sum = (p.get(docid, depth + 1) <= depth for p in places)
            cells.setdefault((by_cls, by_ot), []).append((qid, by_sum))
        # Documents in no list.
        cells.setdefault((False, False), []).extend([(qid, False)] * (total - len(anywhere)))
    names = {(True, True): "both", (True, False): "only [CLS]", (False, True): "only OT", (False, False): "neither"}
    return [_counted(who, cells.get(cell, [])) for cell, who in names.items()]


def _counted(who: str, answers: list[tuple[str, bool]]) -> Complement:
    return Complement(who, len(answers), sum(kept for _, kept in answers), tuple(sorted({qid for qid, _ in answers})))
