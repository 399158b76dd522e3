"""PDF files, read by pypdf."""

from __future__ import annotations

import io
import logging
import re

from dupmae_ir.io.documents.readers.extracted import Builder, Extracted, Unreadable

_HYPHEN = re.compile(r"(?<=[a-z])-\n(?=[a-z])")


def read_pdf(data: bytes) -> Extracted:
    """The text of all pages; words that a line end divides are joined. A page that fails is left out and named."""
    from pypdf import PdfReader

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it warns about every unusual file
    reader = PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        raise Unreadable("encrypted with a password")

    builder = Builder()
    problems: list[str] = []
    for number, page in enumerate(reader.pages, 1):
        try:
            text = _HYPHEN.sub("", page.extract_text().strip())
        except Exception as e:  # what pypdf raises for a damaged page is not documented
            why = " ".join(str(e).split())[:100] or type(e).__name__
            problems.append(f"page {number}: {why}")
            text = ""
        builder.gap("\n\n")
        builder.place({"page": number})
        builder.write(text)
    if not builder.length:
        raise Unreadable("; ".join(problems[:2]) or "no text in it; scanned pages need OCR first")

    title = ""
    if reader.metadata:
        title = str(reader.metadata.title or "")
    if "." in title[-5:]:  # many titles are names of source files
        title = ""
    return builder.done(title, problems=problems)
