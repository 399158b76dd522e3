"""BERT and RoBERTa inference without padding: the texts of a batch are concatenated into one (T, d) matrix.

Weights and arithmetic are those of :class:`~dupmae_ir.models.retriever.Retriever`, the reference in the tests. Saved
are the work on padding, two thirds of the projection calls (query, key and value are one), the packing of weights at
every call (:mod:`dupmae_ir.models.inference.cpu_linear`) and, in float32, half the work of the head
(:mod:`dupmae_ir.models.inference.topk_screen`). Attention is computed for runs of texts of equal length, so batches
should be sorted by length, as the encoder sorts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dupmae_ir.device import cpu_supports_bf16
from dupmae_ir.models import pooling
from dupmae_ir.models.heads.masked_lm import encoder_of
from dupmae_ir.models.inference.cpu_linear import (
    Linear,
    LinearFactory,
    RowBlocks,
    pad_rows,
    pick_linear,
    row_blocks,
    torch_linear,
)
from dupmae_ir.models.inference.topk_screen import MOST_CANDIDATES, Screen, candidates, refine
from dupmae_ir.models.retriever import Parts, Retriever

if TYPE_CHECKING:
    from transformers.models.bert.modeling_bert import BertLayer

ATTENTION_TOKENS = 640
"""Tokens per attention call; their queries, keys and scores fit a core's cache."""

Top = tuple[Tensor, Tensor]
"""Ids (B, k) and weights (B, k), as returned by :func:`~dupmae_ir.models.pooling.strongest`."""


_ROBERTA = ("Roberta", "XLMRoberta", "Camembert")
_PACKED = {"PlainBert", *(f"{family}{kind}" for family in ("Bert", *_ROBERTA) for kind in ("Model", "ForMaskedLM"))}


