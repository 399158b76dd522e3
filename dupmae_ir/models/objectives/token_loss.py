"""Cross-entropy over the vocabulary without materialising the (N, V) logits of all tokens.

The gradient is computed chunk by chunk during the forward pass, while a chunk's logits exist, and the backward pass
only scales it. Memory is therefore a few tensors of a chunk's logits, shared by the chunks, plus the gradients,
independent of batch and length. The (V, d) gradient, which any implementation has to return, exists from the forward
pass on, and twice while it is scaled. benchmarks/heads_memory.py measures the memory above the parameters' gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dupmae_ir.models.pooling import product_dtype

IGNORED = -100
TOKENS_PER_CHUNK = 256
"""256 x 30,522 float32 logits are 31 MB."""
CHUNKS_PER_PRODUCT = 4
"""Chunks whose part of the weight's gradient is one product. In half precision, each is (V, d) numbers to add up."""


def token_cross_entropy(
    hidden: Tensor,
    labels: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    chunk: int = TOKENS_PER_CHUNK,
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
    """Loss and its gradients for unit upstream gradient, computed together.

    The gradients of weight and bias are kept as sums over the tokens, which the backward pass divides by their number.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, labels: Tensor, weight: Tensor, bias: Tensor | None, chunk: int
    ) -> Tensor:
        # Sums over tokens and vocabulary are exact to float32, also if the products are in half precision.
        exact = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        hidden_needs_grad, _, weight_needs_grad, bias_needs_grad, _ = ctx.needs_input_grad
        needs_grad = any(ctx.needs_input_grad)
        ctx.share = 1 / max(1, len(labels))
        loss = hidden.new_zeros((), dtype=exact)
        grad_hidden = grad_weight = grad_bias = None
        if hidden_needs_grad:
            grad_hidden = torch.empty_like(hidden)
        if weight_needs_grad:
            grad_weight = torch.zeros_like(weight, dtype=exact)
        if bias is not None and bias_needs_grad:
            grad_bias = torch.zeros_like(bias, dtype=exact)

        dtype = product_dtype(hidden)
        table = weight.to(dtype)
        states = hidden.to(dtype)
        buffers = _Buffers(chunk, len(labels), weight, dtype, exact)
        for start in range(0, len(labels), chunk):
            part = slice(start, start + chunk)
            tokens = states[part]
            targets = labels[part].unsqueeze(1)
            logits = buffers.logits_of(tokens, table, bias)
            at_targets = logits.gather(1, targets) - logits.amax(1, keepdim=True)
            probabilities = torch.softmax(logits, 1, out=logits)
            # The largest logit has the largest probability, which is never 0, so its logarithm is finite.
            loss -= (at_targets + probabilities.amax(1, keepdim=True).log()).sum() * ctx.share
            if not needs_grad:
                continue
            # d loss / d logits = (softmax - one hot) / number of tokens; the division follows.
            slope = probabilities.scatter_add_(
                1, targets, probabilities.new_full(targets.shape, -1.0)
            )
            if grad_bias is not None:
                grad_bias += slope.sum(0)
            slope = buffers.keep(slope)
            if grad_hidden is not None:
                grad_hidden[part] = torch.mm(slope, table).to(hidden.dtype).mul_(ctx.share)
            end = start + len(tokens)
            if buffers.full or end == len(labels):
                slopes = buffers.take()
                if grad_weight is not None:
                    start_of_slopes = end - len(slopes)
                    buffers.add_product(grad_weight, slopes.t(), states[start_of_slopes:end])
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        ctx.weight_dtype = weight.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        return loss

    @staticmethod
    def backward(
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, None, Tensor | None, Tensor | None, None]:
        grad_hidden, grad_weight, grad_bias = ctx.saved_tensors
        upstream = grads[0]
        if grad_hidden is not None:
            grad_hidden = grad_hidden * upstream.to(grad_hidden.dtype)
        if grad_weight is not None:
            grad_weight = (grad_weight * (upstream * ctx.share)).to(ctx.weight_dtype)
        if grad_bias is not None:
            grad_bias = (grad_bias * (upstream * ctx.share)).to(ctx.bias_dtype)
        # In the order of forward's arguments; labels and chunk have no gradient.
        return grad_hidden, None, grad_weight, grad_bias, None


class _Buffers:
    """Memory that the chunks of one loss share.

    Allocated for each chunk, tensors of this size cost a fifth of the loss on a CPU: the system clears their pages.
    """

    def __init__(
        self, chunk: int, tokens: int, weight: Tensor, dtype: torch.dtype, exact: torch.dtype
    ) -> None:
        rows = min(chunk, tokens)
        self.logits = weight.new_empty((rows, len(weight)), dtype=exact)
        # The products of several chunks, each replaced by its slopes.
        chunks = min(CHUNKS_PER_PRODUCT, -(-tokens // chunk))
        self.products = weight.new_empty((chunks * rows, len(weight)), dtype=dtype)
        self._kept = 0  # rows of slopes
        # A product in its own dtype and in that of the sum, allocated when first needed.
        self._product: Tensor | None = None
        self._exact_product: Tensor | None = None

    def logits_of(self, tokens: Tensor, table: Tensor, bias: Tensor | None) -> Tensor:
        """(n, V) logits of (n, d) tokens; overwritten by the next call."""
        products = torch.mm(tokens, table.t(), out=self._next(len(tokens)))
        logits = self.logits[: len(tokens)].copy_(products)
        if bias is not None:
            logits += bias
        return logits

    def keep(self, slope: Tensor) -> Tensor:
        """(n, V) ``slope`` in the dtype of the products, until :meth:`take`."""
        kept = self._next(len(slope)).copy_(slope)
        self._kept += len(slope)
        return kept

    @property
    def full(self) -> bool:
        """Whether there is no room for another chunk."""
        return self._kept + len(self.logits) > len(self.products)

    def take(self) -> Tensor:
        """The slopes kept since the last call; overwritten by the next chunk."""
        slopes = self.products[: self._kept]
        self._kept = 0
        return slopes

    def _next(self, rows: int) -> Tensor:
        return self.products[self._kept : self._kept + rows]

    def add_product(self, total: Tensor, a: Tensor, b: Tensor) -> None:
        """Add the product a b to ``total`` in place."""
        if a.dtype == total.dtype:
            total.addmm_(a, b)
            return
        if self._product is None or self._exact_product is None:
            self._product = torch.empty_like(total, dtype=a.dtype)
            self._exact_product = torch.empty_like(total)
        torch.mm(a, b, out=self._product)
        total += self._exact_product.copy_(self._product)
