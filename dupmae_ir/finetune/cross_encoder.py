"""``dupmae-ir finetune.cross_encoder``: its settings and command line; the work is in ``reranker_training``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dupmae_ir.command import Command
from dupmae_ir.config import input_option, option, output_option, training_option
from dupmae_ir.training.config import TrainingOptions


@dataclass(frozen=True, kw_only=True)
class MinedOptions:
    """What a cross-encoder reads, in training and in scoring: mined negatives, and their passages' form."""

    mined: str = input_option(help="mined negatives (dupmae-ir finetune.mine)", metavar="FILE")
    collection: str | None = input_option(
        None, "collection the negatives were mined from, if it has moved since", metavar="PATH"
    )
    length: int = option(
        192,
        "word pieces kept of query and passage together",
        group="model",
        above=0,
        only_with="teacher=cross-encoder",
    )
    title_separator: str = option(
        "space",
        "between title and text: a space, the model's separator token, or a colon",
        group="model",
        choices=("space", "sep", "colon"),
        only_with="teacher=cross-encoder",
    )


@dataclass(frozen=True, kw_only=True)
class CrossEncoderConfig(MinedOptions, TrainingOptions):
    """Train a cross-encoder, which reads query and passage together: the teacher whose scores stage 3 distils. The loss
    is listwise: softmax cross-entropy of one positive against negatives sampled from the mined lists in every epoch. If
    interrupted, run the same command to resume to the same weights.

    Examples:
        dupmae-ir finetune.cross_encoder --mined mined/bm25.jsonl --model models/electra-base --output models/teacher
    """

    model: str = input_option(
        help="base model folder, default or minilm: a sequence classifier with one or two labels keeps its head, any "
        "other encoder gets a new one",
        metavar="FOLDER",
    )
    limit: int = input_option(0, "use a random sample of N queries; 0 = all", at_least=0)
    held_out: int = input_option(
        0,
        "queries held out from training, whose loss is reported before, during and after",
        at_least=0,
    )
    examples: str = training_option(
        "query",
        "an epoch has one example for each query, with one of its positives at random, or one for each judgement, that "
        "is, for each positive of each query",
        choices=("query", "judgement"),
    )
    group_size: int = training_option(
        16, "passages per query: one positive, the others negatives", at_least=2
    )
    batch_size: int = training_option(8, "queries per forward pass, of all processes", above=0)
    learning_rate: float = training_option(
        1e-5, "peak learning rate; linear warm-up and decay", above=0
    )
    dropout: float | None = training_option(
        None,
        "dropout of the model (default: the base model's, in most 0.1); 0 trains faster on a CPU",
        at_least=0,
        below=1,
    )
    eval_steps: int = output_option(
        500, "updates between evaluations on held-out queries", above=0, only_with="held_out"
    )


def summarize(config: CrossEncoderConfig, result: Mapping[str, Any]) -> str:
    """The closing line: updates, time, and the change of the held-out loss."""
    time = f" in {result['seconds']:,} s" if "seconds" in result else ""
    text = f"{config.output}: {result['updates']:,} updates on {result['queries']:,} queries{time}"
    held_out = result["held_out"]
    if held_out:
        before = held_out["before"]
        after = held_out["after"]
        text += (
            f"; held out: loss {before['loss']:.3f} -> {after['loss']:.3f}, positive ranked first in "
            f"{before['positive_first']:.0%} -> {after['positive_first']:.0%} of the groups"
        )
    return text


main = Command(
    "finetune.cross_encoder",
    CrossEncoderConfig,
    "dupmae_ir.finetune.reranker_training:run",
    summarize=summarize,
    resumes=True,
    distributed=True,
    packages=("accelerate", "matplotlib", "tensorboard"),
)

if __name__ == "__main__":
    main.exit()
