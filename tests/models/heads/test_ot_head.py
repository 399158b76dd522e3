"""The head that pre-training chose for the OT part is the one that fine-tuning trains and the index uses."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.pretraining import flags, tiny_base, tiny_corpus

from dupmae_ir.errors import CheckpointError
from dupmae_ir.export import main as export
from dupmae_ir.finetune.__main__ import main as finetune
from dupmae_ir.models import load_encoder
from dupmae_ir.models.checkpoints.layout import CONFIG, OT_PROJECTION
from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.heads.masked_lm import head_of
from dupmae_ir.pretrain.__main__ import main as pretrain

HEADS = {
    "linear": ("dupmae", {"ot-head": "linear"}, "tied"),
    "tied": ("cot-mote", {"sparse-head": "tied"}, "mote"),
}
SHORT = {"quiet": True, "steps": 1, "held-out": 0, "log-steps": 1, "eval-steps": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny base and its corpus, and for each head a model pre-trained with it and one fine-tuned from that."""
    folder = tmp_path_factory.mktemp("heads")
    base = tiny_base(folder / "base")
    corpus = tiny_corpus(folder / "corpus.jsonl", rows=20)
    pairs = [
        {"query": f"cat {w}", "positive": f"the {w} sat"} for w in ("dog", "fox", "heap", "tree")
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    for head, (method, choice, encoder) in HEADS.items():
        pretrained = folder / f"{head}-pretrained"
        assert pretrain(flags(method, base, corpus, pretrained, **SHORT, **choice)) == 0
        words = f"--pairs {folder}/pairs.jsonl --model {pretrained} --output {folder}/{head} --encoder {encoder}"
        words += " --steps 2 --batch-size 4 --group-size 1 --cls-dim 0 --learning-rate 0.01 --threads 1 --quiet"
        assert finetune(words.split()) == 0
    return folder


@pytest.mark.parametrize("head", HEADS)
def test_the_head_is_kept_from_pre_training_to_the_index(folder, head):
    for name in (f"{head}-pretrained", head):
        model, tokenizer, _ = load_model(folder / name)
        side = model.side("document")
        words = side.ot_projection if head == "linear" else side.lm.get_input_embeddings()
        assert side.head.weight is words.weight
        assert side.head.bias is None
        assert isinstance(side.head.transform, torch.nn.Identity)
    text = "the cat sat on the mat"
    batch = tokenizer([text], return_tensors="pt")
    with torch.no_grad():
        _, expected = side(batch["input_ids"], batch["attention_mask"])
    encoded = load_encoder(folder / head).encode_documents([text]).ot.toarray()
    assert expected.count_nonzero() > 1
    assert np.allclose(encoded, expected.numpy(), atol=1e-5)


def test_the_projection_is_trained_on_and_not_drawn_again(folder):
    before, after = (load_model(folder / name)[0] for name in ("linear-pretrained", "linear"))
    assert 0 < float((after.head.weight - before.head.weight).detach().abs().max()) < 0.2
    assert float((before.head.weight - head_of(before.lm).weight).detach().abs().max()) > 0.2


def test_a_second_phase_continues_the_projection(folder, tmp_path):
    changes = {**SHORT, "learning-rate": 1e-9, "ot-head": "linear"}
    words = flags(
        "dupmae",
        folder / "linear-pretrained",
        folder / "corpus.jsonl",
        tmp_path / "second",
        **changes,
    )
    assert pretrain(words) == 0
    paths = (folder / "linear-pretrained" / OT_PROJECTION, tmp_path / "second" / OT_PROJECTION)
    first, second = (load_file(path)["weight"] for path in paths)
    assert torch.allclose(first, second, atol=1e-6)


def test_a_damaged_projection_is_named(folder, tmp_path, capsys):
    words = [
        "--model",
        folder / "linear",
        "--output",
        tmp_path / "st",
        "--to",
        "sentence-transformers",
        "--part",
        "ot",
    ]
    assert export([str(w) for w in words]) == 2
    assert "ot_head" in capsys.readouterr().err
    path = folder / "linear" / OT_PROJECTION
    save_file({"weight": torch.zeros(5, 24)}, path)
    with pytest.raises(CheckpointError, match="29 terms"):
        load_model(folder / "linear")
    path.unlink()
    with pytest.raises(CheckpointError, match="restore"):
        load_model(folder / "linear")
    config = json.loads((folder / "linear" / CONFIG).read_text())
    (folder / "linear" / CONFIG).write_text(json.dumps({**config, "ot_head": "two"}))
    with pytest.raises(CheckpointError, match="ot_head must be one of"):
        load_model(folder / "linear")
