"""A tiny model with a lexical OT part, and the formulas of its weights written out."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from support.tiny_models import tiny_config, tiny_tokenizer

SETTINGS = {"b": 0.3, "buckets": 512, "average_stems": 6, "prior_documents": 40}


def make_lexical(folder: Path, buckets: int = SETTINGS["buckets"], **changes: Any) -> Path:
    """A BERT without a head, W_cls, and a lexicon with made-up frequencies."""
    import torch
    from transformers import BertModel

    from dupmae_ir.models.checkpoints.model_config import LexicalSettings, ModelConfig
    from dupmae_ir.models.checkpoints.saving import save_model
    from dupmae_ir.models.heads.lexical import save_lexicon
    from dupmae_ir.models.heads.masked_lm import excluded_ids
    from dupmae_ir.models.retriever import Retriever

    torch.manual_seed(3)
    tokenizer = tiny_tokenizer()
    lm = BertModel(tiny_config(), add_pooling_layer=False)
    model = Retriever(lm, torch.nn.Linear(24, 8, bias=False), *excluded_ids(tokenizer)).eval()
    frequencies = np.random.default_rng(0).integers(0, 300, buckets).astype(float)
    save_lexicon(folder / "lexicon.safetensors", frequencies, 300)
    lengths = {"document_length": 16, "query_length": 12, "top_k": 9, **changes}
    config = ModelConfig(
        ot="lexical", lexical=LexicalSettings(**SETTINGS | {"buckets": buckets}), **lengths
    )
    return save_model(
        folder / "model", model, tokenizer, config, lexicon=folder / "lexicon.safetensors"
    )


def dimension(stem: str) -> int:
    """The dimension of a stem, from the definition."""
    return int.from_bytes(hashlib.blake2b(stem.encode(), digest_size=8).digest(), "little") % 512


def document_impacts(title: list[str], text: list[str], keep: int) -> dict[int, int]:
    """The impacts of a document, from the definition: its stems, the ``keep`` largest weights."""
    tf = Counter(map(dimension, title + text))
    tf.update(map(dimension, title))
    n = len(title + text)
    impacts = {d: round(255 * c / (c + 0.9 * (0.7 + 0.3 * n / 6))) for d, c in tf.items()}
    return dict(sorted(sorted(impacts.items(), key=lambda item: (-item[1], item[0]))[:keep]))


def query_impacts(
    stems: list[str], rates: np.ndarray, documents: int, df: np.ndarray
) -> dict[int, int]:
    """The impacts of a query, from the definition."""
    counts = Counter(map(dimension, stems))
    d = {t: df[t] + 40 * rates[t] for t in counts}
    w = {t: q * np.log(1 + (documents + 40 - d[t] + 0.5) / (d[t] + 0.5)) for t, q in counts.items()}
    impacts = {t: round(255 * x / np.sqrt(sum(w.values()))) for t, x in w.items()}
    return {t: x for t, x in impacts.items() if x}
