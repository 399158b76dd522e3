"""Decoder blocks of the pre-training objectives, with their own attention.

Parameters are named as in Hugging Face's BertLayer and GPT2Block, so that released decoders load. The classes
themselves are not used, because their internals change between versions. A block has the sizes of its encoder's layers,
and rotary positions if these have them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dupmae_ir.models.heads.masked_lm import shape_of

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class _Attention(nn.Module):
    """``attention.self.{query,key,value}`` and ``attention.output.{dense,LayerNorm}`` of a BertLayer."""

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__()
        shape = shape_of(config)
        width = shape.width
        self.heads = shape.heads
        self.self = nn.ModuleDict(
            {name: nn.Linear(width, width) for name in ("query", "key", "value")}
        )
        self.output = nn.ModuleDict(
            {"dense": nn.Linear(width, width), "LayerNorm": nn.LayerNorm(width, eps=shape.epsilon)}
        )
        self.dropout = shape.dropout
        self.attention_dropout = shape.attention_dropout
        self.rotary_base = shape.rotary_base

    def forward(self, query: Tensor, context: Tensor, visible: Tensor) -> Tensor:
        q = turned(split_heads(self.self["query"](query), self.heads), self.rotary_base)
        k = turned(split_heads(self.self["key"](context), self.heads), self.rotary_base)
        v = split_heads(self.self["value"](context), self.heads)
        # scaled_dot_product_attention does not know whether the module is training.
        dropout = self.attention_dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=visible.unsqueeze(1), dropout_p=dropout
        )
        out = F.dropout(self.output["dense"](join_heads(mixed)), self.dropout, self.training)
        return self.output["LayerNorm"](out + query)


class DecoderLayer(nn.Module):
    """One post-norm BERT layer whose queries may come from a different stream than its keys and values."""

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__()
        shape = shape_of(config)
        width = shape.width
        inner = shape.inner
        self.attention = _Attention(config)
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, inner)})
        self.output = nn.ModuleDict(
            {"dense": nn.Linear(inner, width), "LayerNorm": nn.LayerNorm(width, eps=shape.epsilon)}
        )
        self.dropout = shape.dropout

    def forward(self, query: Tensor, context: Tensor, visible: Tensor) -> Tensor:
        """Output (B, L, d).

        Args:
            query: (B, L, d), the residual stream.
            context: (B, L, d), the source of keys and values.
            visible: (B, L, L) or (B, 1, L), True where a row may attend. A row that may attend nowhere attends to
                column 0, because its output, although unused, must not be NaN.
        """
        visible = visible.bool()
        blind = ~visible.any(-1, keepdim=True)
        column_0 = torch.tensor([0], device=visible.device)
        first = torch.zeros_like(visible[:1, :1]).index_fill_(-1, column_0, True)
        mixed = self.attention(query, context, visible | (blind & first))
        out = self.output["dense"](F.gelu(self.intermediate["dense"](mixed)))
        return self.output["LayerNorm"](F.dropout(out, self.dropout, self.training) + mixed)


class _Conv1D(nn.Module):
    """GPT-2's linear layer, whose weight is (in, out)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) * 0.02)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class CausalBlock(nn.Module):
    """One pre-norm GPT-2 block: ``ln_1, attn.{c_attn,c_proj}, ln_2, mlp.{c_fc,c_proj}``.

    The released code builds its ``GPT2Config`` from BERT's configuration, so the block has BERT's exact GELU and
    layer-norm epsilon (1e-12), not GPT-2's tanh approximation and 1e-5.
    """

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__()
        shape = shape_of(config)
        width = shape.width
        self.heads = shape.heads
        self.dropout = shape.dropout
        self.rotary_base = shape.rotary_base
        self.ln_1 = nn.LayerNorm(width, eps=shape.epsilon)
        self.ln_2 = nn.LayerNorm(width, eps=shape.epsilon)
        self.attn = nn.ModuleDict(
            {"c_attn": _Conv1D(width, 3 * width), "c_proj": _Conv1D(width, width)}
        )
        self.mlp = nn.ModuleDict(
            {"c_fc": _Conv1D(width, 4 * width), "c_proj": _Conv1D(4 * width, width)}
        )

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        """(B, L, d) -> (B, L, d). ``visible`` (B, L, L): True where a row may attend, causal mask included."""
        q, k, v = self.attn["c_attn"](self.ln_1(x)).chunk(3, -1)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(
            turned(split_heads(q, self.heads), self.rotary_base),
            turned(split_heads(k, self.heads), self.rotary_base),
            split_heads(v, self.heads),
            attn_mask=visible.unsqueeze(1),
            dropout_p=dropout,
        )
        x = x + F.dropout(self.attn["c_proj"](join_heads(mixed)), self.dropout, self.training)
        inner = F.gelu(self.mlp["c_fc"](self.ln_2(x)))
        return x + F.dropout(self.mlp["c_proj"](inner), self.dropout, self.training)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, L, d) -> (B, heads, L, d / heads)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def turned(x: Tensor, base: float | None) -> Tensor:
    """(B, heads, L, d') queries or keys turned by the angles of their positions, as ModernBERT turns them.

    Decoders of an encoder with position embeddings have ``base`` None, and ``x`` is returned unchanged.
    """
    if base is None:
        return x
    # Angles of late positions are large: they are computed in float32 whatever the dtype of x is.
    exact = torch.float64 if x.dtype == torch.float64 else torch.float32
    length, width = x.shape[-2:]
    exponents = torch.arange(0, width, 2, device=x.device, dtype=exact) / width
    positions = torch.arange(length, device=x.device, dtype=exact)
    angles = positions.unsqueeze(1) * base**-exponents
    # The first half of a head's numbers turns with the second.
    angles = torch.cat([angles, angles], -1)
    low, high = x.chunk(2, -1)
    return x * angles.cos().to(x.dtype) + torch.cat([-high, low], -1) * angles.sin().to(x.dtype)


def join_heads(x: Tensor) -> Tensor:
    """(B, heads, L, d / heads) -> (B, L, d)."""
    return x.transpose(1, 2).flatten(2)


def unpack(bits: Tensor, length: int) -> Tensor:
    """Unpack bit masks: (..., ceil(length / 8)) uint8, lowest bit first -> (..., length) bool."""
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
    unpacked = ((bits.unsqueeze(-1) >> shifts) & 1).flatten(-2)
    # Without the padding of the last byte.
    return unpacked[..., :length].bool()


def causal(mask: Tensor, window: int = 0) -> Tensor:
    """Causal attention mask: (B, L) attention mask -> (B, L, L) bool, True where row i may attend to column j.

    With ``window`` w, a row attends only to column 0 and the last w columns up to itself (CoT-MAE's ``attn_window``).
    """
    column = torch.arange(mask.shape[1], device=mask.device)
    row = column.unsqueeze(1)
    near = column <= row
    if window:
        near = near & ((column > row - window) | (column == 0))
    return near & mask.bool().unsqueeze(1)
