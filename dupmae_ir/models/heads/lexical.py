"""Lexical OT weights: the dimensions, the weights of documents and queries, and ``lexicon.safetensors``.

Dimension hash(s) mod ``buckets`` is the stem s of a word or of a part of an identifier, whose index term is ``=`` and
the bucket in hexadecimal. With the constants of
:class:`~dupmae_ir.models.checkpoints.model_config.LexicalSettings`:

    document   tf / (tf + k1 (1 - b + b n / average))                   BM25's, without its idf; in steps of 1 / scale
    idf_t      ln(1 + (N' - D_t + 0.5) / (D_t + 0.5)),   N' = N + prior, D_t = df_t + prior * rate_t
    query      w_t / (sum of w)^p,   w_t = qtf_t * idf_t

Function words of a query count only if it has no other words.
In other languages than English there are no rates, so no prior, and b is Anserini's.

The documents of an index may have other languages than the index (:mod:`dupmae_ir.models.language_detection`). Their
words have dimensions behind the V of the index's language, V + (hash(s) + shift) mod ``buckets``, where the shift
depends on the language: a word never shares a dimension with one of the index's language, and shares it with the same
words of its language as in an index of this language alone. Words of two additional languages can share a dimension.

Each language has its own N and df, and a query has the sum of its weights in all languages of the index. Documents in
the language of the query have the scores that they would have in an index of this language alone. A few documents have
low idfs, below those of documents in other languages that only have a name in common with the query. So the weights in
other languages are multiplied by the sum of the weights in the language of the query, divided by what this sum would be
with :data:`MIN_DOCUMENTS` documents. N of an additional language is at least this number if the query is in another
language, or if it has fewer than :data:`FEW_DOCUMENTS` documents, whose vectors are not measured either.

If ``head_scale`` s is above 0, the tokenizer's V word pieces come first, weighted by s times the output of the
masked-LM head (DupMAE Eq. 6-7), and the stems follow.

The text alone determines a document's weights: n is its number of stems (title and text, not truncated), the average
is a constant, and words of the title count ``title_times``. N and df are the collection's
(:class:`~dupmae_ir.types.CollectionStatistics`); without a collection, they are 0. The rates belong to the model and
come from the text that it was made from. The idf is that of BM25 in Lucene (Robertson and Zaragoza, 2009).

``lexicon.safetensors`` contains ``document_frequency``, (buckets,) uint8: df = 2**(code / 12) / 2, or 0 for code 0, in
a number of documents that the metadata names ``documents``.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, overload

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from dupmae_ir.console import one_line
from dupmae_ir.errors import CheckpointError
from dupmae_ir.models.checkpoints.model_config import WITH_PARTS, LexicalSettings
from dupmae_ir.models.language_detection import language_of_query
from dupmae_ir.models.languages import ENGLISH, OTHER, Analyzer
from dupmae_ir.models.normal_form import normal_form
from dupmae_ir.types import CollectionStatistics

if TYPE_CHECKING:
    import scipy.sparse as sp

_TENSOR = "document_frequency"

_ANSERINI_B = 0.4
"""For other languages than English. The model's b was chosen on English text."""
MIN_DOCUMENTS = 100
"""Documents of a language whose idfs compare with those of other languages, unless it has a prior."""
FEW_DOCUMENTS = 8
"""Documents of an additional language from which they have the scores of an index of their own."""
_CODES_PER_DOUBLING = 12
"""Steps of a document frequency's code between df and 2 df."""
TermWeights = dict[int, float]
"""Dimension -> weight."""
_NO_IDS = np.zeros(0, np.int32)
_NO_WEIGHTS = np.zeros(0, np.float32)


