"""The excerpts of a document: runs of whole sentences that have vectors, too, for questions about one sentence.

Each excerpt begins where half of the one before has passed, and has the title of its document. A document that is no
longer than an excerpt has none. The length and the share were chosen by experiments/sentences-and-titles.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TypedDict

import numpy as np

from dupmae_ir.errors import UsageError
from dupmae_ir.index.format.excerpts import Excerpts
from dupmae_ir.io.documents.passages import TokenMeasure, structured_passages
from dupmae_ir.io.documents.readers.extracted import Extracted
from dupmae_ir.models.word_pieces import read_word_pieces
from dupmae_ir.types import Document, Encoder

LENGTH = 64
"""Word pieces of an excerpt at most, without its title."""
SHARE = 0.4
"""Share of the best excerpt in the score by meaning."""


class ExcerptRecord(TypedDict):
    """What an index records of its excerpts."""

    word_pieces: int
    share: float


def excerpt_record() -> ExcerptRecord:
    """The present settings."""
    return {"word_pieces": LENGTH, "share": SHARE}


@lru_cache(maxsize=4)
def excerpt_measure(model: str | None) -> TokenMeasure:
    """What measures excerpts. Raises :class:`UsageError` for a model that has no word pieces."""
    pieces = read_word_pieces(model)
    if pieces is None:
        raise UsageError(
            f"`excerpts`: {model} has no word pieces by which texts can be cut; leave it out"
        )
    return pieces


def encode_excerpts(
    encoder: Encoder, documents: Sequence[Document], measure: TokenMeasure, separator: str
) -> Excerpts:
    """The vectors of the excerpts of documents; ``separator`` is put between title and text."""
    texts: list[str] = []
    counts = []
    for document in documents:
        excerpts = list(excerpts_of(document, measure))
        if len(excerpts) == 1:
            excerpts = []
        texts += [excerpt.joined(separator) for excerpt in excerpts]
        counts.append(len(excerpts))
    vectors = encoder.encode_documents(texts).cls
    if vectors is None:
        raise UsageError("`excerpts` are for dense vectors, and this model has none; leave it out")
    return Excerpts.of(vectors.astype(np.float32, copy=False), counts)


def excerpts_of(document: Document, measure: TokenMeasure) -> Iterator[Document]:
    """The excerpts of a document, each with its title; the document itself if it is short."""

    def length(_heading: str) -> int:
        return LENGTH

    for span in structured_passages(Extracted(document.text), length, LENGTH // 2, measure):
        yield document._replace(text=document.text[span.start : span.end])
