"""Documents of Word and slides of PowerPoint, read by python-docx and python-pptx."""

from __future__ import annotations

import io
import re
from typing import Any

from dupmae_ir.io.documents.readers.archive import OLE_MAGIC, refuse_hostile_package
from dupmae_ir.io.documents.readers.extracted import Builder, Extracted, Unreadable
from dupmae_ir.io.documents.readers.html import read_html
from dupmae_ir.io.documents.readers.rtf import read_rtf

_HEADING_STYLE = re.compile(r"heading (\d)", re.IGNORECASE)


def read_docx(data: bytes) -> Extracted:
    """A Word document: paragraphs and tables in their order; styles ``Heading N`` and ``Title`` are headings."""
    from docx import Document

    refuse_hostile_package(data)
    document = Document(io.BytesIO(data))
    builder = Builder()
    for block in document.iter_inner_content():
        if hasattr(block, "rows"):
            _write_table(block, builder)
        else:
            _write_paragraph(block, builder)
        builder.gap("\n\n")
    return builder.done(document.core_properties.title or "")


def _write_table(table: Any, builder: Builder) -> None:
    for row in table.rows:
        try:
            texts = [cell.text for cell in row.cells]
        except ValueError:
            # Rows that are not as wide as their table says: the cells that there are.
            texts = ["".join(cell.itertext()) for cell in row._tr.tc_lst]
        # python-docx returns a merged cell once for each column that it spans.
        cells = dict.fromkeys(" ".join(text.split()) for text in texts)
        builder.table_row(cells)


def _write_paragraph(paragraph: Any, builder: Builder) -> None:
    level = _heading_level(paragraph)
    if level:
        builder.heading(level, paragraph.text)
    else:
        builder.gap("\n\n")
        builder.write(paragraph.text.strip())


def _heading_level(paragraph: Any) -> int:
    """The level of a heading; 0 for other paragraphs."""
    if paragraph.style is None:
        return 0
    style = paragraph.style.name or ""
    if style.lower() == "title":
        return 1
    match = _HEADING_STYLE.match(style)
    return int(match.group(1)) if match else 0


def read_pptx(data: bytes) -> Extracted:
    """A slide show: the title of each slide, its text and tables, and the speaker's notes."""
    from pptx import Presentation

    refuse_hostile_package(data)
    presentation = Presentation(io.BytesIO(data))
    builder = Builder()
    for number, slide in enumerate(presentation.slides, 1):
        builder.gap("\n\n")
        builder.place({"slide": number})
        title = slide.shapes.title
        if title is not None:
            builder.heading(1, title.text_frame.text)
        for shape in slide.shapes:
            # Two views of one shape are different objects.
            if title is None or shape.shape_id != title.shape_id:
                _write_shape(shape, builder)
        if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
            notes = slide.notes_slide.notes_text_frame.text.strip()
            if notes:
                builder.gap("\n\n")
                builder.write(f"Notes: {notes}")
    return builder.done(presentation.core_properties.title or "")


def _write_shape(shape: Any, builder: Builder) -> None:
    """Append the text of a shape of a slide, and of the shapes that it groups."""
    builder.gap("\n\n")
    if hasattr(shape, "shapes"):
        for inner in shape.shapes:
            _write_shape(inner, builder)
    elif shape.has_text_frame:
        paragraphs = (paragraph.text.strip() for paragraph in shape.text_frame.paragraphs)
        # A line break inside a paragraph is a vertical tab.
        builder.write("\n".join(filter(None, paragraphs)).replace("\v", "\n"))
    elif getattr(shape, "has_table", False):
        for row in shape.table.rows:
            builder.table_row(" ".join(cell.text.split()) for cell in row.cells)


def read_old_word(data: bytes) -> Extracted:
    """A file that ends in ``.doc``: often Rich Text, HTML or a Word document of today under an old name."""
    if data.startswith(b"{\\rtf"):
        return read_rtf(data)
    if data.startswith(b"PK"):
        return read_docx(data)
    if data.startswith(OLE_MAGIC):
        raise Unreadable("a document of Word 97 to 2003; save it as .docx")
    return read_html(data)


def read_old_slides(data: bytes) -> Extracted:
    """A file that ends in ``.ppt``."""
    if data.startswith(b"PK"):
        return read_pptx(data)
    raise Unreadable("slides of PowerPoint 97 to 2003; save them as .pptx")
