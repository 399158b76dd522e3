"""The embedded model's script: the folder that it stores, its card, and that nothing is made twice."""

from __future__ import annotations

import json

import embedded as module
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.experiment_samples import a_record
from test_lexical_builder import data, start
from test_publish import SOURCES

from dupmae_ir.models.checkpoints.layout import COMPACT
from dupmae_ir.models.inference.encoder import TextEncoder

__all__ = ["data", "start"]  # fixtures
TEXTS = ["the quick brown fox jumps over the lazy dog", "cat", "list heap queue tree graph"]


@pytest.fixture
def flags(data, start, tmp_path):
    (data / "SOURCES.md").write_text(SOURCES)
    return ["--data", str(data), "--output", str(tmp_path / "runs")]


def test_the_model_is_stored_in_8_bits_and_its_card_gets_new_scores(
    flags, tmp_path, capsys, monkeypatch
):
    records = ["--records", str(tmp_path / "records")]
    assert module.main([*flags, *records]) == 0
    out = tmp_path / "runs" / "model"
    assert json.loads(capsys.readouterr().out)["bytes"] == sum(
        p.stat().st_size for p in out.iterdir()
    )
    weights = load_file(out / COMPACT)
    assert weights["encoder.layer.0.attention.self.value.weight"].dtype == torch.int8
    assert json.loads((out / "training.json").read_text())["documents"] == 4
    card = (out / "README.md").read_text()
    for text in (
        "`openstax/osbooks-astronomy` @ 0c021fb283a7",
        "Apache-2.0",
        "not** a DupMAE",
        "Not measured yet.",
    ):
        assert text in card, text
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "x.json").write_text(
        json.dumps(a_record("embedded", table="references", dev=0.625))
    )
    monkeypatch.setattr(module.lexical, "make", None)  # made once
    assert module.main([*flags, *records]) == 0
    assert "0.6250" in (out / "README.md").read_text()
    assert load_file(out / COMPACT).keys() == weights.keys()


def test_8_bits_change_cls_little_and_ot_not_at_all(flags, tmp_path):
    assert module.main([*flags, "--records", str(tmp_path / "none")]) == 0
    exact, stored = (TextEncoder.load(tmp_path / "runs" / name) for name in ("float32", "model"))
    a = exact.encode_documents(TEXTS)
    b = stored.encode_documents(TEXTS)
    assert (a.ot != b.ot).nnz == 0
    assert np.abs(a.cls - b.cls).max() > 0
    assert ((a.cls * b.cls).sum(1) > 0.999).all()


def test_a_model_that_is_too_large_is_not_stored(flags, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module, "MOST_BYTES", 1000)
    assert module.main([*flags, "--records", str(tmp_path / "none")]) == 1
    assert "above 0 MB" in capsys.readouterr().err
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["float32"]
