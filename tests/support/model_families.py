"""Tiny models with exactly the released files of families that are not BERT with a masked-LM head."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from support.tiny_models import tiny_config, tiny_tokenizer

TEXTS = [
    "the quick brown fox jumps over the lazy dog",
    "cat",
    "heap queue sorts list tree graph " * 6,
    "",
    "the dog",
]
LIBRARY = "sentence_transformers.sparse_encoder.models"
SIZES = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 4,
}
SIZES |= {"num_key_value_heads": 2, "max_position_embeddings": 64}
IDENTITY = "torch.nn.modules.linear.Identity"


def masked_lm(folder):
    from transformers import BertForMaskedLM

    torch.manual_seed(0)
    BertForMaskedLM(tiny_config()).save_pretrained(folder)
    save_tokenizer(folder)
    return tiny_tokenizer()


def save_tokenizer(folder):
    """BERT's, as in the released folders."""
    tiny_tokenizer().save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    bert = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "strip_accents": False}
    path.write_text(json.dumps({**json.loads(path.read_text()), **bert}))


def router(folder, *, subfolder="", activation="log1p_relu", table=None, settings=None):
    """The released layout: the masked LM in the folder itself or in ``subfolder``, and a table for queries."""
    folder.mkdir()
    document = folder / subfolder
    query = "query_0_SparseStaticEmbedding"
    pooling = "document_1_SpladePooling"
    tokenizer = masked_lm(document)
    types = {query: "SparseStaticEmbedding", subfolder: "MLMTransformer", pooling: "SpladePooling"}
    structure = {"query": [query], "document": [subfolder, pooling]}
    files = {
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Router"}
        ],
        "router_config.json": {
            "types": {key: f"{LIBRARY}.{name}" for key, name in types.items()},
            "structure": structure,
            "parameters": {"default_route": "document", "allow_empty_key": True},
        },
        "config_sentence_transformers.json": {"model_type": "SparseEncoder", **(settings or {})},
        f"{subfolder or '.'}/sentence_bert_config.json": {
            "max_seq_length": 64,
            "do_lower_case": False,
        },
        f"{query}/config.json": {"frozen": False}
        if table is None
        else {"path": table, "frozen": True},
        f"{pooling}/config.json": {"pooling_strategy": "max", "activation_function": activation},
    }
    (folder / query).mkdir()
    (folder / pooling).mkdir()
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    save_tokenizer(folder / query)
    weights = torch.rand(len(tokenizer)) + 0.1
    if table is None:
        save_file({"weight": weights}, folder / query / "model.safetensors")
    else:
        idf = {token: float(weights[i]) for token, i in tokenizer.get_vocab().items()}
        (folder / query / table).write_text(json.dumps(idf))
    return folder


def byte_level_tokenizer(folder, start, end):
    """A byte-level tokenizer that pads on the left."""
    from transformers import PreTrainedTokenizerFast

    special = [token for token in (start, end, "<pad>", "<image>") if token]
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet)
    )
    backend.add_special_tokens(special)
    ids = [(token, backend.token_to_id(token)) for token in special]
    template = f"{start} $A {end}".strip()
    backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=ids)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token=end,
        bos_token=start or None,
        padding_side="left",
    )
    fast.save_pretrained(folder)
    return len(fast)


def write_modules(folder, modules, settings, pooling):
    types = [("", "Transformer"), *((f"{i}_{name}", name) for i, name in enumerate(modules, 1))]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (path, name) in enumerate(types)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": 32, "do_lower_case": False})
    )
    for path, name in types[1:]:
        (folder / path).mkdir()
        if name == "Pooling":
            (folder / path / "config.json").write_text(
                json.dumps({"word_embedding_dimension": 16, **pooling})
            )
    return folder


def qwen3(folder):
    """Qwen3-Embedding: causal, the last token, an instruction before queries, more embeddings than tokens."""
    from transformers import Qwen3Config, Qwen3Model

    folder.mkdir()
    size = byte_level_tokenizer(folder, "", "<|endoftext|>") + 200
    Qwen3Model(Qwen3Config(vocab_size=size, **SIZES)).save_pretrained(folder)
    prompts = {"query": "Instruct: Given a query, retrieve passages\nQuery:", "document": ""}
    settings = {"prompts": prompts, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    last = {
        "pooling_mode_lasttoken": True,
        "pooling_mode_mean_tokens": False,
        "include_prompt": True,
    }
    return write_modules(folder, ["Pooling", "Normalize"], settings, last)


def gemma3(folder):
    """EmbeddingGemma: bidirectional with a sliding window, the mean, two Dense layers, a token without embedding."""
    from transformers import Gemma3TextConfig, Gemma3TextModel

    folder.mkdir()
    size = byte_level_tokenizer(folder, "<bos>", "<eos>") - 1
    config = Gemma3TextConfig(
        vocab_size=size,
        sliding_window=9,
        use_bidirectional_attention=True,
        query_pre_attn_scalar=4,
        **SIZES,
    )
    Gemma3TextModel(config).save_pretrained(folder)
    prompts = {"query": "task: search result | query: ", "document": "title: none | text: "}
    write_modules(
        folder,
        ["Pooling", "Dense", "Dense", "Normalize"],
        {"prompts": prompts},
        {"pooling_mode_mean_tokens": True},
    )
    for path, rows, columns in (("2_Dense", 24, 16), ("3_Dense", 16, 24)):
        layer = {
            "in_features": columns,
            "out_features": rows,
            "bias": False,
            "activation_function": IDENTITY,
        }
        (folder / path / "config.json").write_text(json.dumps(layer))
        save_file(
            {"linear.weight": torch.randn(rows, columns)}, folder / path / "model.safetensors"
        )
    return folder


def model2vec(folder, normalize=True, quantised=False, **config):
    m2v = pytest.importorskip("model2vec")
    rng = np.random.default_rng(0)
    tokenizer = tiny_tokenizer()._tokenizer
    vectors = rng.standard_normal((29, 8)).astype(np.float32)
    more = {}
    if quantised:
        more = {
            "token_mapping": rng.integers(0, 9, 29),
            "weights": rng.random(29).astype(np.float32),
        }
        vectors = vectors[:9]
    config = {"model_type": "model2vec", **config}
    m2v.StaticModel(vectors, tokenizer, config, normalize=normalize, **more).save_pretrained(folder)
    return folder
