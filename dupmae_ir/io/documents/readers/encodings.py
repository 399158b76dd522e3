"""Bytes as text: by what they say themselves, else by a detector, whose guess is recorded.

The detector is chardet 7, which was measured beside charset-normalizer and faust-cchardet on the translations of Django
in 23 languages and 28 encodings (docs/your-documents.md has the table).
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from contextlib import suppress
from typing import NamedTuple

from dupmae_ir.io.documents.readers.extracted import Guess, Unreadable

_DECLARATION = re.compile(
    rb"""(?:charset|encoding)\s*=\s*(?:["']\s*)?([A-Za-z0-9_.:-]{2,40})"""
    # PEP 263; editors write the same line into other sources.
    rb"""|\A(?:[^\n]*\n)?[ \t\f]*#[^\n]{0,80}?coding[:=][ \t]*([-\w.]{2,40})"""
)
_DECLARED_IN = 2048
"""First bytes of a file in which a declaration counts."""
_SUPERSETS = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "iso8859-9": "cp1254",
    "tis-620": "cp874",
}
"""Encodings that are declared -> what files that declare them are in, as browsers read them (WHATWG Encoding)."""
_MARKS = {
    b"\xef\xbb\xbf": "utf-8",
    # The mark of UTF-32 begins with that of UTF-16, so it is tried first.
    b"\xff\xfe\0\0": "utf-32-le",
    b"\0\0\xfe\xff": "utf-32-be",
    b"\xff\xfe": "utf-16-le",
    b"\xfe\xff": "utf-16-be",
}
SNIFFED_BYTES = 8192
"""First bytes of a file that decide whether it is text."""
_TEXT_CONTROLS = (9, 10, 12, 13, 27)
"""Control characters that text may have: tab, line feed, form feed, carriage return, and escape for colours."""
_CONTROLS = bytes(code for code in range(32) if code not in _TEXT_CONTROLS)
_MAX_CONTROLS = 0.05
"""Share of other control characters in a text."""
_FEW_NULS = 2
"""NULs that a text may have whatever its length: exported tables have one in a cell."""
_SAMPLE_BYTES = 200_000
"""Bytes that the detector sees: all of a file, or else its lines that are not ASCII."""
_LOW_CERTAINTY = 0.1
"""Certainty below which only encodings of the web are considered. Measured on 3,510 texts of 12 to 1,000 characters: of
12 characters in Windows-1252, 92 % are right instead of 88 %; texts of DOS and the Macintosh are right from 40
characters on (91 %), instead of from 12."""
_MANY_LETTERS = 100
_MIN_CERTAINTY = 0.15
"""Certainty below which a text of at least 100 bytes that are not ASCII is in no known encoding. The
lowest measured of a right guess is 0.34; random bytes and enciphered text have less than 0.1."""
_MAX_UNDECODABLE = 0.01
"""Share of characters that may be undecodable in an encoding."""
_WIDE_CERTAINTY = 0.95
_FEW_BYTES = 64
"""Bytes below which UTF-16 without a mark is only recognised by its zero bytes, as Western text has them."""
_NO_TEXT = ("Cc", "Cn", "Co", "Cs")
"""Unicode categories of control characters, unassigned and private ones, and halves of surrogates."""
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_ISO_2022 = re.compile(rb"\x1b\$[@AB]|\x1b\(J|\x1b\$\)C")
"""Escape sequences of ISO-2022-JP and ISO-2022-KR, whose bytes are those of ASCII."""


class Decoded(NamedTuple):
    """A text, its line ends as ``\\n``, and the encoding if it had to be guessed."""

    text: str
    guess: Guess | None = None


def decoded(data: bytes, declared: bool = False, encoding: str | None = None) -> Decoded:
    """Bytes as text: by a byte order mark, else by ``encoding`` or (with ``declared``) the encoding that the first
    2,048 bytes name, else UTF-8, else by a guess.

    Raises :class:`Unreadable` for binary data, and if no encoding fits.
    """
    for mark, marked in _MARKS.items():
        if data.startswith(mark):
            return Decoded(_plain(data[len(mark) :].decode(marked, "replace")))
    if encoding is None and declared:
        encoding = _declaration(data)
    start = data[:SNIFFED_BYTES]
    # ISO-2022 is valid ASCII, but not meant so; that of Korea also shifts by control characters.
    is_iso_2022 = _ISO_2022.search(data) is not None
    if _has_controls(start) and not _ISO_2022.search(start):
        wide = _wide_encoding(start)
        if wide is None:
            raise Unreadable("binary data, not text")
        return Decoded(_plain(data.decode(wide, "replace")), Guess(wide, _WIDE_CERTAINTY))
    if encoding or not is_iso_2022:
        text = _by_name(data, encoding)
        if text is not None:
            return Decoded(_plain(text))
    text, guess = _guessed(data)
    return Decoded(_plain(text), guess)


