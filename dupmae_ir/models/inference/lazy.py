"""A query encoder that answers single queries without torch, and loads the whole encoder for anything else.

A call with one text is computed by :mod:`dupmae_ir.models.inference.one_query`, whichever program makes it, so equal
calls return equal results. Several texts, and documents, are encoded by
:class:`~dupmae_ir.models.inference.encoder.TextEncoder`. The two agree to 4e-7 of a vector's length in each of its
numbers, as two batches of that encoder do; OT weights, which no product computes, are the same.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dupmae_ir.device import is_plain_cpu
from dupmae_ir.errors import DupmaeError
from dupmae_ir.models.checkpoints.digest import folder_digest
from dupmae_ir.models.checkpoints.layout import LEXICON
from dupmae_ir.models.checkpoints.model_config import ModelConfig, read_config
from dupmae_ir.models.checkpoints.names import model_folder, model_name
from dupmae_ir.models.checkpoints.plain_files import PlainTokenizer, is_plain, read_shape, vocabulary_gap
from dupmae_ir.models.checkpoints.stored import read_stored
from dupmae_ir.models.inference.one_query import OneQuery
from dupmae_ir.models.inference.settings import after, encoder_settings, positive
from dupmae_ir.models.inference.texts import TermEncoder
from dupmae_ir.models.lexical.lexicon import Lexicon, Weights
from dupmae_ir.types import CollectionStatistics, Document, EncoderSettings, Representation

if TYPE_CHECKING:
    import numpy as np

    from dupmae_ir.models.inference.encoder import TextEncoder

Whole = Callable[[], "TextEncoder"]
"""Loads the encoder with torch."""


class LazyTextEncoder(TermEncoder):
    """See the module. Use :func:`read_lazy`."""

    def __init__(
        self,
        names: tuple[str, str],
        settings: EncoderSettings,
        config: ModelConfig,
        tokenizer: PlainTokenizer,
        width: int,
        parts: tuple[str, ...],
        lexicon: Lexicon | None,
        model: OneQuery | None,
        whole: Whole,
    ) -> None:
        super().__init__(tokenizer, width, parts, lexicon)
        self.name, self.digest = names
        self.settings = settings
        self.dim: int | None = None if model is None else model.dim
        self._config = config
        self._model = model
        self._whole = whole

    def is_quick(self, texts: Sequence[str]) -> bool:
        """Whether these texts are encoded without torch."""
        return len(texts) == 1

    def whole(self) -> TextEncoder:
        """The encoder with torch, loaded on the first call."""
        return self._whole()

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

    def _parts_of(self, text: str, cap: int) -> tuple[np.ndarray | None, Weights, int]:
        """[CLS] of a query, its lexical weights, and how many of them are kept."""
        keep = min(positive("cap", cap), self._config.query_top_k or cap)
        (pieces,) = self._tokenise(after(self._config.query_prompt, [text]), self.settings.query_length)
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
        other._whole = _once(lambda: self.whole().for_collection(collection))
        return other


def _once(load: Whole) -> Whole:
    """``load`` called once, by the first of several threads."""
    lock, found = threading.Lock(), list["TextEncoder"]()

    def loaded() -> TextEncoder:
        with lock:
            if not found:
                found.append(load())
            return found[0]

    return loaded


@dataclass(frozen=True)
class Choices:
    """The arguments of :meth:`TextEncoder.load`."""

    device: str = "auto"
    dtype: str = "float32"
    document_length: int | None = None
    query_length: int | None = None
    top_k: int | None = None
    activation: str | None = None
    title_separator: str | None = None
    normalize: bool | None = None
    parts: tuple[str, ...] = ("cls", "ot")


def read_lazy(model: str | Path | None, choices: Choices, whole: Whole) -> LazyTextEncoder | None:
    """The encoder of a model; None for one that numpy does not compute, and for any irregularity, which ``whole``
    reports.

    Computed are plain BERT folders with [CLS] pooling, in float32 on the CPU, whose OT part is lexical or not asked
    for.
    """
    if choices.dtype != "float32" or not is_plain_cpu(choices.device) or set(choices.parts) not in _PARTS:
        return None
    try:
        folder = model_folder(model)
        return _read(folder, (model_name(model), folder_digest(folder)), choices, whole) if is_plain(folder) else None
    except (DupmaeError, OSError, ValueError, TypeError, KeyError, IndexError, AttributeError):
        return None


_PARTS = ({"cls"}, {"ot"}, {"cls", "ot"})
_ACTIVATIONS = (None, "relu", "log1p", "log1p-log1p", "none")


def _read(folder: Path, names: tuple[str, str], choices: Choices, whole: Whole) -> LazyTextEncoder | None:
    config, shape, tokenizer = read_config(folder), read_shape(folder), PlainTokenizer.read(folder)
    if shape is None or tokenizer is None or not _is_computed(config, choices):
        return None
    if len(tokenizer) > shape.vocab_size or vocabulary_gap(tokenizer.get_vocab().values(), shape.vocab_size):
        return None
    config = replace(config, activation=choices.activation or config.activation)
    config = config if choices.normalize is None else replace(config, normalize=choices.normalize)
    parts, lexicon, model = choices.parts, None, None
    settings = encoder_settings(
        config,
        shape.max_position_embeddings,
        "ot" in parts,
        dtype="float32",
        device="cpu",
        document_length=choices.document_length,
        query_length=choices.query_length,
        top_k=choices.top_k,
        title_separator=choices.title_separator,
    )
    if config.lexical is not None and "ot" in parts:
        lexicon = Lexicon.load(folder / LEXICON, config.lexical, shape.vocab_size)
    if "cls" in parts:
        if (stored := read_stored(folder)) is None:
            return None
        model = OneQuery(folder, shape, stored, config.normalize)
    return LazyTextEncoder(names, settings, config, tokenizer, shape.vocab_size, parts, lexicon, model, _once(whole))


def _is_computed(config: ModelConfig, choices: Choices) -> bool:
    """Whether [CLS] is the dense part, and the OT part needs no model."""
    dense = config.pooling == "cls" and not config.sparse_encoder
    return dense and not ("ot" in choices.parts and config.has_head) and choices.activation in _ACTIVATIONS
