"""Cross-entropy over the vocabulary without materialising the (N, V) logits of all tokens.

The gradient is computed chunk by chunk during the forward pass, while a chunk's logits exist, and the backward pass
only scales it. Memory is therefore three tensors of a chunk's logits plus the gradients, independent of batch and
length. The (V, d) gradient, which any implementation has to return, exists from the forward pass on, and twice while it
is scaled. benchmarks/heads_memory.py measures the memory above the parameters' gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

IGNORED = -100
TOKENS_PER_CHUNK = 256
"""256 x 30,522 float32 logits are 31 MB."""


def token_cross_entropy(
    hidden: Tensor, labels: Tensor, weight: Tensor, bias: Tensor | None = None, chunk: int = TOKENS_PER_CHUNK
) -> Tensor:
    """Mean of -log softmax(hidden W^T + b) at the labels over the labelled tokens of the batch; 0 if there are none.

    Args:
        hidden: (..., d), outputs of the head's transform; only labelled tokens are projected.
        labels: (...), ids, or :data:`IGNORED` for tokens that are not predicted.
        weight: (V, d).
        bias: (V,) or None.
        chunk: tokens whose logits are computed together.
    """
    labelled = labels != IGNORED
    return _TokenLoss.apply(hidden[labelled], labels[labelled], weight, bias, chunk)


class _TokenLoss(torch.autograd.Function):
    """Loss and its gradients for unit upstream gradient, computed together."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, labels: Tensor, weight: Tensor, bias: Tensor | None, chunk: int) -> Tensor:
        exact = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        needs = ctx.needs_input_grad
        count = max(1, len(labels))
        loss = hidden.new_zeros((), dtype=exact)
        grad_hidden = torch.empty_like(hidden) if needs[0] else None
        grad_weight = torch.zeros_like(weight, dtype=exact) if needs[2] else None
        grad_bias = torch.zeros_like(bias, dtype=exact) if bias is not None and needs[3] else None
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
        table = weight.to(dtype)
        for start in range(0, len(labels), chunk):
            part = slice(start, start + chunk)
            tokens, targets = hidden[part].to(dtype), labels[part].unsqueeze(1)
            logits = torch.mm(tokens, table.t()).to(exact)
            if bias is not None:
                logits += bias
            loss += (torch.logsumexp(logits, 1) - logits.gather(1, targets).squeeze(1)).sum() / count
            if not any(needs):
                continue
            # d loss / d logits = (softmax - one hot) / count
            slope = logits.softmax(1).scatter_add_(1, targets, logits.new_full(targets.shape, -1.0)).div_(count)
            if grad_hidden is not None:
                grad_hidden[part] = torch.mm(slope.to(dtype), table).to(hidden.dtype)
            if grad_weight is not None:
                _add_product(grad_weight, slope.to(dtype).t(), tokens)
            if grad_bias is not None:
                grad_bias += slope.sum(0)
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        ctx.dtypes = weight.dtype, None if bias is None else bias.dtype
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, Tensor | None, Tensor | None, None]:
        grad_hidden, grad_weight, grad_bias = ctx.saved_tensors
        up = grads[0]
        return (
            None if grad_hidden is None else grad_hidden * up.to(grad_hidden.dtype),
            None,
            None if grad_weight is None else (grad_weight * up).to(ctx.dtypes[0]),
            None if grad_bias is None else (grad_bias * up).to(ctx.dtypes[1]),
            None,
        )


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add the product a b to ``total`` in place, without a temporary of its size where the dtypes match."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    else:
        total += torch.mm(a, b)
