"""Look-alikes of the shared data and of the records of finished rows."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

from support.tiny_models import WORDS, tiny_config, tiny_tokenizer

MEASURES = ("nDCG@10", "MRR@10", "R@100")


def write_data(folder: Path) -> Path:
    """``pretrain``, ``pairs`` and ``cacm`` in the layout of the shared data, of the tiny tokenizer's words."""
    chance = random.Random(0)

    def text(words: int = 14) -> str:
        return " ".join(chance.choices(WORDS, k=words))

    passages = [{"_id": f"p{n:03}", "title": "", "text": text()} for n in range(80)]
    (folder / "pretrain").mkdir(parents=True)
    for name in ("textbooks", "xquad"):
        _packed(
            folder / "pretrain" / f"{name}.txt.gz", [f"{text(8)}. {text(8)}." for _ in range(50)]
        )
    pairs = [
        {
            "query": " ".join(p["text"].split()[:3]),
            "kind": "heading",
            "positive": {"id": p["_id"], "title": "", "text": p["text"]},
        }
        for p in passages
    ]
    (folder / "pairs").mkdir()
    _packed(folder / "pairs" / "train.jsonl.gz", map(json.dumps, pairs[:40]))
    _packed(folder / "pairs" / "dev.jsonl.gz", map(json.dumps, pairs[40:60]))
    _packed(folder / "pairs" / "corpus.jsonl.gz", map(json.dumps, passages))
    home = folder / "cacm"
    (home / "qrels").mkdir(parents=True)
    (home / "corpus.jsonl").write_text("".join(json.dumps(p) + "\n" for p in passages[:30]))
    queries = [
        {"_id": f"q{n}", "text": " ".join(passages[n]["text"].split()[4:8])} for n in range(6)
    ]
    (home / "queries.jsonl").write_text("".join(json.dumps(q) + "\n" for q in queries))
    judged = "".join(f"q{n}\tp{n:03}\t1\n" for n in range(6))
    (home / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    return folder


def write_base(folder: Path) -> Path:
    """A tiny BERT with a masked-LM head."""
    import torch
    from transformers import BertForMaskedLM

    torch.manual_seed(0)
    BertForMaskedLM(tiny_config(initializer_range=0.1)).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def a_record(
    row: str, seed: int = 0, table: str = "systems", dev: float = 0.5, **changes: Any
) -> dict[str, Any]:
    """A finished row: hybrid nDCG@10 on dev has the mean ``dev``; other figures are drawn from its name."""
    chance = random.Random(f"{row} {seed}")
    sets = {}
    for name, mean in (("dev", dev), ("cacm", chance.random() * 0.5 + 0.2)):
        queries = [f"q{n}" for n in range(20)]
        noise = [chance.uniform(-0.1, 0.1) for _ in queries]
        centred = [v - sum(noise) / len(noise) for v in noise]
        per_query = {
            mode: {m: [mean - 0.05 * k + v for v in centred] for m in MEASURES}
            for k, mode in enumerate(("hybrid", "dense", "impact"))
        }
        scores = {
            mode: {m: sum(v) / len(v) for m, v in of.items()} for mode, of in per_query.items()
        }
        size = {"dense": 1000, "impact": 2000, "hybrid": 5000}
        sets[name] = {
            "queries": queries,
            "scores": scores,
            "per_query": per_query,
            "index_bytes": size,
            "seconds": {"encode": 1.0},
        }
    log = [{"step": s, "eval_loss": 9.0 / (1 + s)} for s in (0, 10, 20)]
    record = {
        "row": row,
        "place": 0,
        "table": table,
        "title": row.upper(),
        "seed": seed,
        "budget": "smoke",
        "similarity": "sum",
        "adapted": "",
        "tokens": 1000,
        "updates": 20,
        "seconds": {"pretrain": 5, "stage1": 3, "stage2": 2},
        "model": {
            "folder": f"rows/{row}.seed{seed}/stage2",
            "digest": f"{row}{seed}",
            "half_bytes": 40_000_000,
        },
        "losses": {"pretrain": log},
        "commands": ["dupmae_ir.finetune --model base --output rows/x"],
        "sets": sets,
        "machine": {"device": "1 threads"},
    }
    return {**record, **changes}


def _packed(path: Path, lines: Any) -> None:
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))
