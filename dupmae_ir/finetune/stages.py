"""Recipes of several steps, each a separate, resumable command (DupMAE section 3.4).

A recipe is TOML. ``[inputs]`` are values that the steps refer to as ``{name}`` and that ``--set name=value`` replaces;
every ``[[step]]`` has a ``name``, a ``command`` and that command's settings. ``{stage1}`` is the output of the step
``stage1``; ``{start}`` is the model a stage starts from: ``{model}``, or with ``init_from = "previous"`` the stage
trained before it.

Settings that all steps of one command share are in ``[common.COMMAND]``; those of a step take precedence. A
recipe with an input ``preset`` has a table ``[presets.NAME]`` of inputs for each of its values, such as ``paper`` and
``release`` if a paper's text and its released code differ. ``unset = [...]`` names settings that a step leaves
without a value on purpose, since TOML has no null.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypedDict

from dupmae_ir.config import Config, flags, from_mapping, read_toml
from dupmae_ir.console import say
from dupmae_ir.errors import InputError, TrainingFailed, UsageError
from dupmae_ir.io.locks import exclusive
from dupmae_ir.io.publishing import read_json_object, sha256_file, write_json
from dupmae_ir.models.checkpoints.layout import folder_digest
from dupmae_ir.registry import lookup, suggest
from dupmae_ir.training.config import TrainerOptions

RECIPES = Path(__file__).with_name("recipes")
STATE = "steps.json"
COMMANDS = {
    "pretrain": ("dupmae_ir.pretrain.config", "PretrainConfig", ""),
    "encode.passages": ("dupmae_ir.encode.passages", "PassagesConfig", ".jsonl"),
    "pretrain.tokenizer": ("dupmae_ir.pretrain.tokenizer", "TokenizerConfig", ""),
    "pretrain.augment": ("dupmae_ir.pretrain.augment", "AugmentConfig", ".jsonl"),
    "finetune.convert": ("dupmae_ir.finetune.convert", "ConvertConfig", ".jsonl"),
    "finetune": ("dupmae_ir.finetune.config", "FinetuneConfig", ""),
    "finetune.mine": ("dupmae_ir.finetune.mine", "MineConfig", ".jsonl"),
    "finetune.cross_encoder": ("dupmae_ir.finetune.cross_encoder", "CrossEncoderConfig", ""),
    "finetune.score": ("dupmae_ir.finetune.score", "ScoreConfig", ".jsonl"),
}
"""Command -> (module and class of its options, suffix of its output)."""

_PLACEHOLDER = re.compile(r"\{([a-z0-9_]+)\}")


@dataclass(frozen=True)
class Step:
    """One command of a recipe, its options checked."""

    name: str
    command: str
    config: Config
    output: str

    @property
    def words(self) -> list[str]:
        """Its command line after ``python -m``."""
        return [f"dupmae_ir.{self.command}", *flags(self.config)]


def in_processes(step: Step, processes: int) -> Step:
    """The step in this many processes, if its command trains. Raises :class:`UsageError` if they cannot share it."""
    if not isinstance(step.config, TrainerOptions):
        return step
    try:
        return replace(step, config=replace(step.config, processes=processes))
    except UsageError as e:
        raise UsageError(f"step {step.name}: {e}") from None


class StepState(TypedDict):
    """What is recorded of a completed step."""

    digest: str  #: of its settings except ``processes``, its inputs and the steps before it
    seconds: int
    summary: dict[str, object]


def find_recipe(name: str) -> Path:
    """The path of a recipe: a file, or the name of one in the package."""
    if Path(name).is_file():
        return Path(name)
    known = {p.stem: p for p in sorted(RECIPES.glob("*.toml"))}
    if name.endswith(".toml"):
        raise InputError(f"{name}: no such recipe; the package has {', '.join(known)}")
    return lookup("recipe", name, known)


def has_steps(name: str) -> bool:
    """Whether a recipe has steps; True for an unknown name as well, so that the error is about recipes."""
    path = Path(name)
    return not path.is_file() or "step" in read_toml(path)


def plan(
    recipe: str | Path, output: str | Path, values: Mapping[str, Any], last: str | None = None
) -> tuple[list[Step], dict[str, object]]:
    """(steps, inputs) of a recipe.

    Args:
        recipe: path of the recipe.
        output: folder of the steps' outputs.
        values: values of the recipe's inputs, as of ``--set``.
        last: name of the last step to plan; None = all.

    Raises:
        InputError: the recipe cannot be used; the message names it.
        UsageError: an unknown or missing input.
    """
    data = read_toml(recipe)
    inputs = recipe_inputs(data, values, str(recipe))
    missing = [f"`values` {name}=..." for name, value in inputs.items() if value in ("", [])]
    if missing:
        raise UsageError(f"{recipe} requires {' and '.join(missing)}")
    # What steps refer to by name: inputs, the start of a stage, outputs of earlier steps.
    known: dict[str, Any] = {**inputs, "start": inputs.get("model", "")}
    steps: list[Step] = []
    for table in data.get("step", []):
        step = _step(table, data.get("common", {}), known, Path(output), str(recipe))
        if step.name in known:
            raise InputError(f"{recipe}: two steps or inputs are named {step.name!r}")
        known[step.name] = step.output
        if step.command == "finetune" and data.get("init_from", "pretrained") == "previous":
            known["start"] = step.output
        steps.append(step)
        if step.name == last:
            break
    if last and (not steps or steps[-1].name != last):
        raise InputError(f"{recipe}: has no step {last!r}.{suggest(last, [s.name for s in steps])}")
    if not steps:
        raise InputError(f"{recipe}: has no [[step]]")
    return steps, inputs


def recipe_inputs(
    data: Mapping[str, Any], values: Mapping[str, Any], recipe: str
) -> dict[str, object]:
    """The recipe's inputs: as it states them, overridden by its preset's, overridden by ``values``."""
    inputs = dict(data.get("inputs", {}))
    for name in values:
        if name not in inputs:
            raise UsageError(f"`values` {name}: {recipe} has no such input.{suggest(name, inputs)}")
    presets = data.get("presets", {})
    if presets:
        preset = lookup("preset", str(values.get("preset", inputs.get("preset"))), presets)
        unknown = sorted(preset.keys() - inputs.keys())
        if unknown:
            raise InputError(
                f"{recipe}: a preset sets {unknown[0]}, which is no input.{suggest(unknown[0], inputs)}"
            )
        inputs |= preset
    for name, value in values.items():
        if isinstance(inputs[name], list) and isinstance(value, str):
            value = value.split()
        inputs[name] = value
    return inputs


def run_stages(
    recipe: str,
    output: str,
    values: Mapping[str, Any],
    quiet: bool = False,
    dry_run: bool = False,
    last: str | None = None,
    adjust: Callable[[Step], Step] | None = None,
) -> dict[str, StepState]:
    """Run the steps that are not done yet, in order, up to ``last``. Returns digest, seconds and result by step.

    ``adjust`` may replace each step, for example by a smaller one.

    A step runs again when its settings, an input file or an earlier step has changed; its command then refuses to
    overwrite the old output. Interrupted, the same call resumes.
    """
    steps, inputs = plan(find_recipe(recipe), output, values, last)
    if adjust:
        steps = [adjust(step) for step in steps]
    if dry_run:
        for step in steps:
            say(f"python -m {' '.join(step.words)}")
        return {}
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder / ".lock", f"running {recipe} in {folder}"):
        return _run(steps, _digest(inputs), folder, quiet)


def _run(steps: list[Step], before: str, folder: Path, quiet: bool) -> dict[str, StepState]:
    # Without it, or with a broken one, every step is checked again: its command finds what is complete.
    state: dict[str, StepState] = read_json_object(folder / STATE)
    for number, step in enumerate(steps, 1):
        words = in_processes(step, 1).words
        # A chain: the digest of a step changes with those of all earlier steps, and with them its need to run.
        before = hashlib.sha256(f"{before} {json.dumps(words)}".encode()).hexdigest()
        done = state.get(step.name)
        title = f"[{number}/{len(steps)}] {step.name}"
        if done is not None and done["digest"] == before and Path(step.output).exists():
            say(f"{title}: already complete", quiet)
            continue
        say(f"{title}: python -m {' '.join(step.words)}", quiet)
        started = time.time()
        summary = _call(step, quiet)
        state[step.name] = {
            "digest": before,
            "seconds": round(time.time() - started),
            "summary": summary,
        }
        # After every step, so that an interruption loses no more than the step that was running.
        write_json(folder / STATE, state)
    return {step.name: state[step.name] for step in steps}


def _call(step: Step, quiet: bool) -> dict[str, object]:
    """Run the command of a step in a process of its own, and return its result."""
    words = [sys.executable, "-m", *step.words, "--json"]
    if quiet:
        words.append("--quiet")
    # Standard error is inherited: progress and messages of the step appear as if it had been started by hand.
    completed = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    # Ctrl-C reaches the child, too, which ends with 130 or by the signal.
    if completed.returncode in (130, -2):
        raise KeyboardInterrupt
    if completed.returncode:
        raise TrainingFailed(
            f"step {step.name} ended with status {completed.returncode} (see above); run the same command to resume"
        )
    lines = completed.stdout.strip().splitlines()
    if not lines:
        return {}
    # The result is the last line, whatever a library has printed before.
    return json.loads(lines[-1])


def _step(
    table: Mapping[str, Any],
    common: Mapping[str, Any],
    known: Mapping[str, Any],
    folder: Path,
    source: str,
) -> Step:
    shared = common.get(str(table.get("command")), {})
    unset = {*shared.get("unset", ()), *table.get("unset", ())} - table.keys()
    settings = {**shared, **table}
    for key in ("unset", *unset):
        settings.pop(key, None)
    name = settings.pop("name", None)
    command = settings.pop("command", None)
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9_]+", name):
        raise InputError(
            f"{source}: a step's name is {name!r}; use lower-case letters, digits and _"
        )
    where = f"{source}: step {name}"
    if command not in COMMANDS:
        raise InputError(f"{where}: no command {command!r}; choose from {', '.join(COMMANDS)}")
    module, kind, ending = COMMANDS[command]
    config_class = getattr(importlib.import_module(module), kind)
    values = {key: _fill(value, known, where) for key, value in settings.items()}
    names = set()
    lists = set()
    for setting in fields(config_class):
        names.add(setting.name)
        if str(setting.type).startswith("tuple"):
            lists.add(setting.name)
    unknown = sorted(unset - names)
    if unknown:
        raise InputError(f"{where}: unset names {unknown[0]!r}, which is no setting of {command}")
    for key in lists & values.keys():
        # An item that is an input may be a list itself.
        items: list[Any] = []
        for item in _listed(values[key]):
            items.extend(_listed(item))
        values[key] = items
    values["output"] = str(folder / f"{name}{ending}")
    return Step(name, command, from_mapping(config_class, values, where), values["output"])


def _fill(value: Any, known: Mapping[str, Any], where: str) -> Any:
    """``value`` with each ``{name}`` replaced; a value that is only ``{name}`` may become a list."""
    if isinstance(value, list):
        return [_fill(item, known, where) for item in value]
    if not isinstance(value, str):
        return value
    for name in _PLACEHOLDER.findall(value):
        if name not in known:
            raise InputError(
                f"{where}: {{{name}}} is neither an input nor an earlier step.{suggest(name, known)}"
            )
    only = _PLACEHOLDER.fullmatch(value)
    if not only:
        return _PLACEHOLDER.sub(lambda match: str(known[match[1]]), value)
    replacement = known[only[1]]
    if isinstance(replacement, str) and _PLACEHOLDER.fullmatch(replacement):
        return _fill(replacement, known, where)  # an input that names an earlier step
    return replacement


def _listed(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return [value]


def _digest(inputs: Mapping[str, Any]) -> str:
    """A digest of the inputs, and of the contents of those that are files or model folders."""
    contents = {}
    for name, value in inputs.items():
        contents[name] = [_content_of(Path(str(item))) for item in _listed(value)]
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()


def _content_of(path: Path) -> str:
    if path.is_file():
        return sha256_file(path)
    if path.is_dir():
        return f"{path} {folder_digest(path)}"
    return str(path)
