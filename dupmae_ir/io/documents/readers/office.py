"""Word documents, read by python-docx."""

from __future__ import annotations

import io
import re
from typing import Any

from dupmae_ir.io.documents.readers.archive import open_archive
from dupmae_ir.io.documents.readers.extracted import Builder, Extracted, Unreadable
from dupmae_ir.io.documents.readers.format import Format

MAX_TAGS = 5_000_000
"""Tags of a Word document above which it is refused: an empty paragraph has 6 bytes, and 130 in memory."""

_HEADING_STYLE = re.compile(r"heading (\d)", re.IGNORECASE)


def read_docx(data: bytes) -> Extracted:
    """A Word document: paragraphs and tables in their order; styles ``Heading N`` and ``Title`` are headings."""
    from docx import Document

    # Counted before python-docx builds its tree.
    tags = 0
    with open_archive(data) as package:
        for name in package.namelist():
            if name.endswith(".xml"):
                tags += package.read(name).count(b"<")
    if tags > MAX_TAGS:
        raise Unreadable(f"more than {MAX_TAGS:,} tags")

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
        builder.gap("\n")
        # python-docx returns a merged cell once for each column that it spans.
        cells = dict.fromkeys(" ".join(cell.text.split()) for cell in row.cells)
        builder.write(" | ".join(cells))


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


FORMATS = (Format("docx", ("docx",), read_docx, ("lxml", "docx"), isolated=True),)
