"""The value types exchanged between sub-packages."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self, TypedDict, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import scipy.sparse as sp


PASSAGE_DELIMITER = "#"
"""Separates a document id from a passage number, as in Anserini and Pyserini: ``DOCUMENT#PASSAGE``."""


SEPARATORS = {"space": " ", "sep": " [SEP] "}
"""Names of ``--title-separator`` -> what is put between title and text."""


MetadataScalar = str | int | float | bool
MetadataValue = MetadataScalar | list[MetadataScalar]
Metadata = Mapping[str, MetadataValue]
"""What is known of a document besides its text, by name; for filters and for display."""
LONGEST_METADATA = 1000
"""Characters of a value, as JSON."""


class Document(NamedTuple):
    """One unit of retrieval. A document with an empty ``text`` is kept, with its id and row. ``metadata`` is stored
    with the text and never encoded.

    Nothing is checked when a document is made. Functions that take documents check them: the id must be a string
    without white space or an integer, which becomes a string; text and title must be strings.
    """

    docid: str
    text: str
    title: str = ""
    metadata: Metadata | None = None

    def joined(self, separator: str = " ") -> str:
        """Title and text as one string; the separator is ``" "`` for BEIR, ``" [SEP] "`` for MS MARCO."""
        if self.title and self.text:
            return f"{self.title}{separator}{self.text}"
        return self.title or self.text


class Query(NamedTuple):
    """One topic. ``qid`` is always a string, even if it looks like a number."""

    qid: str
    text: str


class Hit(NamedTuple):
    """One retrieved document and its score, without the impact scale."""

    docid: str
    score: float


class Progress(NamedTuple):
    """How far a step of a job is, for programs that show it themselves."""

    step: str  #: what is being done, for example ``encode``
    done: int
    total: int | None  #: None if it is not known
    unit: str  #: what is counted, for example ``documents``


def best_first(hits: Iterable[Hit]) -> list[Hit]:
    """Hits by descending score, equal scores by ascending docid."""
    return sorted(hits, key=lambda h: (-h.score, h.docid))


Run = Mapping[str, list[Hit]]
"""Query id -> hits, best first: score descending, equal scores by docid ascending."""

AnyRun = Mapping[str, Iterable[Hit]] | Mapping[str, Mapping[str, float]]
"""Query id -> hits in any order, or docid -> score, as in other libraries."""

Qrels = Mapping[str, Mapping[str, int]]
"""Query id -> docid -> grade. Grade 0 means judged and not relevant."""


@dataclass(frozen=True)
class Representation:
    """The representation of ``n`` texts from one forward pass.

    ``cls``: (n, d') float32, the projected [CLS] vectors, or None if not requested.
    ``ot``: (n, V) float32 CSR, sorted column indices, the strictly non-zero ordinary-token weights
    kept for each text, or None. An empty text has a zero-length row and a real [CLS] vector.
    ``truncated``: number of documents that are longer than the model reads.
    """

    cls: np.ndarray | None
    ot: sp.csr_matrix | None
    truncated: int = 0

    def __len__(self) -> int:
        part = self.cls if self.cls is not None else self.ot
        if part is None:
            return 0
        return int(part.shape[0])


@dataclass(frozen=True)
class LanguageStatistics:
    """``documents``: the number of documents in a language; ``frequencies``: (V,) integers, the number of those with a
    non-zero impact of each term; ``factor``: of the vectors of documents and of queries in the language."""

    documents: int
    frequencies: np.ndarray
    factor: float = 1.0


@dataclass(frozen=True)
class CollectionStatistics:
    """What queries need of an index with word weights.

    ``documents``: their number. ``frequencies``: (V,) integers, the number of documents with a non-zero impact of each
    term. ``languages``: the same of the documents in each language but that of the index.
    """

    documents: int
    frequencies: np.ndarray
    languages: Mapping[str, LanguageStatistics] = field(default_factory=dict)

    @cached_property
    def usual(self) -> LanguageStatistics:
        """The statistics of the documents in the language of the index."""
        others = self.languages.values()
        return LanguageStatistics(
            self.documents - sum(other.documents for other in others),
            self.frequencies - sum(other.frequencies for other in others),
        )


@dataclass(frozen=True)
class EncoderSettings:
    """Settings that must agree for comparable encodings; stored with every index and compared before every search."""

    document_length: int = 256  #: word pieces kept per document, special tokens included
    query_length: int = 64  #: word pieces kept per query, special tokens included
    top_k: int = 384  #: largest OT weights kept per document (DupMAE section 3.4)
    activation: str = "relu"  #: relu, log1p, log1p-log1p or none
    dtype: str = "float32"  #: precision of the forward pass
    device: str = "cpu"  #: recorded only; results on different devices agree up to rounding
    title_separator: str = " "  #: between title and text
    normalize: float = False  #: length of the dense vectors; false = as they are
    dimensions: int | None = None  #: leading dimensions kept of a dense vector; None = all
    impact_scale: float | None = None  #: the model's own scale; None = calibrated on the collection
    ot: str = "mlm"  #: form of the OT part: ``mlm`` (the papers') or ``lexical``
    #: factor of the masked-LM head's weights that are added to lexical ones
    head_scale: float = 0.0
    #: of dense and impact score, unless a search differs
    part_weights: tuple[float, float] = (1.0, 1.0)
    fold_terms: str = ""  #: ``max`` or ``sum`` joins the weights of terms that differ by case or a leading space alone
    #: whose words and stems lexical weights have; a code of ``models.languages``
    language: str = "en"
    multilingual: bool = False  #: whether the dense part reads all languages


