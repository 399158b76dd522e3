"""A model with a weight that is not finite is refused by name, wherever the weight is and however the model is read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny_models import tiny_config, tiny_tokenizer

from dupmae_ir.encode.__main__ import main as encode_main
from dupmae_ir.errors import CheckpointError
from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.checkpoints.stored import StoredWeights
from dupmae_ir.models.inference.encoder import TextEncoder

HEAD_BIAS = "cls.predictions.bias"
NORM = "bert.encoder.layer.0.output.LayerNorm.weight"
WORDS = "bert.embeddings.word_embeddings.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    from transformers import BertForMaskedLM

    torch.manual_seed(0)
    home = tmp_path / "model"
    BertForMaskedLM(tiny_config()).save_pretrained(home)
    tiny_tokenizer().save_pretrained(home)
    projection = {"weight": torch.ones(8, tiny_config().hidden_size)}
    save_file(projection, home / "cls_projection.safetensors")
    return home


def spoil(file: Path, name: str, value: float) -> None:
    """Write one value that is not finite into a weight of ``file``."""
    weights = {key: tensor.clone() for key, tensor in load_file(file).items()}
    weights[name].view(-1)[-1] = value
    save_file(weights, file, {"format": "pt"})


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", [HEAD_BIAS, NORM, WORDS])
def test_a_weight_of_the_encoder_or_the_head(folder, name, value, plain):
    load_model(folder, plain=plain)
    spoil(folder / "model.safetensors", name, value)
    with pytest.raises(CheckpointError) as caught:
        load_model(folder, plain=plain)
    assert str(folder) in str(caught.value)
    assert "has a weight that is not finite" in str(caught.value)


def test_a_weight_of_the_projection(folder):
    from dupmae_ir.models.checkpoints.layout import PROJECTION

    assert (folder / PROJECTION).is_file()
    spoil(folder / PROJECTION, "weight", float("nan"))
    with pytest.raises(CheckpointError, match="weight that is not finite"):
        TextEncoder.load(folder)


def test_the_query_encoder_without_torch(folder):
    spoil(folder / "model.safetensors", NORM, float("nan"))
    stored = StoredWeights(folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"{NORM} has a weight that is not finite"):
        stored[NORM]
    assert len(stored.rows(WORDS, [3])) == 1


def test_the_command_says_so_in_one_line_and_writes_nothing(folder, tmp_path, capsys):
    spoil(folder / "model.safetensors", HEAD_BIAS, float("nan"))
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "a", "contents": "red fox"}\n', encoding="utf-8")
    index = tmp_path / "index"
    words = ["--corpus", str(corpus), "--index", str(index), "--model", str(folder)]
    assert encode_main([*words, "--parts", "ot"]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "has a weight that is not finite" in error
    assert str(folder) in error
    assert not index.exists()
