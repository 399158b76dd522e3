"""Term weights of queries from a table: one weight for each token, whatever the query (inference-free queries).

A query costs its tokenizer alone. The weight of a token counts once, however often the query has it. Tables are those
of sentence-transformers (``SparseStaticEmbedding``: the tensor ``weight``) and of OpenSearch (``idf.json``: a weight
for each token).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dupmae_ir.console import one_line
from dupmae_ir.errors import CheckpointError
from dupmae_ir.models.checkpoints.stored import StoredWeights

if TYPE_CHECKING:
    import scipy.sparse as sp


class QueryTable:
    """``weights``: (V,) float32. Weights below 0 count as 0, since impacts are positive."""

    def __init__(self, weights: np.ndarray) -> None:
        self.weights = np.maximum(weights, 0)

    @classmethod
    def load(cls, path: Path, tokens: Mapping[str, int], width: int) -> QueryTable:
        """Read a table. ``tokens``: the ids of the tokenizer's tokens; ``width``: V.

        Raises :class:`CheckpointError` for a missing or damaged file, and for a table of another tokenizer.
        """
        if not path.is_file():
            raise CheckpointError(
                f"{path}: is missing; it has the weights of the tokens of queries"
            )
        weights = np.zeros(width, np.float32)
        if path.suffix == ".json":
            for token, weight in _read_json(path).items():
                if token not in tokens:
                    raise CheckpointError(
                        f"{path}: the tokenizer has no token {token!r}; they do not belong together"
                    )
                weights[tokens[token]] = weight
        else:
            table = _read_tensor(path, len(tokens), width)
            weights[: len(table)] = table
        if not np.isfinite(weights).all():
            raise CheckpointError(f"{path}: contains a weight that is not finite")
        return cls(weights)

    def arrays(self, pieces: Sequence[int], keep: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids (m,) int32, ascending, and weights (m,) of a query: the ``keep`` largest; equal ones by id."""
        ids = np.unique(np.asarray(pieces, np.int32))
        weights = self.weights[ids]
        # Positions in the ascending ids; sorted, they restore that order.
        largest = np.sort(np.lexsort((ids, -weights))[:keep])
        largest = largest[weights[largest] > 0]
        return ids[largest], weights[largest]

    def matrix(self, queries: Sequence[Sequence[int]], keep: int) -> sp.csr_matrix:
        """:meth:`arrays` of n queries as (n, V) CSR."""
        import scipy.sparse as sp  # importing it takes a tenth of a second, and a single query does without

        rows = [self.arrays(pieces, keep) for pieces in queries]
        ends = np.cumsum([0, *(len(ids) for ids, _ in rows)])
        # The empty arrays give the dtype if there are no queries.
        ids = np.concatenate([*(ids for ids, _ in rows), np.zeros(0, np.int32)])
        weights = np.concatenate([*(weights for _, weights in rows), np.zeros(0, np.float32)])
        return sp.csr_matrix((weights, ids, ends), shape=(len(rows), len(self.weights)))


def _read_json(path: Path) -> dict[str, float]:
    """OpenSearch's table."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        return {str(token): float(weight) for token, weight in table.items()}
    except (ValueError, TypeError, AttributeError) as e:
        raise CheckpointError(
            f"{path}: expected a JSON object with a weight for each token: {one_line(e, 200)}"
        ) from None


def _read_tensor(path: Path, token_count: int, width: int) -> np.ndarray:
    """The table of sentence-transformers, of at most ``width`` weights."""
    stored = StoredWeights(path)
    problem = None
    table = np.zeros(0)
    if "weight" not in stored:
        problem = ", ".join(stored)
    else:
        table = stored["weight"]
        # A table has a weight for each token, or also for the padding of the model's embeddings.
        if table.ndim != 1 or len(table) not in (token_count, width) or len(table) > width:
            problem = str(table.shape)
    if problem is not None:
        raise CheckpointError(
            f"{path}: expected the tensor weight with {token_count} weights, one for each token, got {problem}"
        )
    return table
