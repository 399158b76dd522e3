"""Headers of mail (RFC 5322, RFC 2047): as text, as addresses, and as a time.

Mail is read as programs wrote it, which is often not as the standards say.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64encode
from contextlib import suppress
from datetime import UTC, datetime
from email.message import Message
from email.utils import formataddr, getaddresses, parsedate_to_datetime

from dupmae_ir.io.documents.readers.encodings import decoded
from dupmae_ir.io.documents.readers.extracted import Unreadable

MAX_ADDRESSES = 50
"""Addresses of a header that are kept: a list of subscribers is not what the message is about."""
HEADER_LINES = re.compile(
    rb"(?:From [^\n]*\n)?(?:[!-9;-~]{1,60}:[ \t]?[^\n]*\n(?:[ \t][^\n]*\n)*){3}"
)
_MAIL_HEADERS = re.compile(
    rb"^(?:From|Received|Return-Path|Delivered-To):", re.MULTILINE | re.IGNORECASE
)
_OTHER_MAIL_HEADERS = re.compile(
    rb"^(?:Date|Message-ID|Subject|MIME-Version):", re.MULTILINE | re.IGNORECASE
)
_ENCODED_WORD = re.compile(r"=\?([^?\s]{1,60})\?([qQbB])\?(.{0,1000}?)\?=")
"""Text of a header in another encoding (RFC 2047); a bound on its length keeps the search linear."""
_RAW_BYTES = re.compile("[\udc80-\udcff]")
"""Bytes of a header that are not ASCII, as the parser keeps them."""


def begins_as_mail(start: bytes) -> bool:
    """Whether a file begins as a message does, as those of a Maildir, whose names have no ending."""
    if start.startswith(b"From "):
        return False
    return _has_mail_headers(start)


def begins_as_mailbox(start: bytes) -> bool:
    """Whether a file begins with the line and the headers of a mailbox's first message."""
    return start.startswith(b"From ") and _has_mail_headers(start)


def _has_mail_headers(start: bytes) -> bool:
    plain = start.replace(b"\r\n", b"\n")
    headers, _, _ = plain.partition(b"\n\n")
    return bool(
        HEADER_LINES.match(plain)
        and _MAIL_HEADERS.search(headers)
        and _OTHER_MAIL_HEADERS.search(headers)
    )


def raw_header(message: Message, name: str) -> str:
    """A header on one line, with its encoded words as they are; empty without it."""
    for key, value in message.raw_items():
        if key.lower() == name:
            return one_line(value)
    return ""


def one_line(value: str) -> str:
    """A header without line ends, and without bytes that are not ASCII, which may be in any encoding."""
    line = " ".join(value.split())
    if not _RAW_BYTES.search(line):
        return line
    # They may be inside of encoded words as well.
    data = header_bytes(_ENCODED_WORD.sub(_plain_word, line))
    try:
        return decoded(data).text
    except Unreadable:
        return data.decode("ascii", "replace")


def header(message: Message, name: str) -> str:
    """A header as text on one line; empty without it."""
    return header_text(raw_header(message, name.lower()))


def header_text(raw: str) -> str:
    """Text of a header, with its encoded words decoded (RFC 2047), also those that break the rules."""
    if "=?" not in raw:
        return raw
    words: list[tuple[bytes, str | None]] = []
    end = 0
    for match in _ENCODED_WORD.finditer(raw):
        between = raw[end : match.start()]
        # Blanks between two encoded words are not part of the text.
        if between and not (words and words[-1][1] and between.isspace()):
            words.append((header_bytes(between), None))
        charset = match[1].partition("*")[0].lower()
        data = _encoded_word(match)
        if words and words[-1][1] == charset:
            # Some programs cut the bytes of one character.
            data = words.pop()[0] + data
        words.append((data, charset))
        end = match.end()
    if raw[end:]:
        words.append((header_bytes(raw[end:]), None))
    texts = []
    for data, encoding in words:
        try:
            texts.append(decoded(data, encoding=encoding).text)
        except Unreadable:
            texts.append(data.decode("ascii", "replace"))
    return " ".join("".join(texts).split())


def header_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _encoded_word(match: re.Match[str]) -> bytes:
    """The bytes of an encoded word; those of the word as it is written if it cannot be decoded."""
    data = header_bytes(match[3])
    try:
        if match[2] in "qQ":
            return binascii.a2b_qp(data, header=True)
        decoded_data = binascii.a2b_base64(data + b"==")
        return header_bytes(match[0]) if data and not decoded_data else decoded_data
    except ValueError:
        return header_bytes(match[0])


def _plain_word(match: re.Match[str]) -> str:
    """An encoded word in base64, which has no characters that mean something in a list of addresses."""
    return f"=?{match[1]}?b?{b64encode(_encoded_word(match)).decode('ascii')}?="


def addresses_of(message: Message, name: str) -> list[str]:
    """The addresses of a header, each with its name."""
    raw = raw_header(message, name.lower())
    # A name may have a comma once it is decoded.
    people: list[tuple[str, str]] = []
    # Of a name alone, `getaddresses` returns the first word.
    if any(sign in raw for sign in "@<,"):
        with suppress(RecursionError):  # comments in comments
            people = getaddresses([_ENCODED_WORD.sub(_plain_word, raw)])
    addresses = []
    for person, address in people[:MAX_ADDRESSES]:
        if not address:
            continue
        person = header_text(person)
        address = header_text(address)
        # `formataddr` encodes names that are not ASCII, and refuses such addresses.
        if person and not (person.isascii() and address.isascii()):
            addresses.append(f"{person} <{address}>")
        else:
            addresses.append(formataddr((person, address)) if address.isascii() else address)
    # A header that does not follow the standard is kept as it is.
    text = header_text(raw)
    return addresses or ([text] if text else [])


def time_of(text: str) -> datetime | None:
    """The time of a Date header, in UTC; None for one that is no date."""
    with suppress(ValueError, TypeError, OverflowError, IndexError):
        date = parsedate_to_datetime(text)
        # Without a time zone, as "-0000" also means, it is taken for UTC.
        return date.replace(tzinfo=UTC) if date.tzinfo is None else date.astimezone(UTC)
    return None
