"""The rows of systems.toml, their settings, and the commands that train them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dupmae_ir.config import from_mapping, read_toml
from dupmae_ir.errors import InputError
from dupmae_ir.finetune.stages import Step, plan
from dupmae_ir.registry import lookup

FILE = Path(__file__).with_name("systems.toml")
MODES = {"sum": ("dense", "impact", "hybrid"), "cls": ("dense",), "ot": ("impact",)}
"""Similarity of a row -> modes in which its model is searched."""
PARTS = {"sum": "cls,ot", "cls": "cls", "ot": "ot"}
LAST = {True: "stage3", False: "stage2"}


@dataclass(frozen=True)
class Row:
    """One row of a table. At most one of ``reference``, ``of`` and ``best`` is set; a row without them is trained."""

    name: str
    table: str
    title: str
    start: str = (
        "base"  #: starting point: base, or scratch (the same architecture with random weights)
    )
    pretrained: str = ""  #: key of ``[pretrained]``; empty = no pre-training
    stage: dict[str, Any] = field(default_factory=dict)  #: settings of every fine-tuning stage
    search: dict[str, Any] = field(default_factory=dict)
    #: bm25; mean: the base's mean-pooled vectors; rrf, min-max: these two fused; embedded: the package's model
    reference: str = ""
    of: str = ""  #: the row whose finished model is searched or stored with other settings
    bits: int = 8  #: bits of an impact
    best: int = (
        0  #: rank among the methods, on the dev pairs, of the row that this one adds stage 3 to
    )

    @property
    def similarity(self) -> str:
        """The similarity that the row is fine-tuned with: sum, cls or ot."""
        return str(self.stage.get("similarity", "sum"))


@dataclass(frozen=True)
class Budget:
    """Amounts of data and training; see the end of systems.toml."""

    name: str
    seeds: list[int]
    sets: list[str]
    adapt: str  #: the set whose text domain adaptation uses
    text: list[str]  #: files of pretrain/, without their endings
    texts: int  #: sampled from them; 0 = all
    queries: int
    dev_queries: int
    others: int
    tables: list[str] = field(default_factory=list)  #: tables that are run; empty = all
    left_out: list[str] = field(default_factory=list)  #: steps of the fine-tuning that are not run
    steps: dict[str, dict[str, Any]] = field(
        default_factory=dict
    )  #: settings by step, ``stage``, encode, search

    def settings(self, step: str) -> dict[str, Any]:
        """The budget's settings of a step; empty if it has none."""
        return dict(self.steps.get(step, {}))


@dataclass(frozen=True)
class Experiment:
    """systems.toml under one budget."""

    data: Mapping[str, Any]
    budget: Budget
    base: str  #: minilm, or a folder

    @classmethod
    def read(cls, budget: str, base: str | None = None, path: Path = FILE) -> Experiment:
        """Read systems.toml. Raises :class:`InputError` or :class:`UnknownName` for unknown settings and budgets."""
        data = read_toml(path)
        steps = dict(lookup("budget", budget, data["budgets"]))
        scalars = {k: steps.pop(k) for k in list(steps) if not isinstance(steps[k], dict)}
        scalars = {"sets": data["sets"], "text": data["text"], **scalars}
        made = from_mapping_loosely(
            Budget, {"name": budget, "steps": steps, **scalars}, f"{path}: budget {budget}"
        )
        return cls(data, made, base or str(data["base"]))

    @property
    def rows(self) -> dict[str, Row]:
        """All rows by name, in the file's order."""
        return {
            name: from_mapping_loosely(Row, {"name": name, **settings}, f"row {name}")
            for name, settings in self.data["rows"].items()
        }

    @property
    def wanted(self) -> list[Row]:
        """The rows of the budget's tables, in the file's order."""
        tables = self.budget.tables
        return [row for row in self.rows.values() if not tables or row.table in tables]

    def seeds(self, row: Row) -> list[int]:
        """The seeds that a row runs with: all for a method, the first for any other row."""
        return self.budget.seeds if row.table == "systems" else self.budget.seeds[:1]

    def pretraining(self, name: str, seed: int, places: Mapping[str, Any]) -> dict[str, Any]:
        """The single step of a pre-training, for :func:`write_recipe`."""
        own = dict(lookup("pre-training", name, self.data["pretrained"]))
        after = own.pop("after", "")
        texts = own.pop("share_of_texts", 1)
        updates = own.pop("share_of_updates", 1)
        step = {**self.data["pretrain"], **self.budget.settings("pretrain"), **own, "seed": seed}
        step["batch_size"] = max(1, round(step["batch_size"] * texts))
        every = int(step["log_steps"])
        # A multiple of the logging interval, so that the log counts all tokens.
        step["steps"] = max(every, round(step["steps"] * updates / every) * every)
        if after:
            del step["model"]
            step["init_from"] = str(places[after])
        return {"name": "model", "command": "pretrain", **step, "cache": "{cache}"}

    def finetuning(self, row: Row, seed: int) -> list[dict[str, Any]]:
        """The steps of a row's fine-tuning, for :func:`write_recipe`."""
        steps = []
        for common in self.data["step"]:
            if common["name"] in self.budget.left_out:
                continue
            step = dict(common)
            if step["command"] == "finetune":
                step |= (
                    self.budget.settings("stage") | self.budget.settings(step["name"]) | row.stage
                )
                step["seed"] = seed
            else:
                step |= self.budget.settings(step["name"])
            if step["command"] == "finetune.mine" and step.get("by") != "bm25":
                step["parts"] = {"sum": "hybrid", "cls": "dense", "ot": "impact"}[row.similarity]
            if step["command"] == "finetune.cross_encoder":
                step["seed"] = seed
            # "" takes a setting of the shared recipe away.
            steps.append({name: value for name, value in step.items() if value != ""})
        return steps


def from_mapping_loosely(kind: Any, values: Mapping[str, Any], where: str) -> Any:
    """A dataclass with ``values``, whose types are not checked. Raises :class:`InputError` for an unknown name."""
    known = set(kind.__dataclass_fields__)
    unknown = sorted(set(values) - known)
    if unknown:
        raise InputError(
            f"{where}: no setting named {unknown[0]!r}; there are {', '.join(sorted(known))}"
        )
    return kind(**values)


def write_recipe(path: Path, inputs: Mapping[str, Any], steps: list[dict[str, Any]]) -> Path:
    """Write a recipe for ``dupmae-ir finetune --recipe``, so that a row can be retrained without the driver."""
    text = json.dumps(steps)
    # An unused input would cause needless reruns when it changes. {start} is the model.
    used = {
        k: v
        for k, v in inputs.items()
        if f"{{{k}}}" in text or (k == "model" and "{start}" in text)
    }
    tables = [("[inputs]", used), *(("[[step]]", step) for step in steps)]
    # JSON's strings, numbers, lists and booleans are TOML's too.
    lines = [
        line
        for head, values in tables
        for line in (
            head,
            *(f"{k} = {json.dumps(v, ensure_ascii=False)}" for k, v in values.items()),
            "",
        )
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def commands(recipe: Path, folder: Path, last: str | None = None) -> list[Step]:
    """The recipe's steps, with all settings checked; nothing is run."""
    return plan(recipe, folder, {}, last)[0]


def checked(kind: Any, where: str, **settings: Any) -> Any:
    """A command's settings. Raises :class:`InputError`, prefixed with ``where``, for a wrong name or type."""
    return from_mapping(kind, settings, where)
