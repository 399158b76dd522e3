"""Weights stored in 8 bits: what is written, what is read back, and errors for damaged files."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny_models import tiny_config, tiny_tokenizer

from dupmae_ir.errors import CheckpointError, UsageError
from dupmae_ir.export import main
from dupmae_ir.models import load_encoder
from dupmae_ir.models.checkpoints.layout import COMPACT, CONFIG, folder_digest
from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.checkpoints.model_config import ModelConfig
from dupmae_ir.models.checkpoints.released import read_tensors
from dupmae_ir.models.checkpoints.saving import quantise, save_compact, save_model, write_compact
from dupmae_ir.models.checkpoints.stored import GROUP, METADATA, VERSION, decode
from dupmae_ir.models.retriever import UntiedRetriever

TEXTS = ["the quick dog", "a heap sorts the list over the lazy cat", ""]


@pytest.fixture
def compact(tiny_folder, tmp_path):
    write_compact(tiny_folder, tmp_path / "compact")
    return tmp_path / "compact"


def test_the_error_of_a_weight_is_at_most_half_the_factor_of_its_group():
    torch.manual_seed(0)
    matrix = torch.randn(50, 2 * GROUP + 33) * torch.logspace(-6, 3, 50).unsqueeze(1)
    matrix[:, GROUP : 2 * GROUP] *= 1e-4
    matrix[7] = 0
    codes, scale = quantise(matrix)
    assert codes.dtype == torch.int8
    assert codes.shape == matrix.shape
    assert (scale.dtype, scale.shape) == (torch.bfloat16, (50, 3))
    read = torch.from_numpy(decode(codes.numpy(), scale.float().numpy()))
    for group, columns in enumerate(
        (slice(0, GROUP), slice(GROUP, 2 * GROUP), slice(2 * GROUP, None))
    ):
        largest = matrix[:, columns].abs().amax(1)
        factor = scale[:, group].float()
        assert bool((factor >= largest / 127).all())  # rounded up: no weight is clipped
        assert bool((factor <= largest / 127 * 1.008).all())  # 8 bits of precision
        error = (read - matrix)[:, columns].abs().amax(1)
        assert bool((error <= factor * 0.5001).all())
        assert bool((error[factor > 0] > 0).all())
        assert error[7] == 0


def test_a_matrix_of_zeros_has_no_codes(tmp_path):
    codes, _ = quantise(torch.zeros(5, 3))
    assert codes.shape == (0, 3)
    save_compact({"zeros": torch.zeros(5, 3)}, tmp_path / COMPACT)
    assert torch.equal(read_tensors(tmp_path / COMPACT)["zeros"], torch.zeros(5, 3))


def test_a_file_contains_codes_factors_and_the_other_tensors_unchanged(tmp_path):
    state = {
        "matrix": torch.randn(4, 70).half(),
        "value.weight": torch.randn(4, 70),
        "position_embeddings": torch.randn(3, 70).half(),
        "diagonal": torch.randn(6).diag(),
        "bias": torch.randn(6).half(),
        "zeros": torch.zeros(5, 5),
        "ids": torch.arange(6).view(1, 6),
    }
    assert save_compact(state, tmp_path / COMPACT, keep=["value"]) == 2
    stored = load_file(tmp_path / COMPACT)
    assert {n: (t.dtype, tuple(t.shape)) for n, t in stored.items()} == {
        "matrix": (torch.int8, (4, 70)),
        "matrix.scale": (torch.bfloat16, (4, 2)),
        "value.weight": (torch.float16, (4, 70)),
        "position_embeddings": (torch.float16, (3, 70)),
        "diagonal.diagonal": (torch.float32, (6,)),
        "bias": (torch.float16, (6,)),
        "zeros": (torch.int8, (0, 5)),
        "zeros.scale": (torch.bfloat16, (5, 1)),
        "ids": (torch.int64, (1, 6)),
    }
    read = read_tensors(tmp_path / COMPACT)
    assert set(read) == set(state)
    factors = stored["matrix.scale"].float()
    assert torch.equal(read["matrix"][:, :64], stored["matrix"][:, :64].float() * factors[:, :1])
    assert torch.equal(read["matrix"][:, 64:], stored["matrix"][:, 64:].float() * factors[:, 1:])
    assert torch.equal(read["value.weight"], state["value.weight"].half().float())
    for name in ("position_embeddings", "diagonal", "bias", "zeros", "ids"):
        assert torch.equal(
            read[name], state[name].float() if state[name].is_floating_point() else state[name]
        ), name
    with pytest.raises(CheckpointError, match="no matrix has 'bia' in its name"):
        save_compact(state, tmp_path / COMPACT, keep=["bia"])


def test_a_loaded_model_has_the_dequantised_weights(tiny_retriever, compact, tiny_folder):
    loaded, _, config = load_model(compact)
    assert config == load_model(tiny_folder)[2]
    exact = read_tensors(compact / COMPACT)
    state = loaded.lm.state_dict()
    for name, value in exact.items():
        assert torch.equal(state[name], value), name
    original = tiny_retriever[0].lm.state_dict()
    changed = [n for n, v in original.items() if not torch.equal(state[n], v)]
    assert changed  # it was stored in 8 bits
    assert all(original[n].ndim == 2 for n in changed)
    assert torch.equal(loaded.projection.weight, tiny_retriever[0].projection.weight)


def test_vectors_stay_close_and_the_folder_is_its_own_model(compact, tiny_folder):
    before = load_encoder(str(tiny_folder))
    after = load_encoder(str(compact))
    assert before.digest != after.digest == folder_digest(compact)
    a = before.encode_documents(TEXTS)
    b = after.encode_documents(TEXTS)
    cosine = (a.cls * b.cls).sum(1) / np.linalg.norm(a.cls, axis=1) / np.linalg.norm(b.cls, axis=1)
    assert cosine.min() > 0.995
    assert a.ot.nnz


def test_saving_a_loaded_model_gives_the_same_weights_in_float32(compact, tmp_path):
    model, tokenizer, config = load_model(compact)
    again = save_model(tmp_path / "again", model, tokenizer, config)
    for name, value in load_model(again)[0].state_dict().items():
        assert torch.equal(value, model.state_dict()[name])
    assert not (again / COMPACT).exists()


def test_an_encoder_without_a_head_gives_its_dense_part(tmp_path):
    from transformers import BertModel

    torch.manual_seed(0)
    BertModel(tiny_config()).half().save_pretrained(tmp_path / "plain")
    tiny_tokenizer().save_pretrained(tmp_path / "plain")
    write_compact(tmp_path / "plain", tmp_path / "small")
    with pytest.raises(CheckpointError, match="no trained masked-LM head"):
        load_encoder(str(tmp_path / "small"))
    assert (
        load_encoder(str(tmp_path / "small"), parts=("cls",)).encode_documents(TEXTS).cls.dtype
        == np.float32
    )


def test_both_sides_of_an_untied_model_are_stored(tiny_retriever, tmp_path):
    model, tokenizer = tiny_retriever
    other = load_model(save_model(tmp_path / "one", model, tokenizer, ModelConfig()))[0]
    torch.nn.init.normal_(other.projection.weight)
    save_model(tmp_path / "two", UntiedRetriever(other, model), tokenizer, ModelConfig(top_k=5))
    write_compact(tmp_path / "two", tmp_path / "small")
    loaded, _, config = load_model(tmp_path / "small")
    assert isinstance(loaded, UntiedRetriever)
    assert config.top_k == 5
    assert (tmp_path / "small" / "query_model" / COMPACT).is_file()


def test_export_writes_it_once_and_refuses_the_part(tiny_folder, tmp_path, capsys):
    arguments = [
        "--model",
        str(tiny_folder),
        "--to",
        "compact",
        "--output",
        str(tmp_path / "small"),
    ]
    assert main(arguments) == 0
    assert "matrices in 8 bits" in capsys.readouterr().err
    digest = folder_digest(tmp_path / "small")
    assert main(arguments) == 0
    assert "already complete" in capsys.readouterr().err
    assert folder_digest(tmp_path / "small") == digest
    assert load_encoder(str(tmp_path / "small")).digest == digest
    assert main([*arguments[:-1], str(tmp_path / "other"), "--part", "ot"]) == 2
    assert "--part applies only with --to sentence-transformers" in capsys.readouterr().err
    assert (
        main(
            [
                "--model",
                str(tmp_path / "small"),
                "--to",
                "compact",
                "--output",
                str(tmp_path / "twice"),
            ]
        )
        == 2
    )
    assert "already stored in 8 bits" in capsys.readouterr().err


def rewritten(folder, change, metadata=None):
    stored = load_file(folder / COMPACT)
    change(stored)
    save_file(
        stored, folder / COMPACT, metadata={METADATA: VERSION} if metadata is None else metadata
    )


FIRST = "bert.embeddings.word_embeddings.weight"


def damage_truncated(folder):
    data = (folder / COMPACT).read_bytes()
    (folder / COMPACT).write_bytes(data[: len(data) // 2])


def damage_metadata(folder):
    rewritten(folder, lambda _: None, {"format": "pt"})


def damage_version(folder):
    rewritten(folder, lambda _: None, {METADATA: "1"})


def damage_lost_scale(folder):
    rewritten(folder, lambda s: s.pop(f"{FIRST}.scale"))


def damage_lost_codes(folder):
    rewritten(folder, lambda s: s.pop(FIRST))


def damage_scale_rows(folder):
    rewritten(folder, lambda s: s.update({f"{FIRST}.scale": torch.ones(3, 1).bfloat16()}))


def damage_scale_values(folder):
    rewritten(folder, lambda s: s[f"{FIRST}.scale"].fill_(float("nan")))


def damage_diagonal(folder):
    rewritten(folder, lambda s: s.update({f"{FIRST}.diagonal": torch.ones(2, 2)}))


def damage_codes_type(folder):
    rewritten(folder, lambda s: s.update({FIRST: s[FIRST].float()}))


def damage_lost_layer(folder):
    def drop(stored):
        for name in [n for n in stored if ".layer.1." in n]:
            del stored[name]

    rewritten(folder, drop)


def damage_shape(folder):
    def cut(stored):
        stored[FIRST], stored[f"{FIRST}.scale"] = (
            stored[FIRST][:5].clone(),
            stored[f"{FIRST}.scale"][:5].clone(),
        )

    rewritten(folder, cut)


def damage_two_formats(folder):
    save_file({"x": torch.zeros(1)}, folder / "model.safetensors")


def damage_config(folder):
    (folder / "config.json").write_text(json.dumps({"model_type": "no-such-type"}))


DAMAGES = [v for k, v in sorted(globals().items()) if k.startswith("damage_")]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__.removeprefix("damage_"))
def test_a_damaged_folder_is_a_one_line_error(compact, damage):
    load_model(compact)
    damage(compact)
    with pytest.raises(CheckpointError) as e:
        load_model(compact)
    assert "\n" not in str(e.value)
    assert str(compact) in str(e.value)


def test_weights_that_are_not_finite_are_not_stored(tiny_folder, tmp_path):
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    state = load_file(folder / "model.safetensors")
    state[FIRST][0, 0] = float("inf")
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        CheckpointError, match=r"word_embeddings\.weight contains a weight that is not finite"
    ):
        write_compact(folder, tmp_path / "small")


def test_training_records_are_not_copied_and_settings_are(tiny_folder, tmp_path):
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    (folder / "training.json").write_text("{}")
    (folder / "lexicon.safetensors").write_bytes(b"any other file")
    write_compact(folder, tmp_path / "small")
    assert (tmp_path / "small" / CONFIG).read_bytes() == (folder / CONFIG).read_bytes()
    assert (tmp_path / "small" / "lexicon.safetensors").read_bytes() == b"any other file"
    assert not (tmp_path / "small" / "training.json").exists()
    assert not (tmp_path / "small" / "model.safetensors").exists()


def test_a_file_is_not_a_folder(tmp_path):
    (tmp_path / "dpr.cp").write_bytes(b"")
    with pytest.raises(UsageError, match="only folders are stored in 8 bits"):
        write_compact(tmp_path / "dpr.cp", tmp_path / "small")
