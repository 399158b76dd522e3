"""Runs, judgements and measures of ir_measures and ranx, in both directions.

    from ir_measures import nDCG
    from dupmae_ir import evaluate
    from dupmae_ir.integrations.measures import run_of

    evaluate(qrels, run_of(ranx_run), [str(nDCG @ 10)]).mean

Neither library is imported before one of its objects is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from dupmae_ir.types import Hit, Qrels, Run, best_first

if TYPE_CHECKING:
    import ir_measures
    import ranx


class ScoredDocument(Protocol):
    """A line of a run, as ``ir_measures.ScoredDoc``."""

    query_id: str
    doc_id: str
    score: float


class Judgement(Protocol):
    """A line of judgements, as ``ir_measures.Qrel``."""

    query_id: str
    doc_id: str
    relevance: int


class HasDictionary(Protocol):
    """A run or judgements of ranx."""

    def to_dict(self) -> dict[str, dict[str, float]]:
        """Query id -> document id -> score or grade."""


def run_of(run: HasDictionary | Iterable[ScoredDocument] | Mapping[str, Mapping[str, float]]) -> dict[str, list[Hit]]:
    """A run of ranx, ir_measures or pytrec_eval as a :data:`~dupmae_ir.types.Run`, best first, ties by docid."""
    return {
        qid: best_first(Hit(docid, float(score)) for docid, score in scores.items())
        for qid, scores in _nested(run, lambda line: line.score).items()
    }


def qrels_of(qrels: HasDictionary | Iterable[Judgement] | Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """Judgements of ranx, ir_measures or pytrec_eval as :data:`~dupmae_ir.types.Qrels`."""
    found = _nested(qrels, lambda line: line.relevance)
    return {qid: {docid: int(grade) for docid, grade in grades.items()} for qid, grades in found.items()}


def to_ir_measures(run: Run) -> list[ir_measures.ScoredDoc]:
    """A run as ir_measures takes it."""
    import ir_measures

    return [ir_measures.ScoredDoc(qid, hit.docid, hit.score) for qid, hits in run.items() for hit in hits]


def qrels_to_ir_measures(qrels: Qrels) -> list[ir_measures.Qrel]:
    """Judgements as ir_measures takes them."""
    import ir_measures

    return [ir_measures.Qrel(qid, docid, grade) for qid, grades in qrels.items() for docid, grade in grades.items()]


def to_ranx(run: Run, name: str | None = None) -> ranx.Run:
    """A run as ranx takes it. ranx needs at least one hit for a query, so queries without hits are left out."""
    import ranx

    return ranx.Run({qid: {hit.docid: hit.score for hit in hits} for qid, hits in run.items() if hits}, name=name)


def qrels_to_ranx(qrels: Qrels) -> ranx.Qrels:
    """Judgements as ranx takes them; queries without a judgement are left out."""
    import ranx

    return ranx.Qrels({qid: dict(grades) for qid, grades in qrels.items() if grades})


def _nested(source: Any, value: Callable[[Any], float]) -> dict[str, dict[str, float]]:
    """Query id -> document id -> value, from a ranx object, a nested mapping or lines."""
    if hasattr(source, "to_dict"):
        source = source.to_dict()
    if isinstance(source, Mapping):
        return {str(qid): {str(docid): v for docid, v in found.items()} for qid, found in source.items()}
    nested: dict[str, dict[str, float]] = {}
    for line in source:
        nested.setdefault(str(line.query_id), {})[str(line.doc_id)] = value(line)
    return nested
