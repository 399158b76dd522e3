"""The page parses, escapes, needs nothing from outside, and holds the numbers of the other formats."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from markupsafe import Markup
from support.hostile_values import awkward_run, random_qrels

from dupmae_ir.eval import evaluate
from dupmae_ir.eval.__main__ import main
from dupmae_ir.eval.compare import compare, mean_intervals
from dupmae_ir.eval.config import ComparisonOptions
from dupmae_ir.eval.reports.figures import curves, difference_bars
from dupmae_ir.eval.reports.html import FigureData, as_html, recall_curve, relevant_ranks, render
from dupmae_ir.eval.reports.text import FORMATS, EvalReport, as_json
from dupmae_ir.types import Hit

NASTY = '<script>alert("1")</script>&'
NAMES = ("base.trec", "cls.trec", "ot.trec", f"{NASTY}.trec")
MEASURES = ["nDCG@10", "R@100", "NumRet"]
VOID = {"meta", "br"}


class Checker(HTMLParser):
    """Every tag that opens closes, in order; collects words and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words = ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data


def checked(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    return checker


def nothing_from_outside(text: str) -> bool:
    inside = text.replace("http://www.w3.org/2000/svg", "")
    return not re.search(
        r"https?:|//\w|\b(src|xlink)\s*=|\bhref\s*=(?!\"#)|@import|url\((?!#)|<link|<script|<iframe",
        inside,
    )


@pytest.fixture(scope="module")
def qrels() -> dict[str, dict[str, int]]:
    return {f"{NASTY if q == 'q0' else q}": grades for q, grades in random_qrels(3).items()}


@pytest.fixture(scope="module")
def runs(qrels) -> dict[str, dict[str, list[Hit]]]:
    return {name: awkward_run(qrels, seed) for seed, name in enumerate(NAMES)}


@pytest.fixture(scope="module")
def report(qrels, runs) -> EvalReport:
    settings = ComparisonOptions(resamples=2000)
    found = {name: evaluate(qrels, run, MEASURES) for name, run in runs.items()}
    intervals = {name: mean_intervals(e, settings) for name, e in found.items()}
    paths = {name: f"/runs/{name}" for name in found}
    return EvalReport(
        "judged & graded", found, paths, False, compare(found, NAMES[0], settings), intervals
    )


@pytest.fixture(scope="module")
def figures(qrels, runs) -> FigureData:
    ranks = {name: relevant_ranks(qrels, run) for name, run in runs.items()}
    return FigureData(ranks, {qid: f"words of {qid}" for qid in qrels})


@pytest.fixture(scope="module")
def text(report, figures) -> str:
    return as_html(report, figures)


def test_it_parses_and_needs_nothing_from_outside(text):
    checker = checked(text)
    assert nothing_from_outside(text)
    assert "script" not in checker.tags
    assert NASTY in checker.words
    assert "prefers-color-scheme: dark" in text


def test_the_check_of_outside_things_finds_them():
    for bad in ('<img src="x">', '<a href="x">', "url(x)", "//cdn.example/x", "https://x"):
        assert not nothing_from_outside(bad)


def test_it_holds_the_numbers_of_the_other_formats(text, report):
    words = checked(text).words
    for evaluation in report.runs.values():
        for measure in ("nDCG@10", "R@100"):
            assert f"{evaluation.mean[measure]:.4f}" in words
        assert f"{evaluation.mean['NumRet']:.0f}" in words
    for line in FORMATS["table"](report).splitlines():
        if line.startswith(("†", "‡", "95 %")):
            assert line in words
    for measures in report.comparison.runs.values():
        for d in measures.values():
            assert f"{d.wins}/{d.ties}/{d.losses}" in words
            assert f"[{d.interval.low:+.4f}, {d.interval.high:+.4f}]" in words


def test_it_can_be_heard(text):
    checker = checked(text)
    svgs = re.findall(r"<svg [^>]*>", text)
    # Three compared runs, and recall.
    assert len(svgs) == 4
    assert all('role="img"' in svg and re.search(r'aria-label="[^"]{40,}"', svg) for svg in svgs)
    assert checker.tags.count("figcaption") == checker.tags.count("figure") == 4
    assert checker.tags.count("caption") == checker.tags.count("table")
    assert ("lang", "en") in checker.attributes
    assert checker.tags.count("th") > checker.tags.count("table")


def test_every_figure_is_xml(text):
    found = re.findall(r"<svg.*?</svg>", text, re.S)
    assert len(found) == 4
    for svg in found:
        ET.fromstring(svg)
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert len(set(ids)) == len(ids)


def test_a_single_run_has_means_and_recall_alone(report, figures):
    name = NAMES[0]
    one = EvalReport(
        "q", {name: report.runs[name]}, {name: name}, intervals={name: report.intervals[name]}
    )
    text = as_html(one, FigureData({name: figures.ranks[name]}))
    checked(text)
    assert text.count("<svg") == 1
    assert "Compared" not in text


def test_without_ranks_there_are_no_figures_of_them(report):
    assert as_html(report).count("<svg") == 3


@pytest.mark.parametrize("format", [*FORMATS, "html"])
def test_every_format_has_marks_and_their_legend(report, figures, format, qrels, runs):
    # A run that finds nothing relevant differs from the baseline by any test.
    nothing = {qid: [Hit("none", 1.0)] for qid in qrels}
    found = {NAMES[0]: report.runs[NAMES[0]], "nothing": evaluate(qrels, nothing, MEASURES)}
    bad = EvalReport(
        "q",
        found,
        dict.fromkeys(found, ""),
        comparison=compare(found, NAMES[0], ComparisonOptions(resamples=2000)),
    )
    text = as_html(bad) if format == "html" else FORMATS[format](bad)
    if format == "csv":
        assert "nDCG@10 p_holm t,nDCG@10 p_holm permutation" in text
    elif format == "json":
        p = json.loads(text)["comparison"]["runs"]["nothing"]["nDCG@10"]
        assert p["p_holm"]["t"] < 0.05 > p["p_holm"]["permutation"]
        assert p["interval"][1] < 0
    else:
        mark = r"0.0000$^{\dagger\ddagger}$" if format == "latex" else "0.0000†‡"
        assert mark in text
        assert "paired t-test, two-sided" in text
        assert "Holm" in text or "nothing to correct" in text
        assert (r"95 \%" if format == "latex" else "95 %") in text
    if (
        format == "latex"
    ):  # the footnotes are no rows of the table, whose first column they would widen
        table, below = text.split(r"\end{tabular}")
        assert "multicolumn" not in text
        assert "Holm" not in table.split(r"\toprule")[1]
        assert r"{\footnotesize $^{\dagger}$ differs from" in below


def test_json_is_the_comparison_in_full(report):
    found = json.loads(as_json(report))
    one = found["comparison"]["runs"][NAMES[1]]["nDCG@10"]
    d = report.comparison.runs[NAMES[1]]["nDCG@10"]
    difference = report.runs[NAMES[1]].mean["nDCG@10"] - report.runs[NAMES[0]].mean["nDCG@10"]
    assert one["difference"] == pytest.approx(difference)
    assert one["wins"] + one["ties"] + one["losses"] == one["queries"] == 25
    assert (one["p"], one["p_holm"]) == (d.p, d.corrected)
    assert len(one["moved"]) == 5
    assert [abs(c["difference"]) for c in one["moved"]] == sorted(
        abs(c["difference"]) for c in one["moved"]
    )[::-1]
    assert found["comparison"]["interval"]["resamples"] == 10_000
    assert "NumRet" not in found["comparison"]["runs"][NAMES[1]]


def test_the_recall_curve_is_trec_evals_recall(qrels, runs):
    for level in (1, 2):
        curve = recall_curve(relevant_ranks(qrels, runs["ot.trec"], level))
        for k in (1, 2, 5, 10, 30, 100):
            mean = evaluate(qrels, runs["ot.trec"], [f"R(rel={level})@{k}"]).mean
            assert curve[k - 1] == pytest.approx(next(iter(mean.values())), abs=1e-12)


def test_ranks_follow_the_settings_of_evaluate(qrels, runs):
    run = runs["cls.trec"]
    for complete in (True, False):
        curve = recall_curve(relevant_ranks(qrels, run, complete=complete, remove_unjudged=True))
        mean = evaluate(qrels, run, ["R@5"], complete=complete, remove_unjudged=True).mean["R@5"]
        assert curve[4] == pytest.approx(mean, abs=1e-12)


def heights(svg: str) -> list[tuple[str, float]]:
    """(tooltip, height) of the bars."""
    bars = []
    for group in ET.fromstring(svg).iter("g"):
        if (title := group.find("title")) is not None:
            ys = [float(y) for y in re.findall(r"[ML] \S+ (\S+)", group.find("path").get("d"))]
            bars.append((title.text, max(ys) - min(ys)))
    return bars


def test_bars_are_as_long_as_their_differences():
    svg = difference_bars([("a<", 0.5), ("b", -0.25), ("c", 0.0), ("d", 0.25)], 0.125, "t")
    bars = heights(svg)
    assert [words for words, _ in bars] == ["a<: +0.5000", "d: +0.2500", "c: +0.0000", "b: -0.2500"]
    assert [h / bars[1][1] for _, h in bars] == pytest.approx([2, 1, 0, 1], rel=1e-3)
    assert "2 queries gain, 1 lose, of 4" in svg
    assert svg.count("fill: var(--c0)") == 2


def test_many_queries_become_quantiles():
    values = np.linspace(1, -1, 5001)
    bars = heights(difference_bars([(f"q{i}", v) for i, v in enumerate(values)], 0.0, "t"))
    assert len(bars) == 300
    assert bars[0][1] == pytest.approx(bars[-1][1])


def test_figures_survive_the_extremes():
    for svg in (
        difference_bars([("q", 0.0)], 0.0, "t"),
        curves({"run": [0.0]}, "k", "R@k", "t"),
        curves({"_run $x$ 日本": [0.5] * 3, "other": [0.1] * 1000}, "k", "R@k", "t"),
    ):
        assert "nan" not in svg
        ET.fromstring(svg)
    assert "_run $x$ 日本</text>" in curves({"_run $x$ 日本": [0.5]}, "k", "R@k", "t")


def test_text_is_escaped_and_markup_is_not(tmp_path):
    (tmp_path / "t.html").write_text("{{ a }} {{ b }}")
    assert (
        render("t.html", tmp_path, a="<b>\x1b", b=Markup("<b>1</b>")) == "&lt;b&gt;\\u001b <b>1</b>"
    )


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "q").write_text("1 0 a 1\n2 0 b 2\n3 0 c 1\n")
    lists = {"cls": "xab", "ot": "axb", "sum": "abx", "again": "abx"}
    for name, order in lists.items():
        lines = [f"{q} Q0 {d} {r} {9 - r} t\n" for q in "123" for r, d in enumerate(order, 1)]
        (tmp_path / name).write_text("".join(lines))
    (tmp_path / "topics.tsv").write_text("1\tfirst <words>\n2\tsecond\n3\tthird\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_writes_the_page_and_prints_the_table(files, capsys):
    arguments = ["--qrels", "q", "cls", "ot", "sum", "--topics", "topics.tsv"]
    assert main([*arguments, "--report", "out/r.html"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("q: 3 judged queries")
    assert err == "report: out/r.html\n"
    text = (files / "out" / "r.html").read_text(encoding="utf-8")
    checked(text)
    assert "Compared with cls" in text
    assert "first &lt;words&gt;" in text
    assert main([*arguments, "--format", "html", "--baseline", "sum"]) == 0
    assert "Compared with sum" in capsys.readouterr().out


def test_equal_runs_do_not_differ(files, capsys):
    assert (
        main(["--qrels", "q", "sum", "again", "--baseline", "again", "-m", "MRR@10", "--json"]) == 0
    )
    (run,) = json.loads(capsys.readouterr().out)["comparison"]["runs"].values()
    assert run["MRR@10"]["p"] == {"t": 1.0, "permutation": 1.0}
    assert (run["MRR@10"]["ties"], run["MRR@10"]["interval"], run["MRR@10"]["moved"]) == (
        3,
        [0.0, 0.0],
        [],
    )


def test_one_test_of_two(files, capsys):
    assert (
        main(
            [
                "--qrels",
                "q",
                "cls",
                "sum",
                "--baseline",
                "cls",
                "--test",
                "permutation",
                "-m",
                "MRR@10",
            ]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "‡ differs" in out
    assert "†" not in out
    assert "exact, all sign flips counted" in out


def test_totals_alone_are_not_compared(files, capsys):
    for format in (*FORMATS, "html"):
        assert (
            main(
                [
                    "--qrels",
                    "q",
                    "cls",
                    "sum",
                    "--baseline",
                    "cls",
                    "-m",
                    "NumRet",
                    "--format",
                    format,
                ]
            )
            == 0
        )
    assert "p t" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["cls", "sum", "--baseline", "ot"],
            "--baseline ot: not one of the runs, which are cls, sum",
        ),
        (["cls", "--baseline", "cls"], "name the runs to compare with it"),
        (["cls", "sum", "--alpha", "0.01"], "--alpha applies only with --baseline"),
        (
            ["cls", "sum", "--baseline", "cls", "--alpha", "1.5"],
            "--alpha must be less than 1, got 1.5",
        ),
        (["cls", "sum", "--baseline", "cls", "--seed", "-1"], "--seed must be at least 0, got -1"),
        (
            ["cls", "sum", "--baseline", "cls", "--resamples", "0"],
            "--resamples must be at least 1, got 0",
        ),
        (["cls", "sum", "--topics", "topics.tsv"], "--topics applies only with --report"),
    ],
)
def test_misuse_is_one_line(files, capsys, arguments, message):
    assert main(["--qrels", "q", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
