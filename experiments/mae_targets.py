"""Pre-training on the collection that will be searched: part B of experiments/mae-seeds-and-targets.md.

    python experiments/mae_targets.py --data DATA --output runs/mae-from-scratch [--jobs 2] [--target FOLDER ...]

A checkpoint of the first experiment is trained further on the documents of each collection, or on as many word pieces
of general text, and then fine-tuned. ``--target`` takes any collection in BEIR's layout, named by its folder, in place
of the two registered ones. Finished steps are skipped, and a killed step continues when the same command is run again.
The results are JSON records in OUTPUT/records; experiments/mae_target_tables.py turns them into tables.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mae_from_scratch import HERE, STORED, Plan, Step, add_step_options, read_settings, run_plan
from transformers import AutoTokenizer

from dupmae_ir.console import guarded
from dupmae_ir.errors import InputError
from dupmae_ir.finetune.config import FinetuneConfig
from dupmae_ir.pretrain.config import PretrainConfig
from dupmae_ir.pretrain.tokens import Cutting, load_corpus

REGISTERED = ("stdlib", "squad")
GENERAL = "general"
NONE = "none"
SPECIAL_TOKENS = 2
"""[CLS] and [SEP], which a text of --length tokens contains."""


class TargetPlan(Plan):
    """The steps of part B.

    Args:
        settings: the contents of mae_from_scratch.toml.
        data: folder with pretrain/, pairs/ and the test collections.
        output: folder of all results, which can be that of the first experiment.
        targets: folders in BEIR's layout; the registered collections without.
        threads: threads of a step.
        stored: folder of checkpoints that are restored instead of trained.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        data: Path,
        output: Path,
        targets: Sequence[Path] = (),
        threads: int = 1,
        stored: Path | None = None,
    ) -> None:
        super().__init__(settings, data, output, threads, stored)
        self.amounts = settings["targets"]
        self.collections = self.output / "targets"
        self.targets = {folder.name: folder for folder in targets}
        if not targets:
            self.targets = {name: self.collections / name for name in REGISTERED}

    def steps(self) -> list[Step]:
        """All steps, the first seed first."""
        steps = [self._data(), self._tokenizer(), self._targets()]
        for seed in self.amounts["seeds"]:
            steps.append(self._stage0(seed))
            steps.append(self._stage1(self.amounts["start"], seed))
            for arm in (NONE, GENERAL, *self.targets):
                if arm != NONE:
                    steps.append(self._continued(arm, seed))
                steps.append(self._arm_readout(arm, seed))
                for size, again_seeds in self.amounts["sizes"].items():
                    for again in again_seeds:
                        steps.append(self._arm_tuned(arm, seed, size, again))
                        steps.append(self._arm_readout(arm, seed, size, again))
        return steps

    # ---- Names of models

    def arm_name(self, arm: str, seed: int, size: str = "", again: int = 0) -> str:
        """The step that makes the model of an arm, or the one fine-tuned from it on ``size`` pairs."""
        if size:
            return f"target.{arm}.{size}.seed{seed}.{again}"
        if arm == NONE:
            return self.model_name(self.amounts["start"], seed)
        return f"target.{arm}.seed{seed}"

    # ---- Steps

    def _targets(self) -> Step:
        done = self.collections / "collections.json"
        script = [sys.executable, str(HERE / "mae_target_data.py"), str(self.data)]
        questions = str(self.amounts["squad_questions"])
        return Step("targets", done, lambda: [*script, str(self.collections), questions])

    def _continued(self, arm: str, seed: int) -> Step:
        """Further pre-training on the text of an arm."""
        name = self.arm_name(arm, seed)
        start = self.model_name(self.amounts["start"], seed)

        def config() -> dict[str, Any]:
            corpora = self._corpora(arm)
            own = {
                "corpus": corpora,
                "model": str(self.home / start),
                "steps": self._updates(corpora),
            }
            return self._pretraining(name, seed, general=True) | self.amounts["pretrain"] | own

        done = self.home / name / "training.json"
        after = (start, "targets")
        return self._command(name, done, "pretrain", PretrainConfig, config, after)

    def _corpora(self, arm: str) -> list[str]:
        if arm == GENERAL:
            return self._text(general=True)
        return [str(self.targets[arm] / "corpus.jsonl")]

    def _updates(self, corpora: Sequence[str]) -> int:
        """The updates in which the model reads the registered number of word pieces of these texts."""
        tokenizer = AutoTokenizer.from_pretrained(self.output / "tokenizer")
        settings = self.settings["pretrain"]
        cutting = Cutting(settings["unit"], settings["length"] - SPECIAL_TOKENS)
        texts = 0
        word_pieces = 0
        for source in corpora:
            corpus = load_corpus(source, tokenizer, cutting, self.output / "cache", quiet=True)
            texts += len(corpus)
            word_pieces += len(corpus.texts.ids)
        batch = self.amounts["pretrain"]["batch_size"] * word_pieces / texts
        return math.ceil(self.amounts["word_pieces"] / batch)

    def _arm_tuned(self, arm: str, seed: int, size: str, again: int) -> Step:
        name = self.arm_name(arm, seed, size, again)
        start = self.arm_name(arm, seed)
        config = self._finetuning(name, start, again)
        config |= self._amounts(size) | self.amounts["finetune"]
        done = self.home / name / "training.json"
        after = (start, "data")
        return self._command(name, done, "finetune", FinetuneConfig, lambda: config, after)

    def _arm_readout(self, arm: str, seed: int, size: str = "", again: int = 0) -> Step:
        model = self.arm_name(arm, seed, size, again)
        values = {"arm": arm, "seed": seed, "size": int(size or 0), "again": again}
        words = ["--parts", "cls", "--settings", json.dumps(values)]
        words += ["--targets", *(str(folder) for folder in self.targets.values())]
        words += ["--sets", "dev"]
        if not size:
            words.append("--probe")
        # The record of a checkpoint without further pre-training is in the first experiment, too, on other sets.
        name = f"readout.{model}" if arm != NONE or size else f"readout.target.{NONE}.seed{seed}"
        step = self._reading(name, self.home / model, model, words)
        return Step(step.name, step.done, step.words, (*step.after, "targets"))


def main(argv: list[str] | None = None) -> int:
    """Parse the flags and run. Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with pretrain/, pairs/ and pairs_extra/"
    )
    parser.add_argument(
        "--target",
        type=Path,
        nargs="+",
        default=[],
        metavar="FOLDER",
        help="collections in BEIR's layout (default: stdlib and squad)",
    )
    add_step_options(parser)
    args = parser.parse_args(argv)
    return guarded(lambda: run(args), "mae_targets.py", "; run the same command to resume")


def run(args: argparse.Namespace) -> int:
    """Run or list the steps. Returns 1 if a step failed."""
    for folder in args.target:
        if not (folder / "corpus.jsonl").is_file():
            raise InputError(f"--target {folder}: no corpus.jsonl; give a folder in BEIR's layout")
    plan = TargetPlan(
        read_settings(args.smoke),
        args.data.absolute(),
        args.output.absolute(),
        [folder.absolute() for folder in args.target],
        args.threads,
        None if args.smoke else STORED,
    )
    return run_plan(plan, args)


if __name__ == "__main__":
    sys.exit(main())
