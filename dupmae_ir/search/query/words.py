"""Which words of a query and of a text a hit's impact comes from, and the passage of the text that has most of them.

Index terms are word pieces (``##ool``) or hashes of stems. :meth:`QueryWords.shares` adds the shares of terms up by the
words of the query that they are from and that the text has, too. All others are expansions: of a word of the text, if
the term is part of one, or of the query, if the text has no such word. Single letters of words are one entry.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol, runtime_checkable

from dupmae_ir.models.analyzer import LONGEST_TOKEN, stem, word_spans
from dupmae_ir.models.languages import is_letter, separates_words
from dupmae_ir.types import LexicalEncoder

SNIPPET = 240
"""Characters of the best passage."""
LONGEST_READ = 8192
"""Characters of a text in which words are looked for: a page of results must not wait for one long document."""
LONGEST_SCAN = 1 << 18
"""First characters of a longer text from which they are chosen."""
LETTERS = "single letters"
"""The name of terms that are letters of words."""
_NOTABLE = 0.1
"""A word is marked if its term has this share of the strongest one's."""
_SENTENCE = re.compile(r"(?:(?<=[.!?])|(?<=\n))\s+")


@dataclass(frozen=True)
class TermShare:
    """One matched term: its weight in the query, in the document, and their product, in real units."""

    term: str
    query_weight: float
    document_weight: float
    share: float


class TermSpan(NamedTuple):
    """An index term of a text, where it is, and (start, end) of the whole word around it."""

    term: str
    start: int
    end: int
    word: tuple[int, int]


@runtime_checkable
class SpanEncoder(Protocol):
    """An encoder that knows where in a text each index term is from."""

    def term_spans(self, text: str) -> list[tuple[str, int, int]]:
        """(index term, start, end) of each place of ``text``, in its order."""


@dataclass(frozen=True)
class WordShare:
    """A word and what it adds to the impact of a hit.

    ``word``: as the query has it; for an ``expansion``, which is not in the query or not in the text, as either has it,
    or the index term where neither does. ``text_words``: the words of the text that match it.
    """

    word: str
    share: float
    expansion: bool
    text_words: tuple[str, ...] = ()


class Mark(NamedTuple):
    """A matching word of a text: its place, and the share of the score that its terms have."""

    start: int
    end: int
    share: float


@dataclass(frozen=True)
class Snippet:
    """A part of a text on one line. ``marks``: (start, end) in ``text`` of the matching words; ``start`` and ``end``:
    the part's place in the whole text; ``before`` and ``after``: whether there is more."""

    text: str
    marks: tuple[tuple[int, int], ...]
    start: int
    end: int
    before: bool
    after: bool


