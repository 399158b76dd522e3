"""``dupmae-ir finetune``: one stage, or all steps of a recipe. See ``--help``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import partial

from dupmae_ir.command import Command, help_text
from dupmae_ir.config import add_config, from_namespace, recipe_of, with_flags
from dupmae_ir.console import Parser, guarded
from dupmae_ir.finetune.config import FinetuneConfig, StagesConfig
from dupmae_ir.finetune.stages import has_steps, in_processes, run_stages


def summarize(config: FinetuneConfig, result: Mapping[str, object]) -> str:
    """The closing line of a stage."""
    time = f" in {result['seconds']:,} s" if "seconds" in result else ""
    text = f"{config.output}: {result['steps']:,} updates{time}; {result['padding']:.1%} of the tokens were padding"
    before = result.get("before")
    dev = result.get("dev")
    if not isinstance(before, dict) or not isinstance(dev, dict):
        if not config.dev:
            text += "\nnot measured: give dev pairs (--dev) to compare it with its start"
        return text
    scores = {**before, "this model": dev["mrr"]}
    scores_by_model = ", ".join(f"{name} {score:.4f}" for name, score in scores.items())
    text += f"\nMRR@10 on the dev pairs: {scores_by_model}"
    better = [name for name, score in before.items() if score > dev["mrr"]]
    if better:
        text += f"\nwarning: the training lost against the {' and the '.join(better)}; train longer or on more pairs, "
        text += "or keep searching with the better model"
    return text


stage = Command(
    "finetune",
    FinetuneConfig,
    "dupmae_ir.finetune.run:run",
    summarize=summarize,
    resumes=True,
    distributed=True,
    packages=("accelerate", "matplotlib", "tensorboard"),
)


def main(argv: list[str] | None = None) -> int:
    """Run one stage, or the steps of a recipe that has some. Returns the exit status."""
    parser = Parser("finetune", *help_text(FinetuneConfig))
    return guarded(
        lambda: _main(parser, argv),
        parser.prog,
        "",
        lambda message: with_flags(message, StagesConfig),
    )


def _main(parser: Parser, argv: list[str] | None) -> int:
    recipe = recipe_of(argv)
    if recipe is None or not has_steps(recipe):
        return stage(argv)
    add_config(parser, StagesConfig)
    config = from_namespace(StagesConfig, parser.parse_args(argv))
    run = partial(run_stages, adjust=partial(in_processes, processes=config.processes))
    summary = run(config.recipe, config.output, config.inputs(), config.quiet, config.dry_run)
    if config.json and summary:
        print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
