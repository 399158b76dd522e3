"""BERT without padding, for inference: the texts of a batch lie end to end in one (T, d) matrix.

Same weights and same arithmetic as :class:`~dupmae_ir.models.retriever.Retriever`, which stays the oracle in the tests;
what is saved is the work on padding and two thirds of the projection calls (query, key and value are one).
Attention needs equal lengths side by side, so batches should be sorted by length, as the encoder sorts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dupmae_ir.models.masked_lm import head_of
from dupmae_ir.models.pooling import ACTIVATIONS, CHUNK
from dupmae_ir.models.retriever import Retriever


def can_pack(model: Retriever) -> bool:
    """True for BERT layouts with GELU and absolute positions; other families take the padded path."""
    config = model.lm.config
    return (
        type(model.lm).__name__ in {"BertForMaskedLM", "BertModel"}
        and config.hidden_act == "gelu"
        and getattr(config, "position_embedding_type", "absolute") == "absolute"
    )


class PackedRetriever:
    """``model`` on packed batches. The weights are shared, but for the fused query-key-value matrices."""

    def __init__(self, model: Retriever) -> None:
        self.model = model
        bert: Any = getattr(model.lm, "bert", model.lm)
        self.embeddings = bert.embeddings
        self.heads = bert.config.num_attention_heads
        self.layers = [_Layer(layer) for layer in bert.encoder.layer]

    def __call__(self, texts: Sequence[Sequence[int]], cls: bool = True, ot: bool = True) -> tuple[Any, Any]:
        """Token ids of B texts, specials included -> ([CLS] part (B, d') or None, OT part (B, V) or None)."""
        ids = torch.tensor([i for t in texts for i in t])
        lengths = [len(t) for t in texts]
        hidden = self.hidden(ids, lengths)
        starts = torch.tensor([0, *lengths[:-1]]).cumsum(0)
        first = hidden[starts]
        dense = self.model.project(first) if cls else None
        return dense, self._ot(hidden, ids, lengths) if ot else None

    def hidden(self, ids: Tensor, lengths: Sequence[int]) -> Tensor:
        """(T,) ids of texts of these lengths -> (T, d) last hidden states."""
        e = self.embeddings
        positions = torch.cat([torch.arange(n) for n in lengths])
        words = e.word_embeddings(ids) + e.token_type_embeddings.weight[0] + e.position_embeddings(positions)
        hidden = e.LayerNorm(words)
        groups = list(runs(lengths))
        for layer in self.layers:
            hidden = layer(hidden, groups, self.heads)
        return hidden

    def _ot(self, hidden: Tensor, ids: Tensor, lengths: Sequence[int]) -> Tensor:
        model, head = self.model, head_of(self.model.lm)
        speaks = model.speaks[ids]
        counts = [int(part.sum()) for part in speaks.split(list(lengths))]
        pooled = ot_max_packed(head.transform(hidden[speaks]), counts, head.weight, head.bias)
        silent = ~(model.heard & (torch.tensor(counts) > 0).unsqueeze(1))
        return ACTIVATIONS[model.activation](pooled.masked_fill_(silent, 0.0))


class _Layer:
    """One BERT layer with the three attention projections in one."""

    def __init__(self, layer: Any) -> None:
        a = layer.attention
        parts = (a.self.query, a.self.key, a.self.value)
        self.weight = torch.cat([p.weight for p in parts]).contiguous()
        self.bias = torch.cat([p.bias for p in parts]).contiguous()
        self.out, self.norm = a.output.dense, a.output.LayerNorm
        self.up, self.down, self.last_norm = layer.intermediate.dense, layer.output.dense, layer.output.LayerNorm

    def __call__(self, x: Tensor, groups: Sequence[tuple[int, int, int]], heads: int) -> Tensor:
        """(T, d) -> (T, d); ``groups`` are (first token, texts, tokens each)."""
        width = x.shape[1]
        qkv = F.linear(x, self.weight, self.bias)
        context = torch.empty_like(x)
        for start, n, length in groups:
            part = slice(start, start + n * length)
            q, k, v = qkv[part].view(n, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v)
            context[part] = mixed.transpose(1, 2).reshape(n * length, width)
        x = self.norm(self.out(context) + x)
        return self.last_norm(self.down(F.gelu(self.up(x))) + x)


def ot_max_packed(
    hidden: Tensor, counts: Sequence[int], weight: Tensor, bias: Tensor | None = None, chunk: int = CHUNK
) -> Tensor:
    """:func:`~dupmae_ir.models.pooling.ot_max` for packed tokens, forward only.

    ``hidden`` (S, d): the speaking tokens of all texts end to end; ``counts``: how many each text has.
    Returns (B, V); -inf for a text with none.
    """
    pooled = hidden.new_empty(len(counts), weight.shape[0])
    groups = list(runs(counts))
    for first in range(0, weight.shape[0], chunk):
        part = slice(first, min(first + chunk, weight.shape[0]))
        logits = torch.mm(hidden, weight[part].t())
        row = 0
        for start, n, length in groups:
            out = pooled[row : row + n, part]
            if length:
                out.copy_(logits[start : start + n * length].view(n, length, -1).amax(1))
            else:
                out.fill_(-torch.inf)
            row += n
    return pooled if bias is None else pooled.add_(bias)


def runs(lengths: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Neighbours of equal length as (first token, texts, tokens each): [5, 5, 3] -> (0, 2, 5), (10, 1, 3)."""
    start = row = 0
    while row < len(lengths):
        n = 1
        while row + n < len(lengths) and lengths[row + n] == lengths[row]:
            n += 1
        yield start, n, lengths[row]
        start, row = start + n * lengths[row], row + n
