"""Anserini's ``DefaultEnglishAnalyzer`` without Java: words, possessives, lower case, stop words, Porter stems.

Tokens are those of Lucene's ``StandardTokenizer`` (UAX 29 word boundaries) for Latin, Greek, Cyrillic and similar
scripts, digits, Han, Hiragana and pictographs; a test compares them with Anserini's. They differ in scripts with vowel
signs (Devanagari, Thai), and in sequences of emoji.

:func:`stems_and_parts` adds the parts of compound identifiers (``threading.Thread.join``, ``index_files``,
``FileNotFoundError``), which ``StandardTokenizer`` keeps whole.

Porter's algorithm: M. F. Porter, An algorithm for suffix stripping, Program 14(3), 1980, with the departures of the
author's own implementation (``bli``, ``logi``; words of one or two letters are kept), which is the one in Lucene.
"""

# The maintained stemmers (PyStemmer and snowballstemmer, algorithm "porter") follow the paper without these departures.
# Of the 27,922 distinct words in the embedded model's vocabulary and the collections of this repository, 54 have
# another stem there: 35 in -logy, -logies and -bly (technology, possibly), and 19 of one or two letters (as, us, vs).

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

_STOP = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with"
)
STOP_WORDS = frozenset(_STOP.split())
"""Those of Lucene's EnglishAnalyzer."""
MAX_TOKEN_LENGTH = 255
"""Lucene cuts longer tokens into pieces of this many characters."""

_SINGLE = r"\u3040-\u309f\u3400-\u9fff\uf900-\ufaff"  # Hiragana and Han: one token per character
_MARKS = r"[\u0300-\u036f\u00ad\u200d\u200c\ufe0f\u0590-\u05cf]*"
# Extended_Pictographic of Unicode: one token per character.
_PICTURES = (
    r"\u00a9\u00ae\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328\u2388\u23cf\u23e9-\u23fa"
    r"\u24c2\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u2605\u2607-\u2612\u2614-\u2685\u2690-\u2705\u2708-\u2712"
    r"\u2714\u2716\u271d\u2721\u2728\u2733\u2734\u2744\u2747\u274c\u274e\u2753-\u2755\u2757\u2763-\u2767\u2795-\u2797"
    r"\u27a1\u27b0\u27bf\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\U0001f300-\U0001faff"
)
# Characters that join letters, digits, or both; the classes MidLetter, MidNum and MidNumLet of UAX 29.
_JOIN_LETTERS = r":\u00b7\u0387\u05f4\u2027\ufe13\ufe55\uff1a"
_JOIN_DIGITS = r",;\u037e\u0589\u060c\u060d\u066c\u07f8\u2044\ufe10\ufe14\ufe50\ufe54\uff0c\uff1b"
_JOIN_BOTH = r".'\u2018\u2019\u2024\ufe52\uff07\uff0e"
PICTURE = rf"[{_PICTURES}]\ufe0f?"
_APOSTROPHES = "'\u2019\uff07"


def word_pattern(apart: str, marks: str) -> str:
    """A regular expression for words of letters that are not ``apart`` and digits, each with ``marks``."""
    letter = rf"[^\W\d_\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u209f{apart}]"
    return (
        rf"(?<!_)(?:_*(?:{letter}{marks}(?:[{_JOIN_LETTERS}{_JOIN_BOTH}](?={letter}))?"
        rf"|\d{marks}(?:[{_JOIN_DIGITS}{_JOIN_BOTH}](?=\d))?))+_*"
    )


_WORD = re.compile(rf"{word_pattern(_SINGLE, _MARKS)}|[{_SINGLE}]|{PICTURE}")


def words(text: str) -> list[str]:
    """The tokens of a text as they are written, stop words included."""
    tokens = _WORD.findall(text)
    # Nearly every text; asking first is faster than cutting every token.
    if all(len(token) <= MAX_TOKEN_LENGTH for token in tokens):
        return tokens
    pieces = []
    for token in tokens:
        for start in range(0, len(token), MAX_TOKEN_LENGTH):
            pieces.append(token[start : start + MAX_TOKEN_LENGTH])
    return pieces


def word_spans(text: str) -> list[tuple[str, int, int]]:
    """(token, start, end) of each token of :func:`words`."""
    spans = []
    for match in _WORD.finditer(text):
        for start in range(match.start(), match.end(), MAX_TOKEN_LENGTH):
            end = min(start + MAX_TOKEN_LENGTH, match.end())
            spans.append((text[start:end], start, end))
    return spans


@lru_cache(1 << 18)
def stem(word: str) -> str:
    """The index term of a token of :func:`words`; empty for a stop word."""
    if len(word) > 1 and word[-1] in "sS" and word[-2] in _APOSTROPHES:
        word = word[:-2]
    if word.isascii():
        word = word.lower()
    else:
        # Java lowers each character alone: no final sigma, and one character for a dotted capital I.
        word = "".join(letter.lower()[0] for letter in word)
    if word in STOP_WORDS:
        return ""
    return porter(word)


def stems(text: str) -> list[str]:
    """The index terms of a text, in order."""
    return [stemmed for stemmed in map(stem, words(text)) if stemmed]


def stem_spans(text: str, with_parts: bool = False) -> list[tuple[str, int, int]]:
    """(stem, start, end) of each word of a text, in order; :func:`parts` of a word follow it."""
    spans = []
    for word, word_start, word_end in word_spans(text):
        candidates = [(word, word_start, word_end)]
        if with_parts:
            candidates += part_spans(word, word_start)
        for candidate, start, end in candidates:
            stemmed = stem(candidate)
            # A stop word has none.
            if stemmed:
                spans.append((stemmed, start, end))
    return spans


