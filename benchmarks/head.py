"""The vocabulary head alone, from token states to the 384 largest weights of a text: ours against the released code.

    python benchmarks/head.py [--width 768] [--threads 2]

Row 5 of benchmarks/archive.md. 32 passages with the length distribution of MS MARCO, the longest 180, V = 30,522:

  released   the released DupMAE code: float32 logits of the padded batch (B, L, V), -1000 at padding,
             maximum over the tokens, top 384
  splade     SPLADE's order of operations: log1p(relu(logits)) * mask, maximum, top 384
  chunked    our reference form in float32: packed tokens, the vocabulary in chunks, top 384
  ours       what the encoder runs: screened in bfloat16, refined in float32 (models/inference/topk_screen.py)

Gate: all four give the same 384 words for each text, and ours the released weights to 1e-5. Memory is the growth of the
peak resident memory during one call, in a separate process, without inputs and weights (Linux only).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import harness
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dupmae_ir.models.inference.topk_screen import Screen, candidates, refine
from dupmae_ir.models.pooling import ot_max_packed, strongest

TEXTS, LONGEST, WORDS, TOP_K = 32, 180, 30522, 384


@dataclass
class Inputs:
    """``padded`` (B, L, d) and ``mask`` (B, L); ``packed`` (T, d) the same tokens concatenated;
    ``counts`` tokens per text; ``weight`` (V, d); ``bias`` (V,)."""

    padded: Tensor
    mask: Tensor
    packed: Tensor
    counts: list[int]
    weight: Tensor
    bias: Tensor
    screen: Screen

    @classmethod
    def draw(cls, width: int) -> Inputs:
        rng, g = np.random.default_rng(0), torch.Generator().manual_seed(0)
        drawn = (
            rng.lognormal(np.log(75) - 0.42**2 / 2, 0.42, TEXTS)
            .round()
            .clip(16, LONGEST)
            .astype(int)
        )
        counts = [LONGEST, *sorted(drawn[1:].tolist(), reverse=True)]
        packed = F.layer_norm(torch.randn(sum(counts), width, generator=g), (width,))
        padded, mask = torch.zeros(TEXTS, LONGEST, width), torch.zeros(TEXTS, LONGEST)
        for row, tokens in enumerate(packed.split(counts)):
            padded[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
        weight = torch.empty(WORDS, width).normal_(0, 0.05, generator=g)
        bias = torch.empty(WORDS).normal_(0, 0.1, generator=g)
        return cls(padded, mask, packed, counts, weight, bias, Screen.of(weight, bias))


def released(x: Inputs) -> tuple[Tensor, Tensor]:
    logits = F.linear(x.padded, x.weight, x.bias)
    return strongest(torch.max(logits + (1 - x.mask[:, :, None]) * -1000, dim=1).values, TOP_K)


def splade(x: Inputs) -> tuple[Tensor, Tensor]:
    logits = F.linear(x.padded, x.weight, x.bias)
    return strongest(
        torch.max(torch.log1p(torch.relu(logits)) * x.mask[:, :, None], dim=1).values, TOP_K
    )


def chunked(x: Inputs) -> tuple[Tensor, Tensor]:
    return strongest(ot_max_packed(x.packed, x.counts, x.weight, x.bias), TOP_K)


def ours(x: Inputs) -> tuple[Tensor, Tensor]:
    chosen = candidates(x.screen, x.packed, x.counts, torch.ones(WORDS, dtype=torch.bool), TOP_K)
    ids, values = refine(x.screen, x.packed, x.counts, chosen)
    places, weights = strongest(values, TOP_K)
    return ids.gather(1, places), weights


FORMS: dict[str, Callable[[Inputs], tuple[Tensor, Tensor]]] = {
    "released": released,
    "splade": splade,
    "chunked": chunked,
    "ours": ours,
}


def check(x: Inputs) -> str:
    """Check that all forms agree. Returns a description; raises if they do not."""
    found = {name: form(x) for name, form in FORMS.items()}
    words = {name: ids.sort(1).values for name, (ids, _) in found.items()}
    assert all(torch.equal(words["released"], other) for other in words.values())
    off = float((found["ours"][1] - found["released"][1]).abs().max())
    assert off < 1e-5, off
    count = candidates(
        x.screen, x.packed, x.counts, torch.ones(WORDS, dtype=torch.bool), TOP_K
    ).sum(1)
    return (
        f"the same {TOP_K} words in all forms for {TEXTS} of {TEXTS} texts, weights to {off:.1e}; "
        f"{int(count.float().mean())} words per text refined"
    )


def peak(form: str, width: int) -> float:
    """Megabytes by which one call raises the peak resident memory; call it once per process."""
    x = Inputs.draw(width)
    small = Inputs(
        x.padded[:1, :16], x.mask[:1, :16], x.packed[:16], [16], x.weight, x.bias, x.screen
    )
    if form in ("released", "splade"):
        x.packed = small.packed
    else:
        x.padded = small.padded
    FORMS[form](small)  # loads the libraries
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _kilobytes("VmRSS")
    FORMS[form](x)
    return (_kilobytes("VmHWM") - before) / 1024


def _kilobytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def peaks(args: argparse.Namespace) -> dict[str, float]:
    """:func:`peak` of every form, each in its own process."""
    found = {}
    for form in FORMS:
        words = [
            sys.executable,
            __file__,
            "--peak",
            form,
            "--width",
            str(args.width),
            "--threads",
            str(args.threads),
        ]
        found[form] = float(
            subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()[-1]
        )
    return found


def main() -> None:
    parser = harness.arguments(__doc__)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--peak", choices=tuple(FORMS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with torch.inference_mode():
        if args.peak:
            print(peak(args.peak, args.width))
            return
        x = Inputs.draw(args.width)
        gate = check(x)
        print(gate, flush=True)
        seconds = harness.in_turns(
            {name: lambda f=form: f(x) for name, form in FORMS.items()}, args.repeats
        )
    memory = peaks(args)
    for form, megabytes in memory.items():
        print(f"{form:<10} {harness.middle(seconds)[form] * 1e3:9.1f} ms  {megabytes:8.0f} MB")
    report(args, seconds, memory, gate, x)


def report(
    args: argparse.Namespace,
    seconds: dict[str, list[float]],
    memory: dict[str, float],
    gate: str,
    x: Inputs,
) -> None:
    padded = TEXTS * LONGEST / sum(x.counts)
    what = f"OT head, d = {args.width}"
    claims = [
        harness.Claim(
            5,
            f"{what}: time",
            "ours",
            "released",
            harness.speedup(seconds, "released", "ours"),
            15,
            gate=gate,
            note=f"{padded:.1f}x of it is padding; the rest comes from bfloat16 products and fewer passes over "
            "the logits",
        ),
        harness.Claim(
            5,
            f"{what}: peak memory",
            "ours",
            "released",
            memory["released"] / max(memory["ours"], 0.1),
            40,
            gate="each form in its own process",
        ),
    ]
    speeds = {form: TEXTS / s for form, s in harness.middle(seconds).items()}
    harness.report(
        "head",
        claims,
        seconds,
        args,
        {
            "megabytes": memory,
            "texts_per_second": speeds,
            "threads": args.threads,
            "width": args.width,
        },
        harness.bars(
            f"The vocabulary head alone, d = {args.width}, {args.threads} threads",
            "texts/s",
            speeds,
            ("ours", "chunked"),
        ),
    )


if __name__ == "__main__":
    main()
