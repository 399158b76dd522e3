from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from support.hostile_values import awkward_run, random_qrels

from dupmae_ir.errors import UsageError
from dupmae_ir.eval import evaluate
from dupmae_ir.io.runs import trec_order
from dupmae_ir.types import Hit

QRELS = {"1": {"a": 1, "b": 0, "c": -1}, "2": {"a": 0}, "3": {"a": 2, "c": 1}, "4": {"z": 1}}
RUN = {
    "1": [Hit("c", 5.0), Hit("a", 4.0), Hit("u", 4.0), Hit("b", 2.0)],
    "2": [Hit("a", 1.0)],
    "3": [Hit("x", 3.0), Hit("c", 2.0), Hit("a", 1.0)],
    "9": [Hit("a", 1.0)],
}


def dcg(gains: list[int]) -> float:
    return sum(max(g, 0) / math.log2(rank + 1) for rank, g in enumerate(gains, 1))


def ratio(a: float, b: float) -> float:
    return a / b if b else 0.0


def average_precision(hits: list[bool], relevant: int) -> float:
    return ratio(sum(sum(hits[:i]) / i for i, hit in enumerate(hits, 1) if hit), relevant)


# (gains down the ranking, gains of all judged documents) -> value, straight from the definitions.
DEFINITIONS: dict[str, Callable[[list[int], list[int]], float]] = {
    "nDCG@10": lambda got, all_: ratio(dcg(got[:10]), dcg(sorted(all_, reverse=True)[:10])),
    "nDCG": lambda got, all_: ratio(dcg(got), dcg(sorted(all_, reverse=True))),
    "MRR@3": lambda got, all_: next((1 / r for r, g in enumerate(got[:3], 1) if g >= 1), 0.0),
    "RR(rel=2)": lambda got, all_: next((1 / r for r, g in enumerate(got, 1) if g >= 2), 0.0),
    "R@10": lambda got, all_: ratio(sum(g >= 1 for g in got[:10]), sum(g >= 1 for g in all_)),
    "P(rel=2)@5": lambda got, all_: sum(g >= 2 for g in got[:5]) / 5,
    "Success@5": lambda got, all_: float(any(g >= 1 for g in got[:5])),
    "MAP": lambda got, all_: average_precision([g >= 1 for g in got], sum(g >= 1 for g in all_)),
    "AP(rel=3)@20": lambda got, all_: average_precision(
        [g >= 3 for g in got[:20]], sum(g >= 3 for g in all_)
    ),
    "Rprec": lambda got, all_: ratio(
        sum(g >= 1 for g in got[: sum(g >= 1 for g in all_)]), sum(g >= 1 for g in all_)
    ),
    "NumRel(rel=2)": lambda got, all_: sum(g >= 2 for g in all_),
    "NumRet(rel=1)": lambda got, all_: sum(g >= 1 for g in got),
    "NumRet": lambda got, all_: len(got),
}


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_values_are_the_definitions(seed, complete):
    qrels = random_qrels(seed)
    run = awkward_run(qrels, seed)
    found = evaluate(qrels, run, DEFINITIONS, complete=complete)
    assert list(found.per_query) == [q for q in qrels if complete or q in run]
    for qid, values in found.per_query.items():
        got = [qrels[qid].get(d, 0) for d in trec_order(dict(run.get(qid, [])))]
        for name, definition in DEFINITIONS.items():
            assert values[name] == pytest.approx(
                definition(got, list(qrels[qid].values())), abs=1e-12
            ), (qid, name)
    for name in DEFINITIONS:
        column = [values[name] for values in found.per_query.values()]
        wanted = sum(column) if name.startswith("Num") else np.mean(column)
        assert found.mean[name] == pytest.approx(wanted, abs=1e-12)


