"""Compare the methods under one budget: pre-train, fine-tune, evaluate, and write a record for every row.

    python experiments/systems.py --budget gpu --data DATA --output runs/systems [--rows dupmae none ...] [--dry-run]

Finished rows are skipped and interrupted ones resumed: every step is a resumable command of the toolkit. Rows, recipe
and budgets are in experiments/systems.toml.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import FUSIONS, Evaluator
from prepare import base_path, prepare
from records import Record, ranked, read_records
from rows import LAST, MODES, PARTS, Experiment, Row, commands, write_recipe

from dupmae_ir.console import guarded, say
from dupmae_ir.device import processor
from dupmae_ir.errors import DupmaeError, InputError, UsageError
from dupmae_ir.finetune.stages import run_stages
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.models.checkpoints.layout import folder_digest
from dupmae_ir.models.names import embedded_folder
from dupmae_ir.registry import lookup
from dupmae_ir.training.trained import read_log


@dataclass(frozen=True)
class Driver:
    """Runs one experiment in the folder ``home``: ``data``, ``pretrained``, ``rows``, ``eval`` and ``records``."""

    experiment: Experiment
    home: Path
    quiet: bool = False

    @property
    def records(self) -> Path:
        """Folder of the records."""
        return self.home / "records"

    def record_path(self, row: Row, seed: int) -> Path:
        """Path of the record of a row and seed, whether it exists or not."""
        return self.records / f"{row.name}.seed{seed}.json"

    # ---- Running rows

    def run(self, row: Row, seed: int) -> bool:
        """Write the record of a row. Returns False if it existed already."""
        path = self.record_path(row, seed)
        if path.is_file():
            return False
        say(f"{row.name}, seed {seed}", self.quiet)
        place = list(self.experiment.rows).index(row.name)
        record = {
            "row": row.name,
            "place": place,
            "table": row.table,
            "title": row.title,
            "seed": seed,
            "budget": self.experiment.budget.name,
            "machine": machine(),
            **self._made(row, seed),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as f:
            f.write(json.dumps(record, ensure_ascii=False) + "\n")
        return True

    def _made(self, row: Row, seed: int) -> Record:
        if row.reference:
            return {"sets": self._reference(row)}
        if row.of:
            return self._variant(row, seed)
        if row.best:
            source = self.placed(row.best)
            return {
                "from": source.name,
                "title": f"{source.title}, stage 3",
                **self._trained(source, seed, True),
            }
        return self._trained(row, seed, False)

    def _trained(self, row: Row, seed: int, third: bool) -> Record:
        start = (
            self.pretrain(row.pretrained, seed)
            if row.pretrained
            else self.home / "data" / row.start
        )
        recipe = self.row_recipe(row, seed, start)
        folder = recipe.parent
        steps = run_stages(str(recipe), str(folder), {}, self.quiet, last=LAST[third])
        model = folder / LAST[third]
        seconds = {name: step["seconds"] for name, step in steps.items()}
        tokens, updates, pretrained_in, log = self._pretraining(row.pretrained, seed)
        stages = [
            name
            for name in steps
            if (folder / name / "training.json").is_file() and name.startswith("stage")
        ]
        return {
            "similarity": row.similarity,
            "adapted": self._adapted(row),
            "tokens": tokens,
            "updates": updates,
            "seconds": {"pretrain": pretrained_in, **seconds},
            "model": {
                "folder": model.relative_to(self.home).as_posix(),
                "digest": folder_digest(model),
                "half_bytes": half_bytes(model),
            },
            "losses": {
                "pretrain": log,
                **{s: read_json(folder / s / "training.json")["log"] for s in stages},
            },
            "commands": [line.replace(f"{self.home}/", "") for line in self.plan(row, seed, third)],
            "sets": self._sets(row, model),
        }

    def pretrain(self, name: str, seed: int) -> Path:
        """Run a pre-training, after those that it continues, unless it is complete. Returns the model folder."""
        after = self.experiment.data["pretrained"][name].get("after")
        if after:
            self.pretrain(after, seed)
        recipe = self.pretraining_recipe(name, seed)
        model = recipe.parent / "model"
        run_stages(str(recipe), str(recipe.parent), {}, self.quiet)
        return model

    def _pretraining(self, name: str, seed: int) -> tuple[int, int, int, list[dict[str, float]]]:
        """(tokens, updates, seconds, log) of a pre-training, including the one that it continues."""
        if not name:
            return 0, 0, 0, []
        before = self.experiment.data["pretrained"][name].get("after", "")
        tokens, updates, seconds, _ = self._pretraining(before, seed)
        folder = self.pretraining_recipe(name, seed).parent
        log = read_log(folder / "model" / "pretraining" / "log.jsonl")
        read = int(sum(row.get("tokens", 0) for row in log))
        training = read_json(folder / "model" / "training.json")
        return tokens + read, updates + training["steps"], seconds + training["seconds"], log

    # ---- Recipes

    def pretraining_recipe(self, name: str, seed: int) -> Path:
        """Write the recipe of a pre-training. Returns its path."""
        places = {
            key: self.home / "pretrained" / f"{key}.seed{seed}" / "model"
            for key in self.experiment.data["pretrained"]
        }
        data = self.home / "data"
        target = data / self.experiment.budget.adapt / "corpus.jsonl"
        inputs = {
            "text": str(data / "pretrain.jsonl"),
            "target": str(target),
            "base": str(data / "base"),
            "base_name": self.experiment.base,
            "scratch": str(data / "scratch"),
            "cache": str(self.home / "cache"),
        }
        path = places[name].parent / "recipe.toml"
        return write_recipe(path, inputs, [self.experiment.pretraining(name, seed, places)])

    def row_recipe(self, row: Row, seed: int, start: Path) -> Path:
        """Write the recipe of a row's fine-tuning from the model ``start``. Returns its path."""
        data = self.home / "data"
        inputs = {
            "model": str(start),
            "base_name": self.experiment.base,
            "teacher_base": self.experiment.base,
            "pairs": str(data / "pairs.jsonl"),
            "dev": str(data / "dev.jsonl"),
            "pool": str(data / "pool.jsonl"),
        }
        path = self.home / "rows" / f"{row.name}.seed{seed}" / "recipe.toml"
        return write_recipe(path, inputs, self.experiment.finetuning(row, seed))

    def plan(self, row: Row, seed: int, third: bool = False) -> list[str]:
        """The command lines that train a row, with all settings checked; nothing is run."""
        if row.reference or row.of or row.best:
            return []
        lines = []
        start = self.home / "data" / row.start
        for name in self._chain(row.pretrained):
            recipe = self.pretraining_recipe(name, seed)
            lines += commands(recipe, recipe.parent)
            start = recipe.parent / "model"
        recipe = self.row_recipe(row, seed, start)
        return [
            " ".join(step.words) for step in [*lines, *commands(recipe, recipe.parent, LAST[third])]
        ]

    def _chain(self, name: str) -> list[str]:
        """A pre-training and those that it continues, the earliest first."""
        return (
            [*self._chain(self.experiment.data["pretrained"][name].get("after", "")), name]
            if name
            else []
        )

    def _adapted(self, row: Row) -> str:
        """The collection whose text was used in pre-training, or ""; its scores are not zero-shot."""
        return self.experiment.budget.adapt if len(self._chain(row.pretrained)) > 1 else ""

    # ---- Evaluation

    def _evaluator(self) -> Evaluator:
        budget = self.experiment.budget
        return Evaluator(
            self.experiment.data["measures"], budget.settings("encode"), budget.settings("search")
        )

    def _sets(
        self,
        row: Row,
        model: Path,
        under: str = "",
        search: dict[str, Any] | None = None,
        bits: int = 8,
    ) -> dict[str, Any]:
        """Scores of a model on all sets. ``under``: subfolder of a variant that reuses the index of its source row."""
        evaluator = self._evaluator()
        modes = MODES[row.similarity]
        parts = PARTS[row.similarity]
        found = {}
        for name in self.experiment.budget.sets:
            folder = self._eval(model) / name
            index = folder / "index" if under else None
            found[name] = evaluator.model(
                self.home / "data" / name, folder / under, model, modes, parts, search, index, bits
            )
        return found

    def _eval(self, model: Path) -> Path:
        # Named by weights and settings, so that an index of another model is never reused.
        key = json.dumps(
            [
                folder_digest(model),
                *(self.experiment.budget.settings(s) for s in ("encode", "search")),
            ]
        )
        digest = hashlib.sha256(key.encode()).hexdigest()
        return self.home / "eval" / f"{model.parent.name}.{model.name}.{digest[:8]}"

    def _reference(self, row: Row) -> dict[str, Any]:
        if row.reference == "embedded":
            return self._sets(row, embedded_folder())
        evaluator = self._evaluator()
        folder = self.home / "eval" / row.name
        base = base_path(self.experiment.base)
        if row.reference in FUSIONS:
            return self._fusion(evaluator, row.reference, folder)
        return {
            name: evaluator.bm25(self.home / "data" / name, folder / name)
            if row.reference == "bm25"
            else evaluator.mean_pooling(self.home / "data" / name, folder / name, base)
            for name in self.experiment.budget.sets
        }

    def _fusion(self, evaluator: Evaluator, method: str, folder: Path) -> dict[str, Any]:
        """Scores of the runs of BM25 and of the embedded model's vectors, fused."""
        rows = {row.reference: row for row in self.experiment.rows.values()}
        for kind in ("bm25", "embedded"):
            self._reference(rows[kind])
        words = self.home / "eval" / rows["bm25"].name
        vectors = self._eval(embedded_folder())
        found = {}
        for name in self.experiment.budget.sets:
            bm25 = words / name / "bm25.trec"
            dense = vectors / name / "dense.trec"
            found[name] = evaluator.fused(
                self.home / "data" / name, folder / name, bm25, dense, method
            )
        return found

    def _variant(self, row: Row, seed: int) -> Record:
        source = self.experiment.rows[row.of]
        self.run(source, seed)
        kept = read_json(self.record_path(source, seed))
        model = self.home / kept["model"]["folder"]
        sets = self._sets(source, model, row.name, row.search, row.bits)
        return {"of": row.of, "model": kept["model"], "sets": sets}

    def placed(self, place: int) -> Row:
        """The method ranked ``place`` on the dev pairs. Raises :class:`InputError` if a method has no record."""
        rows = [r for r in self.experiment.wanted if r.table == "systems"]
        if missing := [
            r.name
            for r in rows
            for s in self.experiment.seeds(r)
            if not self.record_path(r, s).is_file()
        ]:
            raise InputError(
                f"stage 3 is for the best systems on the dev pairs; first run {' '.join(missing)}"
            )
        return self.experiment.rows[ranked(read_records(self.records))[place - 1]]


