"""Index terms in other languages than English, and which language a collection is written in.

A word is a run of letters, marks and digits. Its term is its Snowball stem (PyStemmer) where Snowball has the language,
otherwise the word in lower case; function words have none. Scripts without blanks are cut into overlapping pieces:
Chinese, Japanese and Korean into two characters, as Lucene's CJKAnalyzer does, Thai, Lao, Khmer and Burmese into
:data:`SYLLABLES`. English is :mod:`dupmae_ir.models.analyzer`.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache, partial
from pathlib import Path

import regex

from dupmae_ir.errors import EnvironmentProblem, UsageError
from dupmae_ir.models.analyzer import (
    LONGEST_TOKEN,
    PICTURE,
    part_spans,
    stem_spans,
    stems,
    stems_and_parts,
    word_pattern,
)
from dupmae_ir.registry import suggest

ENGLISH, OTHER, AUTO = "en", "other", "auto"
LANGUAGES = {
    "ar": "Arabic", "bg": "Bulgarian", "bn": "Bengali", "ca": "Catalan", "cs": "Czech", "da": "Danish", "de": "German",
    "el": "Greek", "en": "English", "eo": "Esperanto", "es": "Spanish", "et": "Estonian", "eu": "Basque",
    "fa": "Persian", "fi": "Finnish", "fr": "French", "ga": "Irish", "he": "Hebrew", "hi": "Hindi", "hu": "Hungarian",
    "hy": "Armenian", "id": "Indonesian", "it": "Italian", "ja": "Japanese", "ko": "Korean", "lt": "Lithuanian",
    "lv": "Latvian", "ne": "Nepali", "nl": "Dutch", "no": "Norwegian", "pl": "Polish", "pt": "Portuguese",
    "ro": "Romanian", "ru": "Russian", "sr": "Serbian", "sv": "Swedish", "ta": "Tamil", "te": "Telugu", "th": "Thai",
    "tr": "Turkish", "uk": "Ukrainian", "vi": "Vietnamese", "zh": "Chinese", "other": "any other language",
}  # fmt: skip
"""Code -> name. The name in lower case is that of Snowball's algorithm, where there is one."""
SYLLABLES = 3
"""Characters of a term in scripts without blanks and with vowel signs."""
_TERMS_PER_WORD = {"th": 5, "zh": 2, "ja": 2}
"""About how many terms a word has where texts are cut into pieces: a Chinese text has 2.1 for each English stem."""
_CJK, _SYLLABIC = (
    r"\p{Han}\p{Hiragana}\p{Katakana}\u30fc\p{Hangul}",
    r"\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}",
)
_APOSTROPHES = "'\u2019"
_ELIDING = ("ca", "fr", "it")  # l'eau, dell'acqua
_TURKISH = str.maketrans("Iİ", "ıi")
_CEDILLAS = str.maketrans("şţ", "șț")
# Nukta, joiners, and the vowels and nasal signs that are spelled in two ways, as in Lucene's HindiNormalizer.
_HINDI = {0x93C: None, 0x200C: None, 0x200D: None} | dict(
    zip(
        map(ord, "\u0901\u0908\u090a\u0940\u0942\u0910\u0914\u0948\u094c"),
        "\u0902\u0907\u0909\u093f\u0941\u090f\u0913\u0947\u094b",
        strict=True,
    )
)


def is_letter(text: str) -> bool:
    """Whether a text is one letter, or less, of a script whose words have several."""
    return len(text) < 2 and not regex.fullmatch(r"\p{Han}", text)


def separates_words(character: str) -> bool:
    """Whether a character is of a script that separates words by blanks."""
    return not regex.match(rf"[\p{{Han}}\p{{Hiragana}}\p{{Katakana}}\u30fc{_SYLLABIC}]", character)


@cache
def function_words(language: str) -> frozenset[str]:
    """The articles, pronouns, prepositions, auxiliaries and question words of a language, folded; in
    English, their stems."""
    words = _lists().get(language, ())
    return frozenset(
        stems(" ".join(words)) if language == ENGLISH else (_fold(language, word) for word in words)
    )


@cache
def _lists() -> dict[str, list[str]]:
    path = Path(__file__).with_name("function_words.txt")
    rows = [
        row.split()
        for row in path.read_text(encoding="utf-8").splitlines()
        if row and row[0] != "#"
    ]
    return {row[0]: row[1:] for row in rows}


