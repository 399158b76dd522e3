"""An evaluation as text: terminal table, Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dupmae_ir.console import table, visible
from dupmae_ir.eval.compare import MARKS, Comparison
from dupmae_ir.eval.evaluate import SHALLOW, Evaluation
from dupmae_ir.eval.reports import comparison_text
from dupmae_ir.eval.significance import Interval
from dupmae_ir.measures import Measure

_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?")


@dataclass(frozen=True)
class Report:
    """Several runs with the same judgements. ``runs``: name in the table -> evaluation, all with the same measures."""

    qrels: str  #: file or folder of the judgements
    runs: dict[str, Evaluation]
    paths: dict[str, str]  #: name in the table -> file
    remove_unjudged: bool = False
    comparison: Comparison | None = None  #: of the other runs with a baseline
    intervals: dict[str, dict[str, Interval | None]] = field(default_factory=dict)  #: run -> measure -> of its mean
    level: float = 0.95  #: of the intervals

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The measures of all runs."""
        return next(iter(self.runs.values())).measures

    @property
    def complete(self) -> bool:
        """Whether all judged queries are evaluated (trec_eval -c)."""
        return next(iter(self.runs.values())).complete


@dataclass(frozen=True)
class Cell:
    """One printed value. ``marks``: † and ‡ if the run differs significantly from the baseline."""

    text: str
    best: bool
    marks: str


def as_table(report: Report) -> str:
    """For a terminal: aligned columns, ``*`` at the best of each column, the averaging above, coverage below."""
    several = len(report.runs) > 1
    # Marks follow the number; blanks in their place, also in the header, keep digits aligned.
    room = several + (len(report.comparison.settings.tests) if report.comparison else 0)
    found = {name: [_starred(c).ljust(len(c.text) + room) for c in row] for name, row in cells(report).items()}
    body = table([[name, *row] for name, row in found.items()], ["run", *(f"{m}{' ' * room}" for m in report.measures)])
    stars = ["* best of its column"] if "*" in body else []
    lines = [headline(report), "", body, *stars, *_legend(report)]
    if report.comparison and report.comparison.measures:
        # Only the first column is left-aligned, so run and measure share it.
        (_, _, *header), rows = comparison_text.header(report.comparison), comparison_text.rows(report.comparison)
        joined = [[f"{run}  {measure}", *rest] for run, measure, *rest in rows]
        lines += ["", table(joined, ["run  measure", *header]), *comparison_text.moved_lines(report.comparison)]
    return "\n".join([*lines, "", *coverage(report)])


def as_markdown(report: Report) -> str:
    """A Markdown table, the best of each column bold."""
    means = [[name, *(_bold(c, "**{}**") + c.marks for c in row)] for name, row in cells(report).items()]
    lines = _markdown_table([["run", *map(str, report.measures)], *means], 1)
    lines += [
        "",
        visible(headline(report), breaks=True),
        "",
        *(f"- {visible(line, breaks=True)}" for line in (*_legend(report), *coverage(report))),
    ]
    if report.comparison and report.comparison.measures:
        compared = [comparison_text.header(report.comparison), *comparison_text.rows(report.comparison)]
        moved = [f"- {visible(line, breaks=True)}" for line in comparison_text.moved_lines(report.comparison)]
        lines += ["", *_markdown_table(compared, 2), *(["", *moved] if moved else [])]
    return "\n".join(lines)


def as_latex(report: Report) -> str:
    """A booktabs table, the best of each column bold; other lines as comments, the legend below the tabular."""
    rows = [
        [_tex(name), *(_bold(c, r"\textbf{{{}}}") + _tex_marks(c.marks) for c in row)]
        for name, row in cells(report).items()
    ]
    header = " & ".join(["Run", *(_tex(str(m)) for m in report.measures)])
    notes = [f"% {visible(line, breaks=True)}" for line in (headline(report), *coverage(report))]
    if report.comparison:
        notes += [f"% {visible('; '.join(row), breaks=True)}" for row in comparison_text.rows(report.comparison)]
    body = [" & ".join(row) + r" \\" for row in rows]
    start = rf"\begin{{tabular}}{{l{'r' * len(report.measures)}}}"
    legend = _legend(report)
    below = [r"\par\smallskip", *(rf"{{\footnotesize {_tex(line)}\par}}" for line in legend)] if legend else []
    rules = [r"\toprule", header + r" \\", r"\midrule", *body, r"\bottomrule"]
    return "\n".join([*notes, start, *rules, r"\end{tabular}", *below])


def as_csv(report: Report) -> str:
    """One line per run: measures in full precision, then the counts; for compared runs, for each measure its interval,
    the difference from the baseline with its interval, wins, ties, losses, and each test's p and corrected p. Values
    that do not apply (the baseline's own difference, an undefined test) are empty."""
    header = ["run", *map(str, report.measures), *asdict(next(iter(report.runs.values())).counts)]
    lines = [[name, *e.mean.values(), *asdict(e.counts).values()] for name, e in report.runs.items()]
    for measure in report.comparison.measures if report.comparison else ():
        columns = {name: _compared(report, name, measure) for name in report.runs}
        header += [f"{measure} {key}" for key in next(iter(columns.values()))]
        for line, name in zip(lines, report.runs, strict=True):
            line += columns[name].values()
    return _csv([header, *lines], ",")


