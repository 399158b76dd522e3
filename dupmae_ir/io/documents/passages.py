"""Cutting a text into passages along its headings and sentences, with an overlap inside a section.

Nothing here knows a format: it reads the text, the headings, and whether lines or sentences are the units. Lengths are
in tokens, a cheap estimate of an encoder's word pieces: words of up to six letters or digits (longer ones count several
times), other characters one by one. A passage is a slice of the text, so its offsets say where it is. Collections of
lines are cut by :func:`dupmae_ir.encode.passages.word_passages`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dupmae_ir.io.documents.readers.extracted import Extracted, Heading

_WIDE = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
"""Kana, ideographs and Hangul: scripts whose words are not separated, so each character is a token."""
_TOKEN = re.compile(rf"[{_WIDE}]|[^\W_{_WIDE}]{{1,6}}|\S")
# White space after a full stop and before a capital; after an ideographic stop; at a blank line; before a list's item.
_SENTENCE_END = re.compile(
    r"(?<=[.!?])[\"'\u201d\u2019)\]]{0,3}\s+(?=[\"'\u201c\u2018(\[]?[^\W_a-z])"
    r"|(?<=[\u3002\uff01\uff1f])|\n[ \t]*\n|\n(?=[ \t]*(?:[-*\u2022+]|\d{1,3}[.)])[ \t])"
)
_LINE_END = re.compile(r"\n")
_BLANK_LINE = re.compile(r"[ \t]*\n[ \t]*\n")
_STOPS = ".!?\u3002\uff01\uff1f"
_MAX_HEADING_PATH = 300
_MAX_COUNTED = 10_000
"""Characters of a sentence or line whose tokens are in memory at once."""


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


class _Outline:
    """The headings of a text, for the heading of a passage."""

    def __init__(self, headings: Sequence[Heading]) -> None:
        in_order = sorted(headings)
        self.starts = [heading.start for heading in in_order]
        self._paths = _heading_paths(in_order)

    def span(self, units: Sequence[_Unit]) -> TextSpan:
        """Units as one passage, under the heading that most of their tokens are under."""
        sizes: Counter[int] = Counter()
        for unit in units:
            sizes[bisect_right(self.starts, unit.start)] += unit.tokens
        section = max(sizes, key=sizes.__getitem__)
        # Section 0 is what stands above the first heading.
        path = self._paths[section - 1] if section else ""
        return TextSpan(units[0].start, units[-1].end, path)


def structured_passages(extracted: Extracted, length: int, overlap: int) -> Iterator[TextSpan]:
    """The passages of a text, in order; none is blank. ``length`` and ``overlap`` are in tokens.

    A heading begins a new passage, unless the section before it has fewer than a quarter of ``length`` tokens in all. A
    passage that ``length`` ends is followed by one that begins with its last sentences, as many as fit ``overlap``. A
    line without a full stop before a blank line, such as a caption, does not end a passage. The heading of a passage
    is the one that most of it is under.
    """
    outline = _Outline(extracted.headings)
    current: list[_Unit] = []
    size = 0  # tokens of the current units
    repeated = 0  # units at the beginning that are also in the passage before
    continued = False  # whether the current passage continues a section that `length` cut

    section_starts = [0, *outline.starts]
    section_ends = [*outline.starts, len(extracted.text)]
    for section_start, section_end in zip(section_starts, section_ends, strict=True):
        # A small section is kept and joined with the next one; the rest of a cut one is not.
        if current and (continued or size >= length // 4):
            yield outline.span(current)
            current = []
            size = 0
            repeated = 0
            continued = False
        for unit in _units(extracted, section_start, section_end, length):
            if current and size + unit.tokens > length:
                room = length - unit.tokens
                # A caption moves to what follows it, if that leaves the passage more than its overlap.
                moved: list[_Unit] = []
                last = current[-1]
                is_new = len(current) - 1 > repeated
                if is_new and last.tokens <= room and _is_caption(extracted, last.end):
                    moved = [current.pop()]
                    room -= last.tokens
                yield outline.span(current)
                tail = _tail(current, min(overlap, room))
                current = [*tail, *moved]
                size = sum(kept.tokens for kept in current)
                repeated = len(tail)
                continued = True
            current.append(unit)
            size += unit.tokens
    if current:
        yield outline.span(current)


def _is_caption(extracted: Extracted, end: int) -> bool:
    """Whether a unit that ends at ``end`` is prose without a full stop before a blank line."""
    if extracted.lines or extracted.text[end - 1] in _STOPS:
        return False
    return bool(_BLANK_LINE.match(extracted.text, end))


def _tail(units: Sequence[_Unit], room: int) -> list[_Unit]:
    """The last units that together have at most ``room`` tokens."""
    start = len(units)
    while start and units[start - 1].tokens <= room:
        start -= 1
        room -= units[start].tokens
    return list(units[start:])


def _units(extracted: Extracted, begin: int, end: int, length: int) -> Iterator[_Unit]:
    """The sentences or lines between two places; those above ``length`` tokens are cut between words."""
    text = extracted.text
    pattern = _LINE_END if extracted.lines else _SENTENCE_END
    borders = [match.end() for match in pattern.finditer(text, begin, end)]
    start = begin
    for border in (*borders, end):
        piece = text[start:border]
        stripped = piece.strip()
        if stripped:
            first = start + len(piece) - len(piece.lstrip())
            yield from _cut(text, first, first + len(stripped), length)
        start = border


def _cut(text: str, start: int, end: int, length: int) -> Iterator[_Unit]:
    """A sentence or line as units of at most ``length`` tokens."""
    # Nearly all of them have no more, and counting is several times as fast as noting where each token begins.
    if end - start <= _MAX_COUNTED:
        count = len(_TOKEN.findall(text, start, end))
        if count <= length:
            yield _Unit(start, end, count)
            return
    # A log can be one long sentence, so only the beginnings of one unit's tokens, and one more, are kept.
    token_starts: list[int] = []
    for match in _TOKEN.finditer(text, start, end):
        token_starts.append(match.start())
        if len(token_starts) > length:
            cut = _cut_position(text, token_starts, length)
            stop = token_starts[cut]
            yield _Unit(start, start + len(text[start:stop].rstrip()), cut)
            start = stop
            token_starts = token_starts[cut:]
    yield _Unit(start, end, len(token_starts))


def _cut_position(text: str, token_starts: Sequence[int], length: int) -> int:
    """Tokens before the last white space in the second half of a unit; ``length`` if there is none."""
    for position in range(length, length // 2, -1):
        if text[token_starts[position] - 1].isspace():
            return position
    return length


def _heading_paths(headings: Sequence[Heading]) -> list[str]:
    """Each heading after the headings above it, outermost first."""
    above: list[Heading] = []
    paths = []
    for heading in headings:
        while above and above[-1].level >= heading.level:
            above.pop()
        above.append(heading)
        path = " > ".join(outer.text for outer in above)
        # The end is the nearest heading, so a long path loses its beginning.
        paths.append(path[-_MAX_HEADING_PATH:])
    return paths
