"""Losses and gradient norms of the released code, in float64, to 1e-9.

Each case is ``NAME.safetensors`` (weights under their released names, ``input.*``) and ``NAME.json`` (configuration,
expected values); the keys of a case say what it checks, so that any folder of that layout can be given.
"""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from dupmae_ir.models.heads.masked_lm import head_of
from dupmae_ir.models.objectives.cot_mae import CoTMAE
from dupmae_ir.models.objectives.dupmae import DupMAE
from dupmae_ir.models.objectives.master import MASTER, TASKS
from dupmae_ir.models.objectives.retromae import RetroMAE
from dupmae_ir.models.pooling import ot_max

EXACT = {"rel": 1e-9, "abs": 1e-9}


def load(case):
    """(config values, expected values, weights, inputs) of one case."""
    recorded = json.loads(case.with_suffix(".json").read_text())
    tensors = load_file(case.with_suffix(".safetensors"))
    inputs = {k.removeprefix("input."): v for k, v in tensors.items() if k.startswith("input.")}
    outputs = {k.removeprefix("output."): v for k, v in tensors.items() if k.startswith("output.")}
    heads = tuple(f"{name}." for name in ("lm", "d_head_ln_f", "c_head", "d_head", *TASKS.values()))
    weights = {
        k: v for k, v in tensors.items() if k.startswith(heads) and not k.endswith("position_ids")
    }
    return recorded, weights, {**inputs, "outputs": outputs}


def masked_lm(config):
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(**config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    ).double()


def filled(objective, weights):
    objective.double().load_state_dict(weights, strict=True)
    return objective.train()


def layers(weights, name):
    return len({k.split(".")[1] for k in weights if k.startswith(f"{name}.")})


def check_gradients(objective, loss, expected):
    loss.backward()
    gradients = dict(objective.named_parameters())
    for name, norm in expected.items():
        assert gradients[name].grad.norm().item() == pytest.approx(norm, **EXACT), name


def test_case(case):
    recorded, weights, inputs = load(case)
    expected = recorded["expected"]
    checks = {
        "retromae": check_retromae,
        "dupmae": check_dupmae,
        "decoder_losses": check_master,
        "enc_head_mlm_loss": check_cotmae,
    }
    asked = [check for key, check in checks.items() if key in expected]
    assert asked, f"{case.name}: nothing here knows what to do with {sorted(expected)}"
    for check in asked:
        check(recorded, weights, inputs)


def retromae_batch(inputs):
    return {**inputs, "decoder_visible": inputs["decoder_attention_mask"].bool()}


def check_retromae(recorded, weights, inputs):
    expected = recorded["expected"]["retromae"]
    objective = filled(RetroMAE(masked_lm(recorded["config"])), weights)
    loss, terms = objective(retromae_batch(inputs))
    assert loss.item() == pytest.approx(expected["loss"], **EXACT)
    assert {k: v.item() for k, v in terms.items()} == pytest.approx(
        {k: expected[k] for k in terms}, **EXACT
    )
    check_gradients(objective, loss, expected.get("grad_norm", {}))
    check_representation(objective, inputs)


def check_representation(objective, inputs):
    """The masked text's [CLS] and pooled logits, where the case has them."""
    outputs = inputs["outputs"]
    mask = inputs["attention_mask"]
    hidden = objective.encode(inputs["encoder_ids"], mask)
    if "cls" in outputs:
        torch.testing.assert_close(hidden[:, 0], outputs["cls"], rtol=1e-9, atol=1e-9)
    if "ot_max_pooled" in outputs:
        head = head_of(objective.lm)
        speaking = mask.bool().index_fill(1, torch.tensor([0]), False)
        pooled = ot_max(head.transform(hidden), speaking, head.weight, head.bias)
        torch.testing.assert_close(pooled, outputs["ot_max_pooled"], rtol=1e-9, atol=1e-9)


def check_dupmae(recorded, weights, inputs):
    expected = recorded["expected"]["dupmae"]
    objective = filled(DupMAE(masked_lm(recorded["config"]), expected["bow_loss_weight"]), weights)
    loss, terms = objective(retromae_batch(inputs))
    assert loss.item() == pytest.approx(expected["loss"], **EXACT)
    assert {k: v.item() for k, v in terms.items()} == pytest.approx(
        {k: expected[k] for k in terms}, **EXACT
    )
    check_gradients(objective, loss, expected.get("grad_norm", {}))


def check_master(recorded, weights, inputs):
    expected = recorded["expected"]
    assert recorded["heads"] == TASKS
    objective = filled(
        MASTER(masked_lm(recorded["config"]), layers=recorded["decoder_layers"]), weights
    )
    loss, terms = objective(inputs)
    assert loss.item() == pytest.approx(expected["loss"], **EXACT)
    for task, value in expected["decoder_losses"].items():
        assert terms[task].item() == pytest.approx(value, **EXACT), task
    names = {
        "passage": "mlm_passage",
        "neighbour_first_span": "mlm_neighbour",
        "complementary": "mlm_complementary",
    }
    for name, value in expected["encoder_mlm"].items():
        assert terms[names[name]].item() == pytest.approx(value, **EXACT), name
    check_gradients(objective, loss, expected.get("grad_norm", {}))


def check_cotmae(recorded, weights, inputs):
    expected = recorded["expected"]
    objective = CoTMAE(
        masked_lm(recorded["config"]), layers(weights, "c_head"), layers(weights, "d_head")
    )
    loss, terms = filled(objective, weights)(inputs)
    assert terms["mlm"].item() == pytest.approx(expected["bert_mlm_loss"], **EXACT)
    assert terms["mask_decoder"].item() == pytest.approx(expected["enc_head_mlm_loss"], **EXACT)
    assert terms["causal_decoder"].item() == pytest.approx(
        expected["dec_head_casual_loss"], **EXACT
    )
    assert loss.item() == pytest.approx(expected["loss"], **EXACT)
    check_gradients(objective, loss, expected.get("grad_norm", {}))
