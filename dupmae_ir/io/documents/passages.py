"""Cutting a text into passages along its headings and sentences, with an overlap inside a section.

Nothing here knows a format: it reads the text, the headings, and whether lines or sentences are the units. Lengths are
in the tokens of a :class:`TokenMeasure`: the word pieces of the model that reads the passages, or an estimate of them.
A passage is a slice of the text, so its offsets say where it is. Collections of lines are cut by
:func:`dupmae_ir.encode.passages.word_passages`.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

from dupmae_ir.io.documents.readers.extracted import Border, Extracted, Heading

_WIDE = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
"""Kana, ideographs and Hangul: scripts whose words are not separated, so each character is a token."""
_TOKEN = re.compile(rf"[{_WIDE}]|[^\W_{_WIDE}]{{1,6}}|\S")
# White space after a full stop and before a capital; after an ideographic stop; at a blank line; before a list's item.
_SENTENCE_END = re.compile(
    r"(?<=[.!?])[\"'\u201d\u2019)\]]{0,3}\s+(?=[\"'\u201c\u2018(\[]?[^\W_a-z])"
    r"|(?<=[\u3002\uff01\uff1f])|\n[ \t]*\n|\n(?=[ \t]*(?:[-*\u2022+]|\d{1,3}[.)])[ \t])"
)
_LINE_END = re.compile(r"\n")
_BLANKS = re.compile(r"\s+")
_BLANK_LINE = re.compile(r"[ \t]*\n[ \t]*\n")
_STOPS = ".!?\u3002\uff01\uff1f"
_MAX_HEADING_PATH = 300
_BLOCK = 10_000
"""Characters whose tokens are counted, and are in memory, at once; a longer sentence or line is cut there."""


class TokenMeasure(Protocol):
    """How long texts are, in tokens."""

    def starts(self, text: str) -> Sequence[int]:
        """Where each token of a text begins, in order."""

    def room(self, title: str, most: int) -> int:
        """How many tokens of a text fit beside its title; no more than ``most``."""

    def fitted(self, title: str) -> str:
        """The title, shortened if it would take more than half of the room."""


class EstimatedTokens:
    """An estimate of an encoder's word pieces: words of up to six letters or digits (longer ones count several times),
    other characters one by one."""

    def starts(self, text: str) -> Sequence[int]:
        """Where each token of a text begins."""
        return [match.start() for match in _TOKEN.finditer(text)]

    def room(self, title: str, most: int) -> int:  # noqa: ARG002 (the words of all texts are read)
        """``most``: nothing is cut."""
        return most

    def fitted(self, title: str) -> str:
        """The title."""
        return title


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
        # Section 0 is what stands above the first heading.
        self.paths = ["", *_heading_paths(in_order)]

    def span(self, units: Sequence[_Unit]) -> TextSpan:
        """Units as one passage, under the heading that most of their tokens are under."""
        sizes: Counter[int] = Counter()
        for unit in units:
            sizes[bisect_right(self.starts, unit.start)] += unit.tokens
        section = max(sizes, key=sizes.__getitem__)
        return TextSpan(units[0].start, units[-1].end, self.paths[section])


def structured_passages(
    extracted: Extracted, length: Callable[[str], int], overlap: int, measure: TokenMeasure
) -> Iterator[TextSpan]:
    """The passages of a text, in order; none is blank.

    ``length``: the most tokens of a passage under a heading path, which is empty above the first heading. A passage
    with several headings has the fewest of theirs. ``overlap``: tokens.

    A heading begins a new passage, unless the section before it has fewer than a quarter of ``length`` in all. A
    passage that ``length`` ends is followed by one that begins with the section's last sentences, as many as fit
    ``overlap``. A line without a full stop before a blank line, such as a caption, does not end a passage. In a text
    with borders, what fits in a passage is not cut. The heading of a passage is the one that most of it is under.
    """
    outline = _Outline(extracted.headings)
    current: list[_Unit] = []
    size = 0  # tokens of the current units
    of_section = 0  # units at the end that are of the current section
    repeated = 0  # units at the beginning that are also in the passage before
    continued = False  # whether the current passage continues a section that `length` cut
    limit = 0  # tokens of the current passage at most

    section_starts = [0, *outline.starts]
    section_ends = [*outline.starts, len(extracted.text)]
    sections = zip(section_starts, section_ends, outline.paths, strict=True)
    for section_start, section_end, path in sections:
        section_limit = length(path)
        # A small section is kept and joined with the next one; the rest of a cut one is not.
        if current and (continued or size >= limit // 4):
            yield outline.span(current)
            current = []
            size = 0
            repeated = 0
            continued = False
        limit = min(limit, section_limit) if current else section_limit
        of_section = 0
        for unit in _units(extracted, section_start, section_end, section_limit, measure):
            if current and size + unit.tokens > limit:
                room = limit - unit.tokens
                # A caption moves to what follows it, if that leaves the passage more than its overlap.
                moved: list[_Unit] = []
                last = current[-1]
                is_new = len(current) - 1 > repeated
                if is_new and last.tokens <= room and _is_caption(extracted, last.end):
                    moved = [current.pop()]
                    of_section = max(0, of_section - 1)
                    room -= last.tokens
                yield outline.span(current)
                limit = section_limit
                tail = _tail(current[len(current) - of_section :], min(overlap, room))
                current = [*tail, *moved]
                of_section = len(current)
                size = sum(kept.tokens for kept in current)
                repeated = len(tail)
                continued = True
            current.append(unit)
            of_section += 1
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


def _units(
    extracted: Extracted, begin: int, end: int, length: int, measure: TokenMeasure
) -> Iterator[_Unit]:
    """The parts between two places that are not cut, of at most ``length`` tokens."""
    if extracted.borders:
        yield from _BorderedUnits(extracted, length, measure).between(begin, end)
    else:
        yield from _sentence_units(extracted, begin, end, length, measure)


class _Part(NamedTuple):
    """A part of the text, and where its tokens begin; None if it is too long to count them.

    It is cut at borders after ``joined``, if there are any.
    """

    start: int
    end: int
    token_starts: Sequence[int] | None
    joined: int

    def between(self, start: int, end: int, joined: int = 0) -> _Part:
        """A part of this one."""
        if self.token_starts is None:
            return _Part(start, end, None, joined)
        low = bisect_left(self.token_starts, start)
        high = bisect_left(self.token_starts, end)
        return _Part(start, end, self.token_starts[low:high], joined)

    def fits(self, length: int) -> bool:
        """Whether it has at most ``length`` tokens."""
        return self.token_starts is not None and len(self.token_starts) <= length


class _BorderedUnits:
    """The units of a text with borders: the largest parts that fit in a passage."""

    def __init__(self, extracted: Extracted, length: int, measure: TokenMeasure) -> None:
        self._extracted = extracted
        self._text = extracted.text
        self._borders = extracted.borders
        self._length = length
        self._measure = measure

    def between(self, begin: int, end: int) -> Iterator[_Unit]:
        """The units between two places."""
        parts = [_Part(begin, end, None, begin)]
        while parts:
            part = self._counted(parts.pop())
            if part.fits(self._length):
                yield from self._unit(part)
                continue
            inner = self._cut(part)
            parts += reversed(inner)
            if not inner:
                yield from _sentence_units(
                    self._extracted, part.start, part.end, self._length, self._measure
                )

    def _counted(self, part: _Part) -> _Part:
        if part.token_starts is not None or part.end - part.start > _BLOCK:
            return part
        starts = self._measure.starts(self._text[part.start : part.end])
        return part._replace(token_starts=[part.start + start for start in starts])

    def _unit(self, part: _Part) -> Iterator[_Unit]:
        """A part without the white space around it; nothing if it has nothing else."""
        piece = self._text[part.start : part.end]
        stripped = piece.strip()
        if stripped:
            assert part.token_starts is not None
            start = part.start + len(piece) - len(piece.lstrip())
            yield _Unit(start, start + len(stripped), max(1, len(part.token_starts)))

    def _cut(self, part: _Part) -> list[_Part]:
        """A part cut at its least deep borders; nothing if it has none.

        What is above the first, such as the first line of a loop, stays with the part below it, unless that fits in a
        passage by itself only.
        """
        low = bisect_right(self._borders, max(part.start, part.joined), key=_start)
        high = bisect_left(self._borders, part.end, key=_start)
        inside = self._borders[low:high]
        if not inside and part.joined > part.start:
            return [part.between(part.start, part.joined), part.between(part.joined, part.end)]
        if not inside:
            return []
        least = min(border.depth for border in inside)
        first, *places = [border.start for border in inside if border.depth == least]
        places.append(part.end)
        head = part.between(part.start, first)
        below = part.between(first, places[0])
        with_head = part.between(part.start, places[0], joined=first)
        fits_alone_only = below.fits(self._length) and not with_head.fits(self._length)
        parts = [with_head]
        if fits_alone_only or not head.fits(self._length):
            parts = [head, below]
        return parts + [part.between(*pair) for pair in pairwise(places)]


def _start(border: Border) -> int:
    return border.start


def _sentence_units(
    extracted: Extracted, begin: int, end: int, length: int, measure: TokenMeasure
) -> Iterator[_Unit]:
    """The sentences or lines between two places; those above ``length`` tokens are cut between words."""
    text = extracted.text
    for block in _blocks(extracted, begin, end):
        first = block[0].start
        # Counted together: a word may be other pieces at the beginning of a text than after a blank.
        token_starts = measure.starts(text[first : block[-1].stop])
        ends = [sentence.stop for sentence in block]
        if extracted.lines:
            # The indents of lines are tokens, too.
            ends[:-1] = [sentence.start for sentence in block[1:]]
        for sentence, end_of_tokens in zip(block, ends, strict=True):
            low = bisect_left(token_starts, sentence.start - first)
            high = bisect_left(token_starts, end_of_tokens - first)
            starts = [first + start for start in token_starts[low:high]]
            yield from _cut(text, sentence, starts, length)


def _blocks(extracted: Extracted, begin: int, end: int) -> Iterator[list[slice]]:
    """The sentences or lines between two places, without the white space around them, as many as a block has room for;
    those above a block's length in several parts."""
    block: list[slice] = []
    for sentence in _sentences(extracted, begin, end):
        for part in _parts(extracted.text, sentence):
            if block and part.stop - block[0].start > _BLOCK:
                yield block
                block = []
            block.append(part)
    if block:
        yield block