def part_spans(word: str, start: int) -> Iterator[tuple[str, int, int]]:
    """(part, start, end) of each of the :func:`parts` of a word that begins at ``start``."""
    offset = 0
    for part in parts(word):
        # Separators and parts that are left out may lie between.
        offset = word.find(part, offset)
        yield part, start + offset, start + offset + len(part)
        offset += len(part)


def stems_and_parts(text: str) -> list[str]:
    """The index terms of a text, in order, each followed by the index terms of the parts of its word."""
    terms: list[str] = []
    for word in words(text):
        terms += _stems_of(word)
    return terms


@lru_cache(1 << 18)
def _stems_of(word: str) -> tuple[str, ...]:
    return tuple(stemmed for stemmed in map(stem, (word, *parts(word))) if stemmed)


_BETWEEN_PARTS = re.compile(
    r"[._:\uff0e\uff1a]+"  # a.b, a_b, a:b
    r"|(?<=[a-z])(?=[A-Z])"  # fileName
    r"|(?<=[A-Z]{2})(?=[A-Z][a-z]{2})"  # HTTPServer, but not DNAs
)


def parts(word: str) -> list[str]:
    """The parts of a compound identifier, split at periods, underscores, colons and changes of case.

    Parts of one character and parts without a letter are left out; none for other words.
    """
    # Ordinary words, which have no boundary: this is called for every distinct word of a collection.
    if word.isalpha() and (word.islower() or word[1:].islower()):
        return []
    return [
        part
        for part in _BETWEEN_PARTS.split(word)
        if len(part) > 1 and part != word and any(map(str.isalpha, part))
    ]


def porter(word: str) -> str:
    """The Porter stem of a word in lower case."""
    if len(word) <= 2:
        return word
    word = _plurals_and_participles(word)
    # Step 1c
    if word.endswith("y") and "v" in _shape(word[:-1]):
        word = word[:-1] + "i"
    for suffixes in (_STEP_2, _STEP_3):
        suffix = _suffix_of(word, suffixes)
        if suffix and _measure(word[: -len(suffix)]):
            word = word[: -len(suffix)] + suffixes[suffix]
    # Step 4
    suffix = _suffix_of(word, _STEP_4)
    rest = word.removesuffix(suffix)
    if suffix and _measure(rest) > 1 and (suffix != "ion" or rest.endswith(("s", "t"))):
        word = rest
    # Step 5a: a final e
    if word.endswith("e"):
        rest = word[:-1]
        measure = _measure(rest)
        if measure > 1 or (measure == 1 and not _ends_cvc(rest)):
            word = rest
    # Step 5b: a final double l
    if word.endswith("ll") and _measure(word) > 1:
        word = word[:-1]
    return word


def _suffix_of(word: str, suffixes: Iterable[str]) -> str:
    """The first of ``suffixes`` that ends ``word``, or an empty string."""
    return next((suffix for suffix in suffixes if word.endswith(suffix)), "")


def _shape(word: str) -> str:
    """``c`` or ``v`` for each letter; a y is a consonant at the start and after a vowel."""
    shape = ""
    for letter in word:
        is_vowel = letter in "aeiou" or (letter == "y" and shape[-1:] == "c")
        shape += "v" if is_vowel else "c"
    return shape


def _measure(word: str) -> int:
    """Porter's m: how often a consonant follows a vowel."""
    return _shape(word).count("vc")


def _ends_cvc(word: str) -> bool:
    """Consonant, vowel, consonant other than w, x and y at the end."""
    return word[-1:] not in ("w", "x", "y") and _shape(word).endswith("cvc")


def _plurals_and_participles(word: str) -> str:
    """Steps 1a and 1b."""
    # Step 1a
    if word.endswith(("sses", "ies")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    # Step 1b
    if word.endswith("eed"):
        if _measure(word[:-3]):
            word = word[:-1]
        return word
    suffix = _suffix_of(word, ("ed", "ing"))
    rest = word.removesuffix(suffix)
    if not suffix or "v" not in _shape(rest):
        return word
    # The verb without its ending gets an e (hoping, hope), or loses one of two equal consonants (hopping, hop).
    if rest.endswith(("at", "bl", "iz")):
        return rest + "e"
    if rest[-1:] == rest[-2:-1] and _shape(rest)[-1] == "c":
        if rest[-1] in "lsz":
            return rest
        return rest[:-1]
    if _measure(rest) == 1 and _ends_cvc(rest):
        return rest + "e"
    return rest


# Suffixes and their replacements, longer ones before their own endings: the first that matches is taken.
_STEP_2 = {
    "ational": "ate",
    "ization": "ize",
    "iveness": "ive",
    "fulness": "ful",
    "ousness": "ous",
    "tional": "tion",
    "biliti": "ble",
    "entli": "ent",
    "ousli": "ous",
    "ation": "ate",
    "alism": "al",
    "aliti": "al",
    "iviti": "ive",
    "enci": "ence",
    "anci": "ance",
    "izer": "ize",
    "alli": "al",
    "ator": "ate",
    "logi": "log",
    "bli": "ble",
    "eli": "e",
}
_STEP_3 = {
    "icate": "ic",
    "ative": "",
    "alize": "al",
    "iciti": "ic",
    "ical": "ic",
    "ness": "",
    "ful": "",
}
_STEP_4 = "ement ance ence able ible ment ant ent ion ism ate iti ous ive ize al er ic ou".split()  # noqa: SIM905
