"""The only nouns that cross a seam between sub-packages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    import scipy.sparse as sp


PASSAGE_DELIMITER = "#"
"""Between a document's id and its passage's number, as in Anserini and Pyserini: ``DOCUMENT#PASSAGE``."""


class Document(NamedTuple):
    """One unit of retrieval. ``text`` may be empty: the document keeps its id and its row."""

    docid: str
    text: str
    title: str = ""

    def joined(self, separator: str = " ") -> str:
        """Title and text as one string; the separator is ``" "`` for BEIR, ``" [SEP] "`` for MS MARCO."""
        return f"{self.title}{separator}{self.text}" if self.title and self.text else self.title or self.text


class Query(NamedTuple):
    """One topic. ``qid`` is always a string, also when it looks like a number."""

    qid: str
    text: str


class Hit(NamedTuple):
    """One retrieved document and its score in real units (scales undone)."""

    docid: str
    score: float


Run = Mapping[str, list[Hit]]
"""Query id -> hits, best first: score descending, equal scores by docid ascending."""

Qrels = Mapping[str, Mapping[str, int]]
"""Query id -> docid -> grade. Grade 0 means judged and not relevant."""


@dataclass(frozen=True)
class Representation:
    """What one forward pass says about ``n`` texts.

    ``cls``: (n, d') float32, the projected [CLS] vectors, or None when not asked for.
    ``ot``: (n, V) float32 CSR, sorted column indices, the strictly non-zero ordinary-token weights
    kept for each text, or None. An empty text has a zero-length row and a real [CLS] vector.
    """

    cls: np.ndarray | None
    ot: sp.csr_matrix | None

    def __len__(self) -> int:
        part = self.cls if self.cls is not None else self.ot
        return 0 if part is None else int(part.shape[0])


@dataclass(frozen=True)
class EncoderSettings:
    """What makes two encodings comparable. Stored with every index and compared before every search."""

    document_length: int = 256  #: word pieces kept per document, special tokens included
    query_length: int = 64  #: word pieces kept per query, special tokens included
    top_k: int = 384  #: strongest OT weights kept per document (DupMAE section 3.4)
    activation: str = "relu"  #: relu, log1p or none
    dtype: str = "float32"  #: arithmetic of the forward pass
    device: str = "cpu"  #: for the record; results on another device agree to rounding
    title_separator: str = " "  #: between title and text
    normalize: bool = False  #: dense vectors of unit length
    impact_scale: float | None = None  #: the model's own S; None = calibrated on the collection


class Encoder(Protocol):
    """Texts to :class:`Representation`, one forward pass for both parts."""

    name: str
    digest: str
    dim: int | None
    terms: list[str] | None
    settings: EncoderSettings

    def encode_documents(self, texts: Sequence[str]) -> Representation:
        """(n,) texts -> [CLS] (n, dim) and the ``top_k`` strongest positive OT weights of each."""

    def encode_queries(self, texts: Sequence[str], cap: int = 1024) -> Representation:
        """(n,) texts -> [CLS] (n, dim) and the ``cap`` strongest positive OT weights of each."""
