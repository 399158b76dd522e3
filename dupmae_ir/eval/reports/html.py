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
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from markupsafe import Markup

from dupmae_ir import __version__
from dupmae_ir.console import visible
from dupmae_ir.eval.compare import Comparison
from dupmae_ir.eval.reports import text
from dupmae_ir.eval.reports.figures import curves, difference_bars
from dupmae_ir.eval.reports.text import Cell, EvalReport, signed
from dupmae_ir.eval.significance import Interval
from dupmae_ir.io.runs import trec_order
from dupmae_ir.types import Hit, Qrels

if TYPE_CHECKING:
    from jinja2 import Environment

MAX_RECALL_RANK = 1000
"""Length of the recall curve."""


class Table(NamedTuple):
    """The arguments of the template's macro ``table``."""

    caption: str
    header: list[str]
    rows: list[list[str]]
    words: tuple[int, ...] = ()  #: columns of wrapped text
    strong: str | None = None  #: first cell of the tinted row


class Figure(NamedTuple):
    """The arguments of the template's macro ``figure``."""

    svg: Markup
    caption: str


class CaseStudy(NamedTuple):
    """A query that moved, and the command that shows its lists side by side."""

    qid: str
    command: str


@dataclass(frozen=True)
class Ranks:
    """The ranks of the relevant documents of every evaluated query, in trec_eval's order of the run."""

    #: query id -> relevant docid -> its rank from 1, for documents in the run
    by_query: dict[str, dict[str, int]]
    relevant: dict[str, int]  #: query id -> number of relevant documents
    depth: int  #: longest list of the run, at most ``MAX_RECALL_RANK``


@dataclass(frozen=True)
class FigureData:
    """Data of the figures; a figure without data is omitted."""

    ranks: dict[str, Ranks] = field(default_factory=dict)  #: run -> ranks of its relevant documents
    texts: Mapping[str, str] = field(default_factory=dict)  #: query id -> text
    level: int = 1  #: smallest relevant grade in ``ranks``


def as_html(report: EvalReport, extra: FigureData | None = None) -> str:
    """The page, without a final newline."""
    if extra is None:
        extra = FigureData()
    baseline = ""
    first_measure = ""
    differences: Table | None = None
    bars: list[Figure] = []
    moved: list[Table] = []
    studies: list[CaseStudy] = []
    comparison = report.comparison
    # If every measure is a total, the runs have nothing that is compared.
    if comparison and comparison.measures:
        baseline = comparison.baseline
        first_measure = comparison.measures[0]
        differences = Table(
            f"Mean differences from {baseline}; p values after Holm's correction",
            text.comparison_header(comparison),
            text.comparison_rows(comparison),
        )
        bars = [_bars(comparison, run, first_measure) for run in comparison.runs]
        moved = _moved(comparison, first_measure, extra.texts)
        studies = _studies(comparison, first_measure)

    recall: Figure | None = None
    if any(ranks.depth for ranks in extra.ranks.values()):
        recall = _recall(extra)

    return render(
        "eval.html",
        title=f"Evaluation on {report.qrels}",
        headline=text.headline(report),
        scores=_scores(report),
        legend=text.legend(report),
        baseline=baseline,
        measure=first_measure,
        compared=differences,
        bars=bars,
        moved=moved,
        studies=studies,
        recall=recall,
        coverage=text.coverage(report),
    )


def _scores(report: EvalReport) -> Table:
    """The means, with the baseline's row tinted."""
    rows = []
    for name, row in text.cells(report).items():
        intervals = report.intervals.get(name, {})
        values: list[str] = [name]
        for measure, cell in zip(report.measures, row, strict=True):
            values.append(_mean(cell, intervals.get(str(measure))))
        rows.append(values)

    notes = []
    if len(report.runs) > 1:
        notes.append("best of a column bold")
    if report.intervals:
        notes.append(f"below each mean its {100 * report.level:g} % interval")
    caption = "Means over queries"
    if notes:
        caption += "; " + ", ".join(notes)
    header = ["run", *map(str, report.measures)]
    baseline = report.comparison.baseline if report.comparison else None
    return Table(caption, header, rows, strong=baseline)


