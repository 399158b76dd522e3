"""Graphs for onnxruntime and OpenVINO give the model's own representations."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support.tiny_models import tiny_config, tiny_tokenizer
from transformers import BertForMaskedLM, BertModel

from dupmae_ir.errors import UsageError
from dupmae_ir.export import ExportConfig
from dupmae_ir.export import run as export
from dupmae_ir.models import load_encoder
from dupmae_ir.models.checkpoints.model_config import ModelConfig
from dupmae_ir.models.checkpoints.saving import save_model
from dupmae_ir.models.heads.masked_lm import excluded_ids
from dupmae_ir.models.retriever import Retriever, UntiedRetriever

pytest.importorskip("onnxscript", reason="onnxscript is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
TEXTS = ["the quick brown fox jumps over the lazy dog", "cat", "heap queue sorts list", ""]
EXAMPLE = Path(__file__).parents[3] / "examples" / "encode_with_onnxruntime.py"


def retriever(seed: int = 0, **settings: object) -> Retriever:
    torch.manual_seed(seed)
    projection = torch.nn.Linear(tiny_config().hidden_size, 8, bias=False)
    lm = BertForMaskedLM(tiny_config())
    with torch.no_grad():
        lm.cls.predictions.bias.normal_()  # so that some weights are positive and some are not
    return Retriever(lm, projection, *excluded_ids(tiny_tokenizer()), **settings).eval()


def model(folder: Path, **settings: object) -> Path:
    config = ModelConfig(document_length=64, query_length=32, top_k=5, **settings)
    keys = {k: v for k, v in settings.items() if k in ("activation", "normalize", "pooling")}
    return save_model(folder, retriever(**keys), tiny_tokenizer(), config)


def encoded(folder: Path, texts: list[str]) -> list[dict[str, object]]:
    """What the example program prints for ``texts``, without this package on its path."""
    code = "import sys; sys.modules['dupmae_ir'] = sys.modules['torch'] = None"
    code += f"; sys.argv[1:] = {[str(folder), *texts]!r}"
    code += f"; exec(open({str(EXAMPLE)!r}).read())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, marks=pytest.mark.nightly),
        {"activation": "log1p", "normalize": True, "pooling": "mean"},
    ],
)
def test_the_example_encodes_queries_as_the_model_does(tmp_path, settings):
    folder = model(tmp_path / "model", **settings)
    result = export(
        ExportConfig(
            model=str(folder), output=str(tmp_path / "out"), to="onnx", int8=True, quiet=True
        )
    )
    assert result["parts"] == ["cls", "ot"]
    assert result["differences"]["model.onnx"]["cls"] < 1e-4
    assert result["differences"]["model.int8.onnx"]["cls_cosine"] > 0.98
    rows = encoded(tmp_path / "out", TEXTS)
    ours = load_encoder(folder, device="cpu").encode_queries(TEXTS)
    terms = load_encoder(folder, device="cpu").terms
    np.testing.assert_allclose([row["cls"] for row in rows], ours.cls, atol=1e-4)
    for row, expected in zip(rows, ours.ot, strict=True):
        own = {terms[t]: w for t, w in zip(expected.indices, expected.data, strict=True)}
        assert row["ot"] == pytest.approx(own, abs=1e-4)
    assert rows[-1]["ot"] == {}


def test_an_encoder_without_a_head_has_one_output(tmp_path):
    bare = Retriever(
        BertModel(tiny_config(), add_pooling_layer=False), None, *excluded_ids(tiny_tokenizer())
    ).eval()
    folder = save_model(
        tmp_path / "model", bare, tiny_tokenizer(), ModelConfig(document_length=64, query_length=32)
    )
    assert export(
        ExportConfig(model=str(folder), output=str(tmp_path / "out"), to="onnx", quiet=True)
    )["parts"] == ["cls"]
    (row,) = encoded(tmp_path / "out", TEXTS[:1])
    np.testing.assert_allclose(
        row["cls"],
        load_encoder(folder, device="cpu", parts=("cls",)).encode_queries(TEXTS[:1]).cls[0],
        atol=1e-4,
    )


def test_openvino_gives_the_same(tmp_path):
    pytest.importorskip("openvino", reason="openvino is not installed")
    folder = model(tmp_path / "model")
    result = export(
        ExportConfig(model=str(folder), output=str(tmp_path / "out"), to="openvino", quiet=True)
    )
    assert result["differences"]["model.xml"]["cls"] < 1e-4
    assert result["differences"]["model.xml"]["ot"] < 1e-4
    assert not (tmp_path / "out" / "model.onnx").exists()


def test_a_model_with_two_encoders_is_refused(tmp_path):
    config = ModelConfig(document_length=64, query_length=32)
    folder = save_model(
        tmp_path / "model", UntiedRetriever(retriever(1), retriever(2)), tiny_tokenizer(), config
    )
    with pytest.raises(UsageError, match="export each side's subfolder"):
        export(ExportConfig(model=str(folder), output=str(tmp_path / "out"), to="onnx", quiet=True))
