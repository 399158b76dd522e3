"""A cross-encoder with 8-bit weights that needs no torch: scores of a query with passages, in numpy.

It uses the layers of :class:`~dupmae_ir.models.inference.query_model.QueryModel`, so a pair has the same score, to
the last bit, whichever pairs are scored with it. Threads share the pairs among them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import numpy as np

from dupmae_ir.device import processors
from dupmae_ir.errors import CheckpointError
from dupmae_ir.models.checkpoints.layout import is_compact
from dupmae_ir.models.checkpoints.plain_files import (
    CROSS_ENCODERS,
    BertShape,
    PlainTokenizer,
    read_plain_files,
    with_biases,
)
from dupmae_ir.models.checkpoints.stored import StoredWeights, read_stored
from dupmae_ir.models.inference.query_model import QueryModel
from dupmae_ir.types import Document, Reranker

PAIR_LENGTH = 512  #: word pieces that a cross-encoder reads of a query and a document
_POOLER = "bert.pooler.dense"
_CLASSIFIER = "classifier"


class PairModel:
    """BERT with a pooler and a classifier of one label.

    Args:
        folder: the model folder, for messages.
        bert: the sizes of the model.
        stored: its weights.
        tokenizer: the model's tokenizer.

    Raises :class:`CheckpointError` for weights that are missing, damaged or of other shapes.
    """

    def __init__(
        self, folder: Path, bert: BertShape, stored: StoredWeights, tokenizer: PlainTokenizer
    ) -> None:
        self.positions = bert.max_position_embeddings  #: word pieces that it can read
        self._tokenizer = tokenizer
        self._lock = threading.Lock()  # its truncation is a state
        self._encoder = QueryModel(folder, bert, stored, normalize=0.0)
        if not self._encoder.joins:
            raise CheckpointError(f"{folder}: has layers that are not stored in 8 bits")
        width = bert.hidden_size
        shapes = with_biases({_POOLER: (width, width), _CLASSIFIER: (1, width)})
        self._head: dict[str, np.ndarray] = {}
        for name, shape in shapes.items():
            weights = stored.get(name)
            if weights is None or weights.shape != shape:
                raise CheckpointError(f"{folder}: {name} is missing or has another shape")
            self._head[name] = weights

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The model of a folder; None unless it is a plain BERT with one label, one token type and 8-bit weights."""
        if not is_compact(folder):
            return None
        files = read_plain_files(folder, CROSS_ENCODERS)
        stored = read_stored(folder)
        if files is None or stored is None or len(stored.get(f"{_CLASSIFIER}.weight", ())) != 1:
            return None
        # All word pieces have the first type, as in RoBERTa; BERT tells the two texts apart by it.
        if files.shape.type_vocab_size != 1:
            return None
        return cls(folder, files.shape, stored, files.tokenizer)

    def scores(self, query: str, texts: Sequence[str], length: int) -> list[float]:
        """One score for each text, read together with the query up to ``length`` word pieces."""
        with self._lock:
            pairs = self._tokenizer.pairs(query, texts, length)
        with ThreadPoolExecutor(processors(), "pairs") as pool:
            return list(pool.map(self._score, pairs))

    def _score(self, pair: Sequence[int]) -> float:
        head = self._head
        state = self._encoder.cls([pair])
        pooled = np.tanh(state @ head[f"{_POOLER}.weight"].T + head[f"{_POOLER}.bias"])
        logits = pooled @ head[f"{_CLASSIFIER}.weight"].T + head[f"{_CLASSIFIER}.bias"]
        return float(logits[0, 0])


class LazyCrossEncoder:
    """A cross-encoder that computes in numpy, and in torch once :meth:`whole` has been called.

    Torch takes a second to import, and then a third of the time for a query. The scores of the two differ by rounding.

    Args:
        model: the one in numpy.
        complete: loads the one in torch.
    """

    def __init__(self, model: PairModel, complete: Callable[[], Reranker]) -> None:
        self._model = model
        self._complete = complete
        self._whole: Reranker | None = None
        self._lock = threading.Lock()

    def whole(self) -> None:
        """Load torch and the model in it."""
        with self._lock:
            if self._whole is None:
                self._whole = self._complete()

    def scores(self, query: str, documents: Sequence[Document]) -> list[float]:
        """As :meth:`~dupmae_ir.types.Reranker.scores`."""
        if self._whole is not None:
            return self._whole.scores(query, documents)
        texts = [document.joined() for document in documents]
        return self._model.scores(query, texts, min(PAIR_LENGTH, self._model.positions))
