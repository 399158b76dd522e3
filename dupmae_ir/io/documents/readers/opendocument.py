"""Texts and slides of LibreOffice (OpenDocument)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dupmae_ir.io.documents.readers.archive import (
    local_name,
    open_archive,
    read_member,
    refuse_hostile_package,
    xml_elements,
    xml_root,
)
from dupmae_ir.io.documents.readers.extracted import Builder, Extracted, Unreadable

# odfpy, the library for these files, is unmaintained and has no wheel; the text is in one file of XML.
_SKIPPED = frozenset(
    [
        "tracked-changes",
        "annotation",
        "forms",
        "sequence-decls",
        "table-of-content",
        "settings",
        "event-listeners",
    ]
)
_MAX_SPACES = 100


def read_opendocument(data: bytes) -> Extracted:
    """A text or slides: headings, paragraphs, lists, tables, notes."""
    if data.lstrip()[:1] == b"<":  # one flat file of XML
        content = data
        meta = data
    else:
        refuse_hostile_package(data)
        with open_archive(data) as package:
            if "META-INF/manifest.xml" in package.namelist():
                manifest = read_member(package, "META-INF/manifest.xml")
                if b"encryption-data" in manifest:
                    raise Unreadable("encrypted with a password")
            content = read_member(package, "content.xml")
            meta = read_member(package, "meta.xml") if "meta.xml" in package.namelist() else b""
    writer = _Writer()
    writer.write(_body(content))
    return writer.builder.done(_title(meta))


def _title(meta: bytes) -> str:
    """The title that the properties of a document give it; empty without one."""
    if not meta:
        return ""
    for element in xml_elements(meta, "title"):
        if "purl.org/dc" in element.tag:
            return element.text or ""
    return ""


def _body(xml: bytes) -> Any:
    root = xml_root(xml)
    body = next((element for element in root.iter() if local_name(element) == "body"), None)
    if body is None:
        raise Unreadable("no OpenDocument file: it has no body")
    return body


class _Writer:
    """Writes the elements of a document; the parser limits how deep they are nested."""

    def __init__(self) -> None:
        self.builder = Builder()
        self._slides = 0

    def write(self, element: Any) -> None:
        """Append an element that holds paragraphs, and what is in it."""
        name = local_name(element)
        if name in _SKIPPED or not name:
            return
        if name == "h":
            self._write_heading(element)
        elif name == "p":
            self._write_paragraph(element)
        elif name == "table-row":
            self._write_row(element)
        elif name == "notes":
            self._write_notes(element)
        else:
            self._write_container(name, element)

    def _write_heading(self, element: Any) -> None:
        level = _attribute(element, "outline-level", "1")
        self.builder.heading(int(level) if level.isdigit() else 1, _text_of(element))

    def _write_paragraph(self, element: Any) -> None:
        self.builder.gap("\n")
        self.builder.write(_text_of(element).strip())
        # Text boxes that are anchored in the paragraph.
        for box in _outer_boxes(element):
            self.builder.gap("\n\n")
            for inner in box:
                self.write(inner)
        self.builder.gap("\n")

    def _write_container(self, name: str, element: Any) -> None:
        """Append what is in a slide, a list, a table, a frame, and anything else that has no text of its own."""
        if name == "page":
            self.builder.gap("\n\n")
            self._slides += 1
            self.builder.place({"slide": self._slides})
        if name in ("list", "table", "frame", "section"):
            self.builder.gap("\n\n")
        if _attribute(element, "class") == "title":
            self.builder.heading(1, _text_with_boxes(element))
        else:
            for inner in element:
                self.write(inner)
        if name in ("list", "table"):
            self.builder.gap("\n\n")

    def _write_row(self, row: Any) -> None:
        cells = []
        for cell in row:
            text = " ".join(_text_of(cell).split())
            if text and local_name(cell) == "table-cell":
                cells.append(text)
        self.builder.table_row(cells)

    def _write_notes(self, notes: Any) -> None:
        """The speaker's notes of a slide."""
        text = " ".join(_text_with_boxes(notes).split())
        if text:
            self.builder.gap("\n\n")
            self.builder.write(f"Notes: {text}")


def _attribute(element: Any, name: str, default: str = "") -> str:
    """The value of an attribute with a local name."""
    for key, value in element.attrib.items():
        if key.rpartition("}")[2] == name:
            return str(value)
    return default


def _outer_boxes(element: Any) -> Iterator[Any]:
    """The text boxes inside an element, except for those in another one."""
    for inner in element:
        if local_name(inner) == "text-box":
            yield inner
        else:
            yield from _outer_boxes(inner)


def _text_with_boxes(element: Any) -> str:
    """The text inside an element, also in the text boxes in which slides have all of it."""
    pieces = [_text_of(element)]
    for box in _outer_boxes(element):
        pieces += [_text_of(inner) for inner in box]
    return " ".join(pieces)


def _text_of(element: Any) -> str:
    """The text inside an element: blanks, tabs and line ends are elements of their own."""
    name = local_name(element)
    if name in _SKIPPED or name == "text-box" or not name:
        return ""
    if name == "s":
        count = _attribute(element, "c", "1")
        return " " * min(int(count) if count.isdigit() else 1, _MAX_SPACES)
    if name == "tab":
        return "\t"
    if name == "line-break":
        return "\n"
    if name == "note":
        # A footnote, where its number stands.
        body = next((inner for inner in element if local_name(inner) == "note-body"), None)
        return "" if body is None else f" ({_text_of(body).strip()})"
    pieces = [element.text or ""]
    for inner in element:
        pieces.append(_text_of(inner))
        pieces.append(inner.tail or "")
        if local_name(inner) in ("p", "h", "list-item"):
            pieces.append("\n")
    return "".join(pieces)
