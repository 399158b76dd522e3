"""``python -m dupmae_ir.encode.passages``: documents as overlapping passages of words, for max-passage search.

``search --max-passage`` turns lists of passages into lists of documents. Uncut, a long document is truncated at the
encoder's ``document_length``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, cast

from dupmae_ir.command import Command
from dupmae_ir.config import OutputOptions, input_option, option, output_option
from dupmae_ir.console import progress
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.io.collections import LinesCollection, file_digests
from dupmae_ir.io.jobs import Job
from dupmae_ir.io.lines import json_lines
from dupmae_ir.io.publishing import combined_digest
from dupmae_ir.types import PASSAGE_DELIMITER, Document


class PassagesResult(TypedDict):
    """How many documents were cut, and into how many passages."""

    documents: int
    passages: int


@dataclass(frozen=True, kw_only=True)
class PassagesConfig(OutputOptions):
    """Cut documents into overlapping passages of words, each under the id DOCUMENT#NUMBER and with the document's
    title. Encode the passages and search them with --max-passage, which ranks each document by its best passage.

    Examples:
        dupmae-ir encode.passages --corpus msmarco-docs.tsv.gz --output passages.jsonl.gz
        dupmae-ir encode --corpus passages.jsonl.gz --index indexes/docs
        dupmae-ir search --index indexes/docs --topics queries.tsv --max-passage --hits 100 --output docs.trec
    """

    corpus: str = input_option(help="collection, as encode reads it", metavar="PATH")
    output: str = output_option(
        help="JSON lines to write; gzipped if the name ends in .gz", metavar="FILE"
    )
    words: int = option(200, "words of a passage", group="passages", above=0)
    stride: int = option(
        100, "words from the beginning of a passage to that of the next", group="passages", above=0
    )
    titles: bool = option(True, "the document's title with every passage", group="passages")


def run(config: PassagesConfig) -> PassagesResult:
    """Write the passages and return how many documents and passages there are."""
    if config.stride > config.words:
        raise UsageError(
            f"`stride` {config.stride} must not exceed `words` {config.words}, or words are lost"
        )
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
        result = job.finished()
        if result:
            return cast("PassagesResult", result)
        # The name of the output, whose ending says whether it is gzipped.
        path = job.begin() / Path(config.output).name
        documents = 0
        passages = 0
        with json_lines(path) as write, progress("cut", "documents", quiet=config.quiet) as bar:
            for document in collection:
                for passage in word_passages(document, config.words, config.stride, config.titles):
                    write({"_id": passage.docid, "title": passage.title, "text": passage.text})
                    passages += 1
                documents += 1
                bar.update()
        counts = {"documents": documents, "passages": passages}
        return cast("PassagesResult", job.publish(path, counts, inputs=collection.digests()))


def word_passages(
    document: Document, words: int, stride: int, titles: bool = True
) -> Iterator[Document]:
    """The passages of a document: ``words`` words each, ``stride`` words from one beginning to the next.

    Every word is in one, and none is contained in another; an empty text has one. A passage's id is its document's,
    ``#`` and a number from 0, as in Anserini and Pyserini; only the first has the title without ``titles``.

    Raises :class:`InputError` for an id that contains the delimiter of passages.
    """
    if PASSAGE_DELIMITER in document.docid:
        raise InputError(
            f"the id {document.docid!r} contains {PASSAGE_DELIMITER!r}, which separates document and passage"
        )
    tokens = document.text.split()
    # The last passage begins before len - words + stride: it is the first one that reaches the end of the text, so
    # that it is not contained in the one before. At least one, for an empty text.
    starts = range(0, max(1, len(tokens) - words + stride), stride)
    for number, start in enumerate(starts):
        docid = f"{document.docid}{PASSAGE_DELIMITER}{number}"
        text = " ".join(tokens[start : start + words])
        title = document.title if titles or number == 0 else ""
        yield Document(docid, text, title)


def summarize(config: PassagesConfig, result: PassagesResult) -> str:
    """How many passages and documents there are."""
    return f"{config.output}: {result['passages']:,} passages of {result['documents']:,} documents"


main = Command(
    "encode.passages", PassagesConfig, "dupmae_ir.encode.passages:run", summarize=summarize
)

if __name__ == "__main__":
    main.exit()