def _sentences(extracted: Extracted, begin: int, end: int) -> Iterator[slice]:
    """The places of the sentences or lines between two places, without the white space around them."""
    text = extracted.text
    pattern = _LINE_END if extracted.lines else _SENTENCE_END
    start = begin
    borders = [match.end() for match in pattern.finditer(text, begin, end)]
    for border in (*borders, end):
        piece = text[start:border]
        stripped = piece.strip()
        if stripped:
            first = start + len(piece) - len(piece.lstrip())
            yield slice(first, first + len(stripped))
        start = border


def _parts(text: str, sentence: slice) -> Iterator[slice]:
    """A sentence or line in parts of at most a block, which end between words if they can."""
    start = sentence.start
    while sentence.stop - start > _BLOCK:
        words = text[start : start + _BLOCK].rsplit(None, 1)
        # The last word may go on after the block. If there is no other, it is cut.
        stop = start + _BLOCK
        if len(words) > 1:
            stop = start + len(words[0])
        yield slice(start, stop)
        start = _after_blanks(text, stop)
    yield slice(start, sentence.stop)


def _after_blanks(text: str, start: int) -> int:
    """The first place from ``start`` on without white space."""
    blanks = _BLANKS.match(text, start)
    return blanks.end() if blanks else start


def _cut(text: str, part: slice, token_starts: Sequence[int], length: int) -> Iterator[_Unit]:
    """A sentence or line, whose tokens begin at ``token_starts``, as units of at most ``length`` tokens."""
    start = part.start
    while len(token_starts) > length:
        # At least one character, whose pieces may be more than `length`.
        stop = max(_cut_place(text, token_starts, length), start + 1)
        rest = bisect_left(token_starts, stop)
        yield _Unit(start, start + len(text[start:stop].rstrip()), rest)
        start = _after_blanks(text, stop)
        token_starts = token_starts[rest:]
    if start < part.stop:
        # Characters that no token is made of, such as invisible ones, count as one.
        yield _Unit(start, part.stop, max(1, len(token_starts)))


def _cut_place(text: str, token_starts: Sequence[int], length: int) -> int:
    """Where at most ``length`` tokens end: at the last white space in their second half, or else between the last two
    characters."""
    for position in range(length, length // 2, -1):
        start = token_starts[position]
        # Some tokenizers count the blank before a word as the word's.
        if text[start - 1].isspace() or text[start].isspace():
            return start
    # All pieces of a character begin at the same place, so they stay together.
    return token_starts[length]


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
