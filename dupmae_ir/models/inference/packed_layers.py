"""The layers of BERT, RoBERTa and ModernBERT on packed texts: a stack computes the last states of their tokens.

The layers are the same on every device; attention is not. :class:`GroupedAttention` computes it for runs of texts of
equal length, so batches should be sorted by length, as the encoder sorts them; :class:`VarlenAttention` is one kernel
for all texts. Query, key and value are one product; weights are packed once on a CPU
(:mod:`dupmae_ir.models.inference.cpu_linear`). Nothing here waits for the device: all that depends on the lengths of
the texts is computed on the host, before the first product.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from importlib.util import find_spec
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dupmae_ir.device import to_device
from dupmae_ir.models import pooling
from dupmae_ir.models.heads.masked_lm import encoder_of
from dupmae_ir.models.inference.cpu_linear import Linear, LinearFactory, pad_rows
from dupmae_ir.models.retriever import Retriever

if TYPE_CHECKING:
    from transformers.models.bert.modeling_bert import BertLayer

ATTENTION_TOKENS = 640
"""Tokens per attention call; their queries, keys and scores fit a core's cache."""

MIN_FUSED_KEYS = 512
"""Keys from which torch's fused attention, which keeps no scores, is used in bfloat16 too."""

SOFTMAX_KEYS = 32
"""Keys that torch's softmax in bfloat16 computes at a time; it takes those left over one by one."""

_ROBERTA = ("Roberta", "XLMRoberta", "Camembert")
_MODERNBERT = ("ModernBertModel", "ModernBertForMaskedLM")
_BERT = {"PlainBert"}
for _family in ("Bert", *_ROBERTA):
    _BERT |= {f"{_family}Model", f"{_family}ForMaskedLM"}


def can_pack(model: Retriever) -> bool:
    """True for BERT and RoBERTa with absolute positions, and ModernBERT, with GELU and max pooling; others use padded
    batches."""
    lm = model.lm
    config = lm.config
    if model.ot_pooling != "max":
        return False
    if type(lm).__name__ in _MODERNBERT:
        # transformers before version 5 keeps its rotations elsewhere.
        return config.hidden_activation == "gelu" and hasattr(encoder_of(lm), "rotary_emb")
    absolute = getattr(config, "position_embedding_type", "absolute") == "absolute"
    return type(lm).__name__ in _BERT and config.hidden_act == "gelu" and absolute


def pick_stack(
    model: Retriever, factory: LinearFactory, products: torch.dtype
) -> BertStack | ModernBertStack:
    """The stack of a model that :func:`can_pack` accepts; ``products``: the dtype of its products and attention."""

    def make_linear(weight: Tensor, bias: Tensor | None, gelu: bool = False) -> Linear:
        if bias is not None:
            bias = bias.to(products)
        return factory(weight.to(products), bias, gelu)

    if type(model.lm).__name__ in _MODERNBERT:
        return ModernBertStack(model, make_linear, products)
    return BertStack(model, make_linear, products)


class Texts(NamedTuple):
    """A batch of texts, end to end."""

    host_ids: np.ndarray  #: (T,) int64
    lengths: list[int]  #: tokens of each text
    ids: Tensor  #: (T or more, ) int64, on the device
    positions: Tensor  #: the position of each in its text, on the device
    starts: Tensor  #: (B,) the first token of each, on the device
    attention: Attention

    @classmethod
    def pack(
        cls,
        texts: Sequence[Sequence[int]],
        padding: int | None,
        kind: type[Attention],
        device: torch.device,
    ) -> Texts:
        """Concatenate texts of at least one id each.

        RoBERTa counts positions from its ``padding`` id, and leaves padding tokens out, also such as a text spells out.
        """
        lengths = [len(text) for text in texts]
        ids = np.fromiter(chain.from_iterable(texts), np.int64, sum(lengths))
        starts = np.cumsum([0, *lengths[:-1]])
        # Position of each token in its text, from 1: its number in the batch, less the tokens of the texts before.
        real = ids != padding
        number = real.cumsum()
        positions = number - np.repeat(number[starts] - real[starts], lengths)
        if padding is None:
            positions = positions - 1
        else:
            positions = positions * real + padding
        return cls(
            ids,
            lengths,
            pad_rows(to_device(torch.from_numpy(ids), device)),
            pad_rows(to_device(torch.from_numpy(positions), device)),
            to_device(torch.from_numpy(starts), device),
            kind(lengths, device),
        )


