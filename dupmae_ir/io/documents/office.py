"""Word documents, by python-docx, EPUB books, whose chapters are XHTML, and PDF files, by pypdf."""

from __future__ import annotations

import io
import logging
import posixpath
import re
import zipfile
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from dupmae_ir.io.documents.extracted import LARGEST, Builder, Extracted, Unreadable, decoded
from dupmae_ir.io.documents.html import parse

_HYPHEN = re.compile(r"(?<=[a-z])-\n(?=[a-z])")
_MOST_MEMBERS = 20_000
_HEADING = re.compile(r"heading (\d)", re.IGNORECASE)
_CONTAINER = "META-INF/container.xml"


def docx(data: bytes) -> Extracted:
    """A Word document: paragraphs and tables in their order; styles ``Heading N`` and ``Title`` are headings."""
    from docx import Document

    _checked_zip(data).close()
    document = Document(io.BytesIO(data))
    made = Builder()
    for block in document.iter_inner_content():
        if hasattr(block, "rows"):
            for row in block.rows:
                made.gap("\n")
                made.write(" | ".join(dict.fromkeys(" ".join(cell.text.split()) for cell in row.cells)))
        elif level := _level(block):
            made.heading(level, block.text)
        else:
            made.gap("\n\n")
            made.write(block.text.strip())
        made.gap("\n\n")
    return made.done(document.core_properties.title or "")


def _level(paragraph: Any) -> int:
    """The level of a heading; 0 for other paragraphs."""
    name = (paragraph.style.name or "") if paragraph.style is not None else ""
    if name.lower() == "title":
        return 1
    found = _HEADING.match(name)
    return int(found.group(1)) if found else 0


def epub(data: bytes) -> Extracted:
    """A book: its chapters in the order of the spine."""
    with _checked_zip(data) as book:
        package = _package_path(book)
        title, chapters = _spine(_read(book, package), posixpath.dirname(package))
        made = Builder()
        for name in chapters:
            made.gap("\n\n")
            parse(decoded(_read(book, name), declared=True), made)
    return made.done(title)


def _checked_zip(data: bytes) -> zipfile.ZipFile:
    """The archive. Raises :class:`Unreadable` for one that is none, or whose members are too large together; zipfile
    reads no more of a member than the size that is added here."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as e:
        raise Unreadable(f"not a zip archive: {e}") from None
    members = archive.infolist()
    size = sum(member.file_size for member in members)
    if size > LARGEST or len(members) > _MOST_MEMBERS:
        archive.close()
        raise Unreadable(f"unpacks to {size >> 20:,} MiB in {len(members):,} parts; the limit is {LARGEST >> 20} MiB")
    return archive


def _read(book: zipfile.ZipFile, name: str) -> bytes:
    try:
        return book.read(name)
    except KeyError:
        raise Unreadable(f"{name} is not in the book") from None
    except RuntimeError as e:  # an encrypted member
        raise Unreadable(f"{name}: {e}") from None


def _package_path(book: zipfile.ZipFile) -> str:
    for element in _elements(_read(book, _CONTAINER), "rootfile"):
        if path := element.get("full-path"):
            return str(path)
    raise Unreadable("its container names no package")


def _spine(package: bytes, folder: str) -> tuple[str, list[str]]:
    """The title and the paths of the chapters."""
    items = {
        item.get("id"): posixpath.normpath(posixpath.join(folder, unquote(item.get("href") or "")))
        for item in _elements(package, "item")
        if "html" in (item.get("media-type") or "")
    }
    titles = [(element.text or "").strip() for element in _elements(package, "title")]
    chapters = [items[ref] for e in _elements(package, "itemref") if (ref := e.get("idref")) in items]
    return next(filter(None, titles), ""), chapters


def _elements(xml: bytes, name: str) -> Iterator[Any]:
    """The elements of a local name; no entity is resolved and nothing is loaded."""
    from lxml import etree

    try:
        root = etree.fromstring(xml, etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False))
    except etree.LxmlError as e:
        raise Unreadable(f"damaged XML: {e}") from None
    return (e for e in root.iter() if isinstance(e.tag, str) and etree.QName(e).localname == name)


def pdf(data: bytes) -> Extracted:
    """The text of all pages; words that a line end divides are joined. A page that fails is left out and named."""
    from pypdf import PdfReader

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it warns about every unusual file
    reader = PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        raise Unreadable("encrypted with a password")
    made, pages, problems = Builder(), list[int](), list[str]()
    for number, page in enumerate(reader.pages, 1):
        try:
            text = _HYPHEN.sub("", page.extract_text().strip())
        except Exception as e:  # what pypdf raises for a damaged page is not documented
            problems.append(f"page {number}: {' '.join(str(e).split())[:100] or type(e).__name__}")
            text = ""
        made.gap("\n\n")
        pages.append(made.next_start)
        made.write(text)
    if not made.length:
        raise Unreadable("; ".join(problems[:2]) or "no text in it; scanned pages need OCR first")
    title = str(reader.metadata.title or "") if reader.metadata else ""
    found = made.done("" if "." in title[-5:] else title)  # many titles are names of source files
    return Extracted(found.text, found.title, (), pages=pages, problems=problems)
