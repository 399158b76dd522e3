"""BERT without padding, for inference: the texts of a batch lie end to end in one (T, d) matrix.

Same weights and same arithmetic as :class:`~dupmae_ir.models.retriever.Retriever`, which stays the oracle in the tests;
what is saved is the work on padding, two thirds of the projection calls (query, key and value are one), the packing of
weights at every call (:mod:`dupmae_ir.models.inference.cpu_linear`) and, in float32, half the work of the head
(:mod:`dupmae_ir.models.inference.topk_screen`). Attention needs equal lengths side by side, so batches should be
sorted by length, as the encoder sorts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dupmae_ir.device import cpu_multiplies_bf16
from dupmae_ir.models import pooling
from dupmae_ir.models.inference.cpu_linear import Pieces, Product, even, in_pieces, pick_products, plain
from dupmae_ir.models.inference.topk_screen import MOST_CANDIDATES, Screen, candidates, refine
from dupmae_ir.models.masked_lm import head_of
from dupmae_ir.models.retriever import Retriever

ATTENDING = 640
"""Tokens whose attention is computed at a time: their queries, keys and scores stay in a core's cache."""

Top = tuple[Tensor, Tensor]
"""Ids (B, k) and weights (B, k) as :func:`~dupmae_ir.models.pooling.strongest` gives them."""


def can_pack(model: Retriever) -> bool:
    """True for BERT layouts with GELU and absolute positions; other families take the padded path."""
    config = model.lm.config
    return (
        type(model.lm).__name__ in {"BertForMaskedLM", "BertModel"}
        and config.hidden_act == "gelu"
        and getattr(config, "position_embedding_type", "absolute") == "absolute"
    )


def pick_screen(dtype: torch.dtype) -> tuple[bool, str]:
    """Whether the head's top k is screened in bfloat16 before it is computed in ``dtype`` on the CPU, and why."""
    if dtype != torch.float32:
        return False, f"the head runs in {str(dtype).removeprefix('torch.')} throughout"
    if not cpu_multiplies_bf16():
        return False, "the head runs in float32 throughout: the CPU does not multiply bfloat16"
    return True, "the head's top k screened in bfloat16 with a proof, refined in float32"


