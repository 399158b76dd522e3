"""Mail: messages as files (RFC 5322 and MIME), mailboxes, and messages of Outlook.

A message is one document, with its headers as metadata; each attachment and each forwarded message is a document of its
own. Its text is what a person reads: the plain text if there is one, else the HTML.
"""

from __future__ import annotations

import binascii
import email
import re
import struct
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email import policy
from email.message import Message
from email.mime.application import MIMEApplication
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from email.utils import formataddr, getaddresses, parsedate_to_datetime
from mimetypes import guess_extension
from typing import TYPE_CHECKING

from dupmae_ir.io.documents.readers.encodings import SNIFFED_BYTES, decoded
from dupmae_ir.io.documents.readers.extracted import Block, Builder, Extracted, Member, Unreadable
from dupmae_ir.io.documents.readers.format import Format
from dupmae_ir.io.documents.readers.markup import parse_html
from dupmae_ir.types import MetadataValue

if TYPE_CHECKING:
    import oxmsg.attachment
    from oxmsg.storage import Storage

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
_MBOX_LINE = re.compile(
    rb"From (?:-[ \t\r]*|[^\n]*\d\d:\d\d[^\n]*|[^\s@]+@\S+[^\n]*)\n(?=[!-9;-~]{1,60}[ \t]*:|>From )"
)
"""The line before each message of a mailbox: it has a time, an address, or nothing but '-', and headers follow. Many
programs leave out the blank line before it, and do not quote lines of a text that begin with 'From '."""
_QUOTED_FROM = re.compile(rb"^>(>*From )", re.MULTILINE)
_QUOTE = re.compile(r"^[ \t]?>", re.MULTILINE)
_FORWARDED = re.compile(
    r"^[ \t]*(?:-{4,} ?Original Message ?-{4,}|-{4,} ?Forwarded message ?-{4,}|Begin forwarded message:)",
    re.MULTILINE | re.IGNORECASE,
)
_ENCODED_WORD = re.compile(r"=\?([^?\s]{1,60})\?([qQbB])\?(.{0,1000}?)\?=")
"""Text of a header in another encoding (RFC 2047); a bound on its length keeps the search linear."""
_RAW_BYTES = re.compile("[\udc80-\udcff]")
"""Bytes of a header that are not ASCII, as the parser keeps them."""
_UUENCODED = re.compile(
    r"^begin [0-7]{3,4} (\S[^\n]*)\n((?:[!-M][ -`]{1,80}\n)+)(?:[ `]?\n)?end[ \t]*$", re.MULTILINE
)
_ARMOUR = "-----BEGIN PGP "
_SIGNED_TEXT = "SIGNED MESSAGE-----"
_ASKS_FOR_HTML = re.compile(
    r"\b(?:view|see|read|display|support)\w*\b.{0,80}\bHTML\b|\bHTML\b.{0,80}\b(?:view|read|display|support|client|mail)",
    re.IGNORECASE | re.DOTALL,
)
_SHORT_TEXT = 400
"""Characters of a plain text that may be only a note that the message is HTML."""
_LOST_BOUNDARY = re.compile(
    r"^--([^\s-][^\n]{0,200}?|-[^\n]{1,200}?)[ \t]*\n(?=Content-)", re.MULTILINE
)
"""The line between the parts of a message, where its header says another one."""
_FORMATTING = re.compile(r"</?[A-Za-z-]{1,40}>")
"""Commands of text/enriched and text/richtext."""
_SMIME_PROBLEMS = {
    "signed-data": "signed in a form that hides its text",
    "enveloped-data": "encrypted",
    "": "encrypted, or signed in a form that hides its text",
}
"""By the type of S/MIME, which old programs do not say."""
_PICTURES = ("image", "audio", "video")
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
    #: name of a member -> how many have it, with a number added or not
    _names: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, data: bytes) -> None:
        """Add an attachment, under a name that no other one has."""
        name = name.encode("utf-8", "replace").decode("utf-8")
        safe = _UNSAFE_NAME.sub("_", name).lstrip("._ ").rstrip()[-_MAX_NAME:] or "attachment"
        stem, dot, ending = safe.rpartition(".")
        unique = safe
        while unique in self._names:
            self._names[safe] += 1
            number = self._names[safe]
            unique = f"{stem}-{number}.{ending}" if dot else f"{safe}-{number}"
        self._names[unique] = 1
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
    message = email.message_from_bytes(data.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n"))
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
    number = 0
    start = None
    for line_start, line_end in _mailbox_lines(data):
        if start is not None:
            yield _mailbox_member(number, data[start:line_start])
        start = line_end
        number += 1
    if start is None:
        raise Unreadable("not a mailbox: no line that begins with 'From ' has headers after it")
    yield _mailbox_member(number, data[start:])


def _mailbox_lines(data: bytes) -> Iterator[tuple[int, int]]:
    """Where the lines before the messages of a mailbox begin and end."""
    start = 0
    while True:
        match = _MBOX_LINE.match(data, start)
        if match is not None:
            yield match.span()
        # Searching for fixed bytes is much faster than for the expression.
        start = data.find(b"\nFrom ", start) + 1
        if not start:
            return


def _mailbox_member(number: int, data: bytes) -> Member:
    # The program that wrote the mailbox quoted lines that would begin a message.
    if b">From " in data:
        data = _QUOTED_FROM.sub(rb"\1", data)
    return Member(f"{number}.eml", data)


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


def _raw_header(message: Message, name: str) -> str:
    """A header on one line, with its encoded words as they are; empty without it."""
    for key, value in message.raw_items():
        if key.lower() == name:
            return _one_line(value)
    return ""


def _one_line(value: str) -> str:
    """A header without line ends, and without bytes that are not ASCII, which may be in any encoding."""
    line = " ".join(value.split())
    if not _RAW_BYTES.search(line):
        return line
    # They may be inside of encoded words as well.
    data = _header_bytes(_ENCODED_WORD.sub(_plain_word, line))
    try:
        return decoded(data).text
    except Unreadable:
        return data.decode("ascii", "replace")


def _header(message: Message, name: str) -> str:
    """A header as text on one line; empty without it."""
    return _header_text(_raw_header(message, name.lower()))


def _header_text(raw: str) -> str:
    """Text of a header, with its encoded words decoded (RFC 2047), also those that break the rules."""
    if "=?" not in raw:
        return raw
    words: list[tuple[bytes, str | None]] = []
    end = 0
    for match in _ENCODED_WORD.finditer(raw):
        between = raw[end : match.start()]
        # Blanks between two encoded words are not part of the text.
        if between and not (words and words[-1][1] and between.isspace()):
            words.append((_header_bytes(between), None))
        charset = match[1].partition("*")[0].lower()
        data = _encoded_word(match)
        if words and words[-1][1] == charset:
            # Some programs cut the bytes of one character.
            data = words.pop()[0] + data
        words.append((data, charset))
        end = match.end()
    if raw[end:]:
        words.append((_header_bytes(raw[end:]), None))
    texts = []
    for data, encoding in words:
        try:
            texts.append(decoded(data, encoding=encoding).text)
        except Unreadable:
            texts.append(data.decode("ascii", "replace"))
    return " ".join("".join(texts).split())


def _header_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _encoded_word(match: re.Match[str]) -> bytes:
    """The bytes of an encoded word; those of the word as it is written if it cannot be decoded."""
    data = _header_bytes(match[3])
    try:
        if match[2] in "qQ":
            return binascii.a2b_qp(data, header=True)
        decoded_data = binascii.a2b_base64(data + b"==")
        return _header_bytes(match[0]) if data and not decoded_data else decoded_data
    except ValueError:
        return _header_bytes(match[0])


def _plain_word(match: re.Match[str]) -> str:
    """An encoded word in base64, which has no characters that mean something in a list of addresses."""
    return f"=?{match[1]}?b?{b64encode(_encoded_word(match)).decode('ascii')}?="


def _addresses(message: Message, name: str) -> list[str]:
    """The addresses of a header, each with its name."""
    raw = _raw_header(message, name.lower())
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
        person = _header_text(person)
        address = _header_text(address)
        # `formataddr` encodes names that are not ASCII, and refuses such addresses.
        if person and not (person.isascii() and address.isascii()):
            addresses.append(f"{person} <{address}>")
        else:
            addresses.append(formataddr((person, address)) if address.isascii() else address)
    # A header that does not follow the standard is kept as it is.
    text = _header_text(raw)
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
    if kind == "multipart/encrypted":
        letter.problems.append("encrypted")
    elif kind in ("application/pkcs7-mime", "application/x-pkcs7-mime"):
        what = str(part.get_param("smime-type", "")).lower()
        letter.problems.append(_SMIME_PROBLEMS.get(what, _SMIME_PROBLEMS[""]))
    elif kind == "multipart/alternative" and part.is_multipart():
        _write_alternative(part, letter)
    elif kind == "message/rfc822":
        for inner in _inner_messages(part):
            letter.add(f"{_header(inner, 'Subject') or 'forwarded'}.eml", _message_bytes(inner))
    elif kind == "message/partial" and part.get_param("number") != "1":
        letter.problems.append("a later piece of a message that was sent in pieces")
    elif kind in ("message/delivery-status", "message/disposition-notification"):
        _write_report(part, letter)
    elif part.is_multipart():
        for inner in _inner_messages(part):
            _write_part(inner, letter)
    elif part.get_content_maintype() == "multipart":
        _write_lost_parts(part, letter)
    elif _is_text(part):
        _write_text(part, letter)
    elif kind.endswith(("/pgp-signature", "/pkcs7-signature", "/x-pkcs7-signature")):
        return
    elif kind == "application/ms-tnef":
        letter.problems.append("winmail.dat has attachments in a form that only Outlook reads")
    else:
        letter.add(_file_name(part), _payload(part))


def _message_bytes(message: Message) -> bytes:
    with suppress(
        UnicodeError
    ):  # a multipart whose parts were not found, with bytes that are not ASCII
        return message.as_bytes()
    lines = [f"{name}: {_one_line(value)}\n" for name, value in message.raw_items()]
    texts = [part.get_payload() for part in message.walk() if not part.is_multipart()]
    text = "\n\n".join(text for text in texts if isinstance(text, str))
    return _header_bytes(f"{''.join(lines)}\n{text}")


def _write_alternative(part: Message, letter: _Letter) -> None:
    """Append one of several forms of the same text: plain text if it has any words, else the last, which is richest."""
    inner_parts = _inner_messages(part)
    rich = [
        inner
        for inner in inner_parts
        if inner.get_content_type() == "text/html" or inner.is_multipart()
    ]
    chosen = rich[-1:] or inner_parts[-1:]
    for inner in inner_parts:
        if inner.get_content_type() == "text/plain" and not inner.get_filename():
            text = _payload(inner).strip().decode("ascii", "replace")
            asks = rich and len(text) < _SHORT_TEXT and _ASKS_FOR_HTML.search(text)
            if text and not asks:
                chosen = [inner]
                break
    for inner in chosen:
        _write_part(inner, letter)
    # Some programs put attachments beside the forms of the text.
    for inner in inner_parts:
        if inner.get_filename() and not inner.is_multipart() and inner not in chosen:
            letter.add(_file_name(inner), _payload(inner))


def _write_report(part: Message, letter: _Letter) -> None:
    """Append what a mail server says about a message, which has the form of headers."""
    for inner in _inner_messages(part):
        letter.builder.gap("\n\n")
        for name, value in inner.raw_items():
            letter.builder.write(f"{name}: {_header_text(_one_line(value))}")
            letter.builder.gap("\n")


def _write_lost_parts(part: Message, letter: _Letter) -> None:
    """Append the parts of a multipart whose header does not say what is between them, else its text."""
    payload = part.get_payload()
    text = payload if isinstance(payload, str) else ""
    boundary = _LOST_BOUNDARY.search(text.replace("\r\n", "\n"))
    if boundary and '"' not in boundary[1] and boundary[1] != part.get_boundary():
        header = f'Content-Type: {part.get_content_type()}; boundary="{boundary[1]}"'
        found = email.message_from_string(f"{header}\n\n{text}")
        if found.is_multipart():
            _write_part(found, letter)
            return
    part.set_type("text/plain")
    _write_text(part, letter)


def _inner_messages(part: Message) -> list[Message]:
    payload = part.get_payload()
    if not isinstance(payload, list):
        return []
    return [inner for inner in payload if isinstance(inner, Message)]


def _is_text(part: Message) -> bool:
    """Whether a part is text of the message itself, rather than an attachment."""
    if part.get_content_disposition() == "attachment" or part.get_filename():
        return False
    return part.get_content_type() in ("text/plain", "text/html", "text/enriched", "text/richtext")


def _write_text(part: Message, letter: _Letter) -> None:
    encoding = part.get_content_charset()
    try:
        text, _ = decoded(_payload(part), encoding=encoding)
    except Unreadable as e:
        letter.problems.append(f"a part of its text: {e}")
        return
    letter.builder.gap("\n\n")
    kind = part.get_content_type()
    if kind == "text/html":
        _write_html(text, letter)
        return
    if kind in ("text/enriched", "text/richtext"):
        text = _FORMATTING.sub("", text)
    if part.get_param("format") == "flowed":
        text = _unflowed(text, part.get_param("delsp") == "yes")
    text = _without_armour(text, letter)
    text = _UUENCODED.sub(lambda match: _add_uuencoded(match, letter), text)
    letter.builder.write(text.strip("\n"))


def _without_armour(text: str, letter: _Letter) -> str:
    """A text without what PGP wrote as base64: signatures, keys, and enciphered text, which is a problem."""
    pieces = []
    start = 0
    while (begin := text.find(_ARMOUR, start)) >= 0:
        label = begin + len(_ARMOUR)
        if text.startswith(_SIGNED_TEXT, label):
            # Its headers end with a blank line; the text is as it was written.
            end = text.find("\n\n", label)
        else:
            end = text.find("\n", text.find("-----END PGP ", label))
            end = end if text.find("-----END PGP ", label) >= 0 else -1
            if text.startswith("MESSAGE-----", label):
                letter.problems.append("encrypted")
        pieces.append(text[start:begin])
        start = end if end >= 0 else len(text)
    return "".join([*pieces, text[start:]])


def _add_uuencoded(match: re.Match[str], letter: _Letter) -> str:
    """Collect a file that is in the middle of a text, as mail had them before MIME; the text without it."""
    lines = []
    for line in match[2].splitlines():
        with suppress(binascii.Error):
            lines.append(binascii.a2b_uu(line))
    letter.add(match[1].strip(), b"".join(lines))
    return ""


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
    holder = Message()
    for header in ("content-disposition", "content-type"):
        holder[header] = _raw_header(part, header)
    # An encoded word, which RFC 2231 does not allow here but many programs write.
    name = _header_text(holder.get_filename() or "")
    # Old programs wrote the folder as well.
    name = re.split(r"[/\\]", name)[-1]
    if name:
        return name
    ending = guess_extension(part.get_content_type())
    if ending is None:
        family = part.get_content_maintype()
        if family in _PICTURES:
            ending = f".{part.get_content_subtype()}"
        else:
            ending = ".txt" if family == "text" else ".bin"
    return f"attachment{ending}"


def _unflowed(text: str, delete_space: bool) -> str:
    """Paragraphs of a text whose lines end with a blank where they continue (RFC 3676)."""
    pieces: list[str] = []
    continued = False
    for number, line in enumerate(text.split("\n")):
        if line.startswith(" "):
            line = line[1:]  # it protects lines that begin with a blank, '>' or 'From '
        if number and not (continued and not line.startswith(">")):
            pieces.append("\n")
        continued = line.endswith(" ") and line != "-- "
        pieces.append(line[:-1] if continued and delete_space else line)
    return "".join(pieces)


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


_OLE_START = b"\xd0\xcf\x11\xe0"
# Properties of Outlook's messages (MS-OXPROPS) for which python-oxmsg has no names.
_TRANSPORT_HEADERS = 0x007D
_SENDER_NAME = 0x0C1A
_RECIPIENT_TYPE = 0x0C15
_SENDER_ADDRESS = 0x0C1F
_DELIVERY_TIME = 0x0E06
_RICH_TEXT = 0x1009
_HTML = 0x1013
_DISPLAY_NAME = 0x3001
_SHORT_FILE_NAME = 0x3704
_ATTACH_METHOD = 0x3705
_SENDER_SMTP_ADDRESS = 0x5D01
_CARBON_COPY = 2
_BY_VALUE = (None, 1)
_EMBEDDED_MESSAGE = 5
_EMBEDDED_STORAGE = "__substg1.0_3701000D"
_TOP_HEADER = 32
_EMBEDDED_HEADER = 24
"""Bytes before the properties of a message, and of a message inside a message."""


def read_outlook(data: bytes) -> Extracted:
    """A message of Outlook (.msg), read by python-oxmsg."""
    if not data.startswith(_OLE_START):
        if _HEADER_LINES.match(data.replace(b"\r\n", b"\n")):
            return read_mail(data)  # as programs other than Outlook write it
        raise Unreadable("not a message of Outlook")
    import oxmsg

    message = oxmsg.Message.load(data)
    letter = _outlook_letter(message)
    letter.write_header()
    _write_outlook_text(message, letter)
    return letter.extracted()


def _outlook_letter(message: oxmsg.Message) -> _Letter:
    """A message of Outlook without its text."""
    properties = message.properties
    headers = email.message_from_string(properties.str_prop_value(_TRANSPORT_HEADERS) or "")
    sender = ", ".join(_addresses(headers, "From")) or _outlook_person(
        properties.str_prop_value(_SENDER_NAME),
        properties.str_prop_value(_SENDER_SMTP_ADDRESS)
        or properties.str_prop_value(_SENDER_ADDRESS),
    )
    sender = sender or _outlook_person(message.sender, None)
    letter = _Letter(
        subject=message.subject,
        sender=sender,
        date=_date(_header(headers, "Date")),
        message_id=_header(headers, "Message-ID").strip("<> "),
    )
    people: dict[bool, list[str]] = {True: [], False: []}
    for recipient in message.recipients[:MAX_ADDRESSES]:
        try:
            person = _outlook_person(recipient.name, recipient.email_address)
            is_copied = recipient.properties.int_prop_value(_RECIPIENT_TYPE) == _CARBON_COPY
        except (LookupError, ValueError, struct.error):
            continue  # damaged
        if person and person not in people[is_copied]:
            people[is_copied].append(person)
    letter.to = people[False]
    letter.cc = people[True]
    with suppress(ValueError, OverflowError):
        date = message.sent_date or properties.date_prop_value(_DELIVERY_TIME)
        letter.date = date.astimezone(UTC) if date else letter.date
    for number, attachment in enumerate(message.attachments, 1):
        try:
            _add_outlook_attachment(attachment, number, message.message_class, letter)
        except (LookupError, ValueError, struct.error):
            letter.problems.append(f"attachment {number} is damaged")
    return letter


def _outlook_person(name: str | None, address: str | None) -> str:
    """A name and an address; Exchange has addresses of its own, which nobody knows."""
    name = " ".join((name or "").split()).strip("'\"")
    if not address or "@" not in address:
        return name
    return address if name.lower() in ("", address.lower()) else f"{name} <{address}>"


def _write_outlook_text(message: oxmsg.Message, letter: _Letter) -> None:
    body = message.body
    html = message.properties.binary_prop_value(_HTML)
    if body and body.strip():
        letter.builder.write(body.replace("\r\n", "\n").strip())
    elif html:
        text, _ = decoded(html, encoding=message.properties.body_encoding)
        _write_html(text, letter)
    elif message.html_body:
        _write_html(message.html_body, letter)
    elif message.properties.binary_prop_value(_RICH_TEXT):
        letter.problems.append("its text is only in Rich Text; save it as HTML or plain text")


def _add_outlook_attachment(
    attachment: oxmsg.attachment.Attachment, number: int, message_class: str, letter: _Letter
) -> None:
    properties = attachment.properties
    method = properties.int_prop_value(_ATTACH_METHOD)
    name = (
        attachment.file_name
        or properties.str_prop_value(_SHORT_FILE_NAME)
        or properties.str_prop_value(_DISPLAY_NAME)
    )
    if method == _EMBEDDED_MESSAGE:
        for storage in attachment._storage.storages:
            if storage.name == _EMBEDDED_STORAGE:
                letter.add(*_embedded_message(storage))
        return
    data = attachment.file_bytes
    if method not in _BY_VALUE:
        letter.problems.append(f"attachment {number} is a link or an object")
    elif not data:
        return
    elif message_class.startswith("IPM.Note.SMIME"):
        # The complete message as it was sent: signed, or else enciphered.
        if b"content-type:" in data[:SNIFFED_BYTES].lower():
            letter.add("signed.eml", data)
        else:
            letter.problems.append("encrypted")
    else:
        ending = guess_extension(attachment.mime_type or "") or ""
        letter.add(name or f"attachment-{number}{ending}", data)


def _embedded_message(storage: Storage) -> tuple[str, bytes]:
    """The name and the bytes of a message inside a message, as a message of the standard."""
    import oxmsg

    message = oxmsg.Message(_EmbeddedStorage(storage))
    letter = _outlook_letter(message)
    _write_outlook_text(message, letter)
    mail = MIMEMultipart()
    for name, value in (
        ("Subject", letter.subject),
        ("From", letter.sender),
        ("To", ", ".join(letter.to)),
        ("Cc", ", ".join(letter.cc)),
        ("Date", letter.date.strftime("%d %b %Y %H:%M:%S +0000") if letter.date else ""),
        ("Message-ID", letter.message_id),
    ):
        mail[name] = " ".join(value.split())
    mail.attach(MIMEText("".join(letter.builder.pieces), "plain", "utf-8"))
    for member in letter.members:
        part = MIMEApplication(member.data)
        part.add_header("Content-Disposition", "attachment", filename=("utf-8", "", member.name))
        mail.attach(part)
    return f"{' '.join(letter.subject.split()) or 'forwarded'}.eml", mail.as_bytes(
        policy=policy.compat32.clone(max_line_length=0)
    )


class _EmbeddedStorage:
    """The storage of a message inside a message, with the properties where python-oxmsg looks for them."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def __getattr__(self, name: str) -> object:
        return getattr(self._storage, name)

    @property
    def properties_stream_bytes(self) -> bytes:
        data = self._storage.properties_stream_bytes
        return (
            data[:_EMBEDDED_HEADER]
            + bytes(_TOP_HEADER - _EMBEDDED_HEADER)
            + data[_EMBEDDED_HEADER:]
        )


FORMATS = (
    Format("eml", ("eml", "mht", "mhtml"), read_mail, isolated=True, recognise=recognise_mail),
    Format("emlx", ("emlx",), read_apple_mail, isolated=True),
    Format("mbox", ("mbox", "mbx"), members=mailbox_members, recognise=recognise_mailbox),
    Format("msg", ("msg",), read_outlook, ("oxmsg", "lxml"), isolated=True),
)
