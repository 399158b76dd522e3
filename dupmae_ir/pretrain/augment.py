"""``dupmae-ir pretrain.augment``: add generated queries (MASTER, CoT-MoTE) or continuations (MASTER) to a corpus."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NotRequired, TypedDict

from dupmae_ir.command import Command
from dupmae_ir.config import (
    ComputeOptions,
    OutputOptions,
    compute_option,
    input_option,
    option,
    output_option,
)
from dupmae_ir.device import DTYPES
from dupmae_ir.errors import UsageError

TASKS = ("queries", "continuation")
PER_TEXT = {"queries": 5, "continuation": 1}
"""Default number of generated texts per text."""
FIELDS = {"queries": "queries", "continuation": "next"}
"""Task -> JSON field of the generated texts."""

sampling_option = partial(option, group="sampling")


class AugmentResult(TypedDict):
    """What a run reports."""

    texts: int
    augmented: int  #: texts that texts were generated for
    seconds: NotRequired[float]


@dataclass(frozen=True, kw_only=True)
class GeneratorConfig(ComputeOptions):
    """A generative model, its task, and how it samples tokens."""

    task: str = input_option(help="what the model generates for each text", choices=TASKS)
    model: str = input_option(help="model folder, or the name of a cached model", metavar="FOLDER")
    download: bool = input_option(
        False, "download the model from the Hugging Face hub unless it is a folder or cached"
    )
    per_text: int = sampling_option(
        0, "texts generated for each text; 0 = 5 queries or 1 continuation", at_least=0
    )
    top_k: int = sampling_option(
        10, "sample from the K most likely tokens, as docT5query does; 0 = all", at_least=0
    )
    top_p: float = sampling_option(
        1.0, "sample from the most likely tokens with this total probability", above=0, at_most=1
    )
    temperature: float = sampling_option(
        1.0,
        "above 1 flattens the distribution, below 1 sharpens it; 0 = the most likely token",
        at_least=0,
        below=float("inf"),
    )
    max_new_tokens: int = sampling_option(64, "maximum number of generated tokens", above=0)
    max_input: int = sampling_option(
        512,
        "maximum number of input tokens: the first ones for queries, the last ones for continuations",
        above=0,
    )
    seed: int = sampling_option(0, "random seed of the sampling", at_least=0)
    batch_size: int = compute_option(64, "texts generated together", above=0)
    dtype: str = compute_option(
        "auto",
        "precision of the model: float32, bfloat16, float16 or auto (the fastest here)",
        choices=DTYPES,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature == 0 and self.copies > 1:
            raise UsageError("`temperature` 0 generates the same text every time; add `per_text` 1")

    @property
    def copies(self) -> int:
        """Number of texts generated for each text."""
        return self.per_text or PER_TEXT[self.task]


@dataclass(frozen=True, kw_only=True)
class AugmentConfig(GeneratorConfig, OutputOptions):
    """Add generated texts to a corpus: queries (from any Hugging Face encoder-decoder, such as doc2query-T5) or
    continuations (from any causal model, such as GPT-2). dupmae-ir pretrain needs them for --method master and
    cot-mote. If interrupted, run the same command to resume; the result is the same.

    Examples:
        dupmae-ir pretrain.augment --task queries --model doc2query-t5/ --corpus passages.txt --output queries.jsonl
        dupmae-ir pretrain.augment --task continuation --model gpt2/ --corpus queries.jsonl.gz --output both.jsonl.gz
    """

    corpus: str = input_option(
        help="text file (one passage per line), JSON lines, TSV, BEIR folder, or a folder of such files; .gz of any",
        metavar="TEXT",
    )
    output: str = output_option(
        help="JSON lines to write; gzipped if the name ends in .gz", metavar="FILE"
    )
    window: int = compute_option(256, "texts between two saves, sorted by length together", above=0)
    overwrite: bool = output_option(
        False, "replace an existing output once the new one is complete"
    )
    restart: bool = output_option(False, "discard the unfinished work of an earlier run")


def summarize(config: AugmentConfig, result: AugmentResult) -> str:
    """``FILE: 1,000 texts, 990 of them augmented in 12 s``."""
    counts = f"{result['texts']:,} texts, {result['augmented']:,} of them augmented"
    # A result that an earlier run published has no time.
    time = f" in {result['seconds']:,.0f} s" if "seconds" in result else ""
    return f"{config.output}: {counts}{time}"


main = Command(
    "pretrain.augment",
    AugmentConfig,
    "dupmae_ir.pretrain.generation:run",
    summarize=summarize,
    resumes=True,
)

if __name__ == "__main__":
    main.exit()