class PackedRetriever:
    """``model`` on packed batches. ``kernel`` and ``head_kernel`` say what its layers and its head run on, and why.

    The weights are shared, but for the fused query-key-value matrices and what the kernels pack for themselves.
    ``screened`` and ``unscreened`` count the texts whose top k was proved, and those that had to be computed in full.
    """

    def __init__(self, model: Retriever) -> None:
        self.model = model
        bert: Any = getattr(model.lm, "bert", model.lm)
        dtype = bert.embeddings.word_embeddings.weight.dtype
        product, self.kernel = pick_products(dtype)
        self.embeddings = bert.embeddings
        self.heads = bert.config.num_attention_heads
        self.layers = [_Layer(layer, product) for layer in bert.encoder.layer]
        screens, self.head_kernel = pick_screen(dtype)
        self._screens = screens
        self._product = product
        self.screened = self.unscreened = 0

    def __call__(self, texts: Sequence[Sequence[int]], cls: bool = True, ot: bool = True) -> tuple[Any, Any]:
        """Token ids of B texts, specials included -> ([CLS] part (B, d') or None, OT part (B, V) or None)."""
        ids, lengths, hidden = self._read(texts)
        return self._cls(hidden, lengths) if cls else None, self._ot(hidden, ids, lengths) if ot else None

    def top(self, texts: Sequence[Sequence[int]], cls: bool, keep: int) -> tuple[Tensor | None, Top | None]:
        """As a call, with the ``keep`` strongest words of each text instead of its whole OT part; 0 for no OT part."""
        ids, lengths, hidden = self._read(texts)
        return self._cls(hidden, lengths) if cls else None, self._top(hidden, ids, lengths, keep) if keep else None

    def hidden(self, ids: Tensor, lengths: Sequence[int]) -> Tensor:
        """(T,) ids of texts of these lengths -> (T, d) last hidden states."""
        e = self.embeddings
        positions = torch.cat([torch.arange(n) for n in lengths])
        words = e.word_embeddings(ids) + e.token_type_embeddings.weight[0] + e.position_embeddings(positions)
        hidden = even(e.LayerNorm(words))
        groups = list(_bites(lengths))
        for layer in self.layers:
            hidden = layer(hidden, groups, self.heads)
        return hidden[: len(ids)]

    def _read(self, texts: Sequence[Sequence[int]]) -> tuple[Tensor, list[int], Tensor]:
        ids, lengths = torch.tensor([i for t in texts for i in t]), [len(t) for t in texts]
        return ids, lengths, self.hidden(ids, lengths)

    def _cls(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        return self.model.project(hidden[torch.tensor([0, *lengths[:-1]]).cumsum(0)])

    def _speaking(self, hidden: Tensor, ids: Tensor, lengths: Sequence[int]) -> tuple[Tensor, list[int]]:
        """What the projection reads: the transformed states of the tokens that speak, and how many each text has."""
        speaks = self.model.speaks[ids]
        counts = [int(part.sum()) for part in speaks.split(list(lengths))]
        return head_of(self.model.lm).transform(even(hidden[speaks]))[: sum(counts)], counts

    @cached_property
    def _screen(self) -> Screen:
        head = head_of(self.model.lm)
        return Screen.of(head.weight, head.bias)

    @cached_property
    def _words(self) -> Pieces | Tensor:
        """The head's projection; in pieces where the products are packed and the screen does not stand before it."""
        weight = head_of(self.model.lm).weight
        return weight if self._screens or self._product is plain else in_pieces(weight, self._product)

    def _ot(self, hidden: Tensor, ids: Tensor, lengths: Sequence[int]) -> Tensor:
        speaking, counts = self._speaking(hidden, ids, lengths)
        return self._whole(speaking, counts)

    def _whole(self, speaking: Tensor, counts: Sequence[int]) -> Tensor:
        model, head = self.model, head_of(self.model.lm)
        pooled = pooling.ot_max_packed(speaking, counts, self._words, head.bias)
        silent = ~(model.heard & (torch.tensor(counts) > 0).unsqueeze(1))
        return pooling.ACTIVATIONS[model.activation](pooled.masked_fill_(silent, 0.0))

    def _top(self, hidden: Tensor, ids: Tensor, lengths: Sequence[int], keep: int) -> Top:
        speaking, counts = self._speaking(hidden, ids, lengths)
        if self._screens and (proved := self._screened(speaking, counts, keep)):
            self.screened += len(counts)
            return proved
        self.unscreened += len(counts)
        return pooling.strongest(self._whole(speaking, counts).float(), keep)

    def _screened(self, speaking: Tensor, counts: Sequence[int], keep: int) -> Top | None:
        """The same by screening; None where that would save nothing."""
        model = self.model
        wanted = candidates(self._screen, speaking, counts, model.heard, keep)
        if int(wanted.sum()) > MOST_CANDIDATES * keep * len(counts):
            return None
        words, values = refine(self._screen, speaking, counts, wanted)
        weights = pooling.ACTIVATIONS[model.activation](values)
        places, weights = pooling.strongest(weights, keep)
        return words.gather(1, places.clamp_min(0)).masked_fill_(places < 0, -1), weights


class _Layer:
    """One BERT layer with the three attention projections in one."""

    def __init__(self, layer: Any, product: Any) -> None:
        a = layer.attention
        parts = (a.self.query, a.self.key, a.self.value)
        self.qkv: Product = product(torch.cat([p.weight for p in parts]), torch.cat([p.bias for p in parts]))
        self.out: Product = product(a.output.dense.weight, a.output.dense.bias)
        self.up: Product = product(layer.intermediate.dense.weight, layer.intermediate.dense.bias, gelu=True)
        self.down: Product = product(layer.output.dense.weight, layer.output.dense.bias)
        self.norm, self.last_norm = a.output.LayerNorm, layer.output.LayerNorm

    def __call__(self, x: Tensor, groups: Sequence[tuple[int, int, int]], heads: int) -> Tensor:
        """(T, d) -> (T, d); ``groups`` are (first token, texts, tokens each)."""
        width = x.shape[1]
        qkv = self.qkv(x)
        context = torch.zeros_like(x)
        for start, n, length in groups:
            part = slice(start, start + n * length)
            context[part] = attention(qkv[part].view(n, length, 3, heads, width // heads)).reshape(n * length, width)
        x = self.norm(self.out(context).add_(x))
        return self.last_norm(self.down(self.up(x)).add_(x))


def attention(qkv: Tensor) -> Tensor:
    """Full attention among n texts of one length: (n, L, 3, heads, d') -> (n, L, heads, d').

    In bfloat16 two batched products with a float32 softmax between them take half the time of torch's fused kernel,
    which is written for long texts.
    """
    n, length, _, heads, width = qkv.shape
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    if qkv.dtype != torch.bfloat16:
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
    q, k, v = (x.reshape(n * heads, length, width) for x in (q, k, v))
    shares = torch.softmax(torch.bmm(q, k.transpose(1, 2)).float().mul_(width**-0.5), -1)
    return torch.bmm(shares.to(v.dtype), v).view(n, heads, length, width).transpose(1, 2)


def _bites(lengths: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """:func:`~dupmae_ir.models.pooling.runs` of at most :data:`ATTENDING` tokens, or one text."""
    for start, n, length in pooling.runs(lengths):
        size = max(1, ATTENDING // max(1, length))
        for first in range(0, n, size):
            yield start + first * length, min(size, n - first), length
