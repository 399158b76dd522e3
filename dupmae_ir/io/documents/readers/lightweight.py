"""AsciiDoc, Org and Subtitles: the markup languages that are read line by line.

The text of AsciiDoc and Org is that of the file, so offsets are places in the file.
"""

from __future__ import annotations

import html
import re
from dataclasses import replace

from dupmae_ir.io.documents.readers.encodings import decoded
from dupmae_ir.io.documents.readers.extracted import Block, Builder, Extracted, Heading, Unreadable
from dupmae_ir.io.documents.readers.format import Format
from dupmae_ir.io.documents.readers.text import MAX_HEADING
from dupmae_ir.types import MetadataValue

_ADOC_HEADING = re.compile(r"^(={1,6}|#{1,6})[ \t]+(\S.*)$", re.MULTILINE)
_ADOC_BLOCK = re.compile(r"^(-{4,}|\.{4,}|\+{4,}|/{4,}|```)(?:[a-z]*)[ \t]*$", re.MULTILINE)
"""The border of a block whose lines are no markup: a listing, a literal, a passthrough, a comment."""
_ORG_HEADING = re.compile(
    r"^(\*+)[ \t]+(?:(?:TODO|DONE|NEXT|WAITING|CANCELLED)[ \t]+)?(?:\[#[A-Z]\][ \t]*)?(\S.*?)"
    r"(?:[ \t]+:[\w@#%:]+:)?[ \t]*$",
    re.MULTILINE,
)
_ORG_BLOCK = re.compile(r"^[ \t]*#\+(begin|end)_\w+", re.MULTILINE | re.IGNORECASE)
_ORG_KEYWORD = re.compile(
    r"^#\+(title|date|author|filetags):[ \t]*(\S.*)$", re.MULTILINE | re.IGNORECASE
)
_CUE = re.compile(
    r"(?:(\d{1,3}):)?(\d{1,2}:\d{2})[.,]\d{1,3}[ \t]*-->[ \t]*(?:\d{1,3}:)?\d{1,2}:\d{2}[.,]\d{1,3}[^\n]*\n"
    r"((?:[ \t]*\S[^\n]*(?:\n|\Z))*)"
)
_CUE_TAG = re.compile(r"<[^<>\n]{0,100}>|\{\\[^{}\n]{0,100}\}")


def read_asciidoc(data: bytes) -> Extracted:
    """AsciiDoc: its headings; the first one is the title."""
    text, guess = decoded(data)
    borders = []
    open_border = ""
    for match in _ADOC_BLOCK.finditer(text):
        # A block ends with the border that began it; others inside it are its text.
        if not open_border:
            open_border = match[1]
            borders.append(match.start())
        elif match[1] == open_border:
            open_border = ""
            borders.append(match.start())
    headings = _headings(_ADOC_HEADING, text, borders)
    return Extracted(text, headings[0].text if headings else "", headings, guess=guess)


def read_org(data: bytes) -> Extracted:
    """Org: its headings, and the title, date, author and tags of the file."""
    text, guess = decoded(data)
    borders = [match.start() for match in _ORG_BLOCK.finditer(text)]
    headings = _headings(_ORG_HEADING, text, borders)
    keywords: dict[str, str] = {}
    for match in _ORG_KEYWORD.finditer(text):
        keywords.setdefault(match[1].lower(), match[2].strip())
    metadata: dict[str, MetadataValue] = {}
    if "date" in keywords:
        metadata["date"] = keywords["date"].strip("<>[]")[:10]
    if "author" in keywords:
        metadata["author"] = [keywords["author"]]
    tags = [tag for tag in re.split(r"[:\s]+", keywords.get("filetags", "")) if tag]
    if tags:
        metadata["tags"] = list(tags)
    title = keywords.get("title", headings[0].text if headings else "")
    return Extracted(text, title, headings, metadata=metadata, guess=guess)


def _headings(pattern: re.Pattern[str], text: str, borders: list[int]) -> list[Heading]:
    """The headings that are not inside a block; ``borders`` are where blocks begin and end, in turns."""
    headings = []
    passed = 0
    for match in pattern.finditer(text):
        while passed < len(borders) and borders[passed] < match.start():
            passed += 1
        if passed % 2 == 0:
            headings.append(Heading(match.start(), len(match[1]), match[2].strip()[:MAX_HEADING]))
    return headings


def read_subtitles(data: bytes) -> Extracted:
    """Subtitles (SubRip, WebVTT): what is said, and when. A line that stays on the screen is there once."""
    text, guess = decoded(data)
    builder = Builder()
    blocks = []
    previous = ""
    for match in _CUE.finditer(text):
        hours, minutes, lines = match.groups()
        said = html.unescape(_CUE_TAG.sub("", lines)).strip()
        if not said or said == previous:
            continue
        previous = said
        builder.gap("\n")
        blocks.append(Block(builder.next_start, {"time": f"{int(hours or 0)}:{minutes.zfill(5)}"}))
        builder.write(said)
    if not blocks and text.strip():
        raise Unreadable("no subtitles: no line has the times of one")
    return replace(builder.done(), blocks=blocks, guess=guess)


FORMATS = (
    Format("adoc", ("adoc", "asciidoc", "asc"), read_asciidoc),
    Format("org", ("org",), read_org),
    Format("subtitles", ("srt", "vtt"), read_subtitles),
)
