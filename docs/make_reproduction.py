"""Write docs/reproduction/*.md, one page per paper laid out like its tables, the index in docs/reproduction.md, and
the power of each row in eval/power.md.

Numbers, recipes and accepted values are those of eval/*.toml; docs/reproduction_tables.toml names the tables. With
--check, exit 1 if a page is out of date; with --results FOLDER, the values of `eval.regressions run --output FOLDER`
are shown and judged instead of the accepted ones.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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
"""Columns beside the paper's."""
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


class Numbers:
    """The cases of tier full with their values and verdicts, by the table that prints them."""

    def __init__(self, folder: Path, results: Path | None = None) -> None:
        self.regressions = {name: r for name, r in load(folder).items() if r.tier == "full"}
        self.results = results
        self.models = read_models(read_toml(folder / MODELS), folder)
        self.rows = {
            case.id: self._row(r, case) for r in self.regressions.values() for case in r.cases
        }
        self.placed: set[tuple[str, str]] = set()  #: (case or mean, measure) on some page

    def _row(self, regression: Regression, case: Case) -> CaseRow:
        """The case with the result to show: of a run if --results names one, else what was accepted."""
        accepted = regression.accepted.get(case.name, {})
        queries = regression.accepted_queries.get(case.name, {})
        if self.results:
            result = load_result(self.results / "runs" / case.regression / f"{case.name}.json")
        else:
            result = _as_result(case, accepted, queries) if accepted else None
        fixed = bool(case.model) and self.models[case.model].fixed
        return CaseRow(
            judge(case, result, accepted, queries, fixed), case, result, accepted, list, ""
        )

    def cases(self, source: str) -> list[Case]:
        """Cases whose source names the table."""
        return [
            c for r in self.regressions.values() for c in r.cases if source in c.source.split("; ")
        ]

    def means(self, source: str) -> list[tuple[str, Mean]]:
        """(regression, mean) of the table."""
        return [
            (n, m)
            for n, r in self.regressions.items()
            for m in r.means
            if source in m.source.split("; ")
        ]

    def mean_row(self, regression: str, mean: Mean) -> MeanRow:
        """A printed mean with its value and verdicts."""
        found = self.regressions[regression]
        rows = [self.rows[case.id] for case in found.cases]
        return next(row for row in means(found, rows) if row.mean == mean)

    def measured(self, case: Case, measure: str) -> float | None:
        """The value to show, or None."""
        row = self.rows[case.id]
        return row.measured(measure) if row.result else None

    def paper(self, case: Case, measure: str) -> str:
        """The printed number, empty if the paper has none; counts it as placed."""
        if measure in case.paper:
            self.placed.add((case.id, measure))
        return case.paper.get(measure, "")

    def missing(self) -> list[str]:
        """Printed numbers of the papers that are on no page."""
        return [
            f"{c.id} {m} ({c.source})"
            for r in self.regressions.values()
            for c in r.cases
            for m in c.paper
            if (c.id, m) not in self.placed and c.source.startswith(PAPERS)
        ]


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
    found = {FOLDER / f"{paper['page']}.md": _page(paper, numbers) for paper in layout}
    if missing := numbers.missing():
        sys.exit(f"docs/reproduction_tables.toml has no table for: {'; '.join(missing)}")
    parts = {
        "reproduction_index": lambda: index(layout, numbers),
        "reproduction_power": lambda: power(numbers),
    }
    found |= {page: regenerate(page.read_text(encoding="utf-8"), parts) for page in (INDEX, POWER)}
    return found


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
            link = (
                f"[{table['name']}: {table['caption']}](reproduction/{paper['page']}.md#{anchor})"
            )
            verbs = dict.fromkeys(command.split()[1] for command in table.get("commands", ()))
            made_by = list(dict.fromkeys([*(["eval.regressions"] if printed else []), *verbs]))
            counts = [str(printed), str(measured)] if printed else ["-", "-"]
            rows.append(
                [paper["title"], link, *counts, ", ".join(f"`{m}`" for m in made_by) or "-"]
            )
    return _markdown(rows)


def power(numbers: Numbers) -> str:
    """Which rows have power, how many of their numbers are measured, and what their trainings cost."""
    rows = printed_rows(ROOT / "eval")
    values = [
        numbers.measured(row.case, m)
        for row in rows
        if row.case.compare
        for m in (*row.strong, *row.weak)
    ]
    return power_text(rows, sum(value is not None for value in values))


