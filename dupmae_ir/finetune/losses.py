"""What fine-tuning minimises. Pure arithmetic on scores; see docs/methods.md for the equations."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

DISTILLATIONS = ("kl", "kl-mean", "soft-ce", "margin-mse")


def contrastive(
    scores: Tensor, same: Tensor | None = None, temperature: float = 1.0, target: Tensor | None = None
) -> Tensor:
    """In-batch softmax loss, DupMAE Eq. 13 (14 with mined negatives among the columns): mean over queries of
    -log softmax at the query's own positive.

    ``scores`` (Q, D), D >= Q, with query i's positive in column ``target[i]`` (i if not given); ``same`` (Q, D) True
    where a column must not count as a negative. Temperature 1, as the similarity is a plain inner product.
    """
    scores = _at_least_float32(scores)
    if same is not None:
        scores = scores.masked_fill(same, torch.finfo(scores.dtype).min)
    if target is None:
        target = torch.arange(len(scores), device=scores.device)
    return F.cross_entropy(scores / temperature, target)


def distillation(scores: Tensor, taught: Tensor, there: Tensor, kind: str = "kl", temperature: float = 1.0) -> Tensor:
    """The teacher's opinion of {d+} and D- (DupMAE Eq. 15), for ``scores`` and ``taught`` (Q, 1 + N), positive first,
    ``there`` (Q, 1 + N) False where a query has fewer negatives.

    ``kl``: KL divergence of the student's softmax from the teacher's, mean over queries; ``kl-mean``: divided by the
    number of passages too, as the released code's reduction does; ``soft-ce``: cross-entropy with the teacher's
    softmax as label (the same gradient as ``kl``); ``margin-mse``: squared difference of the margins between positive
    and negative. ``temperature`` divides the teacher's scores.
    """
    scores, taught = _at_least_float32(scores), _at_least_float32(taught) / temperature
    if kind == "margin-mse":
        apart = (scores[:, :1] - scores[:, 1:]) - (taught[:, :1] - taught[:, 1:])
        return apart[there[:, 1:]].square().mean()
    lowest = torch.finfo(scores.dtype).min
    log_student = torch.log_softmax(scores.masked_fill(~there, lowest), 1)
    log_teacher = torch.log_softmax(taught.masked_fill(~there, lowest), 1)
    teacher = log_teacher.exp()
    each = -teacher * (log_student if kind == "soft-ce" else log_student - log_teacher)
    total = torch.where(there, each, 0.0).sum()
    if kind == "kl-mean":
        return total / there.sum()
    return total / len(scores)


def anchor(vectors: Tensor, targets: Tensor) -> Tensor:
    """Mean squared distance (n, d') from the teacher's vectors, in units of their squared length."""
    vectors = _at_least_float32(vectors)
    targets = targets.to(vectors.dtype)
    return (vectors - targets).square().sum(1).mean() / targets.square().sum(1).mean()


def flops(weights: Tensor) -> Tensor:
    """SPLADE's FLOPS regulariser of one batch of OT vectors (B, V): sum over words of the squared mean weight."""
    return _at_least_float32(weights).abs().mean(0).square().sum()


def l1(weights: Tensor) -> Tensor:
    """Mean over the batch of the sum of the OT weights (B, V)."""
    return _at_least_float32(weights).abs().sum(1).mean()


REGULARIZERS = {"flops": flops, "l1": l1}


def _at_least_float32(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
