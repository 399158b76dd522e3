"""Compare the recipes with the papers and print the differences.

    python tools/audit_recipes.py [--papers FOLDER] [--write docs/recipes.md]
    python tools/audit_recipes.py --plan dupmae-stage3 [--preset paper]

Checks that every recipe states every setting and its origin; compares the settings with eval/hyperparameters.toml, the
table of values with their sources and the known deviations, and all others with tools/recorded_settings.toml, which has
their values and the origin that the recipe states for them; compares cases, models, corpora and groups of collections
(tools/audit_cases.py); compares the separator of titles in training and in the index; with ``--papers``, looks up every
printed number of eval/*.toml in the cell of the table that it cites. ``--write`` replaces the parts of a page between
the audit markers, that of the printed numbers only with ``--papers``. ``--record`` writes tools/recorded_settings.toml
and tools/recorded_cases.toml anew; read their differences. ``--plan`` prints what the training of a model reads and
costs, next to the papers' settings, instead. Exits with 1 if there is a problem.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from decimal import ROUND_HALF_UP, Decimal
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import audit_cases
from paper_tables import PaperTables
from recipe_origins import missing_origins, stated_origins
from recipe_plan import (
    OPERATIONAL,
    PlannedStep,
    SettingComparison,
    in_words,
    plan_training,
    same,
    unstated,
)

from dupmae_ir import collections
from dupmae_ir.config import applies, read_toml
from dupmae_ir.eval.regressions import cases
from dupmae_ir.eval.regressions.cases import (
    DOWNLOADS,
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
RECORD = Path(__file__).with_name("recorded_settings.toml")
_RECORD_HEAD = """\
# The settings of the recipes that eval/hyperparameters.toml has no sourced value for: their values, and the origin that
# each has at the end of its line in the recipe ("ours: ..." for own choices). Written by `python
# tools/audit_recipes.py --record`; a setting that differs from its entry, or has none, is a problem of the audit.
# Before it is written anew, read why the recipe has changed.
#
# [RECIPE.STEP]: setting = {origin, value}, or, where models or presets differ, values as [value, [MODEL/PRESET, ...]].
"""
COMPUTED = "computed from"
"""How the source of a mean begins that no paper prints."""
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
        lines = (
            [head, "", f"Known deviations: {len(known)}.", "", *known, ""] if known else [head, ""]
        )
        return (
            [*lines, f"Problems: {len(wrong)}.", "", *wrong]
            if wrong
            else [*lines, "No other differences: clean."]
        )


def _grouped(deviations: Sequence[SettingComparison]) -> list[str]:
    """One line for each deviation, which several models may share."""
    groups: dict[tuple[str, str, str, str], list[SettingComparison]] = {}
    for one in deviations:
        groups.setdefault((one.setting, str(one.ours), str(one.papers), one.because), []).append(
            one
        )
    return [
        str(
            found[0]
            if len(found) == 1
            else replace(found[0], where=f"{found[0].where}, and {len(found) - 1} more")
        )
        for found in groups.values()
    ]


_PLANS: dict[tuple[str, str, str, str], list[PlannedStep]] = {}
"""Text of the recipe, model, downloads and preset -> plan: recipes of several folders are mostly the same."""


class Recipes:
    """The recipes and models of a folder, planned without downloading anything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.toml = read_toml(folder / MODELS)
        self.models = read_models(self.toml, folder)
        table = folder / HYPERPARAMETERS
        self.table = read_toml(table) if table.is_file() else {}
        self.record = read_toml(RECORD) if RECORD.is_file() else {}
        self._recipes = {
            path.stem: path.read_text(encoding="utf-8")
            for path in (folder / RECIPES).glob("*.toml")
        }

    def plan(self, model: Model, preset: str) -> list[PlannedStep]:
        """The steps that train ``model`` under ``preset``."""
        downloads = json.dumps(self.toml.get(DOWNLOADS, {}), sort_keys=True)
        key = (self._recipes[model.recipe], repr(model), downloads, preset)
        if key not in _PLANS:
            recipe = self.folder / RECIPES / f"{model.recipe}.toml"
            inputs = {"preset": preset} if "presets" in read_toml(recipe) else {}
            _PLANS[key] = plan_training(model, recipe, inputs, self.toml)
        return _PLANS[key]

    def compare(self, model: Model, step: PlannedStep, preset: str) -> list[SettingComparison]:
        """The settings of a step that the table has, beside the table's values; the last row of a setting counts."""
        found: dict[str, SettingComparison] = {}
        where = f"{model.name}, {step.name}"
        for row in self.table.get("value", []):
            if _matches(row, model.name, step.name, preset):
                for name, value in row["settings"].items():
                    ours = _setting(self.plan(model, preset), step, name)
                    because = self.reason(model, step.name, preset, name)
                    found[name] = SettingComparison(
                        where, name, ours, value, row["source"], because
                    )
        return list(found.values())

    def reason(self, model: Model, step: str, preset: str, setting: str) -> str:
        """Why a setting deviates, or the empty string."""
        for row in self.table.get("deviation", []):
            if row["setting"] == setting and _matches(row, model.name, step, preset):
                return str(row["because"])
        return ""


