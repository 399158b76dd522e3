"""Compare the recipes with the papers and print the differences.

    python tools/audit_recipes.py [--papers FOLDER] [--write docs/recipes.md]
    python tools/audit_recipes.py --plan dupmae-stage3 [--preset paper]

Checks that every recipe states every setting; compares the settings with eval/hyperparameters.toml, the table of values
with their sources and the known deviations; compares the separator of titles in training and in the index; with
``--papers``, looks up every printed number of eval/*.toml in the papers' texts. ``--write`` replaces the parts of a
page between the audit markers, that of the printed numbers only with ``--papers``. ``--plan`` prints what the training
of a model reads and costs, next to the papers' settings, instead. Exits with 1 if there is a problem.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from recipe_plan import PlannedStep, SettingComparison, in_words, plan_training, unstated

from dupmae_ir import collections
from dupmae_ir.config import read_toml
from dupmae_ir.eval.regressions import cases
from dupmae_ir.eval.regressions.cases import (
    HYPERPARAMETERS,
    MODELS,
    RECIPES,
    Case,
    Mean,
    Model,
    dependencies,
    read_models,
)
from dupmae_ir.eval.regressions.config import PRESETS
from dupmae_ir.eval.regressions.workspace import Workspace

FOLDER = Path(__file__).resolve().parents[1] / "eval"
MARKERS = ("<!-- {}: begin -->", "<!-- {}: end -->")
TEXTS = {
    "RetroMAE": "retromae.txt",
    "DupMAE (ACL 2023)": "dupmae_acl2023.txt",
    "DupMAE (arXiv v1)": "dupmae_arxiv.txt",
    "MASTER": "master.txt",
    "CoT-MoTE": "cot_mote.txt",
}
"""Paper, as cases cite it -> file of its text."""
_CORPORA = {
    "dpr-nq": "Wikipedia",
    "msmarco-passage-titled": "MS MARCO",
    "msmarco-passage": "MS MARCO",
    "msmarco-doc": "MS MARCO documents",
}


@dataclass(frozen=True)
class Audit:
    """The outcome: how many values agree, which deviate for a stated reason, and which are wrong."""

    agreeing: int
    deviations: Sequence[SettingComparison]
    problems: Sequence[str]
    remarks: Sequence[str] = ()  #: differences that are no setting of one step

    def lines(self) -> list[str]:
        """The outcome as lines of Markdown."""
        head = f"{self.agreeing} hyper-parameters of the recipes equal the papers' or the released code's."
        known = [f"* {words}" for words in [*_grouped(self.deviations), *self.remarks]]
        wrong = [f"* {p}" for p in self.problems]
        lines = [head, "", f"Known deviations: {len(known)}.", "", *known, ""] if known else [head, ""]
        return [*lines, f"Problems: {len(wrong)}.", "", *wrong] if wrong else [*lines, "No other differences: clean."]


def _grouped(deviations: Sequence[SettingComparison]) -> list[str]:
    """One line for each deviation, which several models may share."""
    groups: dict[tuple[str, str, str, str], list[SettingComparison]] = {}
    for one in deviations:
        groups.setdefault((one.setting, str(one.ours), str(one.papers), one.because), []).append(one)
    return [
        str(found[0] if len(found) == 1 else replace(found[0], where=f"{found[0].where}, and {len(found) - 1} more"))
        for found in groups.values()
    ]


class Recipes:
    """The recipes and models of a folder, planned without downloading anything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.toml = read_toml(folder / MODELS)
        self.models = read_models(self.toml, folder)
        table = folder / HYPERPARAMETERS
        self.table = read_toml(table) if table.is_file() else {}
        self._plans: dict[tuple[str, str], list[PlannedStep]] = {}

    def plan(self, model: Model, preset: str) -> list[PlannedStep]:
        """The steps that train ``model`` under ``preset``."""
        if (model.name, preset) not in self._plans:
            recipe = self.folder / RECIPES / f"{model.recipe}.toml"
            inputs = {"preset": preset} if "presets" in read_toml(recipe) else {}
            self._plans[model.name, preset] = plan_training(model, recipe, inputs, self.toml)
        return self._plans[model.name, preset]

    def compare(self, model: Model, step: PlannedStep, preset: str) -> list[SettingComparison]:
        """The settings of a step that the table has, beside the table's values; the last row of a setting counts."""
        found: dict[str, SettingComparison] = {}
        where = f"{model.name}, {step.name}"
        for row in self.table.get("value", []):
            if _matches(row, model.name, step.name, preset):
                for name, value in row["settings"].items():
                    ours = _setting(self.plan(model, preset), step, name)
                    because = self.reason(model, step.name, preset, name)
                    found[name] = SettingComparison(where, name, ours, value, row["source"], because)
        return list(found.values())

    def reason(self, model: Model, step: str, preset: str, setting: str) -> str:
        """Why a setting deviates, or the empty string."""
        for row in self.table.get("deviation", []):
            if row["setting"] == setting and _matches(row, model.name, step, preset):
                return str(row["because"])
        return ""


