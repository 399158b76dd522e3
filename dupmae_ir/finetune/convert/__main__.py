"""``python -m dupmae_ir.finetune.convert``: see ``--help``."""

from __future__ import annotations

from typing import Any

from dupmae_ir.command import Command
from dupmae_ir.finetune.convert.config import ConvertConfig

PURPOSE = """
Convert published training data to the formats that finetune reads: pairs with complete passages or, where negatives
are ids of a collection, a mined file. Whatever is left out is counted and named. The same input gives the same bytes.
"""
EXAMPLES = """
dupmae-ir finetune.convert --format dpr --input biencoder-nq-train.json --negatives 30 --output nq.jsonl.gz
dupmae-ir finetune.convert --format msmarco-qrels --input qrels.train.tsv --queries queries.train.tsv \\
    --collection collection.tsv --titles titles.tsv --output msmarco.jsonl.gz
dupmae-ir finetune.convert --format st-hard-negatives --input msmarco-hard-negatives.jsonl.gz \\
    --queries queries.train.tsv --collection collection.tsv --scores scores.tsv --output mined.jsonl
"""


def summarize(config: ConvertConfig, result: dict[str, Any]) -> str:
    """The closing line: lines written, and every count."""
    counts = [f"{n:,} {name.replace('_', ' ')}" for name, n in result.items() if isinstance(n, int) and name != "lines"]
    return f"{config.output}: {result['lines']:,} lines; {', '.join(counts)}"


main = Command(
    "finetune.convert", PURPOSE, EXAMPLES, ConvertConfig, "dupmae_ir.finetune.convert.run:run", summarize=summarize
)

if __name__ == "__main__":
    main.exit()
