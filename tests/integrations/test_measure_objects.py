"""Runs and judgements of ir_measures and ranx: the same values there and here."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest

from dupmae_ir import evaluate
from dupmae_ir.integrations import measures
from dupmae_ir.types import Hit


class Line(NamedTuple):
    query_id: str
    doc_id: str
    score: float
    relevance: int


def made_up(seed: int = 0) -> tuple[dict[str, dict[str, int]], dict[str, list[Hit]]]:
    rng = np.random.default_rng(seed)
    qrels = {str(q): {f"d{d}": int(g) for d, g in enumerate(rng.integers(0, 4, 30))} for q in range(20)}
    run = {
        qid: sorted((Hit(f"d{d}", float(s)) for d, s in enumerate(rng.permutation(60))), key=lambda h: -h.score)
        for qid in qrels
    }
    return qrels, run


def imported(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


def test_lines_and_nested_mappings():
    lines = [Line("1", "b", 2.0, 1), Line("1", "a", 2.0, 0), Line("2", "c", 1.0, 3)]
    run = {"1": [Hit("a", 2.0), Hit("b", 2.0)], "2": [Hit("c", 1.0)]}
    assert measures.run_of(lines) == run
    assert measures.run_of({"1": {"b": 2, "a": 2}, "2": {"c": 1}}) == run
    assert measures.qrels_of(lines) == {"1": {"b": 1, "a": 0}, "2": {"c": 3}}


def test_ir_measures_gives_the_same_values():
    ir_measures = imported("ir_measures")
    qrels, run = made_up()
    wanted = [ir_measures.nDCG @ 10, ir_measures.AP(rel=2), ir_measures.R @ 20]
    theirs = ir_measures.calc_aggregate(wanted, measures.qrels_to_ir_measures(qrels), measures.to_ir_measures(run))
    ours = evaluate(qrels, measures.run_of(measures.to_ir_measures(run)), [str(m) for m in wanted]).mean
    assert ours == pytest.approx({str(m): v for m, v in theirs.items()}, abs=1e-12)
    assert measures.qrels_of(measures.qrels_to_ir_measures(qrels)) == qrels


def test_ranx_gives_the_same_values():
    ranx = imported("ranx")
    qrels, run = made_up(1)
    theirs_run, theirs_qrels = measures.to_ranx({**run, "none": []}, "mine"), measures.qrels_to_ranx(qrels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = ranx.evaluate(theirs_qrels, theirs_run, "ndcg@10")
    assert evaluate(qrels, run, ["nDCG@10"]).mean["nDCG@10"] == pytest.approx(float(value), abs=1e-9)
    assert {q: set(h) for q, h in measures.run_of(theirs_run).items()} == {q: set(h) for q, h in run.items()}
    assert measures.qrels_of(theirs_qrels) == qrels
