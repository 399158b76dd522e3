"""``python -m dupmae_ir.encode.segment``: documents as overlapping passages, for max-passage search.

A passage's id is its document's, ``#`` and a number from 0, as in Anserini and Pyserini; ``search --max-passage`` turns
lists of such passages into documents again. Without it a long document is its first passage: what ``document_length``
cuts is not read.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dupmae_ir.config import option, parse
from dupmae_ir.console import Parser, guarded, progress, say
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.types import PASSAGE_DELIMITER, Document

PURPOSE = """
Cut documents into overlapping passages of words, each under the id DOCUMENT#NUMBER and with the document's title: to be
encoded, and searched with --max-passage, where a document counts as its best passage.
"""
EXAMPLE = """
python -m dupmae_ir.encode.segment --corpus msmarco-docs.tsv.gz --output passages.jsonl.gz
python -m dupmae_ir.encode --corpus passages.jsonl.gz --index indexes/docs
python -m dupmae_ir.search --index indexes/docs --topics queries.tsv --max-passage --hits 100 --output docs.trec
"""


@dataclass(frozen=True)
class SegmentConfig:
    """Everything that ``python -m dupmae_ir.encode.segment`` can be told."""

    corpus: str = option(help="collection, as encode reads it", group="what", metavar="PATH")
    output: str = option(help="JSON lines to write; gzipped if the name ends in .gz", group="what", metavar="FILE")
    words: int = option(200, "words of a passage", group="how")
    stride: int = option(100, "words from the beginning of a passage to that of the next", group="how")
    titles: bool = option(True, "the document's title with every passage", group="how")
    quiet: bool = option(False, "no progress, only errors", group="output")
    json: bool = option(False, "print the summary as JSON on standard output", group="output")


def run(config: SegmentConfig) -> dict[str, Any]:
    """Write the passages, whole or not at all; returns how many documents and passages there are."""
    from dupmae_ir.io.collections import read_collection
    from dupmae_ir.io.lines import json_lines

    if not 1 <= config.stride <= config.words:
        told = f"--words {config.words} --stride {config.stride}"
        raise UsageError(f"{told}: wants 1 <= stride <= words, or words are lost")
    documents = passages = 0
    with json_lines(config.output) as write, progress("segment", "documents", quiet=config.quiet) as bar:
        for document in read_collection(config.corpus):
            for passage in segments(document, config.words, config.stride, config.titles):
                write({"_id": passage.docid, "title": passage.title, "text": passage.text})
                passages += 1
            documents += 1
            bar.update()
    return {"output": config.output, "documents": documents, "passages": passages}


def segments(document: Document, words: int, stride: int, titles: bool = True) -> Iterator[Document]:
    """The passages of a document: every word is in one, and none is a part of another. An empty text is one passage."""
    if PASSAGE_DELIMITER in document.docid:
        raise InputError(f"the id {document.docid!r} holds a {PASSAGE_DELIMITER!r}, which parts document and passage")
    found = document.text.split()
    for number, start in enumerate(range(0, max(1, len(found) - words + stride), stride)):
        text = " ".join(found[start : start + words])
        yield Document(
            f"{document.docid}{PASSAGE_DELIMITER}{number}", text, document.title if titles or not number else ""
        )


def main(argv: list[str] | None = None) -> int:
    return guarded(lambda: _main(argv), "dupmae-ir encode.segment")


def _main(argv: list[str] | None) -> int:
    config = parse(Parser("encode.segment", PURPOSE, EXAMPLE), SegmentConfig, argv)
    summary = run(config)
    if config.json:
        sys.stdout.write(json.dumps(summary) + "\n")
    say(f"{config.output}: {summary['passages']:,} passages of {summary['documents']:,} documents", config.quiet)
    return 0


if __name__ == "__main__":
    sys.exit(main())
