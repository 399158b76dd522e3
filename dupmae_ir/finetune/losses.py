"""Losses of fine-tuning: arithmetic on scores and representations; docs/methods.md has the equations."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def contrastive(
    scores: Tensor, excluded: Tensor | None = None, temperature: float = 1.0, target: Tensor | None = None
) -> Tensor:
    """In-batch softmax loss, DupMAE Eq. 13 (Eq. 14 with mined negatives among the columns).

    Mean over queries of -log softmax at the query's own positive.

    Args:
        scores: (Q, D), D >= Q.
        excluded: (Q, D) True where a column must not count as a negative.
        temperature: divides the scores; 1 in the paper, as the similarity is a plain inner product.
        target: (Q,) column of each query's positive; query i's is i if not given.
    """
    scores = _at_least_float32(scores)
    if excluded is not None:
        scores = scores.masked_fill(excluded, torch.finfo(scores.dtype).min)
    if target is None:
        target = torch.arange(len(scores), device=scores.device)
    return F.cross_entropy(scores / temperature, target)


def distillation(
    scores: Tensor, teacher_scores: Tensor, present: Tensor, kind: str = "kl", temperature: float = 1.0
) -> Tensor:
    """Distillation of a teacher's scores of d+ and D- (DupMAE Eq. 15).

    Args:
        scores: (Q, 1 + N), the positive first.
        teacher_scores: (Q, 1 + N), in the same order.
        present: (Q, 1 + N), False where a query has fewer negatives.
        kind: ``kl``: KL divergence of the student's softmax from the teacher's, mean over queries. ``kl-mean``: divided
            by the number of passages too, like the released code's reduction. ``soft-ce``: cross-entropy with the
            teacher's softmax as label (the same gradient as ``kl``). ``margin-mse``: squared difference of the margins
            between positive and negative.
        temperature: divides the teacher's scores.
    """
    scores, teacher_scores = _at_least_float32(scores), _at_least_float32(teacher_scores) / temperature
    if kind == "margin-mse":
        margins = (scores[:, :1] - scores[:, 1:]) - (teacher_scores[:, :1] - teacher_scores[:, 1:])
        return margins[present[:, 1:]].square().mean()
    lowest = torch.finfo(scores.dtype).min
    log_student = torch.log_softmax(scores.masked_fill(~present, lowest), 1)
    log_teacher = torch.log_softmax(teacher_scores.masked_fill(~present, lowest), 1)
    teacher = log_teacher.exp()
    each = -teacher * (log_student if kind == "soft-ce" else log_student - log_teacher)
    total = torch.where(present, each, 0.0).sum()
    if kind == "kl-mean":
        return total / present.sum()
    return total / len(scores)


def anchor(vectors: Tensor, targets: Tensor) -> Tensor:
    """Mean squared distance of (n, d') ``vectors`` from ``targets``, in units of the targets' squared length."""
    vectors = _at_least_float32(vectors)
    targets = targets.to(vectors.dtype)
    return (vectors - targets).square().sum(1).mean() / targets.square().sum(1).mean()


def flops(weights: Tensor) -> Tensor:
    """SPLADE's FLOPS regulariser of (B, V) OT vectors: sum over the vocabulary of the squared mean weight."""
    return _at_least_float32(weights).abs().mean(0).square().sum()


def l1(weights: Tensor) -> Tensor:
    """Mean over the batch of the sum of the (B, V) OT weights."""
    return _at_least_float32(weights).abs().sum(1).mean()


REGULARIZERS = {"flops": flops, "l1": l1}


def _at_least_float32(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
