"""``python -m dupmae_ir.encode.segment``: see ``--help``."""

from __future__ import annotations

from typing import Any

from dupmae_ir.command import Command
from dupmae_ir.encode.config import SegmentConfig

PURPOSE = """
Cut documents into overlapping passages of words, each under the id DOCUMENT#NUMBER and with the document's title.
Encode the passages and search them with --max-passage, which ranks each document by its best passage.
"""
EXAMPLE = """
python -m dupmae_ir.encode.segment --corpus msmarco-docs.tsv.gz --output passages.jsonl.gz
python -m dupmae_ir.encode --corpus passages.jsonl.gz --index indexes/docs
python -m dupmae_ir.search --index indexes/docs --topics queries.tsv --max-passage --hits 100 --output docs.trec
"""


def summarize(config: SegmentConfig, result: dict[str, Any]) -> str:
    """How many passages and documents there are."""
    return f"{config.output}: {result['passages']:,} passages of {result['documents']:,} documents"


main = Command(
    "encode.segment", PURPOSE, EXAMPLE, SegmentConfig, "dupmae_ir.encode.segmentation:run", summarize=summarize
)

if __name__ == "__main__":
    main.exit()
