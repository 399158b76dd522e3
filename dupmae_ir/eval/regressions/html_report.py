"""The results as one HTML page: an overview, tables of values, and the commands of every case to copy.

Regressions with results come first, with all columns; those not run here are small tables side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dupmae_ir.eval.regressions.html_commands import Commands, preformatted
from dupmae_ir.eval.regressions.report import NOT_HERE, SIDE_HEADS, MeanRow, Row, side_counts, summarize
from dupmae_ir.eval.regressions.verdict import SIDES, Status, Verdict
from dupmae_ir.eval.reports.page import bullets, esc, page, table

_COLOUR = {Status.OK: "c2", Status.OKISH: "c2", Status.BETTER: "c0", Status.STALE: "c4", Status.FAIL: "c1"}
LEGEND = (
    "OK: equal to the accepted value, or to the digits printed in the paper",
    "OKISH: within the tolerance: two training seeds, or the 95 % bootstrap interval over queries",
    "BETTER: higher by more than that; does not pass until accepted",
    "FAIL: lower by more than that, other inputs than the accepted ones, or an index or a run that fails its checks",
    "STALE: the result on disk is of other code, settings or libraries",
    "SKIP: not run here, or not available here, with the reason",
)


@dataclass(frozen=True)
class Moved:
    """A query whose value differs from the accepted one, with its text if the topics are at hand."""

    qid: str
    difference: float
    text: str = ""


def as_html(
    groups: Sequence[tuple[str, Sequence[Row]]],
    mean_rows: Sequence[MeanRow],
    moved: Mapping[str, tuple[Sequence[Moved], str]] | None = None,
    folders: Mapping[str, str] | None = None,
) -> str:
    """The page.

    Args:
        groups: the title of each regression with its rows.
        mean_rows: the means over collections.
        moved: case id -> (queries that changed most, the command that shows them side by side).
        folders: shell variable -> the folder that it replaces in commands.
    """
    every = [row for _, rows in groups for row in rows]
    sides = ", ".join(f"{head}: {words}" for head, words in zip(SIDE_HEADS, side_counts(every).values(), strict=True))
    commands = Commands(folders or {})
    body = [f"<p>{esc(summarize(every, mean_rows))}; {esc(sides)}</p>", bullets(LEGEND), _overview(groups)]
    body += [_section(title, rows, commands, moved or {}) for title, rows in groups if _has_values(rows)]
    if mean_rows:
        body += ["<h2>Means over collections</h2>", _means(mean_rows)]
    elsewhere = [(title, rows) for title, rows in groups if not _has_values(rows)]
    if elsewhere:
        body += ["<h2>Not run here</h2>", '<div class="figures">']
        body += [*(_printed_only(title, rows, commands) for title, rows in elsewhere), "</div>"]
    return page("Regressions of dupmae_ir", [*body, *commands.training()])


def _has_values(rows: Sequence[Row]) -> bool:
    return any(row.result or row.accepted for row in rows)


def _overview(groups: Sequence[tuple[str, Sequence[Row]]]) -> str:
    cells = []
    for title, rows in groups:
        counts = Counter(row.status for row in rows)
        statuses = ", ".join(f"{counts[s]} {_status(s)}" for s in Status if counts[s])
        printed = sum(len(row.case.paper) for row in rows)
        link = f'<a href="#{esc(rows[0].case.regression)}">{esc(title)}</a>'
        cells.append([link, str(len(rows)), str(printed), statuses])
    return table("Regressions", ["regression", "cases", "printed numbers", "status"], cells)


def _section(
    title: str, rows: Sequence[Row], commands: Commands, moved: Mapping[str, tuple[Sequence[Moved], str]]
) -> str:
    head = f'<h2 id="{esc(rows[0].case.regression)}">{esc(title)}</h2>'
    queries = [_moved(row, *moved[row.case.id]) for row in rows if row.case.id in moved]
    side_by_side = ['<div class="figures">', *queries, "</div>"] if queries else []
    return "\n".join([head, _numbers(rows), *side_by_side, *commands.of(rows)])


def _numbers(rows: Sequence[Row]) -> str:
    cells = []
    for row in rows:
        for measure in row.case.all_measures:
            value, accepted = row.measured(measure), row.accepted.get("values", {}).get(measure)
            cells.append(
                [
                    _link(row),
                    esc(measure),
                    esc(row.case.paper.get(measure, "")),
                    "" if accepted is None else f"{accepted:.4f}",
                    NOT_HERE if value is None or not row.result else f"{value:.4f}",
                    *(_side(row.verdict(measure, side)) for side in SIDES),
                    esc(row.case.source if measure in row.case.paper else ""),
                    esc(row.reasons(measure)),
                ]
            )
    header = ["case", "measure", "paper", "accepted", "measured", *SIDE_HEADS, "source", "reason"]
    return table("One row per measure", header, cells, words=(7, 8))


def _printed_only(title: str, rows: Sequence[Row], commands: Commands) -> str:
    """A regression without values: the printed numbers with their sources, folded."""
    sources = list(dict.fromkeys(row.case.source for row in rows if row.case.source))
    cells = []
    for row in rows:
        source = [str(sources.index(row.case.source) + 1) if row.case.source else ""] if sources[1:] else []
        printed = (f"{m} {row.case.paper[m]}" if m in row.case.paper else m for m in row.case.all_measures)
        cells.append([_link(row), esc(", ".join(printed)), *source])
    notes = [f"{n}: {source}" for n, source in enumerate(sources, 1)] if sources[1:] else sources
    header = ["case", "printed numbers", *(["source"] if sources[1:] else [])]
    numbers = sum(len(row.case.paper) for row in rows)
    return (
        f'<details id="{esc(rows[0].case.regression)}"><summary>{esc(title)} ({numbers} numbers)</summary>\n'
        f"{table('; '.join(notes) or 'No printed numbers', header, cells, words=(1,))}\n"
        + "\n".join(commands.of(rows))
        + "</details>"
    )


def _link(row: Row) -> str:
    return f'<a href="#{esc(row.case.id)}">{esc(row.case.name)}</a>'


def _side(verdict: Verdict | None) -> str:
    return _status(verdict.status) if verdict else "-"


def _status(status: Status) -> str:
    if status is Status.SKIP:
        return str(status)
    return f'<strong style="color: var(--{_COLOUR[status]})">{status}</strong>'


def _moved(row: Row, queries: Sequence[Moved], command: str) -> str:
    cells = [[esc(m.qid), esc(m.text), f"{m.difference:+.4f}"] for m in queries]
    caption = f"{row.case.name}: queries that changed most in {row.case.all_measures[0]}"
    return (
        "<div>"
        + table(caption, ["query", "text", "difference"], cells, words=(1,))
        + preformatted([command])
        + "</div>"
    )


def _means(mean_rows: Sequence[MeanRow]) -> str:
    cells = []
    for row in mean_rows:
        for measure, value in row.values.items():
            cells.append(
                [
                    esc(f"{row.regression}: {row.mean.name}"),
                    esc(row.mean.group),
                    esc(measure),
                    esc(row.mean.paper[measure]),
                    NOT_HERE if value is None else f"{value:.4f}",
                    *(_side(row.verdict(measure, side)) for side in SIDES),
                    esc(row.mean.source),
                    esc(row.reasons(measure)),
                ]
            )
    header = ["mean", "group", "measure", "paper", "measured", *SIDE_HEADS, "source", "reason"]
    return table("A mean is computed only if no collection is missing", header, cells, words=(7, 8))
