"""``python -m dupmae_ir.finetune.score``: see ``--help``."""

from __future__ import annotations

from typing import Any

from dupmae_ir.command import Command
from dupmae_ir.finetune.score.config import ScoreConfig

PURPOSE = """
Score every query of a file of mined negatives with each of its positives and negatives, for distillation. The teacher
is a cross-encoder (one that finetune.cross_encoder trained, or any sequence classifier with one or two labels), or
fused: the lists of BM25 and of a retriever over the whole collection, which needs no training. Writes a line per query,
{"qid": ..., "scores": {docid: score}}. If interrupted, run the same command to resume.
"""
EXAMPLES = """
python -m dupmae_ir.finetune.score --mined mined/stage1.jsonl --model models/teacher --output mined/teacher.jsonl
python -m dupmae_ir.finetune.score --mined mined/both.jsonl --teacher fused --model minilm --output mined/fused.jsonl
"""


def summarize(config: ScoreConfig, result: dict[str, Any]) -> str:
    """The closing line: pairs, queries and time."""
    time = f" in {result['seconds']:,.0f} s" if "seconds" in result else ""
    return f"{config.output}: {result['pairs']:,} pairs of {result['queries']:,} queries{time}"


main = Command(
    "finetune.score",
    PURPOSE,
    EXAMPLES,
    ScoreConfig,
    "dupmae_ir.finetune.score.run:run",
    summarize=summarize,
    resumes=True,
)

if __name__ == "__main__":
    main.exit()