def _counts(table: Mapping[str, Any], numbers: Numbers) -> tuple[int, int]:
    """Printed numbers of a table, and those with an accepted value that belongs to them."""
    columns = _columns(table)
    found = [
        numbers.measured(case, measure) if case.compare else None
        for case in numbers.cases(table.get("source", "none"))
        for measure in case.paper
        if not columns or (case.test, measure) in columns
    ]
    means = len(numbers.means(table["source"])) if "source" in table else 0
    return len(found) + means, sum(value is not None for value in found)


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
        used = [c for c in cases if any((c.test, m) in columns for m in c.paper)]
        cells = [
            next((p for c in used if c.test == test and (p := numbers.paper(c, m))), "-")
            for test, m in columns
        ]
        ours = [
            (
                _name(c.test, measure),
                value,
                [numbers.rows[c.id].verdict(measure, side) for side in SIDES],
            )
            for c in used
            for test, measure in columns
            if c.test == test
            and measure in c.paper
            and (value := numbers.measured(c, measure)) is not None
        ]
        recipes = "<br>".join(f"`{case.id}`" for case in used)
        rows.append([title, *cells, *_ours(ours), recipes])
    return rows


def _ours(values: Sequence[tuple[str, float, Sequence[CaseVerdict | None]]]) -> list[str]:
    """(name, value, verdicts) of each measured number -> the cells "ours" and one for each side."""
    if not values:
        return [NOT_HERE, *("-" for _ in SIDES)]
    ours = "<br>".join(f"{name} {value:.4f}" for name, value, _ in values)
    columns = zip(*(verdicts for _, _, verdicts in values), strict=True)
    return [ours, *("<br>".join(map(_words, column)) for column in columns)]


def _words(verdict: CaseVerdict | None) -> str:
    """The status, with the difference where a value is compared with a paper's."""
    if (
        verdict is None
        or verdict.against != PAPER
        or verdict.value is None
        or verdict.expected is None
    ):
        return str(verdict.status) if verdict else "-"
    return f"{verdict.status} {verdict.value - verdict.expected:+.4f}"


def _by_collection(table: Mapping[str, Any], numbers: Numbers) -> list[list[str]]:
    """A row per collection of BEIR and per mean; a column per system, as in the paper."""
    cases, means = _ordered(table, numbers), numbers.means(table["source"])
    systems = list(dict.fromkeys(c.regression for c in cases))
    titles = {name: next(c.title for c in cases if c.regression == name) for name in systems}
    rows = [
        ["collection", *titles.values(), *OURS],
        [":--", *["--:"] * len(systems), *[":--"] * len(OURS)],
    ]
    first = [c.collection for c in cases if c.regression == systems[0]]
    for collection in dict.fromkeys([*first, *(c.collection for c in cases)]):
        here = {c.regression: c for c in cases if c.collection == collection}
        if not any(case.paper for case in here.values()):
            continue
        cells = [numbers.paper(here[s], "nDCG@10") if s in here else "" for s in systems]
        ours = [
            (titles[s], value, [numbers.rows[case.id].verdict("nDCG@10", side) for side in SIDES])
            for s, case in here.items()
            if (value := numbers.measured(case, "nDCG@10")) is not None and "nDCG@10" in case.paper
        ]
        recipes = "<br>".join(f"`{case.id}`" for case in here.values())
        rows.append(
            [
                collection.removeprefix("beir-"),
                *(cell or "-" for cell in cells),
                *_ours(ours),
                recipes,
            ]
        )
    return [*rows, *_mean_rows(means, systems, titles, numbers)]


def _mean_rows(
    means: Sequence[tuple[str, Mean]],
    systems: Sequence[str],
    titles: Mapping[str, str],
    numbers: Numbers,
) -> Iterator[list[str]]:
    for name in dict.fromkeys(mean.name for _, mean in means):
        here = {regression: mean for regression, mean in means if mean.name == name}
        cells = [here[s].paper["nDCG@10"] if s in here else "-" for s in systems]
        ours = []
        for regression, mean in here.items():
            row = numbers.mean_row(regression, mean)
            if (value := row.values["nDCG@10"]) is not None:
                ours.append(
                    (titles[regression], value, [row.verdict("nDCG@10", side) for side in SIDES])
                )
        yield [
            f"mean: {name}",
            *cells,
            *_ours(ours),
            "<br>".join(f"`{regression}`" for regression in here),
        ]


def _ordered(table: Mapping[str, Any], numbers: Numbers) -> list[Case]:
    """The cases of a table in the order of its systems. Raises SystemExit for a system that has no case."""
    cases, order = numbers.cases(table["source"]), list(table.get("order", ()))
    if unknown := [title for title in order if title not in {case.title for case in cases}]:
        sys.exit(f"docs/reproduction_tables.toml: {table['source']} has no case {unknown[0]!r}")
    return sorted(
        cases, key=lambda case: order.index(case.title) if case.title in order else len(order)
    )


def _columns(table: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(test, measure) of each column."""
    pairs = (column.split() for column in table.get("columns", ()))
    return [
        (test, measure.replace("MRR@", "RR@")) for test, measure in pairs
    ]  # the papers' name, and the cases'


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
    made = pages(options.results)
    FOLDER.mkdir(exist_ok=True)
    for path, text in made.items():
        if not options.check:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            sys.exit(f"{path.relative_to(ROOT)} is older than eval/*.toml: make docs")
