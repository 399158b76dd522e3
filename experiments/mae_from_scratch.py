"""Masked auto-encoding from scratch: the registered experiment of experiments/mae-from-scratch.md, as resumable steps.

    python experiments/mae_from_scratch.py --data DATA --output runs/mae-from-scratch [--jobs 2] [--only stage0 stage1]

Each step is one command: a vocabulary, masked LM from scratch (stage 0), a branch of pre-training (stage 1), a
fine-tuning (stage 2), or the read-outs of a model. A finished step is skipped. A killed step continues from its last
checkpoint when the same command is run again, and `--jobs N` runs N processes at a time.
`--list` prints the steps and their states. The results are JSON records in OUTPUT/records; experiments/mae_tables.py
turns them into tables and the decision.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dupmae_ir.config import flags, from_mapping, read_toml
from dupmae_ir.console import guarded, say
from dupmae_ir.errors import DupmaeError, InputError
from dupmae_ir.finetune.config import FinetuneConfig
from dupmae_ir.finetune.mine import MineConfig
from dupmae_ir.finetune.score import ScoreConfig
from dupmae_ir.pretrain.config import PretrainConfig
from dupmae_ir.pretrain.tokenizer import TokenizerConfig

HERE = Path(__file__).resolve().parent
SETTINGS = HERE / "mae_from_scratch.toml"
SMOKE = "smoke"
STORED = HERE / "checkpoints"
"""Checkpoints of stages 0 and 1 that are restored instead of trained (mae_checkpoint.py)."""


@dataclass(frozen=True)
class Step:
    """One command. ``done`` is the file that exists once it has finished; ``after`` names the steps that it needs.

    ``words`` is called when these have finished, because the settings of a step may depend on their results.
    """

    name: str
    done: Path
    words: Callable[[], list[str]]
    after: tuple[str, ...] = ()
    processes: int = 1  #: that it runs in


class Plan:
    """The steps of the experiment, in the order in which they are started.

    Args:
        settings: the contents of mae_from_scratch.toml.
        data: folder with pretrain/, pairs/ and the test collections.
        output: folder of all results.
        threads: threads of a step.
        stored: folder of checkpoints that are restored instead of trained.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        data: Path,
        output: Path,
        threads: int = 1,
        stored: Path | None = None,
    ) -> None:
        self.settings = settings
        self.data = data
        self.output = output
        self.threads = threads
        self.stored = stored
        self.home = output / "runs"
        self.records = output / "records"

    def steps(self) -> list[Step]:
        """All steps. A second seed of stage 0 and its branches come last."""
        methods = self.settings["methods"]
        seeds = self.settings["stage0"]["seeds"]
        steps = [self._data(), self._tokenizer()]
        for seed in seeds:
            here = [name for name, m in methods.items() if seed in m["seeds"]]
            steps.append(self._stage0(seed))
            steps += self._tuning() if seed == seeds[0] else []
            steps += [self._stage1(name, seed) for name in here if name != "none"]
            steps += [self._readout(name, seed) for name in here]
            for size, amounts in self.settings["sizes"].items():
                tuned = [name for name in here if self._is_tuned(name, seed, size)]
                for name, again in itertools.product(tuned, amounts["seeds"]):
                    steps += [
                        self._stage2(name, seed, size, again),
                        self._readout(name, seed, size, again),
                    ]
        return steps + self._small(seeds[0])

    def _is_tuned(self, method: str, seed: int, size: str) -> bool:
        """Whether the method's model of this seed is fine-tuned on ``size`` pairs."""
        sizes = self.settings["methods"][method].get("sizes", self.settings["sizes"])
        models = self.settings["sizes"][size].get("only")
        if size not in sizes:
            return False
        return models is None or self.model_name(method, seed) in models

    # ---- Names of models

    def model(self, method: str, seed: int, size: str = "", again: int = 0) -> Path:
        """The folder of a pre-trained model, or of the one fine-tuned on ``size`` pairs with the seed ``again``."""
        return self.home / self.model_name(method, seed, size, again)

    @staticmethod
    def model_name(method: str, seed: int, size: str = "", again: int = 0) -> str:
        """The step that makes a model."""
        if size:
            return f"stage2.{method}.{size}.seed{seed}.{again}"
        return f"stage0.seed{seed}" if method == "none" else f"stage1.{method}.seed{seed}"

    # ---- Steps

    def _data(self) -> Step:
        script = [
            sys.executable,
            str(HERE / "mae_data.py"),
            str(self.data),
            str(self.output / "data"),
        ]
        settings = {name: self.settings[name] for name in ("left_out", "dev", "collections")}
        settings["mined"] = self.settings["small"]["pairs"]
        return Step(
            "data", self.output / "data" / "data.json", lambda: [*script, json.dumps(settings)]
        )

    def _tokenizer(self) -> Step:
        folder = self.output / "tokenizer"
        config = {
            **self.settings["tokenizer"],
            "corpus": self._text(general=False),
            "output": str(folder),
        }
        return self._command(
            "tokenizer", folder / "made.json", "pretrain.tokenizer", TokenizerConfig, lambda: config
        )

    def _stage0(self, seed: int) -> Step:
        name = self.model_name("none", seed)
        tokenizer = self.output / "tokenizer"
        own = {k: v for k, v in self.settings["stage0"].items() if k != "seeds"}
        own["batch_size"] *= own["processes"]  # registered for one process
        start = {"from_config": str(tokenizer / "config.json"), "tokenizer": str(tokenizer)}
        config = self._pretraining(name, seed, general=True) | own | start
        return self._trained(name, config, ("tokenizer",), self.settings["stage0"]["processes"])

    def _stage1(self, method: str, seed: int) -> Step:
        name = self.model_name(method, seed)
        start = self.model_name("none", seed)
        own = {
            k: v
            for k, v in self.settings["methods"][method].items()
            if k not in ("title", "seeds", "sizes")
        }
        config = self._pretraining(name, seed, general=False) | self.settings["stage1"] | own
        return self._trained(name, config | {"model": str(self.home / start)}, (start,))

    def _pretraining(self, name: str, seed: int, general: bool) -> dict[str, Any]:
        places = {
            "corpus": self._text(general),
            "output": str(self.home / name),
            "cache": str(self.output / "cache"),
        }
        fixed = {"seed": seed, "threads": self.threads, "report_to": ["none"], "quiet": True}
        return self.settings["pretrain"] | places | fixed

    def _trained(
        self, name: str, config: dict[str, Any], after: tuple[str, ...], processes: int = 1
    ) -> Step:
        done = self.home / name / "training.json"
        if self.stored and (self.stored / name).is_dir():
            words = [
                sys.executable,
                str(HERE / "mae_checkpoint.py"),
                "restore",
                str(self.stored / name),
            ]
            return Step(name, done, lambda: [*words, str(self.home / name)])
        return self._command(
            name, done, "pretrain", PretrainConfig, lambda: config, after, processes
        )

    def _stage2(self, method: str, seed: int, size: str, again: int) -> Step:
        name = self.model_name(method, seed, size, again)
        start = self.model_name(method, seed)
        amounts = self._amounts(size)
        after = (
            start,
            "data",
            *(step.name for step in self._tuning() if step.name.startswith("readout")),
        )

        def config() -> dict[str, Any]:
            return self._finetuning(name, start, again) | amounts | self.chosen()

        return self._command(
            name, self.home / name / "training.json", "finetune", FinetuneConfig, config, after
        )

    def _amounts(self, size: str) -> dict[str, Any]:
        """The settings of fine-tuning on ``size`` pairs."""
        amounts = self.settings["sizes"][size]
        return {k: v for k, v in amounts.items() if k not in ("seeds", "only")}

    def _tuning(self) -> list[Step]:
        """Fine-tunings of the checkpoint of stage 0 with each pair of a learning rate and a temperature."""
        tune = self.settings["tune"]
        start = self.model_name("none", self.settings["stage0"]["seeds"][0])
        steps = []
        for rate, temperature in itertools.product(tune["learning_rate"], tune["temperature"]):
            name = f"tune.{rate:g}.{temperature:g}"
            values = {"learning_rate": rate, "temperature": temperature}
            own = values | {"limit": tune["limit"], "steps": tune["steps"]}
            config = self._finetuning(name, start, tune["seed"]) | own
            done = self.home / name / "training.json"
            steps.append(
                self._command(
                    name, done, "finetune", FinetuneConfig, lambda c=config: c, (start, "data")
                )
            )
            extra = ["--sets", "dev", "--settings", json.dumps(values)]
            steps.append(self._reading(f"readout.{name}", self.home / name, name, extra))
        return steps

    def _small(self, seed: int) -> list[Step]:
        """Three stages from one checkpoint with both parts, OT alone, and the read-outs of all."""
        small = self.settings["small"]
        runs = self.home
        pairs = str(self.output / "data" / "mined.jsonl")
        start = self.model_name(small["start"], seed)
        mined = str(runs / "small.negatives.jsonl")
        scores = str(runs / "small.opinions.jsonl")

        def tuned(name: str, start: str, own: Mapping[str, Any], after: str) -> list[Step]:
            config = self._finetuning(name, start, 0) | small["finetune"] | own
            config = {k: v for k, v in config.items() if k != "pairs" or "mined" not in own}
            done = runs / name / "training.json"
            step = self._command(
                name, done, "finetune", FinetuneConfig, lambda: config, (start, after)
            )
            words = ["--settings", json.dumps({"step": name}), "--sets"]
            sets = ("dev", *self.settings["collections"])
            return [
                step,
                *(
                    self._reading(f"readout.{name}.{s}", runs / name, name, [*words, s])
                    for s in sets
                ),
            ]

        negatives = {
            "pairs": [pairs],
            "output": mined,
            "model": str(runs / "small.stage1"),
            **small["mine"],
        }
        opinions = {"mined": mined, "output": scores, **small["score"]}
        second = {**small["stage2"], "calibrate": False, "mined": mined}
        third = {**small["stage3"], "calibrate": False, "mined": mined, "scores": scores}
        return [
            *tuned("small.stage1", start, small["stage1"], "data"),
            self._quick(
                "small.negatives",
                Path(mined),
                "finetune.mine",
                MineConfig,
                negatives,
                "small.stage1",
            ),
            *tuned("small.stage2", "small.stage1", second, "small.negatives"),
            self._quick(
                "small.opinions",
                Path(scores),
                "finetune.score",
                ScoreConfig,
                opinions,
                "small.negatives",
            ),
            *tuned("small.stage3", "small.stage2", third, "small.opinions"),
            *tuned("small.ot", start, {**small["stage1"], "similarity": "ot"}, "data"),
        ]

    def _quick(
        self, name: str, done: Path, verb: str, kind: type, own: Mapping[str, Any], after: str
    ) -> Step:
        config = {"threads": self.threads, "quiet": True, **own}
        return self._command(name, done, verb, kind, lambda: config, (after,))

    def _finetuning(self, name: str, start: str, seed: int) -> dict[str, Any]:
        pairs = [str(self.output / "data" / "pairs.jsonl")]
        places = {"model": str(self.home / start), "pairs": pairs, "output": str(self.home / name)}
        fixed = {"seed": seed, "threads": self.threads, "report_to": ["none"], "quiet": True}
        return self.settings["finetune"] | places | fixed

    def chosen(self) -> dict[str, float]:
        """The learning rate and temperature whose [CLS] has the best nDCG@10 on the dev pairs."""
        records = [
            json.loads(p.read_text(encoding="utf-8"))
            for p in sorted(self.records.glob("readout.tune.*.json"))
        ]
        if not records:
            raise InputError(f"{self.records}: no records of tuning; run the steps tune first")
        best = max(records, key=lambda r: r["sets"]["dev"]["scores"]["cls"]["nDCG@10"])
        return dict(best["settings"])

    def _readout(self, method: str, seed: int, size: str = "", again: int = 0) -> Step:
        model = self.model_name(method, seed, size, again)
        values = {"method": method, "seed": seed, "size": int(size or 0), "again": again}
        extra = [
            "--sets",
            "dev",
            *self.settings["collections"],
            "--parts",
            "cls",
            "--settings",
            json.dumps(values),
        ]
        return self._reading(
            f"readout.{model}", self.home / model, model, extra if size else [*extra, "--probe"]
        )

    def _reading(self, name: str, model: Path, after: str, extra: list[str]) -> Step:
        record = self.records / f"{name}.json"
        readouts = self.settings["readouts"]
        words = [
            sys.executable,
            str(HERE / "mae_readouts.py"),
            "--model",
            str(model),
            "--record",
            str(record),
        ]
        words += [
            "--data",
            str(self.data),
            "--prepared",
            str(self.output / "data"),
            "--threads",
            str(self.threads),
        ]
        words += [
            "--probe-texts",
            str(readouts["probe_texts"]),
            "--probe-tests",
            str(readouts["probe_tests"]),
        ]
        words += ["--measures", *readouts["measures"], *extra]
        return Step(name, record, lambda: words, (after, "data"))

    def _command(
        self,
        name: str,
        done: Path,
        verb: str,
        kind: type,
        config: Callable[[], Mapping[str, Any]],
        after: tuple[str, ...] = (),
        processes: int = 1,
    ) -> Step:
        """A step that runs a command of the package, in several processes if ``processes`` > 1."""

        def words() -> list[str]:
            return [
                sys.executable,
                "-m",
                f"dupmae_ir.{verb}",
                *flags(from_mapping(kind, config(), name)),
            ]

        return Step(name, done, words, after, processes)

    def _text(self, general: bool) -> list[str]:
        """The corpora of stage 0 (``general``), or those of the searched domains, with the test collections' texts."""
        named = [self.data / "pretrain" / f"{name}.txt.gz" for name in self.settings["in_domain"]]
        named += [self.data / name for name in self.settings["collections"]]
        if general:
            named += [
                self.data / "pretrain" / f"{name}.txt.gz" for name in self.settings["general"]
            ]
        return [str(path) for path in named]


