"""A tiny base model and a small corpus for the tests of pre-training."""

from __future__ import annotations

import json
import random

from support.tiny_models import WORDS, tiny_config, tiny_tokenizer


def tiny_base(folder, **changes):
    """A tiny BERT folder with a masked-LM head."""
    import torch
    from transformers import BertForMaskedLM

    torch.manual_seed(1)
    BertForMaskedLM(tiny_config(initializer_range=0.05, **changes)).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def tiny_corpus(path, rows=60, seed=0):
    """JSON lines: documents of two passages that share some words, with queries and a continuation."""
    rng = random.Random(seed)
    with open(path, "w") as f:
        for _ in range(rows):
            about = rng.sample(WORDS, 6)
            passages = [" ".join(rng.choices(about, k=rng.randint(8, 20))) for _ in range(2)]
            row = {
                "text": passages,
                "queries": [" ".join(rng.sample(about, 3)) for _ in range(2)],
                "next": " ".join(rng.choices(about, k=9)),
            }
            f.write(json.dumps(row) + "\n")
    return path


def flags(method, base, corpus, output, /, **changes):
    """Command-line arguments of a short run."""
    settings = {
        "method": method,
        "model": base,
        "corpus": corpus,
        "output": output,
        "length": 24,
        "batch-size": 4,
        "accumulate": 1,
        "steps": 12,
        "log-steps": 2,
        "save-steps": 4,
        "eval-steps": 4,
        "held-out": 8,
        "threads": 1,
        "learning-rate": 0.001,
        "cache": output.parent / "cache",
        **changes,
    }
    words = []
    for key, value in settings.items():
        if value is None or value is False:
            continue
        values = [] if value is True else value if isinstance(value, list | tuple) else [value]
        words += [f"--{key}", *map(str, values)]
    return words
