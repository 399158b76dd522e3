"""Tokens a second of training in bfloat16 on a CPU, with attention in float32 and without dropout, against before.

    python benchmarks/training.py --text textbooks.txt.gz [--methods mlm retromae dupmae] [--threads 2]

Row 16 of the second table of benchmarks/archive.md. An update of pre-training or fine-tuning is that of
benchmarks/pretraining_step.py and finetune_step.py, with MiniLM's shape. In turns of one process:

  before         attention by torch in bfloat16; pre-training with dropout 0.1
  ours           attention in float32, rounded to bfloat16 (training/attention.py); the same dropout
  no dropout     the same with ``pretrain --dropout 0``; fine-tuning is without dropout in all forms

Gate: attention in float32 is nearer to float64 than torch's in bfloat16, or within the accuracy of bfloat16.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from typing import Any

import finetune_step
import harness
import pretraining_step
import torch
from transformers import AutoTokenizer

from dupmae_ir.models.names import model_folder
from dupmae_ir.training.layers import training_attention

BEFORE = "before"
OURS = "ours"
NO_DROPOUT = "no dropout"


def pretraining(args: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """Updates of every method in three forms, by ``method, form``."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder("minilm"), local_files_only=True)
    corpus = pretraining_step.corpus_of(args.text, tokenizer, 500, args.length)
    work = {}
    for method in args.methods:
        for form, dropout, theirs in (
            (BEFORE, 0.1, True),
            (OURS, 0.1, False),
            (NO_DROPOUT, 0.0, False),
        ):
            chosen = argparse.Namespace(
                **vars(args), dropout=dropout, torch_attention=theirs, dtype="bfloat16"
            )
            work[f"{method}, {form}"] = pretraining_step.update_of(
                method, corpus, tokenizer, chosen
            )
    return work


def finetuning(args: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """Updates of Eq. 12 in two forms."""
    batch = finetune_step.batch_of(
        finetune_step.lengths_of(None, random.Random(0)), args.batch_size, 1, "cpu"
    )
    shape = finetune_step.SHAPES["minilm"]
    return {
        f"finetune, {form}": finetune_step.update_of("sum", shape, batch, "cpu", True, 0.01, ours)
        for form, ours in ((BEFORE, False), (OURS, True))
    }


def check() -> str:
    """The gate; raises when it fails."""
    drawn = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(4, 12, 64, 32, generator=drawn).bfloat16() for _ in range(3))
    plain = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    with training_attention(torch.device("cpu"), True):
        ours = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    exact = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
    errors = [float((x.double() - exact).abs().max()) for x in (plain, ours)]
    assert errors[1] <= max(errors[0], 2.0**-8), errors
    return f"largest error of attention against float64: {errors[1]:.1e}, torch's in bfloat16 {errors[0]:.1e}"


def main() -> None:
    parser = harness.arguments(__doc__)
    parser.add_argument(
        "--text", required=True, metavar="FILE", help="gzipped text, one passage a line"
    )
    parser.add_argument("--methods", nargs="+", default=["mlm", "retromae", "dupmae"])
    parser.add_argument(
        "--anchor", metavar="MODEL", help="hold [CLS] to this model in pre-training"
    )
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    gate = check()
    work = {**pretraining(args), **finetuning(args)}
    wall, used = harness.both_times(work, args.repeats)
    claims = []
    for name in work:
        what, _, form = name.partition(", ")
        if form == BEFORE:
            continue
        before = f"{what}, {BEFORE}"
        claims.append(
            harness.Claim(
                16,
                f"{'fine-tuning' if what == 'finetune' else f'pre-training, {what}'}, {args.threads} threads, updates "
                f"a processor-second{', dropout 0' if form == NO_DROPOUT else ''}",
                name,
                before,
                harness.speedup(used, before, name),
                1.5,
                gate=gate,
                note=f"{harness.speedup(wall, before, name):.3g}x by wall time; the products with weights and with the "
                "vocabulary are the same in all forms",
                round=2,
            )
        )
    rates = {name: 1 / s for name, s in harness.middle(used).items()}
    harness.report(
        "training",
        claims,
        used,
        args,
        {"updates_per_processor_second": rates, "wall_seconds": wall, "threads": args.threads},
        harness.bars(
            f"Updates of training, {args.threads} threads",
            "updates a processor-second",
            rates,
            tuple(n for n in rates if not n.endswith(BEFORE)),
        ),
    )


if __name__ == "__main__":
    main()
