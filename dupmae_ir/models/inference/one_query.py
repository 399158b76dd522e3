"""The [CLS] vector of one short text in numpy: the first answer of a search does not wait for torch.

Importing torch takes longer than reading the model and encoding a query. Arithmetic and order of the steps are those of
:class:`~dupmae_ir.models.plain_bert.PlainEncoder` in float32; vectors agree with
:class:`~dupmae_ir.models.inference.packed.PackedRetriever` to 4e-7 of their length, which the tests check.

The products run on one thread: they are small, and threads that wait for one another between them take many times as
long where another process uses a core.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dupmae_ir.blas import blas_threads
from dupmae_ir.models.checkpoints.layout import PROJECTION
from dupmae_ir.models.checkpoints.plain_files import BertShape
from dupmae_ir.models.checkpoints.stored import StoredWeights


class Linear(NamedTuple):
    """``x W' + b``."""

    weight: np.ndarray  #: (d', d)
    bias: np.ndarray | None  #: (d',)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """(L, d) -> (L, d')."""
        product = x @ self.weight.T
        return product if self.bias is None else product + self.bias


class LayerNorm(NamedTuple):
    """Normalisation of each row, with learned factors."""

    weight: np.ndarray
    bias: np.ndarray
    epsilon: np.float32

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """(L, d) -> (L, d)."""
        centred = x - x.mean(1, keepdims=True)
        variance = (centred * centred).mean(1, keepdims=True)
        return centred / np.sqrt(variance + self.epsilon) * self.weight + self.bias


class _Weights(NamedTuple):
    """The layers of one folder, by their names in its file."""

    stored: StoredWeights
    prefix: str
    epsilon: float

    def linear(self, name: str, inner: int, outer: int) -> Linear:
        weight, bias = self.stored[f"{self.prefix}{name}.weight"], self.stored[f"{self.prefix}{name}.bias"]
        _check(name, weight, (outer, inner))
        _check(name, bias, (outer,))
        return Linear(weight, bias)

    def norm(self, name: str, width: int) -> LayerNorm:
        weight, bias = self.stored[f"{self.prefix}{name}.weight"], self.stored[f"{self.prefix}{name}.bias"]
        _check(name, weight, (width,))
        _check(name, bias, (width,))
        return LayerNorm(weight, bias, np.float32(self.epsilon))


