"""Where the settings of a recipe come from: the comment at the end of a setting's line.

    learning_rate = 2e-5  # released code, msmarco/README.md

An origin belongs to one setting. It names the paper, its released code or another paper's text or code, or begins with
``ours:`` and the reason. What says which step it is, what the recipe does not set, and what an input or another step
supplies needs none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dupmae_ir.config import read_toml

_LINE = re.compile(r"(?P<name>\w+) = (?P<value>[^#]*[^# ])(?:  # (?P<origin>.+))?")
_ORIGIN = re.compile(r"(paper|released code|[\w-]+'s (paper|code)|ours: )")
_INPUT = re.compile(r'\[?"\{(\w+)\}"\]?')
_RESOURCE = re.compile(r'\[?"(model|file|collection):[^"]*"\]?')
_DESCRIBING = ("name", "command", "method", "format", "task", "by", "download")
"""Settings that say which step it is."""


@dataclass
class _Table:
    """One table of a recipe: its name, and the value and origin of each setting as they are written."""

    name: str
    settings: dict[str, tuple[str, str]] = field(default_factory=dict)


def _tables(recipe: Path) -> Iterator[_Table]:
    table = _Table("")
    for line in recipe.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            yield table
            table = _Table(line.strip("[]"))
        elif found := _LINE.fullmatch(line):
            table.settings[found["name"]] = (found["value"], found["origin"] or "")
    yield table


def missing_origins(recipe: Path) -> Iterator[str]:
    """Settings of ``recipe`` without an origin, or with one that names no source and no reason."""
    tables = list(_tables(recipe))
    varying = {n for table in tables if table.name.startswith("presets.") for n in table.settings}
    for table in tables:
        step = table.settings["name"][0] if table.name == "step" else table.name
        where = step.removeprefix("common.").strip('"')
        for name, (value, origin) in table.settings.items():
            if origin and not _ORIGIN.match(origin):
                yield f"{recipe.stem}, {where}: the origin of {name} names no source and no reason: {origin}"
            elif not origin and not (table.name == "inputs" and name in varying):
                if not _needs_none(table, name, value):
                    yield f"{recipe.stem}, {where}: {name} = {value} has no origin at the end of its line"


def _needs_none(table: _Table, name: str, value: str) -> bool:
    if table.name.startswith("presets."):
        return False
    supplied = _INPUT.fullmatch(value) or _RESOURCE.fullmatch(value) or value == "["
    return bool(supplied) or name in (*_DESCRIBING, "unset", "preset")


def stated_origins(recipe: Path) -> dict[str, dict[str, str]]:
    """Step -> setting -> its origin; the step's own before that of all steps of a command."""
    tables = list(_tables(recipe))
    data = read_toml(recipe)
    inputs = _origins_of_inputs(tables)
    common: dict[str, dict[str, str]] = {}
    steps: dict[str, dict[str, str]] = {}
    for table in tables:
        if table.name.startswith("common."):
            command = table.name.removeprefix("common.").strip('"')
            common[command] = _of_table(table, inputs, data["common"][command].get("unset", ()))
    for step, table in zip(
        data["step"], [table for table in tables if table.name == "step"], strict=True
    ):
        own = _of_table(table, inputs, step.get("unset", ()))
        steps[step["name"]] = {**common.get(step["command"], {}), **own}
    return steps


def _of_table(table: _Table, inputs: Mapping[str, str], unset: list[str]) -> dict[str, str]:
    origins = dict.fromkeys(unset, "not used")
    for name, (value, origin) in table.settings.items():
        if found := _INPUT.fullmatch(value):
            origins[name] = inputs.get(found[1], f"the step {found[1]}")
        else:
            origins[name] = origin or "what the step is"
    return origins


def _origins_of_inputs(tables: list[_Table]) -> dict[str, str]:
    """Input -> its origin, or those of the presets that set it."""
    found: dict[str, list[str]] = {}
    for table in tables:
        if table.name == "inputs":
            for name, (_, origin) in table.settings.items():
                found[name] = [origin] if origin else []
        elif table.name.startswith("presets."):
            preset = table.name.removeprefix("presets.")
            for name, (_, origin) in table.settings.items():
                found.setdefault(name, []).append(f"{preset}: {origin}")
    return {name: "; ".join(origins) or "the recipe's input" for name, origins in found.items()}
