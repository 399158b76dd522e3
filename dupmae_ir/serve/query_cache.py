"""Encodings of recent queries, so that one text in several modes, requests or explanations is encoded once.

New texts are divided among threads that compute alone. One computation on several threads joins them after every
product, a hundred times for a query: where a core is busy with other work, all wait for it each time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from dupmae_ir.device import torch_threads
from dupmae_ir.search.query.words import SpanEncoder
from dupmae_ir.types import CollectionStatistics, Document, Encoder, LexicalEncoder, Representation


class _Row(NamedTuple):
    """One text: its [CLS] vector and its OT weights, None for a part that the encoder lacks."""

    cls: np.ndarray | None
    terms: np.ndarray | None
    weights: np.ndarray | None


class CachingEncoder:
    """``encoder`` with a cache of its query encodings. For one thread at a time.

    Args:
        encoder: the encoder.
        most: encodings kept after :meth:`trim`, the least recently used dropped first.
        threads: number of threads that encode the texts of a call.
    """

    def __init__(self, encoder: Encoder, most: int, threads: int = 1) -> None:
        self.encoder = encoder
        self.most = most
        self.threads = threads
        self.name, self.digest, self.dim = encoder.name, encoder.digest, encoder.dim
        self.settings = encoder.settings
        self.encoded = 0  #: texts encoded so far
        self._rows: OrderedDict[tuple[int, str], _Row] = OrderedDict()
        self._width = 0

    @property
    def terms(self) -> list[str] | None:
        """The index terms of the encoder."""
        return self.encoder.terms

    def encode_documents(self, texts: Sequence[str]) -> Representation:
        """The encoder's, not cached."""
        return self.encoder.encode_documents(texts)

    def encode_queries(self, texts: Sequence[str], cap: int = 1024) -> Representation:
        """As the encoder's; only texts that are not cached are encoded, in one call."""
        new = [text for text in dict.fromkeys(texts) if (cap, text) not in self._rows]
        if new:
            self.encoded += len(new)
            for part, found in self._encoded(new, cap):
                self._keep(part, cap, found)
        for text in texts:
            self._rows.move_to_end((cap, text))
        return self._stacked([self._rows[cap, text] for text in texts])

    def _encoded(self, texts: list[str], cap: int) -> list[tuple[list[str], Representation]]:
        """The texts in parts, with their encodings."""
        shares = min(self.threads, len(texts))
        if shares == 1:
            return [(texts, self.encoder.encode_queries(texts, cap))]

        def encode(part: list[str]) -> Representation:
            with torch_threads(1):
                return self.encoder.encode_queries(part, cap)

        by_length = sorted(texts, key=len)  # dealt out in turn: every thread gets about as much to do
        parts = [by_length[share::shares] for share in range(shares)]
        with ThreadPoolExecutor(shares, "encode") as pool:
            return list(zip(parts, pool.map(encode, parts), strict=True))

    def trim(self) -> None:
        """Drop the least recently used encodings beyond ``most``."""
        while len(self._rows) > self.most:
            self._rows.popitem(last=False)

    def forget(self) -> None:
        """Drop all encodings and the count."""
        self._rows.clear()
        self.encoded = 0

    def _keep(self, texts: list[str], cap: int, found: Representation) -> None:
        for i, text in enumerate(texts):
            # Copies: a view would keep the whole batch in memory.
            cls = None if found.cls is None else found.cls[i].copy()
            terms = weights = None
            if found.ot is not None:
                self._width = int(found.ot.shape[1])
                part = slice(found.ot.indptr[i], found.ot.indptr[i + 1])
                terms, weights = found.ot.indices[part].copy(), found.ot.data[part].copy()
            self._rows[cap, text] = _Row(cls, terms, weights)

    def _stacked(self, rows: list[_Row]) -> Representation:
        if not rows:
            return self.encoder.encode_queries([])
        cls = None if rows[0].cls is None else np.stack([row.cls for row in rows if row.cls is not None])
        if rows[0].terms is None:
            return Representation(cls, None)
        terms = [row.terms for row in rows if row.terms is not None]
        weights = [row.weights for row in rows if row.weights is not None]
        starts = np.concatenate(([0], np.cumsum([len(part) for part in terms])))
        shape = (len(rows), self._width)
        return Representation(cls, sp.csr_matrix((np.concatenate(weights), np.concatenate(terms), starts), shape=shape))


class CachingLexicalEncoder(CachingEncoder):
    """:class:`CachingEncoder` for an encoder whose weights depend on the collection."""

    def __init__(self, encoder: Encoder, most: int, threads: int = 1) -> None:
        super().__init__(encoder, most, threads)
        assert isinstance(encoder, LexicalEncoder)
        self.lexical = encoder

    def encode_collection(self, documents: Sequence[Document], separator: str | None = None) -> Representation:
        """The encoder's, not cached."""
        return self.lexical.encode_collection(documents, separator)

    def for_collection(self, collection: CollectionStatistics) -> Encoder:
        """The encoder for a collection, with a cache of its own."""
        return cached(self.lexical.for_collection(collection), self.most, self.threads)

    def term_names(self, text: str) -> dict[str, str]:
        """The encoder's."""
        return self.lexical.term_names(text)


class CachingSpanEncoder(CachingLexicalEncoder):
    """:class:`CachingLexicalEncoder` for an encoder that knows where in a text each index term is from."""

    def term_spans(self, text: str) -> list[tuple[str, int, int]]:
        """The encoder's."""
        assert isinstance(self.encoder, SpanEncoder)
        return self.encoder.term_spans(text)


def cached(encoder: Encoder, most: int, threads: int = 1) -> CachingEncoder:
    """``encoder`` with a cache of ``most`` query encodings, on ``threads`` threads."""
    if not isinstance(encoder, LexicalEncoder):
        return CachingEncoder(encoder, most, threads)
    kind = CachingSpanEncoder if isinstance(encoder, SpanEncoder) else CachingLexicalEncoder
    return kind(encoder, most, threads)
