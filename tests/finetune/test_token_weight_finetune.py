"""Training BGE-M3's form of the OT part: from a masked LM, which gets the layer, and from a BGE-M3 folder."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

pytest.importorskip("accelerate", reason="training needs the extra: pip install 'dupmae-ir[train]'")

import torch
from support.bge_models import write_bge_m3
from support.rerank_samples import write_base
from support.stage_samples import RECIPE
from support.tiny_models import tiny_config, tiny_tokenizer

from dupmae_ir.errors import UsageError
from dupmae_ir.finetune.__main__ import main
from dupmae_ir.finetune.config import FinetuneConfig, Objective
from dupmae_ir.finetune.objective import batch_loss
from dupmae_ir.finetune.run import run
from dupmae_ir.models import load_encoder
from dupmae_ir.models.checkpoints.model_config import read_config

WORDS = ["cat", "dog", "fox", "heap", "queue", "list", "tree", "graph"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pairs in which a query shares its one distinctive word with its passage, and two base models."""
    from transformers import BertForMaskedLM

    folder = tmp_path_factory.mktemp("token-weight")
    rng = random.Random(0)
    torch.manual_seed(0)
    BertForMaskedLM(tiny_config(initializer_range=0.1)).save_pretrained(folder / "bert")
    tiny_tokenizer().save_pretrained(folder / "bert")
    write_bge_m3(folder / "bge")
    with open(folder / "pairs.jsonl", "w") as f:
        for i in range(96):
            word = WORDS[i % len(WORDS)]
            noise = " ".join(rng.choices(["the", "on", "over", "sat"], k=5))
            f.write(json.dumps({"query": f"{word} on", "positive": f"{noise} {word}"}) + "\n")
    return folder


def train(folder, base, output, **changes):
    settings = {
        "batch_size": 8,
        "group_size": 1,
        "cls_dim": 0,
        "epochs": 1,
        "quiet": True,
        "document_length": 16,
    }
    paths = {
        "pairs": (str(folder / "pairs.jsonl"),),
        "model": str(folder / base),
        "output": str(folder / output),
    }
    run(FinetuneConfig(**paths, **{**settings, **changes}))
    return folder / output


def test_a_masked_lm_learns_token_weights(folder):
    made = train(
        folder,
        "bert",
        "from-bert",
        ot="token_weight",
        similarity="ot",
        epochs=12,
        learning_rate=3e-3,
        query_flops=0.0,
        document_flops=0.0,
    )
    assert read_config(made).ot == "token_weight"
    encoder = load_encoder(str(made))
    weights = encoder.encode_documents([f"the sat over {word}" for word in WORDS]).ot.toarray()
    ids = encoder.tokenizer.get_vocab()
    assert {*np.flatnonzero(weights.any(0))} <= {
        ids[word] for word in [*WORDS, "the", "sat", "over"]
    }
    found = encoder.encode_queries([f"{word} on" for word in WORDS]).ot.toarray() @ weights.T
    assert (found.argmax(1) == range(len(WORDS))).all()
    log = [
        row["loss_contrastive"]
        for row in json.loads((made / "training.json").read_text())["log"]
        if "loss" in row
    ]
    assert log[-1] < 0.5 * log[0]


def test_a_bge_m3_folder_is_trained_on_with_its_weight_of_the_impact_score(folder):
    made = train(folder, "bge", "from-bge", temperature=0.02, dev=(str(folder / "pairs.jsonl"),))
    config = read_config(made)
    assert (config.ot, config.normalize, config.dense_weight, config.impact_weight) == (
        "token_weight",
        True,
        1.0,
        0.3,
    )
    assert {"sparse_linear.pt", "colbert_linear.pt"} <= {path.name for path in made.iterdir()}
    before, after = (
        torch.load(path / "sparse_linear.pt", weights_only=True) for path in (folder / "bge", made)
    )
    assert not torch.equal(before["weight"], after["weight"])
    np.testing.assert_allclose(
        np.linalg.norm(load_encoder(str(made)).encode_queries(["cat"]).cls), 1, atol=1e-5
    )
    assert (
        read_config(train(folder, "bge", "even", impact_weight=1.0, steps=1)).impact_weight == 1.0
    )


@pytest.mark.parametrize("weights", [(1.0, 3.0), (6.0, 1.0), (6.0, 0.5)])
def test_the_loss_weighs_both_scores(weights):
    dense, impact = weights
    generator = torch.Generator().manual_seed(0)
    parts = [tuple(torch.rand(2, 5, generator=generator) for _ in range(2)) for _ in range(2)]
    batch = {
        "group": torch.tensor([[0], [1]]),
        "query_keys": torch.arange(2),
        "document_keys": torch.arange(2),
    }
    batch["answers"] = batch["group"]
    plain = {"part_weight": 0.0, "query_flops": 0.0, "document_flops": 0.0, "top_k": 0}
    heavy, _ = batch_loss(
        *parts, batch, Objective(dense_weight=dense, impact_weight=impact, **plain)
    )
    weighed = (dense * parts[0][0], impact * parts[0][1])
    torch.testing.assert_close(heavy, batch_loss(weighed, parts[1], batch, Objective(**plain))[0])


def test_a_bge_m3_folder_has_no_masked_lm_head(folder):
    with pytest.raises(UsageError, match=r"`ot` lexical: .*bge has no lexicon"):
        train(folder, "bge", "none", ot="lexical")


@pytest.mark.nightly
@pytest.mark.parametrize("base", ["bert", "bge"])
def test_three_stages_train_token_weights(folder, tmp_path, capfd, base):
    """In-batch, mined by the first model, distilled from a cross-encoder: DupMAE's recipe with BGE-M3's head."""
    write_base(tmp_path / "teacher")
    rows = [
        {"query": f"{a} {b} on", "positive": f"the {a} sat over {b} {a}"}
        for a in WORDS
        for b in WORDS[:4]
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    form = "token_weight" if base == "bert" else "base"
    text = RECIPE.format(init="previous").replace("cls_dim = 8", f'cls_dim = 0\not = "{form}"')
    (tmp_path / "recipe.toml").write_text(text)
    inputs = {
        "model": folder / base,
        "teacher_base": tmp_path / "teacher",
        "pairs": tmp_path / "pairs.jsonl",
    }
    words = [word for name, value in inputs.items() for word in ("--set", f"{name}={value}")]
    command = [
        "--recipe",
        str(tmp_path / "recipe.toml"),
        "--output",
        str(tmp_path / "out"),
        *words,
        "--json",
    ]
    assert main(command) == 0
    summary = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert "loss_distill" in summary["stage3"]["summary"]["last"]
    layers = []
    for stage in ("stage1", "stage2", "stage3"):
        made = tmp_path / "out" / stage
        config = read_config(made)
        assert (config.ot, config.impact_weight) == ("token_weight", 1.0 if base == "bert" else 0.3)
        layers.append(torch.load(made / "sparse_linear.pt", weights_only=True)["weight"])
        assert load_encoder(str(made)).encode_documents(["cat dog"]).ot.nnz <= 2
    assert not torch.equal(layers[0], layers[1])
    assert not torch.equal(layers[1], layers[2])
