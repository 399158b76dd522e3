"""PDF files, read by PDFium, the library of the Chromium browser.

benchmarks/pdf_readers.py compares it with other readers (docs/your-documents.md has the table).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dupmae_ir.io.documents.readers.extracted import Builder, Extracted, Unreadable, reason
from dupmae_ir.io.documents.readers.scans import (
    MAX_PAGES,
    MAX_PIXELS,
    recognised_page,
    without_hyphens,
    write_page,
)

if TYPE_CHECKING:
    import numpy as np
    import pypdfium2

_SCANNED_CHARACTERS = 30
"""Characters, without blanks, below which a page with a picture is taken for a scanned one: a program that scans may
write a page number or its own name as text."""
_PICTURE_DEPTH = 3
"""Forms in forms in which a picture of a page is looked for."""
_POINTS_PER_INCH = 72
_DOTS_PER_INCH = 200
"""Resolution at which pages are recognised. At 150 the text was the same, for a tenth less time; small print is not."""
_ENDING_LENGTH = 5
"""Last characters of a title in which a dot shows that it is the name of a source file, such as ``report.doc``."""


def read_pdf(data: bytes) -> Extracted:
    """The text of all pages; words that a line end divides are joined. A page that fails is left out and named."""
    return _read(data, recognise=False)


def recognise_pdf(data: bytes) -> Extracted:
    """The text of all pages; that of pages that are pictures is recognised."""
    return _read(data, recognise=True)


def _read(data: bytes, recognise: bool) -> Extracted:
    document = _opened(data)
    builder = Builder()
    problems: list[str] = []
    scanned_pages = 0
    for number in range(1, len(document) + 1):
        builder.gap("\n\n")
        try:
            page = _page(document, number - 1)
            text = _page_text(page)
            is_scanned = _is_scanned(page, text)
            scanned_pages += is_scanned
            if is_scanned and recognise and scanned_pages <= MAX_PAGES:
                write_page(recognised_page(_rendered(page)), number, builder)
            else:
                builder.place({"page": number})
                builder.write(text)
            page.close()
        except Unreadable:
            raise  # the limit on the length of the complete text
        except Exception as e:  # what the libraries raise for a damaged page is not documented
            problems.append(f"page {number}: {' '.join(reason(e).split())[:100]}")
            builder.place({"page": number})

    waiting_pages = max(0, scanned_pages - MAX_PAGES) if recognise else scanned_pages
    if not builder.length and not scanned_pages:
        raise Unreadable("; ".join(problems[:2]) or "no text in it")
    title = str(document.get_metadata_dict().get("Title") or "")
    if "." in title[-_ENDING_LENGTH:]:
        title = ""
    return builder.done(title, problems=problems, waiting_pages=waiting_pages)


def _opened(data: bytes) -> pypdfium2.PdfDocument:
    import pypdfium2

    try:
        return pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as e:
        message = str(e)
    if "password" in message.lower():
        raise Unreadable("encrypted with a password")
    raise Unreadable(f"damaged PDF: {message}")


def _page(document: pypdfium2.PdfDocument, index: int) -> pypdfium2.PdfPage:
    """A page, with what was filled in in the fields of a form as part of its text."""
    import pypdfium2.raw

    page = document[index]
    if document.get_formtype() == pypdfium2.raw.FORMTYPE_NONE:
        return page
    pypdfium2.raw.FPDFPage_Flatten(page, pypdfium2.raw.FLAT_NORMALDISPLAY)
    # The open page has the old contents.
    page.close()
    return document[index]


def _page_text(page: pypdfium2.PdfPage) -> str:
    text = page.get_textpage().get_text_bounded().replace("\r\n", "\n")
    # The library puts this character in the place of a hyphen at the end of a line and of the line's end.
    return without_hyphens(text.replace("\x02", "-\n").strip())


def _is_scanned(page: pypdfium2.PdfPage, text: str) -> bool:
    """Whether a page has a picture, and next to no text."""
    import pypdfium2.raw

    if len("".join(text.split())) >= _SCANNED_CHARACTERS:
        return False
    pictures = page.get_objects([pypdfium2.raw.FPDF_PAGEOBJ_IMAGE], max_depth=_PICTURE_DEPTH)
    return next(iter(pictures), None) is not None


def _rendered(page: pypdfium2.PdfPage) -> np.ndarray:
    """The pixels of a page, [height, width, 3] uint8, blue first."""
    width, height = page.get_size()
    scale = _DOTS_PER_INCH / _POINTS_PER_INCH
    # A poster is rendered smaller.
    largest_scale = math.sqrt(MAX_PIXELS / (width * height))
    pixels: np.ndarray = page.render(scale=min(scale, largest_scale)).to_numpy()
    return pixels