class QueryWords:
    """The words of one query, as an encoder splits them."""

    def __init__(self, encoder: object, query: str) -> None:
        self.encoder = encoder
        self.query = query
        #: index term -> the query's words for it, shown instead of terms that are hashes
        self.names = encoder.term_names(query) if isinstance(encoder, LexicalEncoder) else {}
        # Words, marks and passage of a text need its terms, which take longest.
        self.spans = lru_cache(4)(self._find_spans)
        spans = self.spans(query)
        self._words = _words_by_term([(query, spans)])
        #: word of the query -> its terms that are no parts of it, such as its stem
        self._whole: dict[str, set[str]] = {}
        for span in spans:
            if span.word == (span.start, span.end):
                self._whole.setdefault(query[span.start : span.end].lower(), set()).add(span.term)

    def _find_spans(self, text: str) -> list[TermSpan]:
        """The index terms of a text with their positions; stems of words for an encoder that does not tell. Of a long
        text, those of the :data:`LONGEST_READ` characters with the most words of the query."""
        begin = self._best_start(text)
        part = text[begin : begin + LONGEST_READ]
        if isinstance(self.encoder, SpanEncoder):
            spans = self.encoder.term_spans(part)
        else:
            spans = [(s, start, end) for word, start, end in word_spans(part) if (s := stem(word))]
        places = [(term, begin + start, begin + end) for term, start, end in spans]
        return [
            TermSpan(term, start, end, _whole_word(text, start, end)) for term, start, end in places
        ]

    def _best_start(self, text: str) -> int:
        """Where the read part of a long text begins: it is two blocks, of which other words of the query are in."""
        if len(text) <= LONGEST_READ:
            return 0
        block, stems = (
            LONGEST_READ // 2,
            [s for word, _, _ in word_spans(self.query)[:64] if (s := stem(word))],
        )
        lower = text[:LONGEST_SCAN].lower()
        found = [
            {s for s in stems if s in lower[at : at + block]} for at in range(0, len(lower), block)
        ]
        counts = [len(one | other) for one, other in itertools.pairwise(found)]
        return block * counts.index(max(counts))

    def shares(self, terms: Sequence[TermShare], *texts: str) -> list[WordShare]:
        """The words behind the matched ``terms`` (raw index terms) of a hit with these ``texts``, strongest first;
        shares add up to the terms'."""
        in_text = _words_by_term((text, self.spans(text)) for text in texts)
        is_read = any(texts) and all(len(text) <= LONGEST_READ for text in texts)
        known = {word for words in in_text.values() for word in words} if is_read else None
        shares: defaultdict[tuple[str, bool], float] = defaultdict(float)
        matching: dict[tuple[str, bool], dict[str, None]] = {}
        for term in terms:
            key = self._named(term.term, in_text, known)
            shares[key] += term.share
            matching.setdefault(key, {}).update(dict.fromkeys(in_text.get(term.term, ())))
        words = [
            WordShare(key[0], share, key[1], tuple(matching[key])) for key, share in shares.items()
        ]
        return sorted(words, key=lambda word: (-word.share, word.word))

    def _named(
        self, term: str, in_text: Mapping[str, Sequence[str]], known: Set[str] | None
    ) -> tuple[str, bool]:
        """The word to name for a term, and whether it is an expansion. ``known``: all words of the text, if it is
        known as a whole."""
        own, words = self._words.get(term, ()), in_text.get(term, ())
        if _is_part_letter(term, (*own, *words)):
            return LETTERS, True
        for word in own:
            if (
                known is None
                or word in known
                or any(whole in in_text for whole in self._whole.get(word, ()))
            ):
                return word, False
        if not isinstance(self.encoder, SpanEncoder):
            return term, False
        return next(iter((*words, *own)), term.removeprefix("##")), True

    def weights(self, terms: Sequence[TermShare]) -> dict[str, float]:
        """Index term -> share, for finding the terms in a text. Without terms (a dense index), those of the query."""
        if terms:
            return {term.term: term.share for term in terms}
        return {span.term: 1.0 for span in self.spans(self.query)}

    def marks(self, weights: Mapping[str, float], text: str) -> list[tuple[int, int, str]]:
        """(start, end, index term) of the whole words of a text that match notably, in order."""
        least = _NOTABLE * max(weights.values(), default=0.0)
        words = [
            (*span.word, span.term)
            for span in self.spans(text)
            if weights.get(span.term, -1.0) >= least > 0
        ]
        return [
            (a, b, term) for a, b, term in words if not _is_part_letter(term, (text[a:b].lower(),))
        ]

    def shaded(self, terms: Sequence[TermShare], text: str) -> tuple[Mark, ...]:
        """The matching words of a text in order, without overlaps; a word has the shares of all its terms."""
        weights = {term.term: term.share for term in terms}
        words: list[tuple[int, int, set[str]]] = []
        for start, end, term in sorted(self.marks(weights, text)):
            if words and start < words[-1][1]:
                begun, ended, matching = words[-1]
                words[-1] = begun, max(end, ended), matching | {term}
            else:
                words.append((start, end, {term}))
        return tuple(
            Mark(start, end, sum(map(weights.__getitem__, matching)))
            for start, end, matching in words
        )

    def snippet(
        self,
        weights: Mapping[str, float],
        text: str,
        longest: int = SNIPPET,
        hidden: Sequence[tuple[int, int]] = (),
    ) -> Snippet:
        """The passage of at most about ``longest`` characters whose different terms have the largest shares, without
        the ``hidden`` parts (start, end) of the text."""
        marks = self.marks(weights, text)
        start, end = (
            _best_window(marks, weights, longest) if marks else (0, min(longest, len(text)))
        )
        start, end = _rounded(text, start, end, longest)
        return _on_one_line(
            text, start, end, [(a, b) for a, b, _ in marks if start <= a and b <= end], hidden
        )