class EncoderOptions(TypedDict, total=False):
    """What a caller can choose of an encoder; a value that is missing or None is that of the model's folder."""

    device: str | None  #: cpu, cuda, mps or auto (default)
    dtype: str | None  #: float32 (default), bfloat16, mixed or auto
    document_length: int | None
    query_length: int | None
    top_k: int | None
    activation: str | None
    title_separator: str | None
    #: length of the dense vectors; True = 1
    normalize: bool | float | None
    #: leading dimensions kept of a dense vector (Matryoshka representations)
    dimensions: int | None
    #: ``max`` or ``sum``: one term for those that differ by case or a leading space alone
    fold_terms: str | None
    #: ``lexical``: word weights in closed form instead of the model's own OT part
    head: str | None
    parts: tuple[str, ...] | None  #: ``cls``, ``ot`` or both (default)
    language: str | None  #: of lexical weights; English by default


class Reranker(Protocol):
    """Scores documents for a query; larger is better. Can be called from several threads."""

    def scores(self, query: str, documents: Sequence[Document]) -> list[float]:
        """One score for each document."""


class Encoder(Protocol):
    """Encodes texts to :class:`Representation`, with one forward pass for both parts."""

    name: str
    digest: str
    dim: int | None
    settings: EncoderSettings

    @property
    def terms(self) -> Sequence[str] | None:
        """The index term of each dimension of the OT part; None without one."""

    def encode_documents(self, texts: Sequence[str]) -> Representation:
        """(n,) texts -> [CLS] (n, dim) and the ``top_k`` largest positive OT weights of each."""

    def encode_queries(self, texts: Sequence[str], cap: int = 1024) -> Representation:
        """(n,) texts -> [CLS] (n, dim) and the ``cap`` largest positive OT weights of each."""


def is_metadata_value(value: object) -> bool:
    """Whether a value can be metadata: a string, a finite number, a truth value, or a list of these."""
    if isinstance(value, list):
        return all(not isinstance(v, list) and is_metadata_value(v) for v in value)
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, str | int)


@runtime_checkable
class LexicalEncoder(Protocol):
    """What an encoder offers beyond :class:`Encoder` if its OT weights depend on titles and on the collection."""

    def encode_collection(
        self,
        documents: Sequence[Document],
        separator: str | None = None,
        languages: Sequence[str] | None = None,
    ) -> Representation:
        """As ``encode_documents``, with title and text apart; ``separator`` replaces the encoder's own, and
        ``languages``, one for each document, that of its settings."""

    def for_collection(self, collection: CollectionStatistics) -> Encoder:
        """The same encoder with query weights for a collection."""

    def term_names(self, text: str) -> dict[str, str]:
        """Index term -> words of ``text``, for the terms whose own name is not readable."""


@runtime_checkable
class ReportingEncoder(Protocol):
    """An encoder that calls ``on_share`` with the share of its texts that are encoded, 0 to 1, after each batch."""

    on_share: Callable[[float], object]


@runtime_checkable
class WordEncoder(Protocol):
    """An encoder whose OT part may need no layer of its model. Words alone are then encoded in a tenth of the time."""

    def without_vectors(self) -> Encoder | None:
        """The encoder of the same OT part alone; None if the model computes it, or there is none."""


class EncodedRows(NamedTuple):
    """Encoded queries. ``cls``: (n, d') float32; ``ot``: for each, the ids (m,), ascending, and weights (m,) of its OT
    part. None for a part that is not computed."""

    cls: np.ndarray | None
    ot: list[tuple[np.ndarray, np.ndarray]] | None

    @classmethod
    def of(cls, encoded: Representation) -> Self:
        """The rows of a representation; its arrays are shared if they are sorted and have no duplicates."""
        ot = encoded.ot
        if ot is None:
            return cls(encoded.cls, None)
        if not ot.has_canonical_format:
            # Summed in float64, so that the order does not matter.
            ot = ot.astype("float64")
            ot.sum_duplicates()
        rows = []
        for start, end in itertools.pairwise(ot.indptr.tolist()):
            rows.append((ot.indices[start:end], ot.data[start:end]))
        return cls(encoded.cls, rows)


@runtime_checkable
class QuickEncoder(Protocol):
    """An encoder that encodes some queries with less work than a call of ``encode_queries``."""

    def is_quick(self, queries: int) -> bool:
        """Whether a call with this many queries is quick. If so, each query has the bits that it has alone."""

    def encode_rows(
        self, texts: Sequence[str], cap: int = 1024, threads: int | None = None
    ) -> EncodedRows:
        """Queries for which :meth:`is_quick` is true, as by ``encode_queries``, on ``threads`` threads (None: one for
        each processor)."""


@runtime_checkable
class LazyEncoder(QuickEncoder, Protocol):
    """An encoder that loads its complete model only for queries that are not quick."""

    def whole(self) -> Encoder:
        """The encoder that computes everything, for programs that start once and answer often."""
