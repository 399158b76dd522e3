"""Mail: messages as files (RFC 5322 and MIME), mailboxes, and messages of Outlook.

A message is one document, with its headers as metadata; each attachment and each forwarded message is a document of its
own. Its text is what a person reads: the plain text if there is one, else the HTML.
"""

from __future__ import annotations

import email
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.errors import HeaderParseError
from email.header import decode_header
from email.message import Message
from email.utils import formataddr, getaddresses, parsedate_to_datetime
from mimetypes import guess_extension

from dupmae_ir.io.documents.readers.encodings import decoded
from dupmae_ir.io.documents.readers.extracted import Block, Builder, Extracted, Member, Unreadable
from dupmae_ir.io.documents.readers.format import Format
from dupmae_ir.io.documents.readers.markup import parse_html
from dupmae_ir.types import MetadataValue

MAX_ADDRESSES = 50
"""Addresses of a header that are kept: a list of subscribers is not what the message is about."""
_MAX_NAME = 120
"""Characters of an attachment's name."""

_HEADER_LINES = re.compile(
    rb"(?:From [^\n]*\n)?(?:[!-9;-~]{1,60}:[ \t]?[^\n]*\n(?:[ \t][^\n]*\n)*){3}"
)
_MAIL_HEADERS = re.compile(
    rb"^(?:From|Received|Return-Path|Delivered-To):", re.MULTILINE | re.IGNORECASE
)
_OTHER_MAIL_HEADERS = re.compile(
    rb"^(?:Date|Message-ID|Subject|MIME-Version):", re.MULTILINE | re.IGNORECASE
)
_MBOX_LINE = re.compile(rb"(?:\A|(?<=\n\n)|(?<=\n\r\n))From \S[^\n]*\n")
"""The line before each message of a mailbox."""
_QUOTED_FROM = re.compile(rb"^>(>*From )", re.MULTILINE)
_QUOTE = re.compile(r"^[ \t]?>", re.MULTILINE)
_FORWARDED = re.compile(
    r"^[ \t]*(?:-{4,} ?Original Message ?-{4,}|-{4,} ?Forwarded message ?-{4,}|Begin forwarded message:)",
    re.MULTILINE | re.IGNORECASE,
)
_UNSAFE_NAME = re.compile(r"[\x00-\x1f\x7f/\\]|\.\.")


@dataclass
class _Letter:
    """What a message has, whichever program wrote it."""

    subject: str = ""
    sender: str = ""
    to: Sequence[str] = ()
    cc: Sequence[str] = ()
    date: datetime | None = None
    message_id: str = ""
    builder: Builder = field(default_factory=Builder)
    members: list[Member] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, name: str, data: bytes) -> None:
        """Add an attachment, under a name that no other one has."""
        safe = _UNSAFE_NAME.sub("_", name).lstrip("._ ").rstrip()[-_MAX_NAME:] or "attachment"
        taken = {member.name for member in self.members}
        stem, dot, ending = safe.rpartition(".")
        unique = safe
        number = 2
        while unique in taken:
            unique = f"{stem}-{number}.{ending}" if dot else f"{safe}-{number}"
            number += 1
        self.members.append(Member(unique, data))

    def extracted(self) -> Extracted:
        """The message as a document."""
        metadata: dict[str, MetadataValue] = {}
        if self.sender:
            metadata["from"] = self.sender
        if self.to:
            metadata["to"] = list(self.to)
        if self.cc:
            metadata["cc"] = list(self.cc)
        if self.date is not None:
            metadata["date"] = self.date.strftime("%Y-%m-%dT%H:%M:%SZ")
        if self.message_id:
            metadata["message_id"] = self.message_id
        return replace(
            self.builder.done(self.subject),
            blocks=_quotations("".join(self.builder.pieces)),
            metadata=metadata,
            members=self.members,
            problems=self.problems,
        )

    def write_header(self) -> None:
        """Write who wrote to whom and when, which people search for as well."""
        lines = []
        if self.sender:
            lines.append(f"From: {self.sender}")
        if self.to:
            lines.append(f"To: {', '.join(self.to)}")
        if self.date is not None:
            lines.append(f"Date: {self.date:%Y-%m-%d %H:%M}")
        self.builder.write("\n".join(lines))
        self.builder.gap("\n\n")


def read_mail(data: bytes) -> Extracted:
    """A message."""
    # The parser of the other policies takes quadratic time for some headers.
    message = email.message_from_bytes(data)
    letter = _Letter(
        subject=_header(message, "Subject"),
        sender=", ".join(_addresses(message, "From")),
        to=_addresses(message, "To"),
        cc=_addresses(message, "Cc"),
        date=_date(_header(message, "Date")),
        message_id=_header(message, "Message-ID").strip("<> "),
    )
    letter.write_header()
    _write_part(message, letter)
    return letter.extracted()


