"""One rate for every dropout layer of a model in training, whatever its configuration says."""

from __future__ import annotations

import pytest
import torch
from support.tiny_models import tiny_config

from dupmae_ir.pretrain.model import build_objective
from dupmae_ir.pretrain.recipes import PRESETS, Recipe, resolve
from dupmae_ir.training.layers import set_dropout


def objective(method):
    from transformers import BertForMaskedLM

    torch.manual_seed(0)
    lm = BertForMaskedLM(tiny_config(hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5))
    return build_objective(
        method, lm, resolve(method, "release", Recipe(length=16, batch_size=2))
    ).train()


def rates(model):
    """Every rate that a module of ``model`` keeps."""
    modules = list(model.modules())
    layers = [m.p for m in modules if isinstance(m, torch.nn.Dropout)]
    numbers = [
        v for m in modules for k, v in vars(m).items() if "dropout" in k and isinstance(v, float)
    ]
    return layers + numbers


@pytest.mark.parametrize("method", PRESETS)
@pytest.mark.parametrize("rate", [0.0, 0.25])
def test_every_layer_of_encoder_and_decoders_has_the_rate(method, rate):
    model = objective(method)
    assert 0.5 in rates(model)
    set_dropout(model, rate)
    assert set(rates(model)) == {rate}
    assert model.lm.config.hidden_dropout_prob == 0.5


def test_without_dropout_training_is_deterministic():
    model = objective("dupmae")
    ids = torch.tensor([[3, 6, 7, 8, 9, 4]])
    states = [model.lm(ids, output_hidden_states=True).hidden_states[-1] for _ in range(2)]
    assert not torch.equal(*states)
    set_dropout(model, 0.0)
    states = [model.lm(ids, output_hidden_states=True).hidden_states[-1] for _ in range(2)]
    assert torch.equal(*states)
