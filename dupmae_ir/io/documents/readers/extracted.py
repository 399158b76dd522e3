"""What every format becomes: one text with its title, its headings, and its blocks, which say where they are."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
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


class Border(NamedTuple):
    """A place between two parts of a text, such as statements, where a passage may end.

    A part goes on to the next border that is not deeper. If it is longer than a passage, it is cut at the deeper ones.
    """

    start: int
    depth: int


class Member(NamedTuple):
    """A file inside a file: an attachment of a mail, a mail of a mailbox, a file of an archive.

    ``name`` is what the file says, with ``/`` between folders; several members may have it. One that cannot be read
    has a ``problem`` and no data.
    """

    name: str
    data: bytes
    problem: str = ""


class Guess(NamedTuple):
    """The encoding that a detector found likely, and how certain it is, from 0 to 1."""

    encoding: str
    certainty: float


@dataclass(frozen=True)
class Extracted:
    """The text of a file.

    ``lines``: split it at line ends instead of sentences (code, tables). ``borders``: where it is split before that, in
    the order of their starts; none for texts without syntax. ``blocks``: in the order of their starts; none
    for formats whose only places are offsets. ``metadata``: about the complete file. ``problems``: what was left out,
    and why. ``members``: the files inside it, such as attachments, each of which is read as a document of its own.
    ``guess``: the encoding, if the file does not say it. ``waiting_pages``: how many pages are pictures without text,
    which OCR can read.
    """

    text: str
    title: str = ""
    headings: Sequence[Heading] = ()
    lines: bool = False
    blocks: Sequence[Block] = ()
    metadata: Mapping[str, MetadataValue] = field(default_factory=dict)
    problems: Sequence[str] = ()
    members: Sequence[Member] = ()
    guess: Guess | None = None
    waiting_pages: int = 0
    borders: Sequence[Border] = ()

    def sections(self) -> Iterator[tuple[str, slice]]:
        """The words of each heading, and its part of the text, up to the next heading of any level."""
        ends = [heading.start for heading in self.headings[1:]]
        ends.append(len(self.text))
        for heading, end in zip(self.headings, ends, strict=False):
            yield heading.text, slice(heading.start, end)

    def place(self, offset: int) -> Mapping[str, MetadataValue]:
        """The place of the block that an offset is in; empty for a format without blocks."""
        number = bisect_right(self.blocks, offset, key=_block_start)
        return self.blocks[number - 1].place if number else {}


def _block_start(block: Block) -> int:
    return block.start


@dataclass
class Builder:
    """A text in the making: pieces, headings, places, and the white space between them."""

    pieces: list[str] = field(default_factory=list)
    headings: list[Heading] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
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

    def place(self, place: Mapping[str, MetadataValue]) -> None:
        """Begin a block: ``place`` is where the next text is in the file."""
        self.blocks.append(Block(self.next_start, place))

    def table_row(self, cells: Iterable[str]) -> None:
        """Append a row of a table on a line of its own."""
        self.gap("\n")
        self.write(" | ".join(cells))

    def done(
        self,
        title: str = "",
        guess: Guess | None = None,
        lines: bool = False,
        problems: Sequence[str] = (),
        waiting_pages: int = 0,
    ) -> Extracted:
        """The text, with ``title`` or the first heading as its title; the other values as in :class:`Extracted`."""
        title = " ".join(title.split())
        if not title and self.headings:
            title = self.headings[0].text
        return Extracted(
            "".join(self.pieces),
            title,
            self.headings,
            lines=lines,
            blocks=self.blocks,
            problems=problems,
            guess=guess,
            waiting_pages=waiting_pages,
        )

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


def time_text(time: datetime) -> str:
    """A time in UTC as metadata has it, ``2026-03-01T09:30:00Z``; filters compare such texts."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def reason(error: BaseException) -> str:
    """An error's message, or its type if it has none."""
    return str(error) or type(error).__name__
