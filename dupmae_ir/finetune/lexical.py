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
        special: ids of special tokens, which have no weight.
        with_head: whether a head's weights are added.
    """

    def __init__(self, lexicon: Lexicon, special: Sequence[int], with_head: bool) -> None:
        self.lexicon, self.special, self.with_head = lexicon, frozenset(special), with_head

    def __call__(
        self,
        queries: Sequence[str],
        query_pieces: Sequence[Sequence[int]],
        documents: Sequence[Document],
        document_pieces: Sequence[Sequence[int]],
    ) -> dict[str, Tensor]:
        """The tensors of a batch from texts and their word pieces; padding and special tokens are left out."""
        lexicon = self.lexicon
        rows = {
            "query": [lexicon.query(q, self._ordinary(p)) for q, p in zip(queries, query_pieces, strict=True)],
            "document": [
                lexicon.document(d.title, d.text, self._ordinary(p))
                for d, p in zip(documents, document_pieces, strict=True)
            ],
        }
        matrices = {side: lexicon.matrix(weights, lexicon.width).tocoo() for side, weights in rows.items()}
        first = lexicon.pieces if self.with_head else 0
        used = np.unique(np.concatenate([m.col for m in matrices.values()]))
        used = used[used >= first]
        batch = {"lexical_width": torch.tensor(first + len(used))}
        for side, matrix in matrices.items():
            columns = np.where(matrix.col < first, matrix.col, first + np.searchsorted(used, matrix.col))
            batch[f"{side}_terms"] = torch.from_numpy(np.stack([matrix.row, columns]).astype(np.int64))
            batch[f"{side}_weights"] = torch.from_numpy(matrix.data)
        return batch

    def _ordinary(self, pieces: Sequence[int]) -> list[int]:
        return [piece for piece in pieces if piece not in self.special]


def cut(weights: Tensor | None, k: int, batch: dict[str, Tensor]) -> Tensor | None:
    """The ``k`` largest weights of each row, the others zero; all for k = 0.

    Lexical weights are cut as encoding cuts them, to exactly ``k``: words that occur once have equal weights, so ties
    are the rule, and the lower dimension is kept.
    """
    if weights is None or not k:
        return weights
    if "lexical_width" not in batch:
        return keep_top_k(weights, k)
    ids, _ = strongest(weights.detach(), k)
    largest = torch.zeros(len(weights), weights.shape[1] + 1, dtype=torch.bool, device=weights.device)
    largest.scatter_(1, ids.masked_fill(ids < 0, weights.shape[1]), True)
    return torch.where(largest[:, :-1], weights, torch.zeros_like(weights))


def with_lexical(head: Tensor | None, batch: dict[str, Tensor], side: str, texts: int) -> Tensor | None:
    """OT weights (n, W) of the ``texts`` texts of a side: the ``head``'s weights (n, V) plus the lexical weights."""
    if "lexical_width" not in batch:
        return head
    weights, terms = batch[f"{side}_weights"], batch[f"{side}_terms"]
    lexical = weights.new_zeros(texts, int(batch["lexical_width"]))
    lexical[terms[0], terms[1]] = weights
    if head is None:
        return lexical
    pieces = head.shape[1]
    head = at_least_float32(head)
    return torch.cat([head + lexical[:, :pieces], lexical[:, pieces:].to(head.dtype)], 1)
