"""Texts and slides of LibreOffice (OpenDocument)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from dupmae_ir.io.documents.readers.archive import (
    local_name,
    open_archive,
    read_member,
    refuse_hostile_package,
    xml_elements,
    xml_root,
)
from dupmae_ir.io.documents.readers.extracted import Block, Builder, Extracted, Unreadable
from dupmae_ir.io.documents.readers.format import Format

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
    title = ""
    if meta:
        titles = (
            element for element in xml_elements(meta, "title") if "purl.org/dc" in element.tag
        )
        title = next((element.text or "" for element in titles), "")
    writer = _Writer()
    writer.write(_body(content))
    return replace(writer.builder.done(title), blocks=writer.slides)


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
        self.slides: list[Block] = []

    def write(self, element: Any) -> None:
        """Append an element that holds paragraphs, and what is in it."""
        name = local_name(element)
        if name in _SKIPPED or not name:
            return
        if name == "h":
            level = next(
                (v for key, v in element.attrib.items() if key.endswith("outline-level")), "1"
            )
            self.builder.heading(int(level) if level.isdigit() else 1, _text_of(element))
        elif name == "p":
            self.builder.gap("\n")
            self.builder.write(_text_of(element).strip())
            self._write_frames(element)
        elif name == "table-row":
            self._write_row(element)
        elif name == "notes":
            self._write_notes(element)
        else:
            if name == "page":
                self.builder.gap("\n\n")
                self.slides.append(Block(self.builder.next_start, {"slide": len(self.slides) + 1}))
            if name in ("list", "table", "frame", "section"):
                self.builder.gap("\n\n")
            is_title = any(
                key.endswith("}class") and value == "title" for key, value in element.attrib.items()
            )
            if is_title:
                self.builder.heading(1, _text_of(element))
            else:
                for inner in element:
                    self.write(inner)
        if name in ("p", "list", "table"):
            self.builder.gap("\n\n" if name != "p" else "\n")

    def _write_row(self, row: Any) -> None:
        self.builder.gap("\n")
        cells = []
        for cell in row:
            if local_name(cell) == "table-cell":
                cells.append(" ".join(_text_of(cell).split()))
        self.builder.write(" | ".join(filter(None, cells)))

    def _write_notes(self, notes: Any) -> None:
        """The speaker's notes of a slide."""
        text = " ".join(_text_of(notes).split())
        if text:
            self.builder.gap("\n\n")
            self.builder.write(f"Notes: {text}")

    def _write_frames(self, paragraph: Any) -> None:
        """Text boxes that are anchored in a paragraph."""
        for box in _outer_boxes(paragraph):
            self.builder.gap("\n\n")
            for inner in box:
                self.write(inner)


def _outer_boxes(element: Any) -> Iterator[Any]:
    """The text boxes inside an element, except for those in another one."""
    for inner in element:
        if local_name(inner) == "text-box":
            yield inner
        else:
            yield from _outer_boxes(inner)


def _text_of(element: Any) -> str:
    """The text inside an element: blanks, tabs and line ends are elements of their own."""
    name = local_name(element)
    if name in _SKIPPED or name == "text-box" or not name:
        return ""
    if name == "s":
        count = next((value for key, value in element.attrib.items() if key.endswith("}c")), "1")
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


FORMATS = (
    Format("odt", ("odt", "ott", "fodt"), read_opendocument, ("lxml",), isolated=True),
    Format("odp", ("odp", "otp", "fodp"), read_opendocument, ("lxml",), isolated=True),
)
