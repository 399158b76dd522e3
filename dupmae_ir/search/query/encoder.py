"""Query encoding: the encoder recorded in an index, the checks that it fits, and a cache of encoded texts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dupmae_ir.device import torch_threads
from dupmae_ir.errors import CheckpointError, DupmaeError, IndexMismatch
from dupmae_ir.index.format.manifest import recorded_options
from dupmae_ir.index.format.quantisation import HIGHEST_IMPACT, highest_query_impact, rounded
from dupmae_ir.index.index import Index
from dupmae_ir.models import load_lazy_encoder
from dupmae_ir.search.candidates.impact import ImpactQuery
from dupmae_ir.types import EncodedRows, Encoder, EncoderOptions, QuickEncoder

COMPARED = ("query_length", "activation", "dtype", "impact_scale", "normalize", "language")
"""Settings that queries share with the documents of an index."""
OVERRIDABLE = ("query_length", "dtype")


def load_query_encoder(
    index: Index, model: str | Path | None, device: str, dtype: str | None, query_length: int | None
) -> Encoder:
    """``model``, or the encoder recorded in the index, with the recorded settings where none are given."""
    recorded = index.meta.get("encoder")
    if recorded is None:
        if model is None:
            raise IndexMismatch(
                f"{index.path}/meta.json does not name the encoder of the index; name it as `model`"
            )
        recorded = {}
    name = recorded["name"] if model is None else model
    options: EncoderOptions = recorded_options(index.meta)
    options |= {"device": device, "dtype": dtype or recorded.get("dtype")}
    if query_length:
        options["query_length"] = query_length
    try:
        # An index of the embedded model records "default", which names no folder.
        return load_lazy_encoder(None if name == "default" else name, **options)
    except CheckpointError as e:
        if model is not None:
            raise
        raise CheckpointError(
            f"{e} (recorded in {index.path}/meta.json; if the model moved, name it as `model`)"
        ) from None


def check_encoder(index: Index, encoder: Encoder, overrides: frozenset[str] = frozenset()) -> None:
    """Raise :class:`IndexMismatch`, with both values, if ``encoder`` does not match the index's documents.

    ``overrides`` names settings that the user overrides. For an index without a recorded encoder only the widths are
    checked.
    """
    recorded = index.meta.get("encoder") or {}
    there = f"{index.path} was encoded"
    made_by = recorded.get("digest", encoder.digest)
    if made_by != encoder.digest:
        raise IndexMismatch(
            f"{there} by {recorded.get('name')} (digest {made_by[:12]}) but the query encoder is {encoder.name} "
            f"(digest {encoder.digest[:12]}); search with the former, or encode the collection with the latter"
        )
    for name in COMPARED:
        indexed = recorded.get(name)
        current = getattr(encoder.settings, name)
        if indexed is None or indexed == current or name in overrides:
            continue
        fix = "load the encoder with the index's value"
        if name in OVERRIDABLE:
            fix = f"give `{name}` {current} to override it"
        raise IndexMismatch(
            f"{there} with {name.replace('_', ' ')} {indexed} but the query encoder has {current}; {fix}"
        )
    computed_parts = {"cls": encoder.dim is not None, "ot": encoder.terms is not None}
    for part, is_computed in computed_parts.items():
        if part in index.meta["parts"] and not is_computed:
            raise IndexMismatch(
                f"{index.path} has the {part} part but {encoder.name} does not; load the encoder with all parts"
            )
    # The index has more terms if it has documents in additional languages.
    vocabulary = recorded.get("vocabulary") or {"size": len(index.terms)}
    for what, actual, expected in (
        ("dimensions of [CLS]", encoder.dim, index.dim),
        ("terms", len(encoder.terms or []), vocabulary["size"]),
    ):
        if actual and expected and actual != expected:
            raise IndexMismatch(
                f"{index.path} has {expected} {what} but {encoder.name} has {actual}; use its own encoder"
            )


@dataclass(frozen=True)
class EncodedQuery:
    """``cls``: (d',) float32, of width 0 if the encoder has no dense part; ``ot``: empty if it has no OT part."""

    cls: np.ndarray
    ot: ImpactQuery


GROUP = 256
"""Texts encoded in one call. The same for every batch size of the search: the rounding of a batched product depends on
the rows of the batch, by up to about 2e-6 of a score, and a score must not depend on how the search is divided."""


class LastQuery:
    """The query that was encoded alone last. Whoever searches for it describes the hits next, or asks for more."""

    def __init__(self) -> None:
        self._last: tuple[str, int, EncodedQuery] | None = None

    def get(self, text: str, cap: int) -> EncodedQuery | None:
        """The encoding of a text with ``cap`` OT weights; None unless it is the last."""
        # Read once: another thread may replace it.
        last = self._last
        return last[2] if last is not None and last[:2] == (text, cap) else None

    def set(self, text: str, cap: int, encoded: EncodedQuery) -> None:
        """Remember an encoding instead of the one before."""
        self._last = (text, cap, encoded)


class QueryEncodings:
    """Encodes each distinct text of ``texts`` once and drops the encoding after its last use.

    Texts are encoded in groups of ``group``, in the order of their first use.

    ``scale`` is the index's impact scale S; ``cap`` the number of OT weights kept; ``threads`` limits those of torch;
    ``last_query`` has the query that the same encoder encoded alone before.
    """

    def __init__(
        self,
        encoder: Encoder,
        scale: float | None,
        cap: int,
        texts: list[str],
        threads: int | None = None,
        group: int = GROUP,
        last_query: LastQuery | None = None,
    ) -> None:
        self.encoder = encoder
        self.scale = scale
        self.cap = cap
        self.threads = threads
        self.last_query = last_query or LastQuery()
        self.highest = highest_query_impact(encoder.settings.ot)
        #: how often each text is still to be taken
        self._uses = Counter(texts)
        self._group_of: dict[str, list[str]] = {}
        distinct = list(self._uses)
        if isinstance(encoder, QuickEncoder) and encoder.is_quick(len(distinct)):
            group = GROUP  # such an encoder gives a text the same bits alone and with others
        for start in range(0, len(distinct), group):
            texts_of_group = distinct[start : start + group]
            self._group_of.update(dict.fromkeys(texts_of_group, texts_of_group))
        self._encoded: dict[str, EncodedQuery] = {}

    def take(self, texts: list[str]) -> list[EncodedQuery]:
        """The encodings of some of the texts, in order; a new text is encoded with its group."""
        for text in texts:
            if text not in self._encoded:
                group = self._group_of[text]
                encoded = self._encode_alone(text) if len(group) == 1 else self._encode(group)
                self._encoded.update(zip(group, encoded, strict=True))
        taken = [self._encoded[text] for text in texts]
        # A run has many topics, whose encodings need not all be kept until its end.
        self._uses.subtract(texts)
        for text in set(texts):
            if self._uses[text] <= 0:
                del self._encoded[text]
        return taken

    def _encode_alone(self, text: str) -> list[EncodedQuery]:
        encoded = self.last_query.get(text, self.cap)
        if encoded is None:
            (encoded,) = self._encode([text])
            self.last_query.set(text, self.cap, encoded)
        return [encoded]

    def _encode(self, texts: list[str]) -> list[EncodedQuery]:
        if isinstance(self.encoder, QuickEncoder) and self.encoder.is_quick(len(texts)):
            vectors, rows = self.encoder.encode_rows(texts, self.cap, self.threads)
        else:
            with torch_threads(self.threads):
                vectors, rows = EncodedRows.of(self.encoder.encode_queries(texts, self.cap))

        cls = np.zeros((len(texts), 0), np.float32) if vectors is None else vectors
        not_finite = np.flatnonzero(~np.isfinite(cls).all(axis=1))
        if len(not_finite):
            text = texts[not_finite[0]]
            raise DupmaeError(
                f"{self.encoder.name} returns values that are not finite for {text!r}; try `dtype` float32"
            )

        if rows is None or self.scale is None:
            no_terms = ImpactQuery(np.zeros(0, np.int64), np.zeros(0, np.int64))
            return [EncodedQuery(vector, no_terms) for vector in cls]
        queries = []
        for vector, (ids, weights) in zip(cls, rows, strict=True):
            queries.append(EncodedQuery(vector, quantise(ids, weights, self.scale, self.highest)))
        return queries


def quantise(
    ids: np.ndarray, weights: np.ndarray, scale: float, highest: int = HIGHEST_IMPACT
) -> ImpactQuery:
    """OT weights of a query -> impacts, as for documents: ``rint(w * scale)``, at most ``highest``, zeros dropped."""
    impacts, _ = rounded(weights, scale, highest)
    nonzero = impacts > 0
    return ImpactQuery(ids[nonzero].astype(np.int64), impacts[nonzero].astype(np.int64))