def read_apple_mail(data: bytes) -> Extracted:
    """A message of Apple Mail: its length, the message, and a property list."""
    first_line, _, rest = data.partition(b"\n")
    if not first_line.strip().isdigit():
        raise Unreadable("not a message of Apple Mail: it does not begin with its length")
    return read_mail(rest[: int(first_line)])


def mailbox_members(data: bytes) -> Iterator[Member]:
    """The messages of a mailbox in mbox format, named by their numbers."""
    starts = _MBOX_LINE.finditer(data)
    first = next(starts, None)
    if first is None:
        raise Unreadable("not a mailbox: no line begins with 'From '")
    number = 1
    for following in starts:
        yield _mailbox_member(number, data[first.end() : following.start()])
        first = following
        number += 1
    yield _mailbox_member(number, data[first.end() :])


def _mailbox_member(number: int, data: bytes) -> Member:
    # The program that wrote the mailbox quoted lines that would begin a message.
    return Member(f"{number}.eml", _QUOTED_FROM.sub(rb"\1", data))


def recognise_mail(start: bytes) -> bool:
    """Whether a file begins as a message does, as those of a Maildir, whose names have no ending."""
    if start.startswith(b"From "):
        return False
    return _has_mail_headers(start)


def recognise_mailbox(start: bytes) -> bool:
    """Whether a file begins with the line and the headers of a mailbox's first message."""
    return start.startswith(b"From ") and _has_mail_headers(start)


def _has_mail_headers(start: bytes) -> bool:
    plain = start.replace(b"\r\n", b"\n")
    headers, _, _ = plain.partition(b"\n\n")
    return bool(
        _HEADER_LINES.match(plain)
        and _MAIL_HEADERS.search(headers)
        and _OTHER_MAIL_HEADERS.search(headers)
    )


def _header(message: Message, name: str) -> str:
    """A header as text on one line; empty without it."""
    value = message.get(name)
    if value is None:
        return ""
    try:
        parts = decode_header(value)
    except (HeaderParseError, ValueError):  # base64 that is none
        parts = [(str(value), None)]
    words = []
    for part, charset in parts:
        if isinstance(part, str):
            # Raw bytes that are not ASCII are surrogates here.
            part = part.encode("utf-8", "surrogateescape")
        try:
            words.append(decoded(part, encoding=charset).text)
        except Unreadable:
            words.append(part.decode("ascii", "replace"))
    return " ".join("".join(words).split())


def _addresses(message: Message, name: str) -> list[str]:
    """The addresses of a header, each with its name."""
    text = _header(message, name)
    addresses = []
    for person, address in getaddresses([text])[:MAX_ADDRESSES]:
        if not address:
            continue
        # `formataddr` encodes names that are not ASCII.
        addresses.append(
            formataddr((person, address)) if person.isascii() else f"{person} <{address}>"
        )
    # A header that does not follow the standard is kept as it is.
    return addresses or ([text] if text else [])


def _date(text: str) -> datetime | None:
    """The time of a Date header, in UTC; None for one that is no date."""
    with suppress(ValueError, TypeError, OverflowError, IndexError):
        date = parsedate_to_datetime(text)
        # Without a time zone, as "-0000" also means, it is taken for UTC.
        return date.replace(tzinfo=UTC) if date.tzinfo is None else date.astimezone(UTC)
    return None


def _write_part(part: Message, letter: _Letter) -> None:
    """Append the text of a part and of the parts inside it, and collect its attachments."""
    kind = part.get_content_type()
    if kind == "multipart/encrypted" or part.get_param("smime-type") == "enveloped-data":
        letter.problems.append("encrypted")
    elif kind == "multipart/alternative":
        _write_alternative(part, letter)
    elif kind == "message/rfc822":
        for inner in _inner_messages(part):
            letter.add(f"{_header(inner, 'Subject') or 'forwarded'}.eml", inner.as_bytes())
    elif part.is_multipart():
        for inner in _inner_messages(part):
            _write_part(inner, letter)
    elif _is_text(part):
        _write_text(part, letter)
    elif kind.endswith(("/pgp-signature", "/pkcs7-signature", "/x-pkcs7-signature")):
        return
    elif kind == "application/ms-tnef":
        letter.problems.append("winmail.dat has attachments in a form that only Outlook reads")
    else:
        letter.add(_file_name(part), _payload(part))


def _write_alternative(part: Message, letter: _Letter) -> None:
    """Append one of several forms of the same text: plain text if it has any words, else the last, which is richest."""
    inner_parts = _inner_messages(part)
    for inner in inner_parts:
        if inner.get_content_type() == "text/plain" and _payload(inner).strip():
            _write_part(inner, letter)
            break
    else:
        for inner in inner_parts[-1:]:
            _write_part(inner, letter)
    # Some programs put attachments beside the forms of the text.
    for inner in inner_parts:
        if inner.get_filename() and not inner.is_multipart():
            letter.add(_file_name(inner), _payload(inner))


