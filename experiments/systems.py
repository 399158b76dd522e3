"""The systems under one budget: pre-training, fine-tuning, evaluation, a record for every row.

    python experiments/systems.py --budget gpu --data DATA --output runs/systems [--rows dupmae none ...] [--dry-run]

What is finished is not run again, and what was killed goes on: every step is a resumable command of the toolkit.
Rows, recipe and budgets: experiments/systems.toml.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import Evaluator
from prepare import base_path, prepare
from records import Record, by_row, ranked, read_records
from rows import LAST, MODES, PARTS, Experiment, Row, commands, write_recipe

from dupmae_ir.console import say
from dupmae_ir.errors import DupmaeError, InputError, UsageError
from dupmae_ir.finetune.stages import run_stages
from dupmae_ir.io.atomic import atomic_path
from dupmae_ir.models.checkpoints import folder_digest
from dupmae_ir.registry import lookup
from dupmae_ir.training import read_log


@dataclass(frozen=True)
class Driver:
    """One experiment in one folder: ``data``, ``pretrained``, ``rows``, ``eval`` and ``records`` in ``home``."""

    experiment: Experiment
    home: Path
    quiet: bool = False

    @property
    def records(self) -> Path:
        return self.home / "records"

    def record_path(self, row: Row, seed: int) -> Path:
        return self.records / f"{row.name}.seed{seed}.json"

    # ---- What is run

    def run(self, row: Row, seed: int) -> bool:
        """Make the record of a row; False where it was there."""
        path = self.record_path(row, seed)
        if path.is_file():
            return False
        say(f"{row.name}, seed {seed}", self.quiet)
        record = {"row": row.name, "table": row.table, "title": row.title, "seed": seed,
                  "budget": self.experiment.budget.name, **self._made(row, seed), "machine": machine()}
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as aside:
            aside.write_text(json.dumps(record, ensure_ascii=False) + "\n", encoding="utf-8")
        return True

    def _made(self, row: Row, seed: int) -> Record:
        if row.reference:
            return {"sets": self._reference(row)}
        if row.of:
            return self._searched_otherwise(row, seed)
        if row.best:
            source = self.placed(row.best)
            return {"from": source.name, **self._trained(source, seed, True)}
        return self._trained(row, seed, False)

    def _trained(self, row: Row, seed: int, third: bool) -> Record:
        start = self.pretrain(row.pretrained, seed) if row.pretrained else self.home / "data" / "base"
        recipe = self.row_recipe(row, seed, start)
        folder = recipe.parent
        steps = run_stages(str(recipe), str(folder), {}, self.quiet, last=LAST[third])
        model = folder / LAST[third]
        seconds = {name: step["seconds"] for name, step in steps.items()}
        tokens, updates, pretrained_in, log = self._pretraining(row.pretrained, seed)
        stages = [name for name in steps if (folder / name / "training.json").is_file() and name.startswith("stage")]
        return {
            "similarity": row.similarity, "tokens": tokens, "updates": updates,
            "seconds": {"pretrain": pretrained_in, **seconds},
            "model": {"folder": model.relative_to(self.home).as_posix(), "digest": folder_digest(model),
                      "half_bytes": half_bytes(model)},
            "losses": {"pretrain": log, **{s: read_json(folder / s / "training.json")["log"] for s in stages}},
            "commands": self._words(row, seed, recipe, LAST[third]),
            "sets": self._sets(row, model),
        }  # fmt: skip

    def pretrain(self, name: str, seed: int) -> Path:
        """The model folder of a pre-training, made where it is not there, with those it goes on from."""
        after = self.experiment.data["pretrained"][name].get("after")
        if after:
            self.pretrain(after, seed)
        recipe = self.pretraining_recipe(name, seed)
        run_stages(str(recipe), str(recipe.parent), {}, self.quiet)
        return recipe.parent / "model"

    def _pretraining(self, name: str, seed: int) -> tuple[int, int, int, list[dict[str, float]]]:
        """(tokens, updates, seconds, log) of a pre-training and what it went on from."""
        if not name:
            return 0, 0, 0, []
        before = self.experiment.data["pretrained"][name].get("after", "")
        tokens, updates, seconds, _ = self._pretraining(before, seed)
        folder = self.pretraining_recipe(name, seed).parent
        log = read_log(folder / "model" / "pretraining" / "log.jsonl")
        read = int(sum(row.get("tokens", 0) for row in log))
        told = read_json(folder / "model" / "training.json")
        return tokens + read, updates + told["steps"], seconds + told["seconds"], log

    # ---- Recipes

    def pretraining_recipe(self, name: str, seed: int) -> Path:
        places = {key: self.home / "pretrained" / f"{key}.seed{seed}" / "model"
                  for key in self.experiment.data["pretrained"]}
        data = self.home / "data"
        inputs = {"text": str(data / "pretrain.jsonl"), "demo": str(data / "demo" / "corpus.jsonl"),
                  "base": str(data / "base"), "cache": str(self.home / "cache")}
        path = places[name].parent / "recipe.toml"
        return write_recipe(path, inputs, [self.experiment.pretraining(name, seed, places)])

    def row_recipe(self, row: Row, seed: int, start: Path) -> Path:
        data = self.home / "data"
        inputs = {"model": str(start), "base_name": self.experiment.base, "teacher_base": self.experiment.base,
                  "pairs": str(data / "pairs.jsonl"), "dev": str(data / "dev.jsonl"), "pool": str(data / "pool.jsonl")}
        path = self.home / "rows" / f"{row.name}.seed{seed}" / "recipe.toml"
        return write_recipe(path, inputs, self.experiment.finetuning(row, seed))

    def plan(self, row: Row, seed: int) -> list[str]:
        """The command lines that make a row, every setting checked; nothing is run or looked at but other records."""
        if row.reference or row.of:
            return []
        source = self.placed(row.best) if row.best else row
        start = self.home / "data" / "base"
        lines = []
        if source.pretrained:
            chain = [source.pretrained]
            while after := self.experiment.data["pretrained"][chain[0]].get("after"):
                chain.insert(0, after)
            for name in chain:
                recipe = self.pretraining_recipe(name, seed)
                lines += [" ".join(s.words) for s in commands(recipe, recipe.parent)]
            start = recipe.parent / "model"
        recipe = self.row_recipe(source, seed, start)
        return lines + [" ".join(s.words) for s in commands(recipe, recipe.parent, LAST[bool(row.best)])]

    def _words(self, row: Row, seed: int, recipe: Path, last: str) -> list[str]:
        """Its commands as a reader would type them, from the folder of the experiment."""
        lines = self.plan(row, seed) if last == LAST[False] else [
            *self.plan(row, seed)[: -len(commands(recipe, recipe.parent, LAST[False]))],
            *(" ".join(s.words) for s in commands(recipe, recipe.parent, last)),
        ]
        return [line.replace(f"{self.home}/", "") for line in lines]

    # ---- Evaluation

    def _evaluator(self) -> Evaluator:
        budget = self.experiment.budget
        return Evaluator(self.experiment.data["measures"], budget.settings("encode"), budget.settings("search"))

    def _sets(self, row: Row, model: Path, **changes: Any) -> dict[str, Any]:
        evaluator, modes, parts = self._evaluator(), MODES[row.similarity], PARTS[row.similarity]
        found = {}
        for name in self.experiment.sets(row):
            folder = self._eval(model) / name / changes.get("under", "")
            index = self._eval(model) / name / "index" if changes else None
            found[name] = evaluator.model(
                self.home / "data" / name, folder, model, modes, parts, changes.get("search"), index,
                changes.get("bits", 8),
            )
        return found

    def _eval(self, model: Path) -> Path:
        # By the weights, so that a model that was trained anew is never read from an old index.
        return self.home / "eval" / f"{model.parent.name}.{model.name}.{folder_digest(model)[:8]}"

    def _reference(self, row: Row) -> dict[str, Any]:
        evaluator, folder = self._evaluator(), self.home / "eval" / row.name
        base = base_path(self.experiment.base)
        return {
            name: evaluator.bm25(self.home / "data" / name, folder / name) if row.reference == "bm25"
            else evaluator.mean_pooling(self.home / "data" / name, folder / name, base)
            for name in self.experiment.sets(row)
        }  # fmt: skip

    def _searched_otherwise(self, row: Row, seed: int) -> Record:
        source = self.experiment.rows[row.of]
        self.run(source, seed)
        kept = read_json(self.record_path(source, seed))
        sets = self._sets(source if not row.search else Row(**{**vars(source), "table": row.table}),
                          self.home / kept["model"]["folder"], under=row.name, search=row.search, bits=row.bits)
        wanted = self.experiment.sets(row)
        return {"of": row.of, "model": kept["model"], "sets": {k: v for k, v in sets.items() if k in wanted}}

    def placed(self, place: int) -> Row:
        """The system at a place on the dev pairs. Raises :class:`InputError` while systems are missing."""
        rows = [r for r in self.experiment.wanted if r.table == "systems"]
        if missing := [r.name for r in rows for s in self.experiment.seeds(r) if not self.record_path(r, s).is_file()]:
            raise InputError(f"stage 3 is for the best systems on the dev pairs; first run {' '.join(missing)}")
        return self.experiment.rows[ranked(read_records(self.records))[place - 1]]


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def half_bytes(model: Path) -> int:
    """Bytes of a model folder once its weights are float16."""
    files = [p for p in model.rglob("*") if p.is_file() and p.name != "training.json"]
    return sum(p.stat().st_size // (2 if p.suffix == ".safetensors" else 1) for p in files)


def machine() -> dict[str, str]:
    """What the seconds depend on."""
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{torch.get_num_threads()} threads"
    return {"device": device, "python": platform.python_version(), "torch": torch.__version__}


def selected(experiment: Experiment, names: list[str]) -> list[Row]:
    """The rows asked for, or all that the budget has room for; those that read other rows' records last."""
    rows = [lookup("row", name, experiment.rows) for name in names] or experiment.wanted
    return sorted(rows, key=lambda row: (bool(row.of), bool(row.best)))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", required=True, help="smoke, cores, gpu: how much of everything")
    parser.add_argument("--data", type=Path, required=True, help="the shared data: pretrain, pairs, sets in BEIR layout")
    parser.add_argument("--output", type=Path, required=True, help="models, indexes and records go to OUTPUT/BUDGET")
    parser.add_argument("--rows", nargs="*", default=[], metavar="NAME", help="these rows alone")
    parser.add_argument("--seeds", nargs="*", type=int, help="these seeds alone")
    parser.add_argument("--base", help="folder to start from instead of systems.toml's")
    parser.add_argument("--dry-run", action="store_true", help="print the commands and run nothing")
    parser.add_argument("--quiet", action="store_true")
    args = parser.parse_args(argv)
    try:
        return run(args)
    except DupmaeError as e:
        print(f"systems.py: {e}", file=sys.stderr)
        return 1


