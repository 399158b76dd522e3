"""``python -m dupmae_ir.pretrain.augment``: see ``--help``."""

from __future__ import annotations

from typing import Any

from dupmae_ir.command import Command
from dupmae_ir.pretrain.augment.config import AugmentConfig

PURPOSE = """
Add generated texts to a corpus: queries (from any Hugging Face encoder-decoder, such as doc2query-T5) or continuations
(from any causal model, such as GPT-2). dupmae-ir pretrain needs them for --method master and cot-mote. If interrupted,
run the same command to resume; the result is the same.
"""
EXAMPLES = """
dupmae-ir pretrain.augment --task queries --model doc2query-t5/ --corpus passages.txt.gz --output queries.jsonl.gz
dupmae-ir pretrain.augment --task continuation --model gpt2/ --corpus queries.jsonl.gz --output both.jsonl.gz
"""


def summarize(config: AugmentConfig, result: dict[str, Any]) -> str:
    """``FILE: 1,000 texts, 990 of them augmented in 12 s``."""
    time = f" in {result['seconds']:,.0f} s" if "seconds" in result else ""
    return f"{config.output}: {result['texts']:,} texts, {result['augmented']:,} of them augmented{time}"


main = Command(
    "pretrain.augment",
    PURPOSE,
    EXAMPLES,
    AugmentConfig,
    "dupmae_ir.pretrain.augment.run:run",
    summarize=summarize,
    resumes=True,
)

if __name__ == "__main__":
    main.exit()