def recorded_settings(recipes: Recipes) -> dict[str, dict[str, dict[str, list[tuple[str, Any]]]]]:
    """Recipe -> step -> setting -> (model/preset, value), of all settings that the table has no value for."""
    found: dict[str, dict[str, dict[str, list[tuple[str, Any]]]]] = {}
    for model in (m for m in recipes.models.values() if m.recipe and m.recipe != "tiny"):
        for preset in PRESETS:
            for step in recipes.plan(model, preset):
                steps = found.setdefault(model.recipe, {}).setdefault(step.name, {})
                for name in _open_settings(recipes, model, step, preset):
                    steps.setdefault(name, []).append(
                        (f"{model.name}/{preset}", _as_toml(step.setting(name)))
                    )
    return found


def _open_settings(recipes: Recipes, model: Model, step: PlannedStep, preset: str) -> list[str]:
    """Settings in effect without a value in the table. A table that has the effective batch still leaves its parts."""
    sourced = {one.setting for one in recipes.compare(model, step, preset)}
    names = [
        f.name for f in fields(step.config) if f.name not in sourced and f.name not in OPERATIONAL
    ]
    return [name for name in names if applies(step.config, name)]


def _as_toml(value: Any) -> Any:
    """TOML has no None, and lists for tuples."""
    return "none" if value is None else list(value) if isinstance(value, tuple) else value


def unrecorded(recipes: Recipes) -> Iterator[str]:
    """Settings without a sourced value that have no entry in the record or differ from it; entries of no use."""
    current = recorded_settings(recipes)
    for recipe, steps in current.items():
        for step, settings in steps.items():
            record = recipes.record.get(recipe, {}).get(step, {})
            for name, values in settings.items():
                if name not in record:
                    yield f"{recipe}, {step}: {name} has no source in {HYPERPARAMETERS} and no entry in {RECORD.name}"
                else:
                    yield from _differences(f"{recipe}, {step}: {name}", record[name], values)
            yield from (
                f"{recipe}, {step}: {n} is recorded, but no such setting is open"
                for n in record
                if n not in settings
            )
    yield from (
        f"{name} is recorded, but no such recipe is used"
        for name in recipes.record
        if name not in current
    )


def _differences(
    where: str, entry: Mapping[str, Any], values: Sequence[tuple[str, Any]]
) -> Iterator[str]:
    """Models and presets whose value is not the recorded one, as one line for each value."""
    by_model = {}
    for value, names in entry.get("values", []):
        by_model.update(dict.fromkeys(names, value))
    wrong: dict[str, list[str]] = {}
    for who, value in values:
        recorded = by_model.get(who, entry.get("value"))
        if recorded is None or type(recorded) is not type(value) or not same(value, recorded):
            wrong.setdefault(f"{value}, {recorded}", []).append(who)
    for words, names in wrong.items():
        more = f" and {len(names) - 1} more" if names[1:] else ""
        yield f"{where} is {words} in {RECORD.name} ({entry['origin']}): {names[0]}{more}"


