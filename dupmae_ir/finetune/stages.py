"""Several steps as one job: a recipe names them in order, each a command of its own that resumes (DupMAE section 3.4).

A recipe is TOML. ``[inputs]`` are values that the steps use as ``{name}`` and that ``--set name=value`` replaces;
every ``[[step]]`` has a ``name``, a ``command`` and that command's settings. ``{stage1}`` is the output of the step
``stage1``; ``{start}`` is where a stage's weights come from: ``{model}``, or with ``init_from = "previous"`` the
stage that was trained last.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from dupmae_ir.config import flags, from_mapping, read_toml
from dupmae_ir.console import say
from dupmae_ir.errors import InputError, TrainingFailed, UsageError
from dupmae_ir.io.locks import exclusive
from dupmae_ir.io.publishing import sha256_file, write_json
from dupmae_ir.registry import lookup, suggest

RECIPES = Path(__file__).with_name("recipes")
STATE = "steps.json"
COMMANDS = {
    "pretrain": ("dupmae_ir.pretrain.run", "PretrainConfig", ""),
    "pretrain.augment": ("dupmae_ir.pretrain.augment.run", "AugmentConfig", ".jsonl"),
    "finetune.convert": ("dupmae_ir.finetune.convert", "ConvertConfig", ".jsonl"),
    "finetune": ("dupmae_ir.finetune.run", "FinetuneConfig", ""),
    "finetune.mine": ("dupmae_ir.finetune.mine.run", "MineConfig", ".jsonl"),
    "finetune.cross_encoder": ("dupmae_ir.finetune.cross_encoder.run", "CrossEncoderConfig", ""),
    "finetune.score": ("dupmae_ir.finetune.score.run", "ScoreConfig", ".jsonl"),
}
"""Command -> (module and class of its settings, ending of its output)."""

_PLACE = re.compile(r"\{([a-z0-9_]+)\}")


@dataclass(frozen=True)
class Step:
    """One command of a recipe, ready to run."""

    name: str
    command: str
    config: Any

    @property
    def words(self) -> list[str]:
        """Its command line after ``python -m``."""
        return [f"dupmae_ir.{self.command}", *flags(self.config)]


def find_recipe(name: str) -> Path:
    """A file, or one of the recipes that come with the package, by name."""
    if Path(name).is_file():
        return Path(name)
    known = {p.stem: p for p in sorted(RECIPES.glob("*.toml"))}
    if name.endswith(".toml"):
        raise InputError(f"{name}: no such recipe; those of the package are {', '.join(known)}")
    return lookup("recipe", name, known)


def has_steps(name: str) -> bool:
    """True for a recipe of several steps (and for a name that is none of ours, so that the error speaks of recipes)."""
    path = Path(name)
    return not path.is_file() or "step" in read_toml(path)


def plan(
    recipe: str | Path, output: str | Path, given: Mapping[str, Any], last: str | None = None
) -> tuple[list[Step], dict[str, Any]]:
    """(steps, inputs) of a recipe with the values of ``--set``, as far as the step ``last``.

    Raises :class:`InputError` naming the recipe.
    """
    data = read_toml(recipe)
    inputs = dict(data.get("inputs", {}))
    for name, value in given.items():
        if name not in inputs:
            raise UsageError(f"--set {name}: {recipe} has no such input.{suggest(name, inputs)}")
        inputs[name] = value.split() if isinstance(inputs[name], list) and isinstance(value, str) else value
    if lacking := [name for name, value in inputs.items() if value in ("", [])]:
        raise UsageError(f"{recipe} wants {' and '.join(f'--set {n}=...' for n in lacking)}")
    known: dict[str, Any] = {**inputs, "start": inputs.get("model", "")}
    steps: list[Step] = []
    for table in data.get("step", []):
        step = _step(table, known, Path(output), str(recipe))
        if step.name in known:
            raise InputError(f"{recipe}: two steps or inputs are called {step.name!r}")
        known[step.name] = step.config.output
        if step.command == "finetune" and data.get("init_from", "pretrained") == "previous":
            known["start"] = step.config.output
        steps.append(step)
        if step.name == last:
            break
    if last and (not steps or steps[-1].name != last):
        raise InputError(f"{recipe}: has no step {last!r}.{suggest(last, [s.name for s in steps])}")
    if not steps:
        raise InputError(f"{recipe}: has no [[step]]")
    return steps, inputs


def run_stages(
    recipe: str,
    output: str,
    given: Mapping[str, Any],
    quiet: bool = False,
    dry_run: bool = False,
    last: str | None = None,
) -> dict[str, Any]:
    """Run what is not done yet, in order, as far as ``last``; the same call goes on after any end. Returns the
    summaries by step.

    A step is done again when its settings, an input file or a step before it has changed; its old output is refused
    rather than overwritten by the step's own command.
    """
    steps, inputs = plan(find_recipe(recipe), output, given, last)
    if dry_run:
        for step in steps:
            say(f"python -m {' '.join(step.words)}")
        return {}
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder / ".lock", f"running {recipe} in {folder}"):
        return _run(steps, _digest(inputs), folder, quiet)


def _run(steps: list[Step], before: str, folder: Path, quiet: bool) -> dict[str, Any]:
    state = _state(folder / STATE)
    for number, step in enumerate(steps, 1):
        before = hashlib.sha256(f"{before} {json.dumps(step.words)}".encode()).hexdigest()
        kept = state.get(step.name)
        title = f"[{number}/{len(steps)}] {step.name}"
        if kept is not None and kept["digest"] == before and Path(step.config.output).exists():
            say(f"{title}: done before", quiet)
            continue
        say(f"{title}: python -m {' '.join(step.words)}", quiet)
        started = time.time()
        summary = _call(step, quiet)
        state[step.name] = {"digest": before, "seconds": round(time.time() - started), "summary": summary}
        write_json(folder / STATE, state)
    return {step.name: state[step.name] for step in steps}


def _call(step: Step, quiet: bool) -> dict[str, Any]:
    words = [sys.executable, "-m", *step.words, "--json", *(["--quiet"] if quiet else [])]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode in (130, -2):
        raise KeyboardInterrupt
    if done.returncode:
        raise TrainingFailed(
            f"step {step.name} ended with status {done.returncode}, as told above; the same command goes on from there"
        )
    lines = done.stdout.strip().splitlines()
    return json.loads(lines[-1]) if lines else {}


def _step(table: Mapping[str, Any], known: Mapping[str, Any], folder: Path, source: str) -> Step:
    settings = dict(table)
    name, command = settings.pop("name", None), settings.pop("command", None)
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9_]+", name):
        raise InputError(f"{source}: a step's name is {name!r}; wants small letters, digits and _")
    where = f"{source}: step {name}"
    if command not in COMMANDS:
        raise InputError(f"{where}: no command {command!r}; there are {', '.join(COMMANDS)}")
    module, kind, ending = COMMANDS[command]
    config_class = getattr(importlib.import_module(module), kind)
    values = {key: _filled(value, known, where) for key, value in settings.items()}
    lists = {f.name for f in fields(config_class) if str(f.type).startswith("tuple")}
    for key in lists & values.keys():
        values[key] = [v for item in _listed(values[key]) for v in _listed(item)]
    values["output"] = str(folder / f"{name}{ending}")
    _check_required(config_class, values, where)
    return Step(name, command, from_mapping(config_class, values, where))


def _check_required(config_class: Any, values: Mapping[str, Any], where: str) -> None:
    required = {f.name for f in fields(config_class) if f.default is MISSING and f.default_factory is MISSING}
    if missing := sorted(required - {k.replace("-", "_") for k in values}):
        raise InputError(f"{where}: missing {', '.join(missing)}")


def _filled(value: Any, known: Mapping[str, Any], where: str) -> Any:
    """``{name}`` replaced; alone it may stand for a list."""
    if isinstance(value, list):
        return [_filled(v, known, where) for v in value]
    if not isinstance(value, str):
        return value
    for name in _PLACE.findall(value):
        if name not in known:
            raise InputError(f"{where}: {{{name}}} is neither an input nor a step before it.{suggest(name, known)}")
    whole = _PLACE.fullmatch(value)
    return known[whole[1]] if whole else _PLACE.sub(lambda m: str(known[m[1]]), value)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _digest(inputs: Mapping[str, Any]) -> str:
    """Over the inputs and the bytes of those that are files."""
    told = {}
    for name, value in inputs.items():
        paths = [Path(str(v)) for v in _listed(value)]
        told[name] = [sha256_file(p) if p.is_file() else str(p) for p in paths]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _state(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as e:
        raise InputError(f"{path}: not valid JSON ({e}); remove it to look at every step again") from None
