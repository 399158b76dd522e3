"""Model folders: loading, saving, and errors for invalid ones."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
import torch
from support.tiny_models import tiny_config, tiny_tokenizer

from dupmae_ir.errors import CheckpointError
from dupmae_ir.models.checkpoints.layout import CONFIG, PROJECTION, folder_digest
from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.checkpoints.model_config import ModelConfig
from dupmae_ir.models.checkpoints.saving import save_model
from dupmae_ir.models.inference.encoder import TextEncoder
from dupmae_ir.models.names import model_folder


@pytest.fixture
def copy(tiny_folder, tmp_path):
    return shutil.copytree(tiny_folder, tmp_path / "model")


def test_round_trip(tiny_retriever, tiny_folder):
    model, _ = tiny_retriever
    loaded, _, config = load_model(tiny_folder)
    assert config.top_k == 6
    for name, value in model.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], value, rtol=0, atol=0)


def test_half_precision_is_half_the_size_and_close(tiny_retriever, tiny_folder, tmp_path):
    model, tokenizer = tiny_retriever
    half = save_model(
        tmp_path / "half", model, tokenizer, ModelConfig(top_k=6), half=True, card="# Card\n"
    )
    assert (half / "model.safetensors").stat().st_size < 0.6 * (
        tiny_folder / "model.safetensors"
    ).stat().st_size
    assert (half / "README.md").read_text() == "# Card\n"
    a = TextEncoder.load(half, document_length=32).encode_documents(["the quick dog"])
    b = TextEncoder.load(tiny_folder).encode_documents(["the quick dog"])
    np.testing.assert_allclose(a.cls, b.cls, atol=0.02)


def save_plain(folder, model):
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def test_a_plain_bert_folder_gives_cls_and_is_refused_for_ot(tmp_path):
    """RetroMAE's fine-tuned checkpoints: bare BertModel keys, an untrained pooler, no head."""
    from transformers import BertModel

    torch.manual_seed(0)
    bert = BertModel(tiny_config())
    folder = save_plain(tmp_path / "plain", bert)
    with pytest.raises(CheckpointError, match="no trained masked-LM head"):
        TextEncoder.load(folder)
    encoder = TextEncoder.load(folder, parts=("cls",), document_length=32)
    ids = tiny_tokenizer()(["the quick dog"], return_tensors="pt")
    with torch.no_grad():
        want = bert.eval()(
            input_ids=ids["input_ids"], attention_mask=ids["attention_mask"]
        ).last_hidden_state[0, 0]
    np.testing.assert_allclose(
        encoder.encode_documents(["the quick dog"]).cls[0], want.numpy(), atol=1e-5
    )


def test_a_masked_lm_folder_without_our_files_has_both_parts(tmp_path):
    """RetroMAE's pre-trained checkpoints: BertForMaskedLM, no pooler, no projection."""
    from transformers import BertForMaskedLM

    torch.manual_seed(0)
    folder = save_plain(tmp_path / "mlm", BertForMaskedLM(tiny_config()))
    encoder = TextEncoder.load(folder, document_length=32)
    assert encoder.dim == 24
    assert encoder.encode_documents(["the quick dog"]).ot.nnz > 0


def test_distilbert_and_roberta_layouts(tmp_path):
    from transformers import (
        DistilBertConfig,
        DistilBertForMaskedLM,
        RobertaConfig,
        RobertaForMaskedLM,
    )

    torch.manual_seed(0)
    distil = DistilBertForMaskedLM(
        DistilBertConfig(
            vocab_size=29,
            dim=24,
            n_layers=1,
            n_heads=3,
            hidden_dim=48,
            max_position_embeddings=64,
            initializer_range=0.4,
        )
    )
    roberta = RobertaForMaskedLM(
        RobertaConfig(
            vocab_size=29,
            hidden_size=24,
            num_hidden_layers=1,
            num_attention_heads=3,
            intermediate_size=48,
            pad_token_id=0,
            max_position_embeddings=64,
            initializer_range=0.4,
        )
    )
    for name, lm in (("distil", distil), ("roberta", roberta)):
        encoder = TextEncoder.load(save_plain(tmp_path / name, lm), document_length=32)
        ids = encoder.tokenizer(["the quick dog"], return_tensors="pt")
        with torch.no_grad():
            logits = lm.eval()(
                input_ids=ids["input_ids"], attention_mask=ids["attention_mask"]
            ).logits[0, 1:-1]
        want = logits.amax(0).clamp(min=0)
        want[:6] = 0
        np.testing.assert_allclose(
            encoder.encode_documents(["the quick dog"]).ot.toarray()[0], want, atol=1e-5
        )


