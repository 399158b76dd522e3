"""A query encoder that needs no torch, and loads the complete encoder for what it does not compute.

Importing torch takes longer than reading the model and encoding a query, so the first answer of a search does not wait
for it. Queries are computed in numpy (:class:`QueryModel`), whichever program asks for them. For a model of 8-bit
weights, whose products round their inputs to 16 bits (:mod:`~dupmae_ir.models.inference.quantised_linear`), a query has
the same vector to the last bit alone and with any others, on any number of threads. The products of float32 weights
depend on the number of rows, so there only single queries are computed here.

Documents, and several queries of a model of float32 weights, are encoded by
:class:`~dupmae_ir.models.inference.encoder.TextEncoder`. The two agree to 1e-6 of a vector's length in each of its
numbers, as two batches of that encoder do, for a model of float32 weights, and to 1e-4 for one of 8-bit weights (4e-5
was seen). OT weights, which no product computes, are the same.

Each thread computes other queries. The products of one are small, and threads that wait for one another between them
take many times as long where another process uses a core.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from dupmae_ir.device import MIXED, blas_threads, is_plain_cpu, pays, processors
from dupmae_ir.errors import CheckpointError, DupmaeError
from dupmae_ir.models.checkpoints.layout import PROJECTION, folder_digest
from dupmae_ir.models.checkpoints.model_config import ACTIVATIONS, ModelConfig, read_config
from dupmae_ir.models.checkpoints.modules import Modules, read_json, read_modules
from dupmae_ir.models.checkpoints.plain_files import (
    BertShape,
    PlainTokenizer,
    read_plain_files,
    read_shape,
    vocabulary_gap,
    weight_shapes,
)
from dupmae_ir.models.checkpoints.stored import GROUP, StoredWeights, read_stored
from dupmae_ir.models.inference.quantised_linear import QuantisedLinear
from dupmae_ir.models.inference.term_encoder import PARTS, TermEncoder, encoder_settings, with_head
from dupmae_ir.models.names import embedded_folder, model_folder
from dupmae_ir.types import (
    CollectionStatistics,
    Document,
    EncodedRows,
    EncoderOptions,
    EncoderSettings,
    Representation,
)

if TYPE_CHECKING:
    from dupmae_ir.models.inference.encoder import TextEncoder


_WORDS = "embeddings.word_embeddings.weight"
JOINED = 16
"""Texts computed together. Each of 4 to 64 texts of 23 word pieces takes four fifths of the time of one alone."""


class QueryModel:
    """A plain BERT model and its W_cls.

    Args:
        folder: the model folder, for W_cls.
        bert: the sizes of the model.
        stored: its weights.
        normalize: length of the vectors; 0 leaves them as they are.
        pooling: ``cls`` or ``mean``, as for :class:`~dupmae_ir.models.retriever.Retriever`.
        dimensions: leading dimensions kept of a vector; None = all.

    Raises :class:`CheckpointError` for weights that are missing, damaged or of other shapes.
    """

    POOLINGS = ("cls", "mean")

    def __init__(
        self,
        folder: Path,
        bert: BertShape,
        stored: StoredWeights,
        normalize: float,
        pooling: str = "cls",
        dimensions: int | None = None,
    ) -> None:
        self._pooling = pooling
        self._prefix = "bert." if f"bert.{_WORDS}" in stored else ""
        self._stored = stored
        self._bert = bert
        self._normalize = normalize
        self._weights: dict[str, np.ndarray] = {}
        self._products: dict[str, QuantisedLinear] = {}
        for name, shape in weight_shapes(bert).items():
            key = self._prefix + name
            if name == _WORDS:
                # A query needs a few rows of this matrix, which are decoded when they are read.
                _check(name, stored.rows(key, [bert.vocab_size - 1]), (1, bert.hidden_size))
                continue
            if key not in stored:
                raise CheckpointError(f"{folder}: {name} is missing")
            coded = None
            if name.startswith("encoder.") and all(size % GROUP == 0 for size in shape):
                coded = stored.coded(key)
            if coded is None:
                self._weights[name] = _check(name, stored[key], shape)
            else:
                codes = _check(name, coded.codes, shape)
                self._products[name] = QuantisedLinear(codes, coded.factors)
        self.dim = bert.hidden_size  #: width d' of the vector
        if (folder / PROJECTION).is_file():
            projection = StoredWeights(folder / PROJECTION)
            self.dim = len(projection["weight"])
            for name in projection:
                shape = (self.dim, bert.hidden_size) if name == "weight" else (self.dim,)
                self._weights[f"projection.{name}"] = _check(PROJECTION, projection[name], shape)
        self.dim = min(self.dim, dimensions or self.dim)

    @property
    def joins(self) -> bool:
        """Whether a text computed together with others has the same bits as alone. It has if the layers multiply
        integers: those products do not depend on the other rows."""
        matrices = [name for name, weights in self._weights.items() if weights.ndim == 2]
        return not any(name.startswith("encoder.") for name in matrices)

    def cls(self, texts: Sequence[Sequence[int]]) -> np.ndarray:
        """The word pieces of n texts, special tokens included -> (n, d') float32. Of several texts only if they can be
        joined (:attr:`joins`)."""
        weights = self._weights
        layers = self._bert.num_hidden_layers
        lengths = [len(ids) for ids in texts]
        ends = list(itertools.accumulate(lengths))
        # The rows of each text in the states of all.
        spans = [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]
        with blas_threads(1):
            words = self._stored.rows(self._prefix + _WORDS, list(itertools.chain(*texts)))
            place = np.concatenate([np.arange(length) for length in lengths])
            positions = weights["embeddings.position_embeddings.weight"][place]
            types = weights["embeddings.token_type_embeddings.weight"][0]
            x = self._norm("embeddings.LayerNorm", words + types + positions)
            for number in range(layers):
                # Of the last layer only the states of [CLS] are needed, unless all are pooled.
                first_only = number == layers - 1 and self._pooling == "cls"
                x = self._layer(f"encoder.layer.{number}", x, spans, first_only)
            vectors = []
            for row, span in enumerate(spans):
                pooled = x[row : row + 1]
                if self._pooling == "mean":
                    pooled = x[span].mean(0, keepdims=True)
                vectors.append(self._vector(pooled))
        return np.concatenate(vectors)

    def _vector(self, pooled: np.ndarray) -> np.ndarray:
        """The vector (1, d') of a text, given its pooled state (1, d)."""
        vector = pooled
        if "projection.weight" in self._weights:
            vector = self._linear("projection", pooled)
        vector = vector[:, : self.dim]
        if self._normalize:
            vector = vector * (self._normalize / max(float(np.linalg.norm(vector)), 1e-12))
        return np.ascontiguousarray(vector, np.float32)

    def _layer(
        self, name: str, x: np.ndarray, spans: Sequence[slice], first_only: bool
    ) -> np.ndarray:
        """A BERT layer: (L, d) states in, states out. ``spans`` are the rows of each text; with ``first_only``, only
        the first token of each text is computed."""
        kept = x
        kept_spans = spans
        if first_only:
            kept = x[[span.start for span in spans]]
            kept_spans = [slice(row, row + 1) for row in range(len(spans))]
        queries = self._split_heads(f"{name}.attention.self.query", kept)
        keys = self._split_heads(f"{name}.attention.self.key", x)
        values = self._split_heads(f"{name}.attention.self.value", x)
        contexts = []
        for span, kept_span in zip(spans, kept_spans, strict=True):
            contexts.append(_attend(queries[:, kept_span], keys[:, span], values[:, span]))
        context = np.concatenate(contexts)
        mixed = self._linear(f"{name}.attention.output.dense", context) + kept
        x = self._norm(f"{name}.attention.output.LayerNorm", mixed)
        inner = gelu(self._linear(f"{name}.intermediate.dense", x))
        output = self._linear(f"{name}.output.dense", inner) + x
        return self._norm(f"{name}.output.LayerNorm", output)

    def _split_heads(self, name: str, x: np.ndarray) -> np.ndarray:
        """(L, d) states -> (heads, L, d / heads) outputs of a linear layer."""
        heads = self._bert.num_attention_heads
        return self._linear(name, x).reshape(len(x), heads, -1).transpose(1, 0, 2)

    def _linear(self, name: str, x: np.ndarray) -> np.ndarray:
        linear = self._products.get(f"{name}.weight")
        if linear:
            product = linear(x)
        else:
            product = x @ self._weights[f"{name}.weight"].T
        return product + self._weights.get(f"{name}.bias", np.float32(0))

    def _norm(self, name: str, x: np.ndarray) -> np.ndarray:
        centred = x - x.sum(1, keepdims=True) / np.float32(x.shape[1])
        variance = (centred * centred).sum(1, keepdims=True) / np.float32(x.shape[1])
        scaled = centred / np.sqrt(variance + np.float32(self._bert.layer_norm_eps))
        return scaled * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]


def _attend(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    """(heads, l, d / heads) queries, and keys and values of one text (heads, L, d / heads) -> (l, d)."""
    # Softmax of the scaled products; without the maximum, the exponentials could overflow.
    scores = query @ key.transpose(0, 2, 1) * np.float32(query.shape[2] ** -0.5)
    attention = np.exp(scores - scores.max(2, keepdims=True))
    attention /= attention.sum(2, keepdims=True)
    return (attention @ value).transpose(1, 0, 2).reshape(query.shape[1], -1)


def _check(name: str, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if array.shape != shape:
        raise CheckpointError(f"{name} has the shape {array.shape}, not {shape}")
    return array


def gelu(x: np.ndarray) -> np.ndarray:
    """BERT's exact GELU, x (1 + erf(x / sqrt 2)) / 2, of any shape, in float32."""
    if pays(x.size):
        from dupmae_ir.models.inference import query_loops

        outputs = np.empty(x.size, np.float32)
        values, slopes = _grid(x.dtype)
        steps = np.float32(_STEPS)
        max_point = np.float32(_MAX_POINT)
        query_loops.gelu(
            np.ascontiguousarray(x).reshape(-1), values, slopes, steps, max_point, outputs
        )
        return outputs.reshape(x.shape)
    return x * (1 + erf(x * np.float32(0.5**0.5))) * np.float32(0.5)


def erf(x: np.ndarray) -> np.ndarray:
    """The error function in the precision of ``x``, to 1e-10 in float64; scipy's would take a tenth of a second to
    import.

    The third-order Taylor polynomial at the nearest multiple of 1/256, which is at most 1/512 away:
    erf(a + h) = erf(a) + erf'(a) h (1 - a h + (2 a^2 - 1) h^2 / 3) + O(h^4).
    """
    size = np.minimum(np.abs(x), x.dtype.type(_MAX_POINT))
    nearest = np.rint(size * _STEPS)
    a = nearest / _STEPS
    h = size - a
    grid_values, grid_slopes = _grid(x.dtype)
    index = nearest.astype(np.intp)
    values = grid_values.take(index)
    slopes = grid_slopes.take(index)
    # erf is odd.
    return np.copysign(values + slopes * h * (1 - a * h + (2 * a * a - 1) * h * h / 3), x)


_STEPS = 256  #: points of the grid between two whole numbers
_MAX_POINT = 6.0  #: last point of the grid; erf(6) is 1 in float64


@functools.cache
def _grid(dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """erf and its derivative at multiples of 1 / :data:`_STEPS`."""
    points = np.arange(int(_MAX_POINT * _STEPS) + 1) / _STEPS
    slopes = 2 / math.sqrt(math.pi) * np.exp(-points * points)
    return np.array([math.erf(a) for a in points], dtype), slopes.astype(dtype)


LoadComplete = Callable[[], "TextEncoder"]
"""Loads the encoder with torch."""


class LazyTextEncoder(TermEncoder):
    """See the module. Use :func:`read_lazy`."""

    def __init__(
        self,
        name: str | Path | None,
        digest: str,
        config: ModelConfig,
        settings: EncoderSettings,
        tokenizer: PlainTokenizer,
        width: int,
        parts: tuple[str, ...],
        model: QueryModel | None,
        complete: LoadComplete,
    ) -> None:
        super().__init__(name, digest, config, settings, tokenizer, width, parts)
        self.dim: int | None = None if model is None else model.dim
        self._model = model
        self._complete = complete

    def is_quick(self, queries: int) -> bool:
        """Whether a call with this many queries runs without torch: always with 8-bit weights, otherwise only for a
        single query."""
        return queries == 1 or self._model is None or self._model.joins

    def whole(self) -> TextEncoder:
        """The encoder with torch, loaded on the first call."""
        return self._complete()

    def encode_queries(self, texts: Sequence[str], cap: int = 1024) -> Representation:
        """As :meth:`TextEncoder.encode_queries`."""
        if not self.is_quick(len(texts)):
            return self.whole().encode_queries(texts, cap)
        return super().encode_queries(texts, cap)

    def encode_rows(
        self, texts: Sequence[str], cap: int = 1024, threads: int | None = None
    ) -> EncodedRows:
        """As :meth:`QuickEncoder.encode_rows`."""
        keep = self._query_terms(cap)
        pieces = self._query_pieces(texts)
        if self._table is not None:
            return EncodedRows(None, [self._table.arrays(row, keep) for row in pieces])
        cls = self._vectors(pieces, threads)
        if self._lexicon is None:
            return EncodedRows(cls, None)
        rows = [self._lexicon.arrays(self._lexicon.query(text), keep) for text in texts]
        return EncodedRows(self._in_languages(cls, texts), rows)

    def _encode(self, pieces: list[list[int]], side: str, keep: int) -> Representation:  # noqa: ARG002
        return Representation(self._vectors(pieces, None), None)

    def _vectors(self, pieces: list[list[int]], threads: int | None) -> np.ndarray | None:
        """(n, d') float32; None without a model."""
        model = self._model
        if model is None:
            return None
        if not pieces:
            return np.zeros((0, model.dim), np.float32)
        thread_count = min(threads or processors(), len(pieces))
        size = min(JOINED, math.ceil(len(pieces) / thread_count))
        groups = [pieces[start : start + size] for start in range(0, len(pieces), size)]
        if len(groups) == 1:
            return model.cls(pieces)
        with ThreadPoolExecutor(thread_count, "queries") as pool:
            return np.concatenate(list(pool.map(model.cls, groups)))

    def encode_documents(self, texts: Sequence[str]) -> Representation:
        """As :meth:`TextEncoder.encode_documents`."""
        return self.whole().encode_documents(texts)

    def encode_collection(
        self,
        documents: Sequence[Document],
        separator: str | None = None,
        languages: Sequence[str] | None = None,
    ) -> Representation:
        """As :meth:`TextEncoder.encode_collection`."""
        return self.whole().encode_collection(documents, separator, languages)

    def for_collection(self, collection: CollectionStatistics) -> Self:
        """As :meth:`TextEncoder.for_collection`; the model is shared."""
        if self._lexicon is None:
            return self
        other = copy.copy(self)
        other._use_collection(collection)
        other._complete = _once(lambda: self.whole().for_collection(collection))
        return other

    def without_vectors(self) -> Self | None:
        """As :meth:`TextEncoder.without_vectors`; it needs no model."""
        other = super().without_vectors()
        if other is not None:
            other._model = None
        return other


def _once(load: LoadComplete) -> LoadComplete:
    """``load`` called once, by the first of several threads."""
    lock = threading.Lock()
    loaded: list[TextEncoder] = []

    def load_once() -> TextEncoder:
        with lock:
            if not loaded:
                loaded.append(load())
            return loaded[0]

    return load_once


def read_lazy(
    model: str | Path | None, options: EncoderOptions, complete: LoadComplete
) -> LazyTextEncoder | None:
    """The encoder of a model; None for one that numpy does not compute, and for any irregularity, which ``complete``
    reports.

    Computed are plain BERT folders that pool [CLS] or the mean, in float32 on the CPU, whose OT part is lexical or not
    requested; and OT parts whose query weights are in a table.
    """
    parts = options.get("parts")
    if parts is None:
        parts = PARTS
    activation = options.get("activation")
    precision = options.get("dtype") or "float32"  # mixed encodes queries in float32
    if precision not in ("float32", MIXED) or not is_plain_cpu(options.get("device") or "auto"):
        return None
    if not parts or not set(parts) <= set(PARTS) or activation not in (None, *ACTIVATIONS):
        return None
    try:
        folder = model_folder(model)
        modules = read_modules(folder)
        if modules is not None and modules.settings.get("query_table"):
            if "cls" in parts:
                return None
            return _read_table(model, options, modules, precision, _once(complete))
        return _read_bert(model, folder, options, parts, precision, _once(complete))
    except (DupmaeError, OSError, ValueError, TypeError, KeyError, IndexError, AttributeError):
        return None


def _read_bert(
    model: str | Path | None,
    folder: Path,
    options: EncoderOptions,
    parts: tuple[str, ...],
    precision: str,
    complete: LoadComplete,
) -> LazyTextEncoder | None:
    """The encoder of a plain BERT folder; None for one that numpy does not compute."""
    config = with_head(read_config(folder), options)
    if config.pooling not in QueryModel.POOLINGS or config.sparse_encoder:
        return None
    if "ot" in parts and config.has_head:
        return None  # the head's weights take torch
    if read_shape(folder) is None:
        return None
    stored = None
    with ThreadPoolExecutor(1) as background:
        digest = background.submit(folder_digest, folder)
        # Reading the tokenizer keeps Python's lock, which hashing needs between two blocks: the weights are read first,
        # so that the digest's thread gets as far as their block, which is hashed without the lock.
        if "cls" in parts:
            stored = read_stored(folder)
        files = read_plain_files(folder)
    if files is None or ("cls" in parts and stored is None):
        return None
    size = files.shape.vocab_size
    if len(files.tokenizer) > size:
        return None
    # The files of the package belong together; to look at all pieces takes a twentieth of the first answer.
    if folder != embedded_folder() and vocabulary_gap(files.tokenizer.get_vocab().values(), size):
        return None
    activation = options.get("activation")
    normalize = options.get("normalize")
    if activation is not None:
        config = replace(config, activation=activation)
    if normalize is not None:
        config = replace(config, normalize=normalize)
    settings = encoder_settings(
        config, files.shape.max_position_embeddings, options, precision, "cpu"
    )
    dense = None
    if stored is not None:
        dense = QueryModel(
            folder, files.shape, stored, config.normalize, config.pooling, settings.dimensions
        )
    return LazyTextEncoder(
        model, digest.result(), config, settings, files.tokenizer, size, parts, dense, complete
    )


def _read_table(
    model: str | Path | None,
    options: EncoderOptions,
    modules: Modules,
    precision: str,
    complete: LoadComplete,
) -> LazyTextEncoder | None:
    """The encoder of a model with a table of query weights; None for a tokenizer that is not BERT's."""
    tokenizer = PlainTokenizer.read(modules.encoder)
    if tokenizer is None:
        return None
    shape = read_json(modules.encoder / "config.json")
    width = int(shape["vocab_size"])
    longest = int(shape.get("max_position_embeddings", 512))
    tokenizer_config = read_json(modules.encoder / "tokenizer_config.json")
    limit = int(min(tokenizer_config.get("model_max_length", longest), longest))
    config = modules.applied(read_config(modules.folder), limit, width)
    config = with_head(
        replace(config, activation=options.get("activation") or config.activation), options
    )
    settings = encoder_settings(config, longest, options, precision, "cpu")
    digest = folder_digest(modules.folder)
    return LazyTextEncoder(
        model, digest, config, settings, tokenizer, width, ("ot",), None, complete
    )
