"""The pre-training objectives: their shared loss and the effect of each option."""

from __future__ import annotations

import pytest
import torch
from support.tiny_models import tiny_config

from dupmae_ir.models.objectives.bottleneck import PlainMLM
from dupmae_ir.models.objectives.cot_mae import CoTMAE
from dupmae_ir.models.objectives.dupmae import DupMAE
from dupmae_ir.models.objectives.master import MASTER, TASKS
from dupmae_ir.models.objectives.retromae import RetroMAE
from dupmae_ir.models.objectives.token_loss import token_cross_entropy


def test_the_token_loss_is_cross_entropy_for_any_chunk_size():
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, 6, 4, generator=g, dtype=torch.float64)
    weight = torch.randn(11, 4, generator=g, dtype=torch.float64)
    bias = torch.randn(11, generator=g, dtype=torch.float64)
    labels = torch.tensor([[1, -100, 3, 10, -100, 0], [5, 5, -100, 2, 7, -100]])
    grads = []
    for chunk in (None, 1, 3, 100):
        leaves = [t.clone().requires_grad_() for t in (hidden, weight, bias)]
        if chunk is None:
            logits = torch.nn.functional.linear(*leaves)
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), labels.flatten(), ignore_index=-100
            )
        else:
            loss = token_cross_entropy(leaves[0], labels, leaves[1], leaves[2], chunk)
        (3 * loss).backward()
        grads.append([loss.detach(), *(t.grad for t in leaves)])
    for ours in grads[1:]:
        for a, b in zip(ours, grads[0], strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    leaves = [t.clone().requires_grad_() for t in (hidden, weight, bias)]
    assert torch.autograd.gradcheck(lambda h, w, b: token_cross_entropy(h, labels, w, b, 3), leaves)


def test_the_token_loss_without_labels_is_zero():
    hidden = torch.randn(2, 3, 4, requires_grad=True)
    loss = token_cross_entropy(hidden, torch.full((2, 3), -100), torch.randn(5, 4))
    assert loss.item() == 0
    loss.backward()
    assert (hidden.grad == 0).all()


@pytest.fixture
def lm():
    from transformers import BertForMaskedLM

    torch.manual_seed(0)
    return BertForMaskedLM(
        tiny_config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    ).double()


def masked(generator, shape=(3, 8)):
    ids = torch.randint(6, 29, shape, generator=generator)
    ids[:, 0], ids[:, -1] = 3, 4
    labels = torch.where(torch.rand(shape, generator=generator) < 0.5, ids, -100)
    labels[:, 0] = labels[:, -1] = -100
    labels[:, 2] = ids[:, 2]
    return ids.masked_fill(labels != -100, 5), labels, ids


@pytest.fixture
def batch():
    g = torch.Generator().manual_seed(1)
    encoder, encoder_labels, ids = masked(g)
    decoder, decoder_labels, _ = masked(g)
    visible = torch.rand(3, 8, 8, generator=g) < 0.5
    visible[:, 1:, 0] = True
    words = ids[:, 1:-1]
    return {
        "encoder_ids": encoder,
        "encoder_labels": encoder_labels,
        "ids": ids,
        "decoder_ids": decoder,
        "attention_mask": torch.ones(3, 8, dtype=torch.long),
        "decoder_labels": decoder_labels,
        "decoder_visible": visible & ~torch.eye(8, dtype=torch.bool),
        "bow_ids": words,
        "bow_weights": torch.full(words.shape, 1 / 6, dtype=torch.float64),
    }


def total(objective, batch):
    torch.manual_seed(0)
    return objective.double()(batch)[0].item()


def test_an_enhanced_row_sees_only_what_its_mask_shows(lm, batch):
    objective = RetroMAE(lm).double()
    hidden = lm.bert(batch["encoder_ids"], batch["attention_mask"]).last_hidden_state
    seen = []
    objective.predict = lambda h, _: seen.append(h) or h.sum()
    objective._enhanced(hidden[:, :1], batch)
    changed = {**batch, "ids": batch["ids"].clone()}
    changed["ids"][:, 3] = 7
    objective._enhanced(hidden[:, :1], changed)
    moved = (seen[0] - seen[1]).abs().amax(-1) > 1e-12
    touched = batch["decoder_visible"][:, :, 3] & (batch["ids"][:, 3] != 7).unsqueeze(1)
    assert (moved == touched).all()


def test_plain_mlm_is_the_masked_lms_loss_without_new_parameters(lm, batch):
    objective = PlainMLM(lm).double()
    loss, terms = objective(batch)
    want = lm(batch["encoder_ids"], batch["attention_mask"], labels=batch["encoder_labels"]).loss
    assert loss.item() == pytest.approx(want.item(), abs=1e-10)
    assert terms["mlm"] is loss
    assert len(list(objective.parameters())) == len(list(lm.parameters()))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"query_stream": "raw"}, {"query_stream": "embedded"}),
        ({"decoding": "enhanced"}, {"decoding": "basic"}),
        ({"decoding": "basic", "layers": 1}, {"decoding": "basic", "layers": 3}),
    ],
)
def test_each_retromae_option_changes_the_loss(lm, batch, one, other):
    torch.manual_seed(5)
    first = RetroMAE(lm, **one)
    torch.manual_seed(5)
    assert abs(total(first, batch) - total(RetroMAE(lm, **other), batch)) > 1e-6