def read_settings(smoke: bool = False) -> dict[str, Any]:
    """The registered settings, or the small amounts for the tests."""
    settings = read_toml(SETTINGS)
    small = settings.pop(SMOKE)
    return _merged(settings, small) if smoke else settings


def _merged(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``settings`` with the values of ``changes``, table by table."""
    both = {
        k: _merged(v, changes[k]) if isinstance(v, dict) and k in changes else v
        for k, v in settings.items()
    }
    return both | {k: v for k, v in changes.items() if not isinstance(v, dict)}


def selected(steps: list[Step], only: list[str]) -> list[Step]:
    """The steps whose names start with one of ``only``; all without."""
    for beginning in only:
        if not any(step.name.startswith(beginning) for step in steps):
            raise InputError(f"--only {beginning}: no such step; --list prints their names")
    return [s for s in steps if not only or s.name.startswith(tuple(only))]


def execute(step: Step, logs: Path) -> None:
    """Run a step as a process of its own, its output appended to ``logs/STEP.log``."""
    logs.mkdir(parents=True, exist_ok=True)
    with open(logs / f"{step.name}.log", "a", encoding="utf-8") as log:
        status = subprocess.run(
            step.words(), stdout=log, stderr=subprocess.STDOUT, check=False
        ).returncode
    if status or not step.done.is_file():
        raise DupmaeError(f"{step.name} failed with status {status}; see {logs / step.name}.log")


def run_all(
    steps: list[Step], wanted: list[Step], jobs: int, logs: Path, quiet: bool = False
) -> list[str]:
    """Run the steps that are not finished, each after those that it needs, in ``jobs`` processes. Returns what failed.

    A step of more processes than ``jobs`` runs alone. A step is not run if all steps that need it are finished, for
    example the fine-tuning of a model whose read-out is stored.
    A step is left out where one that it needs is neither finished nor among ``wanted``.
    """
    done = {s.name for s in steps if s.done.is_file()}
    needed = unfinished(steps)
    waiting = [s for s in wanted if s.name in needed]
    failed = list[str]()
    running: dict[Future[None], Step] = {}
    with ThreadPoolExecutor(jobs) as pool:
        while waiting or running:
            for step in [s for s in waiting if done.issuperset(s.after)]:
                if running and sum(s.processes for s in (step, *running.values())) > jobs:
                    continue
                say(f"{step.name}: started", quiet)
                running[pool.submit(execute, step, logs)] = step
                waiting.remove(step)
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                step = running.pop(future)
                error = future.exception()
                if error:
                    failed.append(f"{step.name}: {error}")
                    say(failed[-1])
                else:
                    done.add(step.name)
                    say(f"{step.name}: done", quiet)
    return failed + [f"{s.name}: not run, needs {', '.join(set(s.after) - done)}" for s in waiting]


def unfinished(steps: Sequence[Step]) -> set[str]:
    """The names of the steps that are not finished and that are results, or that an unfinished step needs.

    Every step comes after those that it needs.
    """
    results = {step.name for step in steps} - {name for step in steps for name in step.after}
    needed = set[str]()
    for step in reversed(steps):
        if not step.done.is_file() and (step.name in results or step.name in needed):
            needed.add(step.name)
            needed.update(step.after)
    finished = {step.name for step in steps if step.done.is_file()}
    return needed - finished


def states(steps: Sequence[Step], wanted: Sequence[Step]) -> Iterator[str]:
    """A line for each step that is wanted, with its state."""
    needed = unfinished(steps)
    for step in wanted:
        if step.done.is_file():
            yield f"done        {step.name}"
        elif step.name in needed:
            yield f"to do       {step.name}"
        else:
            yield f"not needed  {step.name}"


def add_step_options(parser: argparse.ArgumentParser) -> None:
    """The flags of a driver that runs steps (:func:`run_plan`), but ``--data``."""
    parser.add_argument(
        "--output", type=Path, required=True, help="models, checkpoints, logs and records"
    )
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="PREFIX", help="steps whose names start like this"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--threads", type=int, default=1, help="threads of a step")
    parser.add_argument("--smoke", action="store_true", help="the same steps on a handful of texts")
    parser.add_argument("--list", action="store_true", help="print the steps and run nothing")
    parser.add_argument("--quiet", action="store_true")


def main(argv: list[str] | None = None) -> int:
    """Parse the flags and run. Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with pretrain/, pairs/ and the collections"
    )
    add_step_options(parser)
    args = parser.parse_args(argv)
    return guarded(lambda: run(args), "mae_from_scratch.py", "; run the same command to resume")


def run(args: argparse.Namespace) -> int:
    """Run or list the steps. Returns 1 if a step failed."""
    stored = None if args.smoke else STORED
    plan = Plan(
        read_settings(args.smoke),
        args.data.absolute(),
        args.output.absolute(),
        args.threads,
        stored,
    )
    return run_plan(plan, args)


def run_plan(plan: Plan, args: argparse.Namespace) -> int:
    """Run or list the steps of a plan, as the flags of :func:`add_step_options` say. Returns 1 if a step failed."""
    steps = plan.steps()
    wanted = selected(steps, args.only)
    if args.list:
        print("\n".join(states(steps, wanted)))
        return 0
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    return 1 if run_all(steps, wanted, args.jobs, plan.output / "logs", args.quiet) else 0


if __name__ == "__main__":
    sys.exit(main())
