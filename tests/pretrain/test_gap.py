"""The gap: the held-out loss of a decoder that reads the vectors of other texts, above its loss with the right ones."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from support.pretraining import flags, tiny_base, tiny_corpus
from support.tiny_models import tiny_config
from transformers import BertForMaskedLM

from dupmae_ir.models.objectives.bottleneck import PlainMLM
from dupmae_ir.models.objectives.dupmae import DupMAE
from dupmae_ir.pretrain.__main__ import main
from dupmae_ir.pretrain.trainer import has_plateau

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


def test_a_plateau_is_three_evaluations_without_growth():
    def log(*gaps):
        return [{"eval_loss": 1.0, "eval_gap_a": gap, "eval_gap_b": gap} for gap in gaps]

    assert not has_plateau(log(0.1, 0.1, 0.1), 0.01)
    assert has_plateau(log(0.1, 0.1, 0.1, 0.1), 0.01)
    assert not has_plateau(log(0.1, 0.1, 0.2, 0.1), 0.01)
    assert has_plateau(log(0.0, 0.1, 0.1, 0.105, 0.1), 0.01)
    rows = log(0.1, 0.1, 0.1)
    assert not has_plateau([*rows, {"loss": 1.0}], 0.01)
    assert not has_plateau([{"loss": 1.0}] * 9, 0.01)


def test_training_ends_at_the_plateau_and_a_killed_end_is_the_same(tmp_path, monkeypatch, capsys):
    base = tiny_base(tmp_path / "base")
    corpus = tiny_corpus(tmp_path / "corpus.jsonl")
    # No gap grows by 9 nats, so the fourth evaluation is the last: the first is before training.
    words = flags(
        "retromae", base, corpus, tmp_path / "made", steps=40, **{"stop-when": 9, "save-steps": 4}
    )
    assert main(words) == 0
    made = json.loads((tmp_path / "made" / "training.json").read_text())
    assert made["result"]["updates"] == 12
    assert "stopped after 12 of 40 updates" in capsys.readouterr().err

    words[words.index(str(tmp_path / "made"))] = str(tmp_path / "killed")

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dupmae_ir.pretrain.run._save", killed)
        assert main(words) != 0
    assert main(words) == 0
    ours = load_file(tmp_path / "made" / "model.safetensors")
    theirs = load_file(tmp_path / "killed" / "model.safetensors")
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_stopping_needs_a_decoder_and_held_out_texts(tmp_path, capsys):
    base = tiny_base(tmp_path / "base")
    corpus = tiny_corpus(tmp_path / "corpus.jsonl")
    for method, choices in (("mlm", {}), ("retromae", {"held-out": 0})):
        words = flags(method, base, corpus, tmp_path / "x", **{"stop-when": 0.1, **choices})
        assert main(words) == 2
        assert "needs a --method with a decoder" in capsys.readouterr().err
