"""Self-contained HTML pages from the jinja2 templates next to this module.

The page of an evaluation has the tables of the other formats, and figures of per-query values and of recall at every
rank.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from dupmae_ir import __version__
from dupmae_ir.console import visible
from dupmae_ir.eval.compare import Comparison
from dupmae_ir.eval.reports import text
from dupmae_ir.eval.reports.figures import curves, difference_bars
from dupmae_ir.eval.reports.text import EvalReport, signed
from dupmae_ir.io.runs import trec_order
from dupmae_ir.types import Hit, Qrels

if TYPE_CHECKING:
    from jinja2 import Environment

_Table = tuple[str, list[str], list[list[str]]]
"""Caption, header, rows."""
_Figure = tuple[Markup, str]
"""SVG, caption."""


@dataclass(frozen=True)
class FigureData:
    """Data of the figures; a figure without data is omitted."""

    ranks: dict[str, Ranks] = field(default_factory=dict)  #: run -> ranks of its relevant documents
    texts: Mapping[str, str] = field(default_factory=dict)  #: query id -> text
    level: int = 1  #: smallest relevant grade in ``ranks``


def as_html(report: EvalReport, extra: FigureData | None = None) -> str:
    """The page, without a final newline."""
    extra = extra or FigureData()
    compared = report.comparison if report.comparison and report.comparison.measures else None
    first = compared.measures[0] if compared else ""
    differences: _Table | None = None
    if compared:
        caption = f"Mean differences from {compared.baseline}; p values after Holm's correction"
        differences = caption, text.comparison_header(compared), text.comparison_rows(compared)
    return render(
        "eval.html",
        title=f"Evaluation on {report.qrels}",
        headline=text.headline(report),
        scores=_scores(report),
        legend=text.legend(report),
        baseline=compared.baseline if compared else "",
        measure=first,
        compared=differences,
        bars=[_bars(compared, run, first) for run in compared.runs] if compared else [],
        moved=_moved(compared, first, extra.texts) if compared else [],
        studies=_studies(compared, first) if compared else [],
        recall=_recall(extra) if any(r.depth for r in extra.ranks.values()) else None,
        coverage=text.coverage(report),
    )


def _scores(
    report: EvalReport,
) -> tuple[str, list[str], list[list[str]], tuple[int, ...], str | None]:
    """The table of means, without columns of words; the row of the baseline is tinted."""
    rows = []
    for name, row in text.cells(report).items():
        intervals = report.intervals.get(name, {})
        shown: list[str] = [name]
        for measure, cell in zip(report.measures, row, strict=True):
            value = (
                Markup("<strong>{}</strong>" if cell.best else "{}").format(cell.text) + cell.marks
            )
            if interval := intervals.get(str(measure)):
                value += Markup('<br><span class="note">{}</span>').format(
                    text.interval_text(interval, "")
                )
            shown.append(value)
        rows.append(shown)
    notes = ["best of a column bold"] if len(report.runs) > 1 else []
    notes += [f"below each mean its {100 * report.level:g} % interval"] if report.intervals else []
    caption = "; ".join(
        ["Means over queries", ", ".join(notes)] if notes else ["Means over queries"]
    )
    baseline = report.comparison.baseline if report.comparison else None
    return caption, ["run", *map(str, report.measures)], rows, (), baseline


def _bars(comparison: Comparison, run: str, measure: str) -> _Figure:
    d = comparison.runs[run][measure]
    title = f"{run} minus {comparison.baseline}, {measure}"
    caption = (
        f"{run} minus {comparison.baseline} in {measure}: {d.wins} queries better, {d.ties} the same, {d.losses} "
        f"worse; mean {signed(d.mean)} (dashed)"
    )
    return difference_bars([(c.qid, c.difference) for c in d.changes], d.mean, title), caption


def _moved(
    comparison: Comparison, measure: str, texts: Mapping[str, str]
) -> list[tuple[str, list[str], list[list[str]], tuple[int, ...]]]:
    """A table per run; the last value of each is its columns of words."""
    header = ["query", *(["words"] if texts else []), comparison.baseline, "run", "difference"]
    places: tuple[int, ...] = (1,) if texts else ()
    moved_tables = []
    for run, measures in comparison.runs.items():
        rows: list[list[str]] = []
        for change in measures[measure].moved(comparison.settings.moved):
            link = Markup('<a href="#case-{0}">{0}</a>').format(change.qid)
            words = [texts.get(change.qid, "")] if texts else []
            rows.append(
                [
                    link,
                    *words,
                    f"{change.baseline:.4f}",
                    f"{change.run:.4f}",
                    signed(change.difference),
                ]
            )
        if rows:
            title = f"{run}: the queries that moved most in {measure}"
            moved_tables.append((title, header, rows, places))
    return moved_tables


def _studies(comparison: Comparison, measure: str) -> list[tuple[str, str]]:
    """(query id, the command that shows its lists side by side) for every query that moved; the tables link to it."""
    moved = (
        measures[measure].moved(comparison.settings.moved) for measures in comparison.runs.values()
    )
    qids = dict.fromkeys(change.qid for changes in moved for change in changes)
    command = "python eval/studies/case.py --index INDEX --topics TOPICS --qrels QRELS --qid {} --format html"
    return [(qid, command.format(shlex.quote(qid)) + " --output case.html") for qid in qids]


def _recall(extra: FigureData) -> _Figure:
    values = {
        name: recall_curve(ranks).tolist() for name, ranks in extra.ranks.items() if ranks.depth
    }
    title = "Recall at every rank" + (
        f" (grade {extra.level} or better)" if extra.level > 1 else ""
    )
    return curves(
        values, "rank k", "R@k", title
    ), f"{title}: share of the relevant documents among the first k"


DEEPEST = 1000  #: length of the recall curve


@dataclass(frozen=True)
class Ranks:
    """The ranks of the relevant documents of every evaluated query, in trec_eval's order of the run."""

    found: dict[
        str, dict[str, int]
    ]  #: query id -> relevant docid -> its rank from 1, for documents in the run
    relevant: dict[str, int]  #: query id -> number of relevant documents
    depth: int  #: longest list of the run, at most ``DEEPEST``