def write_record(recipes: Recipes) -> str:
    """The record of the settings as they are now, as TOML."""
    lines = [_RECORD_HEAD]
    for recipe, steps in sorted(recorded_settings(recipes).items()):
        origins = stated_origins(recipes.folder / RECIPES / f"{recipe}.toml")
        for step, settings in steps.items():
            lines.append(f"[{recipe}.{step}]")
            for name, values in sorted(settings.items()):
                groups: dict[str, list[str]] = {}
                for who, value in values:
                    groups.setdefault(json.dumps(value, ensure_ascii=False), []).append(who)
                origin = json.dumps(
                    origins[step].get(name, "not stated: without effect on this step"),
                    ensure_ascii=False,
                )
                if len(groups) == 1:
                    stated = f"value = {next(iter(groups))}"
                else:
                    pairs = [f"[{value}, {json.dumps(names)}]" for value, names in groups.items()]
                    stated = f"values = [{', '.join(pairs)}]"
                lines.append(f"{name} = {{origin = {origin}, {stated}}}")
            lines.append("")
    return "\n".join(lines)


def _is_named(model: Model, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(model.name, pattern) for pattern in patterns)


def audit_recipes(folder: Path) -> Audit:
    """Compare every recipe in ``folder`` with the table, and find settings that are not stated."""
    recipes = Recipes(folder)
    trained = [m for m in recipes.models.values() if m.recipe]
    compared = []
    for model, preset in itertools.product(trained, PRESETS):
        for step in recipes.plan(model, preset):
            compared += [(model, one, preset) for one in recipes.compare(model, step, preset)]
    deviations = {}
    problems = []
    for recipe in stated_recipes(folder):
        problems += [f"{recipe.stem}: {setting} is not stated" for setting in unstated(recipe)]
        problems += missing_origins(recipe)
    obsolete = []
    for model, one, preset in compared:
        if not one.equal and one.because:
            deviations[model.recipe, one.setting] = one
        elif not one.equal:
            problems.append(f"{one}, preset {preset}")
        elif one.because:
            obsolete.append(
                f"{one.where}: {one.setting} is no deviation any more; remove it from {HYPERPARAMETERS}"
            )
    problems += obsolete
    for kind in ("value", "deviation", "remark"):
        for row in recipes.table.get(kind, []):
            if not any(_is_named(model, row["models"]) for model in trained):
                problems.append(
                    f"{HYPERPARAMETERS}: no model is named {' or '.join(row['models'])}"
                )
    agreeing = sum(one.equal for _, one, _ in compared)
    remarks = [
        "{source}: {theirs}; here {ours} ({because})".format_map(row)
        for row in recipes.table.get("remark", [])
    ]
    problems += [*unrecorded(recipes), *separators(recipes)]
    record = audit_cases.current_record(folder, all_corpora(recipes))
    trained_settings = {
        model.name: recipes.plan(model, "release")[-1].config
        for model in trained
        if model.recipe != "tiny"
    }
    problems += audit_cases.case_problems(folder, record, trained_settings, recipes.table)
    return Audit(agreeing, list(deviations.values()), problems, remarks)


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


def all_corpora(recipes: Recipes) -> dict[str, dict[str, list[str]]]:
    """Model -> step -> the references of all corpora that it reads, as the recipe has them."""
    found: dict[str, dict[str, list[str]]] = {}
    for model in recipes.models.values():
        if not model.recipe or model.recipe == "tiny":
            continue
        for step in recipes.plan(model, "release"):
            corpus = getattr(step.config, "corpus", None)
            if corpus:
                references = [corpus] if isinstance(corpus, str) else list(corpus)
                found.setdefault(model.name, {})[step.name] = references
    return found


def separators(recipes: Recipes) -> Iterator[str]:
    """Cases whose index joins titles and texts otherwise than the training of their model."""
    for regression in cases.load(recipes.folder).values():
        for case in regression.cases:
            model = recipes.models.get(case.model)
            if (
                model is None
                or not model.recipe
                or model.recipe == "tiny"
                or ":" in case.collection
            ):
                continue
            trained = recipes.plan(model, "release")[-1].config.title_separator  # type: ignore[attr-defined]
            indexed = _indexed_separator(case)
            if trained != indexed:
                yield f"{case.id}: titles are joined by {trained} in training, by {indexed} in the index"


def _indexed_separator(case: Case) -> str:
    """What the index of a case joins titles and texts by."""
    return case.encode.get("title_separator") or collections.find(case.collection).title_separator


