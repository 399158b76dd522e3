"""What a person calls things: the file, page or heading of a hit, its text without markup, the parts of a score."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from dupmae_ir.models.languages import LANG, LANGUAGES
from dupmae_ir.types import MetadataValue

MODE_NAMES = {"dense": "meaning", "impact": "words", "hybrid": "meaning and words"}
"""Mode of search -> what its scores compare."""
NOTHING_MISSED = "nothing missed"
"""A certified list: no document outside it has a higher score."""
NOTABLE = 0.01
"""A word is listed with a hit if it has this share of the score."""
BY_MEANING = "by meaning: no word of the query is in it"
NO_WORD = "note: no word of the query is in these texts; they are the nearest in meaning"
_UNDERLINE = r"^[ \t]*([=\-~^*_#+.])\1{2,}[ \t]*(?:\n|\Z)"
_HTML_TAG = (
    r"</?(?:a|b|br|center|code|details|div|em|h[1-6]|hr|i|img|kbd|li|ol|p|pre|span|strong|sub|summary|sup|table|tbody|"
    r"td|th|thead|tr|u|ul)(?:[ \t][^<>\n]{0,300})?/?>|<!--[^\n]{0,300}?-->"
)
_MARKUP = {
    "text": re.compile(_UNDERLINE, re.MULTILINE),
    "md": re.compile(
        # Fences with the language of the code; wiki links, of which the name after the bar is shown; callouts.
        r"^[ \t]*(?:```|~~~)[^\n`]*(?:\n|\Z)|!?\[\[(?:[^\[\]|\n]{1,200}\|)?|\[![A-Za-z]{1,20}\][-+]?"
        rf"|{_HTML_TAG}|{_UNDERLINE}|^[ \t]*#{{1,6}}[ \t]+|\*\*|(?<!\w)__|__(?!\w)|`+"
        r"|(?<![\w\\*])[*_](?=\w)|(?<=[\w.,;:!?)])[*_](?![\w*])"
        r"|!?(?<=\])\([^)\s]{0,300}\)|!(?=\[)|[\[\]]|^[ \t:|-]{5,}\n",
        re.MULTILINE,
    ),
    "rst": re.compile(
        rf"{_UNDERLINE}|^[ \t]*\.\. [\w:.+-]{{1,40}}::|^[ \t]+:[\w-]{{1,40}}:[^\n]{{0,200}}\n|:[\w:.+-]{{1,40}}:(?=`)"
        r"| ?<[^<>\n`]{1,300}>(?=`)|`+_{0,2}|\*\*|\|(?=\w)|(?<=\w)\|",
        re.MULTILINE,
    ),
    "adoc": re.compile(
        # Attributes, comments, borders of blocks, and lines that describe the next block.
        r"^:!?[\w-]{1,60}!?:[^\n]{0,300}\n|^//[^\n]*\n|^(?:-{2,}|={4,}|\*{4,}|_{4,}|\.{4,}|\+{4,}|\|={3,})[ \t]*\n"
        r"|^\[[^\[\]\n]{0,200}\][ \t]*\n|^={1,6}[ \t]+|^\.(?=\w)|^[*.-]{1,5}[ \t]+|<<(?:[^<>,\n]{1,100},)?[ \t]*|>>"
        r"|(?:link|xref|image|include|mailto):{1,2}[^\s\[]{0,300}(?=\[)|https?://[^\s\[]{1,300}(?=\[)"
        r"|(?<=\S)\[|\](?!\w)|\*{1,2}(?=\w)|(?<=\w)\*{1,2}|`+|\{\w[\w-]{0,60}\}",
        re.MULTILINE,
    ),
    "org": re.compile(
        r"^[ \t]*#\+[^\n]*\n|^[ \t]*:[A-Z_]{1,40}:[^\n]*\n|^\*+[ \t]+(?:(?:TODO|DONE|NEXT|WAITING)[ \t]+)?"
        r"|\[\[(?:[^\[\]\n]{1,300}\]\[)?|\]\]|(?<!\w)[*/=~](?=\w)|(?<=\w)[*/=~](?!\w)",
        re.MULTILINE,
    ),
}
"""Kind of a file -> what is hidden of its text. Wiki links come before brackets, and fences before grave accents."""
_MARKUP["ipynb"] = _MARKUP["md"]
_MAX_HEADING_CHARACTERS = 400
MAX_HIDDEN = 300
"""Hidden parts of a text, each of which is looked at for every marked word."""
LONGEST_MARKUP = 1 << 15
"""First characters of a text in which they are looked for, more than a passage has."""


class Place(NamedTuple):
    """Where a passage is: its file, the name of the file inside it, and its place there as far as it is known."""

    path: str
    member: str | None = None
    page: int | None = None
    slide: int | None = None
    sheet: str | None = None
    row: int | None = None
    time: str | None = None
    heading: str | None = None

    @classmethod
    def of(cls, metadata: Mapping[str, MetadataValue]) -> Place | None:
        """The place that the metadata of a passage has; None for a document that is of no file."""
        path = metadata.get("path")
        if not isinstance(path, str):
            return None
        heading = None
        headings = _text(metadata, "heading")
        if headings:
            # "Chapter > Section": the last is the nearest.
            heading = headings.rpartition(" > ")[2] or None
        return cls(
            path,
            member=_text(metadata, "member"),
            page=_number(metadata, "page"),
            slide=_number(metadata, "slide"),
            sheet=_text(metadata, "sheet"),
            row=_number(metadata, "row"),
            time=_text(metadata, "time"),
            heading=heading,
        )

    def __str__(self) -> str:
        names = [self.path]
        if self.member:
            names.append(self.member)
        if self.sheet:
            names.append(f"sheet {self.sheet}")
        numbers = {"page": self.page, "slide": self.slide, "row": self.row, "at": self.time}
        for name, number in numbers.items():
            if number is not None:
                names.append(f"{name} {number}")
        # The heading is the nearest name where there is no number; that of a sheet is the sheet's.
        if self.heading and not any(value is not None for value in numbers.values()):
            names.append(self.heading)
        return ", ".join(names)


def language_name(metadata: Mapping[str, MetadataValue]) -> str | None:
    """The language of a text, in English; None if its metadata do not name one."""
    code = metadata.get(LANG)
    return LANGUAGES.get(code) if isinstance(code, str) else None


def _text(metadata: Mapping[str, MetadataValue], name: str) -> str | None:
    value = metadata.get(name)
    return value if isinstance(value, str) and value else None


def _number(metadata: Mapping[str, MetadataValue], name: str) -> int | None:
    value = metadata.get(name)
    return value if isinstance(value, int) else None


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
