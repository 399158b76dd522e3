"""The results as one HTML page: an overview, tables of values, and the commands of every case to copy.

Regressions with results come first, with all columns; those not run here are small tables side by side. Cases whose
commands differ only in names share one block with shell variables, and each training command is written once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dupmae_ir.eval.regressions.report import (
    NOT_HERE,
    SIDE_HEADS,
    MeanRow,
    Row,
    environment_line,
    side_counts,
    summarize,
)
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
CASE_COMMANDS = 3
"""Commands of a case after its setup: index, search and evaluate."""
GET = "dupmae-ir collections get "


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
    commands = _Commands(folders or {})
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
    title: str, rows: Sequence[Row], commands: _Commands, moved: Mapping[str, tuple[Sequence[Moved], str]]
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


def _printed_only(title: str, rows: Sequence[Row], commands: _Commands) -> str:
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
    return "<div>" + table(caption, ["query", "text", "difference"], cells, words=(1,)) + _pre([command]) + "</div>"


def _pre(lines: Sequence[str]) -> str:
    return f'<div class="scroll"><pre>{esc(chr(10).join(lines))}</pre></div>' if any(lines) else ""


class _Commands:
    """The commands of all cases, each distinct training command once."""

    def __init__(self, folders: Mapping[str, str]) -> None:
        self.folders = folders
        self.setups: dict[tuple[str, ...], str] = {}  #: setup lines -> title of the model

    def of(self, rows: Sequence[Row]) -> list[str]:
        """Blocks of commands of a regression's cases, with an anchor for each case."""
        blocks: dict[tuple[str, ...], list[tuple[Row, str]]] = {}
        for row in rows:
            lines, case = self._template(row)
            blocks.setdefault(lines, []).append((row, case))
        return [self._block(lines, cases) for lines, cases in blocks.items()]

    def _template(self, row: Row) -> tuple[tuple[str, ...], str]:
        """The commands with what is the case's own as shell variables, and the list item that sets these."""
        lines = [self._shortened(line) for line in row.commands()]
        own, before = lines[-CASE_COMMANDS:], lines[:-CASE_COMMANDS]
        get = [line for line in before if line.startswith(GET)]
        values = {"CASE": row.case.name}
        for name in ("index", "model"):
            if found := re.search(rf"--{name} (\S+)", own[0]):
                values[name.upper()] = found[1].removeprefix("$OUT/indexes/")
        values |= {"COLLECTION": row.case.collection, "TEST": row.case.test}
        template = []
        for line in [*get, *own]:
            for name in ("INDEX", "MODEL"):
                line = line.replace(values[name], f"${name}") if name in values else line
            line = line.replace(f"{row.case.regression}/{row.case.name}.", f"{row.case.regression}/$CASE.")
            line = line.replace(f"qrels/{row.case.test}.tsv", "qrels/$TEST.tsv")
            template.append(line.replace(row.case.collection, "$COLLECTION"))
        return tuple(template), self._item(row, values, tuple(line for line in before if line not in get))

    def _item(self, row: Row, values: Mapping[str, str], setup: tuple[str, ...]) -> str:
        """A case as a list item: its variables, its title and, if it needs one, a link to its model."""
        title = f": {esc(row.case.title)}" if row.case.title != row.case.name else ""
        if setup:
            self.setups.setdefault(setup, row.origin)
            number = list(self.setups).index(setup) + 1
            title += f' (<a href="#training-{number}">model {number}</a>)'
        variables = " ".join(f"{name}={value}" for name, value in values.items())
        return f'<li id="{esc(row.case.id)}"><code>{esc(variables)}</code>{title}'

    def _shortened(self, line: str) -> str:
        for name, folder in self.folders.items():
            line = line.replace(f"{folder}/", f"${name}/")
        return line

    def _block(self, template: Sequence[str], cases: Sequence[tuple[Row, str]]) -> str:
        rows = [row for row, _ in cases]
        notes = dict.fromkeys(note for row in rows for note in (row.case.note, environment_line(row)) if note)
        names = ", ".join(esc(row.case.name) for row in rows[:3]) + (", ..." if rows[3:] else "")
        return (
            f"<details><summary>Commands: {names}</summary>\n"
            f"<p><code>dupmae-ir eval.regressions run {esc(rows[0].case.regression)}/CASE</code>, or by hand, with</p>"
            f"<ul>{''.join(item for _, item in cases)}</ul>{_pre(template)}{bullets(notes)}</details>"
        )

    def training(self) -> list[str]:
        """The section of models that must be downloaded or trained first, and the variables of all commands."""
        out = ["<h2>Commands</h2>", _pre([" ".join(f"{name}={folder}" for name, folder in self.folders.items())])]
        seen: dict[str, int] = {}
        for n, (lines, origin) in enumerate(self.setups.items(), 1):
            earlier = dict.fromkeys(seen[line] for line in lines if line in seen)
            new = [line for line in lines if line not in seen]
            seen.update(dict.fromkeys(new, n))
            links = ", ".join(f'<a href="#training-{e}">{e}</a>' for e in earlier)
            after = f"<p>After the commands of model {links}.</p>" if links else ""
            title, commands = f"Model {n}. {esc(origin)}", _pre(_with_variables(new))
            out.append(f'<details id="training-{n}"><summary>{title}</summary>{after}{commands}</details>')
        return out


def _with_variables(lines: Sequence[str], names: Sequence[str] = tuple("ABCDEF")) -> list[str]:
    """``lines`` with the paths that take most room as shell variables, which lines before them set."""
    text, settings = "\n".join(lines), []
    for name in names:
        paths = Counter(path for word in re.findall(r"\$[A-Z]{2,}/\S+", text) for path in _prefixes(word))
        path, count = max(paths.items(), key=lambda item: (len(item[0]) * (item[1] - 1), item[0]), default=("", 0))
        if count < 2:
            break
        settings.append(f"{name}={path}")
        text = re.sub(rf"{re.escape(path)}(?=[/\s]|$)", f"${name}", text)
    return [*settings, *text.split("\n")]


def _prefixes(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(2, len(parts) + 1)]


def _means(mean_rows: Sequence[MeanRow]) -> str:
    cells = []
    for row in mean_rows:
        for measure, value in row.values.items():
            verdict = row.verdict(measure)
            cells.append(
                [
                    esc(f"{row.regression}: {row.mean.name}"),
                    esc(row.mean.group),
                    esc(measure),
                    esc(row.mean.paper[measure]),
                    NOT_HERE if value is None else f"{value:.4f}",
                    _status(verdict.status),
                    esc(row.mean.source),
                    esc(verdict.reason),
                ]
            )
    header = ["mean", "group", "measure", "paper", "measured", SIDE_HEADS[0], "source", "reason"]
    return table("A mean is computed only if no collection is missing", header, cells, words=(6, 7))
