"""Pseudo-queries: a title, a heading, a sentence or a run of words of a document, and the passage without it."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dupmae_ir.models.analyzer import stems
from dupmae_ir.types import Document

KINDS = ("title", "heading", "sentence", "words")
"""Most like a query first: held-out documents use the first kind that they have."""
FEWEST, MOST = 2, 40  #: words of a pseudo-query, stop words left out
RUN = 8  #: words of a run
REST = 5  #: words that its passage must keep

_HEADING = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t#]*$", re.M)
# Some collections are in lower case with a space before the full stop.
_SENTENCE = re.compile(r"(?<=\s[.!?])\s+|(?<=[.!?])\s+(?=[\"'(\[]*[A-Z0-9])|\n{2,}")


class PseudoQuery(NamedTuple):
    """A query and the passage that it was taken from and that no longer contains it."""

    query: str
    passage: Document
    kind: str


def pseudo_queries(document: Document, kinds: Sequence[str] = KINDS) -> list[PseudoQuery]:
    """All pseudo-queries of a document, in the order of ``kinds``; none with too few words on either side."""
    makers = (_from_title, _from_headings, _from_sentences, _from_words)
    made = (q for kind, make in zip(KINDS, makers, strict=True) if kind in kinds for q in make(document))
    return [q for q in made if _usable(q)]


def draw(document: Document, kinds: Sequence[str], rng: random.Random) -> PseudoQuery | None:
    """A random pseudo-query: first its kind, then one of that kind."""
    found = pseudo_queries(document, kinds)
    if not found:
        return None
    kind = rng.choice(sorted({q.kind for q in found}))
    return rng.choice([q for q in found if q.kind == kind])


def _usable(found: PseudoQuery) -> bool:
    rest = len(stems(found.passage.title)) + len(stems(found.passage.text))
    return FEWEST <= len(stems(found.query)) <= MOST and rest >= REST


def _from_title(document: Document) -> Iterator[PseudoQuery]:
    if document.title.strip():
        yield PseudoQuery(document.title.strip(), document._replace(title=""), "title")


def _from_headings(document: Document) -> Iterator[PseudoQuery]:
    """Each heading with the text up to the next."""
    found = list(_HEADING.finditer(document.text))
    ends = [*(heading.start() for heading in found[1:]), len(document.text)][: len(found)]
    for heading, end in zip(found, ends, strict=True):
        text = document.text[heading.end() : end].strip()
        yield PseudoQuery(heading[1].strip(), document._replace(text=text), "heading")


def _from_sentences(document: Document) -> Iterator[PseudoQuery]:
    """Each sentence with the others."""
    sentences = _sentences(document.text)
    if len(sentences) < 2:
        return
    for number, sentence in enumerate(sentences):
        rest = " ".join(sentences[:number] + sentences[number + 1 :])
        yield PseudoQuery(" ".join(sentence.split()), document._replace(text=rest), "sentence")


def _from_words(document: Document) -> Iterator[PseudoQuery]:
    """Runs of words, of a text without sentences."""
    words = document.text.split()
    if len(_sentences(document.text)) > 1:
        return
    for start in range(0, len(words) - RUN + 1, RUN):
        rest = " ".join(words[:start] + words[start + RUN :])
        yield PseudoQuery(" ".join(words[start : start + RUN]), document._replace(text=rest), "words")


def _sentences(text: str) -> list[str]:
    return [s for s in _SENTENCE.split(text) if s and s.strip()]
