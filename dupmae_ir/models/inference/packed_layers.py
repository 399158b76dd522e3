"""The layers of BERT, RoBERTa and ModernBERT on packed texts: a stack computes the last states of their tokens.

Attention is computed for runs of texts of equal length, so batches should be sorted by length, as the encoder sorts
them. Query, key and value are one product; weights are packed once (:mod:`dupmae_ir.models.inference.cpu_linear`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dupmae_ir.models import pooling
from dupmae_ir.models.heads.masked_lm import encoder_of
from dupmae_ir.models.inference.cpu_linear import Linear, LinearFactory, pad_rows
from dupmae_ir.models.retriever import Retriever

if TYPE_CHECKING:
    from transformers.models.bert.modeling_bert import BertLayer

ATTENTION_TOKENS = 640
"""Tokens per attention call; their queries, keys and scores fit a core's cache."""

LONG = 512
"""Keys from which torch's fused attention, which keeps no scores, is used in bfloat16 too."""

_ROBERTA = ("Roberta", "XLMRoberta", "Camembert")
_MODERNBERT = ("ModernBertModel", "ModernBertForMaskedLM")
_BERT = {"PlainBert", *(f"{family}{kind}" for family in ("Bert", *_ROBERTA) for kind in ("Model", "ForMaskedLM"))}

Group = tuple[int, int, int]
"""Texts of one length: first token, number of texts, tokens of each."""


def can_pack(model: Retriever) -> bool:
    """True for BERT and RoBERTa with absolute positions, and ModernBERT, with GELU and max pooling; others use padded
    batches."""
    lm, config = model.lm, model.lm.config
    if model.ot_pooling != "max":
        return False
    if type(lm).__name__ in _MODERNBERT:  # transformers before version 5 keeps its rotations elsewhere
        return config.hidden_activation == "gelu" and hasattr(encoder_of(lm), "rotary_emb")
    absolute = getattr(config, "position_embedding_type", "absolute") == "absolute"
    return type(lm).__name__ in _BERT and config.hidden_act == "gelu" and absolute


def pick_stack(model: Retriever, factory: LinearFactory, products: torch.dtype) -> BertStack | ModernBertStack:
    """The stack of a model that :func:`can_pack` accepts; ``products``: the dtype of its products and attention."""
    stack = ModernBertStack if type(model.lm).__name__ in _MODERNBERT else BertStack
    return stack(model, _rounded(factory, products), products)


class BertStack:
    """The embeddings and layers of BERT and RoBERTa."""

    def __init__(self, model: Retriever, factory: LinearFactory, products: torch.dtype) -> None:
        bert: Any = encoder_of(model.lm)
        self._embeddings, self._factory, self._products = bert.embeddings, factory, products
        # RoBERTa counts positions from the padding id, and leaves padding tokens out, also such as a text spells out.
        self._padding = model.lm.config.pad_token_id if type(model.lm).__name__.startswith(_ROBERTA) else None
        self._heads = model.lm.config.num_attention_heads
        self._layers = [_BertLayer(layer, factory, products) for layer in bert.encoder.layer]
        self._last = bert.encoder.layer[-1]

    def states(self, ids: Tensor, lengths: Sequence[int]) -> Tensor:
        """(T,) ids of texts of these lengths -> (T or more, d) last hidden states."""
        return self._before(ids, lengths, len(self._layers))[0]

    def first(self, ids: Tensor, lengths: Sequence[int]) -> Tensor:
        """(T,) ids of texts of these lengths -> (B, d) last hidden states of the first token of each.

        The last layer computes keys and values of all tokens, and everything else for the first tokens alone.
        """
        hidden, groups = self._before(ids, lengths, len(self._layers) - 1)
        return self._last_first(hidden, starts(lengths), groups, self._heads)

    @cached_property
    def _last_first(self) -> _FirstRows:
        return _FirstRows(self._last, self._factory, self._products)

    def _before(self, ids: Tensor, lengths: Sequence[int], layers: int) -> tuple[Tensor, list[Group]]:
        """Hidden states (T or more, d) after the first ``layers`` layers, and the groups of attention."""
        e = self._embeddings
        if self._padding is None:
            positions = torch.cat([torch.arange(n) for n in lengths])
        else:
            real = (ids != self._padding).long().split(list(lengths))
            positions = torch.cat([one.cumsum(0) * one for one in real]) + self._padding
        words = e.word_embeddings(ids) + e.token_type_embeddings.weight[0] + e.position_embeddings(positions)
        hidden = pad_rows(e.LayerNorm(words))
        groups = list(_attention_groups(lengths))
        for layer in self._layers[:layers]:
            hidden = layer(hidden, groups, self._heads)
        return hidden, groups


