"""AsciiDoc and Org. The text is that of the file, so offsets are places in the file."""

from __future__ import annotations

import re

from dupmae_ir.io.documents.readers.encodings import decoded
from dupmae_ir.io.documents.readers.extracted import Extracted, Heading
from dupmae_ir.io.documents.readers.text import MAX_HEADING, block_borders, is_in_block
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


def read_asciidoc(data: bytes) -> Extracted:
    """AsciiDoc: its headings; the first one is the title."""
    text, guess = decoded(data)
    borders = block_borders(_ADOC_BLOCK, text)
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
    for match in pattern.finditer(text):
        if not is_in_block(match.start(), borders):
            headings.append(Heading(match.start(), len(match[1]), match[2].strip()[:MAX_HEADING]))
    return headings
