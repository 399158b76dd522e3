"""The language of each document, and how much the vectors of each language count.

The language of an index is that of most of its first documents. The words of a document in another language are
analysed in that language, and ``lang`` in its metadata records it.

Some models know little of a language, so its vectors count less. Let w be their weight, relative to the index's own
language. Stored vectors in the language, and vectors of queries in it, are multiplied by the square root of w. A query
and a document in the same language then have the weight w. If their languages differ, the weight is in between: vectors
of a language that the model does not know are noise, whichever side they are on. The score is still one inner product,
so it stays exact for every program that reads the index.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from dupmae_ir.encode.reading import vector_weight
from dupmae_ir.index.format.excerpts import Excerpts
from dupmae_ir.models.language_detection import language_of_document
from dupmae_ir.models.languages import LANG, LANGUAGES, OTHER
from dupmae_ir.types import Document, Encoder, Representation

_DECIMALS = 8


def document_languages(documents: Iterable[Document], usual: str) -> list[str]:
    """The language of each document of an index whose language is ``usual``.

    ``lang`` in the metadata of a document is its language if it is a code of
    :data:`~dupmae_ir.models.languages.LANGUAGES`. Any other value there is the collection's own, and the document
    counts as one in the usual language, which needs no record.
    """
    languages = []
    for document in documents:
        declared = (document.metadata or {}).get(LANG)
        if declared is None:
            languages.append(language_of_document(document.joined(), usual))
        elif isinstance(declared, str) and declared in LANGUAGES and declared != OTHER:
            languages.append(declared)
        else:
            languages.append(usual)
    return languages


def with_languages(
    documents: Sequence[Document], languages: Sequence[str] | None, usual: str
) -> list[Document]:
    """The documents with ``lang`` in the metadata of those whose language is not the usual one."""
    if languages is None:
        return list(documents)
    recorded = []
    for document, language in zip(documents, languages, strict=True):
        if language != usual:
            document = document._replace(metadata={**(document.metadata or {}), LANG: language})
        recorded.append(document)
    return recorded


def in_language(
    documents: Sequence[Document], languages: Sequence[str] | None, language: str
) -> list[Document]:
    """The documents in one language; all of them if none was recognised."""
    if languages is None:
        return list(documents)
    pairs = zip(documents, languages, strict=True)
    return [document for document, own in pairs if own == language]


def documents_for_reading(
    documents: Sequence[Document], languages: Sequence[str] | None, usual: str
) -> list[Document]:
    """The documents used to measure the weight of the index's own language. In a mixed collection, only those that are
    certainly in this language count, so the weight is the same as in an index of these documents alone."""
    own = in_language(documents, languages, usual)
    if len(own) == len(documents):
        return own
    return [d for d in own if language_of_document(d.joined(), OTHER) == usual]


def measured_factors(
    encoder: Encoder,
    documents: Sequence[Document],
    languages: Sequence[str] | None,
    known: Mapping[str, float],
    usual_weight: float,
) -> dict[str, float]:
    """The factors of the vectors of languages that are not ``known`` yet.

    ``usual_weight``: what vectors count in the language of the index.
    """
    factors = {}
    for language in dict.fromkeys(languages or ()):
        if language == encoder.settings.language or language in known:
            continue
        weight = vector_weight(encoder, in_language(documents, languages, language), language)
        factors[language] = round((weight / usual_weight) ** 0.5, _DECIMALS)
    return factors


def weighted(
    representation: Representation, languages: Sequence[str] | None, factors: Mapping[str, float]
) -> Representation:
    """The representation with each vector times the factor of its language."""
    row_factors = _row_factors(languages, factors)
    if row_factors is None or representation.cls is None:
        return representation
    return replace(representation, cls=representation.cls * row_factors[:, None])


def weighted_excerpts(
    excerpts: Excerpts, languages: Sequence[str] | None, factors: Mapping[str, float]
) -> Excerpts:
    """The excerpts of documents with each vector times the factor of its document's language."""
    row_factors = _row_factors(languages, factors)
    return excerpts if row_factors is None else excerpts.times(row_factors)


def _row_factors(
    languages: Sequence[str] | None, factors: Mapping[str, float]
) -> np.ndarray | None:
    """(n,) float32, the factor of each document's vectors; None if all are 1."""
    if languages is None or not factors:
        return None
    return np.array([factors.get(language, 1.0) for language in languages], np.float32)
