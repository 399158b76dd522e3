"""Subtitles (SubRip, WebVTT)."""

from __future__ import annotations

import html
import re

from dupmae_ir.io.documents.readers.encodings import decoded
from dupmae_ir.io.documents.readers.extracted import Builder, Extracted, Unreadable

_CUE = re.compile(
    r"(?:(\d{1,3}):)?(\d{1,2}:\d{2})[.,]\d{1,3}[ \t]*-->[ \t]*(?:\d{1,3}:)?\d{1,2}:\d{2}[.,]\d{1,3}[^\n]*\n"
    r"((?:[ \t]*\S[^\n]*(?:\n|\Z))*)"
)
_CUE_TAG = re.compile(r"<[^<>\n]{0,100}>|\{\\[^{}\n]{0,100}\}")


def read_subtitles(data: bytes) -> Extracted:
    """Subtitles (SubRip, WebVTT): what is said, and when. A line that stays on the screen is there once."""
    text, guess = decoded(data)
    builder = Builder()
    previous = ""
    for match in _CUE.finditer(text):
        hours, minutes, lines = match.groups()
        said = html.unescape(_CUE_TAG.sub("", lines)).strip()
        if not said or said == previous:
            continue
        previous = said
        builder.gap("\n")
        builder.place({"time": f"{int(hours or 0)}:{minutes.zfill(5)}"})
        builder.write(said)
    if not builder.blocks and text.strip():
        raise Unreadable("no subtitles: no line has the times of one")
    return builder.done(guess=guess)