def run(args: argparse.Namespace) -> int:
    experiment = Experiment.read(args.budget, args.base)
    driver = Driver(experiment, (args.output / args.budget).absolute(), args.quiet)
    rows = selected(experiment, args.rows)
    if unknown := set(args.seeds or []) - set(experiment.budget.seeds):
        raise UsageError(f"--seeds {min(unknown)}: the budget has {experiment.budget.seeds}")
    jobs = [(row, s) for row in rows for s in experiment.seeds(row) if not args.seeds or s in args.seeds]
    if args.dry_run:
        for row, seed in jobs:
            known = not row.best or by_row_known(driver)
            print(f"# {row.name}, seed {seed}", *(driver.plan(row, seed) if known else ["# chosen later"]), sep="\n")
        return 0
    prepare(args.data, experiment.budget, experiment.base, driver.home / "data")
    for number, (row, seed) in enumerate(jobs, 1):
        state = "done" if driver.run(row, seed) else "done before"
        say(f"[{number}/{len(jobs)}] {row.name}, seed {seed}: {state}", args.quiet)
    return 0


def by_row_known(driver: Driver) -> bool:
    """Whether the systems are done, so that the best are known."""
    try:
        return bool(by_row(read_records(driver.records))) and driver.placed(1) is not None
    except InputError:
        return False


if __name__ == "__main__":
    sys.exit(main())
