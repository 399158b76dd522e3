"""Markdown. The text is that of the file, so offsets are places in the file."""

from __future__ import annotations

import re
from datetime import date

from dupmae_ir.io.documents.readers.encodings import decoded
from dupmae_ir.io.documents.readers.extracted import Extracted, Heading
from dupmae_ir.io.documents.readers.text import (
    MAX_HEADING,
    block_borders,
    is_in_block,
    underlined_headings,
)
from dupmae_ir.types import MetadataValue

_HASH_HEADING = re.compile(r"^ {0,3}(#{1,6})[ \t]+(\S.*)$", re.MULTILINE)
_FENCE = re.compile(r"^ {0,3}(```|~~~)", re.MULTILINE)
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?\n)(?:---|\.\.\.)[ \t]*\n", re.DOTALL)
_TITLE_LINE = re.compile(r"^title:(.*)$", re.MULTILINE)

MAX_FRONT_MATTER = 10_000
"""Characters of a front matter that are read: YAML takes long, and its anchors multiply what it says."""
_LIST_FIELDS = frozenset(["tags", "categories", "keywords", "aliases", "author", "authors"])
_DATE_FIELDS = frozenset(["date", "created", "updated", "published", "modified_on"])
_SCALARS = (str, int, float, date)


def read_markdown(data: bytes) -> Extracted:
    """Markdown: ``#`` and underlined headings outside of code; the title of the front matter."""
    text, guess = decoded(data)
    title_line = None
    metadata: dict[str, MetadataValue] = {}
    front_matter = _FRONT_MATTER.match(text)
    if front_matter:
        title_line = _TITLE_LINE.search(front_matter.group(1))
        metadata = _front_matter_metadata(front_matter.group(1))
        # White space of the same length instead of the front matter, so that offsets stay those of the file.
        blank = re.sub(r"[^\n]", " ", text[: front_matter.end()])
        text = blank + text[front_matter.end() :]

    borders = block_borders(_FENCE, text)
    headings: list[Heading] = []
    for match in _HASH_HEADING.finditer(text):
        words = match.group(2).rstrip().rstrip("#").rstrip()
        if words and not is_in_block(match.start(), borders):
            headings.append(Heading(match.start(), len(match.group(1)), words[:MAX_HEADING]))
    hash_starts = {heading.start for heading in headings}
    for heading in underlined_headings(text, hash_starts):
        if not is_in_block(heading.start, borders):
            headings.append(heading)
    headings.sort()

    title = ""
    if title_line:
        title = title_line.group(1).strip().strip("\"'")
    elif headings:
        title = headings[0].text
    return Extracted(text, title, headings, metadata=metadata, guess=guess)


def _front_matter_metadata(source: str) -> dict[str, MetadataValue]:
    """The tags, authors and dates of a front matter in YAML; none for one that is damaged."""
    import yaml

    try:
        fields = yaml.safe_load(source[:MAX_FRONT_MATTER])
    except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: a date that is none
        return {}
    if not isinstance(fields, dict):
        return {}
    metadata: dict[str, MetadataValue] = {}
    for name, values in fields.items():
        if name in _LIST_FIELDS:
            # "bread, yeast", or a list.
            items = values.split(",") if isinstance(values, str) else values
            if isinstance(items, list) and all(isinstance(item, _SCALARS) for item in items):
                metadata[name] = [str(item).strip().lstrip("#") for item in items]
        elif name in _DATE_FIELDS and isinstance(values, _SCALARS):
            metadata[name] = str(values)
    return metadata