def audit_recipes(folder: Path) -> Audit:
    """Compare every recipe in ``folder`` with the table, and find settings that are not stated."""
    recipes = Recipes(folder)
    trained = [m for m in recipes.models.values() if m.recipe]
    compared = [
        (model, one, preset)
        for model in trained
        for preset in PRESETS
        for step in recipes.plan(model, preset)
        for one in recipes.compare(model, step, preset)
    ]
    deviations = {(m.recipe, one.setting): one for m, one, _ in compared if not one.equal and one.because}
    problems = [f"{p.stem}: {s} is not stated" for p in stated_recipes(folder) for s in unstated(p)]
    problems += [f"{one}, preset {preset}" for _, one, preset in compared if not one.equal and not one.because]
    problems += [
        f"{one.where}: {one.setting} is no deviation any more; remove it from {HYPERPARAMETERS}"
        for _, one, _ in compared
        if one.equal and one.because
    ]
    problems += [
        f"{HYPERPARAMETERS}: no model is named {' or '.join(row['models'])}"
        for row in (row for kind in ("value", "deviation", "remark") for row in recipes.table.get(kind, []))
        if not any(fnmatchcase(m.name, pattern) for m in trained for pattern in row["models"])
    ]
    agreeing = sum(one.equal for _, one, _ in compared)
    remarks = ["{source}: {theirs}; here {ours} ({because})".format_map(row) for row in recipes.table.get("remark", [])]
    return Audit(agreeing, list(deviations.values()), [*problems, *separators(recipes)], remarks)


def stated_recipes(folder: Path) -> list[Path]:
    """The recipes that must state every setting: all but tiny's, whose accepted values pin the defaults."""
    return [p for p in sorted((folder / RECIPES).glob("*.toml")) if p.stem != "tiny"]


def _setting(steps: Sequence[PlannedStep], step: PlannedStep, name: str) -> Any:
    """A setting as the table writes it: names of corpora, and for ``negatives_from`` the step that mined them."""
    if name == "corpus":
        return corpora_of(steps, step)
    if name != "negatives_from":
        return step.setting(name)
    mined = Path(str(step.config.mined)).stem  # type: ignore[attr-defined]
    miner = next(s for s in steps if s.name == mined)
    return getattr(miner.config, "model", None) or miner.name


def corpora_of(steps: Sequence[PlannedStep], step: PlannedStep) -> list[str]:
    """What a pre-training step reads in the end, by the names of the papers, in order of first use."""
    by_name = {s.name: s for s in steps}
    names: list[str] = []
    value = step.config.corpus  # type: ignore[attr-defined]
    for reference in [value] if isinstance(value, str) else value:
        earlier = by_name.get(Path(reference).stem)
        if earlier and not reference.startswith("collection:"):
            names += corpora_of(steps, earlier)
        else:
            name = reference.removeprefix("collection:").partition("/")[0]
            names.append("BEIR" if name.startswith("beir-") else _CORPORA.get(name, name))
    return list(dict.fromkeys(names))


def separators(recipes: Recipes) -> Iterator[str]:
    """Cases whose index joins titles and texts otherwise than the training of their model."""
    for regression in cases.load(recipes.folder).values():
        for case in regression.cases:
            model = recipes.models.get(case.model)
            if model is None or not model.recipe or model.recipe == "tiny" or ":" in case.collection:
                continue
            trained = recipes.plan(model, "release")[-1].config.title_separator  # type: ignore[attr-defined]
            if trained != (indexed := _indexed_separator(case)):
                yield f"{case.id}: titles are joined by {trained} in training, by {indexed} in the index"


def _indexed_separator(case: Case) -> str:
    """What the index of a case joins titles and texts by."""
    return case.encode.get("title_separator") or collections.find(case.collection).title_separator