def _fold(language: str, word: str) -> str:
    """A word in the form in which it is compared and stemmed: in lower case, without what is no part of it."""
    word = unicodedata.normalize("NFKC", word)
    word = (word.translate(_TURKISH) if language == "tr" else word).lower()
    if language == "el":
        word = "".join(
            c for c in unicodedata.normalize("NFD", word) if not unicodedata.combining(c)
        ).replace("ς", "σ")
    elif language == "hi":
        word = word.translate(_HINDI)
    elif language == "ro":
        word = word.translate(_CEDILLAS)
    if not word.isascii() and any(map(str.isdecimal, word)):  # ७ and 7 are one digit
        word = "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in word)
    if any(mark in word for mark in _APOSTROPHES):
        before, _, after = word.replace(_APOSTROPHES[1], _APOSTROPHES[0]).partition(_APOSTROPHES[0])
        if language == "tr":  # Ankara'da
            word = before
        elif language in _ELIDING and len(before) <= 5:
            word = after
    return word


Spans = list[tuple[str, int, int]]
"""(index term, start, end) in the order of a text."""


class Analyzer:
    """The words of a text and their index terms, in one language.

    ``terms``: the index terms of a text, in order; ``spans``: the same with their positions.

    Args:
        language: a code of :data:`LANGUAGES`.
        with_parts: parts of identifiers, too (:func:`~dupmae_ir.models.analyzer.parts`).

    Raises :class:`UsageError` for an unknown language.
    """

    def __init__(self, language: str = ENGLISH, with_parts: bool = True) -> None:
        check_language(language)
        self.language, self.with_parts = language, with_parts
        self.terms_per_word = _TERMS_PER_WORD.get(language, 1)
        self.terms: Callable[[str], list[str]] = stems_and_parts if with_parts else stems
        self.spans: Callable[[str], Spans] = partial(stem_spans, with_parts=with_parts)
        if language != ENGLISH:
            self.terms, self.spans = self._terms, self._spans
            self._stem = _stemmer(language)
            self.term = lru_cache(1 << 18)(self.term)  # type: ignore[method-assign]

    def term(self, word: str) -> str:
        """The index term of a word; empty for a function word."""
        folded = _fold(self.language, word)
        return "" if folded in function_words(self.language) else self._stem(folded)

    def query_terms(self, text: str) -> list[str]:
        """The index terms of a query. Texts in English or several languages keep their function words; a query keeps
        them only if it has no other words."""
        terms = self.terms(text)
        if self.language not in (ENGLISH, OTHER):
            return terms
        own = (
            _lists().get(_language_of(text) or OTHER, ())
            if self.language == OTHER
            else function_words(ENGLISH)
        )
        return [term for term in terms if term not in own] or terms

    def _terms(self, text: str) -> list[str]:
        return [term for term, _, _ in self._spans(text)]

    def _spans(self, text: str) -> Spans:
        return [(term, a, b) for word, a, b in self._words(text) if (term := self.term(word))]

    def _words(self, text: str) -> Iterator[tuple[str, int, int]]:
        for m in _pattern().finditer(text):
            word, start = m.group(), m.start()
            if m.lastgroup:
                size = min(len(word), 2 if m.lastgroup == "cjk" else SYLLABLES)
                yield from (
                    (word[i : i + size], start + i, start + i + size)
                    for i in range(len(word) - size + 1)
                )
                continue
            for i in range(0, len(word), LONGEST_TOKEN):
                piece = word[i : i + LONGEST_TOKEN]
                yield piece, start + i, start + i + len(piece)
            if self.with_parts:
                yield from part_spans(word, start)


@cache
def _pattern() -> regex.Pattern[str]:
    words = word_pattern(_CJK + _SYLLABIC, r"[\p{M}\u00ad\u200c\u200d\ufe0f]*")
    return regex.compile(rf"(?P<cjk>[{_CJK}]+)|(?P<syllabic>[{_SYLLABIC}]+)|{words}|{PICTURE}")


def _stemmer(language: str) -> Callable[[str], str]:
    """Stems of words in lower case; the words themselves for a language that Snowball does not have."""
    try:
        import Stemmer
    except ImportError:
        raise EnvironmentProblem(
            "PyStemmer is missing, which stems words: pip install PyStemmer"
        ) from None
    name = LANGUAGES[language].lower()
    return Stemmer.Stemmer(name, 0).stemWord if name in Stemmer.algorithms() else str