def test_by_hand():
    found = evaluate(QRELS, RUN, ["nDCG@10", "MRR@2", "MRR", "Judged@2", "NumQ"])
    # Query 1: c (-1) first, then of the two at 4.0 docid u before a, so a is third: 1 / log2(4).
    assert found.per_query["1"] == {
        "nDCG@10": 0.5,
        "MRR@2": 0.0,
        "MRR": 1 / 3,
        "Judged@2": 0.5,
        "NumQ": 1,
    }
    assert found.per_query["4"] == {"nDCG@10": 0, "MRR@2": 0, "MRR": 0, "Judged@2": 0, "NumQ": 1}
    assert found.mean["MRR"] == pytest.approx((1 / 3 + 1 / 2) / 4)
    assert found.mean["NumQ"] == 4
    c = found.counts
    assert (c.judged_queries, c.missing_queries, c.extra_queries) == (4, 1, 1)
    assert (c.hits, c.unjudged_hits, c.shallow_hits, c.unjudged_shallow_hits) == (8, 2, 8, 2)


def test_a_query_without_hits_is_missing():
    assert evaluate(QRELS, RUN | {"4": []}, ["MAP"]) == evaluate(QRELS, RUN, ["MAP"])
    assert evaluate({**QRELS, "5": {}}, RUN, ["MAP"]).counts.judged_queries == 4


def test_an_empty_run_scores_zero_when_all_queries_count():
    assert evaluate(QRELS, {}, ["MAP", "Judged@5"]).mean == {"MAP": 0, "Judged@5": 0}
    with pytest.raises(UsageError, match="the run has no hits"):
        evaluate(QRELS, {}, ["MAP"], complete=False)


def test_remove_unjudged_keeps_what_has_any_judgement():
    kept = {q: [h for h in hits if h.docid in QRELS.get(q, {})] for q, hits in RUN.items()}
    found = evaluate(QRELS, RUN, ["nDCG@10", "MRR", "NumRet"], remove_unjudged=True)
    assert found.per_query == evaluate(QRELS, kept, ["nDCG@10", "MRR", "NumRet"]).per_query
    assert found.counts.unjudged_hits == 2
    only_unjudged = {"1": [Hit("u", 1.0)]}
    assert evaluate(QRELS, only_unjudged, ["MAP"], remove_unjudged=True).mean == {"MAP": 0}
    with pytest.raises(UsageError, match="no query is left"):
        evaluate(QRELS, only_unjudged, ["MAP"], remove_unjudged=True, complete=False)


def test_a_run_may_be_dictionaries_of_scores():
    scores = {qid: {hit.docid: hit.score for hit in hits} for qid, hits in RUN.items()}
    assert evaluate(QRELS, scores, ["MAP"]).per_query == evaluate(QRELS, RUN, ["MAP"]).per_query


@pytest.mark.parametrize(
    ("qrels", "run", "message"),
    [
        (
            QRELS,
            {"PLAIN-2": [Hit("a", 1.0)]},
            "no query in common: the run has ids like 'PLAIN-2', the judgements like '1'",
        ),
        ({}, RUN, "no judgements"),
        (QRELS, {"1": [Hit("a", 1.0), Hit("a", 2.0)]}, "'a' is listed twice"),
        (QRELS, {"1": [Hit("a", math.nan)]}, "score nan is not a finite"),
        (QRELS, {"1": [Hit("a", 1e39)]}, r"score 1e\+39 is not a finite"),
    ],
)
def test_refuses(qrels, run, message):
    with pytest.raises(UsageError, match=message):
        evaluate(qrels, run, ["MAP"])


def test_numpy_scores_and_grades_are_welcome():
    run = {q: [Hit(d, np.float32(s)) for d, s in hits] for q, hits in RUN.items()}
    qrels = {q: {d: np.int64(g) for d, g in grades.items()} for q, grades in QRELS.items()}
    assert (
        evaluate(qrels, run, ["nDCG@10", "MAP"]).mean
        == evaluate(QRELS, RUN, ["nDCG@10", "MAP"]).mean
    )


def test_means_are_added_in_trec_evals_order():
    """One by one over sorted ids: another order or a cleverer sum gives another last digit."""
    qrels = {f"{i}": {"a": 1} for i in range(400)}
    rng = np.random.default_rng(0)
    run = {
        q: [Hit("a", 0.0), *(Hit(f"x{j}", 1.0) for j in range(rng.integers(0, 9)))] for q in qrels
    }
    found = evaluate(qrels, run, ["MRR"])
    added = 0.0
    for qid in sorted(qrels):
        added += found.per_query[qid]["MRR"]
    assert found.mean["MRR"] == added / 400