@dataclass(frozen=True)
class PrintedNumbers:
    """How many printed numbers were looked up in their papers' texts, and which were not found."""

    looked_up: int
    missing: Sequence[str]

    def lines(self) -> list[str]:
        """The outcome as lines of Markdown."""
        found = self.looked_up - len(self.missing)
        head = f"{found} of {self.looked_up} printed numbers of `eval/*.toml` are in the texts of the papers they cite."
        return [head, *(["", *(f"* {one}" for one in self.missing)] if self.missing else [])]


def audit_numbers(folder: Path, papers: Path) -> PrintedNumbers:
    """Look up the numbers of cases and means in their paper's text, as fractions or as percentages.

    Those that cite none of :data:`TEXTS`, such as BM25's, are left out.
    """
    texts = {name: (papers / file).read_text(encoding="utf-8") for name, file in TEXTS.items()}
    looked_up, missing = 0, []
    for regression in cases.load(folder).values():
        named: list[tuple[str, Case | Mean]] = [(case.id, case) for case in regression.cases]
        named += [(f"{regression.name}/mean:{mean.name}", mean) for mean in regression.means]
        for name, item in named:
            cited = [text for paper, text in texts.items() if paper in item.source]
            looked_up += len(item.paper) if cited else 0
            missing += [
                f"{name}: {measure} {value} is not in the text of {item.source}"
                for measure, value in item.paper.items()
                if cited and not any(_printed(value, text) for text in cited)
            ]
    return PrintedNumbers(looked_up, missing)


def _printed(value: str, text: str) -> bool:
    """Whether a number stands in the text: 0.416 as 0.416, .416, 41.6 or 0.4160."""
    percent = f"{float(value) * 100:.10g}"
    forms = {value, value.rstrip("0"), value.removeprefix("0"), percent, f"{float(value) * 100:.1f}"}
    return any(re.search(rf"(?<![\d.]){re.escape(form)}(?!\d)", text) for form in forms)


def _matches(row: Mapping[str, Any], model: str, step: str, preset: str) -> bool:
    named = any(fnmatchcase(model, pattern) for pattern in row["models"])
    return named and fnmatchcase(step, row["step"]) and row.get("preset", preset) == preset


def plan_lines(recipes: Recipes, name: str, preset: str) -> list[str]:
    """The plan of the trainings that a model needs, beside the papers' values."""
    references = Workspace(recipes.folder, Path("out"), preset=preset).references
    lines = []
    for required in dependencies(name, recipes.models, references):
        model = recipes.models[required]
        if not model.recipe:
            continue
        steps = recipes.plan(model, preset)
        total = sum(step.gpu_hours or 0 for step in steps)
        lines.append(f"{required}: {model.title}, by {model.recipe}, preset {preset}: about {total:,.0f} GPU-hours")
        for step in steps:
            lines += [f"  {line}" for line in in_words(step, recipes.compare(model, step, preset))]
    return lines


def main(argv: list[str] | None = None) -> int:
    """Print the outcome, or write it into a page; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", type=Path, default=FOLDER, help="folder of models.toml")
    parser.add_argument("--papers", type=Path, help="folder of the papers' texts")
    parser.add_argument("--write", type=Path, help="page to update between the audit markers")
    parser.add_argument("--plan", metavar="MODEL", help="print the plan of a model's training and stop")
    parser.add_argument("--preset", choices=PRESETS, default=PRESETS[0], help="choices of the recipes, for --plan")
    options = parser.parse_args(argv)
    if options.plan:
        print("\n".join(plan_lines(Recipes(options.recipes), options.plan, options.preset)))
        return 0
    audit = audit_recipes(options.recipes)
    parts = {"audit": "\n".join(audit.lines())}
    numbers = audit_numbers(options.recipes, options.papers) if options.papers else None
    if numbers:
        parts["numbers"] = "\n".join(numbers.lines())
    if options.write:
        page = options.write.read_text(encoding="utf-8")
        for name, text in parts.items():
            page = with_part(page, name, text)
        options.write.write_text(page, encoding="utf-8")
    else:
        print("\n\n".join(parts.values()))
    return 1 if audit.problems or (numbers and numbers.missing) else 0


def with_part(page: str, name: str, text: str) -> str:
    """``page`` with ``text`` between the markers of ``name``."""
    first, last = (marker.format(name) for marker in MARKERS)
    before, begin, rest = page.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise SystemExit(f"the page has no {first} ... {last}")
    return f"{before}{first}\n{text}\n{last}{after}"


if __name__ == "__main__":
    sys.exit(main())