@dataclass(frozen=True)
class PrintedNumbers:
    """How many printed numbers were looked up in the cells that they cite, and what is wrong."""

    looked_up: int
    problems: Sequence[str]

    def lines(self) -> list[str]:
        """The outcome as lines of Markdown."""
        head = f"{self.looked_up} printed numbers of `eval/*.toml` were looked up in the table cells that they cite"
        if not self.problems:
            return [f"{head}: all are there."]
        return [
            f"{head}; problems: {len(self.problems)}.",
            "",
            *(f"* {one}" for one in self.problems),
        ]


def audit_numbers(folder: Path, papers: Path) -> PrintedNumbers:
    """Look up the numbers of cases and means in their papers' tables, and compute the means that no paper prints.

    Those that cite none of the papers, such as BM25's, are left out.
    """
    tables = PaperTables(papers)
    looked_up = 0
    problems = []
    for regression in cases.load(folder).values():
        named: list[tuple[str, Case | Mean]] = [(case.id, case) for case in regression.cases]
        named += [(f"{regression.name}/mean:{mean.name}", mean) for mean in regression.means]
        for name, item in named:
            if isinstance(item, Mean) and item.source.startswith(COMPUTED):
                problems += computed_mean(name, item, regression)
            elif tables.cited(item.source):
                looked_up += len(item.paper)
                problems += tables.problems(name, item)
            elif item.paper and item.source.startswith(("RetroMAE", "DupMAE", "MASTER", "CoT-")):
                problems.append(f"{name}: {item.source} is no table of tools/paper_tables.toml")
    return PrintedNumbers(looked_up, problems)


def computed_mean(name: str, mean: Mean, regression: cases.Regression) -> Iterator[str]:
    """A mean that is not that of the printed numbers of its collections, those of a printed mean included."""
    groups = [
        other
        for other in regression.means
        if other is not mean and not other.source.startswith(COMPUTED)
    ]
    for measure, value in mean.paper.items():
        known = {
            case.collection: float(case.paper[measure])
            for case in regression.cases
            if measure in case.paper
        }
        for group in groups:
            if group.name == "cqadupstack":  # its forums have no printed numbers of their own
                known.update(
                    dict.fromkeys(collections.expand(group.group), float(group.paper[measure]))
                )
        computed, missing = collections.mean_over(mean.group, known)
        digits = Decimal(1).scaleb(int(Decimal(value).as_tuple().exponent))
        if computed is None:
            yield f"{name}: {measure} {value} cannot be computed, {len(missing)} collections have no printed number"
        elif Decimal(f"{computed:.9f}").quantize(digits, ROUND_HALF_UP) != Decimal(value):
            yield f"{name}: {measure} {value}, but the printed numbers have the mean {computed:.5f}"


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
        lines.append(
            f"{required}: {model.title}, by {model.recipe}, preset {preset}: about {total:,.0f} GPU-hours"
        )
        for step in steps:
            lines += [f"  {line}" for line in in_words(step, recipes.compare(model, step, preset))]
    return lines


def main(argv: list[str] | None = None) -> int:
    """Print the outcome, or write it into a page; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipes", type=Path, default=FOLDER, help="folder of models.toml")
    parser.add_argument("--papers", type=Path, help="folder of the papers' texts")
    parser.add_argument("--write", type=Path, help="page to update between the audit markers")
    parser.add_argument(
        "--record", action="store_true", help="write tools/recorded_settings.toml anew and stop"
    )
    parser.add_argument(
        "--plan", metavar="MODEL", help="print the plan of a model's training and stop"
    )
    parser.add_argument(
        "--preset", choices=PRESETS, default=PRESETS[0], help="choices of the recipes, for --plan"
    )
    options = parser.parse_args(argv)
    if options.plan:
        print("\n".join(plan_lines(Recipes(options.recipes), options.plan, options.preset)))
        return 0
    if options.record:
        recipes = Recipes(options.recipes)
        RECORD.write_text(write_record(recipes), encoding="utf-8")
        record = audit_cases.current_record(options.recipes, all_corpora(recipes))
        audit_cases.RECORD.write_text(audit_cases.write_record(record), encoding="utf-8")
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
    return 1 if audit.problems or (numbers and numbers.problems) else 0


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
