"""Manual pages in the macros man and mdoc of roff."""

from __future__ import annotations

import re
import shlex

from dupmae_ir.io.documents.readers.encodings import decoded
from dupmae_ir.io.documents.readers.extracted import Builder, Extracted

_BEGINNING = re.compile(
    rb"""(?:['.]\\["#][^\n]*\n|[ \t]*\n|\.[a-z]{1,2}[ \t][^\n]*\n){0,60}\.(?:TH|Dd|Sh|SH)[ \t]"""
)
_COMMENT = re.compile(r"""\\["#].*""")
_FONT = re.compile(
    r"\\f(?:[A-Z0-9]|\(..|\[[^\]]{0,20}\])|\\s[-+]?\d|\\[&/,%:|^ctdu]|\\[hv]'[^'\n]{0,20}'"
)
_NAMED = re.compile(r"\\(?:\(|\*\(|\[|\*\[)([a-zA-Z]{2})\]?")
_CHARACTERS = {
    "aq": "'", "cq": "\u2019", "oq": "\u2018", "lq": "\u201c", "rq": "\u201d", "dq": '"', "bu": "\u2022",
    "em": "\u2014", "en": "\u2013", "hy": "-", "mi": "-",
    "co": "\u00a9", "ha": "^", "ti": "~", "rs": "\\", "ga": "`", "ua": "\u2191",
    "ss": "\u00df", "mu": "\u00d7", "Tm": "\u2122",
}  # fmt: skip
_HEADINGS = {"SH": 1, "Sh": 1, "SS": 2, "Ss": 2}
_PARAGRAPH_NAMES = "P PP LP TP HP sp Pp It IP TQ nf fi RS RE br EX EE"
_PARAGRAPHS = frozenset(_PARAGRAPH_NAMES.split())
_JOINED_FONTS = frozenset(["BR", "RB", "BI", "IB", "IR", "RI"])
"""Macros whose words are in two fonts in turns, without blanks between them."""
_MDOC_NAMES = "Ar Nm Op Pa Xr Ev Dv Cm Va Vt Li Ql Sq Dq Em Sy Ic Ns Ta Nd Tn Bx Aq Pq Bq Fn Fa Er"
_MDOC_MACROS = frozenset(_MDOC_NAMES.split())


def begins_as_manual(start: bytes) -> bool:
    """Whether a file begins as a manual page; their endings, ``1`` to ``8``, are those of other files too."""
    return _BEGINNING.match(start) is not None


def read_manual(data: bytes) -> Extracted:
    """A manual page: sections are headings; the title is the name that it describes."""
    text, guess = decoded(data)
    builder = Builder()
    title = ""
    for line in text.split("\n"):
        if line[:1] not in (".", "'"):
            builder.gap("\n" if line.startswith((" ", "\t")) else " ")
            builder.write(_plain(line).strip())
            if not line.strip():
                builder.gap("\n\n")
            continue
        macro, _, rest = line[1:].lstrip().partition(" ")
        words = _arguments(rest)
        if macro in ("TH", "Dt") and words:
            title = f"{words[0].lower()}({words[1]})" if len(words) > 1 else words[0].lower()
        elif macro in _HEADINGS:
            builder.heading(_HEADINGS[macro], " ".join(words))
        else:
            _write_macro(macro, words, builder)
    return builder.done(title, guess)


def _write_macro(macro: str, words: list[str], builder: Builder) -> None:
    """Append the words of a line that is a macro; those that set a page, not a text, have none."""
    if macro in _PARAGRAPHS:
        builder.gap("\n\n" if macro != "br" else "\n")
        if macro == "IP":
            builder.write(" ".join(words[:1]))
        elif macro == "It":
            builder.write(_mdoc(words))
        return
    builder.gap(" ")
    if macro in _JOINED_FONTS:
        builder.write("".join(words))
    elif macro in ("B", "I", "SM", "SB", "R"):
        builder.write(" ".join(words))
    elif macro in ("UR", "MT"):
        builder.write(" ".join(words[:1]))
    elif macro == "Fl" or macro in _MDOC_MACROS:
        builder.write(_mdoc([macro, *words]))


def _mdoc(words: list[str]) -> str:
    """The words of a line of mdoc, without the macros among them; ``Fl`` stands for a hyphen."""
    shown = []
    is_flag = False
    for word in words:
        if word == "Fl":
            is_flag = True
        elif word not in _MDOC_MACROS:
            shown.append(f"-{word}" if is_flag else word)
            is_flag = False
    return " ".join(shown)


def _arguments(rest: str) -> list[str]:
    """The words of a macro; those in quotes are one."""
    try:
        words = shlex.split(_COMMENT.sub("", rest).replace("\\", "\0").replace("'", "\1"))
    except ValueError:  # a quote that does not end
        words = rest.split()
    return [_plain(word.replace("\0", "\\").replace("\1", "'")) for word in words]


def _plain(text: str) -> str:
    """Text without escapes."""
    text = _FONT.sub("", _COMMENT.sub("", text))
    text = _NAMED.sub(lambda match: _CHARACTERS.get(match[1], ""), text)
    return text.replace("\\-", "-").replace("\\e", "\\").replace("\\ ", " ").replace("\\~", " ")