class BertStack:
    """The embeddings and layers of BERT and RoBERTa."""

    def __init__(self, model: Retriever, factory: LinearFactory, products: torch.dtype) -> None:
        bert: Any = encoder_of(model.lm)
        self._embeddings = bert.embeddings
        # RoBERTa counts positions from its padding id.
        self.padding = None
        if type(model.lm).__name__.startswith(_ROBERTA):
            self.padding = model.lm.config.pad_token_id
        heads = model.lm.config.num_attention_heads
        self._layers = [_BertLayer(layer, heads, factory, products) for layer in bert.encoder.layer]

    def states(self, texts: Texts) -> Tensor:
        """(T or more, d) last hidden states."""
        return self._before(texts, len(self._layers))

    def first(self, texts: Texts) -> Tensor:
        """(B, d) last hidden states of the first token of each text.

        The last layer computes keys and values of all tokens, and everything else for the first tokens alone.
        """
        hidden = self._before(texts, len(self._layers) - 1)
        return self._layers[-1].first(hidden, texts.starts, texts.attention)

    def _before(self, texts: Texts, layers: int) -> Tensor:
        """Hidden states (T or more, d) after the first ``layers`` layers."""
        embeddings = self._embeddings
        words = embeddings.word_embeddings(texts.ids) + embeddings.token_type_embeddings.weight[0]
        hidden = embeddings.LayerNorm(words + embeddings.position_embeddings(texts.positions))
        for layer in self._layers[:layers]:
            hidden = layer(hidden, texts.attention)
        return hidden


