"""Segmentation: documents as overlapping passages, for max-passage search.

A passage's id is its document's, ``#`` and a number from 0, as in Anserini and Pyserini; ``search --max-passage`` turns
lists of passages into lists of documents. Unsegmented, a long document is truncated at the encoder's
``document_length``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dupmae_ir.console import progress
from dupmae_ir.encode.config import PassagesConfig
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.io.collections import LinesCollection, file_digests
from dupmae_ir.io.jobs import Job
from dupmae_ir.io.lines import json_lines
from dupmae_ir.io.publishing import combined_digest
from dupmae_ir.types import PASSAGE_DELIMITER, Document


def run(config: PassagesConfig) -> dict[str, Any]:
    """Write the passages and return how many documents and passages there are."""
    if config.stride > config.words:
        raise UsageError(f"--stride {config.stride} must not exceed --words {config.words}, or words are lost")
    if Path(config.output).is_dir():
        raise UsageError(f"{config.output} is a folder; name a file to write")
    collection = LinesCollection(config.corpus)
    settings = {"words": config.words, "stride": config.stride, "titles": config.titles}
    with Job(
        config.output,
        "encode.passages",
        settings,
        lambda: {"corpus": combined_digest(file_digests(config.corpus))},
        streamed=True,
        resumable=False,
        quiet=config.quiet,
    ) as job:
        if result := job.finished():
            return result
        made = job.begin() / Path(config.output).name
        return job.publish(made, _write(config, collection, made), inputs=collection.digests())


def _write(config: PassagesConfig, collection: LinesCollection, path: Path) -> dict[str, int]:
    documents = passages = 0
    with json_lines(path) as write, progress("segment", "documents", quiet=config.quiet) as bar:
        for document in collection:
            for passage in segments(document, config.words, config.stride, config.titles):
                write({"_id": passage.docid, "title": passage.title, "text": passage.text})
                passages += 1
            documents += 1
            bar.update()
    return {"documents": documents, "passages": passages}


def segments(document: Document, words: int, stride: int, titles: bool = True) -> Iterator[Document]:
    """The passages of a document. Every word is in one, and none is contained in another; an empty text has one.

    Raises :class:`InputError` for an id that contains the delimiter of passages.
    """
    if PASSAGE_DELIMITER in document.docid:
        raise InputError(
            f"the id {document.docid!r} contains {PASSAGE_DELIMITER!r}, which separates document and passage"
        )
    found = document.text.split()
    for number, start in enumerate(range(0, max(1, len(found) - words + stride), stride)):
        text = " ".join(found[start : start + words])
        yield Document(
            f"{document.docid}{PASSAGE_DELIMITER}{number}", text, document.title if titles or not number else ""
        )
