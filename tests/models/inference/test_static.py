"""Static embeddings: vectors equal those of model2vec and sentence-transformers, without torch."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from support.encode_runs import corpus_and_more
from support.model_families import model2vec
from support.tiny_models import tiny_tokenizer

from dupmae_ir.encode.__main__ import main as encode
from dupmae_ir.errors import CheckpointError, HeadMissing, UsageError
from dupmae_ir.index.__main__ import main as index
from dupmae_ir.models import load_encoder
from dupmae_ir.models.checkpoints.onnx_graph import write_graph
from dupmae_ir.models.checkpoints.sentence_transformers import write_sentence_transformers
from dupmae_ir.search.__main__ import main as search

TEXTS = [
    "the quick brown fox jumps over the lazy dog",
    "zebra cat",
    "heap queue sorts " * 300,
    "",
    "the dog",
]


def static_embedding(folder, normalize=True):
    st = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding

    torch.manual_seed(0)
    modules = [
        StaticEmbedding(tiny_tokenizer()._tokenizer, embedding_dim=8),
        *([Normalize()] if normalize else []),
    ]
    st.SentenceTransformer(modules=modules, device="cpu", similarity_fn_name="dot").save(
        str(folder)
    )
    return folder


@pytest.mark.parametrize("case", [{}, {"normalize": False}, {"quantised": True}, {"max_length": 7}])
def test_vectors_equal_those_of_model2vec(tmp_path, case):
    folder = model2vec(tmp_path / "m", **case)
    import model2vec as m2v

    wanted = m2v.StaticModel.from_pretrained(folder).encode(TEXTS)
    encoder = load_encoder(str(folder), parts=("cls",))
    np.testing.assert_allclose(encoder.encode_documents(TEXTS).cls, wanted, atol=1e-5)
    np.testing.assert_allclose(encoder.encode_queries(TEXTS).cls, wanted, atol=1e-5)
    (folder / "modules.json").unlink()  # as written by its first versions
    np.testing.assert_allclose(
        load_encoder(str(folder), parts=("cls",)).encode_queries(TEXTS).cls, wanted, atol=1e-5
    )


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("dimensions", [None, 5])
def test_vectors_equal_those_of_sentence_transformers(tmp_path, normalize, dimensions):
    st = pytest.importorskip("sentence_transformers")
    folder = static_embedding(tmp_path / "m", normalize)
    theirs = st.SentenceTransformer(str(folder), device="cpu", truncate_dim=dimensions)
    encoder = load_encoder(str(folder), parts=("cls",), dimensions=dimensions)
    assert encoder.dim == (dimensions or 8)
    wanted = theirs.encode(TEXTS, normalize_embeddings=normalize)
    np.testing.assert_allclose(encoder.encode_documents(TEXTS).cls, wanted, atol=1e-5)


def test_encode_search_and_add_without_torch(tmp_path, capsys):
    folder = model2vec(tmp_path / "m")
    made, words = corpus_and_more(tmp_path, TEXTS, folder)
    assert encode(words) == 2
    assert "use --parts cls, or --head lexical" in capsys.readouterr().err
    assert encode([*words, "--head", "lexical", "--dimensions", "6"]) == 0
    assert index(["add", "--index", made, "--corpus", str(tmp_path / "more.jsonl"), "--quiet"]) == 0
    capsys.readouterr()
    assert (
        search(["--index", made, "--query", "queue sorts", "--impact-search", "postings", "--json"])
        == 0
    )
    answer = json.loads(capsys.readouterr().out)
    assert answer["hits"][0]["docid"] == "more0"
    code = f"""
import sys
from dupmae_ir.models import load_encoder, load_lazy_encoder
for load in (load_encoder, load_lazy_encoder):
    assert load({str(folder)!r}, head="lexical").encode_queries(["cat"]).cls.shape == (1, 8)
assert not {{"torch", "transformers"}} & set(sys.modules), sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_it_is_not_exported_and_has_no_head(tmp_path):
    folder = model2vec(tmp_path / "m")
    with pytest.raises(HeadMissing, match="`head` lexical"):
        load_encoder(str(folder))
    for export in (
        lambda: write_sentence_transformers(folder, tmp_path / "o", "cls"),
        lambda: graph(folder, tmp_path),
    ):
        with pytest.raises(CheckpointError, match="encode and search with it only"):
            export()
    with pytest.raises(UsageError, match="leave `dtype` out"):
        load_encoder(str(folder), parts=("cls",), dtype="bfloat16")


def graph(folder, tmp_path):
    return write_graph(folder, tmp_path / "o", "onnx", False)


def stored(change):
    def write(folder):
        path = folder / "model.safetensors"
        save_file(change(load_file(path)["embeddings"]), path)

    return write


REFUSED = {
    "never from a pickle": lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
    "expected the tensor embedding.weight or embeddings, got x": stored(lambda e: {"x": e}),
    r"the tokenizer's 29 tokens, got \(28, 8\)": stored(lambda e: {"embeddings": e[:28].copy()}),
    "embeddings has a weight that is not finite": stored(
        lambda e: {"embeddings": e * np.float32("nan")}
    ),
    "not readable as safetensors": lambda f: (f / "model.safetensors").write_bytes(b"x" * 40),
    "tokenizer.json: not a readable tokenizer": lambda f: (f / "tokenizer.json").write_text("{"),
}


@pytest.mark.parametrize("says", REFUSED)
def test_bad_files_are_refused_in_one_line(tmp_path, says):
    folder = model2vec(tmp_path / "m")
    REFUSED[says](folder)
    with pytest.raises(CheckpointError, match=says) as e:
        load_encoder(str(folder), parts=("cls",))
    assert "\n" not in str(e.value)