def test_a_new_projection_changes_the_digest(copy):
    before = folder_digest(copy)
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(4, 24), "bias": torch.ones(4)}, copy / PROJECTION)
    assert folder_digest(copy) != before
    assert TextEncoder.load(copy).encode_documents(["cat"]).cls.tolist() == [[1.0] * 4]


def damage_missing(folder):
    shutil.rmtree(folder)


def damage_no_config(folder):
    (folder / "config.json").unlink()


def damage_no_weights(folder):
    (folder / "model.safetensors").unlink()


def damage_truncated(folder):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def damage_config_json(folder):
    (folder / CONFIG).write_text("{not json")


def damage_config_key(folder):
    (folder / CONFIG).write_text(json.dumps({"activashun": "relu"}))


def damage_config_format(folder):
    (folder / CONFIG).write_text(json.dumps({"format": 99}))


def damage_projection_shape(folder):
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(4, 7)}, folder / PROJECTION)


def damage_projection_bytes(folder):
    (folder / PROJECTION).write_bytes(b"garbage")


def damage_encoder_layer(folder):
    from safetensors.torch import load_file, save_file

    state = {
        k: v for k, v in load_file(folder / "model.safetensors").items() if "layer.1." not in k
    }
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def damage_tokenizer(folder):
    for path in folder.glob("tokenizer*"):
        path.write_text("{}")


DAMAGES = [v for k, v in sorted(globals().items()) if k.startswith("damage_")]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__.removeprefix("damage_"))
def test_a_damaged_folder_is_a_one_line_error(copy, damage):
    damage(copy)
    with pytest.raises(CheckpointError) as e:
        load_model(copy)
    message = str(e.value)
    assert "\n" not in message
    assert str(copy) in message


def test_a_folder_without_our_config_is_a_plain_retriever(tmp_path):
    from transformers import BertForMaskedLM

    folder = save_plain(tmp_path / "mlm", BertForMaskedLM(tiny_config()))
    assert load_model(folder)[2].method == "plain"


def test_architectures_that_are_no_list_name_no_reranker(tmp_path):
    from transformers import BertForMaskedLM

    folder = save_plain(tmp_path / "mlm", BertForMaskedLM(tiny_config()))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": 0.5}))
    assert load_model(folder)[2].method == "plain"


@pytest.mark.parametrize(
    ("name", "value"),
    [("hidden_size", 10**9), ("num_hidden_layers", 10**7), ("hidden_size", -1), ("vocab_size", 0)],
)
def test_sizes_that_no_model_has_are_one_line(tmp_path, name, value):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", name: value}))
    with pytest.raises(
        CheckpointError, match=f"config.json: {name} is {value}; it must be from 1 to"
    ):
        model_folder(tmp_path)


def test_files_without_an_end_are_one_line(tmp_path):
    (tmp_path / "config.json").write_text("[" * 200_000)
    with pytest.raises(CheckpointError, match=r"config\.json: nested too deeply"):
        model_folder(tmp_path)
    (tmp_path / "config.json").unlink()
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(CheckpointError, match="not a regular file"):
        model_folder(tmp_path)
    (tmp_path / "config.json").unlink()
    (tmp_path / "tokenizer.json").symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: not a regular file"):
        model_folder(tmp_path)