def test_dupmaes_bag_of_words_is_equation_8(lm, batch):
    objective = DupMAE(lm, bow_weight=0.7, decoder_weight=0.6).double()
    loss, terms = objective(batch)
    assert loss.item() == pytest.approx(
        (terms["mlm"] + 0.6 * terms["decoder"] + 0.7 * terms["bow"]).item()
    )
    logits = lm(input_ids=batch["encoder_ids"], attention_mask=batch["attention_mask"]).logits[
        :, 1:
    ]
    logs = logits.amax(1).log_softmax(1)
    want = -sum(logs[b, v] / 6 for b in range(3) for v in batch["bow_ids"][b]) / 3
    assert terms["bow"].item() == pytest.approx(want.item(), abs=1e-10)
    weights = torch.zeros(3, 29).double()
    weights.scatter_add_(1, batch["bow_ids"], batch["bow_weights"])
    assert objective({**batch, "bow_weight": weights})[1]["bow"].item() == pytest.approx(
        want.item(), abs=1e-10
    )


@pytest.mark.parametrize("head", ["tied", "linear"])
def test_each_dupmae_head_changes_the_loss(lm, batch, head):
    assert abs(total(DupMAE(lm, head=head), batch) - total(DupMAE(lm), batch)) > 1e-6


def test_the_pooling_mask_restricts_the_bag_of_words(lm, batch):
    objective = DupMAE(lm).double()
    pooling_mask = batch["attention_mask"].clone()
    pooling_mask[:, 1:5] = 0
    narrowed = objective({**batch, "pooling_mask": pooling_mask})[1]["bow"]
    assert abs(narrowed.item() - objective(batch)[1]["bow"].item()) > 1e-6


def masters_batch():
    g = torch.Generator().manual_seed(2)
    mask = torch.ones(3, 8, dtype=torch.long)
    batch = {"attention_mask": mask}
    batch["input_ids"], batch["labels"], _ = masked(g)
    for prefix in (
        "decoder",
        "query",
        "gpt",
        "next_encoder",
        "next_decoder",
        "overlap_encoder",
        "overlap_decoder",
    ):
        batch[f"{prefix}_input_ids"], batch[f"{prefix}_labels"], _ = masked(g)
        batch[f"{prefix}_attention_mask"] = mask
    return batch


def test_masters_shared_decoder_serves_all_tasks(lm):
    batch = masters_batch()
    torch.manual_seed(3)
    shared = MASTER(lm, shared_decoder=True).double()
    own = MASTER(lm).double()
    decoders = sum(p.numel() for n, p in own.named_parameters() if "_head." in n)
    assert (
        5 * sum(p.numel() for n, p in shared.named_parameters() if "shared_head." in n) == decoders
    )
    # With the shared decoder's weights in every task's decoder, the objectives are equal.
    for name in own.decoder_of.values():
        getattr(own, name).load_state_dict(shared.shared_head.state_dict())
    assert total(shared, batch) == pytest.approx(total(own, batch), abs=1e-12)


def test_masters_tasks_can_be_switched_off_one_by_one(lm):
    batch = masters_batch()
    whole = MASTER(lm).double()(batch)[1]
    assert set(whole) == {*TASKS, "mlm_passage", "mlm_neighbour", "mlm_complementary"}
    for task in TASKS:
        rest = tuple(t for t in TASKS if t != task)
        objective = MASTER(lm, rest).double()
        loss, terms = objective(batch)
        assert task not in terms
        assert loss.item() == pytest.approx(sum(v.item() for v in terms.values()))
        assert not any(n.startswith(TASKS[task]) for n, _ in objective.named_parameters())


def test_each_cot_mae_decoder_and_the_window_change_the_loss(lm):
    g = torch.Generator().manual_seed(3)
    mask = torch.ones(3, 8, dtype=torch.long)
    batch = {
        "attention_mask": mask,
        "enc_head_attention_mask": mask,
        "dec_head_attention_mask": mask,
    }
    batch["input_ids"], batch["labels"], batch["dec_head_input_ids"] = masked(g)
    batch["enc_head_input_ids"], batch["enc_head_labels"], _ = masked(g)
    assert set(CoTMAE(lm, 2, 0).double()(batch)[1]) == {"mlm", "mask_decoder"}
    assert set(CoTMAE(lm, 0, 1).double()(batch)[1]) == {"mlm", "causal_decoder"}
    torch.manual_seed(0)
    wide = CoTMAE(lm, 0, 1).double()
    loss = wide(batch)[1]["causal_decoder"].item()
    wide.window = 2
    assert abs(wide(batch)[1]["causal_decoder"].item() - loss) > 1e-9


@pytest.mark.parametrize(
    "make",
    [
        lambda lm: RetroMAE(lm, layers=2),
        lambda lm: RetroMAE(lm, decoding="other"),
        lambda lm: DupMAE(lm, head="x"),
        lambda lm: MASTER(lm, ("mkp", "nope")),
        lambda lm: CoTMAE(lm, 0, 0),
    ],
)
def test_invalid_options_are_refused(lm, make):
    with pytest.raises(ValueError, match=r".+"):
        make(lm)