def _inner_messages(part: Message) -> list[Message]:
    payload = part.get_payload()
    if not isinstance(payload, list):
        return []
    return [inner for inner in payload if isinstance(inner, Message)]


def _is_text(part: Message) -> bool:
    """Whether a part is text of the message itself, rather than an attachment."""
    if part.get_content_disposition() == "attachment" or part.get_filename():
        return False
    return part.get_content_type() in ("text/plain", "text/html")


def _write_text(part: Message, letter: _Letter) -> None:
    encoding = part.get_content_charset()
    try:
        text, _ = decoded(_payload(part), encoding=encoding)
    except Unreadable as e:
        letter.problems.append(f"a part of its text: {e}")
        return
    letter.builder.gap("\n\n")
    if part.get_content_type() == "text/html":
        _write_html(text, letter)
        return
    if part.get_param("format") == "flowed":
        text = _unflowed(text, part.get_param("delsp") == "yes")
    letter.builder.write(text.strip("\n"))


def _write_html(markup: str, letter: _Letter) -> None:
    try:
        parse_html(markup, letter.builder)
    except ImportError:
        letter.problems.append("its text is HTML: pip install 'dupmae-ir[documents]'")


def _payload(part: Message) -> bytes:
    """The bytes of a part, decoded as its Content-Transfer-Encoding says."""
    payload = part.get_payload(decode=True)
    return payload if isinstance(payload, bytes) else b""


def _file_name(part: Message) -> str:
    """The name of an attachment; one made of its type if it has none."""
    name = part.get_filename()
    if name:
        # An encoded word, which RFC 2231 does not allow here but many programs write.
        holder = Message()
        holder["Name"] = name
        return _header(holder, "Name")
    return f"attachment{guess_extension(part.get_content_type()) or '.bin'}"


def _unflowed(text: str, delete_space: bool) -> str:
    """Paragraphs of a text whose lines end with a blank where they continue (RFC 3676)."""
    lines: list[str] = []
    continued = False
    for line in text.split("\n"):
        if line.startswith(" "):
            line = line[1:]  # it protects lines that begin with a blank, '>' or 'From '
        if continued and not line.startswith(">"):
            lines[-1] += line
        else:
            lines.append(line)
        continued = line.endswith(" ") and line != "-- "
        if continued and delete_space:
            lines[-1] = lines[-1][:-1]
    return "\n".join(lines)


def _quotations(text: str) -> list[Block]:
    """Where quoted messages begin and end: the place of a passage that begins in one is ``{"quoted": True}``."""
    forwarded = _FORWARDED.search(text)
    end = forwarded.start() if forwarded else len(text)
    blocks: list[Block] = []
    is_quoted = False
    start = 0
    while start < end:
        line_end = text.find("\n", start, end) + 1 or end
        # A blank line between two quoted ones belongs to them.
        if text[start:line_end].strip():
            quoted = _QUOTE.match(text, start) is not None
            if quoted != is_quoted:
                blocks.append(Block(start, {"quoted": True} if quoted else {}))
                is_quoted = quoted
        start = line_end
    if forwarded and not is_quoted:
        blocks.append(Block(end, {"quoted": True}))
    return blocks


def read_outlook(data: bytes) -> Extracted:
    """A message of Outlook (.msg), read by python-oxmsg."""
    import oxmsg

    message = oxmsg.Message.load(data)
    recipients = []
    for recipient in message.recipients[:MAX_ADDRESSES]:
        recipients.append(f"{recipient.name} <{recipient.email_address}>")
    date = message.sent_date
    letter = _Letter(
        subject=message.subject or "",
        sender=message.sender or "",
        to=recipients,
        date=date.astimezone(UTC) if date else None,
    )
    letter.write_header()
    body = message.body
    if body and body.strip():
        letter.builder.write(body.replace("\r\n", "\n").strip())
    elif message.html_body:
        _write_html(message.html_body, letter)
    for number, attachment in enumerate(message.attachments, 1):
        if not attachment.attached_by_value:
            letter.problems.append(f"attachment {number} is a link or a message")
        elif attachment.file_bytes:
            letter.add(attachment.file_name or f"attachment-{number}", attachment.file_bytes)
    return letter.extracted()


FORMATS = (
    Format("eml", ("eml", "mht", "mhtml"), read_mail, isolated=True, recognise=recognise_mail),
    Format("emlx", ("emlx",), read_apple_mail, isolated=True),
    Format("mbox", ("mbox", "mbx"), members=mailbox_members, recognise=recognise_mailbox),
    Format("msg", ("msg",), read_outlook, ("oxmsg", "lxml"), isolated=True),
)
