"""Passages without language: encoded data, dumps, minified code, tables of numbers.

Their vectors and words are near anything, so they would be among the first hits of other questions. They are left out,
and counted and named. The limits were set on passages of each kind (made of this package's files, Django's minified
scripts, a mail archive, number tables of CACM's reports). They were then checked on 357,000 passages of
``/usr/share/doc``, this project's pages and Django's packages, and on 21,000 texts of Cranfield, CACM, SciFact and
Vaswani: none that has a sentence in it is left out.
"""

from __future__ import annotations

import re
from itertools import pairwise

_MIN_CHARACTERS = 120
"""Non-blank characters of a passage below which it is kept: a checksum or a key in a note is looked for."""
_MAX_SHARE = 0.6
"""Share of the non-blank characters of a passage that may be encoded."""
_MIN_RUN = 32
_ENCODED_RUN = re.compile(rf"[A-Za-z0-9+/]{{{_MIN_RUN},}}={{0,2}}|[A-Za-z0-9_-]{{{_MIN_RUN},}}")
"""A line or more of base64, which has 60 to 76 characters; words and identifiers are shorter."""
_MAX_SIGNS = 0.08
"""Signs in such a run: 2 of 64 characters of base64, but one of eight in a path."""
_MIN_CHANGES = 0.45
"""Changes between small letters, capitals and digits, for each character of a run. Medians of lines of 76 characters:
random bytes in base64 have 0.59, English text in base64 0.57, symbols of libstdc++ 0.31 (95 % have less than 0.39),
long names of Java's classes 0.27 (at most 0.39)."""
_HEX_GROUP = re.compile(r"\b(?:0x)?((?:[0-9a-fA-F]{2}){1,4}|[0-9a-fA-F]{130,})\b")
"""Bytes in hexadecimal, one to four together or in a long line. Digests, which people look
for, have 16 to 128 digits."""
_MIN_HEX_LETTERS = 0.1
"""Share of the letters a to f in hexadecimal data, from which it is no table of numbers; random data has 0.375."""
_MIN_DIGITS = 0.12
"""Share of digits below which a passage is neither hexadecimal data, which has 0.6, nor a table of numbers with
the names of its columns in each row."""
_CODE_SIGNS = "{}();=,:"
_MIN_CODE_SIGNS = 0.15
_MAX_BLANKS = 0.04
"""Minified code has a sign in every six characters and a blank in no twenty-five; readable code has a blank in six."""
_TOKEN = re.compile(r"[^\s,;|]+")
# Possessive: a number that something else follows is not tried again shorter.
_NUMBER = re.compile(r"[-+(.:%/eE]*+\d[\d.:%/eE+)-]*+")
_LISTED = re.compile(r"\d, ?\s*\d")
"""Between two numbers of a list in prose, such as those of the faults that a release corrects."""
_MIN_NUMBERS = 60
"""Numbers of a passage from which it can be a table of numbers."""
_MAX_NAMES = 3
"""Different words of a table of numbers: the names of its columns, repeated in each row."""
_MIN_NUMBER_SHARE = 0.45
"""Share of numbers among the words of such a table."""


def garbage_kind(text: str) -> str | None:
    """What a passage mostly has instead of text; None for text."""
    words = text.split()
    size = sum(map(len, words))
    if size < _MIN_CHARACTERS:
        return None
    # Lengths and counts are fast, and tell nearly every text from what the expressions look for.
    long_words = [word for word in words if len(word) >= _MIN_RUN]
    if sum(map(len, long_words)) > _MAX_SHARE * size and _is_base64(long_words, size):
        return "base64"
    digits = sum(map(text.count, "0123456789"))
    if digits > _MIN_DIGITS * size:
        if _is_hexadecimal(text, size):
            return "hexadecimal data"
        if _are_numbers(text):
            return "numbers"
    blanks = len(text) - size
    if blanks < _MAX_BLANKS * size:
        signs = sum(map(text.count, _CODE_SIGNS))
        if signs > _MIN_CODE_SIGNS * size:
            return "minified code"
    return None


def _is_base64(words: list[str], size: int) -> bool:
    encoded = 0
    for word in words:
        encoded += sum(len(run) for run in _ENCODED_RUN.findall(word) if _is_encoded(run))
    return encoded > _MAX_SHARE * size


def _is_hexadecimal(text: str, size: int) -> bool:
    digits = sum(map(text.count, "0123456789abcdefABCDEF"))
    if digits < _MAX_SHARE * size:
        return False
    groups = "".join(_HEX_GROUP.findall(text))
    letters = sum(map(str.isalpha, groups))
    return len(groups) > _MAX_SHARE * size and letters > _MIN_HEX_LETTERS * len(groups)


def _is_encoded(run: str) -> bool:
    """Whether a run without blanks changes between kinds of characters as random ones do."""
    # Paths and names in small letters are most of the long runs that people write.
    if run.islower() or run.isupper():
        return False
    kinds = [_kind(character) for character in run if character.isalnum()]
    if len(run) - len(kinds) > _MAX_SIGNS * len(run):
        return False
    changes = sum(kind != following for kind, following in pairwise(kinds))
    return changes > _MIN_CHANGES * len(run) and "capital" in kinds


def _kind(character: str) -> str:
    if character.isdigit():
        return "digit"
    if character.isupper():
        return "capital"
    return "small"


def _are_numbers(text: str) -> bool:
    tokens = _TOKEN.findall(text)
    numbers = sum(_NUMBER.fullmatch(token) is not None for token in tokens)
    if numbers < _MIN_NUMBERS or numbers < _MIN_NUMBER_SHARE * len(tokens):
        return False
    if len(_LISTED.findall(text)) > numbers // 2:
        return False
    names = {token for token in tokens if _NUMBER.fullmatch(token) is None}
    return len(names) <= _MAX_NAMES
