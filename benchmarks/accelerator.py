"""Encoding, the vocabulary head and pre-training on an accelerator, and the share of its product rate that they reach.

    python benchmarks/accelerator.py [--device cuda] [--shape base] [--passages 4096]
    python benchmarks/accelerator.py --device cpu --shape tiny --passages 16 --no-compile --no-save    # a try

Row 17 of the second table of benchmarks/archive.md; it needs nothing but a machine with an accelerator. In turns of one
process, with random weights and texts of MS MARCO's lengths:

  encode      both parts of all passages in bfloat16, one pass, against sentence-transformers in float16 with
              torch.compile, in two passes
  head        from token states to the top 384 words: packed and in chunks, against the released padded form
  pre-train   one update of DupMAE in bfloat16 without dropout, 128 texts of 128 tokens
  product     a large product in bfloat16, which is the rate that shares are of

Gate: in float32 on the device both parts equal those of the plain model on the processor, [CLS] to 1e-3, and 99 % of
the words.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import head
import numpy as np
import passages
import torch

from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.heads.masked_lm import longest
from dupmae_ir.models.inference.encoder import TextEncoder
from dupmae_ir.pretrain.collate import COLLATORS, Draw
from dupmae_ir.pretrain.model import build_objective
from dupmae_ir.pretrain.recipes import Recipe, resolve
from dupmae_ir.pretrain.tokens import Corpus, Ragged, Vocabulary
from dupmae_ir.training.layers import set_dropout
from encode import plain_vectors, sentence_transformers, useful_flops

OURS, PEER = "ours, bfloat16", "sentence-transformers, float16, torch.compile"
BATCH = 128
SIDE = {"cuda": 8192, "cpu": 512}
"""Side of the square product."""


def settled(work: Callable[[], Any], device: str) -> Callable[[], Any]:
    """``work``, ended when the device has finished it."""

    def run() -> Any:
        found = work()
        if device == "cuda":
            torch.cuda.synchronize()
        return found

    return run


def check(folder: Path, device: str, texts: list[str]) -> str:
    """The gate; raises when it fails."""
    encoder = TextEncoder.load(folder, device=device, dtype="float32")
    found = encoder.encode_documents(texts)
    assert found.cls is not None
    assert found.ot is not None
    cls, words, _ = plain_vectors(folder, texts)
    off = float(np.abs(found.cls - cls).max())
    rows = zip(found.ot, words, strict=True)
    shared = float(np.mean([len(np.intersect1d(row.indices, own[: row.nnz])) / row.nnz for row, own in rows]))
    assert off < 1e-3, off
    assert shared >= 0.99, shared
    return f"float32 on the device: [CLS] of the plain model to {off:.0e}, {shared:.1%} of its words"


def heads(width: int, device: str, dtype: torch.dtype) -> dict[str, Callable[[], Any]]:
    """Two forms of the head on the same token states of 32 texts."""
    drawn = head.Inputs.draw(width)
    names = ("padded", "mask", "packed", "weight", "bias")
    x = dataclasses.replace(drawn, **{name: getattr(drawn, name).to(device, dtype) for name in names})
    return {"head, ours": lambda: head.chunked(x), "head, released": lambda: head.released(x)}


def pretraining(folder: Path, device: str, texts: int, length: int) -> tuple[Callable[[], Any], float]:
    """One update of DupMAE, and the multiplications and additions of its weights."""
    model, tokenizer, _ = load_model(folder)
    lm = model.side("document").lm.train().requires_grad_(True)
    objective = build_objective("dupmae", lm, resolve("dupmae", "release", Recipe(length=length, batch_size=texts)))
    set_dropout(objective, 0.0)
    objective.to(device).train()
    batch = _batch(tokenizer, texts, length, device)
    optimizer = torch.optim.AdamW(objective.parameters(), lr=1e-4)

    def update() -> None:
        with torch.autocast(device, torch.bfloat16):
            loss, _ = objective(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    config = lm.config
    layers = sum(p.numel() for n, p in lm.bert.encoder.named_parameters() if p.dim() == 2)
    one, head = layers / config.num_hidden_layers, config.hidden_size * (config.hidden_size + config.vocab_size)
    tokens = float(batch["attention_mask"].sum())
    predicted = float((batch["encoder_labels"] >= 0).sum())
    # Encoder, decoder layer, the heads of decoder and OT over all tokens and that of masked tokens; with gradients.
    return update, 6.0 * (tokens * (layers + one + 2 * head) + predicted * head)


def _batch(tokenizer: Any, texts: int, length: int, device: str) -> dict[str, torch.Tensor]:
    """A batch of DupMAE as the trainer makes it, of drawn words."""
    corpus = _corpus(tokenizer, texts, length)
    recipe = resolve("dupmae", "release", Recipe(length=length, batch_size=texts))
    collate = COLLATORS["dupmae"]([corpus], Vocabulary.of(tokenizer, len(tokenizer), "drawn"), recipe, 0)
    batch = collate([Draw(n, 0, n) for n in range(texts)])
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def _corpus(tokenizer: Any, texts: int, length: int) -> Corpus:
    drawn = np.random.default_rng(0).integers(min(1000, len(tokenizer) // 2), len(tokenizer), texts * (length - 2))
    ends = np.arange(texts + 1, dtype=np.int64) * (length - 2)
    nothing, none = Ragged(np.zeros(0, np.int64), np.zeros(1, np.int64)), np.zeros(texts + 1, np.int64)
    return Corpus("text", Ragged(drawn.astype(np.int64), ends), np.arange(texts), nothing, none, nothing, none, Path())


def main() -> None:
    parser = harness.arguments(__doc__)
    parser.add_argument("--device", choices=tuple(SIDE), default="cuda")
    parser.add_argument("--shape", choices=tuple(passages.SHAPES), default="base")
    parser.add_argument("--passages", type=int, default=4096)
    parser.add_argument("--train-texts", type=int, default=128)
    parser.add_argument("--no-compile", action="store_true", help="the peer without torch.compile")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("this machine has no CUDA device; --device cpu --no-save shows that the benchmark runs")
    texts, side = passages.passages(args.passages, shape=args.shape), SIDE[args.device]
    half = torch.float16 if args.device == "cuda" else torch.float32  # which a processor has
    square = torch.randn(side, side).to(args.device, torch.bfloat16)
    with passages.model_folder(args.shape) as folder:
        gate = check(folder, args.device, texts[:8])
        print(gate, flush=True)
        ours = TextEncoder.load(folder, device=args.device, dtype="bfloat16")
        peer = sentence_transformers(folder, half, args.device, BATCH, not args.no_compile)
        lm = ours.model.side("document").lm
        update, training = pretraining(folder, args.device, args.train_texts, min(128, longest(lm)))
        work = {
            OURS: lambda: ours.encode_documents(texts),
            PEER: lambda: peer(texts),
            **heads(lm.config.hidden_size, args.device, torch.bfloat16),
            "pre-train": update,
            "product": lambda: square @ square,
        }
        seconds = harness.in_turns({n: settled(w, args.device) for n, w in work.items()}, args.repeats, warm=2)
        encoding = useful_flops(ours, texts, True)
    report(args, seconds, gate, {OURS: encoding, "pre-train": training, "product": 2.0 * side**3})


def report(args: argparse.Namespace, seconds: dict[str, list[float]], gate: str, operations: dict[str, float]) -> None:
    """Claims, table and picture."""
    rates = {name: [operations[name] / s for s in seconds[name]] for name in operations}
    shares = {
        name: statistics.median(100 * a / b for a, b in zip(rates[name], rates["product"], strict=True))
        for name in (OURS, "pre-train")
    }
    what = passages.NAMES[args.shape]
    share = {"unit": " %", "gate": gate, "round": 2}
    claims = [
        harness.Claim(
            17, f"encode both parts, {what}", OURS, PEER, harness.speedup(seconds, PEER, OURS), 3, gate=gate, round=2
        ),
        harness.Claim(
            17,
            f"vocabulary head, {what}",
            "head, ours",
            "head, released",
            harness.speedup(seconds, "head, released", "head, ours"),
            1,
            gate=gate,
            round=2,
        ),
        harness.Claim(17, f"encode, share of the product rate, {what}", OURS, "the device", shares[OURS], 50, **share),
        harness.Claim(
            17, f"pre-train, share of the product rate, {what}", "ours", "the device", shares["pre-train"], 50, **share
        ),
    ]
    speeds = {name: args.passages / s for name, s in harness.middle(seconds).items() if name in (OURS, PEER)}
    harness.report(
        "accelerator",
        claims,
        seconds,
        args,
        {
            "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
            "documents_per_second": speeds,
            "product_gflops": statistics.median(rates["product"]) / 1e9,
            "shape": args.shape,
        },
        harness.bars(f"Passages with both parts, {what}", "documents/s", speeds, (OURS,)),
    )


if __name__ == "__main__":
    main()