def check_language(language: str) -> None:
    """Raise :class:`UsageError` for a code that is not one of :data:`LANGUAGES`."""
    if language not in LANGUAGES:
        known = ", ".join(LANGUAGES)
        raise UsageError(
            f"`language` must be {AUTO} or one of {known}, got {language!r}.{suggest(language, LANGUAGES)}"
        )


_SCRIPTS = {
    "Han": "zh", "Hiragana": "ja", "Katakana": "ja", "Hangul": "ko", "Thai": "th", "Greek": "el", "Hebrew": "he",
    "Armenian": "hy", "Bengali": "bn", "Tamil": "ta", "Telugu": "te",
    "Latin": "", "Cyrillic": "ru", "Arabic": "ar", "Devanagari": "hi",
}  # fmt: skip
"""Script -> its language, or the one to assume where function words do not tell."""
_SHARED = ("Latin", "Cyrillic", "Arabic", "Devanagari")
_DENSE = ("Han", "Hiragana", "Katakana", "Hangul")
"""Scripts with several characters' worth of an alphabet in each."""
_FEWEST = 0.08
"""Share of function words from which a language is recognised; of running text they are a third or more."""
_FEWEST_WORDS = 4
_MOST_OF = 0.6
"""Share of a collection from which its language is that of the index."""
_SAMPLE, _HEAD = 200_000, 2_000
"""Characters that are looked at: of a collection, and of each text."""


def detect(texts: Iterable[str]) -> tuple[str, dict[str, float]]:
    """The language of a collection, by script and function words, and the share of the text in each language.

    English where at least half of the text is, or nothing is recognised; :data:`OTHER` for text in several languages.
    """
    sizes: Counter[str] = Counter()
    total = 0
    for text in texts:
        if (language := _language_of(text[:_HEAD])) is not None:
            sizes[language] += len(text[:_HEAD])
        total += len(text[:_HEAD])
        if total >= _SAMPLE:
            break
    shares = {language: size / sizes.total() for language, size in sizes.most_common()}
    if not shares or shares.get(ENGLISH, 0) >= 0.5:
        return ENGLISH, shares
    first = next(iter(shares))
    return (first if shares[first] >= _MOST_OF else OTHER), shares


def collection_language(chosen: str, texts: Iterable[str]) -> tuple[str, str]:
    """The language of a collection that starts with ``texts``, unless one is ``chosen``; and what to print about it."""
    if chosen != AUTO:
        return chosen, ""
    language, shares = detect(texts)
    some = ", ".join(f"{LANGUAGES[one]} {share:.0%}" for one, share in list(shares.items())[:3])
    name = "several, words without stems" if language == OTHER else LANGUAGES[language]
    return (
        language,
        ""
        if language == ENGLISH
        else f"language: {name} ({some}); --language CODE chooses another",
    )


def _language_of(text: str) -> str | None:
    """The language of one text; None where it is not recognised."""
    letters: Counter[str] = Counter()
    for m in _script_pattern().finditer(text):
        letters[m.lastgroup] += len(m.group()) * (3 if m.lastgroup in _DENSE else 1)
    if not letters:
        return None
    script = letters.most_common(1)[0][0]
    if script in _DENSE and (letters["Hiragana"] + letters["Katakana"]) * 10 > letters["Han"]:
        return "ko" if letters["Hangul"] > letters["Hiragana"] + letters["Katakana"] else "ja"
    if script not in _SHARED:
        return _SCRIPTS.get(script, OTHER)
    words = [word.lower() for word in regex.findall(r"[\p{L}\p{M}]+", text)]
    scores = Counter(language for word in words for language in _owners().get(word, ()))
    if not scores or len(words) < _FEWEST_WORDS:
        return _SCRIPTS[script] or None
    best, count = max(
        scores.items(), key=lambda item: (item[1], item[0] in (ENGLISH, _SCRIPTS[script]))
    )
    return best if count >= _FEWEST * len(words) else _SCRIPTS[script] or None


@cache
def _script_pattern() -> regex.Pattern[str]:
    scripts = "|".join(rf"(?P<{name}>\p{{{name}}}+)" for name in _SCRIPTS)
    return regex.compile(rf"{scripts}|(?P<unknown>\p{{L}}+)")


@cache
def _owners() -> dict[str, list[str]]:
    """Word -> the languages of which it is a function word."""
    owners: dict[str, list[str]] = {}
    for language, words in _lists().items():
        for word in dict.fromkeys(words):
            owners.setdefault(word, []).append(language)
    return owners
