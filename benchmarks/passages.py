"""Input of the encoding benchmarks: a model of a given shape with random weights, and texts as long as MS MARCO's.

Speed does not depend on the content of a text, so texts are random words of the vocabulary. Lengths are log-normal
with a mean of 75 word pieces and a maximum of 180, as for MS MARCO's passages; queries have about eight.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, BertTokenizerFast

from dupmae_ir.models import names
from dupmae_ir.models.checkpoints.model_config import ModelConfig
from dupmae_ir.models.checkpoints.saving import save_model
from dupmae_ir.models.heads.masked_lm import excluded_ids
from dupmae_ir.models.retriever import Retriever

SHAPES = {
    "base": {},
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536},
    "tiny": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 256,
    },
}
"""BERT-base, the shape of the embedded default model, and a tiny one that makes the overhead visible."""

NAMES = {"base": "BERT-base", "minilm": "MiniLM", "tiny": "tiny"}
"""What tables and pictures call them."""


FEW_WORDS = 4096
"""Vocabulary of the tiny shape: BERT's first entries, which are its special tokens and most frequent words."""


def tokenizer_of(shape: str):
    """BERT's vocabulary, which MiniLM has; its first entries for the tiny shape."""
    tokenizer = AutoTokenizer.from_pretrained(names.model_folder("minilm"))
    if shape != "tiny":
        return tokenizer
    words = sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1])[:FEW_WORDS]
    return BertTokenizerFast(vocab=dict(words), do_lower_case=True)


@contextmanager
def model_folder(shape: str, activation: str = "log1p", seed: int = 0) -> Iterator[Path]:
    """A temporary folder with a model of that shape. Its [CLS] part is 384 wide."""
    torch.manual_seed(seed)
    tokenizer = tokenizer_of(shape)
    lm = BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **SHAPES[shape])).eval()
    # Random heads give nearly constant logits; spread them, so that ranks are meaningful.
    lm.cls.predictions.decoder.weight.data.normal_(0, 0.05)
    projection = torch.nn.Linear(lm.config.hidden_size, 384, bias=False)
    silent, quiet = excluded_ids(tokenizer)
    folder = Path(tempfile.mkdtemp(prefix="dupmae-benchmark-"))
    top_k = min(384, len(tokenizer) // 32)
    config = ModelConfig(activation=activation, document_length=180, query_length=32, top_k=top_k)
    try:
        save_model(
            folder / "model",
            Retriever(lm, projection, silent, quiet, activation),
            tokenizer,
            config,
        )
        yield folder / "model"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def passages(
    n: int, seed: int = 0, mean: float = 75, longest: int = 180, shape: str = "base"
) -> list[str]:
    """Texts with a log-normal number of word pieces (sigma 0.42), special tokens included."""
    return _texts(n, seed, mean, 0.42, 16, longest, shape)


def queries(n: int, seed: int = 1) -> list[str]:
    """Short texts: eight word pieces on average, four to 24."""
    return _texts(n, seed, 8, 0.33, 4, 24)


def _texts(
    n: int, seed: int, mean: float, sigma: float, shortest: int, longest: int, shape: str = "base"
) -> list[str]:
    rng = np.random.default_rng(seed)
    words = np.array(
        sorted(w for w in tokenizer_of(shape).get_vocab() if w.isascii() and w.isalpha())
    )
    lengths = (
        rng.lognormal(math.log(mean) - sigma**2 / 2, sigma, n)
        .round()
        .clip(shortest, longest)
        .astype(int)
    )
    return [" ".join(rng.choice(words, length - 2)) for length in lengths]
