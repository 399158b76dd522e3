"""Zip archives, as office documents and EPUB books are: limits on what they unpack to, and their XML."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from typing import Any

from dupmae_ir.io.documents.readers.extracted import LARGEST, Unreadable

_MAX_MEMBERS = 20_000
MAX_TAGS = 5_000_000
"""Tags of an office document above which it is refused: an empty paragraph has 6 bytes, and 130 in memory."""
OLE_MAGIC = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
"""The first bytes of compound files: office documents of 1997 to 2003, and encrypted ones of today."""
XML_DECLARATION = re.compile(r"\A\s*<\?xml[^>]*\?>")
"""The declaration of an encoding, which is that of the bytes; a text is already decoded."""
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")


def open_archive(data: bytes) -> zipfile.ZipFile:
    """The archive. Raises :class:`Unreadable` for data that is none, or if its members together are too large."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as e:
        raise Unreadable(f"not a zip archive: {e}") from None
    members = archive.infolist()
    # The archive states these sizes itself, but zipfile reads no more of a member than its stated size.
    size = sum(member.file_size for member in members)
    if size > LARGEST or len(members) > _MAX_MEMBERS:
        archive.close()
        raise Unreadable(
            f"unpacks to {size >> 20:,} MiB in {len(members):,} parts; the limit is {LARGEST >> 20} MiB"
        )
    return archive


def refuse_encrypted(data: bytes) -> None:
    """Raise :class:`Unreadable` for an office document of today that is encrypted."""
    if data.startswith(OLE_MAGIC) and _ENCRYPTED in data:
        raise Unreadable("encrypted with a password")


def refuse_hostile_package(data: bytes) -> None:
    """Raise :class:`Unreadable` for an office document that is encrypted, or too large for a library's tree."""
    refuse_encrypted(data)
    tags = 0
    with open_archive(data) as package:
        for name in package.namelist():
            if name.endswith(".xml"):
                tags += package.read(name).count(b"<")
    if tags > MAX_TAGS:
        raise Unreadable(f"more than {MAX_TAGS:,} tags")


def read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """The bytes of a member. Raises :class:`Unreadable` if it is missing or encrypted."""
    try:
        return archive.read(name)
    except KeyError:
        raise Unreadable(f"{name} is not in it") from None
    except RuntimeError as e:  # an encrypted member
        raise Unreadable(f"{name}: {e}") from None


def xml_root(xml: bytes, recover: bool = False) -> Any:
    """The root element of a document; no entity is resolved and nothing is loaded.

    With ``recover``, what can be read of a damaged one. Raises :class:`Unreadable`.
    """
    from lxml import etree

    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, recover=recover
    )
    try:
        root = etree.fromstring(xml, parser)
    except etree.LxmlError as e:
        raise Unreadable(f"damaged XML: {e}") from None
    if root is None:
        raise Unreadable("damaged XML: no element in it")
    return root


def local_name(element: Any) -> str:
    """The name of an element without its namespace; empty for a comment or a processing instruction."""
    tag = element.tag
    # That of a comment is a function.
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""


def xml_elements(xml: bytes, name: str) -> Iterator[Any]:
    """The elements with a local name."""
    return (element for element in xml_root(xml).iter() if local_name(element) == name)
