"""Memory and seconds of an update of fine-tuning with the gradient cache, for parts of several sizes.

    python benchmarks/gradient_cache.py [--shape minilm] [--queries 16] [--negatives 15] [--parts 0 128 64 32 16]
                                         [--device cuda] [--json FILE]

An update is the forward and backward pass of one batch, as the trainer computes it: 16 queries and 256 passages, what
each of the eight processes of the MS MARCO recipes has. A part of 0 is the plain pass, which keeps the graph of all
texts. Weights and texts are random; the lengths of the texts resemble MS MARCO's. Each setting runs in its own process,
which measures the peak memory minus what was in use before the pass, and the processor seconds of a second pass. The
losses must agree to 1e-4; the status is 1 if they do not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from finetune_step import OBJECTIVES, SHAPES, WORDS, batch_of, lengths_of, now
from heads_memory import memory_now, memory_peak
from transformers import BertConfig, BertForMaskedLM

from dupmae_ir.console import table
from dupmae_ir.finetune.large_batches import cached_step
from dupmae_ir.finetune.objective import BiEncoder, batch_loss
from dupmae_ir.models.retriever import Retriever

SPECIAL = [0, 100, 101, 102, 103]
LOSS_TOLERANCE = 1e-4


def measure(kind: str, part: int, args: argparse.Namespace) -> dict[str, Any]:
    """Loss, peak bytes and seconds of an update, in this process."""
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    objective = OBJECTIVES[kind]
    config = BertConfig(
        vocab_size=WORDS,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **SHAPES[args.shape],
    )
    projection = torch.nn.Linear(config.hidden_size, 384, bias=False)
    retriever = Retriever(BertForMaskedLM(config), projection, SPECIAL, SPECIAL)
    model = BiEncoder(retriever, objective.uses).to(args.device).train()
    batch = batch_of(lengths_of(None, random.Random(0)), args.queries, args.negatives, args.device)

    def loss_of(parts: dict[str, Any]) -> torch.Tensor:
        loss, _ = batch_loss(parts["query"], parts["document"], batch, objective)
        return loss

    def update() -> float:
        if part:
            return cached_step(model, batch, part, loss_of, torch.Tensor.backward).item()
        loss = loss_of(model(batch))
        loss.backward()
        return loss.item()

    # The gradients of the weights exist before the pass that is measured, as in all updates but the first.
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = memory_now(args.device)
    loss = update()
    peak = memory_peak(args.device) - before
    started = now(args.device)
    update()
    return {
        "objective": kind,
        "part": part,
        "loss": loss,
        "bytes": peak,
        "seconds": now(args.device) - started,
    }


def in_a_process(kind: str, part: int, words: list[str]) -> dict[str, Any]:
    """:func:`measure` in a fresh process."""
    command = [sys.executable, __file__, *words, "--measure", kind, str(part)]
    # By default glibc keeps freed blocks of up to 32 MB.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"{kind}, parts of {part}: {done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _shown(row: dict[str, Any], plain: dict[str, Any]) -> list[str]:
    return [
        "[CLS]" if row["objective"] == "cls" else "[CLS] + OT",
        str(row["part"] or "all at once"),
        f"{row['bytes'] / 1e6:,.0f}",
        f"{row['bytes'] / plain['bytes']:.2f}",
        f"{row['seconds']:.1f}",
        f"{row['seconds'] / plain['seconds']:.2f}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="minilm")
    parser.add_argument("--queries", type=int, default=16)
    parser.add_argument("--negatives", type=int, default=15, help="hard negatives of each")
    parser.add_argument(
        "--parts", nargs="+", type=int, default=[0, 128, 64, 32, 16], help="texts encoded at a time"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        kind, part = args.measure
        print(json.dumps(measure(kind, int(part), args)))
        return 0

    rows = []
    shown = []
    agree = True
    for kind in OBJECTIVES:
        plain = in_a_process(kind, 0, sys.argv[1:])
        for part in args.parts:
            row = plain if part == 0 else in_a_process(kind, part, sys.argv[1:])
            rows.append(row)
            shown.append(_shown(row, plain))
            agree = agree and abs(row["loss"] - plain["loss"]) <= LOSS_TOLERANCE * plain["loss"]
    header = ["parts trained", "texts at a time", "peak MB", "of plain", "seconds", "of plain"]
    print(table(shown, header))
    if args.json:
        record = {"settings": vars(args) | {"json": None}, "rows": rows}
        args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
