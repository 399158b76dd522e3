"""What the tests of whole stages share: a tiny masked LM, a mined file with a teacher's scores, the command's flags."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.rerank_samples import write_mined

RECIPE = """
init_from = "{init}"

[inputs]
model = ""
teacher_base = ""
pairs = []

[[step]]
name = "stage1"
command = "finetune"
model = "{{start}}"
pairs = ["{{pairs}}"]
group_size = 1
batch_size = 8
cls_dim = 8
steps = 6
save_steps = 2
log_steps = 2
threads = 1

[[step]]
name = "negatives"
command = "finetune.mine"
pairs = ["{{pairs}}"]
by = "model"
model = "{{stage1}}"
depth = 8
threads = 1

[[step]]
name = "stage2"
command = "finetune"
model = "{{start}}"
mined = "{{negatives}}"
negatives = 2
batch_size = 8
cls_dim = 8
steps = 4
threads = 1

[[step]]
name = "teacher"
command = "finetune.cross_encoder"
model = "{{teacher_base}}"
mined = "{{negatives}}"
group_size = 3
length = 32
epochs = 0.3
threads = 1

[[step]]
name = "opinions"
command = "finetune.score"
model = "{{teacher}}"
mined = "{{negatives}}"
length = 32
threads = 1

[[step]]
name = "stage3"
command = "finetune"
model = "{{start}}"
mined = "{{negatives}}"
scores = "{{opinions}}"
distill = "kl"
negatives = 2
batch_size = 8
cls_dim = 8
steps = 4
log_steps = 2
threads = 1
"""
"""A recipe of three stages with mining, a teacher and its scores; ``init`` is pretrained or previous."""


def write_stage(folder: Path, queries: int = 24, negatives: int = 6) -> Path:
    """``base`` (BERT with a masked-LM head), ``mined.jsonl`` and ``scores.jsonl`` in ``folder``."""
    import torch
    from transformers import BertForMaskedLM

    from dupmae_ir.finetune.data import read_mined
    from support.tiny_models import tiny_config, tiny_tokenizer

    torch.manual_seed(0)
    BertForMaskedLM(tiny_config(initializer_range=0.1)).save_pretrained(folder / "base")
    tiny_tokenizer().save_pretrained(folder / "base")
    mined = write_mined(folder, queries, negatives)
    with open(folder / "scores.jsonl", "w") as f:
        for m in read_mined(mined):
            scores = {p.docid: 4.0 for p in m.positives} | {
                d: 1.0 - i for i, d in enumerate(m.negatives)
            }
            f.write(json.dumps({"qid": m.qid, "scores": scores}) + "\n")
    return folder


def write_pairs(folder: Path, queries: int = 24) -> Path:
    """``pairs.jsonl``: a passage for every query, as stage 1 takes them."""
    from support.tiny_models import WORDS

    rows = []
    for n in range(queries):
        words = [WORDS[(n * 7 + k * (n % 5 + 1)) % len(WORDS)] for k in range(6)]
        passage = {"id": f"p{n:02}", "title": "", "text": " ".join(words)}
        rows.append({"query": " ".join(words[:2]), "positive": passage})
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "pairs.jsonl"


def stage_flags(folder: Path, output: Path, **changes: Any) -> list[str]:
    """Flags of a short stage on mined negatives; ``True`` is a flag without a value, ``None`` one left out."""
    settings = {
        "mined": folder / "mined.jsonl",
        "model": folder / "base",
        "output": output,
        "batch-size": 6,
        "negatives": 3,
        "cls-dim": 8,
        "top-k": 6,
        "steps": 6,
        "learning-rate": 1e-3,
        "save-steps": 2,
        "log-steps": 2,
        "document-length": 24,
        "quiet": True,
        **{k.replace("_", "-"): v for k, v in changes.items()},
    }
    words = []
    for name, value in settings.items():
        if value is not None:
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


def distilling(folder: Path) -> dict[str, Any]:
    """The settings of stage 3."""
    return {"scores": folder / "scores.jsonl", "distill": "kl", "contrastive_weight": 1e-4}
