"""Plain text and reStructuredText. The text is that of the file, so offsets are places in the file."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence

from dupmae_ir.io.documents.readers.encodings import decoded
from dupmae_ir.io.documents.readers.extracted import Extracted, Heading

MAX_HEADING = 200
"""Characters of a line above which it is not a heading."""

# The lookahead takes the first character before the loop repeats it, so a long line is read once.
_UNDERLINE = re.compile(r"^(?=([=\-~^\"'`*+#.:_]))\1{3,}[ \t]*$", re.MULTILINE)
_QUESTION = re.compile(
    r"(?:\A|(?<=\n\n))[ \t]{0,3}(?=\d+(?:\.\d+)*[.)]?[ \t]|Q[:.)]|.*\?[ \t]*$)(\S.{3,150})$(?=\n[ \t]*$)",
    re.MULTILINE,
)
"""A line between blank ones that is numbered, begins with Q, or ends with a question mark."""


def read_text(data: bytes) -> Extracted:
    """Plain text and reStructuredText: underlined lines are headings, and so are the questions of a FAQ."""
    text, guess = decoded(data)
    headings = list(underlined_headings(text, ()))
    title = ""
    # The first heading is the title only if nothing is above it.
    if headings and not text[: headings[0].start].strip():
        title = headings[0].text

    # Questions are below every underlined heading.
    question_level = len({heading.level for heading in headings}) + 1
    underlined_starts = {heading.start for heading in headings}
    for match in _QUESTION.finditer(text):
        if match.start() not in underlined_starts:
            headings.append(Heading(match.start(), question_level, match[1]))
    return Extracted(text, title, headings, guess=guess)


def underlined_headings(text: str, taken: Collection[int]) -> Iterator[Heading]:
    """The lines that the next line underlines, except for those that start at a place in ``taken``.

    As in reStructuredText, the character that is used first is the highest level, the second one the next, and so on.
    """
    characters: list[str] = []
    for match in _UNDERLINE.finditer(text):
        end = match.start() - 1
        if end <= 0:
            continue
        start = text.rfind("\n", max(0, end - MAX_HEADING), end) + 1
        title = text[start:end].strip()
        if not title or not title[0].isalnum():
            continue
        if start in taken or end - start > MAX_HEADING:
            continue
        # Four dashes below a long line separate paragraphs and underline nothing.
        underline = match.group().rstrip()
        if len(underline) < min(len(title), 12):
            continue
        character = match.group(1)
        if character not in characters:
            characters.append(character)
        yield Heading(start, characters.index(character) + 1, title)


def block_borders(pattern: re.Pattern[str], text: str) -> list[int]:
    """Where blocks of code and the like begin and end, in turns.

    ``pattern`` matches such a line, and its first group the border, such as three backquotes. A block ends with the
    border that began it; others inside it are its text.
    """
    borders = []
    open_border = ""
    for match in pattern.finditer(text):
        if not open_border:
            open_border = match[1]
            borders.append(match.start())
        elif match[1] == open_border:
            open_border = ""
            borders.append(match.start())
    return borders


def is_in_block(place: int, borders: Sequence[int]) -> bool:
    """Whether a place has an odd number of borders before it."""
    return bisect_right(borders, place) % 2 == 1
