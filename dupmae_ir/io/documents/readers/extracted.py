"""What every format becomes: one text with its title, its headings, and its blocks, which say where they are."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from dupmae_ir.types import MetadataValue

LARGEST = 128 << 20
"""Bytes of a file, and of what an archive or a compressed file contains, above which it is not read; also characters
of its text."""
TOO_LONG = f"its text has more than {LARGEST:,} characters, the limit"

MAX_CHARACTERS_PER_BYTE = 200
"""Characters of text for each byte of a file above which its text is refused, from a million characters on."""


class Unreadable(Exception):
    """A file without usable contents; the message is the reason, without the file's name."""


class Heading(NamedTuple):
    """A heading: where it begins in the text, its level from 1, and its words."""

    start: int
    level: int
    text: str


class Block(NamedTuple):
    """A part of the text that has its own place in the file: a page, a slide, or a row of a sheet.

    It begins at ``start`` and ends where the next one begins. ``place`` becomes metadata of its passages, for example
    ``{"page": 3}``; numbers count from 1.
    """

    start: int
    place: Mapping[str, MetadataValue]


@dataclass(frozen=True)
class Extracted:
    """The text of a file.

    ``lines``: split it at line ends instead of sentences (code, tables). ``blocks``: in the order of their starts; none
    for formats whose only places are offsets. ``metadata``: about the complete file. ``problems``: what was left out,
    and why.
    """

    text: str
    title: str = ""
    headings: Sequence[Heading] = ()
    lines: bool = False
    blocks: Sequence[Block] = ()
    metadata: Mapping[str, MetadataValue] = field(default_factory=dict)
    problems: Sequence[str] = ()

    def place(self, offset: int) -> Mapping[str, MetadataValue]:
        """The place of the block that an offset is in; empty for a format without blocks."""
        number = bisect_right(self.blocks, offset, key=_block_start)
        return self.blocks[number - 1].place if number else {}


def _block_start(block: Block) -> int:
    return block.start


@dataclass
class Builder:
    """A text in the making: pieces, headings, and the white space between them."""

    pieces: list[str] = field(default_factory=list)
    headings: list[Heading] = field(default_factory=list)
    length: int = 0
    _gap: str = ""

    def write(self, text: str) -> None:
        """Append text as it is, after the pending gap."""
        if not text:
            return
        if self.length and self._gap:
            self._append(self._gap)
        self._gap = ""
        self._append(text)

    def gap(self, gap: str) -> None:
        """Ask for white space before the next text; a longer one, or one with more line ends, wins."""
        if (gap.count("\n"), len(gap)) > (self._gap.count("\n"), len(self._gap)):
            self._gap = gap

    @property
    def next_start(self) -> int:
        """Where the next text will begin."""
        return self.length + (len(self._gap) if self.length else 0)

    def heading(self, level: int, text: str) -> None:
        """Append a heading as a paragraph of its own."""
        text = " ".join(text.split())
        if not text:
            return
        self.gap("\n\n")
        start = self.next_start
        self.write(text)
        self.headings.append(Heading(start, level, text))
        self.gap("\n\n")

    def done(self, title: str = "") -> Extracted:
        """The text, with ``title`` or the first heading as its title."""
        title = " ".join(title.split())
        if not title and self.headings:
            title = self.headings[0].text
        return Extracted("".join(self.pieces), title, self.headings)

    def _append(self, text: str) -> None:
        self.pieces.append(text)
        self.length += len(text)
        # A small file can repeat its text without end, so the limit holds while the text grows.
        if self.length > LARGEST:
            raise Unreadable(TOO_LONG)


def joined(lines: Iterable[str]) -> str:
    """Lines as one text. Raises :class:`Unreadable` above :data:`LARGEST` characters, before they are in memory."""
    builder = Builder()
    for line in lines:
        builder.gap("\n")
        builder.write(line)
    return "".join(builder.pieces)


def reason(error: BaseException) -> str:
    """An error's message, or its type if it has none."""
    return str(error) or type(error).__name__


_META_CHARSET = re.compile(rb"""(?:charset|encoding)\s*=\s*(?:["']\s*)?([A-Za-z0-9_.:-]{2,40})""")


def decoded(data: bytes, declared: bool = False) -> str:
    """Bytes as text, line ends as ``\\n``: by a byte order mark, else (with ``declared``) by the encoding that the
    first 2,048 bytes name, else UTF-8, else Windows-1252. Raises :class:`Unreadable` for binary data."""
    text = _decoded_by_mark(data)
    if text is None:
        if b"\0" in data[:8192]:
            raise Unreadable("binary data, not text")
        text = _decoded_by_name(data, declared)
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")


def _decoded_by_name(data: bytes, declared: bool) -> str:
    encodings = ["utf-8"]
    declaration = _META_CHARSET.search(data[:2048]) if declared else None
    if declaration:
        encodings.insert(0, declaration.group(1).decode("ascii"))
    for encoding in encodings:
        # A page may declare an encoding that does not exist, or that its bytes are not in.
        with suppress(UnicodeError, LookupError):
            return data.decode(encoding)
    return data.decode("cp1252", "replace")


def _decoded_by_mark(data: bytes) -> str | None:
    # The mark of UTF-32 begins with that of UTF-16, so it is tried first.
    marks = {
        b"\xef\xbb\xbf": "utf-8",
        b"\xff\xfe\0\0": "utf-32-le",
        b"\0\0\xfe\xff": "utf-32-be",
        b"\xff\xfe": "utf-16-le",
        b"\xfe\xff": "utf-16-be",
    }
    for mark, encoding in marks.items():
        if data.startswith(mark):
            return data[len(mark) :].decode(encoding, "replace")
    return None
