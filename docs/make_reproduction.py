"""Write docs/reproduction/*.md, one page per paper laid out like its tables, the index in docs/reproduction.md, and
the power of each row in eval/power.md.

Numbers, recipes and accepted values come from eval/*.toml; docs/reproduction_tables.toml names the tables. With
--check, exit 1 if a page is out of date; with --results FOLDER, the values of `eval.regressions run --output FOLDER`
are shown and judged instead of the accepted ones.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pages import ROOT, regenerate

sys.path.insert(0, str(ROOT))
sys.path.insert(1, str(ROOT / "tools"))
from power import power_text, printed_rows

from dupmae_ir.config import read_toml
from dupmae_ir.eval.regressions.cases import MODELS, Case, Mean, Regression, load, read_models
from dupmae_ir.eval.regressions.execute import Result, load_result
from dupmae_ir.eval.regressions.report import NOT_HERE, SIDE_HEADS, CaseRow, MeanRow, means
from dupmae_ir.eval.regressions.verdict import PAPER, SIDES, CaseVerdict, judge

INDEX = ROOT / "docs" / "reproduction.md"
POWER = ROOT / "eval" / "power.md"
FOLDER = ROOT / "docs" / "reproduction"
LAYOUT = ROOT / "docs" / "reproduction_tables.toml"
OURS = ("ours", *SIDE_HEADS, "recipe")
"""Columns after the paper's."""
PAPERS = ("RetroMAE ", "DupMAE ", "MASTER ", "CoT-MoTE ")
"""How the source of a paper's number begins; other published numbers, such as Anserini's, have no page here."""
HEAD = """\
<!-- made by `make docs` from eval/*.toml and docs/reproduction_tables.toml -->

# {title}

{about}

The numbers are the paper's. *Ours* is the value measured here, or "not run here". *Against the paper* and *against
accepted* are the two [verdicts](../regressions.md), the first with the difference. `dupmae-ir eval.regressions run
RECIPE` runs a row from download to verdict; with `--dry-run` it prints the commands. [The papers'
numbers](../reproduction.md) has the index and what is left out.
"""


class MeasuredNumber(NamedTuple):
    """A number measured here, next to one that a paper prints."""

    name: str
    value: float
    verdicts: list[CaseVerdict | None]


class Numbers:
    """The cases of tier full with their values and verdicts, by the table that prints them."""

    def __init__(self, folder: Path, results: Path | None = None) -> None:
        self.regressions = {name: r for name, r in load(folder).items() if r.tier == "full"}
        self.results = results
        self.models = read_models(read_toml(folder / MODELS), folder)
        self.rows = {}
        for regression in self.regressions.values():
            for case in regression.cases:
                self.rows[case.id] = self._row(regression, case)
        self.placed: set[tuple[str, str]] = (
            set()
        )  #: (case id, measure) of numbers that are on a page

    def _row(self, regression: Regression, case: Case) -> CaseRow:
        """The case with the result to show: from a run if --results names one, else the accepted one."""
        accepted = regression.accepted.get(case.name, {})
        queries = regression.accepted_queries.get(case.name, {})
        result = None
        if self.results:
            result = load_result(self.results / "runs" / case.regression / f"{case.name}.json")
        elif accepted:
            result = _as_result(case, accepted, queries)
        fixed = bool(case.model) and self.models[case.model].fixed
        return CaseRow(
            judge(case, result, accepted, queries, fixed), case, result, accepted, list, ""
        )

    def cases(self, source: str) -> list[Case]:
        """Cases whose source names the table."""
        cases = []
        for regression in self.regressions.values():
            cases += [case for case in regression.cases if source in case.source.split("; ")]
        return cases

    def means(self, source: str) -> list[tuple[str, Mean]]:
        """(regression, mean) of the table."""
        pairs = []
        for name, regression in self.regressions.items():
            for mean in regression.means:
                if source in mean.source.split("; "):
                    pairs.append((name, mean))
        return pairs

    def mean_row(self, name: str, mean: Mean) -> MeanRow:
        """A printed mean of a regression with its value and verdicts."""
        regression = self.regressions[name]
        rows = [self.rows[case.id] for case in regression.cases]
        return next(row for row in means(regression, rows) if row.mean == mean)

    def measured(self, case: Case, measure: str) -> float | None:
        """The value to show; None if the case has no result."""
        row = self.rows[case.id]
        if not row.result:
            return None
        return row.measured(measure)

    def paper(self, case: Case, measure: str) -> str:
        """The printed number, empty if the paper has none; it counts as placed from then on."""
        if measure in case.paper:
            self.placed.add((case.id, measure))
        return case.paper.get(measure, "")

    def missing(self) -> list[str]:
        """Printed numbers of the papers that are on no page."""
        numbers = []
        for regression in self.regressions.values():
            for case in regression.cases:
                if not case.source.startswith(PAPERS):
                    continue
                for measure in case.paper:
                    if (case.id, measure) not in self.placed:
                        numbers.append(f"{case.id} {measure} ({case.source})")
        return numbers


