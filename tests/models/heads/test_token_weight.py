"""BGE-M3: token weights, vectors and single-token vectors equal FlagEmbedding's own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from support.bge_models import TEXTS, write_bge_m3
from transformers import XLMRobertaModel

from dupmae_ir.errors import CheckpointError, UsageError
from dupmae_ir.export import ExportConfig
from dupmae_ir.export import run as export
from dupmae_ir.models import load_encoder
from dupmae_ir.models.checkpoints.layout import folder_digest
from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.checkpoints.saving import save_model, write_compact
from dupmae_ir.models.checkpoints.sentence_transformers import write_sentence_transformers


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_bge_m3(tmp_path_factory.mktemp("models") / "bge-m3")


@pytest.fixture(scope="module")
def expected(folder):
    """Vectors, and a token's weight by its id, of each text."""
    flag = pytest.importorskip(
        "FlagEmbedding", reason="FlagEmbedding is not installed: pip install FlagEmbedding"
    )
    model = flag.BGEM3FlagModel(str(folder), use_fp16=False, devices="cpu")
    out = model.encode(
        TEXTS, max_length=64, return_dense=True, return_sparse=True, return_colbert_vecs=True
    )
    return out["dense_vecs"], [
        {int(i): float(w) for i, w in one.items()} for one in out["lexical_weights"]
    ]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("side", ["documents", "queries"])
def test_both_parts_equal_those_of_flagembedding(folder, expected, packed, side):
    encoder = load_encoder(str(folder))
    assert encoder._packed is not None
    if not packed:
        encoder._packed = None
    found = getattr(encoder, f"encode_{side}")(TEXTS)
    vectors, weights = expected
    np.testing.assert_allclose(found.cls, vectors, atol=1e-5)
    for row, wanted in enumerate(weights):
        assert found.ot[row].indices.tolist() == sorted(wanted)
        np.testing.assert_allclose(
            found.ot[row].data, [wanted[i] for i in sorted(wanted)], atol=1e-5
        )
    assert found.ot.nnz > 20


def test_both_parts_equal_the_formula(folder):
    """The same without FlagEmbedding: transformers' states, text by text."""
    model = XLMRobertaModel.from_pretrained(folder).eval()
    encoder = load_encoder(str(folder))
    layer = torch.nn.Linear(32, 1)
    layer.load_state_dict(torch.load(folder / "sparse_linear.pt", weights_only=True))
    found = encoder.encode_documents(TEXTS)
    for row, text in enumerate(TEXTS):
        ids = encoder.tokenizer(text, truncation=True, max_length=64, return_tensors="pt")[
            "input_ids"
        ]
        with torch.inference_mode():
            states = model(input_ids=ids).last_hidden_state[0]
            weights = torch.relu(layer(states))[:, 0].tolist()
        np.testing.assert_allclose(found.cls[row], states[0] / states[0].norm(), atol=1e-5)
        wanted = np.zeros(found.ot.shape[1])
        for token, weight in zip(ids[0].tolist(), weights, strict=True):
            wanted[token] = max(wanted[token], weight)
        wanted[:4] = 0  # <s>, <pad>, </s>, <unk>
        np.testing.assert_allclose(found.ot[row].toarray()[0], wanted, atol=1e-5)


def test_queries_keep_as_many_weights_as_lucene_takes(folder):
    encoder = load_encoder(str(folder))
    every = encoder.encode_queries(TEXTS).ot.toarray()
    for kept in (1, 3):
        one = encoder.encode_queries(TEXTS, cap=kept).ot
        assert (np.diff(one.indptr) == np.minimum(kept, (every > 0).sum(1))).all()
        np.testing.assert_array_equal(one.max(axis=1).toarray()[:, 0], every.max(1))


def test_flagembedding_opens_a_saved_model(folder, expected, tmp_path):
    flag = pytest.importorskip("FlagEmbedding")
    model, tokenizer, config = load_model(folder, need_ot=False)
    saved = save_model(tmp_path / "saved", model, tokenizer, config)
    found = load_encoder(str(saved)).encode_documents(TEXTS)
    np.testing.assert_allclose(found.cls, expected[0], atol=1e-5)
    out = flag.BGEM3FlagModel(str(saved), use_fp16=False, devices="cpu").encode(
        TEXTS, max_length=64, return_sparse=True
    )
    np.testing.assert_allclose(out["dense_vecs"], expected[0], atol=1e-5)
    for row, wanted in enumerate(expected[1]):
        assert found.ot[row].nnz == len(wanted) == len(out["lexical_weights"][row])


