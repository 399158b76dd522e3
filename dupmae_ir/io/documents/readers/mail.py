"""Messages of mail (RFC 5322 and MIME).

A message is one document, with its headers as metadata; each attachment and each forwarded message is a document of its
own. Its text is what a person reads: the plain text if there is one, else the HTML.
"""

from __future__ import annotations

import binascii
import email
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from email.message import Message
from mimetypes import guess_extension

from dupmae_ir.io.documents.readers.encodings import decoded
from dupmae_ir.io.documents.readers.extracted import (
    Block,
    Builder,
    Extracted,
    Member,
    Unreadable,
    time_text,
)
from dupmae_ir.io.documents.readers.html import parse_html
from dupmae_ir.io.documents.readers.mail_headers import (
    addresses_of,
    header,
    header_bytes,
    header_text,
    one_line,
    raw_header,
    time_of,
)
from dupmae_ir.types import MetadataValue

_MAX_NAME = 120
"""Characters of an attachment's name."""

_QUOTE = re.compile(r"^[ \t]?>", re.MULTILINE)
_FORWARDED = re.compile(
    r"^[ \t]*(?:-{4,} ?Original Message ?-{4,}|-{4,} ?Forwarded message ?-{4,}|Begin forwarded message:)",
    re.MULTILINE | re.IGNORECASE,
)
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
class Letter:
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
        """Add an attachment."""
        name = name.encode("utf-8", "replace").decode("utf-8")
        safe = _UNSAFE_NAME.sub("_", name).lstrip("._ ").rstrip()[-_MAX_NAME:]
        self.members.append(Member(safe or "attachment", data))

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
            metadata["date"] = time_text(self.date)
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
    letter = Letter(
        subject=header(message, "Subject"),
        sender=", ".join(addresses_of(message, "From")),
        to=addresses_of(message, "To"),
        cc=addresses_of(message, "Cc"),
        date=time_of(header(message, "Date")),
        message_id=header(message, "Message-ID").strip("<> "),
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


def _write_part(part: Message, letter: Letter) -> None:
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
            letter.add(f"{header(inner, 'Subject') or 'forwarded'}.eml", _message_bytes(inner))
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
    try:
        return message.as_bytes()
    except UnicodeError:
        # A multipart whose parts were not found, with bytes that are not ASCII, is put together by hand.
        pass
    lines = [f"{name}: {one_line(value)}\n" for name, value in message.raw_items()]
    texts = [part.get_payload() for part in message.walk() if not part.is_multipart()]
    text = "\n\n".join(text for text in texts if isinstance(text, str))
    return header_bytes(f"{''.join(lines)}\n{text}")


def _write_alternative(part: Message, letter: Letter) -> None:
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


def _write_report(part: Message, letter: Letter) -> None:
    """Append what a mail server says about a message, which has the form of headers."""
    for inner in _inner_messages(part):
        letter.builder.gap("\n\n")
        for name, value in inner.raw_items():
            letter.builder.write(f"{name}: {header_text(one_line(value))}")
            letter.builder.gap("\n")


def _write_lost_parts(part: Message, letter: Letter) -> None:
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


def _write_text(part: Message, letter: Letter) -> None:
    encoding = part.get_content_charset()
    try:
        text, _ = decoded(_payload(part), encoding=encoding)
    except Unreadable as e:
        letter.problems.append(f"a part of its text: {e}")
        return
    letter.builder.gap("\n\n")
    kind = part.get_content_type()
    if kind == "text/html":
        write_html(text, letter)
        return
    if kind in ("text/enriched", "text/richtext"):
        text = _FORMATTING.sub("", text)
    if part.get_param("format") == "flowed":
        text = _unflowed(text, part.get_param("delsp") == "yes")
    text = _without_armour(text, letter)
    text = _UUENCODED.sub(lambda match: _add_uuencoded(match, letter), text)
    letter.builder.write(text.strip("\n"))


def _without_armour(text: str, letter: Letter) -> str:
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


def _add_uuencoded(match: re.Match[str], letter: Letter) -> str:
    """Collect a file that is in the middle of a text, as mail had them before MIME; the text without it."""
    lines = []
    for line in match[2].splitlines():
        with suppress(binascii.Error):
            lines.append(binascii.a2b_uu(line))
    letter.add(match[1].strip(), b"".join(lines))
    return ""


def write_html(markup: str, letter: Letter) -> None:
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
    for field_name in ("content-disposition", "content-type"):
        holder[field_name] = raw_header(part, field_name)
    # An encoded word, which RFC 2231 does not allow here but many programs write.
    name = header_text(holder.get_filename() or "")
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
