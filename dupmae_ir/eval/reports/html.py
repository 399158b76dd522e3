"""An evaluation as an HTML page: the tables of the other formats, and figures of per-query values."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dupmae_ir.eval.compare import Change, Comparison
from dupmae_ir.eval.reports import comparison_text
from dupmae_ir.eval.reports.comparison_text import signed
from dupmae_ir.eval.reports.figures import curves, difference_bars, linear, scatter
from dupmae_ir.eval.reports.page import bullets, esc, figure, figures, page, table
from dupmae_ir.eval.reports.ranks import Ranks, complementarity, recall_curve
from dupmae_ir.eval.reports.text import Report, cells, coverage, headline

FIRST = 10  #: ranks within which an answer counts as found, as in DupMAE's appendix A.1
QUERIES_NAMED = 12  #: of each kind of answer


@dataclass(frozen=True)
class Figures:
    """Data of the figures; a figure without data is omitted."""

    ranks: dict[str, Ranks] = field(default_factory=dict)  #: run -> ranks of its relevant documents
    parts: tuple[str, ...] = ()  #: names of the [CLS], OT and hybrid runs
    texts: Mapping[str, str] = field(default_factory=dict)  #: query id -> text
    level: int = 1  #: smallest relevant grade in ``ranks``


def as_html(report: Report, extra: Figures | None = None) -> str:
    """The page, without a final newline."""
    extra = extra or Figures()
    body = [f"<p>{esc(headline(report))}</p>", "<h2>Scores</h2>", _scores(report)]
    if comparison := report.comparison:
        body += [bullets(comparison_text.legend(comparison)), *_comparison(comparison, extra.texts)]
    if any(r.depth for r in extra.ranks.values()):
        body += ["<h2>Recall</h2>", figures([_recall(extra)])]
    if extra.parts and extra.ranks:
        body += ["<h2>[CLS], OT and their sum</h2>", *_parts(report, extra)]
    body += ["<h2>Coverage</h2>", bullets(coverage(report))]
    return page(f"Evaluation on {report.qrels}", body)


def _scores(report: Report) -> str:
    several = len(report.runs) > 1
    rows = []
    for name, row in cells(report).items():
        found = report.intervals.get(name, {})
        shown = []
        for measure, cell in zip(report.measures, row, strict=True):
            value = f"<strong>{cell.text}</strong>" if cell.best else cell.text
            interval = found.get(str(measure))
            small = f'<br><span class="note">{comparison_text.interval_text(interval, "")}</span>' if interval else ""
            shown.append(f"{value}{cell.marks}{small}")
        rows.append([esc(name), *shown])
    notes = ["best of a column bold"] if several else []
    notes += [f"below each mean its {100 * report.level:g} % interval"] if report.intervals else []
    caption = "Means over queries" + (f"; {', '.join(notes)}" if notes else "")
    baseline = esc(report.comparison.baseline) if report.comparison else ""
    return table(caption, ["run", *map(str, report.measures)], rows, strong=baseline)


def _comparison(comparison: Comparison, texts: Mapping[str, str]) -> list[str]:
    if not comparison.measures:
        return []
    measure = comparison.measures[0]
    rows = [[esc(cell) for cell in row] for row in comparison_text.rows(comparison)]
    caption = f"Mean differences from {comparison.baseline}; p values after Holm's correction"
    drawn = [
        figure(_bars(comparison, run, measure), _bars_caption(comparison, run, measure)) for run in comparison.runs
    ]
    return [
        f"<h2>Compared with {esc(comparison.baseline)}</h2>",
        table(caption, comparison_text.header(comparison), rows),
        f"<h3>Query by query, {esc(measure)}</h3>",
        figures(drawn),
        *_moved(comparison, measure, texts),
    ]


def _bars(comparison: Comparison, run: str, measure: str) -> str:
    found = comparison.runs[run][measure]
    differences = [(c.qid, c.difference) for c in found.changes]
    return difference_bars(differences, found.mean, f"{run} minus {comparison.baseline}, {measure}")


def _bars_caption(comparison: Comparison, run: str, measure: str) -> str:
    d = comparison.runs[run][measure]
    return (
        f"{run} minus {comparison.baseline} in {measure}: {d.wins} queries better, {d.ties} the same, {d.losses} "
        f"worse; mean {signed(d.mean)} (dashed)"
    )


def _moved(comparison: Comparison, measure: str, texts: Mapping[str, str]) -> list[str]:
    header = ["query", *(["words"] if texts else []), comparison.baseline, "run", "difference"]
    found: list[str] = []
    qids: dict[str, None] = {}
    for run, measures in comparison.runs.items():
        if moved := measures[measure].moved(comparison.settings.moved):
            rows = [_change(change, texts) for change in moved]
            caption = f"{run}: the queries that moved most in {measure}"
            found.append(f"<div>{table(caption, header, rows, words=(1,) if texts else ())}</div>")
            qids.update(dict.fromkeys(change.qid for change in moved))
    return ["<h3>Queries that moved most</h3>", figures(found), *_studies(qids)] if found else []


def _studies(qids: Iterable[str]) -> list[str]:
    """For every query that moved, the command that shows its lists side by side; the tables link to it."""
    out = ["<p>A query's page, given the index with both parts, the topics and the judgements:</p>", "<ul>"]
    for qid in qids:
        words = f"dupmae-ir eval.case --index INDEX --topics TOPICS --qrels QRELS --qid {shlex.quote(qid)}"
        out.append(f'<li id="case-{esc(qid)}"><code>{esc(words)} --format html --output case.html</code></li>')
    return [*out, "</ul>"]


def _change(change: Change, texts: Mapping[str, str]) -> list[str]:
    words = [esc(texts.get(change.qid, ""))] if texts else []
    link = f'<a href="#case-{esc(change.qid)}">{esc(change.qid)}</a>'
    return [link, *words, f"{change.baseline:.4f}", f"{change.run:.4f}", signed(change.difference)]


def _recall(extra: Figures) -> str:
    found = {name: recall_curve(ranks).tolist() for name, ranks in extra.ranks.items() if ranks.depth}
    level = f" (grade {extra.level} or better)" if extra.level > 1 else ""
    title = f"Recall at every rank{level}"
    return figure(curves(found, "rank k", "R@k", title), f"{title}: share of the relevant documents among the first k")


def _parts(report: Report, extra: Figures) -> list[str]:
    names = [str(m) for m in report.measures if not m.total]
    drawn = [_scatter(report, extra.parts, names[0])] if names else []
    cls, ot, hybrid = (extra.ranks[name] for name in extra.parts)
    found = complementarity(cls, ot, hybrid, FIRST)
    rows = [
        [esc(f.who), str(f.answers), f"{f.kept} ({f.kept / f.answers:.0%})" if f.answers else "0", esc(_some(f.qids))]
        for f in found
    ]
    caption = f"Relevant documents by the parts that rank them in the first {FIRST}, and their ranks in the sum"
    header = ["found by", "documents", f"of these in the first {FIRST} of the sum", "queries"]
    return [figures(drawn), table(caption, header, rows, words=(3,))]


def _scatter(report: Report, parts: tuple[str, ...], measure: str) -> str:
    cls, ot, hybrid = (report.runs[name].per_query for name in parts)
    groups: dict[str, list[tuple[float, float]]] = {
        "sum as good as the better, or better": [],
        "sum between the two": [],
        "sum worse than both": [],
    }
    at_least, between, below = groups.values()
    for qid in cls.keys() & ot.keys() & hybrid.keys():
        x, y, z = (of[qid][measure] for of in (cls, ot, hybrid))
        (at_least if z >= max(x, y) else between if z >= min(x, y) else below).append((x, y))
    top = max([v for points in groups.values() for p in points for v in p], default=1.0) or 1.0
    x_axis, y_axis = linear(f"[CLS]: {measure}", 0, top), linear(f"OT: {measure}", 0, top)
    title = f"{measure} of every query by [CLS] and by OT"
    caption = (
        f"{title} ({parts[0]}, {parts[1]}), marked by the value of the sum ({parts[2]}); [CLS] is better "
        "to the right of the dashed line, OT to the left; larger marks are several queries"
    )
    shown = {f"{name} ({len(points)})": points for name, points in groups.items()}
    return figure(scatter(shown, x_axis, y_axis, title, diagonal=True), caption)


def _some(qids: tuple[str, ...]) -> str:
    more = f" and {len(qids) - QUERIES_NAMED:,} more" if len(qids) > QUERIES_NAMED else ""
    return ", ".join(qids[:QUERIES_NAMED]) + more
