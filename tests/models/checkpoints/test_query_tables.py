"""Inference-free sparse models: documents by the masked LM, queries by a table of token weights."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.encode_runs import corpus_and_more
from support.model_families import masked_lm, router

from dupmae_ir.encode.__main__ import main as encode
from dupmae_ir.errors import CheckpointError, UsageError
from dupmae_ir.index.config import PostingsConfig
from dupmae_ir.index.run import run_postings
from dupmae_ir.models import load_encoder, load_lazy_encoder
from dupmae_ir.models.checkpoints.layout import folder_digest
from dupmae_ir.models.inference.query_model import LazyTextEncoder
from dupmae_ir.search.__main__ import main as search

TEXTS = [
    "the quick brown fox jumps over the lazy dog the the",
    "cat",
    "heap queue sorts list tree graph " * 3,
    "",
]
CASES = {
    "in the folder": {},
    "in a subfolder, log1p": {"subfolder": "document_0_MLMTransformer", "activation": "relu"},
    "max_active_dims": {"settings": {"max_active_dims": 3}},
    "prompts": {"settings": {"prompts": {"query": "the ", "document": "cat "}}},
}


@pytest.mark.parametrize("case", CASES)
def test_weights_equal_those_of_sentence_transformers(tmp_path, case):
    st = pytest.importorskip("sentence_transformers")
    folder = router(tmp_path / "m", **CASES[case])
    theirs = st.SparseEncoder(str(folder), device="cpu")
    queries, documents = (
        part.to_dense().numpy()
        for part in (theirs.encode_query(TEXTS), theirs.encode_document(TEXTS))
    )
    ours, lazy = (load(str(folder), parts=("ot",)) for load in (load_encoder, load_lazy_encoder))
    assert isinstance(lazy, LazyTextEncoder)
    assert lazy.terms == ours.terms
    assert lazy.settings == ours.settings
    np.testing.assert_allclose(ours.encode_documents(TEXTS).ot.toarray(), documents, atol=1e-5)
    for encoder in (ours, lazy):
        np.testing.assert_allclose(encoder.encode_queries(TEXTS).ot.toarray(), queries, atol=1e-5)
    for text, row in zip(TEXTS, queries, strict=True):
        ((ids, weights),) = lazy.encode_rows([text]).ot
        np.testing.assert_allclose(weights, row[ids], atol=1e-5)
        assert len(ids) == np.count_nonzero(row)


def test_a_table_in_json(tmp_path):
    folder = router(tmp_path / "m", table="idf.json")
    idf = json.loads((folder / "query_0_SparseStaticEmbedding" / "idf.json").read_text())
    lazy = load_lazy_encoder(str(folder), parts=("ot",))
    weights = lazy.encode_queries(["cat dog"]).ot
    assert {
        lazy.terms[i]: w for i, w in zip(weights.indices, weights.data, strict=True)
    } == pytest.approx({word: idf[word] for word in ("cat", "dog")})


def test_the_layout_of_opensearch(tmp_path):
    """A masked LM and idf.json: all tokens pooled, special tokens no terms, as in OpenSearch's own example."""
    from transformers import AutoModelForMaskedLM

    folder = tmp_path / "m"
    tokenizer = masked_lm(folder)
    idf = {token: 1 + i / 10 for token, i in tokenizer.get_vocab().items()}
    (folder / "idf.json").write_text(json.dumps(idf))
    encoder = load_encoder(str(folder), parts=("ot",), activation="log1p-log1p")
    batch = tokenizer(TEXTS, padding=True, truncation=True, max_length=64, return_tensors="pt")
    with torch.no_grad():
        logits = AutoModelForMaskedLM.from_pretrained(folder)(**batch).logits * batch[
            "attention_mask"
        ].unsqueeze(-1)
        wanted = torch.log1p(torch.log1p(torch.relu(logits.amax(1))))
    wanted[:, [1, *tokenizer.all_special_ids]] = 0  # [unused0] is no term here; no query has it
    np.testing.assert_allclose(
        encoder.encode_documents(TEXTS).ot.toarray(), wanted.numpy(), atol=1e-5
    )
    ids = sorted(tokenizer.convert_tokens_to_ids(["cat", "dog"]))
    query = encoder.encode_queries(["dog cat dog"]).ot
    assert query.indices.tolist() == ids
    np.testing.assert_allclose(query.data, [1 + i / 10 for i in ids], rtol=1e-6)
    assert load_encoder(str(folder), parts=("ot",)).settings.activation == "log1p"


