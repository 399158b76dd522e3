"""Inference without padding, on a CPU and on CUDA: the texts of a batch are concatenated into one (T, d) matrix.

Weights and arithmetic are those of :class:`~dupmae_ir.models.retriever.Retriever`, the reference in the tests. Saved
are the work on padding, two thirds of the projection calls and, on a CPU, the packing of weights at every call
(:mod:`dupmae_ir.models.inference.packed_layers`) and, in float32, half the work of the head
(:mod:`dupmae_ir.models.inference.topk_screen`). On CUDA a call returns before the device has computed: which tokens are
pooled is decided on the host, from their ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from dupmae_ir.device import cpu_supports_bf16, to_device
from dupmae_ir.models import pooling
from dupmae_ir.models.inference.cpu_linear import (
    RowBlocks,
    pad_rows,
    pick_linear,
    row_blocks,
    torch_linear,
)
from dupmae_ir.models.inference.packed_layers import Texts, pick_attention, pick_stack
from dupmae_ir.models.inference.topk_screen import MOST_CANDIDATES, Screen, candidates, refine
from dupmae_ir.models.retriever import Retriever

Batch = tuple[Tensor | None, Tensor | None, Tensor | None]
"""[CLS] vectors (B, d'), ids (B, k) and weights (B, k) of one forward pass; None for a part that was not computed."""
WHOLE = -1
"""In place of a number of weights: the whole OT part, as (B, V) weights without ids."""


def pick_screen(dtype: torch.dtype, device: str = "cpu") -> tuple[bool, str]:
    """Whether to screen the head's top k in bfloat16 before computing it in ``dtype`` on ``device``, and the reason."""
    if dtype != torch.float32 or device != "cpu":
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
        unscreened: number of texts whose OT part was computed in full.
    """

    def __init__(self, model: Retriever, products: torch.dtype | None = None) -> None:
        self.model = model
        weight = next(model.lm.parameters())
        dtype = weight.dtype
        self._device = weight.device
        self._linear, self.kernel = pick_linear(dtype, self._device.type)
        layer_linear = self._linear
        products = products or dtype
        if products != dtype:
            layer_linear, reason = pick_linear(products)
            name = str(products).removeprefix("torch.")
            self.kernel += f"; those of the layers in {name}: {reason}"
        self._stack = pick_stack(model, layer_linear, products)
        self._attention, reason = pick_attention(model, products, self._device)
        self.kernel += f"; {reason}"
        self._screens, self.head_kernel = pick_screen(dtype, self._device.type)
        if model.token_weight is not None:
            self.head_kernel = "one weight for each token"
        self.unscreened = 0

    def __call__(
        self, texts: Sequence[Sequence[int]], cls: bool = True, keep: int = WHOLE
    ) -> Batch:
        """Token ids of B texts, special tokens included -> [CLS] part, and the ``keep`` largest OT weights of each."""
        packed = self._pack(texts)
        dense = None
        if not keep and self.model.pooling == "cls":
            # Nothing needs the other tokens' last states.
            if cls:
                dense = self.model.project(self._stack.first(packed))
            return dense, None, None
        hidden = self._stack.states(packed)
        if cls:
            dense = self._cls(hidden, packed)
        ids, weights = self._ot(hidden, packed, keep)
        return dense, ids, weights

    def hidden(self, texts: Sequence[Sequence[int]]) -> tuple[Tensor, ...]:
        """(L, d) last hidden states of each text."""
        packed = self._pack(texts)
        return self._stack.states(packed)[: len(packed.host_ids)].split(packed.lengths)

    def _pack(self, texts: Sequence[Sequence[int]]) -> Texts:
        return Texts.pack(texts, self._stack.padding, self._attention, self._device)

    def _cls(self, hidden: Tensor, texts: Texts) -> Tensor:
        if self.model.pooling == "cls":
            return self.model.project(hidden[texts.starts])
        # Other poolings need padded texts: (B, L) rows of the packed states, the last one repeated, and a mask.
        ends = np.cumsum(texts.lengths)[:, None]
        tokens = np.arange(max(texts.lengths))
        mask = tokens < np.array(texts.lengths)[:, None]
        rows = (ends - mask.sum(1, keepdims=True) + tokens).clip(max=ends - 1)
        padded = hidden[to_device(torch.from_numpy(rows), self._device)]
        return self.model.cls_part(padded, to_device(torch.from_numpy(mask), self._device).long())

    @cached_property
    def _pooled_ids(self) -> np.ndarray:
        """(V,) bool on the host: the ids whose tokens are pooled."""
        return self.model.pooled_mask.cpu().numpy()

    def _pooled(self, texts: Texts) -> tuple[Tensor, list[int]]:
        """The tokens to pool, as their numbers in the batch, and how many each text has."""
        mask = self._pooled_ids[texts.host_ids]
        counts_up_to_text = mask.cumsum()[np.cumsum(texts.lengths) - 1]
        counts = np.diff(np.append(0, counts_up_to_text))
        return to_device(torch.from_numpy(mask.nonzero()[0]), self._device), counts.tolist()

    @cached_property
    def _screen(self) -> Screen:
        head = self.model.head
        return Screen.of(head.weight, head.bias)

    @cached_property
    def _words(self) -> RowBlocks | Tensor:
        """The head's projection; in packed blocks if the kernel packs weights and the screen does not replace it."""
        weight = self.model.head.weight
        if self._screens or self._linear is torch_linear:
            return weight
        return row_blocks(weight, self._linear)

    def _ot(self, hidden: Tensor, texts: Texts, keep: int) -> tuple[Tensor | None, Tensor | None]:
        model = self.model
        if not keep:
            return None, None
        tokens, counts = self._pooled(texts)
        if model.token_weight is not None and keep != WHOLE:
            # Each token has one weight, so no vocabulary logits are needed.
            ids = texts.ids[tokens]
            weights = model.activate(model.token_weight(hidden[tokens]).squeeze(-1))
            weights = weights.where(model.term_mask[ids], 0.0)
            return pooling.strongest_tokens(weights, ids, counts, keep)
        states = model.head.transform(pad_rows(hidden[tokens]))[: sum(counts)]
        if self._screens and 0 < keep < len(model.term_mask):
            top = self._screened_top(states, counts, keep)
            if top is not None:
                return top
        self.unscreened += len(counts)
        pooled = pooling.ot_max_packed(states, counts, self._words, model.head.bias)
        has_tokens = to_device(torch.tensor(counts) > 0, self._device).unsqueeze(1)
        weights = model.activate(pooled.masked_fill_(~(model.term_mask & has_tokens), 0.0))
        if keep == WHOLE:
            return None, weights
        return pooling.strongest(weights, keep)

    def _screened_top(
        self, states: Tensor, counts: Sequence[int], keep: int
    ) -> tuple[Tensor, Tensor] | None:
        """The same top by screening; None if there are too many candidates."""
        model = self.model
        screened = candidates(self._screen, states, counts, model.term_mask, keep)
        if int(screened.sum()) > MOST_CANDIDATES * keep * len(counts):
            return None
        words, values = refine(self._screen, states, counts, screened)
        positions, weights = pooling.strongest(model.activate(values), keep)
        # Positions among the candidates -> ids of the vocabulary; -1 stays where fewer weights are positive.
        ids = words.gather(1, positions.clamp_min(0)).masked_fill_(positions < 0, -1)
        return ids, weights
