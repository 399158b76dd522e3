"""Inference without padding: the texts of a batch are concatenated into one (T, d) matrix.

Weights and arithmetic are those of :class:`~dupmae_ir.models.retriever.Retriever`, the reference in the tests. Saved
are the work on padding, two thirds of the projection calls, the packing of weights at every call
(:mod:`dupmae_ir.models.inference.packed_layers`) and, in float32, half the work of the head
(:mod:`dupmae_ir.models.inference.topk_screen`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from dupmae_ir.device import cpu_supports_bf16
from dupmae_ir.models import pooling
from dupmae_ir.models.inference.cpu_linear import RowBlocks, pad_rows, pick_linear, row_blocks, torch_linear
from dupmae_ir.models.inference.packed_layers import pick_stack, starts
from dupmae_ir.models.inference.topk_screen import MOST_CANDIDATES, Screen, candidates, refine
from dupmae_ir.models.retriever import Parts, Retriever

Top = tuple[Tensor, Tensor]
"""Ids (B, k) and weights (B, k), as returned by :func:`~dupmae_ir.models.pooling.strongest`."""


def pick_screen(dtype: torch.dtype) -> tuple[bool, str]:
    """Whether to screen the head's top k in bfloat16 before computing it in ``dtype`` on the CPU, and the reason."""
    if dtype != torch.float32:
        return False, f"the head runs in {str(dtype).removeprefix('torch.')} throughout"
    if not cpu_supports_bf16():
        return False, "the head runs in float32 throughout: the CPU does not support bfloat16"
    return True, "the head's top k screened in bfloat16 with a proof, refined in float32"


class PackedRetriever:
    """``model`` on packed batches.

    ``products`` is the dtype of the matrix products and the attention of the layers, None for that of the weights; what
    is between them, and the head, has that of the weights.

    The weights are shared with ``model``, except for the fused query-key-value matrices and the kernels' packed copies.

    Attributes:
        kernel: what the layers run on, and the reason.
        head_kernel: the same for the head.
        screened: number of texts whose top k was found by screening.
        unscreened: number of texts whose OT part was computed in full.
    """

    def __init__(self, model: Retriever, products: torch.dtype | None = None) -> None:
        self.model = model
        dtype = next(model.lm.parameters()).dtype
        self._linear, self.kernel = pick_linear(dtype)
        layer_linear, products = self._linear, products or dtype
        if products != dtype:
            layer_linear, reason = pick_linear(products)
            self.kernel += f"; those of the layers in {str(products).removeprefix('torch.')}: {reason}"
        self._stack = pick_stack(model, layer_linear, products)
        self._screens, self.head_kernel = pick_screen(dtype)
        if model.token_weight is not None:
            self.head_kernel = "one weight for each token"
        self.screened = self.unscreened = 0

    def __call__(self, texts: Sequence[Sequence[int]], cls: bool = True, ot: bool = True) -> Parts:
        """Token ids of B texts, special tokens included -> the requested parts, the OT part by the masked-LM head."""
        if not ot:
            return self._first_cls(texts) if cls else None, None
        ids, lengths, hidden = self._forward(texts)
        vectors = self._cls(hidden, lengths) if cls else None
        return vectors, self._whole(*self._pooled_states(hidden, ids, lengths))

    def top(self, texts: Sequence[Sequence[int]], cls: bool, keep: int) -> tuple[Tensor | None, Top | None]:
        """As a call, with the ``keep`` largest weights of each text instead of its whole OT part; 0 for no OT part."""
        if not keep:
            return self._first_cls(texts) if cls else None, None
        ids, lengths, hidden = self._forward(texts)
        return self._cls(hidden, lengths) if cls else None, self._top(hidden, ids, lengths, keep)

    def hidden(self, ids: Tensor, lengths: Sequence[int]) -> Tensor:
        """(T,) ids of texts of these lengths -> (T, d) last hidden states."""
        return self._stack.states(ids, lengths)[: len(ids)]

    def _forward(self, texts: Sequence[Sequence[int]]) -> tuple[Tensor, list[int], Tensor]:
        ids, lengths = torch.tensor([i for t in texts for i in t]), [len(t) for t in texts]
        return ids, lengths, self.hidden(ids, lengths)

    def _cls(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        if self.model.pooling != "cls":
            texts = hidden.split(list(lengths))
            return self.model.project(torch.stack([_mean(states, self.model.pooling) for states in texts]))
        return self.model.project(hidden[starts(lengths)])

    def _first_cls(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """[CLS] vectors of texts whose token states nothing else needs."""
        if self.model.pooling != "cls":
            _, sizes, hidden = self._forward(texts)
            return self._cls(hidden, sizes)
        ids, lengths = torch.tensor([i for t in texts for i in t]), [len(t) for t in texts]
        return self.model.project(self._stack.first(ids, lengths))

    def _pooled_states(self, hidden: Tensor, ids: Tensor, lengths: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Transformed states of the tokens to pool, the input of the head's projection, and their number per text."""
        mask = self.model.pooled_mask[ids]
        counts = [int(part.sum()) for part in mask.split(list(lengths))]
        return self.model.head.transform(pad_rows(hidden[mask]))[: sum(counts)], counts

    @cached_property
    def _screen(self) -> Screen:
        head = self.model.head
        return Screen.of(head.weight, head.bias)

    @cached_property
    def _words(self) -> RowBlocks | Tensor:
        """The head's projection; in packed blocks if the kernel packs weights and the screen does not replace it."""
        weight = self.model.head.weight
        return weight if self._screens or self._linear is torch_linear else row_blocks(weight, self._linear)

    def _whole(self, states: Tensor, counts: Sequence[int]) -> Tensor:
        model, head = self.model, self.model.head
        pooled = pooling.ot_max_packed(states, counts, self._words, head.bias)
        excluded = ~(model.term_mask & (torch.tensor(counts) > 0).unsqueeze(1))
        return model.activated(pooled.masked_fill_(excluded, 0.0))

    def _top(self, hidden: Tensor, ids: Tensor, lengths: Sequence[int], keep: int) -> Top:
        if self.model.token_weight is not None:
            mask = self.model.pooled_mask[ids]
            pooled = [int(part.sum()) for part in mask.split(list(lengths))]
            return self.model.strongest_tokens(hidden[mask], ids[mask], pooled, keep)
        states, counts = self._pooled_states(hidden, ids, lengths)
        if self._screens and keep < len(self.model.term_mask) and (top := self._screened_top(states, counts, keep)):
            self.screened += len(counts)
            return top
        self.unscreened += len(counts)
        return pooling.strongest(self._whole(states, counts).float(), keep)

    def _screened_top(self, states: Tensor, counts: Sequence[int], keep: int) -> Top | None:
        """The same top by screening; None if there are too many candidates."""
        model = self.model
        chosen = candidates(self._screen, states, counts, model.term_mask, keep)
        if int(chosen.sum()) > MOST_CANDIDATES * keep * len(counts):
            return None
        words, values = refine(self._screen, states, counts, chosen)
        weights = model.activated(values)
        places, weights = pooling.strongest(weights, keep)
        return words.gather(1, places.clamp_min(0)).masked_fill_(places < 0, -1), weights


def _mean(states: Tensor, pooling: str) -> Tensor:
    """(L, d) states of a text -> (d,): the last, their mean, or with ``weighted-mean`` the n-th n times as heavy."""
    if pooling == "last":
        return states[-1]
    if pooling == "mean":
        return states.mean(0)
    weights = torch.arange(1, len(states) + 1, dtype=states.dtype).unsqueeze(1)
    return (states * weights).sum(0) / weights.sum()
