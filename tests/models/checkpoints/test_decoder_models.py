"""Decoders as sentence encoders (Qwen3-Embedding, EmbeddingGemma): vectors equal those of sentence-transformers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from dupmae_ir.errors import CheckpointError, HeadMissing
from dupmae_ir.models import load_encoder
from dupmae_ir.models.checkpoints.loading import load_model

TEXTS = ["the quick brown fox jumps over the lazy dog", "cat", "heap queue sorts list tree graph " * 6, "", "the dog"]
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 4}
SIZES |= {"num_key_value_heads": 2, "max_position_embeddings": 64}
IDENTITY = "torch.nn.modules.linear.Identity"


def tokenizer(folder, start, end):
    """A byte-level tokenizer that pads on the left."""
    from transformers import PreTrainedTokenizerFast

    special = [token for token in (start, end, "<pad>", "<image>") if token]
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet))
    backend.add_special_tokens(special)
    ids = [(token, backend.token_to_id(token)) for token in special]
    template = f"{start} $A {end}".strip()
    backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=ids)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token=end, bos_token=start or None, padding_side="left"
    )
    fast.save_pretrained(folder)
    return len(fast)


def write(folder, modules, settings, pooling):
    types = [("", "Transformer"), *((f"{i}_{name}", name) for i, name in enumerate(modules, 1))]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (path, name) in enumerate(types)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 32, "do_lower_case": False}))
    for path, name in types[1:]:
        (folder / path).mkdir()
        if name == "Pooling":
            (folder / path / "config.json").write_text(json.dumps({"word_embedding_dimension": 16, **pooling}))
    return folder


def qwen3(folder):
    """Qwen3-Embedding: causal, the last token, an instruction before queries, more embeddings than tokens."""
    from transformers import Qwen3Config, Qwen3Model

    folder.mkdir()
    size = tokenizer(folder, "", "<|endoftext|>") + 200
    Qwen3Model(Qwen3Config(vocab_size=size, **SIZES)).save_pretrained(folder)
    prompts = {"query": "Instruct: Given a query, retrieve passages\nQuery:", "document": ""}
    settings = {"prompts": prompts, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    last = {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False, "include_prompt": True}
    return write(folder, ["Pooling", "Normalize"], settings, last)


def gemma3(folder):
    """EmbeddingGemma: bidirectional with a sliding window, the mean, two Dense layers, a token without embedding."""
    from transformers import Gemma3TextConfig, Gemma3TextModel

    folder.mkdir()
    size = tokenizer(folder, "<bos>", "<eos>") - 1
    config = Gemma3TextConfig(
        vocab_size=size, sliding_window=9, use_bidirectional_attention=True, query_pre_attn_scalar=4, **SIZES
    )
    Gemma3TextModel(config).save_pretrained(folder)
    prompts = {"query": "task: search result | query: ", "document": "title: none | text: "}
    write(folder, ["Pooling", "Dense", "Dense", "Normalize"], {"prompts": prompts}, {"pooling_mode_mean_tokens": True})
    for path, rows, columns in (("2_Dense", 24, 16), ("3_Dense", 16, 24)):
        layer = {"in_features": columns, "out_features": rows, "bias": False, "activation_function": IDENTITY}
        (folder / path / "config.json").write_text(json.dumps(layer))
        save_file({"linear.weight": torch.randn(rows, columns)}, folder / path / "model.safetensors")
    return folder


@pytest.fixture(params=[qwen3, gemma3])
def folder(request, tmp_path):
    torch.manual_seed(0)
    return request.param(tmp_path / "m")


def test_vectors_equal_those_of_sentence_transformers(folder):
    st = pytest.importorskip("sentence_transformers")
    theirs = st.SentenceTransformer(str(folder), device="cpu")
    ours = load_encoder(str(folder), parts=("cls",))
    for _ in range(2):
        np.testing.assert_allclose(ours.encode_queries(TEXTS).cls, theirs.encode_query(TEXTS), atol=1e-5)
        np.testing.assert_allclose(ours.encode_documents(TEXTS).cls, theirs.encode_document(TEXTS), atol=1e-5)
    # One text alone equals the text in a batch with longer ones.
    np.testing.assert_allclose(ours.encode_documents(["cat"]).cls, theirs.encode_document(["cat"]), atol=1e-5)


def test_a_token_without_an_embedding_is_read_as_unknown(tmp_path):
    folder = gemma3(tmp_path / "m")
    assert np.isfinite(load_encoder(str(folder), parts=("cls",)).encode_queries(["a <image> b"]).cls).all()


def test_there_is_no_head(folder):
    with pytest.raises(HeadMissing, match="`head` lexical"):
        load_encoder(str(folder))


def test_a_decoder_without_its_weights_is_refused(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="no weights"):
        load_model(folder, need_ot=False)


def test_the_last_token_is_found_on_either_side_of_padding(tmp_path):
    model, tokenizer, _ = load_model(qwen3(tmp_path / "m"), need_ot=False, published=True)
    vectors = []
    for side in ("left", "right"):  # exported graphs get what the tokenizer pads
        tokenizer.padding_side = side
        batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
        with torch.no_grad():
            vectors.append(model(batch["input_ids"], batch["attention_mask"], ot=False)[0])
    torch.testing.assert_close(*vectors, atol=1e-5, rtol=0)
