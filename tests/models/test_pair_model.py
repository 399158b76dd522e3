"""The cross-encoder in numpy: the scores of torch, the same bits with any other pairs, and what it leaves to torch."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from support.rerank_samples import write_base

from dupmae_ir.errors import CheckpointError
from dupmae_ir.models.checkpoints.saving import write_compact
from dupmae_ir.models.inference.pair_model import LazyCrossEncoder, PairModel
from dupmae_ir.models.reranker import open_reranker
from dupmae_ir.types import Document

QUERY = "the cat"
WIDE = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "type_vocab_size": 1}
TEXTS = ["the cat sat on the mat", "dog", "", "queue on the heap " * 30]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny cross-encoder with 8-bit weights."""
    path = tmp_path_factory.mktemp("models")
    write_base(path / "wide", labels=1, **WIDE)
    write_compact(path / "wide", path / "compact")
    return path / "compact"


def test_scores_are_those_of_torch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dupmae_ir.device.cpu_supports_bf16", lambda: False)
    model = PairModel.read(folder)
    assert model is not None
    whole = open_reranker(str(folder), None, "cpu")
    wanted = whole.scores(QUERY, [Document("", text) for text in TEXTS])
    assert np.ptp(wanted) > 0.01
    scores = model.scores(QUERY, TEXTS, model.positions)
    np.testing.assert_allclose(scores, wanted, atol=2e-3 * np.ptp(wanted))


def test_a_pair_has_the_same_score_with_any_others(folder: Path) -> None:
    model = PairModel.read(folder)
    assert model is not None
    alone = [model.scores(QUERY, [text], 32)[0] for text in TEXTS]
    assert model.scores(QUERY, TEXTS, 32) == alone
    assert model.scores(QUERY, TEXTS[::-1], 32) == alone[::-1]
    assert model.scores(QUERY, [], 32) == []


def test_torch_computes_once_it_is_loaded(folder: Path) -> None:
    class Whole:
        def scores(self, query: str, documents: object) -> list[float]:
            return [7.0]

    model = PairModel.read(folder)
    assert model is not None
    lazy = LazyCrossEncoder(model, Whole)
    assert lazy.scores(QUERY, [Document("", "dog", "title")]) == model.scores(
        QUERY, ["title dog"], model.positions
    )
    lazy.whole()
    assert lazy.scores(QUERY, [Document("", "dog")]) == [7.0]


def test_other_models_are_left_to_torch(folder: Path, tmp_path: Path) -> None:
    assert PairModel.read(folder.with_name("wide")) is None  # weights in float32
    write_base(tmp_path / "two", labels=2, **WIDE)
    write_compact(tmp_path / "two", tmp_path / "compact")
    assert PairModel.read(tmp_path / "compact") is None


def test_a_damaged_model_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "cut")
    weights = tmp_path / "cut" / "model.compact.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="not readable as safetensors"):
        PairModel.read(tmp_path / "cut")