def relevant_ranks(
    qrels: Qrels,
    run: Mapping[str, Iterable[Hit]],
    level: int = 1,
    complete: bool = True,
    remove_unjudged: bool = False,
) -> Ranks:
    """Ranks of the documents graded ``level`` or better; the other settings are :func:`evaluate`'s."""
    found: dict[str, dict[str, int]] = {}
    relevant: dict[str, int] = {}
    depth = 0
    for qid, grades in qrels.items():
        scores = {d: s for d, s in run.get(qid, ()) if not remove_unjudged or d in grades}
        if not grades or not (scores or complete):
            continue
        order = trec_order(scores)
        depth = max(depth, len(order))
        found[qid] = {d: rank for rank, d in enumerate(order, 1) if grades.get(d, 0) >= level}
        relevant[qid] = sum(grade >= level for grade in grades.values())
    return Ranks(found, relevant, min(depth, DEEPEST))


def recall_curve(ranks: Ranks) -> np.ndarray:
    """(depth,) float64: R@1, R@2, ... as in trec_eval; a query without relevant documents counts as 0."""
    gains = np.zeros(ranks.depth + 1)
    for qid, places in ranks.found.items():
        for rank in places.values():
            if rank <= ranks.depth:
                gains[rank] += 1 / ranks.relevant[qid]
    return np.asarray(np.cumsum(gains)[1:] / max(1, len(ranks.relevant)))


TEMPLATES = Path(__file__).with_name("templates")


def render(template: str, folder: Path = TEMPLATES, **values: Any) -> str:
    """The page of a template in ``folder``, without a final newline. Text is escaped, :class:`Markup` is not."""
    page = _environment(folder).get_template(template).render(version=__version__, **values)
    return "\n".join(line.rstrip() for line in page.strip().splitlines())


@cache
def _environment(folder: Path) -> Environment:
    # Imported here, because an evaluation without a page should not wait for it.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader([folder, TEMPLATES]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_visible,
    )


def _visible(value: Any) -> Any:
    """Control characters made visible, in text and in markup."""
    if isinstance(value, Markup):
        return Markup(visible(value))
    return visible(value) if isinstance(value, str) else value
