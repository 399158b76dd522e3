"""Linear layers for inference on a CPU, with weights packed once into oneDNN's own layout.

torch packs a weight again at every call, and on processors that are not made by Intel its float32 products are about a
sixth slower. oneDNN, which is part of torch, can keep a packed weight and compute GELU while a tile of the product is
still in registers. :func:`torch_linear` is the reference implementation in tests, and the fallback without oneDNN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from dupmae_ir.device import keep_few_kernels

Linear = Callable[[Tensor], Tensor]
"""(T, d) -> (T, d')."""

RowBlocks = Sequence[tuple[slice, Linear]]
"""A (V, d) weight in blocks of rows: which rows, and the product with them."""

BLOCK_ROWS = 1024
"""Vocabulary rows of a block."""

ROW_MULTIPLES = ((256, 8), (1024, 64), (inf, 256))
"""(rows, multiple): the number of rows of a batch of at most ``rows`` is padded to a multiple of ``multiple``."""

EXPECTED_TOKENS = 2048
"""Number of input rows that the packed layout is chosen for; other numbers are correct as well."""


class LinearFactory(Protocol):
    """Makes ``x W' + b`` from a weight W (d', d) and a bias b (d',), with an exact GELU (as in BERT) on request."""

    def __call__(self, weight: Tensor, bias: Tensor | None, gelu: bool = False) -> Linear:
        """The layer."""


def torch_linear(weight: Tensor, bias: Tensor | None, gelu: bool = False) -> Linear:
    """``x W' + b`` by torch, then the exact GELU if ``gelu``."""

    def linear(x: Tensor) -> Tensor:
        y = F.linear(x, weight, bias)
        return F.gelu(y) if gelu else y

    return linear


def onednn_linear(weight: Tensor, bias: Tensor | None, gelu: bool = False) -> Linear:
    """:func:`torch_linear` by oneDNN, with a copy of the weight; use it only if :func:`pick_linear` returns it."""
    ops: Any = torch.ops.mkldnn
    kernel = ops._linear_pointwise
    packed = ops._reorder_linear_weight(weight.detach().contiguous(), EXPECTED_TOKENS)
    after: tuple[Any, ...] = ("gelu", [], "none") if gelu else ("none", [], "")

    def linear(x: Tensor) -> Tensor:
        return kernel(x, packed, bias, *after)

    return linear


def pad_rows(x: Tensor) -> Tensor:
    """(T, ...) on a CPU padded with zero rows to one of few sizes.

    oneDNN compiles a kernel for every size it encounters and keeps a thousand of them: hundreds of megabytes otherwise.
    """
    if not x.is_cpu:
        return x
    step = next(multiple for rows, multiple in ROW_MULTIPLES if len(x) <= rows)
    return F.pad(x, (0, 0) * (x.dim() - 1) + (0, -len(x) % step))


def row_blocks(weight: Tensor, factory: LinearFactory, rows: int = BLOCK_ROWS) -> RowBlocks:
    """A (V, d) weight as products of ``rows`` rows each, so that the output of one is consumed in the cache."""
    parts = [slice(start, min(start + rows, len(weight))) for start in range(0, len(weight), rows)]
    return [(part, factory(weight[part], None)) for part in parts]


def pick_linear(dtype: torch.dtype, device: str = "cpu") -> tuple[LinearFactory, str]:
    """:func:`onednn_linear` or :func:`torch_linear` for weights of this dtype on ``device``, and the reason."""
    if device != "cpu":
        return torch_linear, "torch's products"
    if dtype not in (torch.float32, torch.bfloat16):
        return (
            torch_linear,
            f"torch's products: oneDNN has no packed {str(dtype).removeprefix('torch.')} here",
        )
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:
        return torch_linear, "torch's products: this torch has no oneDNN, or it is switched off"
    keep_few_kernels()
    try:
        probe = onednn_linear(torch.eye(16, dtype=dtype), torch.zeros(16, dtype=dtype), gelu=True)
        with torch.inference_mode():
            x = torch.linspace(-2, 2, 32, dtype=dtype).view(2, 16)
            correct = torch.allclose(probe(x).float(), F.gelu(x.float()), atol=2e-2)
    except (AttributeError, RuntimeError, NotImplementedError):
        correct = False
    if not correct:
        return (
            torch_linear,
            "torch's products: the oneDNN operators of this torch are not supported",
        )
    return onednn_linear, "oneDNN products, weights packed once, GELU fused"