def _as_result(
    case: Case, accepted: Mapping[str, Any], queries: Mapping[str, Mapping[str, float]]
) -> Result:
    """The result that was accepted."""
    return Result(
        case.id,
        configuration=accepted["configuration"],
        values=accepted["values"],
        per_query=queries,
        inputs={name: accepted[name] for name in ("topics", "judgements") if name in accepted},
        key={name: accepted.get(name) for name in ("collection", "weights")},
        environment=accepted["environment"],
    )


def pages(results: Path | None = None) -> dict[Path, str]:
    """Path -> text of all pages. Raises SystemExit if a number of the papers is on none of them."""
    layout = read_toml(LAYOUT)["paper"]
    numbers = Numbers(ROOT / "eval", results)
    texts = {FOLDER / f"{paper['page']}.md": _page(paper, numbers) for paper in layout}
    # Only now are all numbers placed.
    missing = numbers.missing()
    if missing:
        sys.exit(f"docs/reproduction_tables.toml has no table for: {'; '.join(missing)}")
    parts = {
        "reproduction_index": lambda: index(layout, numbers),
        "reproduction_power": lambda: power(numbers),
    }
    for page in (INDEX, POWER):
        texts[page] = regenerate(page.read_text(encoding="utf-8"), parts)
    return texts


def index(layout: Sequence[Mapping[str, Any]], numbers: Numbers) -> str:
    """Every table and figure: its page, how many numbers it has and how many of them are measured."""
    rows = [
        ["paper", "table or figure", "numbers", "measured here", "made by"],
        [":--", ":--", "--:", "--:", ":--"],
    ]
    for paper in layout:
        for table in paper["table"]:
            printed, measured = _counts(table, numbers)
            anchor = _anchor(_heading(table))
            link = f"[{_heading(table)}](reproduction/{paper['page']}.md#{anchor})"
            verbs = [command.split()[1] for command in table.get("commands", ())]
            counts = ["-", "-"]
            if printed:
                counts = [str(printed), str(measured)]
                verbs.insert(0, "eval.regressions")
            made_by = ", ".join(f"`{verb}`" for verb in dict.fromkeys(verbs))
            rows.append([paper["title"], link, *counts, made_by or "-"])
    return _markdown(rows)


def power(numbers: Numbers) -> str:
    """Which rows have power, how many of their numbers are measured, and what their trainings cost."""
    rows = printed_rows(ROOT / "eval")
    measured = 0
    for row in rows:
        if not row.case.compare:
            continue
        for measure in (*row.strong, *row.weak):
            measured += numbers.measured(row.case, measure) is not None
    return power_text(rows, measured)


def _counts(table: Mapping[str, Any], numbers: Numbers) -> tuple[int, int]:
    """(printed numbers of a table, how many of them have a value to compare)."""
    if "source" not in table:
        return 0, 0
    columns = _columns(table)
    printed = len(numbers.means(table["source"]))
    measured = 0
    for case in numbers.cases(table["source"]):
        for measure in case.paper:
            if columns and (case.test, measure) not in columns:
                continue
            printed += 1
            if case.compare and numbers.measured(case, measure) is not None:
                measured += 1
    return printed, measured


def _page(paper: Mapping[str, Any], numbers: Numbers) -> str:
    parts = [HEAD.format(title=paper["title"], about=paper["about"])]
    for table in paper["table"]:
        parts.append(f"## {_heading(table)}\n")
        if "text" in table:
            parts.append(table["text"] + "\n")
        if "source" in table:
            make = _by_system if "columns" in table else _by_collection
            parts.append(_markdown(make(table, numbers)) + "\n")
        if "commands" in table:
            parts.append("\n".join(["```sh", *table["commands"], "```"]) + "\n")
    return "\n".join(parts)


def _heading(table: Mapping[str, Any]) -> str:
    return f"{table['name']}: {table['caption']}"


def _by_system(table: Mapping[str, Any], numbers: Numbers) -> list[list[str]]:
    """A row per system, as in the paper; columns are measures of tests."""
    columns = _columns(table)
    systems: dict[str, list[Case]] = {}
    for case in _ordered(table, numbers):
        systems.setdefault(case.title, []).append(case)
    rows = [
        ["system", *table["columns"], *OURS],
        [":--", *["--:"] * len(columns), *[":--"] * len(OURS)],
    ]
    for title, cases in systems.items():
        printed = [c for c in cases if any((c.test, m) in columns for m in c.paper)]
        cells = [_printed_number(printed, test, measure, numbers) for test, measure in columns]
        measured = []
        for case in printed:
            for test, measure in columns:
                if test == case.test:
                    measured += _measured(case, measure, _name(test, measure), numbers)
        recipes = "<br>".join(f"`{case.id}`" for case in printed)
        rows.append([title, *cells, *_our_cells(measured), recipes])
    return rows


def _printed_number(cases: Sequence[Case], test: str, measure: str, numbers: Numbers) -> str:
    """The paper's number for a column, from the first of the cases that has one; a dash if none has."""
    for case in cases:
        if case.test == test:
            number = numbers.paper(case, measure)
            if number:
                return number
    return "-"


