"""SparseEncoder folders of sentence-transformers: the OT part equals theirs, or the folder is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from support.tiny_models import tiny_config, tiny_tokenizer

from dupmae_ir.encode.__main__ import main as encode
from dupmae_ir.errors import CheckpointError, UsageError
from dupmae_ir.index.config import PostingsConfig
from dupmae_ir.index.run import run_postings
from dupmae_ir.models import load_encoder
from dupmae_ir.models.checkpoints.layout import folder_digest
from dupmae_ir.models.checkpoints.onnx_graph import write_graph
from dupmae_ir.models.checkpoints.saving import write_compact
from dupmae_ir.models.checkpoints.sentence_transformers import write_sentence_transformers
from dupmae_ir.search.__main__ import main as search

TEXTS = [
    "the quick brown fox jumps over the lazy dog",
    "cat",
    "heap queue sorts list tree graph " * 20,
    "",
    "the dog",
]
LIBRARY = "sentence_transformers.sparse_encoder.modules"


def write(folder, *, family="bert", first="Transformer", pooling=None, settings=None):
    """A folder as version 6 writes it, or version 5 with ``first="MLMTransformer"``."""
    from transformers import BertForMaskedLM, DistilBertConfig, DistilBertForMaskedLM

    torch.manual_seed(0)
    small = {"vocab_size": 29, "max_position_embeddings": 64, "initializer_range": 0.4}
    distil = {"dim": 24, "n_layers": 1, "n_heads": 3, "hidden_dim": 48}
    lm = (
        BertForMaskedLM(tiny_config())
        if family == "bert"
        else DistilBertForMaskedLM(DistilBertConfig(**distil, **small))
    )
    lm.save_pretrained(folder)
    tokenizer = tiny_tokenizer()
    tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = [
        "input_ids",
        "attention_mask",
    ]
    tokenizer.save_pretrained(folder)
    modules = [("", first), ("1_SpladePooling", "SpladePooling")]
    listed = [
        {"idx": i, "name": str(i), "path": p, "type": f"{LIBRARY}.{t}"}
        for i, (p, t) in enumerate(modules)
    ]
    (folder / "1_SpladePooling").mkdir()
    old = {"max_seq_length": 64, "do_lower_case": False}
    files = {
        "modules.json": listed,
        "sentence_bert_config.json": {"transformer_task": "fill-mask"}
        if first == "Transformer"
        else old,
        "config_sentence_transformers.json": {"model_type": "SparseEncoder", **(settings or {})},
        "1_SpladePooling/config.json": {
            "pooling_strategy": "max",
            "activation_function": "relu",
            **(pooling or {}),
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


CASES = {
    "version 6": {},
    "version 5": {"first": "MLMTransformer"},
    "log1p_relu": {"pooling": {"activation_function": "log1p_relu"}},
    "sum": {"pooling": {"pooling_strategy": "sum"}},
    "sum of log1p_relu": {
        "pooling": {"pooling_strategy": "sum", "activation_function": "log1p_relu"}
    },
    "max_active_dims": {"settings": {"max_active_dims": 5}},
    "prompts": {
        "settings": {
            "prompts": {"query": "the ", "document": "cat "},
            "default_prompt_name": "query",
        }
    },
    "DistilBERT": {"family": "distilbert"},
}


@pytest.mark.parametrize("case", CASES)
def test_weights_equal_those_of_sentence_transformers(tmp_path, case):
    st = pytest.importorskip("sentence_transformers")
    folder = write(tmp_path / "m", **CASES[case])
    theirs = st.SparseEncoder(str(folder), device="cpu")
    queries, documents = (
        part.to_dense().numpy()
        for part in (theirs.encode_query(TEXTS), theirs.encode_document(TEXTS))
    )
    ours = load_encoder(str(folder), parts=("ot",))
    for _ in range(2):
        np.testing.assert_allclose(ours.encode_queries(TEXTS).ot.toarray(), queries, atol=1e-5)
        np.testing.assert_allclose(ours.encode_documents(TEXTS).ot.toarray(), documents, atol=1e-5)
        ours._packed = None  # padded batches, as on a GPU, give the same
    # Special tokens are terms here, and all tokens are pooled: [SEP] has a weight in the empty text.
    assert documents[:, :6].max() > 0
    assert documents[TEXTS.index("")].max() > 0


@pytest.mark.jvm
def test_encode_and_search(tmp_path, capsys):
    folder = write(tmp_path / "m")
    (tmp_path / "c.jsonl").write_text(
        "".join(json.dumps({"_id": f"d{i}", "text": t}) + "\n" for i, t in enumerate(TEXTS))
    )
    words = [
        "--corpus",
        str(tmp_path / "c.jsonl"),
        "--model",
        str(folder),
        "--index",
        str(tmp_path / "i"),
        "--quiet",
    ]
    assert encode(words) == 2
    assert "is a SparseEncoder, without a dense part; use --parts ot" in capsys.readouterr().err
    assert encode([*words, "--parts", "ot"]) == 0
    run_postings(PostingsConfig(index=str(tmp_path / "i"), quiet=True))
    capsys.readouterr()
    assert (
        search(
            [
                "--index",
                str(tmp_path / "i"),
                "--query",
                "heap queue",
                "--impact-search",
                "postings",
                "--json",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["hits"][0]["docid"] == "d2"


def test_a_compact_copy_keeps_the_pooling_and_the_digest_covers_it(tmp_path):
    folder = write(tmp_path / "m", pooling={"activation_function": "log1p_relu"})
    write_compact(folder, tmp_path / "small")
    assert load_encoder(str(tmp_path / "small"), parts=("ot",)).settings.activation == "log1p-log1p"
    before = folder_digest(folder)
    (folder / "1_SpladePooling" / "config.json").write_text("{}")
    assert folder_digest(folder) != before
    assert load_encoder(str(folder), parts=("ot",)).settings.activation == "log1p"


@pytest.mark.parametrize("part", ["cls", "ot"])
def test_it_is_not_exported_again(tmp_path, part):
    folder = write(tmp_path / "m")
    with pytest.raises(UsageError, match="opens without an export"):
        write_sentence_transformers(folder, tmp_path / "out", part)
    with pytest.raises(UsageError, match="itself runs with backend='onnx'"):
        write_graph(folder, tmp_path / "out", "onnx", False)


def changed(name, **values):
    def change(folder):
        data = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**data, **values}))

    return change


def listed(*types):
    def change(folder):
        modules = [{"path": t if i else "", "type": f"x.{t}"} for i, t in enumerate(types)]
        (folder / "modules.json").write_text(json.dumps(modules))

    return change


REFUSED = {
    "with activation gelu and strategy max is": changed(
        "1_SpladePooling/config.json", activation_function="gelu"
    ),
    "with activation relu and strategy mean is": changed(
        "1_SpladePooling/config.json", pooling_strategy="mean"
    ),
    "without a masked-LM head": changed(
        "sentence_bert_config.json", transformer_task="feature-extraction"
    ),
    "MLMTransformer, WordWeights, SpladePooling are": listed(
        "MLMTransformer", "WordWeights", "SpladePooling"
    ),
    "Transformer, Pooling, SparseAutoEncoder are": listed(
        "Transformer", "Pooling", "SparseAutoEncoder"
    ),
    "modules SparseStaticEmbedding are": listed("SparseStaticEmbedding"),
    "0_MLMTransformer: no such model folder": lambda f: (f / "modules.json").write_text(
        json.dumps(
            [
                {"path": "0_MLMTransformer", "type": "x.MLMTransformer"},
                {"path": "1", "type": "x.SpladePooling"},
            ]
        )
    ),
}


@pytest.mark.parametrize("says", REFUSED)
def test_what_cannot_be_honoured_is_refused_in_one_line(tmp_path, says):
    folder = write(tmp_path / "m")
    REFUSED[says](folder)
    with pytest.raises(CheckpointError, match=says) as e:
        load_encoder(str(folder), parts=("ot",))
    assert "\n" not in str(e.value)


def test_max_active_dims_must_be_a_positive_number(tmp_path):
    folder = write(tmp_path / "m", settings={"max_active_dims": -3})
    with pytest.raises(CheckpointError, match="max_active_dims"):
        load_encoder(str(folder), parts=("ot",))