class LanguageWords:
    """The words of one language: their dimensions, and what their weights depend on.

    Args:
        settings: the constants.
        rates: (buckets,) float64, the share of documents that contain each stem in English, 0 to 1.
        language: determines words and stems.
        first: the dimension of bucket 0.
        shift: the bucket of a word is moved by it.
    """

    def __init__(
        self,
        settings: LexicalSettings,
        rates: np.ndarray,
        language: str,
        first: int = 0,
        shift: int = 0,
    ) -> None:
        self.language = language
        self.analyzer = analyzer_of(settings, language)
        self._first = first
        self._shift = shift
        self._buckets = settings.buckets
        self._rates = rates
        if language == ENGLISH:
            self._prior = settings.prior_documents
            self.b = settings.b
        else:
            self._prior = 0
            self.b = _ANSERINI_B
        self.min_documents = 0 if self._prior else MIN_DOCUMENTS

    def dimension(self, stemmed: str) -> int:
        """The dimension of a stem."""
        bucket = bucket_of(stemmed, self._buckets)
        return self._first + (bucket + self._shift) % self._buckets

    def idf(self, stemmed: str, documents: int, frequency: int) -> float:
        """Inverse document frequency of a stem that ``frequency`` of ``documents`` have, together with the prior."""
        total = documents + self._prior
        df: float = frequency
        if self._prior:
            df += self._prior * float(self._rates[bucket_of(stemmed, self._buckets)])
        return math.log(1 + (total - df + 0.5) / (df + 0.5))