def _measured(case: Case, measure: str, name: str, numbers: Numbers) -> list[MeasuredNumber]:
    """Our value for a number that the paper prints; empty if either is missing."""
    value = numbers.measured(case, measure)
    if value is None or measure not in case.paper:
        return []
    verdicts = [numbers.rows[case.id].verdict(measure, side) for side in SIDES]
    return [MeasuredNumber(name, value, verdicts)]


def _our_cells(measured: Sequence[MeasuredNumber]) -> list[str]:
    """The cell "ours" and a cell for each kind of verdict."""
    if not measured:
        return [NOT_HERE, *("-" for _ in SIDES)]
    cells = ["<br>".join(f"{number.name} {number.value:.4f}" for number in measured)]
    for verdicts in zip(*(number.verdicts for number in measured), strict=True):
        cells.append("<br>".join(_verdict_text(verdict) for verdict in verdicts))
    return cells


def _verdict_text(verdict: CaseVerdict | None) -> str:
    """The status, with the difference if a value is compared with a paper's."""
    if verdict is None:
        return "-"
    if verdict.against != PAPER or verdict.value is None or verdict.expected is None:
        return str(verdict.status)
    return f"{verdict.status} {verdict.value - verdict.expected:+.4f}"


def _by_collection(table: Mapping[str, Any], numbers: Numbers) -> list[list[str]]:
    """A row per collection of BEIR and per mean; a column per system, as in the paper."""
    cases = _ordered(table, numbers)
    means = numbers.means(table["source"])
    titles: dict[str, str] = {}
    for case in cases:
        titles.setdefault(case.regression, case.title)
    systems = list(titles)
    rows = [
        ["collection", *titles.values(), *OURS],
        [":--", *["--:"] * len(systems), *[":--"] * len(OURS)],
    ]
    first = [c.collection for c in cases if c.regression == systems[0]]
    # The collections are in the order of the first system; those that it lacks come last.
    for collection in dict.fromkeys([*first, *(c.collection for c in cases)]):
        case_of = {c.regression: c for c in cases if c.collection == collection}
        if not any(case.paper for case in case_of.values()):
            continue
        cells = []
        for system in systems:
            number = numbers.paper(case_of[system], "nDCG@10") if system in case_of else ""
            cells.append(number or "-")
        measured = []
        for system, case in case_of.items():
            measured += _measured(case, "nDCG@10", titles[system], numbers)
        recipes = "<br>".join(f"`{case.id}`" for case in case_of.values())
        name = collection.removeprefix("beir-")
        rows.append([name, *cells, *_our_cells(measured), recipes])
    return [*rows, *_mean_rows(means, titles, numbers)]


def _mean_rows(
    means: Sequence[tuple[str, Mean]], titles: Mapping[str, str], numbers: Numbers
) -> Iterator[list[str]]:
    """A row per mean; ``titles``: regression -> the title of its column."""
    for name in dict.fromkeys(mean.name for _, mean in means):
        mean_of = {regression: mean for regression, mean in means if mean.name == name}
        cells = [mean_of[s].paper["nDCG@10"] if s in mean_of else "-" for s in titles]
        measured = []
        for regression, mean in mean_of.items():
            row = numbers.mean_row(regression, mean)
            value = row.values["nDCG@10"]
            if value is not None:
                verdicts = [row.verdict("nDCG@10", side) for side in SIDES]
                measured.append(MeasuredNumber(titles[regression], value, verdicts))
        recipes = "<br>".join(f"`{regression}`" for regression in mean_of)
        yield [f"mean: {name}", *cells, *_our_cells(measured), recipes]


def _ordered(table: Mapping[str, Any], numbers: Numbers) -> list[Case]:
    """The cases of a table in the order of its systems. Raises SystemExit for a system that has no case."""
    cases = numbers.cases(table["source"])
    titles = {case.title for case in cases}
    rank = {}
    for position, title in enumerate(table.get("order", ())):
        if title not in titles:
            sys.exit(f"docs/reproduction_tables.toml: {table['source']} has no case {title!r}")
        rank.setdefault(title, position)
    return sorted(cases, key=lambda case: rank.get(case.title, len(rank)))


def _columns(table: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(test, measure) of each column."""
    columns = []
    for column in table.get("columns", ()):
        test, measure = column.split()
        # The papers write MRR@10, the cases RR@10 as ir_measures does.
        columns.append((test, measure.replace("MRR@", "RR@")))
    return columns


def _name(test: str, measure: str) -> str:
    return f"{test} {measure}".replace("RR@", "MRR@")


def _anchor(heading: str) -> str:
    """The id that Markdown's toc extension gives a heading."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--results", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    texts = pages(options.results)
    FOLDER.mkdir(exist_ok=True)
    for path, text in texts.items():
        if not options.check:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            sys.exit(f"{path.relative_to(ROOT)} is older than eval/*.toml: make docs")