def read_json(path: Path) -> Any:
    """The contents of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def half_bytes(model: Path) -> int:
    """Bytes of a model folder with its weights stored in float16."""
    files = [p for p in model.rglob("*") if p.is_file() and p.name != "training.json"]
    return sum(p.stat().st_size // (2 if p.suffix == ".safetensors" else 1) for p in files)


def machine() -> dict[str, str]:
    """Device and versions, on which the seconds in a record depend."""
    import torch

    threads = torch.get_num_threads()
    cores = f"{processor()}, {threads} thread{'s' if threads > 1 else ''}"
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else cores
    return {"device": device, "python": platform.python_version(), "torch": torch.__version__}


def selected(experiment: Experiment, names: list[str]) -> list[Row]:
    """The named rows, or all rows of the budget; those that read other rows' records come last."""
    rows = [lookup("row", name, experiment.rows) for name in names] or experiment.wanted
    return sorted(rows, key=lambda row: (bool(row.of), bool(row.best)))


def main(argv: list[str] | None = None) -> int:
    """Parse the flags and run. Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--budget",
        required=True,
        help="table of systems.toml that sets the amounts: smoke, cores, gpu or embedded",
    )
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        help="folder with pretrain/, pairs/ and the test collections",
    )
    parser.add_argument(
        "--output", type=Path, required=True, help="models, indexes and records go to OUTPUT/BUDGET"
    )
    parser.add_argument("--rows", nargs="*", default=[], metavar="NAME", help="run only these rows")
    parser.add_argument("--seeds", nargs="*", type=int, help="run only these seeds")
    parser.add_argument("--base", help="model folder to start from (default: base in systems.toml)")
    parser.add_argument("--dry-run", action="store_true", help="print the commands and run nothing")
    parser.add_argument("--quiet", action="store_true")
    args = parser.parse_args(argv)
    return guarded(lambda: run(args), "systems.py")


def run(args: argparse.Namespace) -> int:
    """Run the rows of the experiment. Returns 1 if any of them failed."""
    experiment = Experiment.read(args.budget, args.base)
    driver = Driver(experiment, (args.output / args.budget).absolute(), args.quiet)
    rows = selected(experiment, args.rows)
    unknown = set(args.seeds or []) - set(experiment.budget.seeds)
    if unknown:
        raise UsageError(f"--seeds {min(unknown)}: the budget has {experiment.budget.seeds}")
    jobs = []
    for row in rows:
        seeds = experiment.seeds(row)
        jobs += [(row, seed) for seed in seeds if not args.seeds or seed in args.seeds]
    if args.dry_run:
        for row, seed in jobs:
            print(f"# {row.name}, seed {seed}", *driver.plan(row, seed), sep="\n")
        return 0
    prepare(args.data, experiment.budget, experiment.base, driver.home / "data")
    failed = []
    for number, (row, seed) in enumerate(jobs, 1):
        try:
            state = "done" if driver.run(row, seed) else "done before"
        except DupmaeError as e:
            # A failed row does not stop the others.
            state = f"failed: {e}"
            failed.append(f"{row.name}, seed {seed}")
        say(
            f"[{number}/{len(jobs)}] {row.name}, seed {seed}: {state}",
            args.quiet and "failed" not in state,
        )
    if failed:
        say(
            f"{len(failed)} of {len(jobs)} failed: {'; '.join(failed)}; run the same command to try them again"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
