"""What cases with a paper's number cost, cheapest first, each with its command and how many of its numbers have power.

    python tools/plan_cases.py --measurable
    python tools/plan_cases.py --measurable --hours 24 retromae.beir

Runs nothing. ``costs.json`` has the GPU-hours; tools/power.py computes them from the recipes. A number has power if
another system of the printed table would not pass for it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dupmae_ir import collections
from dupmae_ir.command import help_text
from dupmae_ir.config import parse, with_flags
from dupmae_ir.console import Parser, guarded
from dupmae_ir.errors import InputError
from dupmae_ir.eval.regressions import cases
from dupmae_ir.eval.regressions.cases import Case
from dupmae_ir.eval.regressions.config import CaseOptions, case_option
from dupmae_ir.eval.regressions.verdict import TWO_SEEDS, Z, without_power
from dupmae_ir.io.lines import json_record

COSTS = "costs.json"
"""Case -> GPU-hours of all trainings that its model needs, and at most of encoding its collection."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions(CaseOptions):
    """List the cases with a paper's number in order of their GPU-hours, each with its command and with how many of its
    numbers have power: another system of the printed table would not pass for it. Runs nothing.

    Examples:
        python tools/plan_cases.py --measurable
    """

    measurable: bool = case_option(False, "only what one GPU measures in --hours, cheapest first")
    hours: float = case_option(
        168.0, "GPU-hours; a week by default", above=0, only_with="measurable"
    )


@dataclass(frozen=True)
class PlannedCase:
    """A case with a paper's number: what it adds to the cost of those before it, in GPU-hours, and what it can show.

    Downloads and searches are not counted.
    """

    case: Case
    training: float
    encoding: float
    together: float  #: with all cases before it
    strong: Sequence[str]  #: measures that would not pass for another system of the printed table

    def __str__(self) -> str:
        return (
            f"dupmae-ir eval.regressions run {self.case.id}  # training {self.training:.1f} h, encoding at most "
            f"{self.encoding:.1f} h, together {self.together:.1f} h; {len(self.case.paper)} printed, "
            f"{len(self.strong)} with power"
        )


def plan_cases(options: PlanOptions) -> list[PlannedCase]:
    """The cases of the papers in order of cost; with ``measurable``, those that fit into ``hours`` of one GPU."""
    folder = cases.find_folder(options.recipes)
    costs = load_costs(folder)
    chosen = [
        c for c in cases.select(cases.load(folder), options.names, options.tier) if c.id in costs
    ]
    return list(in_order_of_cost(chosen, costs, options.hours if options.measurable else math.inf))


def in_order_of_cost(
    chosen: Sequence[Case], costs: Mapping[str, tuple[float, float]], budget: float
) -> Iterator[PlannedCase]:
    """Cases as long as they fit into ``budget`` GPU-hours, cheapest first.

    A case with the model, or the model and collection, of one before it pays for neither again.
    """
    spent = 0.0
    trained = set[str]()
    encoded = set[tuple[str, str]]()
    for case in sorted(chosen, key=lambda case: (*costs[case.id], case.id)):
        training, encoding = costs[case.id]
        training = 0.0 if case.model in trained else training
        encoding = 0.0 if (case.model, case.collection) in encoded else encoding
        if spent + training + encoding <= budget:
            spent += training + encoding
            trained.add(case.model)
            encoded.add((case.model, case.collection))
            yield PlannedCase(case, training, encoding, spent, with_power(case))


def load_costs(folder: Path) -> dict[str, tuple[float, float]]:
    """Case -> GPU-hours of training and of encoding. Raises :class:`InputError` without the file."""
    path = folder / COSTS
    if not path.is_file():
        raise InputError(
            f"{path}: no such file; only the folder eval of the checkout has the costs of its cases"
        )
    return {
        name: (row[0], row[1])
        for name, row in json_record(path.read_text(encoding="utf-8"), str(path)).items()
    }


def with_power(case: Case) -> list[str]:
    """The measures whose nearest other number in the printed tables is outside the tolerance."""
    rivals = [m for m in case.paper if m in case.rivals]
    return [m for m in rivals if not without_power(case, m, largest_tolerance(case, m))]


def largest_tolerance(case: Case, measure: str) -> float:
    """The tolerance of a case's verdict against the paper, at most.

    Stated in the case, or what two trainings with other seeds differ by; else the widest bootstrap interval over
    queries that the number allows: values lie between 0 and 1, so their variance is at most p (1 - p) for a mean of p.
    """
    if case.tolerance is not None:
        return case.tolerance
    seed_deviation = case.seed_deviation.get(measure)
    if seed_deviation is not None:
        return TWO_SEEDS * seed_deviation
    test = collections.find(case.collection).tests.get(case.test)
    if test is None or not test.queries:
        return 1.0
    p = float(case.paper[measure])
    return Z * math.sqrt(p * (1 - p) / test.queries)


def main(argv: list[str] | None = None) -> int:
    """Print the cases; returns the exit status."""

    def job() -> int:
        parser = Parser("plan", *help_text(PlanOptions))
        parser.prog = "tools/plan_cases.py"
        print("\n".join(map(str, plan_cases(parse(parser, PlanOptions, argv)))))
        return 0

    return guarded(
        job, "tools/plan_cases.py", translate=lambda message: with_flags(message, PlanOptions)
    )


if __name__ == "__main__":
    sys.exit(main())
