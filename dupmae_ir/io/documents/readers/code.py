"""Source code and configuration. The text is that of the file, so offsets are places in the file."""

from __future__ import annotations

import re

from dupmae_ir.io.documents.readers.encodings import decoded
from dupmae_ir.io.documents.readers.extracted import Extracted, Heading

# Group 1 is a definition at the left margin, group 2 a method one step from it.
_DEFINITION = re.compile(
    r"^(?:export |default |public |private |static |pub(?:\([a-z]+\))? |async |abstract |final )*"
    r"(?:class|def|fn|func|function|interface|struct|enum|trait|impl|module|sub|type)[ \t]+([A-Za-z_](?:[\w.:]*\w)?)"
    r"|^(?: {1,4}|\t)(?:(?:export|public|private|static|pub|async|abstract|final) )*"
    r"(?:class|def|fn|func|function)[ \t]+([A-Za-z_]\w*)(?=\W)",
    re.MULTILINE,
)
_COMMENT_OR_DECORATOR = re.compile(r"[ \t]*(?:@|#(?!!)|//|/?\*|--)")
"""The beginning of such a line; ``#!`` is neither."""


def read_code(data: bytes) -> Extracted:
    """Source code: definitions at the left margin, and methods one step from it, are headings; split at line ends.

    Comments and decorators on the lines directly above a definition belong to it.
    """
    text, guess = decoded(data, declared=True)
    headings: list[Heading] = []
    outer = ""
    previous_end = 0
    for match in _DEFINITION.finditer(text):
        outer = match[1] or outer
        name = match[1] or f"{outer}.{match[2]}".lstrip(".")
        start = _with_comments(text, match.start(), previous_end)
        headings.append(Heading(start, 1, name))
        previous_end = match.end()
    return Extracted(text, "", headings, lines=True, guess=guess)


def _with_comments(text: str, start: int, floor: int) -> int:
    """Where the comments and decorators above a definition begin; not before ``floor``."""
    while start:
        line_above = text.rfind("\n", 0, start - 1) + 1
        if line_above < floor or not _COMMENT_OR_DECORATOR.match(text, line_above):
            break
        start = line_above
    return start
