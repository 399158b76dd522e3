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

from dupmae_ir.models.analyzer import MAX_TOKEN_LENGTH, stem, word_spans
from dupmae_ir.models.languages import is_letter, separates_words
from dupmae_ir.models.normal_form import normal_form, shown_character
from dupmae_ir.types import LexicalEncoder

SNIPPET = 240
"""Characters of the best passage."""
TEXTS_REMEMBERED = 4
"""Texts of whose terms a query keeps the positions."""
LONGEST_READ = 8192
"""Characters of a text in which words are looked for: a page of results must not wait for one long document."""
LONGEST_SCAN = 1 << 18
"""First characters of a longer text from which they are chosen."""
LETTERS = "single letters"
"""The name of terms that are letters of words."""
_NOTABLE = 0.1
"""A word is marked if its term has this share of the strongest one's."""
_MAX_QUERY_WORDS = 64
"""First words of a query that are looked for in a long text."""
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
        #: text -> its terms, of the last texts
        self._spans: dict[str, list[TermSpan]] = {}
        spans = self.spans(query)
        self._words = _words_by_term([(query, spans)])
        #: word of the query -> its terms that are no parts of it, such as its stem
        self._complete: dict[str, set[str]] = {}
        for span in spans:
            if span.word == (span.start, span.end):
                word = query[span.start : span.end].lower()
                self._complete.setdefault(word, set()).add(span.term)

    def spans(self, text: str) -> list[TermSpan]:
        """:meth:`_find_spans`, remembered: words, marks and passage of a text need its terms, which take longest."""
        # Not by lru_cache: the wrapper of a method and its object would refer to each other, and stay.
        spans = self._spans.get(text)
        if spans is None:
            spans = self._find_spans(text)
            if len(self._spans) >= TEXTS_REMEMBERED:
                self._spans.clear()
            self._spans[text] = spans
        return spans

    def _find_spans(self, text: str) -> list[TermSpan]:
        """The index terms of a text with their positions; stems of words for an encoder that does not tell. Of a long
        text, those of the :data:`LONGEST_READ` characters with the most words of the query."""
        begin = self._best_start(text)
        part = text[begin : begin + LONGEST_READ]
        if isinstance(self.encoder, SpanEncoder):
            spans = self.encoder.term_spans(part)
        else:
            spans = []
            for word, start, end in word_spans(part):
                term = stem(word)
                if term:
                    spans.append((term, start, end))
        term_spans = []
        for term, start, end in spans:
            start += begin
            end += begin
            term_spans.append(TermSpan(term, start, end, _complete_word(text, start, end)))
        return term_spans

    def _best_start(self, text: str) -> int:
        """Where the read part of a long text begins: the two neighbouring blocks with the most words of the query."""
        if len(text) <= LONGEST_READ:
            return 0
        block_length = LONGEST_READ // 2
        stems = []
        for word, _, _ in word_spans(self.query)[:_MAX_QUERY_WORDS]:
            term = stem(word)
            if term:
                stems.append(term)
        lower = text[:LONGEST_SCAN].lower()
        stems_in_blocks = []
        for start in range(0, len(lower), block_length):
            block = lower[start : start + block_length]
            stems_in_blocks.append({term for term in stems if term in block})
        counts = [
            len(block | following) for block, following in itertools.pairwise(stems_in_blocks)
        ]
        return block_length * counts.index(max(counts))

    def shares(self, terms: Sequence[TermShare], *texts: str) -> list[WordShare]:
        """The words behind the matched ``terms`` (raw index terms) of a hit with these ``texts``, strongest first;
        shares add up to the terms'."""
        in_text = _words_by_term((text, self.spans(text)) for text in texts)
        is_read = any(texts) and all(len(text) <= LONGEST_READ for text in texts)
        all_words = set(itertools.chain.from_iterable(in_text.values())) if is_read else None
        shares: defaultdict[_NamedWord, float] = defaultdict(float)
        # A dict as an ordered set of words of the texts.
        matching: dict[_NamedWord, dict[str, None]] = {}
        for term in terms:
            named = self._name(term.term, in_text, all_words)
            shares[named] += term.share
            matching.setdefault(named, {}).update(dict.fromkeys(in_text.get(term.term, ())))
        words = []
        for named, share in shares.items():
            words.append(WordShare(named.word, share, named.expansion, tuple(matching[named])))
        return sorted(words, key=lambda word: (-word.share, word.word))

    def _name(
        self, term: str, in_text: Mapping[str, Sequence[str]], all_words: Set[str] | None
    ) -> _NamedWord:
        """The word to name for a term. ``all_words``: those of the texts, if they were read completely."""
        query_words = self._words.get(term, ())
        text_words = in_text.get(term, ())
        if _is_part_letter(term, (*query_words, *text_words)):
            return _NamedWord(LETTERS, True)
        for word in query_words:
            if all_words is None or word in all_words:
                return _NamedWord(word, False)
            # The text may have the word in another form, with the same stem.
            if any(complete in in_text for complete in self._complete.get(word, ())):
                return _NamedWord(word, False)
        if not isinstance(self.encoder, SpanEncoder):
            return _NamedWord(term, False)
        candidates = (*text_words, *query_words, term.removeprefix("##"))
        return _NamedWord(candidates[0], True)

    def weights(self, terms: Sequence[TermShare]) -> dict[str, float]:
        """Index term -> share, for finding the terms in a text. Without terms (a dense index), those of the query."""
        if terms:
            return {term.term: term.share for term in terms}
        return {span.term: 1.0 for span in self.spans(self.query)}

    def marks(self, weights: Mapping[str, float], text: str) -> list[tuple[int, int, str]]:
        """(start, end, index term) of the whole words of a text that match notably, in order."""
        min_weight = _NOTABLE * max(weights.values(), default=0.0)
        if not min_weight > 0:
            return []
        marks = []
        for span in self.spans(text):
            if weights.get(span.term, -1.0) < min_weight:
                continue
            start, end = span.word
            if not _is_part_letter(span.term, (text[start:end].lower(),)):
                marks.append((start, end, span.term))
        return marks

    def shaded(self, terms: Sequence[TermShare], text: str) -> tuple[Mark, ...]:
        """The matching words of a text in order, without overlaps; a word has the shares of all its terms."""
        weights = {term.term: term.share for term in terms}
        words: list[tuple[int, int, set[str]]] = []
        for start, end, term in sorted(self.marks(weights, text)):
            if words and start < words[-1][1]:
                word_start, word_end, matching = words[-1]
                words[-1] = (word_start, max(end, word_end), matching | {term})
            else:
                words.append((start, end, {term}))
        marks = []
        for start, end, matching in words:
            marks.append(Mark(start, end, sum(map(weights.__getitem__, matching))))
        return tuple(marks)

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
        start = 0
        end = min(longest, len(text))
        if marks:
            start, end = _best_window(marks, weights, longest)
        start, end = _widen_to_sentences(text, start, end, longest)
        inside = []
        for mark_start, mark_end, _ in marks:
            if start <= mark_start and mark_end <= end:
                inside.append((mark_start, mark_end))
        return _on_one_line(text, start, end, inside, hidden)


