"""Encoding queries: both parts, compared with Pyserini's SpladeQueryEncoder (OT part only).

    python benchmarks/queries.py [--shape base] [--threads 2]

Row 8 of both tables of benchmarks/archive.md.

Queries of about eight word pieces, tokenisation included; the result has a weight for
every term above zero. Pyserini's encoder takes one query at a time; ours runs at batch 1 (one call per query) and at
32, in bfloat16 and float32.

Gate: the float32 terms equal the plain model's, weights to 1e-5; 90% of a query's bfloat16 terms are among them.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import harness
import numpy as np
import passages
import torch

from dupmae_ir.models.checkpoints.loading import load_model, quiet_transformers
from dupmae_ir.models.inference.encoder import TextEncoder
from dupmae_ir.models.pooling import strongest

CAP = 384


def splade(folder: Path) -> Any:
    # Imported by our module first, since Pyserini's own import requires the key of a paid service.
    from dupmae_ir.pyserini import QueryEncoder  # noqa: F401 # isort: skip
    from pyserini.encode import SpladeQueryEncoder

    with quiet_transformers():
        return SpladeQueryEncoder(str(folder), device="cpu")


def check(folder: Path, texts: list[str], encoders: dict[str, TextEncoder]) -> str:
    """The gate; raises when it fails."""
    model, tokenizer, _ = load_model(folder)
    found = {name: encoder.encode_queries(texts, CAP).ot for name, encoder in encoders.items()}
    off = 0.0
    shared = []
    with torch.inference_mode():
        for row, text in enumerate(texts):
            ids = tokenizer([text], return_tensors="pt")["input_ids"]
            words, weights = strongest(
                model.side("query").eval()(ids, torch.ones_like(ids))[1], CAP
            )
            mine = found["float32"][row]
            order = words[0].argsort()
            assert np.array_equal(np.sort(mine.indices), words[0][order].numpy()), text
            off = max(off, float(np.abs(mine.data - weights[0][order].numpy()).max()))
            shared.append(
                len(np.intersect1d(found["bfloat16"][row].indices, words[0].numpy())) / CAP
            )
    assert off < 1e-5, off
    assert np.mean(shared) > 0.9
    return (
        f"float32: the plain form's words for {len(texts)} questions, weights to {off:.1e}; bfloat16 "
        f"keeps {np.mean(shared):.1%} of the words"
    )


def _weights_read(encoder: TextEncoder) -> int:
    """Bytes of the layers' and the head's matrices."""
    lm = encoder.model.side("query").lm
    layers = sum(p.numel() for p in lm.bert.encoder.parameters())
    return 2 * (layers + lm.config.hidden_size * (lm.config.hidden_size + lm.config.vocab_size))


def one_by_one(work: Any, texts: list[str]) -> Any:
    def run() -> None:
        for text in texts:
            work(text)

    return run


def main() -> None:
    parser = harness.arguments(__doc__, repeats=7)
    parser.add_argument("--shape", choices=tuple(passages.SHAPES), default="base")
    parser.add_argument("--questions", type=int, default=32)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    texts = passages.queries(args.questions)
    with passages.model_folder(args.shape) as folder:
        encoders = {
            dtype: TextEncoder.load(folder, dtype=dtype) for dtype in ("bfloat16", "float32")
        }
        gate = check(folder, texts, encoders)
        print(gate, flush=True)
        theirs = splade(folder)
        work: dict[str, Any] = {"pyserini SpladeQueryEncoder": one_by_one(theirs.encode, texts)}
        for dtype, encoder in encoders.items():
            work[f"ours, {dtype}, one by one"] = one_by_one(
                lambda t, e=encoder: e.encode_queries([t], CAP), texts
            )
            work[f"ours, {dtype}, batch of 32"] = lambda e=encoder: e.encode_queries(texts, CAP)
        seconds = harness.in_turns(work, args.repeats)
        read = _weights_read(encoders["bfloat16"])
    each = harness.middle(seconds)["ours, bfloat16, one by one"] / args.questions
    bound = f"each reads {read / 1e6:.0f} MB of weights in {1e3 * each:.0f} ms"
    what = passages.NAMES[args.shape]
    peer = "pyserini SpladeQueryEncoder"
    claims = [
        harness.Claim(
            8,
            f"encode questions, {text}, {what}",
            name,
            peer,
            harness.speedup(seconds, peer, name),
            5,
            gate=gate,
            note=bound if text == "batch 1" else "",
        )
        for text, name in (
            ("batch 1", "ours, bfloat16, one by one"),
            ("batch 32", "ours, bfloat16, batch of 32"),
        )
    ]
    claims.append(
        dataclasses.replace(claims[0], what=f"encode one question, {what}", goal=6, round=2)
    )
    speeds = {n: args.questions / s for n, s in harness.middle(seconds).items()}
    for name, speed in speeds.items():
        print(f"{name:<36} {speed:8.1f} questions/s")
    harness.report(
        "queries" if args.shape == "base" else f"queries_{args.shape}",
        claims,
        seconds,
        args,
        {"questions_per_second": speeds, "threads": args.threads, "shape": args.shape},
        harness.bars(
            f"Questions, {what}, {args.threads} threads",
            "questions/s",
            speeds,
            tuple(n for n in speeds if n.startswith("ours")),
        ),
    )


if __name__ == "__main__":
    main()