def looks_like_text(data: bytes) -> bool:
    """Whether the beginning of a file is text in some encoding."""
    start = data[:SNIFFED_BYTES]
    if start.startswith(tuple(_MARKS)) or not _has_controls(start) or _ISO_2022.search(start):
        return True
    return _wide_encoding(start) is not None


def _has_controls(start: bytes) -> bool:
    """Whether there are more control characters than a text of single bytes has."""
    controls = len(start) - len(start.translate(None, _CONTROLS))
    controls -= min(start.count(0), _FEW_NULS)
    return controls > _MAX_CONTROLS * len(start)


def _wide_encoding(start: bytes) -> str | None:
    """UTF-16 or UTF-32 without a mark; None for other data.

    chardet takes Thai in one byte order for the other, and bytecode for UTF-16.
    """
    if len(start) < _FEW_BYTES and start.count(0) * 4 < len(start):
        return None  # any few bytes are letters of some script
    # The first bytes of characters name their script, so there are fewer different ones than last bytes.
    if len(set(start[1::2])) < len(set(start[::2])):
        utf_16 = "utf-16-le"
    else:
        utf_16 = "utf-16-be"
    # Other data is not valid UTF-32, since a character has 21 of its 32 bits.
    for encoding in ("utf-32-le", "utf-32-be", utf_16):
        text = start[: len(start) // 4 * 4].decode(encoding, "replace")
        characters = sum(_is_of_text(character) for character in text)
        if characters and characters >= (1 - _MAX_UNDECODABLE) * len(text):
            return encoding
    return None


def _is_of_text(character: str) -> bool:
    if character == "\ufffd":
        return False
    return character in "\t\n\r\f" or unicodedata.category(character) not in _NO_TEXT


def _plain(text: str) -> str:
    """With line ends as ``\\n``, and a blank for a NUL, which means nothing in a text."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", " ")


def _declaration(data: bytes) -> str | None:
    match = _DECLARATION.search(data[:_DECLARED_IN])
    if match is None:
        return None
    return (match[1] or match[2]).decode("ascii")


def _by_name(data: bytes, encoding: str | None) -> str | None:
    """Decoded by ``encoding``, or as UTF-8; None if neither fits."""
    for name in (encoding, "utf-8"):
        # A page may declare an encoding that does not exist, that is of no text, or that its bytes are not in.
        with suppress(UnicodeError, LookupError, ValueError):
            canonical = codecs.lookup(name or "utf-8").name
            return data.decode(_SUPERSETS.get(canonical, canonical))
    return None


def _guessed(data: bytes) -> tuple[str, Guess]:
    """Decoded by a guess. Raises :class:`Unreadable` if there is none that fits."""
    text = data.decode("utf-8", "replace")
    broken = text.count("\ufffd")
    if broken:
        intact = len(_NOT_ASCII.findall(text)) - broken
        # A cut or a wrong byte in UTF-8: any other encoding would be wrong for all its other characters.
        if intact * _MAX_UNDECODABLE > broken:
            return text, Guess("utf-8", intact / (intact + broken))

    sample = _sample(data)
    guess = _detected(sample)
    letters = sum(byte >= 0x80 for byte in sample)
    if guess is None or (letters >= _MANY_LETTERS and guess.certainty < _MIN_CERTAINTY):
        raise Unreadable("its encoding is not recognised; save it as UTF-8")
    text = data.decode(guess.encoding, "replace")
    if text.count("\ufffd") > _MAX_UNDECODABLE * len(text):
        raise Unreadable(
            f"its encoding is not recognised, {guess.encoding} does not fit; save it as UTF-8"
        )
    return text, guess


def _sample(data: bytes) -> bytes:
    """What the detector sees of a file: the lines that are not ASCII, if there are too many bytes."""
    if len(data) <= _SAMPLE_BYTES:
        return data
    # Cutting at line ends keeps characters whole, except for those of UTF-16, whose beginning is enough.
    lines = [line for line in data.split(b"\n") if not line.isascii()]
    sample = b"\n".join(lines)[:_SAMPLE_BYTES]
    return sample or data[:_SAMPLE_BYTES]


def _detected(data: bytes) -> Guess | None:
    """What chardet finds likely; None for no text."""
    import chardet

    found = chardet.detect(data, encoding_era=chardet.EncodingEra.ALL)
    if found["confidence"] < _LOW_CERTAINTY:
        of_the_web = chardet.EncodingEra.MODERN_WEB | chardet.EncodingEra.LEGACY_ISO
        found = chardet.detect(data, encoding_era=of_the_web)
    name = found["encoding"]
    if name is None:
        return None
    try:
        return Guess(codecs.lookup(name).name, round(found["confidence"], 3))
    except LookupError:  # chardet knows some that Python does not
        return None
