"""Bytes as text: by what they say themselves, else by a detector, whose guess is recorded."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import NamedTuple

from dupmae_ir.io.documents.readers.extracted import Guess, Unreadable

_DECLARATION = re.compile(rb"""(?:charset|encoding)\s*=\s*(?:["']\s*)?([A-Za-z0-9_.:-]{2,40})""")
_FALLBACK = "cp1252"


class Decoded(NamedTuple):
    """A text, its line ends as ``\\n``, and the encoding if it had to be guessed."""

    text: str
    guess: Guess | None = None


def decoded(data: bytes, declared: bool = False) -> Decoded:
    """Bytes as text: by a byte order mark, else (with ``declared``) by the encoding that the first 2,048 bytes name,
    else UTF-8, else by a guess. Raises :class:`Unreadable` for binary data."""
    text = _by_mark(data)
    if text is not None:
        return Decoded(_with_plain_line_ends(text))
    if b"\0" in data[:8192]:
        raise Unreadable("binary data, not text")
    text = _by_name(data, declared)
    if text is not None:
        return Decoded(_with_plain_line_ends(text))
    return Decoded(_with_plain_line_ends(data.decode(_FALLBACK, "replace")), Guess(_FALLBACK, 0.0))


def _with_plain_line_ends(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")


def _by_name(data: bytes, declared: bool) -> str | None:
    encodings = ["utf-8"]
    declaration = _DECLARATION.search(data[:2048]) if declared else None
    if declaration:
        encodings.insert(0, declaration.group(1).decode("ascii"))
    for encoding in encodings:
        # A page may declare an encoding that does not exist, or that its bytes are not in.
        with suppress(UnicodeError, LookupError):
            return data.decode(encoding)
    return None


def _by_mark(data: bytes) -> str | None:
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
