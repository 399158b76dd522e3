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
_LONGEST_HEADING = 400
MOST_HIDDEN = 300
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
        path, page, heading = (metadata.get(name) for name in ("path", "page", "heading"))
        if not isinstance(path, str):
            return None
        nearest = heading.rpartition(" > ")[2] if isinstance(heading, str) else None
        return cls(path, page if isinstance(page, int) else None, nearest or None)

    def __str__(self) -> str:
        detail = self.heading if self.page is None else f"page {self.page}"
        return f"{self.path}, {detail}" if detail else self.path


def digits(number: float) -> str:
    """A score with three digits."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def hidden_markup(
    text: str, metadata: Mapping[str, MetadataValue], title: str = ""
) -> list[tuple[int, int]]:
    """(start, end) of what a reader of ``text`` need not see: marks of Markdown, underlines, and a first line that
    repeats the heading or the title; the first :data:`MOST_HIDDEN` in :data:`LONGEST_MARKUP` characters."""
    spans: list[tuple[int, int]] = []
    place, start = Place.of(metadata), 0
    known = {title.strip(), str(metadata.get("title", "")).strip(), (place and place.heading) or ""}
    while (
        len(spans) < MOST_HIDDEN
        and (end := text.find("\n", start, start + _LONGEST_HEADING) + 1) > 0
    ):
        if (line := text[start:end].strip(" \t\n#")) and line not in known:
            break
        spans.append((start, end))
        start = end
    pattern = _MARKUP.get(str(metadata.get("type")))
    matches = pattern.finditer(text, 0, LONGEST_MARKUP) if pattern else ()
    return spans + [match.span() for match in islice(matches, MOST_HIDDEN)]


def without(text: str, start: int, end: int, hidden: Sequence[tuple[int, int]]) -> str:
    """``text[start:end]`` without the hidden parts."""
    pieces = []
    for begin, stop in sorted(hidden):
        if stop > start and begin < end:
            pieces.append(text[start : max(start, begin)])
            start = max(start, stop)
    return "".join([*pieces, text[start:end] if start < end else ""])
