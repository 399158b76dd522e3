"""[CLS] held to a frozen model: the value and the gradient of the distance, and what it leaves alone."""

from __future__ import annotations

import pytest
import torch
from support.tiny_models import tiny_config

from dupmae_ir.models.objectives.bottleneck import Anchor, Masked, PlainMLM
from dupmae_ir.models.retriever import Retriever


def tiny_lm(seed):
    from transformers import BertForMaskedLM

    torch.manual_seed(seed)
    return BertForMaskedLM(
        tiny_config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    ).double()


@pytest.fixture
def batch():
    """Two texts of 6 and 4 tokens; the second token of each is masked, and one is predicted unchanged."""
    ids = torch.tensor([[3, 6, 7, 8, 9, 4], [3, 10, 11, 4, 0, 0]])
    labels = torch.full_like(ids, -100)
    labels[:, 1], labels[0, 3] = ids[:, 1], ids[0, 3]
    masked = ids.clone()
    masked[:, 1] = 5
    return {
        "encoder_ids": masked,
        "attention_mask": (ids != 0).long(),
        "encoder_labels": labels,
        "whole": ids,
    }


def anchored(weight, pooling="mean"):
    objective = PlainMLM(tiny_lm(0))
    frozen = Retriever(tiny_lm(1), None, [], [], normalize=True, pooling=pooling)
    objective.anchor = Anchor(frozen, weight)
    return objective


def by_hand(objective, batch):
    """1 - cos of the masked text's [CLS] and the mean of the frozen model's states over the whole text."""
    cls = objective.lm.bert(batch["encoder_ids"], batch["attention_mask"]).last_hidden_state[:, 0]
    states = objective.anchor.model.lm.bert(
        batch["whole"], batch["attention_mask"]
    ).last_hidden_state
    means = [states[row, :length].mean(0) for row, length in enumerate((6, 4))]
    cosines = [a @ b / (a.norm() * b.norm()) for a, b in zip(cls, means, strict=True)]
    return 1 - torch.stack(cosines).mean()


def test_the_distance_is_the_cosine_to_the_whole_text(batch):
    objective = anchored(2.5)
    loss, terms = objective(batch)
    assert list(terms) == ["mlm", "anchor"]
    torch.testing.assert_close(terms["anchor"], by_hand(objective, batch), rtol=0, atol=1e-12)
    torch.testing.assert_close(loss, terms["mlm"] + 2.5 * terms["anchor"], rtol=0, atol=1e-12)


def test_the_gradient_is_that_of_finite_differences(batch):
    objective = anchored(2.5)
    weight = objective.lm.bert.encoder.layer[0].output.dense.weight
    loss, _ = objective(batch)
    (gradient,) = torch.autograd.grad(loss, weight)
    direction = torch.randn(
        weight.shape, dtype=weight.dtype, generator=torch.Generator().manual_seed(3)
    )
    step = 1e-5
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            weight += sign * step * direction
            values.append(objective(batch)[0])
            weight -= sign * step * direction
    expected = (values[0] - values[1]) / (2 * step)
    torch.testing.assert_close((gradient * direction).sum(), expected, rtol=1e-6, atol=1e-8)
    assert expected.abs() > 1e-3


def test_the_anchor_is_frozen_and_no_part_of_the_objective(batch):
    objective = anchored(1.0)
    bare = PlainMLM(tiny_lm(0))
    assert objective.state_dict().keys() == bare.state_dict().keys()
    objective.train()
    objective(batch)[0].backward()
    assert not objective.anchor.model.training
    assert {p.grad for p in objective.anchor.model.parameters()} == {None}


def test_a_model_is_at_no_distance_from_itself_where_nothing_is_masked(batch):
    lm = tiny_lm(0)
    anchor = Anchor(Retriever(tiny_lm(0), None, [], []), 1.0)
    hidden = lm.bert(batch["whole"], batch["attention_mask"]).last_hidden_state
    texts = Masked(
        hidden, batch["whole"], batch["attention_mask"], torch.full_like(batch["whole"], -100)
    )
    assert abs(float(anchor.distance(texts).detach())) < 1e-12
