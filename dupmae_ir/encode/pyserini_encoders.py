"""Encoders with Pyserini's interface, for stock searchers and writers.

One object has one model and two views, ``.dense`` (numpy vectors, for Pyserini's faiss searchers and writers) and
``.impact`` (dicts of term to integer, for its Lucene ones). Both views of a text come from the same forward pass: the
representations of recent texts are cached.

    queries = DupmaeQueryEncoder.for_index("indexes/mine")
    FaissSearcher("indexes/mine/cls", queries.dense).batch_search(texts, ids, k=100)
    LuceneImpactSearcher("indexes/mine/ot", queries.impact, min_idf=-1).batch_search(texts, ids, k=100)

Give the impact searcher ``min_idf=-1``: its default drops every term that occurs in all documents. Its scores are
integers; divide them by the square of the index's scale to add them to dense scores.
"""

from __future__ import annotations

import copy
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import scipy.sparse as sp

from dupmae_ir.errors import IndexMismatch, UsageError
from dupmae_ir.index.format.manifest import read_meta, recorded_options
from dupmae_ir.index.format.quantisation import HIGHEST_IMPACT, highest_query_impact, quantise
from dupmae_ir.index.index import Index, for_index
from dupmae_ir.models import load_encoder
from dupmae_ir.types import Document, Encoder, LexicalEncoder, Representation

MAX_CACHED = 4096  #: texts whose representation is cached for the other view

Text = str | Document
"""A query, a document's joined text, or a document whose title and text are weighted apart."""
Vectors = np.ndarray | list[dict[str, int]]
"""(n, dim) float32, or n dicts ``{term: impact}`` of Python integers from 1 to 255."""
Vector = np.ndarray | dict[str, int]
"""One item of :data:`Vectors`."""


class _Vectors:
    """A model, its impact scale, the kind of vectors to return, and the cached representations of recent texts."""

    def __init__(
        self,
        encoder: Encoder,
        scale: float | None,
        represent: Callable[[list[Any]], Representation],
        view: str,
        highest: int = HIGHEST_IMPACT,
    ) -> None:
        if view not in ("dense", "impact"):
            raise UsageError(f"no view named {view!r}; use dense or impact")
        self.encoder = encoder
        self.view = view
        self._highest = highest
        self.scale = scale or encoder.settings.impact_scale
        self._represent = represent
        self._memo: OrderedDict[Text, Representation] = OrderedDict()

    @cached_property
    def dense(self) -> Self:
        """The view of dense vectors; it shares the cache."""
        return self._with("dense")

    @cached_property
    def impact(self) -> Self:
        """The view of impacts; it shares the cache."""
        return self._with("impact")

    def _with(self, view: str) -> Self:
        # A shallow copy, so that both views have the same cache.
        encoder = copy.copy(self)
        encoder.view = view
        return encoder

    def vectors(self, texts: Sequence[Text]) -> Vectors:
        """``dense``: (n, dim) float32; ``impact``: n dicts of term to integer."""
        available = self.encoder.dim if self.view == "dense" else self.encoder.terms
        if available is None:
            raise UsageError(
                f"{self.encoder.name} was loaded without {self.view} vectors; load both parts"
            )
        if self.view == "impact" and not self.scale:
            raise UsageError("impacts need a scale: give scale=, the one in the index's meta.json")
        representation = self.represent(texts)
        if self.view == "dense" and representation.cls is not None:
            return representation.cls
        assert representation.ot is not None
        assert self.scale
        impacts, _ = quantise(representation.ot, self.scale, self._highest)
        return list(impact_dicts(impacts, self.encoder.terms or []))

    def represent(self, texts: Sequence[Text]) -> Representation:
        """Both parts of n texts; only texts that are not cached go through the model."""
        if not len(texts):
            return self._represent([])
        # Each text once, in the order of the call.
        new = list(dict.fromkeys(text for text in texts if text not in self._memo))
        if new:
            self._memo.update(zip(new, _rows(self._represent(new)), strict=True))
        rows = [self._memo[text] for text in texts]
        # The least recently used are dropped, after the rows of this call are taken.
        for text in dict.fromkeys(texts):
            self._memo.move_to_end(text)
        while len(self._memo) > MAX_CACHED:
            self._memo.popitem(last=False)
        return _stack(rows)


