"""Passages: the rules by which documents are cut. Another rule belongs here.

* :func:`structured_passages`, for files of documents: along headings and sentences, with an overlap inside a section.
  Lengths are in tokens, a cheap estimate of an encoder's word pieces: words of up to six letters or digits (longer ones
  count several times), other characters one by one. A passage is a slice of the text, so its offsets say where it is.
* :func:`word_passages`, for collections of lines (``encode.passages``): overlapping runs of words.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dupmae_ir.errors import InputError
from dupmae_ir.io.documents.extracted import Extracted, Heading
from dupmae_ir.types import PASSAGE_DELIMITER, Document

_WIDE = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
_TOKEN = re.compile(rf"[{_WIDE}]|[^\W_{_WIDE}]{{1,6}}|\S")
_SENTENCE_END = re.compile(
    r"(?<=[.!?])[\"'\u201d\u2019)\]]{0,3}\s+(?=[\"'\u201c\u2018(\[]?[^\W_a-z])"
    r"|(?<=[\u3002\uff01\uff1f])|\n[ \t]*\n|\n(?=[ \t]*(?:[-*\u2022+]|\d{1,3}[.)])[ \t])"
)
_LINE_END = re.compile(r"\n")
_LONGEST_HEADING = 300


class TextSpan(NamedTuple):
    """A slice of the text, and the headings that it is under, joined by ``>``."""

    start: int
    end: int
    heading: str


class _Unit(NamedTuple):
    """A sentence, a line, or a part of a long one."""

    start: int
    end: int
    tokens: int


def structured_passages(extracted: Extracted, length: int, overlap: int) -> Iterator[TextSpan]:
    """The passages of a text, in order; none is blank. ``length`` and ``overlap`` are in tokens.

    A heading begins a new passage unless the passage before it has less than a quarter of ``length``. A passage that
    ``length`` ends is followed by one that begins with its last sentences, as many as fit ``overlap``.
    """
    headings = sorted(extracted.headings)
    borders = [heading.start for heading in headings]
    names = _paths(headings)

    def joined(units: Sequence[_Unit]) -> TextSpan:
        place = bisect_right(borders, units[0].start)
        return TextSpan(units[0].start, units[-1].end, names[place - 1] if place else "")

    current: list[_Unit] = []
    size = 0
    for begin, end in zip([0, *borders], [*borders, len(extracted.text)], strict=True):
        if current and size >= length // 4:
            yield joined(current)
            current, size = [], 0
        for unit in _units(extracted, begin, end, length):
            if current and size + unit.tokens > length:
                yield joined(current)
                current = _tail(current, min(overlap, length - unit.tokens))
                size = sum(kept.tokens for kept in current)
            current.append(unit)
            size += unit.tokens
    if current:
        yield joined(current)


def word_passages(document: Document, words: int, stride: int, titles: bool = True) -> Iterator[Document]:
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
    for number, start in enumerate(range(0, max(1, len(tokens) - words + stride), stride)):
        text = " ".join(tokens[start : start + words])
        yield Document(
            f"{document.docid}{PASSAGE_DELIMITER}{number}", text, document.title if titles or not number else ""
        )


def count_tokens(text: str) -> int:
    """The length of a text in tokens."""
    return sum(1 for _ in _TOKEN.finditer(text))


def _tail(units: Sequence[_Unit], room: int) -> list[_Unit]:
    """The last units that together have at most ``room`` tokens."""
    kept = len(units)
    while kept and units[kept - 1].tokens <= room:
        kept -= 1
        room -= units[kept].tokens
    return list(units[kept:])


def _units(extracted: Extracted, begin: int, end: int, length: int) -> Iterator[_Unit]:
    """The sentences or lines between two places; those above ``length`` tokens are cut between words."""
    text, pattern = extracted.text, _LINE_END if extracted.lines else _SENTENCE_END
    start = begin
    for border in (*(m.end() for m in pattern.finditer(text, begin, end)), end):
        piece = text[start:border]
        if stripped := piece.strip():
            first = start + len(piece) - len(piece.lstrip())
            yield from _cut(text, first, first + len(stripped), length)
        start = border


def _cut(text: str, start: int, end: int, length: int) -> Iterator[_Unit]:
    tokens = [m.start() for m in _TOKEN.finditer(text, start, end)]
    while len(tokens) > length:
        cut = next((i for i in range(length, length // 2, -1) if text[tokens[i] - 1].isspace()), length)
        stop = tokens[cut]
        yield _Unit(start, start + len(text[start:stop].rstrip()), cut)
        start, tokens = stop, tokens[cut:]
    yield _Unit(start, end, len(tokens))


def _paths(headings: Sequence[Heading]) -> list[str]:
    """Each heading after the headings above it, outermost first."""
    above: list[Heading] = []
    found = []
    for heading in headings:
        while above and above[-1].level >= heading.level:
            above.pop()
        above.append(heading)
        found.append(" > ".join(h.text for h in above)[-_LONGEST_HEADING:])
    return found
