"""What fine-tuning minimises. Pure arithmetic on scores; see docs/methods.md for the equations."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def contrastive(scores: Tensor, same: Tensor | None = None, temperature: float = 1.0) -> Tensor:
    """In-batch softmax loss, DupMAE Eq. 13: mean over queries of -log softmax at the query's own positive.

    ``scores`` (Q, D), D >= Q, with query i's positive in column i; ``same`` (Q, D) True where a column must not
    count as a negative. Temperature 1, as the similarity is a plain inner product.
    """
    scores = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    if same is not None:
        scores = scores.masked_fill(same, torch.finfo(scores.dtype).min)
    return F.cross_entropy(scores / temperature, torch.arange(len(scores), device=scores.device))


def anchor(vectors: Tensor, targets: Tensor) -> Tensor:
    """Mean squared distance (n, d') from the teacher's vectors, in units of their squared length."""
    targets = targets.to(vectors.dtype)
    return (vectors - targets).square().sum(1).mean() / targets.square().sum(1).mean()


def flops(weights: Tensor) -> Tensor:
    """SPLADE's FLOPS regulariser of one batch of OT vectors (B, V): sum over words of the squared mean weight."""
    return weights.float().abs().mean(0).square().sum()
