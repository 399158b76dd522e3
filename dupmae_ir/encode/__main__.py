"""``python -m dupmae_ir.encode``: see ``--help``."""

from __future__ import annotations

import json
import sys
from typing import Any

from dupmae_ir.config import parse
from dupmae_ir.console import INTERRUPTED, Parser, guarded, say
from dupmae_ir.encode.run import EncodeConfig, run

PURPOSE = """
Encode a collection into an index folder: dense vectors for faiss (cls) and impacts for Lucene (ot), from one forward
pass. The collection is streamed. Interrupt or kill it whenever you like: the same command resumes.
"""
EXAMPLES = """
python -m dupmae_ir.encode --corpus corpus.jsonl --index indexes/mine
python -m dupmae_ir.encode --corpus collection.tsv.gz --index I.0 --shard 0/4 --device cuda
zcat docs/*.gz | python -m dupmae_ir.encode --corpus - --index I --fields title text
"""


def main(argv: list[str] | None = None) -> int:
    return guarded(lambda: _main(argv), "dupmae-ir encode")


def _main(argv: list[str] | None) -> int:
    config = parse(Parser("encode", PURPOSE, EXAMPLES), EncodeConfig, argv)
    try:
        summary = run(config)
    except KeyboardInterrupt:
        print("dupmae-ir encode: interrupted; the same command resumes", file=sys.stderr)
        return INTERRUPTED
    if config.json:
        print(json.dumps(summary, ensure_ascii=False))
    say(_sentence(summary), config.quiet)
    return 0


def _sentence(summary: dict[str, Any]) -> str:
    text = f"{summary['index']}: {summary['documents']:,} documents"
    if summary["status"] == "already complete":
        return f"{text}, already complete from the same input and settings; nothing to do"
    if summary["empty_documents"]:
        text += f" ({summary['empty_documents']:,} without text)"
    if summary["scale"] is not None:
        text += f", {summary['postings']:,} impacts at scale {summary['scale']:g} ({summary['scale_source']})"
        if summary["clipped"]:
            text += f", {summary['clipped']:,} clipped at 255"
    if summary["documents_per_second"]:
        text += f", encoded at {summary['documents_per_second']:,} documents/s"
    if summary["resumed"]:
        text += f", {summary['resumed']:,} documents from an earlier run"
    return text


if __name__ == "__main__":
    sys.exit(main())
