"""An evaluation as text: terminal table, Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from dupmae_ir import tables
from dupmae_ir.console import table, visible
from dupmae_ir.eval.compare import MARKS, TEST_NAMES, Comparison
from dupmae_ir.eval.evaluate import SHALLOW, Evaluation
from dupmae_ir.eval.significance import BOOTSTRAPS, Interval
from dupmae_ir.measures import Measure


@dataclass(frozen=True)
class EvalReport:
    """Several runs with the same judgements. ``runs``: name in the table -> evaluation, all with the same measures."""

    qrels: str  #: file or folder of the judgements
    runs: dict[str, Evaluation]
    paths: dict[str, str]  #: name in the table -> file
    remove_unjudged: bool = False
    comparison: Comparison | None = None  #: of the other runs with a baseline
    intervals: dict[str, dict[str, Interval | None]] = field(
        default_factory=dict
    )  #: run -> measure -> of its mean
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


def as_table(report: EvalReport) -> str:
    """For a terminal: aligned columns, ``*`` at the best of each column, the averaging above, coverage below."""
    several = len(report.runs) > 1
    # Marks follow the number; blanks in their place, also in the header, keep digits aligned.
    room = several + (len(report.comparison.settings.tests) if report.comparison else 0)
    found = {
        name: [f"{c.text}{'*' if c.best else ''}{c.marks}".ljust(len(c.text) + room) for c in row]
        for name, row in cells(report).items()
    }
    body = table(
        [[name, *row] for name, row in found.items()],
        ["run", *(f"{m}{' ' * room}" for m in report.measures)],
    )
    stars = ["* best of its column"] if "*" in body else []
    lines = [headline(report), "", body, *stars, *legend(report)]
    if report.comparison and report.comparison.measures:
        # Only the first column is left-aligned, so run and measure share it.
        (_, _, *header), rows = (
            comparison_header(report.comparison),
            comparison_rows(report.comparison),
        )
        joined = [[f"{run}  {measure}", *rest] for run, measure, *rest in rows]
        lines += ["", table(joined, ["run  measure", *header]), *moved_lines(report.comparison)]
    return "\n".join([*lines, "", *coverage(report)])


def as_markdown(report: EvalReport) -> str:
    """A Markdown table, the best of each column bold."""
    means = [
        [name, *(_bold(c, "**{}**") + c.marks for c in row)] for name, row in cells(report).items()
    ]
    lines = [
        tables.markdown(["run", *map(str, report.measures)], means),
        "",
        visible(headline(report), breaks=True),
        "",
        *(f"- {visible(line, breaks=True)}" for line in (*legend(report), *coverage(report))),
    ]
    if report.comparison and report.comparison.measures:
        moved = [f"- {visible(line, breaks=True)}" for line in moved_lines(report.comparison)]
        compared = tables.markdown(
            comparison_header(report.comparison), comparison_rows(report.comparison), 2
        )
        lines += ["", compared, *(["", *moved] if moved else [])]
    return "\n".join(lines)


def as_latex(report: EvalReport) -> str:
    """A booktabs table, the best of each column bold; other lines as comments, the legend below the tabular."""
    rows = [
        [tables.tex(name), *(_bold(c, r"\textbf{{{}}}") + _dagger(c.marks) for c in row)]
        for name, row in cells(report).items()
    ]
    notes = [headline(report), *coverage(report)]
    if report.comparison:
        notes += map("; ".join, comparison_rows(report.comparison))
    body = tables.latex(["Run", *(tables.tex(str(m)) for m in report.measures)], rows)
    below = [rf"{{\footnotesize {tables.tex(line)}\par}}" for line in legend(report)]
    if below:
        below = [r"\par\smallskip", *below]
    return "\n".join([*(f"% {visible(line, breaks=True)}" for line in notes), body, *below])


def as_csv(report: EvalReport) -> str:
    """One line per run: measures in full precision, then the counts; for compared runs, for each measure its interval,
    the difference from the baseline with its interval, wins, ties, losses, and each test's p and corrected p. Values
    that do not apply (the baseline's own difference, an undefined test) are empty."""
    header = ["run", *map(str, report.measures), *asdict(next(iter(report.runs.values())).counts)]
    lines = [
        [name, *e.mean.values(), *asdict(e.counts).values()] for name, e in report.runs.items()
    ]
    for measure in report.comparison.measures if report.comparison else ():
        columns = {name: _compared(report, name, measure) for name in report.runs}
        header += [f"{measure} {key}" for key in next(iter(columns.values()))]
        for line, name in zip(lines, report.runs, strict=True):
            line += columns[name].values()
    return tables.csv_text([header, *lines])


def _compared(report: EvalReport, run: str, measure: str) -> Mapping[str, float | None]:
    """Column -> value of the CSV, besides the mean; None for the baseline's own difference and an undefined test."""
    assert report.comparison
    difference = report.comparison.runs.get(run, {}).get(measure)
    low, high = report.intervals.get(run, {}).get(measure) or (None, None)
    tests = report.comparison.settings.tests
    p = [f"{name} {test}" for name in ("p", "p_holm") for test in tests]
    columns = ("difference", "difference low", "difference high", "wins", "ties", "losses", *p)
    if difference is None:
        values: Sequence[float | None] = [None] * len(columns)
    else:
        d = difference
        values = [d.mean, *(d.interval or (None, None)), d.wins, d.ties, d.losses]
        values += [of[test] for of in (d.p, d.corrected) for test in tests]
    return {"low": low, "high": high, **dict(zip(columns, values, strict=True))}


def as_json(report: EvalReport, per_query: bool = False) -> str:
    """Everything in full precision; ``per_query`` adds query id -> measure -> value to each run."""
    runs = [
        {"run": name, "path": report.paths[name], "values": e.mean, "counts": asdict(e.counts)}
        | ({"intervals": report.intervals[name]} if name in report.intervals else {})
        | ({"per_query": e.per_query} if per_query else {})
        for name, e in report.runs.items()
    ]
    everything = {
        "qrels": report.qrels,
        "complete": report.complete,
        "remove_unjudged": report.remove_unjudged,
        "measures": [
            {"name": str(m), "trec_eval": m.trec_flags(report.complete)} for m in report.measures
        ],
        "runs": runs,
    } | ({"comparison": _comparison(report.comparison)} if report.comparison else {})
    return json.dumps(everything, indent=2, ensure_ascii=False)


def per_query_tsv(report: EvalReport) -> str:
    """Tab-separated, one line per run and query: ``run qid value...`` with a header, in full precision."""
    lines = [
        [name, qid, *of.values()]
        for name, e in report.runs.items()
        for qid, of in e.per_query.items()
    ]
    return tables.csv_text([["run", "qid", *map(str, report.measures)], *lines], "\t")


def headline(report: EvalReport) -> str:
    """The judgements, and the queries over which values are averaged."""
    counts = next(iter(report.runs.values())).counts
    if report.complete:
        basis = "all count, a query without hits as 0 (trec_eval -c)"
    else:
        basis = "those that a run has hits for count (trec_eval without -c)"
    removed = "; unjudged hits removed" if report.remove_unjudged else ""
    return f"{report.qrels}: {counts.judged_queries} judged queries; {basis}{removed}"


def coverage(report: EvalReport) -> list[str]:
    """One line per run: queries without hits or judgements, and the unjudged hits at the top."""
    lines = []
    for name, e in report.runs.items():
        c = e.counts
        missing = f"judged queries without hits: {c.missing_queries} of {c.judged_queries}"
        extra = f"queries without judgements: {c.extra_queries} (left out)"
        unjudged = (
            f"unjudged in the first {SHALLOW}: {c.unjudged_shallow_hits} of {c.shallow_hits} hits"
        )
        lines.append(f"{name}: {missing}; {extra}; {unjudged}")
    return lines


FORMATS: dict[str, Callable[[EvalReport], str]] = {
    "table": as_table,
    "markdown": as_markdown,
    "latex": as_latex,
    "csv": as_csv,
    "json": as_json,
}


def cells(report: EvalReport) -> dict[str, list[Cell]]:
    """Run -> one printed value per measure; if they differ, the largest as printed is best."""
    found: dict[str, list[Cell]] = {name: [] for name in report.runs}
    for measure in report.measures:
        digits = 0 if measure.total else 4  # as trec_eval prints them
        printed = {name: f"{e.mean[str(measure)]:.{digits}f}" for name, e in report.runs.items()}
        top = max(printed.values(), key=float)
        differ = len(set(printed.values())) > 1 and not measure.total
        for name, text in printed.items():
            marks = report.comparison.marks(name, str(measure)) if report.comparison else ""
            found[name].append(Cell(text, differ and text == top, marks))
    return found


def _bold(cell: Cell, how: str) -> str:
    return how.format(cell.text) if cell.best else cell.text


def _dagger(marks: str) -> str:
    """The marks of one value as one superscript."""
    return "".join(map(tables.tex, marks)).replace("}$$^{", "")


def legend(report: EvalReport) -> list[str]:
    """The meaning of the marks, and how intervals and p values are computed; empty without a comparison."""
    comparison = report.comparison
    if comparison is None:
        return []
    s, runs = comparison.settings, len(comparison.runs)
    holm = f"Holm-corrected over {runs} runs" if runs > 1 else "one comparison, nothing to correct"
    lines = [
        f"{MARKS[t]} differs from {comparison.baseline}: {TEST_NAMES[t]}, two-sided, p < {s.alpha:g} ({holm})"
        for t in s.tests
    ]
    lines.append(
        f"{100 * s.level:g} % intervals: percentile bootstrap over queries, {BOOTSTRAPS:,} resamples, seed {s.seed}"
    )
    if "permutation" in s.tests:
        exact = [
            d.permutation.exact
            for of in comparison.runs.values()
            for d in of.values()
            if d.permutation
        ]
        drawn = f"{s.resamples:,} random sign flips, seed {s.seed}"
        if any(exact):
            drawn += "; exact where few queries differ"
        lines.append(
            f"permutation tests: {'exact, all sign flips counted' if all(exact) else drawn}"
        )
    return lines


def comparison_header(comparison: Comparison) -> list[str]:
    """Column names of :func:`comparison_rows`."""
    level = f"{100 * comparison.settings.level:g} % interval"
    tests = [f"p {test}" for test in comparison.settings.tests]
    return ["run", "measure", f"minus {comparison.baseline}", level, *tests, "wins/ties/losses"]


def comparison_rows(comparison: Comparison) -> list[list[str]]:
    """One row per compared run and measure, with corrected p values."""
    return [
        [
            run,
            measure,
            signed(d.mean),
            interval_text(d.interval),
            *(p_text(p) for p in d.corrected.values()),
            f"{d.wins}/{d.ties}/{d.losses}",
        ]
        for run, measures in comparison.runs.items()
        for measure, d in measures.items()
    ]


def signed(value: float) -> str:
    """Four decimals with a sign; values that round to zero are ``+0.0000``."""
    return f"{round(value, 4) + 0.0:+.4f}"


def interval_text(interval: Interval | None, sign: str = "+") -> str:
    """Four decimals; ``-`` for no interval."""
    return f"[{interval.low:{sign}.4f}, {interval.high:{sign}.4f}]" if interval else "-"


def p_text(p: float | None) -> str:
    """Four decimals, ``<0.0001`` for smaller values, ``-`` for an undefined test."""
    if p is None:
        return "-"
    return "<0.0001" if p < 0.0001 else f"{p:.4f}"


def moved_lines(comparison: Comparison) -> list[str]:
    """For each compared run, the queries with the largest differences in the first measure."""
    lines = []
    for run, measures in comparison.runs.items():
        for measure, difference in list(measures.items())[:1]:
            moved = [
                f"{c.qid} {signed(c.difference)} ({c.baseline:.4f} to {c.run:.4f})"
                for c in difference.moved(comparison.settings.moved)
            ]
            if moved:
                lines.append(f"{run} moved most in {measure}: {', '.join(moved)}")
    return lines


def _comparison(comparison: Comparison) -> Mapping[str, object]:
    """For JSON: settings, then run -> measure -> values of the difference."""
    s = comparison.settings
    runs = {
        run: {
            m: {
                "queries": len(d.changes),
                "difference": d.mean,
                "interval": d.interval,
                "wins": d.wins,
                "ties": d.ties,
                "losses": d.losses,
                "p": d.p,
                "p_holm": d.corrected,
                "permutation": d.permutation._asdict() if d.permutation else None,
                "moved": [asdict(c) | {"difference": c.difference} for c in d.moved(s.moved)],
            }
            for m, d in measures.items()
        }
        for run, measures in comparison.runs.items()
    }
    return {
        "baseline": comparison.baseline,
        "tests": list(s.tests),
        "correction": "holm",
        "alpha": s.alpha,
        "interval": {"method": "percentile bootstrap", "level": s.level, "resamples": BOOTSTRAPS},
        "seed": s.seed,
        "runs": runs,
    }