class _BertLayer:
    """One BERT layer with the attention projections in one product."""

    def __init__(
        self, layer: BertLayer, heads: int, factory: LinearFactory, products: torch.dtype
    ) -> None:
        self._projections = layer.attention.self
        self._heads = heads
        self._factory = factory
        self._products = products
        output = layer.attention.output
        up = layer.intermediate.dense
        down = layer.output.dense
        self._out: Linear = factory(output.dense.weight, output.dense.bias)
        self._up: Linear = factory(up.weight, up.bias, gelu=True)
        self._down: Linear = factory(down.weight, down.bias)
        self._norm = output.LayerNorm
        self._last_norm = layer.output.LayerNorm

    def __call__(self, x: Tensor, attention: Attention) -> Tensor:
        """(T, d) -> (T, d)."""
        context = attention(self._heads_of(self._qkv, x))
        return self._after(context.flatten(1), x)

    def first(self, x: Tensor, starts: Tensor, attention: Attention) -> Tensor:
        """(T, d) states, (B,) first tokens -> their (B, d)."""
        first = pad_rows(x[starts])
        query, key_value = self._query_and_key_value
        queries = self._heads_of(query, first).squeeze(1)
        context = attention.first(queries, self._heads_of(key_value, x))
        return self._after(context.flatten(1), first)[: len(starts)]

    def _after(self, context: Tensor, x: Tensor) -> Tensor:
        """The layer's output (T, d) from that of its attention and its input ``x``."""
        x = self._norm(self._out(context).to(x.dtype).add_(x))
        return self._last_norm(self._down(self._up(x.to(self._products))).to(x.dtype).add_(x))

    def _heads_of(self, linear: Linear, x: Tensor) -> Tensor:
        """(T, d) -> (T, projections, heads, d')."""
        return linear(x.to(self._products)).view(len(x), -1, self._heads, x.shape[1] // self._heads)

    @cached_property
    def _qkv(self) -> Linear:
        return self._fused("query", "key", "value")

    @cached_property
    def _query_and_key_value(self) -> tuple[Linear, Linear]:
        return self._fused("query"), self._fused("key", "value")

    def _fused(self, *names: str) -> Linear:
        """One product for several projections."""
        layers = [getattr(self._projections, name) for name in names]
        weight = torch.cat([layer.weight for layer in layers])
        bias = torch.cat([layer.bias for layer in layers])
        return self._factory(weight, bias)


class ModernBertStack:
    """ModernBERT: rotary positions, norms before each half of a layer, and windows in most layers."""

    padding = None

    def __init__(self, model: Retriever, factory: LinearFactory, products: torch.dtype) -> None:
        encoder: Any = encoder_of(model.lm)
        self._model = encoder
        self._heads = model.lm.config.num_attention_heads
        self._layers = [_ModernBertLayer(layer, factory, products) for layer in encoder.layers]

    def states(self, texts: Texts) -> Tensor:
        """As :meth:`BertStack.states`."""
        hidden = self._model.embeddings(texts.ids)
        positions = texts.positions.unsqueeze(0)
        # Layers with windows and layers without turn queries and keys by different angles.
        rotations = {}
        for kind in {layer.kind for layer in self._layers}:
            rotations[kind] = self._model.rotary_emb(hidden, positions, kind)
        for layer in self._layers:
            hidden = layer(hidden, texts.attention, self._heads, rotations[layer.kind])
        return self._model.final_norm(hidden)

    def first(self, texts: Texts) -> Tensor:
        """As :meth:`BertStack.first`."""
        return self.states(texts)[texts.starts]


class _ModernBertLayer:
    """One layer: attention with rotated queries and keys, then a gated GELU."""

    def __init__(self, layer: Any, factory: LinearFactory, products: torch.dtype) -> None:
        self.kind = str(layer.attention_type)
        self._products = products
        self._window = None
        if self.kind == "sliding_attention":
            self._window = layer.config.sliding_window
        self._norm = layer.attn_norm
        self._inner_norm = layer.mlp_norm
        self._qkv = factory(layer.attn.Wqkv.weight, layer.attn.Wqkv.bias)
        self._out = factory(layer.attn.Wo.weight, layer.attn.Wo.bias)
        # One matrix has the weights of both factors of the gated GELU.
        inner = layer.mlp.Wi
        up, gate = inner.weight.chunk(2)
        up_bias = gate_bias = None
        if inner.bias is not None:
            up_bias, gate_bias = inner.bias.chunk(2)
        self._up = factory(up, up_bias, gelu=True)
        self._gate = factory(gate, gate_bias)
        self._down = factory(layer.mlp.Wo.weight, layer.mlp.Wo.bias)

    def __call__(
        self, x: Tensor, attention: Attention, heads: int, rotation: tuple[Tensor, Tensor]
    ) -> Tensor:
        """(T, d) -> (T, d); ``rotation``: cosines and sines (1, T, d / heads) of the rotary positions."""
        qkv = self._qkv(self._norm(x).to(self._products)).view(len(x), 3, heads, -1)
        # Queries and keys are turned, values are not.
        query_key = qkv[:, :2].to(x.dtype)
        low, high = query_key.chunk(2, -1)
        cosines, sines = (values[0, :, None, None] for values in rotation)
        qkv[:, :2] = query_key * cosines + torch.cat([-high, low], -1) * sines
        x = self._out(attention(qkv, self._window).flatten(1)).to(x.dtype).add_(x)
        inner = self._inner_norm(x).to(self._products)
        return self._down(self._up(inner).mul_(self._gate(inner))).to(x.dtype).add_(x)


class GroupedAttention:
    """Attention within one run of texts of equal length after the other, on any device and in any precision."""

    def __init__(self, lengths: Sequence[int], _: torch.device) -> None:
        # Of at most ATTENTION_TOKENS tokens, or one text: (first token, texts, tokens of each).
        self._groups: list[tuple[int, int, int]] = []
        for start, texts, length in pooling.runs(lengths):
            size = max(1, ATTENTION_TOKENS // length)
            for text in range(0, texts, size):
                self._groups.append((start + text * length, min(size, texts - text), length))

    def __call__(self, qkv: Tensor, window: int | None = None) -> Tensor:
        """(T, 3, heads, d') -> (T, heads, d'). ``window``: a token sees those at most this far away; None for all."""
        context = torch.zeros_like(qkv[:, 0])
        for start, n, length in self._groups:
            part = slice(start, start + n * length)
            context[part] = attention(qkv[part].unflatten(0, (n, length)), window).flatten(0, 1)
        return context

    def first(self, q: Tensor, kv: Tensor) -> Tensor:
        """Queries (B, heads, d') of the first tokens, keys and values (T, 2, heads, d') of all -> (B, heads, d')."""
        context = torch.zeros_like(q)
        first_text = 0
        for start, n, length in self._groups:
            texts = slice(first_text, first_text + n)
            k, v = kv[start : start + n * length].unflatten(0, (n, length)).unbind(2)
            context[texts] = _attention(q[texts].unsqueeze(1), k, v).squeeze(1)
            first_text += n
        return context


class VarlenAttention:
    """:class:`GroupedAttention` in one call of torch's kernel for texts of any lengths; CUDA in half precision only."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        # Imports the compiler, and is not in torch before 2.10.
        from torch.nn.attention.varlen import varlen_attn

        self._kernel = varlen_attn
        ends = torch.tensor([[0, *accumulate(lengths)], range(len(lengths) + 1)], dtype=torch.int32)
        self._bounds, self._each = to_device(ends, device)
        self._longest = max(lengths)

    def __call__(self, qkv: Tensor, window: int | None = None) -> Tensor:
        near = (-1, -1) if window is None else (window, window)
        return self._attend(qkv[:, 0], qkv[:, 1:], self._bounds, self._longest, near)

    def first(self, q: Tensor, kv: Tensor) -> Tensor:
        return self._attend(q, kv, self._each, 1, (-1, -1))

    def _attend(
        self, q: Tensor, kv: Tensor, bounds: Tensor, longest: int, near: tuple[int, int]
    ) -> Tensor:
        k, v = kv.unbind(1)
        context = self._kernel(
            q, k, v, bounds, self._bounds, longest, self._longest, window_size=near
        )
        assert isinstance(context, Tensor)
        return context


Attention: TypeAlias = GroupedAttention | VarlenAttention


def pick_attention(
    model: Retriever, products: torch.dtype, device: torch.device
) -> tuple[type[Attention], str]:
    """The attention of a model's layers on ``device``, and its name.

    That of variable length needs CUDA, an Ampere GPU, half precision and torch 2.10.
    """
    width = model.lm.config.hidden_size // model.lm.config.num_attention_heads
    able = (
        device.type == "cuda"
        and find_spec("torch.nn.attention.varlen")
        and products.itemsize == 2
        and width % 8 == 0
    )
    if able and torch.cuda.get_device_capability(device) >= (8, 0):
        return VarlenAttention, "attention of variable length"
    return GroupedAttention, "attention by runs of equal length"


def attention(qkv: Tensor, window: int | None = None) -> Tensor:
    """Attention within n texts of one length: (n, L, 3, heads, d') -> (n, L, heads, d').

    ``window``: a token sees those at most this far away; None for all. Keys are then read for blocks of queries, so
    time and memory grow with L, not its square.
    """
    q, k, v = qkv.unbind(2)
    length = q.shape[1]
    if window is None or length <= window + 1:
        return _attention(q, k, v)
    positions = torch.arange(length)
    block = 2 * window
    context = torch.empty_like(q)
    for start in range(0, length, block):
        queries = slice(start, start + block)
        # Everything that a query of the block sees.
        keys = slice(max(0, start - window), start + block + window)
        near = (positions[queries].unsqueeze(1) - positions[keys]).abs() <= window
        context[:, queries] = _attention(q[:, queries], k[:, keys], v[:, keys], near)
    return context


def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Queries (n, Q, heads, d') with keys and values (n, L, heads, d') -> (n, Q, heads, d').

    ``mask`` (Q, L): True for the keys that a query sees. In bfloat16, two batched products with a softmax between them
    take three quarters of the time of torch's fused kernel, which is optimised for long texts. The softmax adds up in
    float32, in place of the scores. Float32 scores would be twice as large, too large for the allocator to keep:
    clearing their pages took longer than everything else, and the results were no closer to float64.
    """
    n, queries, heads, width = q.shape
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if q.dtype != torch.bfloat16 or k.shape[2] > MIN_FUSED_KEYS:
        return F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2)
    keys = k.shape[2]
    unused = -keys % SOFTMAX_KEYS
    q = q.reshape(n * heads, queries, width)
    k, v = (F.pad(x.reshape(n * heads, keys, width), (0, 0, 0, unused)) for x in (k, v))
    # Scaled within the product, before it is rounded to bfloat16; with beta 0, the first argument is not read.
    scores = torch.baddbmm(q.new_empty(1, 1, 1), q, k.transpose(1, 2), beta=0, alpha=width**-0.5)
    scores[..., keys:] = -torch.inf
    if mask is not None:
        scores[..., :keys].masked_fill_(~mask, -torch.inf)
    torch.softmax(scores, -1, out=scores)
    context = torch.bmm(scores, v)
    return context.view(n, heads, queries, width).transpose(1, 2)