def _words_by_term(texts: Iterable[tuple[str, Sequence[TermSpan]]]) -> dict[str, list[str]]:
    """Index term -> the different words of the texts that it is from, in order."""
    words: dict[str, dict[str, None]] = {}
    for text, span in ((text, span) for text, spans in texts for span in spans):
        if word := text[slice(*span.word)].lower():
            words.setdefault(span.term, {})[word] = None
    return {term: list(own) for term, own in words.items()}


def _is_part_letter(term: str, words: Sequence[str]) -> bool:
    """Whether a term is a single letter of longer words."""
    piece = term.removeprefix("##")
    return is_letter(piece) and (piece != term or not words or any(len(word) > 1 for word in words))


def _whole_word(text: str, start: int, end: int) -> tuple[int, int]:
    """The place, widened to the letters, marks and digits around it, as far as the longest token; not in scripts whose
    words no blanks separate."""
    first, last = max(0, start - LONGEST_TOKEN), min(len(text), end + LONGEST_TOKEN)
    if start >= end or not _in_word(text[start]):
        return start, end
    while start > first and _in_word(text[start - 1]):
        start -= 1
    while end < last and _in_word(text[end - 1]) and _in_word(text[end]):
        end += 1
    return start, end


@lru_cache(1 << 14)
def _in_word(character: str) -> bool:
    return (character.isalnum() or unicodedata.category(character)[0] == "M") and separates_words(
        character
    )


def _best_window(
    marks: Sequence[tuple[int, int, str]], weights: Mapping[str, float], width: int
) -> tuple[int, int]:
    """The first window of ``width`` characters with the largest sum of shares, each term counted once."""
    inside: Counter[str] = Counter()
    total, left, best, window = 0.0, 0, -1.0, (marks[0][0], marks[0][1])
    for start, end, term in marks:
        if not inside[term]:
            total += weights[term]
        inside[term] += 1
        while end - marks[left][0] > width and marks[left][0] < start:
            gone = marks[left][2]
            inside[gone] -= 1
            if not inside[gone]:
                total -= weights[gone]
            left += 1
        if total > best + 1e-9:
            best, window = total, (marks[left][0], end)
    return window


def _rounded(text: str, start: int, end: int, longest: int) -> tuple[int, int]:
    """The window with what fits before and after it: from the beginning of a sentence or a word, to the end of one."""
    room = max(0, longest - (end - start))
    earliest = max(0, start - room // 2)
    sentences = [m.end() for m in _SENTENCE.finditer(text, max(0, start - room), start)]
    if start <= room:
        sentences.insert(0, 0)
    if near := [place for place in sentences if place >= earliest]:
        start = near[0]
    elif sentences:
        start = sentences[-1]
    else:
        start = next((i for i in range(earliest, start) if not i or text[i - 1].isspace()), start)
    end = max(end, min(len(text), start + longest))
    if end < len(text) and not text[end].isspace():
        blank = max(text.rfind(" ", start, end), text.rfind("\n", start, end))
        end = blank if blank > start + longest // 2 else end
    return start, end


def _on_one_line(
    text: str,
    start: int,
    end: int,
    marks: Sequence[tuple[int, int]],
    hidden: Sequence[tuple[int, int]],
) -> Snippet:
    """The part with white space collapsed and without what is hidden, and the marks moved accordingly."""
    pieces, positions, length = list[str](), dict[int, int](), 0
    unseen = {
        i for a, b in hidden if a < end and b > start for i in range(max(a, start), min(b, end))
    }
    for m in re.finditer(r"\s+|\S", text[start:end]):
        blank = m.group().isspace()
        if not blank and start + m.start() in unseen:
            continue
        if blank and (not pieces or pieces[-1] == " " or m.end() == end - start):
            continue
        positions[start + m.start()] = length
        pieces.append(" " if blank else m.group())
        length += 1
    moved = [
        (positions[a], positions[b - 1] + 1)
        for a, b in marks
        if a in positions and b - 1 in positions
    ]
    return Snippet(
        "".join(pieces),
        tuple(_merged(moved)),
        start,
        end,
        bool(text[:start].strip()),
        bool(text[end:].strip()),
    )


def _merged(marks: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Marks without overlaps."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(marks):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