def can_pack(model: Retriever) -> bool:
    """True for BERT and RoBERTa models with GELU, absolute positions and max pooling; others use padded batches."""
    config = model.lm.config
    return (
        model.ot_pooling == "max"
        and type(model.lm).__name__ in _PACKED
        and config.hidden_act == "gelu"
        and getattr(config, "position_embedding_type", "absolute") == "absolute"
    )


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
        bert: Any = encoder_of(model.lm)
        dtype = bert.embeddings.word_embeddings.weight.dtype
        self._linear, self.kernel = pick_linear(dtype)
        self._layer_linear, self._products = self._linear, products or dtype
        if self._products != dtype:
            self._layer_linear, reason = pick_linear(self._products)
            self.kernel += f"; those of the layers in {str(self._products).removeprefix('torch.')}: {reason}"
        self.embeddings = bert.embeddings
        # RoBERTa counts positions from the padding id, and leaves padding tokens out, also such as a text spells out.
        self._padding = model.lm.config.pad_token_id if type(model.lm).__name__.startswith(_ROBERTA) else None
        self.heads = model.lm.config.num_attention_heads
        self.layers = [_PackedLayer(layer, self._layer_linear, self._products) for layer in bert.encoder.layer]
        self._last = bert.encoder.layer[-1]
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
        hidden, _ = self._before(ids, lengths, len(self.layers))
        return hidden[: len(ids)]

    def first(self, ids: Tensor, lengths: Sequence[int]) -> Tensor:
        """(T,) ids of texts of these lengths -> (B, d) last hidden states of the first token of each.

        The last layer computes keys and values of all tokens, and everything else for the first tokens alone.
        """
        hidden, groups = self._before(ids, lengths, len(self.layers) - 1)
        return self._last_first(hidden, _starts(lengths), groups, self.heads)

    @cached_property
    def _last_first(self) -> _FirstRows:
        return _FirstRows(self._last, self._layer_linear, self._products)

    def _before(self, ids: Tensor, lengths: Sequence[int], layers: int) -> tuple[Tensor, list[tuple[int, int, int]]]:
        """Hidden states (T or more, d) after the first ``layers`` layers, and the groups of attention."""
        e = self.embeddings
        if self._padding is None:
            positions = torch.cat([torch.arange(n) for n in lengths])
        else:
            real = (ids != self._padding).long().split(list(lengths))
            positions = torch.cat([one.cumsum(0) * one for one in real]) + self._padding
        words = e.word_embeddings(ids) + e.token_type_embeddings.weight[0] + e.position_embeddings(positions)
        hidden = pad_rows(e.LayerNorm(words))
        groups = list(_attention_groups(lengths))
        for layer in self.layers[:layers]:
            hidden = layer(hidden, groups, self.heads)
        return hidden, groups

    def _forward(self, texts: Sequence[Sequence[int]]) -> tuple[Tensor, list[int], Tensor]:
        ids, lengths = torch.tensor([i for t in texts for i in t]), [len(t) for t in texts]
        return ids, lengths, self.hidden(ids, lengths)

    def _cls(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        if self.model.pooling != "cls":
            texts = hidden.split(list(lengths))
            return self.model.project(torch.stack([_mean(states, self.model.pooling) for states in texts]))
        return self.model.project(hidden[_starts(lengths)])

    def _first_cls(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """[CLS] vectors of texts whose token states nothing else needs."""
        if self.model.pooling != "cls":
            _, sizes, hidden = self._forward(texts)
            return self._cls(hidden, sizes)
        ids, lengths = torch.tensor([i for t in texts for i in t]), [len(t) for t in texts]
        return self.model.project(self.first(ids, lengths))

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


class _PackedLayer(_AfterAttention):
    """One BERT layer with the three attention projections in one."""

    def __init__(self, layer: BertLayer, factory: LinearFactory, products: torch.dtype) -> None:
        super().__init__(layer, factory := _rounded(factory, products), products)
        a = layer.attention.self
        self.qkv = _fused((a.query, a.key, a.value), factory)

    def __call__(self, x: Tensor, groups: Sequence[tuple[int, int, int]], heads: int) -> Tensor:
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
        super().__init__(layer, factory := _rounded(factory, products), products)
        a = layer.attention.self
        self.query, self.key_value = _fused((a.query,), factory), _fused((a.key, a.value), factory)

    def __call__(self, x: Tensor, starts: Tensor, groups: Sequence[tuple[int, int, int]], heads: int) -> Tensor:
        """(T, d) states, (B,) first tokens -> (B, d); groups as in :class:`_PackedLayer`, texts in the same order."""
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


def _fused(layers: Sequence[torch.nn.Linear], factory: LinearFactory) -> Linear:
    """One product for several layers of the same input."""
    return factory(torch.cat([layer.weight for layer in layers]), torch.cat([layer.bias for layer in layers]))


def _rounded(factory: LinearFactory, dtype: torch.dtype) -> LinearFactory:
    """``factory`` for weights rounded to ``dtype``."""

    def linear(weight: Tensor, bias: Tensor | None, gelu: bool = False) -> Linear:
        return factory(weight.to(dtype), None if bias is None else bias.to(dtype), gelu)

    return linear


def attention(qkv: Tensor) -> Tensor:
    """Full attention within n texts of one length: (n, L, 3, heads, d') -> (n, L, heads, d')."""
    return _attention(*qkv.unbind(2))


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Queries (n, Q, heads, d') with keys and values (n, L, heads, d') -> (n, Q, heads, d').

    In bfloat16, two batched products with a float32 softmax between them take half the time of torch's fused kernel,
    which is optimised for long texts.
    """
    n, queries, heads, width = q.shape
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if q.dtype != torch.bfloat16:
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
    q, k, v = (x.reshape(n * heads, x.shape[2], width) for x in (q, k, v))
    shares = torch.softmax(torch.bmm(q, k.transpose(1, 2)).float().mul_(width**-0.5), -1)
    return torch.bmm(shares.to(v.dtype), v).view(n, heads, queries, width).transpose(1, 2)


def _mean(states: Tensor, pooling: str) -> Tensor:
    """(L, d) states of a text -> (d,): the last, their mean, or with ``weighted-mean`` the n-th n times as heavy."""
    if pooling == "last":
        return states[-1]
    if pooling == "mean":
        return states.mean(0)
    weights = torch.arange(1, len(states) + 1, dtype=states.dtype).unsqueeze(1)
    return (states * weights).sum(0) / weights.sum()


def _starts(lengths: Sequence[int]) -> Tensor:
    """(B,) the first token of each text."""
    return torch.tensor([0, *lengths[:-1]]).cumsum(0)


def _attention_groups(lengths: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """:func:`~dupmae_ir.models.pooling.runs` of at most :data:`ATTENTION_TOKENS` tokens, or one text."""
    for start, n, length in pooling.runs(lengths):
        size = max(1, ATTENTION_TOKENS // max(1, length))
        for first in range(0, n, size):
            yield start + first * length, min(size, n - first), length