class _NamedWord(NamedTuple):
    """The word by which a term is named, and whether it is an expansion."""

    word: str
    expansion: bool


def _words_by_term(texts: Iterable[tuple[str, Sequence[TermSpan]]]) -> dict[str, list[str]]:
    """Index term -> the different words of the texts that it is from, in order."""
    # Dicts as ordered sets.
    words: dict[str, dict[str, None]] = {}
    for text, spans in texts:
        for span in spans:
            word = normal_form(text[slice(*span.word)]).lower()
            if word:
                words.setdefault(span.term, {})[word] = None
    return {term: list(term_words) for term, term_words in words.items()}


def _is_part_letter(term: str, words: Sequence[str]) -> bool:
    """Whether a term is a single letter of longer words."""
    piece = term.removeprefix("##")
    if not is_letter(piece):
        return False
    return piece != term or not words or any(len(word) > 1 for word in words)


def _complete_word(text: str, start: int, end: int) -> tuple[int, int]:
    """The place, widened to the letters, marks and digits around it, as far as the longest token; not in scripts whose
    words no blanks separate."""
    first = max(0, start - MAX_TOKEN_LENGTH)
    last = min(len(text), end + MAX_TOKEN_LENGTH)
    if start >= end or not _in_word(text[start]):
        return start, end
    while start > first and _in_word(text[start - 1]):
        start -= 1
    while end < last and _in_word(text[end - 1]) and _in_word(text[end]):
        end += 1
    return start, end


