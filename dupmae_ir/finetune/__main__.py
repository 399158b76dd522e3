"""The command line of fine-tuning: one stage, or all steps of a recipe."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from dupmae_ir.config import parse
from dupmae_ir.console import Parser, guarded
from dupmae_ir.errors import UsageError
from dupmae_ir.finetune.run import FinetuneConfig, run

PURPOSE = """
Fine-tune a retriever with the method's own similarity: the [CLS] inner product plus the ordinary-token inner product,
the document's OT part cut to its top k (Eq. 12). Contrastive with the batch's other passages (Eq. 13), with mined
negatives (Eq. 14), by distillation from a cross-encoder (Eq. 15), or all of these in order: a --recipe with steps,
its own values given by --set NAME=VALUE (--dry-run shows the commands). A base without a masked-LM head (a sentence
encoder) gets one first. Interrupted, the same command resumes.
"""
EXAMPLE = """
dupmae-ir finetune --pairs train.jsonl.gz --model minilm --output models/mine --bf16
dupmae-ir finetune --mined mined.jsonl --model minilm --output models/stage2
dupmae-ir finetune --recipe three-stages --set pairs=train.jsonl.gz --output models/staged
"""


def main(argv: list[str] | None = None) -> int:
    parser = Parser("finetune", PURPOSE, EXAMPLE)
    return guarded(lambda: _run(parser, argv), parser.prog)


def _run(parser: Parser, argv: list[str] | None) -> int:
    recipe = _recipe_of(argv)
    return _stages(parser, argv) if recipe and _has_steps(recipe) else _stage(parser, argv)


def _recipe_of(argv: list[str] | None) -> str | None:
    probe = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    probe.add_argument("--recipe", nargs="?")
    return probe.parse_known_args(argv)[0].recipe


def _has_steps(recipe: str) -> bool:
    from dupmae_ir.finetune.stages import has_steps

    return has_steps(recipe)


def _stage(parser: Parser, argv: list[str] | None) -> int:
    config = parse(parser, FinetuneConfig, argv)
    _tell(run(config), config.json)
    return 0


def _stages(parser: Parser, argv: list[str] | None) -> int:
    from dupmae_ir.finetune.stages import run_stages

    parser.add_argument("--recipe", required=True, metavar="RECIPE")
    parser.add_argument("--output", required=True, metavar="FOLDER")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    for flag in ("--dry-run", "--quiet", "--json"):
        parser.add_argument(flag, action="store_true")
    told = parser.parse_args(argv)
    summary = run_stages(told.recipe, told.output, _given(told.set), told.quiet, told.dry_run)
    _tell(summary, told.json)
    return 0


def _given(values: list[str]) -> dict[str, str]:
    for value in values:
        if "=" not in value:
            raise UsageError(f"--set {value}: wants NAME=VALUE")
    return dict(v.split("=", 1) for v in values)


def _tell(summary: dict[str, Any], as_json: bool) -> None:
    if as_json and summary:
        print(json.dumps(summary))


if __name__ == "__main__":
    sys.exit(main())
