"""Zip archives, as Word documents and EPUB books are: limits on what they unpack to, and their XML."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from typing import Any

from dupmae_ir.io.documents.readers.extracted import LARGEST, Unreadable

_MAX_MEMBERS = 20_000


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


def read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """The bytes of a member of a book. Raises :class:`Unreadable` if it is missing or encrypted."""
    try:
        return archive.read(name)
    except KeyError:
        raise Unreadable(f"{name} is not in the book") from None
    except RuntimeError as e:  # an encrypted member
        raise Unreadable(f"{name}: {e}") from None


def xml_elements(xml: bytes, name: str) -> Iterator[Any]:
    """The elements with a local name; no entity is resolved and nothing is loaded."""
    from lxml import etree

    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False)
    try:
        root = etree.fromstring(xml, parser)
    except etree.LxmlError as e:
        raise Unreadable(f"damaged XML: {e}") from None
    # The tag of a comment or a processing instruction is a function.
    return (e for e in root.iter() if isinstance(e.tag, str) and etree.QName(e).localname == name)
