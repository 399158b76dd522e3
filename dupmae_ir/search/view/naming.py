"""What a person calls things: the file, page or heading of a hit, its text without markup, the parts of a score."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from dupmae_ir.types import MetadataValue

MODE_NAMES = {"dense": "meaning", "impact": "words", "hybrid": "meaning and words"}
"""Mode of search -> what its scores compare."""
NOTHING_MISSED = "nothing missed"
"""A certified list: no document outside it has a higher score."""
NOTABLE = 0.01
"""A word is listed with a hit if it has this share of the score."""
NO_WORD = "note: no word of the query is in these texts; they are the nearest in meaning"
_UNDERLINE = r"^[ \t]*([=\-~^*_#])\1{2,}[ \t]*(?:\n|\Z)"
_MARKUP = {
    "text": re.compile(_UNDERLINE, re.MULTILINE),
    "md": re.compile(
        rf"{_UNDERLINE}|^[ \t]*#{{1,6}}[ \t]+|\*\*|(?<!\w)__|__(?!\w)|`+"
        r"|(?<=\])\([^)\s]{0,300}\)|[\[\]]|^[ \t:|-]{5,}\n",
        re.MULTILINE,
    ),
}
_MARKUP["ipynb"] = _MARKUP["md"]
_MAX_HEADING_CHARACTERS = 400
MAX_HIDDEN = 300
"""Hidden parts of a text, each of which is looked at for every marked word."""
LONGEST_MARKUP = 1 << 15
"""First characters of a text in which they are looked for, more than a passage has."""


class Place(NamedTuple):
    """Where a passage is: its file, and the page or the nearest heading, if they are known."""

    path: str
    page: int | None = None
    heading: str | None = None

    @classmethod
    def of(cls, metadata: Mapping[str, MetadataValue]) -> Place | None:
        """The place that the metadata of a passage has; None for a document that is of no file."""
        path = metadata.get("path")
        if not isinstance(path, str):
            return None
        page = metadata.get("page")
        nearest_heading = None
        headings = metadata.get("heading")
        if isinstance(headings, str):
            # "Chapter > Section": the last is the nearest.
            _, _, nearest_heading = headings.rpartition(" > ")
        return cls(path, page if isinstance(page, int) else None, nearest_heading or None)

    def __str__(self) -> str:
        if self.page is not None:
            return f"{self.path}, page {self.page}"
        if self.heading:
            return f"{self.path}, {self.heading}"
        return self.path


def digits(number: float) -> str:
    """A score with three digits."""
    if abs(number) >= 1000:
        return f"{number:,.0f}"
    return f"{number:.3g}"


def hidden_markup(
    text: str, metadata: Mapping[str, MetadataValue], title: str = ""
) -> list[tuple[int, int]]:
    """(start, end) of what a reader of ``text`` need not see: marks of Markdown, underlines, and a first line that
    repeats the heading or the title; the first :data:`MAX_HIDDEN` in :data:`LONGEST_MARKUP` characters."""
    repeated = {title.strip(), str(metadata.get("title", "")).strip()}
    place = Place.of(metadata)
    if place and place.heading:
        repeated.add(place.heading)

    spans: list[tuple[int, int]] = []
    start = 0
    while len(spans) < MAX_HIDDEN:
        end = text.find("\n", start, start + _MAX_HEADING_CHARACTERS) + 1
        if end == 0:
            break
        line = text[start:end].strip(" \t\n#")
        if line and line not in repeated:
            break
        spans.append((start, end))
        start = end

    pattern = _MARKUP.get(str(metadata.get("type")))
    if pattern:
        matches = pattern.finditer(text, 0, LONGEST_MARKUP)
        spans += [match.span() for match in islice(matches, MAX_HIDDEN)]
    return spans


def without(text: str, start: int, end: int, hidden: Sequence[tuple[int, int]]) -> str:
    """``text[start:end]`` without the hidden parts."""
    pieces = []
    for begin, stop in sorted(hidden):
        if stop > start and begin < end:
            pieces.append(text[start : max(start, begin)])
            start = max(start, stop)
    if start < end:
        pieces.append(text[start:end])
    return "".join(pieces)
