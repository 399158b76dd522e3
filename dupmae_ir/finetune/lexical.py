"""The lexical share of OT weights in training: constants in closed form, to which a head's weights may be added.

A batch has ``lexical_width``, the number of columns, and for each side ``{side}_terms`` (2, n), rows and columns, with
``{side}_weights`` (n,). With a head the first V columns are its word pieces; the other dimensions of a batch are
numbered as they occur, since a vector of all dimensions would be mostly empty.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dupmae_ir.models.heads.lexical import Lexicon
from dupmae_ir.models.pooling import at_least_float32, keep_top_k, strongest
from dupmae_ir.types import Document


class LexicalBatches:
    """Lexical weights of the texts of a batch, as encoding computes them.

    Args:
        lexicon: the weights; document frequencies are those it has.
    """

    def __init__(self, lexicon: Lexicon) -> None:
        self.lexicon = lexicon

    def __call__(self, queries: Sequence[str], documents: Sequence[Document]) -> dict[str, Tensor]:
        """The tensors of a batch."""
        lexicon = self.lexicon
        weights = {
            "query": [lexicon.query(query) for query in queries],
            "document": [lexicon.document(document.title, document.text) for document in documents],
        }
        matrices = {}
        for side, rows in weights.items():
            matrices[side] = lexicon.matrix(rows, lexicon.width).tocoo()
        dimensions = np.unique(np.concatenate([matrix.col for matrix in matrices.values()]))
        first_column = lexicon.pieces
        batch = {"lexical_width": torch.tensor(first_column + len(dimensions))}
        for side, matrix in matrices.items():
            columns = first_column + np.searchsorted(dimensions, matrix.col)
            terms = np.stack([matrix.row, columns]).astype(np.int64)
            batch[f"{side}_terms"] = torch.from_numpy(terms)
            batch[f"{side}_weights"] = torch.from_numpy(matrix.data)
        return batch


def cut(weights: Tensor | None, k: int, batch: dict[str, Tensor]) -> Tensor | None:
    """The ``k`` largest weights of each row, the others zero; all for k = 0.

    Lexical weights are cut as encoding cuts them, to exactly ``k``: words that occur once have equal weights, so ties
    are the rule, and the lower dimension is kept.
    """
    if weights is None or not k:
        return weights
    if "lexical_width" not in batch:
        return keep_top_k(weights, k)
    row_count, width = weights.shape
    columns, _ = strongest(weights.detach(), k)
    # A row with fewer weights is padded with -1: those are written into a column after the last, which is dropped.
    is_largest = torch.zeros(row_count, width + 1, dtype=torch.bool, device=weights.device)
    is_largest.scatter_(1, columns.masked_fill(columns < 0, width), True)
    return torch.where(is_largest[:, :-1], weights, torch.zeros_like(weights))


def with_lexical(
    head: Tensor | None, batch: dict[str, Tensor], side: str, texts: int
) -> Tensor | None:
    """OT weights (n, W) of the ``texts`` texts of a side: the ``head``'s weights (n, V), then the lexical weights."""
    if "lexical_width" not in batch:
        return head
    weights = batch[f"{side}_weights"]
    rows, columns = batch[f"{side}_terms"]
    lexical = weights.new_zeros(texts, int(batch["lexical_width"]))
    lexical[rows, columns] = weights
    if head is None:
        return lexical
    # The columns of the word pieces, which are the head's alone, are empty in `lexical`.
    pieces = head.shape[1]
    head = at_least_float32(head)
    return torch.cat([head, lexical[:, pieces:].to(head.dtype)], 1)
