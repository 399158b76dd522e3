"""BERT for inference without importing transformers, with modules named as in its checkpoints.

:mod:`dupmae_ir.models.inference.packed` computes on these modules or on transformers' own, which have the same names.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dupmae_ir.models.checkpoints.plain_files import BertShape


class PlainBert(nn.Module):
    """A BERT encoder with its masked-LM head, whose projection is the word embeddings: ``BertForMaskedLM``."""

    def __init__(self, config: BertShape) -> None:
        super().__init__()
        self.config = config
        self.bert = PlainEncoder(config)
        self.cls = _Head(config)
        self.tie()

    def tie(self) -> None:
        """Make the word embeddings the head's projection."""
        self.cls.predictions.decoder.weight = nn.Parameter(self.bert.embeddings.word_embeddings.weight)


class States(NamedTuple):
    """The output of an encoder."""

    last_hidden_state: Tensor  #: (B, L, d)


class PlainEncoder(nn.Module):
    """A BERT encoder without a pooler: ``BertModel``."""

    def __init__(self, config: BertShape) -> None:
        super().__init__()
        self.config = config
        self.embeddings = _Embeddings(config)
        self.encoder = _Stack(config)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> States:
        """(B, L) ids and mask -> the last hidden states; the reference for packed batches, which are faster."""
        hidden = self.embeddings(input_ids)
        seen = attention_mask.bool()[:, None, None, :]
        for layer in self.encoder.layer:
            hidden = layer(hidden, seen, self.config.num_attention_heads)
        return States(hidden)


class _Linear(nn.Module):
    """``nn.Linear`` without its random initial weights, which take longer than reading a file."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outer, inner))
        self.bias = nn.Parameter(torch.empty(outer))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


def _embedding(rows: int, width: int) -> nn.Embedding:
    return nn.Embedding(rows, width, _weight=torch.empty(rows, width))


class _Embeddings(nn.Module):
    def __init__(self, config: BertShape) -> None:
        super().__init__()
        self.word_embeddings = _embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = _embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = _embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, input_ids: Tensor) -> Tensor:
        types, positions = self.token_type_embeddings.weight[0], self.position_embeddings.weight
        return self.LayerNorm(self.word_embeddings(input_ids) + types + positions[: input_ids.shape[1]])


class _Stack(nn.Module):
    def __init__(self, config: BertShape) -> None:
        super().__init__()
        self.layer = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))


class _Layer(nn.Module):
    def __init__(self, config: BertShape) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.attention = _Attention(config)
        self.intermediate = nn.ModuleDict({"dense": _Linear(width, inner)})
        self.output = _Output(inner, width, config.layer_norm_eps)

    def forward(self, x: Tensor, seen: Tensor, heads: int) -> Tensor:
        x = self.attention(x, seen, heads)
        return self.output(F.gelu(self.intermediate["dense"](x)), x)


class _Attention(nn.Module):
    def __init__(self, config: BertShape) -> None:
        super().__init__()
        width = config.hidden_size
        self.self = nn.ModuleDict({name: _Linear(width, width) for name in ("query", "key", "value")})
        self.output = _Output(width, width, config.layer_norm_eps)

    def forward(self, x: Tensor, seen: Tensor, heads: int) -> Tensor:
        q, k, v = (self.self[name](x).unflatten(-1, (heads, -1)).transpose(1, 2) for name in ("query", "key", "value"))
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.output(context.transpose(1, 2).flatten(2), x)


class _Output(nn.Module):
    def __init__(self, inner: int, width: int, epsilon: float) -> None:
        super().__init__()
        self.dense = _Linear(inner, width)
        self.LayerNorm = nn.LayerNorm(width, eps=epsilon)

    def forward(self, inner: Tensor, x: Tensor) -> Tensor:
        return self.LayerNorm(self.dense(inner) + x)


class _Head(nn.Module):
    def __init__(self, config: BertShape) -> None:
        super().__init__()
        self.predictions = _Predictions(config)


class _Predictions(nn.Module):
    def __init__(self, config: BertShape) -> None:
        super().__init__()
        self.transform = _Transform(config)
        self.decoder = _Linear(config.hidden_size, config.vocab_size)


class _Transform(nn.Module):
    def __init__(self, config: BertShape) -> None:
        super().__init__()
        self.dense = _Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.LayerNorm(F.gelu(self.dense(hidden)))
