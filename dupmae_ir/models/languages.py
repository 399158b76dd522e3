"""Index terms in other languages than English.

A word is a run of letters, marks and digits. Its term is its Snowball stem (PyStemmer) where Snowball has the language,
otherwise the word in lower case; function words have none. Scripts without blanks are cut into overlapping pieces:
Chinese, Japanese and Korean into two characters, as Lucene's CJKAnalyzer does, Thai, Lao, Khmer and Burmese into
:data:`SYLLABLES`. English is :mod:`dupmae_ir.models.analyzer`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Iterator
from functools import cache, lru_cache, partial
from pathlib import Path

import regex

from dupmae_ir.errors import EnvironmentProblem, UsageError
from dupmae_ir.models.analyzer import (
    MAX_TOKEN_LENGTH,
    PICTURE,
    part_spans,
    stem_spans,
    stems,
    stems_and_parts,
    word_pattern,
)
from dupmae_ir.models.normal_form import aligned, normal_form
from dupmae_ir.registry import suggest

ENGLISH = "en"
OTHER = "other"
AUTO = "auto"
LANG = "lang"
"""The metadata that has the language of a document."""
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
_CJK = r"\p{Han}\p{Hiragana}\p{Katakana}\u30fc\p{Hangul}"
_SYLLABIC = r"\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
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
    if language == ENGLISH:
        return frozenset(stems(" ".join(words)))
    return frozenset(_fold(language, word) for word in words)


@cache
def written_function_words(language: str) -> frozenset[str]:
    """The function words of a language as they are written, in lower case."""
    return frozenset(_lists().get(language, ()))


@cache
def _lists() -> dict[str, list[str]]:
    """Code of a language -> its function words, one language a line of the file."""
    path = Path(__file__).with_name("function_words.txt")
    lists = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            language, *words = line.split()
            lists[language] = words
    return lists


def _fold(language: str, word: str) -> str:
    """A word in the form in which it is compared and stemmed: in lower case, without what is no part of it."""
    word = unicodedata.normalize("NFKC", word)
    if language == "tr":
        word = word.translate(_TURKISH)
    word = word.lower()
    if language == "el":
        # Without accents, and with one form of sigma.
        letters = unicodedata.normalize("NFD", word)
        word = "".join(letter for letter in letters if not unicodedata.combining(letter))
        word = word.replace("ς", "σ")
    elif language == "hi":
        word = word.translate(_HINDI)
    elif language == "ro":
        word = word.translate(_CEDILLAS)
    if not word.isascii() and any(map(str.isdecimal, word)):
        # ७ and 7 are one digit.
        word = "".join(map(_ascii_digit, word))
    if any(mark in word for mark in _APOSTROPHES):
        before, _, after = word.replace(_APOSTROPHES[1], _APOSTROPHES[0]).partition(_APOSTROPHES[0])
        if language == "tr":  # Ankara'da
            word = before
        elif language in _ELIDING and len(before) <= 5:
            word = after
    return word


def _ascii_digit(character: str) -> str:
    if character.isdecimal():
        return str(unicodedata.decimal(character))
    return character


Spans = list[tuple[str, int, int]]
"""(index term, start, end) in the order of a text."""


class Analyzer:
    """The words of a text and their index terms, in one language.

    Words are compared in the normal form of the text (:mod:`dupmae_ir.models.normal_form`); positions are those in the
    text as it is.

    Args:
        language: a code of :data:`LANGUAGES`.
        with_parts: parts of identifiers, too (:func:`~dupmae_ir.models.analyzer.parts`).

    Raises :class:`UsageError` for an unknown language.
    """

    def __init__(self, language: str = ENGLISH, with_parts: bool = True) -> None:
        check_language(language)
        self.language = language
        self.with_parts = with_parts
        self.terms_per_word = _TERMS_PER_WORD.get(language, 1)
        # Of texts in their normal form.
        self._terms: Callable[[str], list[str]] = stems_and_parts if with_parts else stems
        self._spans: Callable[[str], Spans] = partial(stem_spans, with_parts=with_parts)
        if language != ENGLISH:
            self._terms = self._terms_of_language
            self._spans = self._spans_of_language
            self._stem = _stemmer(language)
            self.term = lru_cache(1 << 18)(self.term)  # type: ignore[method-assign]

    def term(self, word: str) -> str:
        """The index term of a word; empty for a function word."""
        folded = _fold(self.language, word)
        if folded in function_words(self.language):
            return ""
        return self._stem(folded)

    def terms(self, text: str) -> list[str]:
        """The index terms of a text, in order."""
        return self._terms(normal_form(text))

    def spans(self, text: str) -> Spans:
        """The index terms of a text, in order, with their positions."""
        form = aligned(text)
        if form is None:
            return self._spans(text)
        return [(term, *form.original(start, end)) for term, start, end in self._spans(form.text)]

    def query_terms(self, text: str, query_language: str | None = None) -> list[str]:
        """The index terms of a query. Texts in English or several languages keep their function words; a query keeps
        them only if it has no other words.

        ``query_language``: the language that the query is probably in, if it may be another one than that of the texts.
        Its function words mean nothing in these, and are left out as well.
        """
        if query_language in (None, self.language):
            terms = self.terms(text)
        else:
            terms = self._terms_without(text, written_function_words(query_language))
        if self.language != ENGLISH:
            return terms
        unimportant = function_words(ENGLISH)
        return [term for term in terms if term not in unimportant] or terms

    def _terms_without(self, text: str, words: Collection[str]) -> list[str]:
        """The index terms of a text without these words, or of all words if the text has no others."""
        spans = self.spans(text)
        kept = [term for term, start, end in spans if text[start:end].lower() not in words]
        return kept or [term for term, _, _ in spans]

    def _terms_of_language(self, text: str) -> list[str]:
        return [term for term, _, _ in self._spans_of_language(text)]

    def _spans_of_language(self, text: str) -> Spans:
        spans = []
        for word, start, end in self._words(text):
            term = self.term(word)
            if term:
                spans.append((term, start, end))
        return spans

    def _words(self, text: str) -> Iterator[tuple[str, int, int]]:
        for match in _pattern().finditer(text):
            word = match.group()
            start = match.start()
            if match.lastgroup:
                # A script without blanks: overlapping pieces.
                size = 2 if match.lastgroup == "cjk" else SYLLABLES
                size = min(len(word), size)
                for i in range(len(word) - size + 1):
                    yield word[i : i + size], start + i, start + i + size
                continue
            for i in range(0, len(word), MAX_TOKEN_LENGTH):
                piece = word[i : i + MAX_TOKEN_LENGTH]
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
    if name not in Stemmer.algorithms():
        return str
    # 0: without Snowball's own cache, since terms are cached.
    return Stemmer.Stemmer(name, 0).stemWord


def check_language(language: str) -> None:
    """Raise :class:`UsageError` for a code that is not one of :data:`LANGUAGES`."""
    if language not in LANGUAGES:
        known = ", ".join(LANGUAGES)
        raise UsageError(
            f"`language` must be {AUTO} or one of {known}, got {language!r}.{suggest(language, LANGUAGES)}"
        )
