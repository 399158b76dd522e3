"""Rich Text Format, read by striprtf."""

from __future__ import annotations

import re

from dupmae_ir.io.documents.readers.extracted import Extracted, Unreadable

_CODE_PAGE = re.compile(rb"\\ansicpg(\d{1,5})")
_TITLE = re.compile(r"\{\\title ([^{}\\]{1,300})\}")
_BLANK_LINES = re.compile(r"\n{3,}")


def read_rtf(data: bytes) -> Extracted:
    """A document in Rich Text Format."""
    from striprtf.striprtf import rtf_to_text

    if not data.lstrip().startswith(b"{\\rtf"):
        raise Unreadable("not Rich Text: it does not begin with {\\rtf")
    # Text is ASCII with escapes; some programs write bytes of the code page as they are.
    declared = _CODE_PAGE.search(data[:1000])
    encoding = f"cp{declared[1].decode('ascii')}" if declared else "cp1252"
    try:
        source = data.decode(encoding, "replace")
    except LookupError:
        source = data.decode("cp1252", "replace")
    text = rtf_to_text(source, errors="replace")
    title = _TITLE.search(source[:10_000])
    return Extracted(
        _BLANK_LINES.sub("\n\n", text.replace("\r\n", "\n")).strip(),
        title[1].strip() if title else "",
    )
