"""Tokens a second of training in bfloat16 on a CPU, with attention and dropout of our own, against torch's.

    python benchmarks/training.py --text textbooks.txt.gz [--methods mlm retromae dupmae] [--threads 2]

Row 16 of the second table of benchmarks/archive.md. An update of pre-training or fine-tuning is that of
benchmarks/pretraining_step.py and finetune_step.py, with MiniLM's shape. In turns of one process:

  before         attention and dropout by torch; pre-training with dropout 0.1; AdamW unfused in fine-tuning
  ours           attention by batched products, and faster random numbers for dropout (training/cpu_functions.py);
                 fused AdamW; the same rate of dropout
  no dropout     the same with ``pretrain --dropout 0``; fine-tuning is without dropout in all forms

Gate: compared with float64, the largest error of attention and its gradients is no larger than with the eager
attention of transformers under autocast.
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
from dupmae_ir.training.cpu_functions import cpu_functions

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
                **vars(args), dropout=dropout, torch_functions=theirs, dtype="bfloat16"
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


def eager(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention as transformers' eager layers compute it."""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    return torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v


def outputs(attention: Callable[..., torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    """Output and gradients of attention on the same numbers in ``dtype``."""
    drawn = torch.Generator().manual_seed(0)
    qkv = [torch.randn(4, 12, 64, 32, generator=drawn).bfloat16() for _ in range(3)]
    inputs = [x.to(dtype).requires_grad_() for x in qkv]
    out = attention(*inputs)
    gradients = torch.autograd.grad(out.double().square().sum(), inputs)
    return [x.double() for x in (out.detach(), *gradients)]


def largest_error(found: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """In parts of the largest number of each tensor."""
    pairs = zip(found, exact, strict=True)
    return max(float((x - y).abs().max() / y.abs().max()) for x, y in pairs)


def check() -> str:
    """The gate; raises when it fails."""
    torchs = torch.nn.functional.scaled_dot_product_attention
    exact = outputs(torchs, torch.float64)
    errors = {
        "eager": largest_error(outputs(eager, torch.bfloat16), exact),
        "torch's": largest_error(outputs(torchs, torch.bfloat16), exact),
    }
    with cpu_functions(torch.device("cpu")):
        ours = largest_error(outputs(torchs, torch.bfloat16), exact)
    assert ours <= errors["eager"], (ours, errors)
    theirs = ", ".join(f"{name} {error:.1e}" for name, error in errors.items())
    return (
        "largest error of attention and its gradients against float64, in parts of the largest number: "
        f"{ours:.1e}; {theirs}"
    )


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
