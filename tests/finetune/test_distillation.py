"""Eq. 15 and its relatives, written out in plain Python, against the code that trains."""

from __future__ import annotations

import math

import pytest
import torch

from dupmae_ir.finetune.objective import contrastive, distillation, flops, l1

SCORES = [[3.0, 1.0, -0.5], [0.2, 0.9, 0.0]]
TAUGHT = [[5.0, 2.0, 4.0], [1.0, -1.0, 0.0]]
THERE = [[True, True, True], [True, True, False]]


def softmax(values):
    whole = sum(map(math.exp, values))
    return [math.exp(v) / whole for v in values]


def restated(kind, temperature):
    """Sum over d in {d+} and D- of p_teacher log(p_teacher / p_student), and so on."""
    total = 0.0
    passages = 0
    margins = []
    for scores, taught, there in zip(SCORES, TAUGHT, THERE, strict=True):
        s = [v for v, t in zip(scores, there, strict=True) if t]
        t = [v / temperature for v, h in zip(taught, there, strict=True) if h]
        passages += len(s)
        for p, q in zip(softmax(t), softmax(s), strict=True):
            total += -p * math.log(q) if kind == "soft-ce" else p * math.log(p / q)
        margins += [((s[0] - a) - (t[0] - b)) ** 2 for a, b in zip(s[1:], t[1:], strict=True)]
    if kind == "margin-mse":
        return sum(margins) / len(margins)
    return total / (passages if kind == "kl-mean" else len(SCORES))


def tensors():
    return (
        torch.tensor(SCORES, dtype=torch.float64, requires_grad=True),
        torch.tensor(TAUGHT, dtype=torch.float64),
        torch.tensor(THERE),
    )


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("kind", ["kl", "kl-mean", "soft-ce", "margin-mse"])
def test_the_losses_are_the_formulas(kind, temperature):
    scores, taught, there = tensors()
    loss = distillation(scores, taught, there, kind, temperature)
    assert loss.item() == pytest.approx(restated(kind, temperature), rel=1e-12)
    loss.backward()
    assert torch.isfinite(scores.grad).all()
    # A passage that is not there teaches nothing.
    assert scores.grad[1, 2] == 0
    assert torch.autograd.gradcheck(
        lambda s: distillation(s, taught, there, kind, temperature), scores
    )


def test_kl_and_soft_labels_have_the_same_gradient():
    gradients = []
    for kind in ("kl", "soft-ce"):
        scores, taught, there = tensors()
        distillation(scores, taught, there, kind).backward()
        gradients.append(scores.grad)
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


def test_a_student_that_agrees_has_nothing_to_learn():
    _, taught, there = tensors()
    for kind in ("kl", "kl-mean", "margin-mse"):
        assert distillation(taught, taught, there, kind).item() == pytest.approx(0, abs=1e-12)


def test_mined_negatives_join_the_softmax():
    """Eq. 14: the same loss with more columns, the positive in the given column."""
    scores = torch.tensor([[0.1, 2.0, 0.3, 0.4], [1.0, 0.0, 0.5, 3.0]], dtype=torch.float64)
    loss = contrastive(scores, target=torch.tensor([1, 3]))
    expected = [-math.log(softmax(row)[t]) for row, t in zip(scores.tolist(), (1, 3), strict=True)]
    assert loss.item() == pytest.approx(sum(expected) / 2, rel=1e-12)


def test_regularisers():
    weights = torch.tensor([[1.0, 0.0, 3.0], [3.0, 0.0, 0.0]])
    assert flops(weights).item() == pytest.approx(2.0**2 + 1.5**2)
    assert l1(weights).item() == pytest.approx((4 + 3) / 2)
