"""PDF files, by pypdf."""

from __future__ import annotations

import io
import logging
import re

from dupmae_ir.io.documents.extracted import Builder, Extracted, Unreadable

_HYPHEN = re.compile(r"(?<=[a-z])-\n(?=[a-z])")


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
