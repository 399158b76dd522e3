"""What the tests of mining and of cross-encoders share: a mined file, a tiny BERT that reads pairs, sudden death."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

WORDS = ["cat", "dog", "fox", "heap", "queue", "list", "tree", "graph"]
FILLERS = ["the", "sat", "on", "mat", "runs", "fast", "over", "lazy", "quick", "brown"]


def write_mined(folder: Path, queries: int = 48, negatives: int = 6) -> Path:
    """Passages of random words; what answers a query has its telling word and "sorts", which no negative has."""
    from dupmae_ir.io.jobs import record_path
    from dupmae_ir.io.publishing import combined_digest, sha256_file

    rng = random.Random(0)

    def passage(docid: str, *words: str) -> dict[str, str]:
        text = [*rng.choices(FILLERS, k=rng.randrange(2, 9)), *words]
        rng.shuffle(text)
        return {"id": docid, "title": rng.choice(["", "brown mat"]), "text": " ".join(text)}

    pool = [passage(f"n{i}", WORDS[i % len(WORDS)]) for i in range(60)]
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(p) + "\n" for p in pool))
    with open(folder / "mined.jsonl", "w") as f:
        for i in range(queries):
            word = WORDS[i % len(WORDS)]
            found = sorted(rng.sample(range(60), negatives))
            row = {
                "qid": f"q{i}",
                "query": f"{word} " + " ".join(rng.choices(FILLERS, k=rng.randrange(1, 5))),
                "positives": [passage(f"p{i}", word, "sorts"), passage(f"p{i}b", "sorts")][
                    : 1 + i % 2
                ],
                "negatives": [f"n{n}" for n in found],
                "scores": [9.0 - n / 10 for n in found],
                "ranks": [n + 1 for n in found],
            }
            f.write(json.dumps(row) + "\n")
    meta = {"collection": str(corpus), "collection_digest": combined_digest([sha256_file(corpus)])}
    meta |= {"made_by": "a test", "settings": {}, "inputs": {}, "result": {}}
    record_path(folder / "mined.jsonl").write_text(json.dumps(meta))
    return folder / "mined.jsonl"


def pair_tokenizer() -> Any:
    """The tiny tokenizer, which also reads two texts at once."""
    from tokenizers import processors

    from support.tiny_models import tiny_tokenizer

    tokenizer = tiny_tokenizer()
    specials = [(t, tokenizer.convert_tokens_to_ids(t)) for t in ("[CLS]", "[SEP]")]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=specials
    )
    return tokenizer


def write_base(folder: Path, labels: int = 0, **changes: Any) -> Path:
    """A tiny BERT: an encoder, or with ``labels`` a sequence classifier."""
    import torch
    from transformers import BertForSequenceClassification, BertModel

    from support.tiny_models import tiny_config

    torch.manual_seed(0)
    config = tiny_config(initializer_range=0.1, **changes)
    if labels:
        config.num_labels = labels
    model = BertForSequenceClassification(config) if labels else BertModel(config)
    model.save_pretrained(folder)
    pair_tokenizer().save_pretrained(folder)
    return folder


def kill_when(code: str, flags: list[Any], ready: Callable[[], bool], seconds: float = 100) -> None:
    """Run ``code`` with ``flags`` in a process of its own, and kill it without warning as soon as ``ready()``."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, flags)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        end = time.monotonic() + seconds
        while not ready():
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < end, "it never came so far"
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
