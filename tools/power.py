"""Which printed rows can tell their system from another one of the same table, and what each costs.

    python tools/power.py                                  # the table of docs/reproduction.md
    python tools/power.py --measurable                     # what one GPU measures in a week, cheapest first
    python tools/power.py --papers FOLDER --record         # write eval/printed_rivals.json from the papers' texts

A row has power if no other system of the tables that it cites would pass as it: the nearest other number is further
away than the tolerance of its verdict. The tolerance is the row's own, or that of two trainings with other seeds; of
rows that take the bootstrap interval over queries, the largest one that the number allows: values lie between 0 and 1,
so their variance is at most p (1 - p) for a mean of p.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from audit_recipes import FOLDER, Recipes
from paper_tables import PaperTables
from recipe_plan import BERT, RATE

from dupmae_ir import collections
from dupmae_ir.eval.regressions import cases
from dupmae_ir.eval.regressions.cases import RIVALS, Case, dependencies
from dupmae_ir.eval.regressions.verdict import TWO_SEEDS, without_power
from dupmae_ir.eval.regressions.workspace import Workspace

WEEK = 168.0
"""Hours."""
Z = 1.96
"""Half-width of the 95 % interval of a normal distribution, in standard errors."""


@dataclass(frozen=True)
class PrintedRow:
    """A case of the papers: the measures with and without power, and the GPU-hours of its trainings."""

    case: Case
    strong: Sequence[str]
    weak: Sequence[str]
    hours: float


def nearest_rivals(folder: Path, papers: Path) -> dict[str, dict[str, list[str]]]:
    """Case -> measure -> [system, number as a fraction, table] of the nearest number of another system."""
    tables = PaperTables(papers)
    found: dict[str, dict[str, list[str]]] = {}
    for case in (c for r in cases.load(folder).values() for c in r.cases if r.tier == "full"):
        for measure, value in case.paper.items():
            rivals = list(tables.rivals(case.id, case, measure))
            if rivals:
                nearest = min(rivals, key=lambda rival: (abs(float(rival[1]) - float(value)), rival))
                found.setdefault(case.id, {})[measure] = list(nearest)
    return found


def largest_tolerance(case: Case, measure: str) -> float:
    """The tolerance of a case's verdict against the paper, at most."""
    if case.tolerance is not None:
        return case.tolerance
    if (seeds := case.seed_deviation.get(measure)) is not None:
        return TWO_SEEDS * seeds
    p, test = float(case.paper[measure]), collections.find(case.collection).tests.get(case.test)
    return Z * math.sqrt(p * (1 - p) / test.queries) if test and test.queries else 1.0


def printed_rows(folder: Path) -> list[PrintedRow]:
    """The cases of the full tier with a printed number of a paper, in order of their files."""
    recipes = Recipes(folder)
    references = Workspace(folder, Path("unused")).references
    rows = []
    for case in (c for r in cases.load(folder).values() for c in r.cases if c.rivals):
        weak = [m for m in case.paper if without_power(case, m, largest_tolerance(case, m))]
        strong = [m for m in case.paper if m in case.rivals and m not in weak]
        rows.append(PrintedRow(case, strong, weak, training_hours(case.model, recipes, references)))
    return rows


def training_hours(model: str, recipes: Recipes, references: Mapping[str, Sequence[str]]) -> float:
    """GPU-hours of all trainings that a model needs, from the public checkpoints on, by the plans of the recipes."""
    needed = (recipes.models[name] for name in dependencies(model, recipes.models, references))
    return sum(step.gpu_hours or 0 for one in needed if one.recipe for step in recipes.plan(one, "release"))


def encoding_hours(case: Case) -> float:
    """GPU-hours of encoding the collection: every text at its full length, which short texts do not reach."""
    documents = collections.find(case.collection).documents or 0
    return documents * float(case.encode.get("document_length", 512)) * 2 * BERT / RATE / 3600


def measurable(rows: Sequence[PrintedRow], budget: float = WEEK) -> list[str]:
    """What fits into ``budget`` GPU-hours, in order of cost, each with its command.

    Cases that have the model and collection of one before them add nothing to the cost.
    """
    lines, spent = [f"# one GPU, {budget:.0f} hours; downloads and searches are not counted"], 0.0
    trained: set[str] = set()
    encoded: set[tuple[str, str]] = set()
    for row in sorted(rows, key=lambda row: (row.hours, encoding_hours(row.case), row.case.id)):
        case = row.case
        training = 0.0 if case.model in trained else row.hours
        encoding = 0.0 if (case.model, case.collection) in encoded else encoding_hours(case)
        if spent + training + encoding > budget:
            continue
        spent += training + encoding
        trained.add(case.model)
        encoded.add((case.model, case.collection))
        numbers = len(row.strong) + len(row.weak)
        lines.append(
            f"dupmae-ir eval.regressions run {case.id}  # training {training:.1f} h, encoding at most {encoding:.1f} h"
            f", together {spent:.1f} h; {numbers} numbers, {len(row.strong)} with power"
        )
    return lines


def power_table(rows: Iterable[PrintedRow]) -> str:
    """Markdown: one line for each regression and amount of training, rows with power before those without."""
    groups: dict[tuple[str, int], list[PrintedRow]] = {}
    for row in rows:
        groups.setdefault((row.case.regression, round(row.hours)), []).append(row)
    lines = ["| regression | GPU-hours | with power | without power |", "| :-- | --: | :-- | :-- |"]
    for (name, hours), members in sorted(groups.items(), key=lambda item: (item[0][1], item[0][0])):
        strong = ", ".join(f"`{row.case.name}`" for row in members if row.strong)
        weak = ", ".join(f"`{row.case.name}`" for row in members if not row.strong)
        lines.append(f"| `{name}` | {hours:,} | {strong or '-'} | {weak or '-'} |")
    return "\n".join(lines)


def power_text(rows: Sequence[PrintedRow], measured: int) -> str:
    """Markdown: a heading, the counts, then the table."""
    strong, weak = sum(len(row.strong) for row in rows), sum(len(row.weak) for row in rows)
    head = (
        f"{measured} of {strong + weak} numbers are measured. The nearest other number of the same table is outside "
        f"the tolerance for {strong} of them, and within it for {weak}, which therefore prove little alone. A row is "
        "listed with power if one of its measures has it."
    )
    return f"## Power and cost\n\n{head}\n\n{power_table(rows)}"


def main(argv: list[str] | None = None) -> int:
    """Print the table, or write the record of the nearest other numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--papers", type=Path, help="folder of the papers' texts, for --record")
    parser.add_argument("--record", action="store_true", help=f"write eval/{RIVALS}")
    parser.add_argument("--measurable", action="store_true", help="list what one GPU measures in a week")
    options = parser.parse_args(argv)
    if options.record != bool(options.papers):
        parser.error("--record and --papers go together")
    if options.record:
        (FOLDER / RIVALS).write_text(as_record(nearest_rivals(FOLDER, options.papers)), encoding="utf-8")
    elif options.measurable:
        print("\n".join(measurable(printed_rows(FOLDER))))
    else:
        print(power_text(printed_rows(FOLDER), 0))
    return 0


def as_record(rivals: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    """The record as JSON, a line for each case."""
    lines = [f"{json.dumps(name)}: {json.dumps(one, ensure_ascii=False)}" for name, one in sorted(rivals.items())]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main())
