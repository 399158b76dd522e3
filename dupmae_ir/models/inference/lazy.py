"""A query encoder that answers single queries without torch, and loads the complete encoder for anything else.

A call with one text is computed by :mod:`dupmae_ir.models.inference.one_query`, whichever program makes it, so equal
calls return equal results. Several texts, and documents, are encoded by
:class:`~dupmae_ir.models.inference.encoder.TextEncoder`. The two agree to 4e-7 of a vector's length in each of its
numbers, as two batches of that encoder do; OT weights, which no product computes, are the same.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dupmae_ir.device import is_plain_cpu
from dupmae_ir.errors import DupmaeError
from dupmae_ir.models.checkpoints.model_config import ACTIVATIONS, ModelConfig, read_config
from dupmae_ir.models.checkpoints.plain_files import PlainFiles, read_plain_files, vocabulary_gap
from dupmae_ir.models.checkpoints.stored import read_stored
from dupmae_ir.models.heads.lexical import TermWeights
from dupmae_ir.models.inference.one_query import OneQuery
from dupmae_ir.models.inference.term_encoder import PARTS, TermEncoder, encoder_settings
from dupmae_ir.models.names import model_folder
from dupmae_ir.types import CollectionStatistics, Document, EncoderOptions, EncoderSettings, Representation

if TYPE_CHECKING:
    import numpy as np

    from dupmae_ir.models.inference.encoder import TextEncoder

LoadComplete = Callable[[], "TextEncoder"]
"""Loads the encoder with torch."""


class LazyTextEncoder(TermEncoder):
    """See the module. Use :func:`read_lazy`."""

    def __init__(
        self,
        name: str | Path | None,
        config: ModelConfig,
        settings: EncoderSettings,
        files: PlainFiles,
        parts: tuple[str, ...],
        model: OneQuery | None,
        complete: LoadComplete,
    ) -> None:
        super().__init__(name, config, settings, files.tokenizer, files.shape.vocab_size, parts)
        self.dim: int | None = None if model is None else model.dim
        self._model, self._complete = model, complete

    def is_quick(self, texts: Sequence[str]) -> bool:
        """Whether these texts are encoded without torch."""
        return len(texts) == 1

    def whole(self) -> TextEncoder:
        """The encoder with torch, loaded on the first call."""
        return self._complete()

    def encode_queries(self, texts: Sequence[str], cap: int = 1024) -> Representation:
        """As :meth:`TextEncoder.encode_queries`."""
        if not self.is_quick(texts):
            return self.whole().encode_queries(texts, cap)
        cls, row, keep = self._parts_of(texts[0], cap)
        return Representation(cls, None if self._lexicon is None else self._lexicon.matrix([row], keep))

    def encode_query(
        self, text: str, cap: int = 1024
    ) -> tuple[np.ndarray | None, tuple[np.ndarray, np.ndarray] | None]:
        """As :meth:`LazyEncoder.encode_query`."""
        cls, row, keep = self._parts_of(text, cap)
        return cls, None if self._lexicon is None else self._lexicon.arrays(row, keep)

    def _parts_of(self, text: str, cap: int) -> tuple[np.ndarray | None, TermWeights, int]:
        """[CLS] of a query, its lexical weights, and how many of them are kept."""
        keep, (pieces,) = self._query_terms(cap), self._query_pieces([text])
        cls = None if self._model is None else self._model.cls(pieces)
        return cls, {} if self._lexicon is None else self._lexicon.query(text, self._ordinary(pieces)), keep

    def encode_documents(self, texts: Sequence[str]) -> Representation:
        """As :meth:`TextEncoder.encode_documents`."""
        return self.whole().encode_documents(texts)

    def encode_collection(self, documents: Sequence[Document], separator: str | None = None) -> Representation:
        """As :meth:`TextEncoder.encode_collection`."""
        return self.whole().encode_collection(documents, separator)

    def for_collection(self, collection: CollectionStatistics) -> LazyTextEncoder:
        """As :meth:`TextEncoder.for_collection`; the model is shared."""
        if self._lexicon is None:
            return self
        other = copy.copy(self)
        other._lexicon = self._lexicon.for_collection(collection)
        other._complete = _once(lambda: self.whole().for_collection(collection))
        return other


def _once(load: LoadComplete) -> LoadComplete:
    """``load`` called once, by the first of several threads."""
    lock, loaded = threading.Lock(), list["TextEncoder"]()

    def load_once() -> TextEncoder:
        with lock:
            if not loaded:
                loaded.append(load())
            return loaded[0]

    return load_once


def read_lazy(model: str | Path | None, options: EncoderOptions, complete: LoadComplete) -> LazyTextEncoder | None:
    """The encoder of a model; None for one that numpy does not compute, and for any irregularity, which ``complete``
    reports.

    Computed are plain BERT folders with [CLS] pooling, in float32 on the CPU, whose OT part is lexical or not
    requested.
    """
    parts, activation, normalize = options.get("parts"), options.get("activation"), options.get("normalize")
    parts = PARTS if parts is None else parts
    if (options.get("dtype") or "float32") != "float32" or not is_plain_cpu(options.get("device") or "auto"):
        return None
    if not parts or not set(parts) <= set(PARTS) or activation not in (None, *ACTIVATIONS):
        return None
    try:
        folder = model_folder(model)
        config, files = read_config(folder), read_plain_files(folder)
        if files is None or config.pooling != "cls" or config.sparse_encoder or ("ot" in parts and config.has_head):
            return None
        size, pieces = files.shape.vocab_size, files.tokenizer.get_vocab().values()
        if len(files.tokenizer) > size or vocabulary_gap(pieces, size):
            return None
        config = replace(
            config,
            activation=activation or config.activation,
            normalize=config.normalize if normalize is None else normalize,
        )
        settings = encoder_settings(config, files.shape.max_position_embeddings, options, "float32", "cpu")
        dense = None
        if "cls" in parts:
            if (stored := read_stored(folder)) is None:
                return None
            dense = OneQuery(folder, files.shape, stored, config.normalize)
        return LazyTextEncoder(model, config, settings, files, parts, dense, _once(complete))
    except (DupmaeError, OSError, ValueError, TypeError, KeyError, IndexError, AttributeError):
        return None
