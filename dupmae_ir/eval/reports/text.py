"""An evaluation as text: terminal table, Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from dupmae_ir import tables
from dupmae_ir.console import table, visible
from dupmae_ir.eval.compare import MARKS, TEST_NAMES, Comparison, Difference
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
    #: run -> measure -> interval of its mean
    intervals: dict[str, dict[str, Interval | None]] = field(default_factory=dict)
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
    room = int(several)
    if report.comparison:
        room += len(report.comparison.settings.tests)
    rows = []
    for name, row in cells(report).items():
        texts = []
        for cell in row:
            star = "*" if cell.best else ""
            texts.append(f"{cell.text}{star}{cell.marks}".ljust(len(cell.text) + room))
        rows.append([name, *texts])
    blanks = " " * room
    body = table(rows, ["run", *(f"{measure}{blanks}" for measure in report.measures)])

    lines = [headline(report), "", body]
    if "*" in body:
        lines.append("* best of its column")
    lines += legend(report)
    if report.comparison and report.comparison.measures:
        # Only the first column is left-aligned, so run and measure share it.
        _, _, *header = comparison_header(report.comparison)
        joined = []
        for run, measure, *rest in comparison_rows(report.comparison):
            joined.append([f"{run}  {measure}", *rest])
        lines += ["", table(joined, ["run  measure", *header]), *moved_lines(report.comparison)]
    return "\n".join([*lines, "", *coverage(report)])


def as_markdown(report: EvalReport) -> str:
    """A Markdown table, the best of each column bold."""
    means = []
    for name, row in cells(report).items():
        means.append([name, *(_bold(cell, "**{}**") + cell.marks for cell in row)])
    lines = [
        tables.markdown(["run", *map(str, report.measures)], means),
        "",
        visible(headline(report), breaks=True),
        "",
        *_markdown_items([*legend(report), *coverage(report)]),
    ]
    if report.comparison and report.comparison.measures:
        header = comparison_header(report.comparison)
        lines += ["", tables.markdown(header, comparison_rows(report.comparison), 2)]
        moved = moved_lines(report.comparison)
        if moved:
            lines += ["", *_markdown_items(moved)]
    return "\n".join(lines)


def _markdown_items(lines: Sequence[str]) -> list[str]:
    return [f"- {visible(line, breaks=True)}" for line in lines]


def as_latex(report: EvalReport) -> str:
    """A booktabs table, the best of each column bold; other lines as comments, the legend below the tabular."""
    rows = []
    for name, row in cells(report).items():
        texts = [_bold(cell, r"\textbf{{{}}}") + _dagger(cell.marks) for cell in row]
        rows.append([tables.tex(name), *texts])
    notes = [headline(report), *coverage(report)]
    if report.comparison:
        notes += map("; ".join, comparison_rows(report.comparison))

    lines = [f"% {visible(note, breaks=True)}" for note in notes]
    header = [tables.tex(str(measure)) for measure in report.measures]
    lines.append(tables.latex(["Run", *header], rows))
    explanations = legend(report)
    if explanations:
        lines.append(r"\par\smallskip")
    for explanation in explanations:
        lines.append(rf"{{\footnotesize {tables.tex(explanation)}\par}}")
    return "\n".join(lines)


def as_csv(report: EvalReport) -> str:
    """One line per run: measures in full precision, then the counts; for compared runs, for each measure its interval,
    the difference from the baseline with its interval, wins, ties, losses, and each test's p and corrected p. Values
    that do not apply (the baseline's own difference, an undefined test) are empty."""
    header = ["run", *map(str, report.measures), *asdict(next(iter(report.runs.values())).counts)]
    lines: list[list[object]] = []
    for name, evaluation in report.runs.items():
        lines.append([name, *evaluation.mean.values(), *asdict(evaluation.counts).values()])
    if report.comparison:
        for measure in report.comparison.measures:
            columns = [_comparison_columns(report, name, measure) for name in report.runs]
            header += [f"{measure} {key}" for key in columns[0]]
            for line, values in zip(lines, columns, strict=True):
                line += values.values()
    return tables.csv_text([header, *lines])


def _comparison_columns(report: EvalReport, run: str, measure: str) -> dict[str, float | None]:
    """Column -> value of the CSV, besides the mean; None for the baseline's own difference and an undefined test."""
    assert report.comparison
    low, high = report.intervals.get(run, {}).get(measure) or (None, None)
    columns: dict[str, float | None] = {
        "low": low,
        "high": high,
        "difference": None,
        "difference low": None,
        "difference high": None,
        "wins": None,
        "ties": None,
        "losses": None,
    }
    tests = report.comparison.settings.tests
    for kind in ("p", "p_holm"):
        for test in tests:
            columns[f"{kind} {test}"] = None

    difference = report.comparison.runs.get(run, {}).get(measure)
    if difference is None:
        return columns
    columns["difference"] = difference.mean
    if difference.interval:
        columns["difference low"], columns["difference high"] = difference.interval
    columns["wins"] = difference.wins
    columns["ties"] = difference.ties
    columns["losses"] = difference.losses
    for test in tests:
        columns[f"p {test}"] = difference.p[test]
        columns[f"p_holm {test}"] = difference.corrected[test]
    return columns


def as_json(report: EvalReport, per_query: bool = False) -> str:
    """Everything in full precision; ``per_query`` adds query id -> measure -> value to each run."""
    measures = []
    for measure in report.measures:
        measures.append({"name": str(measure), "trec_eval": measure.trec_flags(report.complete)})
    runs = []
    for name, evaluation in report.runs.items():
        run: dict[str, object] = {
            "run": name,
            "path": report.paths[name],
            "values": evaluation.mean,
            "counts": asdict(evaluation.counts),
        }
        if name in report.intervals:
            run["intervals"] = report.intervals[name]
        if per_query:
            run["per_query"] = evaluation.per_query
        runs.append(run)
    everything: dict[str, object] = {
        "qrels": report.qrels,
        "complete": report.complete,
        "remove_unjudged": report.remove_unjudged,
        "measures": measures,
        "runs": runs,
    }
    if report.comparison:
        everything["comparison"] = _comparison(report.comparison)
    return json.dumps(everything, indent=2, ensure_ascii=False)


def per_query_tsv(report: EvalReport) -> str:
    """Tab-separated, one line per run and query: ``run qid value...`` with a header, in full precision."""
    lines: list[list[object]] = [["run", "qid", *map(str, report.measures)]]
    for name, evaluation in report.runs.items():
        for qid, values in evaluation.per_query.items():
            lines.append([name, qid, *values.values()])
    return tables.csv_text(lines, "\t")


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
    rows: dict[str, list[Cell]] = {name: [] for name in report.runs}
    for measure in report.measures:
        digits = 0 if measure.total else 4  # as trec_eval prints them
        printed = {name: f"{e.mean[str(measure)]:.{digits}f}" for name, e in report.runs.items()}
        top = max(printed.values(), key=float)
        differ = len(set(printed.values())) > 1 and not measure.total
        for name, text in printed.items():
            marks = ""
            if report.comparison:
                marks = report.comparison.marks(name, str(measure))
            rows[name].append(Cell(text, differ and text == top, marks))
    return rows


def _bold(cell: Cell, template: str) -> str:
    if cell.best:
        return template.format(cell.text)
    return cell.text


def _dagger(marks: str) -> str:
    """The marks of one value as one superscript."""
    return "".join(map(tables.tex, marks)).replace("}$$^{", "")


def legend(report: EvalReport) -> list[str]:
    """The meaning of the marks, and how intervals and p values are computed; empty without a comparison."""
    comparison = report.comparison
    if comparison is None:
        return []
    settings = comparison.settings
    runs = len(comparison.runs)
    correction = "one comparison, nothing to correct"
    if runs > 1:
        correction = f"Holm-corrected over {runs} runs"
    lines = []
    for test in settings.tests:
        lines.append(
            f"{MARKS[test]} differs from {comparison.baseline}: {TEST_NAMES[test]}, two-sided, "
            f"p < {settings.alpha:g} ({correction})"
        )
    lines.append(
        f"{100 * settings.level:g} % intervals: percentile bootstrap over queries, {BOOTSTRAPS:,} resamples, "
        f"seed {settings.seed}"
    )
    if "permutation" in settings.tests:
        exact = []
        for measures in comparison.runs.values():
            for difference in measures.values():
                if difference.permutation:
                    exact.append(difference.permutation.exact)
        method = f"{settings.resamples:,} random sign flips, seed {settings.seed}"
        if all(exact):
            method = "exact, all sign flips counted"
        elif any(exact):
            method += "; exact where few queries differ"
        lines.append(f"permutation tests: {method}")
    return lines


def comparison_header(comparison: Comparison) -> list[str]:
    """Column names of :func:`comparison_rows`."""
    level = f"{100 * comparison.settings.level:g} % interval"
    tests = [f"p {test}" for test in comparison.settings.tests]
    return ["run", "measure", f"minus {comparison.baseline}", level, *tests, "wins/ties/losses"]


def comparison_rows(comparison: Comparison) -> list[list[str]]:
    """One row per compared run and measure, with corrected p values."""
    rows = []
    for run, measures in comparison.runs.items():
        for measure, difference in measures.items():
            rows.append(
                [
                    run,
                    measure,
                    signed(difference.mean),
                    interval_text(difference.interval),
                    *map(p_text, difference.corrected.values()),
                    f"{difference.wins}/{difference.ties}/{difference.losses}",
                ]
            )
    return rows


def signed(value: float) -> str:
    """Four decimals with a sign; values that round to zero are ``+0.0000``."""
    return f"{round(value, 4) + 0.0:+.4f}"


def interval_text(interval: Interval | None, sign: str = "+") -> str:
    """Four decimals; ``-`` for no interval."""
    if not interval:
        return "-"
    return f"[{interval.low:{sign}.4f}, {interval.high:{sign}.4f}]"


def p_text(p: float | None) -> str:
    """Four decimals, ``<0.0001`` for smaller values, ``-`` for an undefined test."""
    if p is None:
        return "-"
    if p < 0.0001:
        return "<0.0001"
    return f"{p:.4f}"


def moved_lines(comparison: Comparison) -> list[str]:
    """For each compared run, the queries with the largest differences in the first measure."""
    lines = []
    for run, measures in comparison.runs.items():
        if not measures:
            continue
        measure, difference = next(iter(measures.items()))
        moved = []
        for change in difference.moved(comparison.settings.moved):
            before_and_after = f"({change.baseline:.4f} to {change.run:.4f})"
            moved.append(f"{change.qid} {signed(change.difference)} {before_and_after}")
        if moved:
            lines.append(f"{run} moved most in {measure}: {', '.join(moved)}")
    return lines


def _comparison(comparison: Comparison) -> Mapping[str, object]:
    """For JSON: settings, then run -> measure -> values of the difference."""
    settings = comparison.settings
    runs: dict[str, dict[str, object]] = {}
    for run, measures in comparison.runs.items():
        runs[run] = {}
        for measure, difference in measures.items():
            runs[run][measure] = _difference(difference, settings.moved)
    interval = {"method": "percentile bootstrap", "level": settings.level, "resamples": BOOTSTRAPS}
    return {
        "baseline": comparison.baseline,
        "tests": list(settings.tests),
        "correction": "holm",
        "alpha": settings.alpha,
        "interval": interval,
        "seed": settings.seed,
        "runs": runs,
    }


def _difference(difference: Difference, max_moved: int) -> dict[str, object]:
    """The difference of a run from the baseline in one measure, with the queries that moved most."""
    moved = []
    for change in difference.moved(max_moved):
        moved.append(asdict(change) | {"difference": change.difference})
    permutation = None
    if difference.permutation:
        permutation = difference.permutation._asdict()
    return {
        "queries": len(difference.changes),
        "difference": difference.mean,
        "interval": difference.interval,
        "wins": difference.wins,
        "ties": difference.ties,
        "losses": difference.losses,
        "p": difference.p,
        "p_holm": difference.corrected,
        "permutation": permutation,
        "moved": moved,
    }