def _compared(report: Report, run: str, measure: str) -> dict[str, Any]:
    """Column -> value of the CSV, besides the mean."""
    assert report.comparison
    low, high = report.intervals.get(run, {}).get(measure) or (None, None)
    difference = report.comparison.runs.get(run, {}).get(measure)
    return {"low": low, "high": high} | comparison_text.csv_columns(difference, report.comparison.settings.tests)


def as_json(report: Report, per_query: bool = False) -> str:
    """Everything in full precision; ``per_query`` adds query id -> measure -> value to each run."""
    return json.dumps(to_dict(report, per_query), indent=2, ensure_ascii=False)


def to_dict(report: Report, per_query: bool = False) -> dict[str, Any]:
    """The JSON form as plain values."""
    runs = [
        {"run": name, "path": report.paths[name], "values": e.mean, "counts": asdict(e.counts)}
        | ({"intervals": report.intervals[name]} if name in report.intervals else {})
        | ({"per_query": e.per_query} if per_query else {})
        for name, e in report.runs.items()
    ]
    return {
        "qrels": report.qrels,
        "complete": report.complete,
        "remove_unjudged": report.remove_unjudged,
        "measures": [{"name": str(m), "trec_eval": m.trec_flags(report.complete)} for m in report.measures],
        "runs": runs,
    } | ({"comparison": comparison_text.comparison_dict(report.comparison)} if report.comparison else {})


def per_query_tsv(report: Report) -> str:
    """Tab-separated, one line per run and query: ``run qid value...`` with a header, in full precision."""
    lines = [[name, qid, *of.values()] for name, e in report.runs.items() for qid, of in e.per_query.items()]
    return _csv([["run", "qid", *map(str, report.measures)], *lines], "\t")


def headline(report: Report) -> str:
    """The judgements, and the queries over which values are averaged."""
    counts = next(iter(report.runs.values())).counts
    if report.complete:
        basis = "all count, a query without hits as 0 (trec_eval -c)"
    else:
        basis = "those that a run has hits for count (trec_eval without -c)"
    removed = "; unjudged hits removed" if report.remove_unjudged else ""
    return f"{report.qrels}: {counts.judged_queries} judged queries; {basis}{removed}"


def coverage(report: Report) -> list[str]:
    """One line per run: queries without hits or judgements, and the unjudged hits at the top."""
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


def cells(report: Report) -> dict[str, list[Cell]]:
    """Run -> one printed value per measure; if they differ, the largest as printed is best."""
    found: dict[str, list[Cell]] = {name: [] for name in report.runs}
    for measure in report.measures:
        printed = {name: _printed(measure, e.mean) for name, e in report.runs.items()}
        top = max(printed.values(), key=float)
        differ = len(set(printed.values())) > 1 and not measure.total
        for name, text in printed.items():
            marks = report.comparison.marks(name, str(measure)) if report.comparison else ""
            found[name].append(Cell(text, differ and text == top, marks))
    return found


def _legend(report: Report) -> list[str]:
    return comparison_text.legend(report.comparison) if report.comparison else []


def _starred(cell: Cell) -> str:
    return f"{cell.text}{'*' if cell.best else ''}{cell.marks}"


def _bold(cell: Cell, how: str) -> str:
    return how.format(cell.text) if cell.best else cell.text


def _markdown_table(lines: list[list[str]], left: int) -> list[str]:
    """The first line is the header; the first ``left`` columns are left-aligned."""
    rule = [*[":--"] * left, *["--:"] * (len(lines[0]) - left)]
    rows = [lines[0], rule, *lines[1:]]
    return ["| " + " | ".join(visible(cell, breaks=True).replace("|", "\\|") for cell in row) + " |" for row in rows]


def _printed(measure: Measure, mean: Mapping[str, float]) -> str:
    """Four decimals as trec_eval prints them; totals as whole numbers."""
    value = mean[str(measure)]
    return f"{value:.0f}" if measure.total else f"{value:.4f}"


def _csv(lines: list[list[Any]], delimiter: str) -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows([*map(_cell, line)] for line in lines)
    return text.getvalue().rstrip("\n")


def _cell(value: Any) -> Any:
    """A value of a CSV cell. A text that a spreadsheet would take for a formula gets an apostrophe in front."""
    if not isinstance(value, str):
        return value
    formula = value.startswith(("=", "+", "-", "@", "\t", "\r")) and not _NUMBER.fullmatch(value)
    return ("'" if formula else "") + visible(value, breaks=True)


def _tex(text: str) -> str:
    special: dict[str, str | int | None] = {c: f"\\{c}" for c in "&%$#_{}"}
    special |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "<": "$<$", ">": "$>$"}
    special |= {mark: _tex_marks(mark) for mark in MARKS.values()}
    return visible(text, breaks=True).translate(str.maketrans(special))


def _tex_marks(marks: str) -> str:
    names = {"†": r"\dagger", "‡": r"\ddagger"}
    return f"$^{{{''.join(names[mark] for mark in marks)}}}$" if marks else ""
