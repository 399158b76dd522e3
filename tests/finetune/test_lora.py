"""``finetune --lora-rank``: what is trained, merged, kept and resumed, by family; and activation checkpointing."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from support.tiny_models import tiny_config, tiny_tokenizer

from dupmae_ir.finetune.__main__ import main
from dupmae_ir.models.checkpoints.loading import load_model

ROWS = [
    ("cat on", "the cat sat"),
    ("dog on", "a dog runs"),
    ("fox on", "the quick fox"),
    ("heap on", "heap sorts"),
]


@pytest.fixture
def folder(tmp_path):
    """A tiny BERT masked LM and pairs."""
    from transformers import BertForMaskedLM

    torch.manual_seed(0)
    BertForMaskedLM(tiny_config(initializer_range=0.1)).save_pretrained(tmp_path / "base")
    tiny_tokenizer().save_pretrained(tmp_path / "base")
    lines = [json.dumps({"query": q, "positive": p}) for q, p in ROWS * 4]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    return tmp_path


def command(folder, *more, output="out"):
    places = [
        f"--{name}={folder / file}" for name, file in (("pairs", "pairs.jsonl"), ("model", "base"))
    ]
    sizes = [
        "--batch-size=4",
        "--group-size=1",
        "--cls-dim=8",
        "--steps=4",
        "--log-steps=2",
        "--save-steps=2",
    ]
    sizes += ["--learning-rate=3e-3", "--threads=1", "--quiet", f"--output={folder / output}"]
    return main([*places, *sizes, *more])


LORA = ("--lora-rank=2", "--lora-dropout=0.1")


def lora():
    pytest.importorskip("peft", reason="adapters need the extra: pip install 'dupmae-ir[lora]'")


@pytest.mark.filterwarnings(
    "ignore:.*is_gradient_checkpointing:FutureWarning"
)  # peft with transformers 5
def test_the_model_is_merged_and_the_kept_adapter_gives_the_same(folder):
    lora()
    from peft import PeftModel

    assert command(folder, *LORA, "--keep-adapter") == 0
    base, made = (load_file(folder / name / "model.safetensors") for name in ("base", "out"))
    assert made.keys() == base.keys()
    moved = {name for name in base if not torch.equal(base[name], made[name])}
    assert moved
    assert all(
        name.endswith(("query.weight", "key.weight", "value.weight", "dense.weight"))
        for name in moved
    )
    start, tokenizer, _ = load_model(folder / "base")
    merged, _, _ = load_model(folder / "out")
    adapted = PeftModel.from_pretrained(start.lm, folder / "out" / "adapter").eval()
    inputs = tokenizer(["the cat sat on the mat"], return_tensors="pt")
    with torch.no_grad():
        torch.testing.assert_close(
            adapted(**inputs).logits, merged.lm(**inputs).logits, rtol=0, atol=1e-5
        )
    settings = json.loads((folder / "out" / "adapter" / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"]) == (2, 4)
    assert settings["base_model_name_or_path"] == "base"
    assert json.loads((folder / "out" / "training.json").read_text())["settings"]["lora_rank"] == 2


@pytest.mark.nightly
def test_an_interrupted_run_resumes_to_identical_weights(folder, monkeypatch):
    lora()
    from dupmae_ir.finetune.trainer import PairTrainer

    assert command(folder, *LORA, output="whole") == 0
    real = PairTrainer._save_checkpoint

    def interrupted(self, *args, **kwargs):
        real(self, *args, **kwargs)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PairTrainer, "_save_checkpoint", interrupted)
        assert command(folder, *LORA, output="cut") == 130
    assert command(folder, *LORA, output="cut") == 0
    for name in ("model.safetensors", "README.md"):
        assert (folder / "cut" / name).read_bytes() == (folder / "whole" / name).read_bytes()
    assert not (folder / "cut" / "adapter").exists()


def test_two_encoders_have_an_adapter_each(folder):
    lora()
    assert command(folder, *LORA, "--encoder=untied", "--keep-adapter") == 0
    assert {p.name for p in (folder / "out").glob("*_adapter")} == {
        "query_adapter",
        "document_adapter",
    }
    query, document = (
        load_file(folder / "out" / f"{s}_model" / "model.safetensors") for s in ("query", "passage")
    )
    assert any(not torch.equal(query[name], document[name]) for name in query)


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "DistilBert", "MPNet", "ModernBert"])
def test_every_family_has_default_targets(kind):
    lora()
    import transformers

    from dupmae_ir.finetune.adapters import LoraSettings, add_adapters, merge_adapters
    from dupmae_ir.models.retriever import Retriever

    sizes = {"vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    if kind == "DistilBert":
        sizes = {"vocab_size": 40, "dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 48}
    config = getattr(transformers, f"{kind}Config")(pad_token_id=0, **sizes)
    lm = getattr(transformers, f"{kind}ForMaskedLM")(config).eval()
    ids = torch.tensor([[3, 6, 7, 4]])
    plain = lm(ids).logits
    names = [name for name, _ in lm.named_parameters()]
    lora_settings = LoraSettings(rank=2, alpha=4, dropout=0.0, targets=(), base_name="base")
    adapters = add_adapters(Retriever(lm, None, [], []), lora_settings)
    trained = [p for p in lm.parameters() if p.requires_grad]
    assert len(trained) >= 2 * 2 * 4  # two matrices in at least four maps of both layers
    torch.testing.assert_close(lm(ids).logits, plain, rtol=0, atol=1e-6)
    with torch.no_grad():
        for p in trained:
            p.add_(0.05)
    adapted = lm(ids).logits
    merge_adapters(adapters, None)
    assert [name for name, _ in lm.named_parameters()] == names
    torch.testing.assert_close(lm(ids).logits, adapted, rtol=0, atol=1e-5)
    assert (adapted - plain).abs().max() > 1e-4


def test_misuse_is_one_line(folder, monkeypatch, capsys):
    lora()
    assert command(folder, *LORA, "--lora-targets", "nothing") == 2
    assert "--lora-targets nothing: " in capsys.readouterr().err
    assert command(folder, *LORA, "--encoder=mote") == 2
    assert "--lora-rank cannot be used with --encoder mote" in capsys.readouterr().err
    assert command(folder, "--keep-adapter") == 2
    assert "--keep-adapter applies only with --lora-rank" in capsys.readouterr().err


def test_without_peft_is_one_line(folder, monkeypatch, capsys):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        "dupmae_ir.device.importlib.util.find_spec",
        lambda n, *a: None if n == "peft" else real(n, *a),
    )
    assert command(folder, *LORA) == 1
    assert "--lora-rank needs peft: pip install 'dupmae-ir[lora]'" in capsys.readouterr().err


def test_activation_checkpointing_changes_no_bit(folder):
    for name, more in (("plain", ()), ("checkpointed", ("--checkpointing",))):
        assert command(folder, *more, output=name) == 0
    a, b = (
        (folder / name / "model.safetensors").read_bytes() for name in ("plain", "checkpointed")
    )
    assert a == b
