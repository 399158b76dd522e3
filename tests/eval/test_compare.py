"""Which queries are compared, what a win is, and over what Holm corrects."""

from __future__ import annotations

import numpy as np
import pytest
from support.hostile_values import awkward_run, random_qrels

from dupmae_ir.errors import UsageError
from dupmae_ir.eval import evaluate
from dupmae_ir.eval.compare import Difference, QueryChange, compare, mean_intervals
from dupmae_ir.eval.config import ComparisonOptions
from dupmae_ir.eval.evaluate import Evaluation
from dupmae_ir.eval.significance import holm, permutation_tests, t_test
from dupmae_ir.types import Hit

MEASURES = ["nDCG@10", "R@5"]


@pytest.fixture(scope="module")
def evaluations() -> dict[str, Evaluation]:
    qrels = random_qrels(1)
    return {
        name: evaluate(qrels, awkward_run(qrels, seed), MEASURES)
        for seed, name in enumerate(["base", "a", "b"])
    }


def apart(evaluations: dict[str, Evaluation], name: str, measure: str) -> np.ndarray:
    base, run = (evaluations[n].per_query for n in ("base", name))
    return np.array([run[q][measure] - base[q][measure] for q in sorted(base)])


def test_each_number_is_that_of_its_differences(evaluations):
    settings = ComparisonOptions(resamples=999, seed=4)
    found = compare(evaluations, "base", settings)
    for measure in MEASURES:
        for name in ("a", "b"):
            d = apart(evaluations, name, measure)
            one = found.runs[name][measure]
            assert one.mean == pytest.approx(d.mean())
            assert one.p["t"] == pytest.approx(t_test(d))
            assert one.p["permutation"] == permutation_tests(d[:, None], 999, 4)[0].p
            assert (one.wins, one.losses) == ((d > 1e-12).sum(), (d < -1e-12).sum())
            assert one.interval.low < one.mean < one.interval.high
        for test in ("t", "permutation"):
            family = [found.runs[name][measure] for name in ("a", "b")]
            assert [d.corrected[test] for d in family] == holm([d.p[test] for d in family])


def test_the_baseline_may_stand_anywhere(evaluations):
    turned = dict(reversed(evaluations.items()))
    assert (
        compare(evaluations, "a").runs["b"]["R@5"].changes
        == compare(turned, "a").runs["b"]["R@5"].changes
    )


def test_the_order_of_judgements_means_nothing():
    qrels = random_qrels(2)
    found = []
    for order in (qrels, dict(reversed(qrels.items()))):
        runs = {n: evaluate(order, awkward_run(qrels, s), MEASURES) for s, n in enumerate("xy")}
        found.append(
            (
                compare(runs, "x", ComparisonOptions(resamples=99)),
                mean_intervals(runs["x"], ComparisonOptions()),
            )
        )
    assert found[0] == found[1]


def test_incomplete_runs_are_compared_where_both_count():
    qrels = {q: {"d": 1} for q in "1234"}
    hits = [Hit("d", 1.0)]
    runs = {"x": dict.fromkeys("123", hits), "y": {q: [Hit("e", 2.0), *hits] for q in "234"}}
    found = {name: evaluate(qrels, run, ["MRR"], complete=False) for name, run in runs.items()}
    one = compare(found, "x").runs["y"]["MRR"]
    assert [c.qid for c in one.changes] == ["2", "3"]
    assert (one.mean, one.losses) == (-0.5, 2)
    apart = {
        name: evaluate(qrels, {q: hits}, ["MRR"], complete=False)
        for name, q in {"x": "1", "y": "2"}.items()
    }
    with pytest.raises(UsageError, match="x and y have no query in common"):
        compare(apart, "x")


def test_nothing_to_compare(evaluations):
    with pytest.raises(UsageError, match="no run to compare with base"):
        compare({"base": evaluations["base"]}, "base")


def test_the_queries_that_moved_most_and_ties():
    changes = [
        ("q1", 0.0, 0.5),
        ("q2", 0.3, 0.1 + 0.2),
        ("q3", 1.0, 0.0),
        ("q0", 0.5, 0.0),
        ("q4", 0.2, 0.3),
    ]
    d = Difference(tuple(QueryChange(*c) for c in changes), 0.0, None, {}, {}, None)
    assert (d.wins, d.ties, d.losses) == (2, 1, 2)
    assert [c.qid for c in d.moved(10)] == ["q3", "q0", "q1", "q4"]
    assert [c.qid for c in d.moved(1)] == ["q3"]
    assert d.moved(0) == []


def test_an_undefined_test_gives_no_mark():
    qrels = {q: {"d": 1} for q in "12"}
    found = {
        "x": evaluate(qrels, {q: [Hit("d", 1.0)] for q in "12"}, ["MRR"]),
        "y": evaluate(qrels, {q: [Hit("e", 1.0)] for q in "12"}, ["MRR"]),
    }
    comparison = compare(found, "x")
    assert comparison.runs["y"]["MRR"].corrected == {"t": None, "permutation": 0.5}
    assert comparison.marks("y", "MRR") == comparison.marks("x", "MRR") == ""
