"""Messages of Outlook (.msg), read by python-oxmsg."""

from __future__ import annotations

import email
import struct
from contextlib import suppress
from datetime import UTC
from email import policy
from email.mime.application import MIMEApplication
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from mimetypes import guess_extension
from typing import TYPE_CHECKING

from dupmae_ir.io.documents.readers.archive import OLE_MAGIC
from dupmae_ir.io.documents.readers.encodings import SNIFFED_BYTES, decoded
from dupmae_ir.io.documents.readers.extracted import Extracted, Unreadable
from dupmae_ir.io.documents.readers.mail import Letter, read_mail, write_html
from dupmae_ir.io.documents.readers.mail_headers import (
    HEADER_LINES,
    MAX_ADDRESSES,
    addresses_of,
    header,
    time_of,
)

if TYPE_CHECKING:
    import oxmsg.attachment
    from oxmsg.storage import Storage

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
    if not data.startswith(OLE_MAGIC):
        if HEADER_LINES.match(data.replace(b"\r\n", b"\n")):
            return read_mail(data)  # as programs other than Outlook write it
        raise Unreadable("not a message of Outlook")
    import oxmsg

    message = oxmsg.Message.load(data)
    letter = _outlook_letter(message)
    letter.write_header()
    _write_outlook_text(message, letter)
    return letter.extracted()


def _outlook_letter(message: oxmsg.Message) -> Letter:
    """A message of Outlook without its text."""
    properties = message.properties
    headers = email.message_from_string(properties.str_prop_value(_TRANSPORT_HEADERS) or "")
    sender = ", ".join(addresses_of(headers, "From")) or _outlook_person(
        properties.str_prop_value(_SENDER_NAME),
        properties.str_prop_value(_SENDER_SMTP_ADDRESS)
        or properties.str_prop_value(_SENDER_ADDRESS),
    )
    sender = sender or _outlook_person(message.sender, None)
    letter = Letter(
        subject=message.subject,
        sender=sender,
        date=time_of(header(headers, "Date")),
        message_id=header(headers, "Message-ID").strip("<> "),
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


def _write_outlook_text(message: oxmsg.Message, letter: Letter) -> None:
    body = message.body
    html = message.properties.binary_prop_value(_HTML)
    if body and body.strip():
        letter.builder.write(body.replace("\r\n", "\n").strip())
    elif html:
        text, _ = decoded(html, encoding=message.properties.body_encoding)
        write_html(text, letter)
    elif message.html_body:
        write_html(message.html_body, letter)
    elif message.properties.binary_prop_value(_RICH_TEXT):
        letter.problems.append("its text is only in Rich Text; save it as HTML or plain text")


def _add_outlook_attachment(
    attachment: oxmsg.attachment.Attachment, number: int, message_class: str, letter: Letter
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