@lru_cache(1 << 14)
def _in_word(character: str) -> bool:
    # Also marks on letters, and soft hyphens between them.
    is_inside = unicodedata.category(character).startswith(("M", "Cf"))
    return (character.isalnum() or is_inside) and separates_words(character)


def _best_window(
    marks: Sequence[tuple[int, int, str]], weights: Mapping[str, float], width: int
) -> tuple[int, int]:
    """The first window of ``width`` characters with the largest sum of shares, each term counted once."""
    # A window that slides over the marks: each enters at the right, and leaves at the left when it is too far away.
    inside: Counter[str] = Counter()
    total = 0.0
    first = 0  # position of the first mark inside
    best_total = -1.0
    best = (marks[0][0], marks[0][1])
    for start, end, term in marks:
        if not inside[term]:
            total += weights[term]
        inside[term] += 1
        while end - marks[first][0] > width and marks[first][0] < start:
            leaving = marks[first][2]
            inside[leaving] -= 1
            if not inside[leaving]:
                total -= weights[leaving]
            first += 1
        # A later window must be better by more than the rounding of the sums.
        if total > best_total + 1e-9:
            best_total = total
            best = (marks[first][0], end)
    return best


def _widen_to_sentences(text: str, start: int, end: int, longest: int) -> tuple[int, int]:
    """The window with what fits before and after it: from the beginning of a sentence or a word, to the end of one."""
    room = max(0, longest - (end - start))
    earliest = max(0, start - room // 2)
    sentences = [m.end() for m in _SENTENCE.finditer(text, max(0, start - room), start)]
    if start <= room:
        sentences.insert(0, 0)
    near = [position for position in sentences if position >= earliest]
    if near:
        start = near[0]
    elif sentences:
        start = sentences[-1]
    else:
        for position in range(earliest, start):
            if position == 0 or text[position - 1].isspace():
                start = position
                break
    end = max(end, min(len(text), start + longest))
    if end < len(text) and not text[end].isspace():
        blank = max(text.rfind(" ", start, end), text.rfind("\n", start, end))
        if blank > start + longest // 2:
            end = blank
    return start, end


def _on_one_line(
    text: str,
    start: int,
    end: int,
    marks: Sequence[tuple[int, int]],
    hidden: Sequence[tuple[int, int]],
) -> Snippet:
    """The part in its normal form, with white space collapsed and without what is hidden, and the marks moved
    accordingly."""
    hidden_positions: set[int] = set()
    for hidden_start, hidden_end in hidden:
        hidden_positions.update(range(max(hidden_start, start), min(hidden_end, end)))

    # Position in the text -> (start, end) in the line, of each character and each run of white space that is kept.
    positions: dict[int, tuple[int, int]] = {}
    pieces: list[str] = []
    length = 0
    for match in re.finditer(r"\s+|\S", text[start:end]):
        position = start + match.start()
        if match.group().isspace():
            at_the_end = match.end() == end - start
            if not pieces or pieces[-1] == " " or at_the_end:
                continue
            piece = " "
        elif position in hidden_positions:
            continue
        else:
            piece = shown_character(match.group())
        positions[position] = (length, length + len(piece))
        if piece:
            pieces.append(piece)
            length += len(piece)

    moved = []
    for mark_start, mark_end in marks:
        if mark_start in positions and mark_end - 1 in positions:
            line_start, _ = positions[mark_start]
            _, line_end = positions[mark_end - 1]
            moved.append((line_start, line_end))
    return Snippet(
        "".join(pieces),
        tuple(_without_overlaps(moved)),
        start,
        end,
        bool(text[:start].strip()),
        bool(text[end:].strip()),
    )


def _without_overlaps(marks: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(marks):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
