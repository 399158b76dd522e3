"""Which printed rows can tell their system from another one of the same table, and what each costs.

    python tools/power.py                                  # the table of eval/power.md
    python tools/power.py --papers FOLDER --record         # write eval/printed_rivals.json and eval/costs.json

A row has power if no other system of the tables that it cites would pass as it: the nearest other number is further
away than the tolerance of its verdict, or for bootstrap intervals than the largest one that the number allows.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from audit_recipes import FOLDER, Recipes
from paper_tables import PaperTables
from plan_cases import COSTS, with_power
from recipe_plan import BERT, RATE

from dupmae_ir import collections
from dupmae_ir.eval.regressions import cases
from dupmae_ir.eval.regressions.cases import RIVALS, Case, dependencies
from dupmae_ir.eval.regressions.workspace import Workspace


@dataclass(frozen=True)
class PrintedRow:
    """A case of the papers: the measures with and without power, and the GPU-hours of its trainings."""

    case: Case
    strong: Sequence[str]
    weak: Sequence[str]
    hours: float


def all_cases(folder: Path, tier: str | None = None) -> Iterator[Case]:
    """The cases of all regressions, or of one tier, in order of their files."""
    for regression in cases.load(folder).values():
        if tier is None or regression.tier == tier:
            yield from regression.cases


def nearest_rivals(folder: Path, papers: Path) -> dict[str, dict[str, list[str]]]:
    """Case -> measure -> [system, number as a fraction, table] of the nearest number of another system."""
    tables = PaperTables(papers)
    found: dict[str, dict[str, list[str]]] = {}
    for case in all_cases(folder, tier="full"):
        for measure, value in case.paper.items():
            rivals = list(tables.rivals(case.id, case, measure))
            if rivals:
                nearest = min(
                    rivals, key=lambda rival: (abs(float(rival[1]) - float(value)), rival)
                )
                found.setdefault(case.id, {})[measure] = list(nearest)
    return found


def printed_rows(folder: Path) -> list[PrintedRow]:
    """The cases of the full tier with a printed number of a paper, in order of their files."""
    recipes = Recipes(folder)
    references = Workspace(folder, Path("unused")).references
    rows = []
    for case in all_cases(folder):
        if not case.rivals:
            continue
        strong = with_power(case)
        weak = [m for m in case.paper if m in case.rivals and m not in strong]
        rows.append(PrintedRow(case, strong, weak, training_hours(case.model, recipes, references)))
    return rows


def training_hours(model: str, recipes: Recipes, references: Mapping[str, Sequence[str]]) -> float:
    """GPU-hours of all trainings that a model needs, from the public checkpoints on, by the plans of the recipes."""
    hours: float = 0
    for name in dependencies(model, recipes.models, references):
        needed = recipes.models[name]
        if needed.recipe:
            hours += sum(step.gpu_hours or 0 for step in recipes.plan(needed, "release"))
    return hours


def encoding_hours(case: Case) -> float:
    """GPU-hours of encoding the collection: every text at its full length, which short texts do not reach."""
    documents = collections.find(case.collection).documents or 0
    return documents * float(case.encode.get("document_length", 512)) * 2 * BERT / RATE / 3600


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
    """Markdown: the counts, then the table."""
    strong = sum(len(row.strong) for row in rows)
    weak = sum(len(row.weak) for row in rows)
    head = (
        f"{measured} of {strong + weak} numbers are measured. The nearest other number of the same table is outside "
        f"the tolerance for {strong} of them, and within it for {weak}, which therefore prove little alone. A row is "
        "listed with power if one of its measures has it."
    )
    return f"{head}\n\n{power_table(rows)}"


def main(argv: list[str] | None = None) -> int:
    """Print the table, or write the record of the nearest other numbers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--papers", type=Path, help="folder of the papers' texts, for --record")
    parser.add_argument(
        "--record", action="store_true", help=f"write eval/{RIVALS} and eval/{COSTS}"
    )
    options = parser.parse_args(argv)
    if options.record != bool(options.papers):
        parser.error("--record and --papers go together")
    if options.record:
        (FOLDER / RIVALS).write_text(
            as_record(nearest_rivals(FOLDER, options.papers)), encoding="utf-8"
        )
        (FOLDER / COSTS).write_text(as_record(costs(printed_rows(FOLDER))), encoding="utf-8")
    else:
        print(power_text(printed_rows(FOLDER), 0))
    return 0


def costs(rows: Iterable[PrintedRow]) -> dict[str, list[float]]:
    """Case -> GPU-hours of training and of encoding, as tools/plan_cases.py reads them."""
    return {row.case.id: [round(row.hours, 2), round(encoding_hours(row.case), 2)] for row in rows}


def as_record(rivals: Mapping[str, Mapping[str, Sequence[str]] | Sequence[float]]) -> str:
    """The record as JSON, a line for each case."""
    lines = [
        f"{json.dumps(name)}: {json.dumps(one, ensure_ascii=False)}"
        for name, one in sorted(rivals.items())
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main())