def test_encode_search_add_and_explain(tmp_path, capsys):
    from dupmae_ir.index.__main__ import main as index

    folder = router(tmp_path / "m")
    made, words = corpus_and_more(tmp_path, TEXTS, folder)
    assert encode(words) == 2
    assert "without a dense part; use --parts ot" in capsys.readouterr().err
    assert encode([*words, "--parts", "ot"]) == 0
    assert index(["add", "--index", made, "--corpus", str(tmp_path / "more.jsonl"), "--quiet"]) == 0
    run_postings(PostingsConfig(index=made, quiet=True))
    capsys.readouterr()
    query = ["--index", made, "--query", "heap queue", "--impact-search", "postings"]
    assert search([*query, "--json"]) == 0
    hits = json.loads(capsys.readouterr().out)["hits"]
    assert hits[0]["docid"] == "more0"
    assert search([*query, "--explain", "more0"]) == 0
    assert "heap" in capsys.readouterr().out


def test_a_query_imports_no_torch(tmp_path):
    folder = router(tmp_path / "m")
    code = f"""
import sys
from dupmae_ir.models import load_lazy_encoder
encoder = load_lazy_encoder({str(folder)!r}, parts=("ot",))
assert encoder.encode_rows(["cat dog"]).ot[0][0].size == 2 and encoder.encode_queries(["cat", "dog"]).ot.nnz == 2
assert not {{"torch", "transformers"}} & set(sys.modules), sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_digest_covers_the_table(tmp_path):
    folder = router(tmp_path / "m")
    before = folder_digest(folder)
    save_file(
        {"weight": torch.ones(29)}, folder / "query_0_SparseStaticEmbedding" / "model.safetensors"
    )
    assert folder_digest(folder) != before


def table(content):
    def change(folder):
        path = folder / "query_0_SparseStaticEmbedding" / "model.safetensors"
        path.unlink()
        if content is not None:
            save_file(content, path)

    return change


def pickled(folder):
    path = folder / "query_0_SparseStaticEmbedding" / "model.safetensors"
    path.unlink()
    torch.save({"weight": torch.ones(29)}, path.with_name("pytorch_model.bin"))


def edited(name, **values):
    def change(folder):
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


QUERY = "query_0_SparseStaticEmbedding"
REFUSED = {
    "model.safetensors: is missing": table(None),
    "is missing; it has the weights of the tokens of queries": pickled,
    r"expected the tensor weight with 29 weights.*got \(28,\)": table({"weight": torch.ones(28)}),
    "expected the tensor weight with 29 weights.*got idf": table({"idf": torch.ones(29)}),
    "a weight that is not finite": table({"weight": torch.full((29,), float("nan"))}),
    "path must name a file of the model": edited(f"{QUERY}/config.json", path="../../idf.json"),
    "router_config.json: not a list of modules": lambda f: (f / "router_config.json").unlink(),
    "queries have another tokenizer": edited(f"{QUERY}/tokenizer.json", normalizer=None),
    "SparseStaticEmbedding, Dense of queries and MLMTransformer": lambda f: edited(
        "router_config.json",
        structure={"query": [QUERY, "d"], "document": ["", "document_1_SpladePooling"]},
        types={
            "d": "x.Dense",
            QUERY: "x.SparseStaticEmbedding",
            "": "MLMTransformer",
            "document_1_SpladePooling": "x",
        },
    )(f),
}


@pytest.mark.parametrize("says", REFUSED)
@pytest.mark.parametrize("load", [load_encoder, load_lazy_encoder])
def test_bad_files_are_refused_in_one_line(tmp_path, says, load):
    folder = router(tmp_path / "m")
    REFUSED[says](folder)
    with pytest.raises(CheckpointError, match=says) as e:
        load(str(folder), parts=("ot",))
    assert "\n" not in str(e.value)


def test_bad_json_is_refused_in_one_line(tmp_path):
    folder = router(tmp_path / "m", table="idf.json")
    path = folder / QUERY / "idf.json"
    for content, says in (
        ("[1]", "expected a JSON object with a weight"),
        ('{"zebra": 1}', "no token 'zebra'"),
    ):
        path.write_text(content)
        with pytest.raises(CheckpointError, match=says):
            load_encoder(str(folder), parts=("ot",))


def test_another_head_is_refused(tmp_path):
    folder = router(tmp_path / "m")
    for load in (load_encoder, load_lazy_encoder):
        with pytest.raises(UsageError, match="has no dense part, and an OT part of its own"):
            load(str(folder), parts=("ot",), head="lexical")
