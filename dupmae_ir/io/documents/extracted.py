"""What every format becomes: one text with its title, headings and pages."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

LARGEST = 128 << 20
"""Bytes of a file, and of what an archive or a compressed file contains, above which it is not read; also characters
of its text."""
TOO_LONG = f"its text has more than {LARGEST:,} characters, the limit"

MOST_PER_BYTE = 200
"""Characters of text for each byte of a file above which its text is refused, from a million characters on."""


class Unreadable(Exception):
    """A file without usable contents; the message is the reason, without the file's name."""


class Heading(NamedTuple):
    """A heading: where it begins in the text, its level from 1, and its words."""

    start: int
    level: int
    text: str


@dataclass(frozen=True)
class Extracted:
    """The text of a file. ``lines``: split it at line ends instead of sentences (code, tables). ``pages``: where each
    page begins. ``problems``: what was left out, and why."""

    text: str
    title: str = ""
    headings: Sequence[Heading] = ()
    lines: bool = False
    pages: Sequence[int] = ()
    problems: Sequence[str] = ()

    def page(self, offset: int) -> int | None:
        """The page, from 1, of a place in the text; None for a format without pages."""
        return bisect_right(self.pages, offset) if self.pages else None


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
        title = " ".join(title.split()) or (self.headings[0].text if self.headings else "")
        return Extracted("".join(self.pieces), title, self.headings)

    def _append(self, text: str) -> None:
        self.pieces.append(text)
        self.length += len(text)
        if self.length > LARGEST:
            raise Unreadable(TOO_LONG)


def joined(lines: Iterable[str]) -> str:
    """Lines as one text. Raises :class:`Unreadable` above :data:`LARGEST` characters, before they are in memory."""
    made = Builder()
    for line in lines:
        made.gap("\n")
        made.write(line)
    return "".join(made.pieces)


_META_CHARSET = re.compile(rb"""(?:charset|encoding)\s*=\s*(?:["']\s*)?([A-Za-z0-9_.:-]{2,40})""")


def decoded(data: bytes, declared: bool = False) -> str:
    """Bytes as text, line ends as ``\\n``: by a byte order mark, else (with ``declared``) by the encoding that the
    first 2,048 bytes name, else UTF-8, else Windows-1252. Raises :class:`Unreadable` for binary data."""
    text = _by_mark(data)
    if text is None:
        if b"\0" in data[:8192]:
            raise Unreadable("binary data, not text")
        named = _META_CHARSET.search(data[:2048]) if declared else None
        names = [named.group(1).decode("ascii")] if named else []
        for name in (*names, "utf-8"):
            with suppress(UnicodeError, LookupError):
                text = data.decode(name)
                break
        else:
            text = data.decode("cp1252", "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")


def _by_mark(data: bytes) -> str | None:
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