class _AfterAttention:
    """The part of a BERT layer that follows its attention."""

    def __init__(self, layer: BertLayer, factory: LinearFactory, products: torch.dtype) -> None:
        self.products, output = products, layer.attention.output
        self.out: Linear = factory(output.dense.weight, output.dense.bias)
        self.up: Linear = factory(layer.intermediate.dense.weight, layer.intermediate.dense.bias, gelu=True)
        self.down: Linear = factory(layer.output.dense.weight, layer.output.dense.bias)
        self.norm, self.last_norm = output.LayerNorm, layer.output.LayerNorm

    def after(self, context: Tensor, x: Tensor) -> Tensor:
        """The layer's output (T, d) from that of its attention and its input ``x``."""
        x = self.norm(self.out(context).to(x.dtype).add_(x))
        return self.last_norm(self.down(self.up(x.to(self.products))).to(x.dtype).add_(x))


class _BertLayer(_AfterAttention):
    """One BERT layer with the three attention projections in one."""

    def __init__(self, layer: BertLayer, factory: LinearFactory, products: torch.dtype) -> None:
        super().__init__(layer, factory, products)
        a = layer.attention.self
        self.qkv = _fused((a.query, a.key, a.value), factory)

    def __call__(self, x: Tensor, groups: Sequence[Group], heads: int) -> Tensor:
        """(T, d) -> (T, d); each group is (first token, texts, tokens each)."""
        width, rounded = x.shape[1], x.to(self.products)
        qkv = self.qkv(rounded)
        context = torch.zeros_like(rounded)
        for start, n, length in groups:
            part = slice(start, start + n * length)
            context[part] = attention(qkv[part].view(n, length, 3, heads, width // heads)).reshape(n * length, width)
        return self.after(context, x)


class _FirstRows(_AfterAttention):
    """A BERT layer whose output is needed only for the first token of each text."""

    def __init__(self, layer: BertLayer, factory: LinearFactory, products: torch.dtype) -> None:
        super().__init__(layer, factory, products)
        a = layer.attention.self
        self.query, self.key_value = _fused((a.query,), factory), _fused((a.key, a.value), factory)

    def __call__(self, x: Tensor, starts: Tensor, groups: Sequence[Group], heads: int) -> Tensor:
        """(T, d) states, (B,) first tokens -> (B, d); groups as in :class:`_BertLayer`, texts in the same order."""
        width = x.shape[1]
        first = pad_rows(x[starts])
        queries, keys_values = self.query(first.to(self.products)), self.key_value(x.to(self.products))
        context, done = torch.zeros_like(queries), 0
        for start, n, length in groups:
            q = queries[done : done + n].view(n, 1, heads, width // heads)
            k, v = keys_values[start : start + n * length].view(n, length, 2, heads, width // heads).unbind(2)
            context[done : done + n] = _attention(q, k, v).reshape(n, width)
            done += n
        return self.after(context, first)[: len(starts)]


class ModernBertStack:
    """ModernBERT: rotary positions, norms before each half of a layer, and windows in most layers."""

    def __init__(self, model: Retriever, factory: LinearFactory, products: torch.dtype) -> None:
        encoder: Any = encoder_of(model.lm)
        self._model, self._heads = encoder, model.lm.config.num_attention_heads
        self._layers = [_ModernBertLayer(layer, factory, products) for layer in encoder.layers]

    def states(self, ids: Tensor, lengths: Sequence[int]) -> Tensor:
        """As :meth:`BertStack.states`."""
        hidden = pad_rows(self._model.embeddings(ids))
        positions = F.pad(torch.cat([torch.arange(n) for n in lengths]), (0, len(hidden) - len(ids)))
        kinds = {layer.kind for layer in self._layers}
        turns = {kind: self._model.rotary_emb(hidden, positions.unsqueeze(0), kind) for kind in kinds}
        groups = list(_attention_groups(lengths))
        for layer in self._layers:
            hidden = layer(hidden, groups, self._heads, turns[layer.kind])
        return self._model.final_norm(hidden)

    def first(self, ids: Tensor, lengths: Sequence[int]) -> Tensor:
        """As :meth:`BertStack.first`."""
        return self.states(ids, lengths)[starts(lengths)]


class _ModernBertLayer:
    """One layer: attention with rotated queries and keys, then a gated GELU."""

    def __init__(self, layer: Any, factory: LinearFactory, products: torch.dtype) -> None:
        self.kind, self._products = str(layer.attention_type), products
        self._window = layer.config.sliding_window if self.kind == "sliding_attention" else None
        self._norm, self._inner_norm = layer.attn_norm, layer.mlp_norm
        self._qkv, self._out = (factory(one.weight, one.bias) for one in (layer.attn.Wqkv, layer.attn.Wo))
        inner = layer.mlp.Wi
        (up, gate), biases = inner.weight.chunk(2), (None, None) if inner.bias is None else inner.bias.chunk(2)
        self._up, self._gate = factory(up, biases[0], gelu=True), factory(gate, biases[1])
        self._down = factory(layer.mlp.Wo.weight, layer.mlp.Wo.bias)

    def __call__(self, x: Tensor, groups: Sequence[Group], heads: int, turns: tuple[Tensor, Tensor]) -> Tensor:
        """(T, d) -> (T, d); ``turns``: cosines and sines (1, T, d / heads) of the rotary positions."""
        qkv = self._qkv(self._norm(x).to(self._products)).view(len(x), 3, heads, -1)
        turned = qkv[:, :2].to(x.dtype)
        low, high = turned.chunk(2, -1)
        cosines, sines = (one[0, :, None, None] for one in turns)
        qkv[:, :2] = turned * cosines + torch.cat([-high, low], -1) * sines
        context = torch.zeros_like(qkv[:, 0])
        for start, n, length in groups:
            part = slice(start, start + n * length)
            context[part] = attention(qkv[part].unflatten(0, (n, length)), self._window).flatten(0, 1)
        x = self._out(context.flatten(1)).to(x.dtype).add_(x)
        inner = self._inner_norm(x).to(self._products)
        return self._down(self._up(inner).mul_(self._gate(inner))).to(x.dtype).add_(x)


def _fused(layers: Sequence[torch.nn.Linear], factory: LinearFactory) -> Linear:
    """One product for several layers of the same input."""
    return factory(torch.cat([layer.weight for layer in layers]), torch.cat([layer.bias for layer in layers]))


def _rounded(factory: LinearFactory, dtype: torch.dtype) -> LinearFactory:
    """``factory`` for weights rounded to ``dtype``."""

    def linear(weight: Tensor, bias: Tensor | None, gelu: bool = False) -> Linear:
        return factory(weight.to(dtype), None if bias is None else bias.to(dtype), gelu)

    return linear


def attention(qkv: Tensor, window: int | None = None) -> Tensor:
    """Attention within n texts of one length: (n, L, 3, heads, d') -> (n, L, heads, d').

    ``window``: a token sees those at most this far away; None for all. Keys are then read for blocks of queries, so
    time and memory grow with L, not its square.
    """
    q, k, v = qkv.unbind(2)
    length = q.shape[1]
    if window is None or length <= window + 1:
        return _attention(q, k, v)
    places, block = torch.arange(length), 2 * window
    context = torch.empty_like(q)
    for start in range(0, length, block):
        queries, keys = slice(start, start + block), slice(max(0, start - window), start + block + window)
        near = (places[queries].unsqueeze(1) - places[keys]).abs() <= window
        context[:, queries] = _attention(q[:, queries], k[:, keys], v[:, keys], near)
    return context


def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Queries (n, Q, heads, d') with keys and values (n, L, heads, d') -> (n, Q, heads, d').

    ``mask`` (Q, L): True for the keys that a query sees. In bfloat16, two batched products with a float32 softmax
    between them take half the time of torch's fused kernel, which is optimised for long texts.
    """
    n, queries, heads, width = q.shape
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if q.dtype != torch.bfloat16 or k.shape[2] > LONG:
        return F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2)
    q, k, v = (x.reshape(n * heads, x.shape[2], width) for x in (q, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)).float().mul_(width**-0.5)
    if mask is not None:
        scores.masked_fill_(~mask, -torch.inf)
    return torch.bmm(torch.softmax(scores, -1).to(v.dtype), v).view(n, heads, queries, width).transpose(1, 2)


def starts(lengths: Sequence[int]) -> Tensor:
    """(B,) the first token of each text."""
    return torch.tensor([0, *lengths[:-1]]).cumsum(0)


def _attention_groups(lengths: Sequence[int]) -> Iterator[Group]:
    """:func:`~dupmae_ir.models.pooling.runs` of at most :data:`ATTENTION_TOKENS` tokens, or one text."""
    for start, n, length in pooling.runs(lengths):
        size = max(1, ATTENTION_TOKENS // max(1, length))
        for first in range(0, n, size):
            yield start + first * length, min(size, n - first), length