class DupmaeDocumentEncoder(_Vectors):
    """Encodes documents. ``view`` is what :meth:`encode` returns: ``dense`` or ``impact``.

    ``model_name`` is a model folder, or None for the embedded default; ``settings`` are those of ``load_encoder``.
    """

    def __init__(
        self,
        model_name: str | Path | None = None,
        device: str = "auto",
        *,
        view: str = "dense",
        scale: float | None = None,
        encoder: Encoder | None = None,
        **settings: Any,
    ) -> None:
        encoder = encoder or _load(model_name, device, settings)
        represent: Callable[[list[Any]], Representation] = encoder.encode_documents
        if isinstance(encoder, LexicalEncoder):
            represent = encoder.encode_collection
        super().__init__(encoder, scale, represent, view)

    def encode(
        self, texts: Sequence[str], titles: Sequence[str] | None = None, **_: object
    ) -> Vectors:
        """n texts -> (n, dim) float32, or n dicts ``{term: impact}`` of Python integers from 1 to 255.

        Other keywords of Pyserini's command line (``fp16``, ``max_length``, ...) are ignored: lengths and dtype
        were chosen with the model, so that queries and documents agree.
        """
        return self.vectors(self.documents(texts, titles))

    encode_batch = encode

    def documents(self, texts: Sequence[str], titles: Sequence[str] | None) -> Sequence[Text]:
        """Titles and texts as the model reads them."""
        if titles is None:
            titles = [""] * len(texts)
        documents = []
        for text, title in zip(texts, titles, strict=True):
            documents.append(Document("", text, title or ""))
        if isinstance(self.encoder, LexicalEncoder):
            return documents
        separator = self.encoder.settings.title_separator
        return [document.joined(separator) for document in documents]


class DupmaeQueryEncoder(_Vectors):
    """Encodes queries. ``view`` is what :meth:`encode` returns: ``dense`` or ``impact``.

    ``cap`` is the number of impacts kept of a query; Lucene takes at most 1,024.
    """

    def __init__(
        self,
        encoder_dir: str | Path | None = None,
        device: str = "auto",
        *,
        view: str = "dense",
        scale: float | None = None,
        cap: int = 1024,
        encoder: Encoder | None = None,
        **settings: Any,
    ) -> None:
        loaded = encoder or _load(encoder_dir, device, settings)
        highest = highest_query_impact(loaded.settings.ot)
        super().__init__(
            loaded, scale, lambda texts: loaded.encode_queries(texts, cap), view, highest
        )

    @classmethod
    def for_index(
        cls, index: str | Path, model: str | Path | None = None, **options: Any
    ) -> DupmaeQueryEncoder:
        """The encoder that made ``index``, with the index's lengths and scale.

        ``model`` is the model's folder if it has moved. Another model is refused.
        """
        meta = read_meta(index)
        made_by = meta["encoder"]
        cap = options.pop("cap", 1024)
        view = options.pop("view", "dense")
        device = options.pop("device", "auto")
        if not model and made_by["name"] != "default":
            model = made_by["name"]
        loaded = _load(model or None, device, {**recorded_options(meta), **options})
        if loaded.digest != made_by["digest"]:
            raise IndexMismatch(
                f"{index} was not made by the model {loaded.name} (digests {made_by['digest'][:12]} and "
                f"{loaded.digest[:12]}); name the model that made it"
            )
        # Word weights of queries need the document frequencies of the index.
        if loaded.settings.ot == "lexical":
            loaded = for_index(loaded, Index.open(index))
        return cls(view=view, scale=meta["scale"], cap=cap, encoder=loaded)

    def encode(self, query: str, **_: object) -> Vector:
        """One query -> (dim,) float32, or one dict ``{term: impact}`` of Python integers from 1 to 255."""
        return self.vectors([query])[0]

    def encode_batch(self, queries: Sequence[str], **_: object) -> Vectors:
        """n queries in one forward pass -> (n, dim) float32, or n dicts."""
        return self.vectors(list(queries))


def impact_dicts(impacts: sp.csr_matrix, terms: Sequence[str]) -> Iterator[dict[str, int]]:
    """Rows of an integer CSR as ``{term: impact}`` of Python integers, which the Java bridge requires."""
    for start, end in itertools.pairwise(impacts.indptr):
        row_terms = [terms[term] for term in impacts.indices[start:end]]
        row_impacts = map(int, impacts.data[start:end])
        yield dict(zip(row_terms, row_impacts, strict=True))


def _load(model: str | Path | None, device: str, settings: Mapping[str, Any]) -> Encoder:
    if model is not None:
        model = str(model)
    return load_encoder(model, device=device, **settings)


def _rows(representation: Representation) -> list[Representation]:
    rows = []
    for i in range(len(representation)):
        cls = None if representation.cls is None else representation.cls[i : i + 1]
        ot = None if representation.ot is None else representation.ot[i : i + 1]
        rows.append(Representation(cls, ot))
    return rows


def _stack(rows: list[Representation]) -> Representation:
    """One representation of all rows; every row has the same parts."""
    cls = None
    if rows[0].cls is not None:
        cls = np.concatenate([row.cls for row in rows if row.cls is not None])
    ot = None
    if rows[0].ot is not None:
        ot = sp.vstack([row.ot for row in rows], format="csr")
    return Representation(cls, ot)
