"""Evaluation of a run against judgements: values per query and means.

The arithmetic is trec_eval's, through ir_measures and pytrec_eval: its ranking (float32 scores, ties by docid
descending), its values per query and its order of summation, so that all printed digits agree with trec_eval.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dupmae_ir import tables
from dupmae_ir.arguments import checked, wrong_type
from dupmae_ir.console import one_line
from dupmae_ir.errors import DupmaeError, UsageError
from dupmae_ir.io import in_memory
from dupmae_ir.io.in_memory import Table
from dupmae_ir.io.qrels import Judgements
from dupmae_ir.io.runs import LARGEST_SCORE, any_run, trec_order
from dupmae_ir.measures import Measure, parse_measures
from dupmae_ir.types import AnyRun, Qrels

if TYPE_CHECKING:
    import pandas

Grades = dict[str, dict[str, int]]
Scores = dict[str, dict[str, float]]
"""Query id -> docid -> grade or score, as plain dictionaries, ints and floats, which pytrec_eval requires."""

SHALLOW = 10  #: ranks for which unjudged hits are counted
COUNTED_FAMILIES = ("Judged", "NumRel", "NumQ")
"""Measures that are counted here, not by trec_eval."""


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
    #: query id -> measure -> value, for every evaluated query
    per_query: dict[str, dict[str, float]]
    #: measure -> mean over the evaluated queries; for NumRet, NumRel and NumQ the sum
    mean: dict[str, float]
    counts: Counts
    complete: bool  #: True: all judged queries are evaluated, as with ``trec_eval -c``

    def __repr__(self) -> str:
        means = ", ".join(f"{name} {value:.4f}" for name, value in self.mean.items())
        return f"Evaluation({means}; {len(self.per_query):,} queries)"

    def to_frame(self) -> pandas.DataFrame:
        """A row for each query, with the columns ``qid`` and the names of the measures."""
        names = [str(measure) for measure in self.measures]
        rows = []
        for qid, values in self.per_query.items():
            rows.append((qid, *(values[name] for name in names)))
        return tables.data_frame(rows, ("qid", *names))

    def _repr_html_(self) -> str:
        rows = [(name, f"{value:.4f}") for name, value in self.mean.items()]
        return tables.html(("measure", f"mean of {len(self.per_query):,} queries"), rows)


@checked
def evaluate(
    qrels: Qrels | Table,
    run: AnyRun | Table,
    measures: str | Measure | Iterable[str | Measure],
    *,
    complete: bool = True,
    remove_unjudged: bool = False,
    rel_level: int = 1,
) -> Evaluation:
    """Evaluate ``run`` with ``measures`` such as ``["nDCG@10", "AP(rel=2)"]``.

    Args:
        qrels: query id -> docid -> grade; a file; or rows (query id, docid, grade): tuples, dictionaries, a DataFrame,
            a dataset of ir_datasets.
        run: query id -> hits, or docid -> score; their order is ignored. A file, or rows (query id, docid, score).
        measures: names or :class:`~dupmae_ir.measures.Measure` objects, one or several.
        complete: count a judged query without hits as 0; otherwise only queries in both are evaluated.
        remove_unjudged: drop hits without a judgement first, as Pyserini's ``-remove-unjudged``.
        rel_level: the smallest relevant grade for measures that do not name one.

    Raises :class:`UsageError` for run and judgements without a common query, a document listed twice for a
    query, and a score that is not a finite float32; :class:`UnknownName` for an unknown measure.
    """
    if isinstance(measures, str | Measure):
        measures = [measures]
    if not isinstance(measures, Iterable):
        raise wrong_type("measures", "names of measures", measures)
    parsed = parse_measures(measures, rel_level)
    return evaluate_scores(
        in_memory.judgements(qrels),
        any_run(run),
        parsed,
        complete=complete,
        remove_unjudged=remove_unjudged,
    )


def evaluate_scores(
    judgements: Judgements,
    run: Scores,
    measures: tuple[Measure, ...],
    *,
    complete: bool = True,
    remove_unjudged: bool = False,
) -> Evaluation:
    """:func:`evaluate` of judgements and a run that are read already."""
    judged: Grades = {qid: grades for qid, grades in judgements.items() if grades}
    scores: Scores = {qid: hits for qid, hits in run.items() if hits}
    for qid, hits in scores.items():
        _check_scores(qid, hits)
    common = {qid: query_scores for qid, query_scores in scores.items() if qid in judged}
    _check_overlap(judged, scores, common, complete)

    # Unjudged hits are counted before they are removed.
    counts = _counts(judged, scores, common)
    if remove_unjudged:
        common = _without_unjudged(judged, common)
    qids = [qid for qid in judged if complete or qid in common]
    if not qids:
        raise UsageError(
            "no query is left to average over; omit `remove_unjudged`, or evaluate with complete=True"
        )

    values = _by_trec_eval(measures, judged, common) | _by_counting(measures, judged, common)
    values |= _by_library(measures, judgements, common)
    per_query: dict[str, dict[str, float]] = {}
    for qid in qids:
        per_query[qid] = {str(measure): values[measure].get(qid, 0.0) for measure in measures}
    means: dict[str, float] = {}
    for measure in measures:
        by_qid = {qid: values[measure].get(qid, 0.0) for qid in qids}
        means[str(measure)] = _over_queries(by_qid, measure.total)
    return Evaluation(
        measures=measures, per_query=per_query, mean=means, counts=counts, complete=complete
    )


def _check_scores(qid: str, hits: Mapping[str, float]) -> None:
    """Raise :class:`UsageError` for a score of a query that trec_eval cannot hold."""
    for docid, score in hits.items():
        # NaN fails this comparison too.
        if not -LARGEST_SCORE <= score <= LARGEST_SCORE:
            raise UsageError(
                f"query {qid!r}, document {docid!r}: score {score} is not a finite 32-bit number"
            )


def _without_unjudged(judged: Grades, common: Scores) -> Scores:
    """The judged hits of each query; queries without any are omitted."""
    judged_scores: Scores = {}
    for qid, scores in common.items():
        remaining = {docid: score for docid, score in scores.items() if docid in judged[qid]}
        if remaining:
            judged_scores[qid] = remaining
    return judged_scores


def _check_overlap(judged: Grades, scores: Scores, common: Scores, complete: bool) -> None:
    """Without a common query all values would be 0, which looks like a result."""
    if not judged:
        raise UsageError("there are no judgements to evaluate with")
    # With ``complete``, every judged query counts, so that a run without any hits has values too.
    if common or (complete and not scores):
        return
    if not scores:
        raise UsageError("the run has no hits")
    raise UsageError(
        f"the run and the judgements have no query in common: the run has ids like {next(iter(scores))!r}, "
        f"the judgements like {next(iter(judged))!r}; they belong to different collections"
    )


def _counts(judged: Grades, scores: Scores, common: Scores) -> Counts:
    hits = 0
    unjudged_hits = 0
    shallow_hits = 0
    unjudged_shallow_hits = 0
    for qid, query_scores in common.items():
        grades = judged[qid]
        first = trec_order(query_scores, SHALLOW)
        hits += len(query_scores)
        unjudged_hits += len(query_scores.keys() - grades.keys())
        shallow_hits += len(first)
        unjudged_shallow_hits += sum(docid not in grades for docid in first)
    return Counts(
        judged_queries=len(judged),
        missing_queries=len(judged) - len(common),
        extra_queries=len(scores) - len(common),
        hits=hits,
        unjudged_hits=unjudged_hits,
        shallow_hits=shallow_hits,
        unjudged_shallow_hits=unjudged_shallow_hits,
    )


def _by_trec_eval(
    measures: Iterable[Measure], judged: Grades, common: Scores
) -> dict[Measure, dict[str, float]]:
    """Measure -> query id -> value of every query in ``common``. One pass for each depth of the run."""
    from ir_measures import pytrec_eval

    by_depth: dict[int | None, list[Measure]] = {}
    values: dict[Measure, dict[str, float]] = {}
    for measure in measures:
        if measure.family not in COUNTED_FAMILIES and not measure.library:
            by_depth.setdefault(measure.depth, []).append(measure)
            values[measure] = {}
    if not common:
        return values

    for depth, measures_of_depth in by_depth.items():
        run = common
        if depth is not None:
            # As trec_eval -M does, truncate after its own ranking.
            run = {}
            for qid, scores in common.items():
                run[qid] = {docid: scores[docid] for docid in trec_order(scores, depth)}
        by_library = {measure.in_ir_measures(): values[measure] for measure in measures_of_depth}
        for qid, library_measure, value in pytrec_eval.iter_calc(by_library, judged, run):
            by_library[library_measure][qid] = value
        # MRR and RR are one measure of the library, which wrote only the dictionary of the later one.
        for measure in measures_of_depth:
            values[measure] = by_library[measure.in_ir_measures()]
    return values


def _by_library(
    measures: Iterable[Measure], judgements: Judgements, common: Scores
) -> dict[Measure, dict[str, float]]:
    """Measure -> query id -> value, of the measures that ir_measures has other libraries compute, ties as there."""
    import ir_measures

    values: dict[Measure, dict[str, float]] = {}
    for measure in measures:
        if measure.library:
            values[measure] = {}
    if not values or not common:
        return values

    qrels = []
    for qid, subtopic, docid, grade in judgements.by_subtopic():
        if qid in common:
            qrels.append(ir_measures.Qrel(qid, docid, grade, subtopic))
    run = []
    for qid, scores in common.items():
        for docid, score in scores.items():
            run.append(ir_measures.ScoredDoc(qid, docid, score))
    by_library = {measure.in_ir_measures(): by_qid for measure, by_qid in values.items()}
    try:
        for metric in ir_measures.iter_calc(list(by_library), qrels, run):
            by_library[metric.measure][metric.query_id] = float(metric.value)
    except Exception as e:  # of a provider, which may be any library
        names = ", ".join(map(str, by_library))
        reason = one_line(f"{type(e).__name__}: {e}", 200)
        raise DupmaeError(f"ir_measures could not compute {names}: {reason}") from e
    return values


def _by_counting(
    measures: Iterable[Measure], judged: Grades, common: Scores
) -> dict[Measure, dict[str, float]]:
    """Measure -> query id -> value, of the measures that are counts.

    ir_measures computes them differently: its NumRel knows one level, and its Judged ranks ties by docid ascending.
    NumRel counts grades of its level in every judged query (``trec_eval -c -l 2 -m num_rel`` uses level 1 for queries
    without hits).
    """
    values: dict[Measure, dict[str, float]] = {}
    for measure in measures:
        by_qid: dict[str, float] = {}
        if measure.family == "Judged":
            depth = int(measure.cutoff or 0)
            for qid, scores in common.items():
                first = trec_order(scores, depth)
                by_qid[qid] = sum(docid in judged[qid] for docid in first) / len(first)
            values[measure] = by_qid
        elif measure.family == "NumRel":
            level = measure.rel or 1
            for qid, grades in judged.items():
                by_qid[qid] = float(sum(grade >= level for grade in grades.values()))
            values[measure] = by_qid
        elif measure.family == "NumQ":
            values[measure] = dict.fromkeys(judged, 1.0)
    return values


def _over_queries(values: Mapping[str, float], total: bool) -> float:
    """Sum or mean, added one by one in the order of sorted query ids, for trec_eval's last digit.

    Neither ``sum`` (compensated from Python 3.12 on) nor numpy (pairwise) rounds in the same way.
    """
    added = functools.reduce(operator.add, (values[qid] for qid in sorted(values)), 0.0)
    if total:
        return added
    return added / len(values)