class Lexicon:
    """The weights of one model.

    Args:
        settings: the constants.
        rates: (buckets,) float64, the share of documents that contain each stem, 0 to 1.
        language: that of the index; other languages than English do not use the rates.
        pieces: V, the word pieces of the head whose weights are added; 0 = no head.
        any_query: whether queries may be in another language than the texts, because vectors find those.
    """

    def __init__(
        self,
        settings: LexicalSettings,
        rates: np.ndarray,
        language: str = ENGLISH,
        pieces: int = 0,
        any_query: bool = False,
    ) -> None:
        self.settings = settings
        self.rates = rates
        self.language = language
        self.pieces = pieces
        self.any_query = any_query
        self.collection: CollectionStatistics | None = None
        # By language, made when they are first needed. Shared by copies, since each has a cache of its terms.
        self._words: dict[str, LanguageWords] = {}

    @classmethod
    def load(
        cls,
        path: Path,
        settings: LexicalSettings,
        vocabulary: int,
        language: str = ENGLISH,
        any_query: bool = False,
    ) -> Lexicon:
        """Read ``lexicon.safetensors``. Raises :class:`CheckpointError` for a missing, damaged or unsuitable file."""
        try:
            with safe_open(path, framework="np") as file:
                codes = file.get_tensor(_TENSOR)
                documents = int(file.metadata()["documents"])
        except FileNotFoundError:
            raise CheckpointError(
                f"{path}: is missing; a model with a lexical OT part needs it"
            ) from None
        except Exception as e:  # what safetensors raises depends on its version
            raise CheckpointError(f"{path}: not a readable lexicon: {one_line(e, 200)}") from None
        if codes.dtype != np.uint8 or codes.shape != (settings.buckets,) or documents < 1:
            raise CheckpointError(
                f"{path}: expected {settings.buckets} bytes and a number of documents, got {codes.dtype} of shape "
                f"{codes.shape} and {documents}"
            )
        # Decoded frequencies are off by up to 3 %, so a stem of all documents can exceed their number.
        rates = np.minimum(decode_frequencies(codes) / documents, 1.0)
        pieces = vocabulary if settings.head_scale else 0
        return cls(settings, rates, language, pieces, any_query)

    def for_collection(self, collection: CollectionStatistics) -> Lexicon:
        """The same weights with the statistics of a collection."""
        other = copy.copy(self)
        other.collection = collection
        return other

    @property
    def width(self) -> int:
        """V, the number of dimensions of an index of one language."""
        return self.pieces + len(self.rates)

    def width_of(self, rows: Iterable[TermWeights]) -> int:
        """The number of dimensions of a matrix of ``rows``: as many as :meth:`terms`, or, where documents of several
        languages are encoded and no collection is known, 2 V if one has words of an additional language."""
        if self.collection is not None and self.collection.languages:
            return 2 * self.width
        highest = max((max(row, default=0) for row in rows), default=0)
        return self.width if highest < self.width else 2 * self.width

    def terms(self, pieces: Sequence[str]) -> Sequence[str]:
        """The index term of each dimension, given those of the word pieces; of 2 V dimensions for a collection of
        several languages."""
        terms: Sequence[str] = BucketTerms(self.settings.buckets)
        if pieces:
            terms = [*pieces, *terms]
        if self.collection is not None and self.collection.languages:
            return terms_in_languages(terms)
        return terms

    def words(self, language: str | None = None) -> LanguageWords:
        """The words of a language; None is that of the index."""
        language = language or self.language
        if language not in self._words:
            first = self.pieces
            shift = 0
            if language != self.language:
                first = self.width
                shift = bucket_of(f"{language}:", self.settings.buckets)
            self._words[language] = LanguageWords(self.settings, self.rates, language, first, shift)
        return self._words[language]

    @property
    def all_words(self) -> list[LanguageWords]:
        """The words of all languages of the collection, those of the index's own first."""
        others = self.collection.languages if self.collection else ()
        return [self.words(), *map(self.words, others)]

    def dimension(self, stemmed: str, language: str | None = None) -> int:
        """The dimension of a stem."""
        return self.words(language).dimension(stemmed)

    def names(self, text: str) -> dict[int, str]:
        """Dimension -> the words of ``text`` that it stands for, in lower case, joined by ``/``."""
        # Keys of a dictionary: each spelling once, in the order of the text.
        spellings: dict[int, dict[str, None]] = {}
        for dimension, start, end in self.spans(text):
            spelling = normal_form(text[start:end]).lower()
            spellings.setdefault(dimension, {})[spelling] = None
        return {dimension: "/".join(words) for dimension, words in spellings.items()}

    def spans(self, text: str) -> list[tuple[int, int, int]]:
        """(dimension, start, end) of each stem of a text, in all languages, in order; parts of a word follow it."""
        spans = []
        for words in self.all_words:
            for stemmed, start, end in words.analyzer.spans(text):
                spans.append((words.dimension(stemmed), start, end))
        if len(self.all_words) > 1:
            spans.sort(key=lambda span: span[1])
        return spans

    def document(self, title: str, text: str, language: str | None = None) -> TermWeights:
        """The weights of a document from its title and its text; ``language``: if it is not that of the index."""
        settings = self.settings
        words = self.words(language)
        title_stems = words.analyzer.terms(title) if title else []
        stems = title_stems + words.analyzer.terms(text)
        frequencies = Counter(map(words.dimension, stems))
        # The title counts once already. Repetitions do not add to the length.
        title_dimensions = map(words.dimension, title_stems * (settings.title_times - 1))
        frequencies.update(Counter(title_dimensions))
        average = settings.average_stems * words.analyzer.terms_per_word
        norm = settings.k1 * (1 - words.b + words.b * len(stems) / average)
        weights = {}
        for dimension, tf in frequencies.items():
            # Whole impacts, rounded in float64 here: a float32 weight close to half an impact could be rounded either
            # way.
            impact = round(settings.document_scale * tf / (tf + norm))
            if impact:
                weights[dimension] = impact / settings.document_scale
        return weights

    def query(self, text: str) -> TermWeights:
        """The weights of a query, in all languages of the collection."""
        all_words = self.all_words
        query_language = None
        if len(all_words) > 1 or self.any_query or self.language == OTHER:
            query_language = language_of_query(text, [words.language for words in all_words])
        own_words = self.words(self._searched_language(query_language))
        own_min_documents = 0
        if own_words.language != self.language and self._counts(own_words)[0] < FEW_DOCUMENTS:
            own_min_documents = own_words.min_documents
        weights = self._query_in(own_words, text, query_language, own_min_documents)
        if len(all_words) == 1:
            return weights
        comparable = self._query_in(own_words, text, query_language, own_words.min_documents)
        scale = 1.0
        if comparable:
            scale = math.fsum(weights.values()) / math.fsum(comparable.values())
        for words in all_words:
            if words is own_words:
                continue
            min_documents = 0 if words.language == self.language else words.min_documents
            others = self._query_in(words, text, query_language, min_documents)
            for dimension, weight in others.items():
                weights[dimension] = weights.get(dimension, 0.0) + scale * weight
        return weights

    def _searched_language(self, query_language: str | None) -> str:
        """The language whose documents have the scores of an index of their own: the language of a query, or that of
        the index if no document is in it."""
        if query_language is not None and self.collection is not None:
            if query_language in self.collection.languages:
                return query_language
        return self.language

    def _query_in(
        self, words: LanguageWords, text: str, query_language: str | None, min_documents: int = 0
    ) -> TermWeights:
        """The weights of a query in one language; if there are several, without those of words that no text has, whose
        dimensions may have words of another additional language."""
        weights = self._idfs(words, text, query_language, min_documents)
        # fsum is exact, so the order of the words does not matter.
        total = math.fsum(weights.values())
        if total <= 0:
            return {}
        divisor = total**self.settings.query_power
        _, frequencies = self._counts(words)
        if frequencies is not None and len(self.all_words) > 1:
            weights = {d: weight for d, weight in weights.items() if frequencies[d]}
        return {dimension: weight / divisor for dimension, weight in weights.items()}

    def _idfs(
        self, words: LanguageWords, text: str, query_language: str | None, min_documents: int = 0
    ) -> TermWeights:
        """qtf * idf of each term of a query in one language, as if it had at least ``min_documents`` documents."""
        documents, frequencies = self._counts(words)
        documents = max(documents, min_documents)
        # Stems of one dimension are one term.
        stems_by_dimension: dict[int, list[str]] = {}
        for stemmed in words.analyzer.query_terms(text, query_language):
            stems_by_dimension.setdefault(words.dimension(stemmed), []).append(stemmed)
        weights = {}
        for dimension, stems in stems_by_dimension.items():
            frequency = 0 if frequencies is None else int(frequencies[dimension])
            idf = words.idf(stems[0], documents, frequency)
            weights[dimension] = len(stems) * idf
        return weights

    def _counts(self, words: LanguageWords) -> tuple[int, np.ndarray | None]:
        """The number of documents in a language and the frequencies of terms in them; None without a collection."""
        if self.collection is None:
            return 0, None
        if words.language == self.language:
            return self.collection.usual.documents, self.collection.usual.frequencies
        statistics = self.collection.languages[words.language]
        return statistics.documents, statistics.frequencies

    def query_factor(self, text: str) -> float:
        """The factor of a query's vector: that of its language in a collection of several languages."""
        if self.collection is None or not self.collection.languages:
            return 1.0
        candidates = [self.language, *self.collection.languages]
        query_language = language_of_query(text, candidates)
        language = self._searched_language(query_language)
        statistics = self.collection.languages.get(language)
        return statistics.factor if statistics else 1.0

    def matrix(
        self, rows: Sequence[TermWeights], keep: int, heads: Sequence[np.ndarray] | None = None
    ) -> sp.csr_matrix:
        """Weights of n texts as (n, :meth:`width_of`) float32 CSR: the ``keep`` largest of each; equal ones by
        dimension.

        ``heads``: for each text the float32 weights of its word pieces by the head, scaled, which are added.
        """
        import scipy.sparse as sp  # importing it takes a tenth of a second, and a single query does without

        if heads is None:
            arrays = [self.arrays(row, keep) for row in rows]
        else:
            arrays = [self.arrays(row, keep, head) for row, head in zip(rows, heads, strict=True)]
        ends = np.cumsum([0, *(len(dimensions) for dimensions, _ in arrays)])
        # The empty arrays give the dtype if there are no texts.
        indices = np.concatenate([*(dimensions for dimensions, _ in arrays), _NO_IDS])
        data = np.concatenate([*(weights for _, weights in arrays), _NO_WEIGHTS])
        return sp.csr_matrix((data, indices, ends), shape=(len(rows), self.width_of(rows)))

    def arrays(
        self, row: TermWeights, keep: int, head: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Dimensions (m,) int32, ascending, and weights (m,) float32 of a row of :meth:`matrix`."""
        dimensions = np.fromiter(row, np.int32, len(row))
        weights = np.fromiter(row.values(), np.float32, len(row))
        if head is not None:
            # The word pieces of the head come before the stems.
            positive = np.flatnonzero(head > 0).astype(np.int32)
            dimensions = np.concatenate([positive, dimensions])
            weights = np.concatenate([head[positive], weights])
        if len(dimensions) > keep:
            largest = np.lexsort((dimensions, -weights))[:keep]
            dimensions = dimensions[largest]
            weights = weights[largest]
        order = np.argsort(dimensions)
        return dimensions[order], weights[order]


class BucketTerms(Sequence[str]):
    """The index terms of ``count`` buckets of stems: ``=``, and the number of the bucket in hexadecimal digits.

    A search reads a few of them, and to make all 131,072 would take 25 ms of its start.
    """

    def __init__(self, count: int) -> None:
        self._numbers = range(count)

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [_bucket_term(number) for number in self._numbers[index]]
        return _bucket_term(self._numbers[index])

    def __eq__(self, other: object) -> bool:
        if isinstance(other, BucketTerms):
            return self._numbers == other._numbers
        return isinstance(other, Sequence) and self[:] == list(other)

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)})"


def _bucket_term(number: int) -> str:
    return f"={number:x}"


def bucket_number(term: str) -> int | None:
    """The number in the index term of a bucket; None for another term."""
    digits = term.removeprefix("=")
    if len(digits) == len(term):
        return None
    try:
        number = int(digits, 16)
    except ValueError:
        return None
    is_exact = number >= 0 and _bucket_term(number) == term
    return number if is_exact else None


def terms_in_languages(terms: Sequence[str]) -> Sequence[str]:
    """The 2 V index terms of a collection of several languages, given the V of the index's language."""
    if isinstance(terms, BucketTerms):
        return BucketTerms(2 * len(terms))
    additional = map(_bucket_term, range(len(terms), 2 * len(terms)))
    return [*terms, *additional]


def analyzer_of(settings: LexicalSettings, language: str = ENGLISH) -> Analyzer:
    """The analyzer of a model for a language."""
    return Analyzer(language, settings.analyzer == WITH_PARTS)


@lru_cache(1 << 18)
def bucket_of(stemmed: str, buckets: int) -> int:
    """The bucket of a stem: its BLAKE2b hash of 8 bytes as a little-endian number, modulo the number of buckets."""
    digest = hashlib.blake2b(stemmed.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") % buckets


def encode_frequencies(frequencies: np.ndarray) -> np.ndarray:
    """Document frequencies -> codes of one byte: round(12 log2(2 df)) for df above 0, at most 255; relative error
    below 3 %."""
    # 1.06 has code 1, the smallest of a frequency above 0; it also keeps 0 out of the logarithm.
    codes = np.round(_CODES_PER_DOUBLING * np.log2(np.maximum(2 * frequencies, 1.06)))
    return np.where(frequencies > 0, np.clip(codes, 1, 255), 0).astype(np.uint8)


def decode_frequencies(codes: np.ndarray) -> np.ndarray:
    """(n,) uint8 codes -> document frequencies, float64."""
    frequencies = 2.0 ** (codes.astype(np.float64) / _CODES_PER_DOUBLING) / 2
    return np.where(codes > 0, frequencies, 0.0)


def save_lexicon(path: Path, frequencies: np.ndarray, documents: int) -> None:
    """Write ``lexicon.safetensors`` of (buckets,) document frequencies in ``documents`` documents."""
    save_file({_TENSOR: encode_frequencies(frequencies)}, path, {"documents": str(documents)})