def _mean(cell: Cell, interval: Interval | None) -> Markup:
    """A mean with its marks, above its interval if there is one."""
    template = "<strong>{}</strong>" if cell.best else "{}"
    mean = Markup(template).format(cell.text) + cell.marks
    if not interval:
        return mean
    note = Markup('<br><span class="note">{}</span>')
    return mean + note.format(text.interval_text(interval, ""))


def _bars(comparison: Comparison, run: str, measure: str) -> Figure:
    difference = comparison.runs[run][measure]
    title = f"{run} minus {comparison.baseline}, {measure}"
    caption = (
        f"{run} minus {comparison.baseline} in {measure}: {difference.wins} queries better, {difference.ties} the "
        f"same, {difference.losses} worse; mean {signed(difference.mean)} (dashed)"
    )
    changes = [(change.qid, change.difference) for change in difference.changes]
    return Figure(difference_bars(changes, difference.mean, title), caption)


def _moved(comparison: Comparison, measure: str, texts: Mapping[str, str]) -> list[Table]:
    """For each run that differs from the baseline, the queries that moved most, with their texts if there are any."""
    header = ["query", comparison.baseline, "run", "difference"]
    text_columns: tuple[int, ...] = ()
    if texts:
        header.insert(1, "words")
        text_columns = (1,)

    tables = []
    for run, differences in comparison.runs.items():
        rows: list[list[str]] = []
        for change in differences[measure].moved(comparison.settings.moved):
            row: list[str] = [Markup('<a href="#case-{0}">{0}</a>').format(change.qid)]
            if texts:
                row.append(texts.get(change.qid, ""))
            row.append(f"{change.baseline:.4f}")
            row.append(f"{change.run:.4f}")
            row.append(signed(change.difference))
            rows.append(row)
        if rows:
            caption = f"{run}: the queries that moved most in {measure}"
            tables.append(Table(caption, header, rows, text_columns))
    return tables


def _studies(comparison: Comparison, measure: str) -> list[CaseStudy]:
    """One study for every query that moved in any run; the tables link to it."""
    studies: dict[str, CaseStudy] = {}
    for differences in comparison.runs.values():
        for change in differences[measure].moved(comparison.settings.moved):
            command = (
                "python eval/studies/case.py --index INDEX --topics TOPICS --qrels QRELS "
                f"--qid {shlex.quote(change.qid)} --format html --output case.html"
            )
            studies[change.qid] = CaseStudy(change.qid, command)
    return list(studies.values())


def _recall(extra: FigureData) -> Figure:
    values = {}
    for name, ranks in extra.ranks.items():
        if ranks.depth:
            values[name] = recall_curve(ranks).tolist()
    title = "Recall at every rank"
    if extra.level > 1:
        title += f" (grade {extra.level} or better)"
    caption = f"{title}: share of the relevant documents among the first k"
    return Figure(curves(values, "rank k", "R@k", title), caption)


def relevant_ranks(
    qrels: Qrels,
    run: Mapping[str, Iterable[Hit]],
    level: int = 1,
    complete: bool = True,
    remove_unjudged: bool = False,
) -> Ranks:
    """Ranks of the documents graded ``level`` or better; the other settings are :func:`evaluate`'s."""
    by_query: dict[str, dict[str, int]] = {}
    relevant: dict[str, int] = {}
    depth = 0
    for qid, grades in qrels.items():
        scores = {}
        for docid, score in run.get(qid, ()):
            if docid in grades or not remove_unjudged:
                scores[docid] = score
        if not grades or not (scores or complete):
            continue

        ranking = trec_order(scores)
        depth = max(depth, len(ranking))
        ranks = {}
        for rank, docid in enumerate(ranking, 1):
            if grades.get(docid, 0) >= level:
                ranks[docid] = rank
        by_query[qid] = ranks
        relevant[qid] = sum(grade >= level for grade in grades.values())
    return Ranks(by_query, relevant, min(depth, MAX_RECALL_RANK))


def recall_curve(ranks: Ranks) -> np.ndarray:
    """(depth,) float64: R@1, R@2, ... as in trec_eval; a query without relevant documents counts as 0."""
    gains = np.zeros(ranks.depth + 1)
    for qid, rank_by_docid in ranks.by_query.items():
        for rank in rank_by_docid.values():
            if rank <= ranks.depth:
                gains[rank] += 1 / ranks.relevant[qid]
    # Rank 0 has no gain. A run without judged queries has a curve of zeros, not a division by zero.
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
    if isinstance(value, str):
        return visible(value)
    return value
