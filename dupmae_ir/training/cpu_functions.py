"""Attention and dropout in training on a CPU, where torch's own functions take two to four times as long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

LONGEST_KEYS = 512
"""Keys up to which :class:`ProductAttention` is used: torch's kernel needs less memory for longer texts."""
LEVELS = 1 << 16
"""Values of a random number that decides whether dropout keeps an element; rates are rounded to a multiple of 1 /
LEVELS."""


class CpuFunctions(TorchFunctionMode):
    """A context in which attention on bfloat16 tensors of the CPU is :class:`ProductAttention`, and dropout on the CPU
    is :func:`dropout`. Everything else is left alone."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``func``, or what replaces it."""
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        if func is F.dropout:
            return _dropout(*args, **kwargs)
        return func(*args, **kwargs)


def cpu_functions(device: torch.device) -> AbstractContextManager[object]:
    """The context in which training on ``device`` runs: :class:`CpuFunctions` on a CPU."""
    if device.type == "cpu":
        return CpuFunctions()
    return nullcontext()


def recomputing() -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
    """The contexts of a layer and of its recomputation for ``torch.utils.checkpoint``: the gradient is computed outside
    of the context in which the layer was."""
    modes = torch.overrides._get_current_function_mode_stack()
    is_active = any(isinstance(mode, CpuFunctions) for mode in modes)
    return nullcontext(), CpuFunctions() if is_active else nullcontext()


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """As ``torch.nn.functional.scaled_dot_product_attention``."""
    is_wide = query.dtype != torch.bfloat16
    is_unusual = is_causal or enable_gqa or query.dim() != 4 or key.shape[2] > LONGEST_KEYS
    # ProductAttention has no gradient for a mask.
    is_unusual |= attn_mask is not None and attn_mask.requires_grad
    if not query.is_cpu or is_wide or is_unusual:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if scale is None:
        scale = query.shape[-1] ** -0.5
    # Autocast would widen the softmax.
    with torch.autocast("cpu", enabled=False):
        context = ProductAttention.apply(query, key, value, attn_mask, scale, dropout_p)
    assert isinstance(context, Tensor)
    return context


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """As ``torch.nn.functional.dropout``."""
    if not input.is_cpu or inplace or not training or not 0 < p < 1:
        return F.dropout(input, p, training, inplace)
    return dropout(input, p)


def dropout(x: Tensor, rate: float) -> Tensor:
    """``x`` with a share ``rate`` of its elements set to 0, and the others divided by 1 - ``rate``."""
    return x * _factors(x, rate)


def _factors(x: Tensor, rate: float) -> Tensor:
    """A random factor for each element of ``x``: 0 at ``rate``, otherwise 1 / (1 - ``rate``).

    Torch draws one number per element. Here, one 64-bit number serves four elements.
    """
    drawn = torch.empty(-(-x.numel() // 4), dtype=torch.int64)
    drawn.random_(-(1 << 63), None)
    levels = drawn.view(torch.int16)[: x.numel()].view(x.shape)
    kept = levels >= round(rate * LEVELS) - LEVELS // 2
    return kept.to(x.dtype).mul_(1 / (1 - rate))


class ProductAttention(torch.autograd.Function):
    """Attention by batched matrix products and a softmax in place, forwards and backwards.

    Scores and probabilities have the dtype of the queries, as in transformers' own layers under autocast.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scale: float,
        rate: float,
    ) -> Tensor:
        """(B, heads, Q, d) queries, (B, heads, K, d) keys and values -> (B, heads, Q, d).

        ``mask`` is broadcast to (B, heads, Q, K): True for keys that take part, or numbers added to the scores.
        ``rate`` is the dropout rate of the probabilities.
        """
        batch, heads, queries, width = query.shape
        keys = key.shape[2]
        q, k, v = (x.reshape(batch * heads, -1, width) for x in (query, key, value))
        # With beta 0, the first argument is not read.
        scores = torch.baddbmm(q.new_empty(1, 1, 1), q, k.transpose(1, 2), beta=0, alpha=scale)
        if mask is not None:
            by_head = scores.view(batch, heads, queries, keys)
            if mask.dtype == torch.bool:
                by_head.masked_fill_(~mask, torch.finfo(scores.dtype).min)
            else:
                by_head.add_(mask)
        weights = torch.softmax(scores, -1, out=scores)
        factors = None
        used = weights
        if rate:
            factors = _factors(weights, rate)
            used = weights * factors
        ctx.save_for_backward(q, k, v, weights, factors)
        ctx.shapes = query.shape, key.shape
        ctx.scale = scale
        return torch.bmm(used, v).view(query.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """The gradients of queries, keys and values."""
        q, k, v, weights, factors = ctx.saved_tensors
        of_query, of_key = ctx.shapes
        g = gradient.reshape(q.shape)
        slopes = torch.bmm(g, v.transpose(1, 2))
        used = weights
        if factors is not None:
            used = weights * factors
            slopes.mul_(factors)
        by_value = torch.bmm(used.transpose(1, 2), g)
        by_score = torch._softmax_backward_data(slopes, weights, -1, weights.dtype)
        by_score.mul_(ctx.scale)
        by_query = torch.bmm(by_score, k)
        by_key = torch.bmm(by_score.transpose(1, 2), q)
        return by_query.view(of_query), by_key.view(of_key), by_value.view(of_key), None, None, None
