"""The form of a text in which its words are compared: NFKC, without characters that nobody sees.

Text of PDF files has ligatures (``eﬃcient``) and soft hyphens, text of web pages zero-width spaces, Japanese text Latin
letters in full width. A query has none of these.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from typing import NamedTuple

import regex

_INVISIBLE = regex.compile(
    r"[\u00ad\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]+"
)
"""Soft hyphens, characters of no width, and marks of direction."""
_APART = regex.compile(
    r"[\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u207f\u2150-\u215f\u2460-\u24ff]|[\u2100-\u214f--\p{L}]",
    regex.VERSION1,
)
"""Superscripts, fractions, numbers in circles, and signs of letters. NFKC would join them with the word before them: a
note's ``word¹`` would be ``word1``, and ``Word™`` ``WordTM``. Subscripts are parts of words (``CO₂``)."""
_CLUSTER = regex.compile(r"\X")


def normal_form(text: str) -> str:
    """A text in NFKC without invisible characters; superscripts and signs such as ``™`` stay as they are."""
    if text.isascii() or (unicodedata.is_normalized("NFKC", text) and not _INVISIBLE.search(text)):
        return text
    visible = _INVISIBLE.sub("", text)
    pieces = []
    start = 0
    for match in _APART.finditer(visible):
        pieces.append(unicodedata.normalize("NFKC", visible[start : match.start()]))
        pieces.append(match.group())
        start = match.end()
    pieces.append(unicodedata.normalize("NFKC", visible[start:]))
    return "".join(pieces)


def shown_character(character: str) -> str:
    """A character as a person is shown it: a letter or a blank in its normal form, nothing for an invisible one.

    Punctuation stays: in Chinese and Japanese it is as wide as the letters around it.
    """
    if character.isascii() or unicodedata.category(character)[0] not in "LZC":
        return character
    return normal_form(character)


class Aligned(NamedTuple):
    """A text in its normal form, and where each part of it is in the text as it was.

    ``starts`` are places in ``text`` at which the normal form of another character, with its marks, begins;
    ``originals`` the places of these characters in the original, and its length at the end.
    """

    text: str
    starts: list[int]
    originals: list[int]

    def original(self, start: int, end: int) -> tuple[int, int]:
        """The place in the original of ``text[start:end]``, which is not empty."""
        first = bisect_right(self.starts, start) - 1
        last = bisect_right(self.starts, end - 1) - 1
        return self.originals[first], self.originals[last + 1]


def aligned(text: str) -> Aligned | None:
    """The normal form of a text with its places; None for a text that is in its normal form."""
    if normal_form(text) == text:
        return None
    pieces = []
    starts = []
    originals = []
    length = 0
    for match in _CLUSTER.finditer(text):
        piece = normal_form(match.group())
        if not piece:
            continue
        pieces.append(piece)
        starts.append(length)
        originals.append(match.start())
        length += len(piece)
    originals.append(len(text))
    return Aligned("".join(pieces), starts, originals)
