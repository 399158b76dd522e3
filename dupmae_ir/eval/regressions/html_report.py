"""The results as one HTML page: tables of values, and for every case the commands to copy."""

from __future__ import annotations

from collections.abc import Sequence

from dupmae_ir.eval.regressions.report import NOT_HERE, MeanRow, Row, environment_line, summarize
from dupmae_ir.eval.regressions.verdict import Status
from dupmae_ir.eval.reports.page import bullets, esc, page, table

_COLOUR = {
    Status.OK: "c2",
    Status.OKISH: "c2",
    Status.BETTER: "c0",
    Status.SKIP: "soft",
    Status.STALE: "c4",
    Status.FAIL: "c1",
}
LEGEND = (
    "OK: equal to the accepted value, or to the digits printed in the paper",
    "OKISH: within noise of it (95 % bootstrap interval, paired by query where values per query are known)",
    "BETTER: higher beyond noise; does not pass until accepted",
    "FAIL: lower beyond noise, or an index or a run that fails its checks",
    "STALE: accepted for another configuration or other weights",
    "SKIP: not run here, or not available here, with the reason",
)


def as_html(groups: Sequence[tuple[str, Sequence[Row]]], mean_rows: Sequence[MeanRow]) -> str:
    """The page. ``groups``: the title of each regression with its rows."""
    every = [row for _, rows in groups for row in rows]
    body = [f"<p>{esc(summarize(every))}</p>", bullets(LEGEND)]
    for title, rows in groups:
        body += [f"<h2>{esc(title)}</h2>", _numbers(rows), *map(_commands, rows)]
    if mean_rows:
        body += ["<h2>Means over collections</h2>", _means(mean_rows)]
    return page("Regressions of dupmae_ir", body)


def _numbers(rows: Sequence[Row]) -> str:
    cells = []
    for row in rows:
        by_measure = {v.measure: v for v in row.verdicts}
        for measure in row.case.all_measures:
            v = by_measure.get(measure, row.verdicts[0])
            value = row.measured(measure)
            link = f'<a href="#{esc(row.case.id)}">{esc(row.case.name)}</a>'
            cells.append(
                [
                    link,
                    esc(measure),
                    esc(row.case.paper.get(measure, "")),
                    NOT_HERE if value is None else f"{value:.4f}",
                    _status(v.status),
                    esc(v.reason),
                ]
            )
    sources = "; ".join(dict.fromkeys(row.case.source for row in rows if row.case.source))
    caption = f"Paper: {sources}" if sources else "No printed numbers; compared with accepted values"
    return table(caption, ["case", "measure", "paper", "measured", "status", "reason"], cells, words=(5,))


def _status(status: Status) -> str:
    return f'<strong style="color: var(--{_COLOUR[status]})">{status}</strong>'


def _commands(row: Row) -> str:
    notes = [row.origin, row.case.note, environment_line(row)]
    if row.case.paper and not row.case.compare:
        notes.append("the paper's numbers belong to other weights and are shown for orientation")
    commands = esc("\n".join(row.commands()))
    return (
        f'<details id="{esc(row.case.id)}"><summary><code>{esc(row.case.id)}</code>: {esc(row.case.title)}</summary>\n'
        f"<p><code>dupmae-ir eval.regressions run {esc(row.case.id)}</code>, or by hand:</p>\n"
        f'<div class="scroll"><pre>{commands}</pre></div>\n{bullets(n for n in notes if n)}</details>'
    )


def _means(mean_rows: Sequence[MeanRow]) -> str:
    cells = []
    for row in mean_rows:
        for measure, value in row.values.items():
            measured = f"{value:.4f}" if value is not None else f"{NOT_HERE}: {len(row.missing)} collections missing"
            cells.append(
                [
                    esc(f"{row.regression}: {row.mean.name}"),
                    esc(row.mean.group),
                    esc(measure),
                    esc(row.mean.paper[measure]),
                    measured,
                ]
            )
    header = ["mean", "group", "measure", "paper", "measured"]
    return table("A mean is computed only if no collection is missing", header, cells)
