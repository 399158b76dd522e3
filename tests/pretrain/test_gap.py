"""The gap: the held-out loss of a decoder that reads the vectors of other texts, above its loss with the right ones."""

from __future__ import annotations

import json

import pytest
import torch
from support.pretraining import flags, tiny_base, tiny_corpus
from support.tiny_models import tiny_config
from transformers import BertForMaskedLM

from dupmae_ir.models.objectives.bottleneck import PlainMLM
from dupmae_ir.models.objectives.dupmae import DupMAE
from dupmae_ir.pretrain.__main__ import main

READ = {
    "mlm": set(),
    "retromae": {"decoder"},
    "dupmae": {"decoder", "bow"},
    "master": {"mkp", "cmp", "npr", "doc2query", "gpt2"},
    "cot-mae": {"mask_decoder"},
    "cot-mote": {"causal_den", "causal_spr"},
}


@pytest.mark.parametrize(
    "method",
    [
        n if n in ("dupmae", "cot-mote") else pytest.param(n, marks=pytest.mark.nightly)
        for n in READ
    ],
)
def test_the_log_has_the_gap_of_every_decoder(method, tmp_path):
    base = tiny_base(tmp_path / "base")
    corpus = tiny_corpus(tmp_path / "corpus.jsonl")
    assert (
        main(
            flags(
                method,
                base,
                corpus,
                tmp_path / "made",
                **{"steps": 2, "eval-steps": 2, "quiet": True},
            )
        )
        == 0
    )
    rows = [
        json.loads(line)
        for line in (tmp_path / "made" / "pretraining" / "log.jsonl").read_text().splitlines()
    ]
    last = [row for row in rows if "eval_loss" in row][-1]
    assert {
        name.removeprefix("eval_gap_") for name in last if name.startswith("eval_gap_")
    } == READ[method]
    for name in READ[method]:
        difference = last[f"eval_shuffled_{name}"] - last[f"eval_loss_{name}"]
        assert last[f"eval_gap_{name}"] == pytest.approx(difference, abs=1e-6)


def test_shuffling_exchanges_the_vectors_and_ends_with_its_context():
    objective = PlainMLM(BertForMaskedLM(tiny_config()))
    vectors = torch.arange(5.0).unsqueeze(1)
    assert torch.equal(objective.bottleneck_vectors(vectors), vectors)
    with objective.shuffled():
        moved = objective.bottleneck_vectors(vectors)
    assert (moved != vectors).all()
    assert torch.equal(moved.sort(0).values, vectors)
    assert torch.equal(objective.bottleneck_vectors(vectors), vectors)


def test_no_row_of_a_pair_of_spans_gets_the_vector_of_its_own_text():
    objective = PlainMLM(BertForMaskedLM(tiny_config()))
    texts = torch.arange(6).repeat_interleave(2)  # rows 2i and 2i + 1 are spans of text i
    with objective.shuffled():
        for count in range(4, 13, 2):
            assert (objective.bottleneck_vectors(texts[:count]) != texts[:count]).all()


def test_a_decoder_without_weight_is_not_computed():
    torch.manual_seed(0)
    objective = DupMAE(BertForMaskedLM(tiny_config()), decoder_weight=0.0)
    ids = torch.randint(6, 29, (2, 8))
    labels = torch.where(torch.rand(2, 8) < 0.5, ids, -100)
    batch = {
        "encoder_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "encoder_labels": labels,
        "bow_weight": torch.rand(2, 29),
    }
    loss, terms = objective(batch)
    assert set(terms) == {"mlm", "bow"}
    loss.backward()
    assert not any(p.requires_grad for p in objective.c_head.parameters())
