"""How well a model's dense part reads a collection, measured on the collection's own text.

The dense part of a model knows the languages it was trained on. Where it knows little, its scores rank at random, and
their sum with good word weights is worse than these alone. So for every language other than English, some passages are
cut into halves, and the first words of the second half search for the first half. The weight of the dense score in the
sum is the cube of the mean reciprocal rank, relative to that of English text: the exponent that fits the best weights
in nine languages (benchmarks/languages.py). The index records it with the encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dupmae_ir.models.languages import ENGLISH
from dupmae_ir.types import Document, Encoder

PASSAGES = 128
"""Passages that search for their other halves."""
FEWEST = 8
"""With fewer passages, the weight of an additional language is not measured."""
_QUERY = 120
"""Characters of a query."""
_MIN_CHARACTERS = 40
"""Characters of a passage that can be cut."""
READS_WELL = 0.88
"""Mean reciprocal rank, above chance, that the embedded model has on English text, where the parts weigh the same."""
_MIN_WEIGHT = 0.001
"""The sum is of both parts, so the weight is positive."""


@dataclass(frozen=True)
class Reading:
    """``found``: the mean reciprocal rank above chance, 0 to 1, of ``passages``; ``weight``: of the dense score."""

    found: float
    passages: int
    weight: float


def measure(encoder: Encoder, documents: Sequence[Document], language: str) -> Reading | None:
    """The measurement for documents in a language; None for English, for a model of all languages, without a dense part
    or word weights of a language, or without text."""
    if not _depends_on_language(encoder, language):
        return None
    stripped = [document.text.strip() for document in documents]
    texts = [text for text in stripped if len(text) >= _MIN_CHARACTERS]
    # One passage would always find its other half.
    if len(texts) < 2:
        return None
    # Evenly spaced over the window.
    selection = np.linspace(0, len(texts) - 1, min(PASSAGES, len(texts))).astype(int)
    halves = [_halves(texts[position]) for position in selection]
    first = encoder.encode_documents([beginning for beginning, _ in halves]).cls
    second = encoder.encode_queries([rest[:_QUERY] for _, rest in halves]).cls
    assert first is not None
    assert second is not None
    scores = second @ first.T
    # The rank of the other half, in the diagonal, behind all that have its score: equal vectors find nothing.
    ranks = (scores >= np.diag(scores)[:, None]).sum(1)
    mean_reciprocal_rank = float(np.mean(1 / ranks))
    # What a random order has: each rank is equally probable.
    chance = float(np.mean(1 / np.arange(1, len(halves) + 1)))
    above_chance = max(0.0, (mean_reciprocal_rank - chance) / (1 - chance))
    # At most 1, the weight for English text.
    weight = round(min(1.0, (above_chance / READS_WELL) ** 3), 3)
    return Reading(round(above_chance, 3), len(halves), max(_MIN_WEIGHT, weight))


def vector_weight(encoder: Encoder, documents: Sequence[Document], language: str) -> float:
    """The weight of the vectors of an additional language; 1 for English.

    With too little text to measure it, the lowest weight, which leaves the ranking to the words.
    """
    if not _depends_on_language(encoder, language):
        return 1.0
    reading = measure(encoder, documents, language)
    if reading is None or reading.passages < FEWEST:
        return _MIN_WEIGHT
    return reading.weight


def _depends_on_language(encoder: Encoder, language: str) -> bool:
    """Whether what the vectors of a language count must be measured: beside word weights, unless the model reads it."""
    settings = encoder.settings
    reads = language == ENGLISH or settings.multilingual
    return encoder.dim is not None and settings.ot == "lexical" and not reads


def _halves(text: str) -> tuple[str, str]:
    """A text cut in the middle, at a blank if there is one near."""
    middle = len(text) // 2
    blank = text.find(" ", middle, middle + _MIN_CHARACTERS)
    if blank > 0:
        middle = blank
    return text[:middle], text[middle:].strip()
