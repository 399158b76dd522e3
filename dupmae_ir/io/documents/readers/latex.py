"""LaTeX, read by pylatexenc: the text of a document without its commands."""

from __future__ import annotations

import re

from dupmae_ir.io.documents.readers.encodings import decoded
from dupmae_ir.io.documents.readers.extracted import Builder, Extracted

_LEVELS = {
    "part": 1,
    "chapter": 2,
    "section": 3,
    "subsection": 4,
    "subsubsection": 5,
    "paragraph": 6,
}
# Braces in braces, two deep, as in \section{The \emph{first} one}.
_GROUP = r"\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}"
_SECTION = re.compile(rf"\\({'|'.join(_LEVELS)})\*?[ \t]*(?:\[[^\]]*\])?[ \t]*{_GROUP}")
_TITLE = re.compile(rf"\\title[ \t]*(?:\[[^\]]*\])?[ \t]*{_GROUP}")
_PAGE_MAKING = re.compile(
    rf"\\(?:maketitle|tableofcontents|listoffigures|listoftables)\b|\\(?:title|author|date){_GROUP}"
)
"""Commands for which the library writes a page of its own, and what they show; the title is kept apart."""
_COMMENT = re.compile(r"(?<!\\)%.*")
_PLACEHOLDER = re.compile(r"[ \u00a0~]?<(?:cit\.|ref|graphics|label)>|< g r a p h i c s >")
"""What the library writes for citations, references and pictures."""
_BLANKS = re.compile(r"[ \t\u00a0]+")
_BLANK_LINES = re.compile(r"\n{3,}")


def read_latex(data: bytes) -> Extracted:
    """The body of a document: its sections are headings, formulas are in Unicode."""
    source, guess = decoded(data)
    source = _COMMENT.sub("", source)
    title = _TITLE.search(source)
    source = _PAGE_MAKING.sub("", source)
    _, begin, body = source.partition(r"\begin{document}")
    # A chapter that another file includes has no beginning.
    body = (body if begin else source).partition(r"\end{document}")[0]

    builder = Builder()
    start = 0
    for match in _SECTION.finditer(body):
        builder.write(_plain(body[start : match.start()]))
        builder.heading(_LEVELS[match[1]], _plain(match[2]))
        start = match.end()
    builder.write(_plain(body[start:]))
    return builder.done(_plain(title[1]) if title else "", guess)


def _plain(source: str) -> str:
    from pylatexenc.latex2text import LatexNodes2Text

    text = LatexNodes2Text(math_mode="text", keep_comments=False).latex_to_text(source)
    lines = (_BLANKS.sub(" ", line).strip() for line in _PLACEHOLDER.sub("", text).split("\n"))
    return _BLANK_LINES.sub("\n\n", "\n".join(lines)).strip()
