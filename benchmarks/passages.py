"""What the benchmarks of encoding read: a model of a given shape with drawn weights, and texts as long as MS MARCO's.

Speed does not depend on what a text says, so texts are whole words drawn from the vocabulary, their lengths log-normal
with a mean of 75 word pieces and a tail cut at 180, as MS MARCO's passages have; questions have about eight.
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
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

from dupmae_ir.models.checkpoints import ModelConfig, default_model_path, save_model, silent_ids
from dupmae_ir.models.retriever import Retriever

SHAPES = {
    "base": {},
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536},
    "tiny": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 256},
}
"""BERT-base, the embedded default model's shape, and one so small that everything around it shows."""


def tokenizer_of_default():
    """BERT's vocabulary, as the embedded model brings it."""
    return AutoTokenizer.from_pretrained(default_model_path())


@contextmanager
def model_folder(shape: str, activation: str = "log1p", seed: int = 0) -> Iterator[Path]:
    """A folder with a model of that shape, gone afterwards. Its [CLS] part is 384 wide."""
    torch.manual_seed(seed)
    tokenizer = tokenizer_of_default()
    lm = BertForMaskedLM(BertConfig(**SHAPES[shape])).eval()
    # Freshly drawn heads give nearly the same logits everywhere; spread them, so that ranks mean something.
    lm.cls.predictions.decoder.weight.data.normal_(0, 0.05)
    projection = torch.nn.Linear(lm.config.hidden_size, 384, bias=False)
    silent, quiet = silent_ids(tokenizer)
    folder = Path(tempfile.mkdtemp(prefix="dupmae-benchmark-"))
    config = ModelConfig(activation=activation, document_length=180, query_length=32)
    try:
        save_model(folder / "model", Retriever(lm, projection, silent, quiet, activation), tokenizer, config)
        yield folder / "model"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def passages(n: int, seed: int = 0, mean: float = 75, longest: int = 180) -> list[str]:
    """Texts with a log-normal number of word pieces (sigma 0.42), special tokens included."""
    return _texts(n, seed, mean, 0.42, 16, longest)


def questions(n: int, seed: int = 1) -> list[str]:
    """Short texts: eight word pieces on average, four to 24."""
    return _texts(n, seed, 8, 0.33, 4, 24)


def _texts(n: int, seed: int, mean: float, sigma: float, shortest: int, longest: int) -> list[str]:
    rng = np.random.default_rng(seed)
    words = np.array(sorted(w for w in tokenizer_of_default().get_vocab() if w.isascii() and w.isalpha()))
    lengths = rng.lognormal(math.log(mean) - sigma**2 / 2, sigma, n).round().clip(shortest, longest).astype(int)
    return [" ".join(rng.choice(words, length - 2)) for length in lengths]
