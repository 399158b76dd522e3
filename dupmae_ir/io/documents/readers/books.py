"""EPUB books, whose chapters are XHTML."""

from __future__ import annotations

import posixpath
from urllib.parse import unquote

from dupmae_ir.io.documents.readers.archive import open_archive, read_member, xml_elements
from dupmae_ir.io.documents.readers.encodings import decoded
from dupmae_ir.io.documents.readers.extracted import Builder, Extracted, Unreadable
from dupmae_ir.io.documents.readers.html import parse_html

_CONTAINER = "META-INF/container.xml"


def read_epub(data: bytes) -> Extracted:
    """A book: its chapters in the order of the spine."""
    with open_archive(data) as book:
        # The container names the package, which lists the files and their order.
        container = read_member(book, _CONTAINER)
        paths = (element.get("full-path") for element in xml_elements(container, "rootfile"))
        package_path = next(filter(None, paths), None)
        if not package_path:
            raise Unreadable("its container names no package")
        package = read_member(book, package_path)
        chapters = _chapter_names(package, posixpath.dirname(package_path))
        titles = [(element.text or "").strip() for element in xml_elements(package, "title")]

        builder = Builder()
        for reference in xml_elements(package, "itemref"):
            name = chapters.get(reference.get("idref"))
            if name:
                builder.gap("\n\n")
                chapter = decoded(read_member(book, name), declared=True)
                parse_html(chapter.text, builder)
    return builder.done(next(filter(None, titles), ""))


def _chapter_names(package: bytes, folder: str) -> dict[str | None, str]:
    """Id of each HTML file that the package lists -> its name in the archive."""
    names = {}
    for item in xml_elements(package, "item"):
        if "html" in (item.get("media-type") or ""):
            reference = unquote(item.get("href") or "")
            names[item.get("id")] = posixpath.normpath(posixpath.join(folder, reference))
    return names
