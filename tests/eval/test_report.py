from __future__ import annotations

import csv
import io
import json

import pytest

from dupmae_ir.eval import evaluate
from dupmae_ir.eval.reports.text import (
    FORMATS,
    EvalReport,
    as_csv,
    as_json,
    as_latex,
    as_markdown,
    as_table,
    per_query_tsv,
)
from dupmae_ir.types import Hit

QRELS = {"1": {"a": 1}, "2": {"b": 2}, "3": {"c": 1}}
GOOD = {
    "1": [Hit("a", 2.0), Hit("x", 1.0)],
    "2": [Hit("x", 2.0), Hit("b", 1.0)],
    "9": [Hit("x", 1.0)],
}
POOR = {"1": [Hit("x", 2.0), Hit("a", 1.0)], "2": [Hit("x", 2.0), Hit("b", 1.0)]}


@pytest.fixture
def report() -> EvalReport:
    measures = ["MRR@10", "R@10", "NumRet"]
    runs = {"good_1": evaluate(QRELS, GOOD, measures), "poor": evaluate(QRELS, POOR, measures)}
    return EvalReport("q.tsv", runs, {name: f"/runs/{name}" for name in runs})


def test_table(report):
    assert as_table(report).splitlines() == [
        "q.tsv: 3 judged queries; all count, a query without hits as 0 (trec_eval -c)",
        "",
        "run     MRR@10     R@10   NumRet",
        "------  -------  -------  -------",
        "good_1  0.5000*  0.6667        4",
        "poor    0.3333   0.6667        4",
        "* best of its column",
        "",
        "good_1: judged queries without hits: 1 of 3; queries without judgements: 1 (left out); "
        "unjudged in the first 10: 2 of 4 hits",
        "poor: judged queries without hits: 1 of 3; queries without judgements: 0 (left out); "
        "unjudged in the first 10: 2 of 4 hits",
    ]


def test_a_single_run_has_no_best():
    report = EvalReport(
        "q", {"r": evaluate(QRELS, GOOD, ["MRR"], complete=False)}, {"r": "r"}, remove_unjudged=True
    )
    text = as_table(report)
    assert "*" not in text
    assert "trec_eval without -c); unjudged hits removed" in text
    assert "r    0.7500" in text


def test_markdown_and_latex(report):
    assert as_markdown(report).splitlines()[:4] == [
        "| run | MRR@10 | R@10 | NumRet |",
        "|:--|--:|--:|--:|",
        "| good_1 | **0.5000** | 0.6667 | 4 |",
        "| poor | 0.3333 | 0.6667 | 4 |",
    ]
    latex = as_latex(report)
    assert r"good\_1 & \textbf{0.5000} & 0.6667 & 4 \\" in latex
    assert latex.count("{") == latex.count("}")
    assert latex.startswith("% q.tsv: 3 judged queries")
    assert latex.endswith(r"\end{tabular}")  # no legend without a comparison


def test_csv_and_json_hold_every_digit(report):
    rows = list(csv.DictReader(io.StringIO(as_csv(report))))
    values = json.loads(as_json(report))
    for row, run in zip(rows, values["runs"], strict=True):
        mean = report.runs[row["run"]].mean
        assert {m: float(row[m]) for m in mean} == mean == run["values"]
        assert int(row["extra_queries"]) == run["counts"]["extra_queries"]
    assert values["measures"][0] == {"name": "MRR@10", "trec_eval": "-c -M 10 -m recip_rank"}
    assert "per_query" not in values["runs"][0]
    assert (
        json.loads(as_json(report, per_query=True))["runs"][0]["per_query"]
        == report.runs["good_1"].per_query
    )


def test_per_query(report):
    rows = list(csv.DictReader(io.StringIO(per_query_tsv(report)), delimiter="\t"))
    assert [(r["run"], r["qid"]) for r in rows] == [
        (run, q) for run in ("good_1", "poor") for q in "123"
    ]
    assert [float(r["MRR@10"]) for r in rows] == [1, 0.5, 0, 0.5, 0.5, 0]


@pytest.mark.parametrize("name", FORMATS)
def test_no_format_ends_in_a_newline_or_blanks(report, name):
    assert all(line == line.rstrip() for line in FORMATS[name](report).split("\n"))
    assert not FORMATS[name](report).endswith("\n")
