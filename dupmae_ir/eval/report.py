"""An evaluation as text: terminal table, Markdown, LaTeX, CSV, JSON. Functions from values to strings, no printing."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dupmae_ir.console import table
from dupmae_ir.eval.evaluate import SHALLOW, Evaluation
from dupmae_ir.eval.measures import Measure


@dataclass(frozen=True)
class Report:
    """Several runs against the same judgements. ``runs``: name to show -> evaluation, all with the same measures."""

    qrels: str  #: where the judgements came from
    runs: dict[str, Evaluation]
    paths: dict[str, str]  #: name to show -> file
    remove_unjudged: bool = False

    @property
    def measures(self) -> tuple[Measure, ...]:
        return next(iter(self.runs.values())).measures

    @property
    def complete(self) -> bool:
        return next(iter(self.runs.values())).complete


def as_table(report: Report) -> str:
    """For a terminal: aligned columns, ``*`` at the best of each column, what counts above, coverage below."""
    several = len(report.runs) > 1
    # Beside a starred number a plain one ends in a blank, and so does the heading, so that digits stay aligned.
    pad = " " if several else ""
    cells = _cells(report, lambda text: f"{text}*", lambda text: text + pad)
    body = table([[name, *values] for name, values in cells.items()], ["run", *(f"{m}{pad}" for m in report.measures)])
    legend = ["* best of its column"] if "*" in body else []
    return "\n".join([headline(report), "", body, *legend, "", *coverage(report)])


def as_markdown(report: Report) -> str:
    """A Markdown table, the best of each column bold."""
    rows = [[name, *cells] for name, cells in _cells(report, lambda text: f"**{text}**").items()]
    lines = [["run", *map(str, report.measures)], [":--", *("--:" for _ in report.measures)], *rows]
    body = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    return "\n".join([*body, "", headline(report), "", *(f"- {line}" for line in coverage(report))])


def as_latex(report: Report) -> str:
    """A booktabs table, the best of each column bold; the rest as comments."""
    rows = [[_tex(name), *cells] for name, cells in _cells(report, lambda text: rf"\textbf{{{text}}}").items()]
    header = " & ".join(["Run", *(_tex(str(m)) for m in report.measures)])
    notes = [f"% {line}" for line in (headline(report), *coverage(report))]
    body = [" & ".join(row) + r" \\" for row in rows]
    start = rf"\begin{{tabular}}{{l{'r' * len(report.measures)}}}"
    rules = [r"\toprule", header + r" \\", r"\midrule", *body, r"\bottomrule"]
    return "\n".join([*notes, start, *rules, r"\end{tabular}"])


def as_csv(report: Report) -> str:
    """One line a run: measures in full precision, then the counts."""
    header = ["run", *map(str, report.measures), *asdict(next(iter(report.runs.values())).counts)]
    lines = [[name, *e.mean.values(), *asdict(e.counts).values()] for name, e in report.runs.items()]
    return _csv([header, *lines], ",")


def as_json(report: Report, per_query: bool = False) -> str:
    """Everything in full precision; ``per_query`` adds query id -> measure -> value to each run."""
    return json.dumps(to_dict(report, per_query), indent=2, ensure_ascii=False)


def to_dict(report: Report, per_query: bool = False) -> dict[str, Any]:
    """The JSON form as plain values."""
    runs = [
        {"run": name, "path": report.paths[name], "values": e.mean, "counts": asdict(e.counts)}
        | ({"per_query": e.per_query} if per_query else {})
        for name, e in report.runs.items()
    ]
    return {
        "qrels": report.qrels,
        "complete": report.complete,
        "remove_unjudged": report.remove_unjudged,
        "measures": [{"name": str(m), "trec_eval": m.trec_flags(report.complete)} for m in report.measures],
        "runs": runs,
    }


def per_query_tsv(report: Report) -> str:
    """Tab-separated, one line for each run and query: ``run qid value...`` under a header, in full precision."""
    lines = [[name, qid, *of.values()] for name, e in report.runs.items() for qid, of in e.per_query.items()]
    return _csv([["run", "qid", *map(str, report.measures)], *lines], "\t")


def headline(report: Report) -> str:
    """What the numbers are means over."""
    counts = next(iter(report.runs.values())).counts
    if report.complete:
        basis = "all count, a query without hits as 0 (trec_eval -c)"
    else:
        basis = "those that a run has hits for count (trec_eval without -c)"
    removed = "; unjudged hits removed" if report.remove_unjudged else ""
    return f"{report.qrels}: {counts.judged_queries} judged queries; {basis}{removed}"


def coverage(report: Report) -> list[str]:
    """One line a run: queries that are missing or without judgements, and how much of the top was judged."""
    lines = []
    for name, e in report.runs.items():
        c = e.counts
        missing = f"judged queries without hits: {c.missing_queries} of {c.judged_queries}"
        extra = f"queries without judgements: {c.extra_queries} (left out)"
        unjudged = f"unjudged in the first {SHALLOW}: {c.unjudged_shallow_hits} of {c.shallow_hits} hits"
        lines.append(f"{name}: {missing}; {extra}; {unjudged}")
    return lines


FORMATS: dict[str, Callable[[Report], str]] = {
    "table": as_table,
    "markdown": as_markdown,
    "latex": as_latex,
    "csv": as_csv,
    "json": as_json,
}


def _cells(
    report: Report, best: Callable[[str], str], other: Callable[[str], str] = lambda text: text
) -> dict[str, list[str]]:
    """Run -> one printed value a measure; where they differ, the best as printed goes through ``best``."""
    cells: dict[str, list[str]] = {name: [] for name in report.runs}
    for measure in report.measures:
        printed = {name: _printed(measure, e.mean) for name, e in report.runs.items()}
        top = max(printed.values(), key=float)
        marks = len(set(printed.values())) > 1 and not measure.total
        for name, text in printed.items():
            cells[name].append(best(text) if marks and text == top else other(text))
    return cells


def _printed(measure: Measure, mean: Mapping[str, float]) -> str:
    """Four decimals as trec_eval prints them; totals as whole numbers."""
    value = mean[str(measure)]
    return f"{value:.0f}" if measure.total else f"{value:.4f}"


def _csv(lines: list[list[Any]], delimiter: str) -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows(lines)
    return text.getvalue().rstrip("\n")


def _tex(text: str) -> str:
    special: dict[str, str | int | None] = {c: f"\\{c}" for c in "&%$#_{}"}
    special |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}"}
    return text.translate(str.maketrans(special))
