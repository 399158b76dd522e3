"""The results as one HTML page: an overview, tables of values, and the commands of every case that was run.

Regressions with results come first, with all columns; those not run here are small tables that unfold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from markupsafe import Markup

from dupmae_ir.eval.regressions.report import (
    NOT_HERE,
    SIDE_HEADS,
    CaseRow,
    MeanRow,
    environment_line,
    side_counts,
    summarize,
)
from dupmae_ir.eval.regressions.verdict import SIDES, CaseVerdict, Status
from dupmae_ir.eval.reports.page import render

_COLOUR = {Status.OK: "c2", Status.OKISH: "c2", Status.BETTER: "c0", Status.STALE: "c4", Status.FAIL: "c1"}
LEGEND = (
    "OK: equal to the accepted value, or to the digits printed in the paper",
    "OKISH: within the tolerance: two training seeds, or the 95 % bootstrap interval over queries",
    "BETTER: higher by more than that; does not pass until accepted",
    "FAIL: lower by more than that, other inputs than the accepted ones, or an index or a run that fails its checks",
    "STALE: the result on disk is of other code, settings or libraries",
    "SKIP: not run here, or not available here, with the reason",
)


class MovedQueries(NamedTuple):
    """The queries of a case whose values differ most from the accepted ones."""

    rows: list[list[str]]  #: id, text if the topics are at hand, difference
    command: str  #: shows them side by side; empty for a case that is not hybrid


@dataclass(frozen=True)
class _CaseCommands:
    id: str
    title: str
    origin: str
    commands: list[str]
    notes: list[str]


@dataclass(frozen=True)
class _Section:
    name: str
    title: str
    printed: int  #: numbers of the papers
    header: list[str]
    numbers: list[list[str]]
    cases: list[_CaseCommands] = field(default_factory=list)
    moved: list[tuple[str, list[list[str]], str]] = field(default_factory=list)
    sources: str = ""


def as_html(
    groups: Sequence[tuple[str, Sequence[CaseRow]]], mean_rows: Sequence[MeanRow], moved: Mapping[str, MovedQueries]
) -> str:
    """The page.

    Args:
        groups: the title of each regression with its rows.
        mean_rows: the means over collections.
        moved: case id -> the queries that changed most.
    """
    every = [row for _, rows in groups for row in rows]
    sides = ", ".join(f"{head}: {words}" for head, words in zip(SIDE_HEADS, side_counts(every).values(), strict=True))
    return render(
        "regressions.html",
        title="Regressions of dupmae_ir",
        summary=f"{summarize(every, mean_rows)}; {sides}",
        legend=LEGEND,
        overview=[_overview(title, rows) for title, rows in groups],
        measured=[_measured(title, rows, moved) for title, rows in groups if _has_values(rows)],
        elsewhere=[_printed_only(title, rows) for title, rows in groups if not _has_values(rows)],
        means=_means(mean_rows),
        means_header=["mean", "group", "measure", "paper", "measured", *SIDE_HEADS, "source", "reason"],
    )


def _has_values(rows: Sequence[CaseRow]) -> bool:
    return any(row.result or row.accepted for row in rows)


def _overview(title: str, rows: Sequence[CaseRow]) -> list[str]:
    counts = Counter(row.status for row in rows)
    statuses = Markup(", ").join(Markup("{} {}").format(counts[s], _status(s)) for s in Status if counts[s])
    link = Markup('<a href="#{}">{}</a>').format(rows[0].case.regression, title)
    return [link, str(len(rows)), str(sum(len(row.case.paper) for row in rows)), statuses]


def _measured(title: str, rows: Sequence[CaseRow], moved: Mapping[str, MovedQueries]) -> _Section:
    numbers = []
    for row in rows:
        for measure in row.case.all_measures:
            value, accepted = row.measured(measure), row.accepted.get("values", {}).get(measure)
            numbers.append(
                [
                    Markup('<a href="#{}">{}</a>').format(row.case.id, row.case.name),
                    measure,
                    row.case.paper.get(measure, ""),
                    "" if accepted is None else f"{accepted:.4f}",
                    NOT_HERE if value is None or not row.result else f"{value:.4f}",
                    *(_side(row.verdict(measure, side)) for side in SIDES),
                    row.case.source if measure in row.case.paper else "",
                    row.reasons(measure),
                ]
            )
    return _Section(
        rows[0].case.regression,
        title,
        sum(len(row.case.paper) for row in rows),
        ["case", "measure", "paper", "accepted", "measured", *SIDE_HEADS, "source", "reason"],
        numbers,
        cases=[_commands(row) for row in rows],
        moved=[
            (f"{row.case.name}: queries that changed most in {row.case.all_measures[0]}", *moved[row.case.id])
            for row in rows
            if row.case.id in moved
        ],
    )


def _commands(row: CaseRow) -> _CaseCommands:
    title = row.case.name if row.case.title == row.case.name else f"{row.case.name}: {row.case.title}"
    notes = [note for note in (row.case.note, environment_line(row)) if note]
    return _CaseCommands(row.case.id, title, row.origin, row.commands(), notes)


def _printed_only(title: str, rows: Sequence[CaseRow]) -> _Section:
    """A regression without values: the printed numbers with their sources."""
    sources = list(dict.fromkeys(row.case.source for row in rows if row.case.source))
    numbers = []
    for row in rows:
        source = [str(sources.index(row.case.source) + 1) if row.case.source else ""] if sources[1:] else []
        printed = (f"{m} {row.case.paper[m]}" if m in row.case.paper else m for m in row.case.all_measures)
        anchor = Markup('<span id="{}">{}</span>').format(row.case.id, row.case.name)
        numbers.append([anchor, ", ".join(printed), *source])
    return _Section(
        rows[0].case.regression,
        title,
        sum(len(row.case.paper) for row in rows),
        ["case", "printed numbers", *(["source"] if sources[1:] else [])],
        numbers,
        sources="; ".join(f"{n}: {source}" for n, source in enumerate(sources, 1)) if sources[1:] else "".join(sources),
    )


def _means(mean_rows: Sequence[MeanRow]) -> list[list[str]]:
    return [
        [
            f"{row.regression}: {row.mean.name}",
            row.mean.group,
            measure,
            row.mean.paper[measure],
            NOT_HERE if value is None else f"{value:.4f}",
            *(_side(row.verdict(measure, side)) for side in SIDES),
            row.mean.source,
            row.reasons(measure),
        ]
        for row in mean_rows
        for measure, value in row.values.items()
    ]


def _side(verdict: CaseVerdict | None) -> str:
    return _status(verdict.status) if verdict else "-"


def _status(status: Status) -> str:
    if status is Status.SKIP:
        return str(status)
    return Markup('<strong style="color: var(--{})">{}</strong>').format(_COLOUR[status], status)
