"""Linear layers for inference on a CPU, their weights brought into the kernel's own layout once.

torch packs a weight anew at every call, and on processors not made by Intel its float32 products take a path that
leaves a sixth of the speed. oneDNN, which comes with torch, can keep a packed weight and computes GELU while a tile of
the product is still in the registers. The plain form, :func:`plain`, is the oracle of the tests and what runs where
oneDNN cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Product = Callable[[Tensor], Tensor]
"""(T, d) -> (T, d')."""

Pieces = Sequence[tuple[slice, Product]]
"""A long weight row by row: which rows, and the product with them."""

PIECE = 1024
"""Vocabulary rows of a piece."""

ROWS = 256
"""Sizes of large batches are multiples of this."""

EXPECTED_TOKENS = 2048
"""Rows that the packed layout is chosen for; other numbers are as right."""


def plain(weight: Tensor, bias: Tensor | None, gelu: bool = False) -> Product:
    """``x W' + b``, then GELU (the exact one, as BERT has it) if wanted: W (d', d), b (d',) or None."""

    def product(x: Tensor) -> Tensor:
        y = F.linear(x, weight, bias)
        return F.gelu(y) if gelu else y

    return product


def packed(weight: Tensor, bias: Tensor | None, gelu: bool = False) -> Product:
    """:func:`plain` by oneDNN; only where :func:`pick_products` says so. The weight is copied."""
    ops: Any = torch.ops.mkldnn
    kernel = ops._linear_pointwise
    own = ops._reorder_linear_weight(weight.detach().contiguous(), EXPECTED_TOKENS)
    after: Any = ("gelu", [], "none") if gelu else ("none", [], "")

    def product(x: Tensor) -> Tensor:
        return kernel(x, own, bias, *after)

    return product


def even(x: Tensor) -> Tensor:
    """(T, d) with rows of zeros added up to the next of few sizes: oneDNN compiles a kernel for each size it meets and
    keeps a thousand of them, which without this were hundreds of megabytes."""
    step = ROWS if len(x) > ROWS else 8
    return F.pad(x, (0, 0, 0, -len(x) % step))


def in_pieces(weight: Tensor, product: Callable[..., Product], rows: int = PIECE) -> Pieces:
    """A (V, d) weight as products of so many ``rows`` each, so that what one gives can be used up in the cache."""
    parts = [slice(start, min(start + rows, len(weight))) for start in range(0, len(weight), rows)]
    return [(part, product(weight[part], None)) for part in parts]


def pick_products(dtype: torch.dtype) -> tuple[Callable[..., Product], str]:
    """:func:`packed` or :func:`plain` for weights of this dtype on the CPU, and why."""
    if dtype not in (torch.float32, torch.bfloat16):
        return plain, f"torch's products: oneDNN has no packed {str(dtype).removeprefix('torch.')} here"
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:
        return plain, "torch's products: this torch has no oneDNN, or it is switched off"
    try:
        probe = packed(torch.eye(16, dtype=dtype), torch.zeros(16, dtype=dtype), gelu=True)
        with torch.inference_mode():
            x = torch.linspace(-2, 2, 32, dtype=dtype).view(2, 16)
            right = torch.allclose(probe(x).float(), F.gelu(x.float()), atol=2e-2)
    except (AttributeError, RuntimeError, NotImplementedError):
        right = False
    if not right:
        return plain, "torch's products: its oneDNN operators are not the ones known here"
    return packed, "oneDNN products, weights packed once, GELU fused"