def _check(name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise ValueError(f"{name} has the shape {array.shape}, not {shape}")


class OneQuery:
    """A plain BERT model and its W_cls.

    Args:
        folder: the model folder, for W_cls.
        shape: the sizes of the model.
        stored: its weights.
        normalize: vectors of unit length.

    Raises KeyError or ValueError for weights that are missing or of other shapes, OSError for a file that is not
    readable.
    """

    def __init__(self, folder: Path, shape: BertShape, stored: StoredWeights, normalize: bool) -> None:
        prefix = "bert." if "bert.embeddings.word_embeddings.weight" in stored else ""
        weights = _Weights(stored, prefix, shape.layer_norm_eps)
        self._words = f"{prefix}embeddings.word_embeddings.weight"
        self._stored = stored
        _check(self._words, stored.rows(self._words, [shape.vocab_size - 1]), (1, shape.hidden_size))
        self._positions = stored[f"{prefix}embeddings.position_embeddings.weight"]
        _check("position_embeddings", self._positions, (shape.max_position_embeddings, shape.hidden_size))
        self._type = stored[f"{prefix}embeddings.token_type_embeddings.weight"][0]
        self._norm = weights.norm("embeddings.LayerNorm", shape.hidden_size)
        self._layers = [_Layer(weights, shape, number) for number in range(shape.num_hidden_layers)]
        self._projection = _projection(folder, shape.hidden_size)
        self._normalize = normalize

    @property
    def dim(self) -> int:
        """Width d' of the vector."""
        return len(self._positions[0] if self._projection is None else self._projection.weight)

    def cls(self, ids: Sequence[int]) -> np.ndarray:
        """(L,) word pieces, special tokens included -> (1, d') float32."""
        with blas_threads(1):
            words = self._stored.rows(self._words, list(ids))
            x = self._norm(words + self._type + self._positions[: len(ids)])
            for layer in self._layers[:-1]:
                x = layer(x, len(x))
            first = self._layers[-1](x, 1)
            vector = first if self._projection is None else self._projection(first)
        if self._normalize:
            vector = vector / max(float(np.linalg.norm(vector)), 1e-12)
        return np.ascontiguousarray(vector, np.float32)


class _Layer:
    """One BERT layer."""

    def __init__(self, weights: _Weights, shape: BertShape, number: int) -> None:
        width, inner, name = shape.hidden_size, shape.intermediate_size, f"encoder.layer.{number}"
        self._heads = shape.num_attention_heads
        self._query, self._key, self._value = (
            weights.linear(f"{name}.attention.self.{part}", width, width) for part in ("query", "key", "value")
        )
        self._out = weights.linear(f"{name}.attention.output.dense", width, width)
        self._norm = weights.norm(f"{name}.attention.output.LayerNorm", width)
        self._up = weights.linear(f"{name}.intermediate.dense", width, inner)
        self._down = weights.linear(f"{name}.output.dense", inner, width)
        self._last_norm = weights.norm(f"{name}.output.LayerNorm", width)

    def __call__(self, x: np.ndarray, rows: int) -> np.ndarray:
        """(L, d) -> (rows, d): the states of the first ``rows`` tokens."""
        query, key, value = (self._split(part) for part in (self._query(x[:rows]), self._key(x), self._value(x)))
        shares = query @ key.transpose(0, 2, 1) * np.float32(query.shape[2] ** -0.5)
        shares = np.exp(shares - shares.max(2, keepdims=True))
        shares /= shares.sum(2, keepdims=True)
        context = (shares @ value).transpose(1, 0, 2).reshape(rows, -1)
        x = self._norm(self._out(context) + x[:rows])
        return self._last_norm(self._down(gelu(self._up(x))) + x)

    def _split(self, x: np.ndarray) -> np.ndarray:
        """(L, d) -> (heads, L, d / heads)."""
        return x.reshape(len(x), self._heads, -1).transpose(1, 0, 2)


def gelu(x: np.ndarray) -> np.ndarray:
    """BERT's exact GELU, x (1 + erf(x / sqrt 2)) / 2, of any shape, as float32."""
    return (x * (1 + erf(x * 0.5**0.5)) * 0.5).astype(np.float32)


def erf(x: np.ndarray) -> np.ndarray:
    """The error function, as float64, to 1e-10; scipy's would take a tenth of a second to import.

    The third-order Taylor polynomial at the nearest multiple of 1/256, which is at most 1/512 away:
    erf(a + h) = erf(a) + erf'(a) h (1 - a h + (2 a^2 - 1) h^2 / 3) + O(h^4).
    """
    size = np.minimum(np.abs(x.astype(np.float64)), _LARGEST)
    nearest = np.rint(size * _STEPS).astype(np.int64)
    a = nearest / _STEPS
    h = size - a
    values, slopes = _grid()
    return np.copysign(values[nearest] + slopes[nearest] * h * (1 - a * h + (2 * a * a - 1) * h * h / 3), x)


_STEPS, _LARGEST = 256, 6.0  # erf(6) is 1 in float64


@functools.cache
def _grid() -> tuple[np.ndarray, np.ndarray]:
    """erf and its derivative at multiples of 1 / :data:`_STEPS`."""
    points = np.arange(int(_LARGEST * _STEPS) + 1) / _STEPS
    return np.array([math.erf(a) for a in points]), 2 / math.sqrt(math.pi) * np.exp(-points * points)


def _projection(folder: Path, hidden: int) -> Linear | None:
    """W_cls; None for a model without one."""
    if not (folder / PROJECTION).is_file():
        return None
    stored = StoredWeights(folder / PROJECTION)
    weight, bias = stored["weight"], stored.get("bias")
    _check(PROJECTION, weight, (len(weight), hidden))
    if bias is not None:
        _check(PROJECTION, bias, (len(weight),))
    return Linear(weight, bias)
