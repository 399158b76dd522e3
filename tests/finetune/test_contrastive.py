"""Eq. 13 on Eq. 12 as the paper states it, against the code that trains."""

from __future__ import annotations

import math

import pytest
import torch

from dupmae_ir.finetune.config import Objective
from dupmae_ir.finetune.objective import batch_loss, contrastive, flops
from dupmae_ir.finetune.teacher import FrozenTeacher
from dupmae_ir.models.pooling import keep_top_k

PLAIN = {"part_weight": 0.0, "query_flops": 0.0, "document_flops": 0.0}


class Fixed(torch.nn.Module):
    """A model whose two parts are looked up, so that the loss alone is under test."""

    def __init__(self, seed=0, queries=3, documents=5, dim=4, vocabulary=11):
        super().__init__()
        g = torch.Generator().manual_seed(seed)

        def draw(n, width):
            return torch.randn(n, width, generator=g, dtype=torch.float64)

        self.cls = torch.nn.Parameter(torch.cat([draw(queries, dim), draw(documents, dim)]))
        self.ot = torch.nn.Parameter(
            torch.cat([draw(queries, vocabulary), draw(documents, vocabulary)])
        )

    def parts(self, rows):
        return self.cls[rows], torch.relu(self.ot[rows])


def batch(same=()):
    """Three queries, their positives and two more documents; ``same`` are other (query, document) answers."""
    answers = [[i, *(d for q, d in same if q == i)] for i in range(3)]
    width = max(map(len, answers))
    return {
        "query_keys": torch.arange(3),
        "document_keys": torch.arange(5),
        "group": torch.tensor([[0, 3], [1, 4], [2, -1]]),
        "answers": torch.tensor([a + [-1] * (width - len(a)) for a in answers]),
    }


def loss_of(model, targets, objective, anchors=()):
    return batch_loss(
        model.parts(slice(0, 3)), model.parts(slice(3, 8)), targets, objective, anchors=anchors
    )


def restated(model, k, same):
    """- mean log exp<q,d+> / sum_d exp<q,d>, with <q,d> = cls.cls + sum over I_d of mu_q mu_d."""
    cls = model.cls.tolist()
    ot = torch.relu(model.ot).tolist()
    total = 0.0
    for q in range(3):
        scores = []
        for d in range(3, 8):
            kept = sorted(range(11), key=lambda v: -ot[d][v])[:k]
            dense = sum(a * b for a, b in zip(cls[q], cls[d], strict=True))
            scores.append(dense + sum(ot[q][v] * ot[d][v] for v in kept))
        known = [s for d, s in enumerate(scores) if not same[q][d]]
        total -= math.log(math.exp(scores[q]) / sum(map(math.exp, known)))
    return total / 3


@pytest.mark.parametrize("k", [2, 5, 11])
def test_the_loss_is_equation_13_on_equation_12(k):
    model = Fixed()
    same = torch.zeros(3, 5, dtype=torch.bool)
    same[0, 4] = same[2, 1] = True
    loss, terms = loss_of(model, batch(same=[(0, 4), (2, 1)]), Objective(top_k=k, **PLAIN))
    assert loss.item() == pytest.approx(restated(model, k, same.tolist()), abs=1e-9)
    assert terms["contrastive"].item() == pytest.approx(loss.item())


def test_gradients_flow_through_the_documents_top_k_and_only_there():
    model = Fixed()
    loss, _ = loss_of(model, batch(), Objective(top_k=2, **PLAIN))
    loss.backward()
    moved = model.ot.grad[3:] != 0
    kept = keep_top_k(torch.relu(model.ot[3:]).detach(), 2) > 0
    assert moved.any()
    assert not (moved & ~kept).any()
    assert (model.cls.grad != 0).all()


def test_terms_add_up_to_the_loss():
    o = Objective(top_k=5, part_weight=0.5, query_flops=0.1, document_flops=0.01)
    loss, t = loss_of(Fixed(), batch(), o)
    want = t["contrastive"] + 0.5 * (t["cls"] + t["ot"]) + 0.1 * t["flops_q"] + 0.01 * t["flops_d"]
    assert loss.item() == pytest.approx(want.item(), rel=1e-6)


def test_the_teacher_is_the_mean_of_its_tokens_at_one_length():
    class Encoder(torch.nn.Module):
        def forward(self, input_ids, attention_mask):
            hidden = torch.tensor([[[3.0, 0.0], [0.0, 4.0], [9.0, 9.0]]])
            return type("Output", (), {"last_hidden_state": hidden[:, : input_ids.shape[1]]})

    mask = torch.tensor([[1, 1, 0]])
    vector = FrozenTeacher(Encoder(), scale=20.0)(mask, mask)
    assert vector.norm().item() == pytest.approx(20**0.5)
    assert (vector[0, 1] / vector[0, 0]).item() == pytest.approx(4 / 3)


def test_the_anchor_is_the_distance_from_the_teacher_and_joins_the_loss():
    model = Fixed()
    o = Objective(top_k=5, teacher="minilm", anchor_weight=2.0, **PLAIN)
    there = loss_of(
        model, batch(), o, [model.cls[rows].detach() for rows in (slice(0, 3), slice(3, 8))]
    )
    assert there[1]["anchor"] == 0
    away = loss_of(model, batch(), o, [torch.ones(3, 4), torch.ones(5, 4)])
    means = [
        (model.cls[rows] - 1).square().sum(1).mean() / 4 for rows in (slice(0, 3), slice(3, 8))
    ]
    assert away[1]["anchor"].item() == pytest.approx(sum(means).item() / 2)
    assert away[0].item() == pytest.approx(there[0].item() + 2.0 * away[1]["anchor"].item())


def test_temperature_divides():
    scores = torch.randn(3, 5, dtype=torch.float64)
    assert contrastive(scores, temperature=2.0).item() == pytest.approx(
        contrastive(scores / 2).item(), abs=1e-12
    )


def test_flops_is_the_squared_mean_weight_summed_over_words():
    weights = torch.tensor([[1.0, 0.0, 3.0], [3.0, 0.0, 0.0]])
    assert flops(weights).item() == pytest.approx(2.0**2 + 1.5**2)