def test_weights_in_8_bits_keep_the_layers(folder, tmp_path):
    write_compact(folder, tmp_path / "small")
    exact, small = (
        load_encoder(str(path)).encode_documents(TEXTS) for path in (folder, tmp_path / "small")
    )
    assert (exact.cls * small.cls).sum(1).min() > 0.99
    assert small.ot.nnz


@pytest.mark.nightly
def test_the_graph_of_onnx_has_both_parts(folder, tmp_path):
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    result = export(
        ExportConfig(model=str(folder), output=str(tmp_path / "out"), to="onnx", quiet=True)
    )
    assert result["parts"] == ["cls", "ot"]
    encoder = load_encoder(str(folder))
    batch = encoder.tokenizer(
        TEXTS, padding=True, truncation=True, max_length=64, return_tensors="np"
    )
    inputs = {name: batch[name].astype(np.int64) for name in ("input_ids", "attention_mask")}
    cls, terms, weights = runtime.InferenceSession(str(tmp_path / "out" / "model.onnx")).run(
        None, inputs
    )
    wanted = encoder.encode_documents(TEXTS)
    np.testing.assert_allclose(cls, wanted.cls, atol=1e-5)
    dense = np.zeros(wanted.ot.shape)
    for row, (ids, own) in enumerate(zip(terms, weights, strict=True)):
        assert len({*ids[own > 0].tolist()}) == (own > 0).sum()  # each term once
        dense[row, ids[own > 0]] = own[own > 0]
    np.testing.assert_allclose(dense, wanted.ot.toarray(), atol=1e-5)


def test_sentence_transformers_gets_the_dense_part_alone(folder, tmp_path):
    with pytest.raises(UsageError, match="its OT part is token_weight, without an equivalent"):
        write_sentence_transformers(folder, tmp_path / "ot", "ot")
    st = pytest.importorskip("sentence_transformers")
    write_sentence_transformers(folder, tmp_path / "cls", "cls")
    vectors = st.SentenceTransformer(str(tmp_path / "cls"), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(
        load_encoder(str(folder)).encode_documents(TEXTS).cls, vectors, atol=1e-5
    )


class Runs:
    """Unpickling it would run code."""

    def __reduce__(self):
        return print, ("run",)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-200])


BAD = [
    (
        "sparse",
        Path.unlink,
        "sparse_linear.pt: missing, so no token has a weight; restore it, or remove colbert",
    ),
    (
        "sparse",
        lambda p: torch.save({"weight": torch.ones(1, 8), "bias": torch.ones(1)}, p),
        r"expected .*\(d', 32\)",
    ),
    (
        "sparse",
        lambda p: torch.save({"weight": torch.ones(2, 32)}, p),
        "expected one weight for each token, got 2",
    ),
    (
        "sparse",
        lambda p: torch.save({"weight": Runs()}, p),
        "contains more than tensors .*nothing was loaded",
    ),
    ("sparse", truncate, "sparse_linear.pt: not readable as a file of torch.save"),
    (
        "colbert",
        lambda p: torch.save({"bias": torch.ones(1)}, p),
        "colbert_linear.pt: expected a weight",
    ),
    ("colbert", truncate, "colbert_linear.pt: not readable as a file of torch.save"),
]


@pytest.mark.parametrize(("layer", "damage", "message"), BAD)
def test_bad_layers_get_one_line(folder, tmp_path, layer, damage, message, capsys):
    copy = shutil.copytree(folder, tmp_path / "m")
    digest = folder_digest(copy)
    damage(copy / f"{layer}_linear.pt")
    assert folder_digest(copy) != digest
    with pytest.raises(CheckpointError, match=message) as e:
        load_encoder(str(copy))
    assert "\n" not in str(e.value)
    assert "run" not in capsys.readouterr().out


def test_part_weights_of_a_model_must_be_positive(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "m")
    (copy / "dupmae_config.json").write_text(json.dumps({"ot": "token_weight", "impact_weight": 0}))
    with pytest.raises(CheckpointError, match="impact_weight must be a positive number, got 0"):
        load_encoder(str(copy))


@pytest.mark.parametrize("length", ["yes", -1, None, [1], float("nan"), float("inf")])
def test_the_length_of_vectors_must_be_a_number(folder, tmp_path, length):
    copy = shutil.copytree(folder, tmp_path / "m")
    (copy / "dupmae_config.json").write_text(
        json.dumps({"ot": "token_weight", "normalize": length})
    )
    with pytest.raises(CheckpointError, match="normalize must be true, false or a length, got"):
        load_encoder(str(copy))
