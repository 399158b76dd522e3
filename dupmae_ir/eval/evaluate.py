"""Evaluation of a run against judgements: values per query and means.

The arithmetic is trec_eval's, through ir_measures and pytrec_eval: its ranking (float32 scores, ties by docid
descending), its values per query and its order of summation, so that all printed digits agree with trec_eval.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dupmae_ir import tables
from dupmae_ir.errors import UsageError
from dupmae_ir.io.runs import LARGEST_SCORE, trec_order
from dupmae_ir.measures import Measure, parse_measures
from dupmae_ir.types import AnyRun, Hit, Qrels

Grades = dict[str, dict[str, int]]
Scores = dict[str, dict[str, float]]
"""Query id -> docid -> grade or score, as plain dictionaries, ints and floats, which pytrec_eval requires."""

SHALLOW = 10  #: ranks for which unjudged hits are counted


@dataclass(frozen=True)
class Counts:
    """Coverage of a run by the judgements and of the judgements by the run."""

    judged_queries: int  #: queries with judgements
    missing_queries: int  #: of those, queries without hits in the run
    extra_queries: int  #: queries of the run without judgements; not evaluated
    hits: int  #: hits of the queries that have judgements
    unjudged_hits: int  #: of those, hits without a judgement
    shallow_hits: int  #: hits among the first 10 of each query that has judgements
    unjudged_shallow_hits: int  #: of those, hits without a judgement


@dataclass(frozen=True)
class Evaluation:
    """The values of one run. Measures are keyed by ``str(measure)``, such as ``nDCG@10``."""

    measures: tuple[Measure, ...]
    per_query: dict[
        str, dict[str, float]
    ]  #: query id -> measure -> value, for every evaluated query
    mean: dict[
        str, float
    ]  #: measure -> mean over the evaluated queries; for NumRet, NumRel and NumQ the sum
    counts: Counts
    complete: bool  #: True: all judged queries are evaluated, as with ``trec_eval -c``

    def __repr__(self) -> str:
        means = ", ".join(f"{name} {value:.4f}" for name, value in self.mean.items())
        return f"Evaluation({means}; {len(self.per_query):,} queries)"

    def _repr_html_(self) -> str:
        rows = [(name, f"{value:.4f}") for name, value in self.mean.items()]
        return tables.html(("measure", f"mean of {len(self.per_query):,} queries"), rows)


def evaluate(
    qrels: Qrels,
    run: AnyRun,
    measures: Iterable[str | Measure],
    *,
    complete: bool = True,
    remove_unjudged: bool = False,
    rel_level: int = 1,
) -> Evaluation:
    """Evaluate ``run`` with ``measures`` such as ``["nDCG@10", "AP(rel=2)"]``.

    Args:
        qrels: query id -> docid -> grade.
        run: query id -> hits, or docid -> score; their order is ignored.
        measures: names or :class:`~dupmae_ir.measures.Measure` objects.
        complete: count a judged query without hits as 0; otherwise only queries in both are evaluated.
        remove_unjudged: drop hits without a judgement first, as Pyserini's ``-remove-unjudged``.
        rel_level: the smallest relevant grade for measures that do not name one.

    Raises :class:`UsageError` for run and judgements without a common query, a document listed twice for a
    query, and a score that is not a finite float32; :class:`UnknownName` for an unknown measure.
    """
    wanted = parse_measures(measures, rel_level)
    judged = {
        qid: {d: int(g) for d, g in grades.items()} for qid, grades in qrels.items() if grades
    }
    scores = {qid: found for qid, hits in run.items() if (found := _scores(qid, hits))}
    common = {qid: found for qid, found in scores.items() if qid in judged}
    _check_overlap(judged, scores, common, complete)
    counts = _counts(judged, scores, common)
    if remove_unjudged:
        kept = (
            (qid, {d: s for d, s in found.items() if d in judged[qid]})
            for qid, found in common.items()
        )
        common = {qid: found for qid, found in kept if found}
    counted = [qid for qid in judged if complete or qid in common]
    if not counted:
        raise UsageError(
            "no query is left to average over; omit `remove_unjudged`, or evaluate with complete=True"
        )
    values = _by_trec_eval(wanted, judged, common) | _by_counting(wanted, judged, common)
    return Evaluation(
        measures=wanted,
        per_query={qid: {str(m): values[m].get(qid, 0.0) for m in wanted} for qid in counted},
        mean={
            str(m): _over_queries({qid: values[m].get(qid, 0.0) for qid in counted}, m.total)
            for m in wanted
        },
        counts=counts,
        complete=complete,
    )


def _scores(qid: str, hits: Iterable[Hit] | Mapping[str, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for docid, score in hits.items() if isinstance(hits, Mapping) else hits:
        if docid in found:
            raise UsageError(f"query {qid!r}: document {docid!r} is listed twice")
        if not -LARGEST_SCORE <= score <= LARGEST_SCORE:
            raise UsageError(
                f"query {qid!r}, document {docid!r}: score {score} is not a finite 32-bit number"
            )
        found[docid] = float(score)
    return found


def _check_overlap(judged: Grades, scores: Scores, common: Scores, complete: bool) -> None:
    """Without a common query all values would be 0, which looks like a result."""
    if not judged:
        raise UsageError("there are no judgements to evaluate with")
    if common or (complete and not scores):
        return
    if not scores:
        raise UsageError("the run has no hits")
    raise UsageError(
        f"the run and the judgements have no query in common: the run has ids like {next(iter(scores))!r}, "
        f"the judgements like {next(iter(judged))!r}; they belong to different collections"
    )


def _counts(judged: Grades, scores: Scores, common: Scores) -> Counts:
    shallow = {qid: trec_order(found, SHALLOW) for qid, found in common.items()}
    return Counts(
        judged_queries=len(judged),
        missing_queries=len(judged) - len(common),
        extra_queries=len(scores) - len(common),
        hits=sum(map(len, common.values())),
        unjudged_hits=sum(len(found.keys() - judged[qid].keys()) for qid, found in common.items()),
        shallow_hits=sum(map(len, shallow.values())),
        unjudged_shallow_hits=sum(
            d not in judged[qid] for qid, found in shallow.items() for d in found
        ),
    )


def _by_trec_eval(
    measures: Iterable[Measure], judged: Grades, common: Scores
) -> dict[Measure, dict[str, float]]:
    """Measure -> query id -> value of every query in ``common``. One pass for each depth of the run."""
    from ir_measures import pytrec_eval

    passes: dict[int | None, list[Measure]] = {}
    for measure in measures:
        if measure.family not in ("Judged", "NumRel", "NumQ"):
            passes.setdefault(measure.depth, []).append(measure)
    values: dict[Measure, dict[str, float]] = {
        m: {} for of_depth in passes.values() for m in of_depth
    }
    for depth, of_depth in passes.items() if common else ():
        run = common
        if depth is not None:  # trec_eval -M: truncated after its ranking
            run = {
                qid: {d: scores[d] for d in trec_order(scores, depth)}
                for qid, scores in common.items()
            }
        by_library = {m.in_ir_measures(): values[m] for m in of_depth}
        for qid, measure, value in pytrec_eval.iter_calc(by_library, judged, run):
            by_library[measure][qid] = value
        for m in of_depth:  # MRR and RR are one measure of the library
            values[m] = by_library[m.in_ir_measures()]
    return values


def _by_counting(
    wanted: Iterable[Measure], judged: Grades, common: Scores
) -> dict[Measure, dict[str, float]]:
    """Measures that are counts, which ir_measures has otherwise: its NumRel knows one level, and its Judged ranks ties
    by docid ascending. NumRel counts grades of its level in every judged query (``trec_eval -c -l 2 -m num_rel`` uses
    level 1 for queries without hits)."""
    values: dict[Measure, dict[str, float]] = {}
    for measure in wanted:
        if measure.family == "Judged":
            depth = int(measure.cutoff or 0)
            firsts = ((qid, trec_order(found, depth)) for qid, found in common.items())
            values[measure] = {
                qid: sum(d in judged[qid] for d in first) / len(first) for qid, first in firsts
            }
        elif measure.family == "NumRel":
            level = measure.rel or 1
            values[measure] = {
                qid: float(sum(g >= level for g in grades.values()))
                for qid, grades in judged.items()
            }
        elif measure.family == "NumQ":
            values[measure] = dict.fromkeys(judged, 1.0)
    return values


def _over_queries(values: Mapping[str, float], total: bool) -> float:
    """Sum or mean, added one by one in the order of sorted query ids, for trec_eval's last digit.

    Neither ``sum`` (compensated from Python 3.12 on) nor numpy (pairwise) rounds in the same way.
    """
    added = functools.reduce(operator.add, (values[qid] for qid in sorted(values)), 0.0)
    return added if total else added / len(values)
