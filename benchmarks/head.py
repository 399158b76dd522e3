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
from functools import partial
from pathlib import Path

import harness
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dupmae_ir.models.inference.topk_screen import Screen, candidates, refine
from dupmae_ir.models.pooling import ot_max_packed, strongest

TEXTS = 32
LONGEST = 180
WORDS = 30522
TOP_K = 384


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
        """Random token states and weights."""
        rng = np.random.default_rng(0)
        generator = torch.Generator().manual_seed(0)
        drawn = rng.lognormal(np.log(75) - 0.42**2 / 2, 0.42, TEXTS)
        lengths = drawn.round().clip(16, LONGEST).astype(int)
        # One text is always of the maximum length, so the padded batch is too.
        counts = [LONGEST, *sorted(lengths[1:].tolist(), reverse=True)]

        packed = F.layer_norm(torch.randn(sum(counts), width, generator=generator), (width,))
        padded = torch.zeros(TEXTS, LONGEST, width)
        mask = torch.zeros(TEXTS, LONGEST)
        for row, tokens in enumerate(packed.split(counts)):
            padded[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1

        weight = torch.empty(WORDS, width).normal_(0, 0.05, generator=generator)
        bias = torch.empty(WORDS).normal_(0, 0.1, generator=generator)
        return cls(padded, mask, packed, counts, weight, bias, Screen.of(weight, bias))


# Intermediate tensors of the forms have no names: a named one would live longer and raise the measured peak.


def released(x: Inputs) -> tuple[Tensor, Tensor]:
    """The released code: the maximum over float32 logits of the padded batch."""
    logits = F.linear(x.padded, x.weight, x.bias)
    return strongest(torch.max(logits + (1 - x.mask[:, :, None]) * -1000, dim=1).values, TOP_K)


def splade(x: Inputs) -> tuple[Tensor, Tensor]:
    """SPLADE's order: the maximum after log1p(relu(logits))."""
    logits = F.linear(x.padded, x.weight, x.bias)
    return strongest(
        torch.max(torch.log1p(torch.relu(logits)) * x.mask[:, :, None], dim=1).values, TOP_K
    )


def chunked(x: Inputs) -> tuple[Tensor, Tensor]:
    """Our reference form: packed tokens, the vocabulary in chunks."""
    return strongest(ot_max_packed(x.packed, x.counts, x.weight, x.bias), TOP_K)


def ours(x: Inputs) -> tuple[Tensor, Tensor]:
    """What the encoder runs: candidates by bfloat16, their weights in float32."""
    selection = screened(x)
    ids, values = refine(x.screen, x.packed, x.counts, selection)
    positions, weights = strongest(values, TOP_K)
    return ids.gather(1, positions), weights


def screened(x: Inputs) -> Tensor:
    """The words of each text that may belong to its top 384."""
    every_word = torch.ones(WORDS, dtype=torch.bool)
    return candidates(x.screen, x.packed, x.counts, every_word, TOP_K)


FORMS: dict[str, Callable[[Inputs], tuple[Tensor, Tensor]]] = {
    "released": released,
    "splade": splade,
    "chunked": chunked,
    "ours": ours,
}


def check(x: Inputs) -> str:
    """Check that all forms agree. Returns a description; raises if they do not."""
    words = {}
    weights = {}
    for name, form in FORMS.items():
        ids, weights[name] = form(x)
        # As sets: forms may order nearly equal weights differently.
        words[name] = ids.sort(1).values
    assert all(torch.equal(words["released"], other) for other in words.values())
    difference = float((weights["ours"] - weights["released"]).abs().max())
    assert difference < 1e-5, difference
    refined = screened(x).sum(1)
    return (
        f"the same {TOP_K} words in all forms for {TEXTS} of {TEXTS} texts, weights to {difference:.1e}; "
        f"{int(refined.float().mean())} words per text refined"
    )


def peak(form: str, width: int) -> float:
    """Megabytes by which one call raises the peak resident memory; call it once per process."""
    x = Inputs.draw(width)
    small = Inputs(
        x.padded[:1, :16], x.mask[:1, :16], x.packed[:16], [16], x.weight, x.bias, x.screen
    )
    # Each form holds only the input that it reads.
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
    """A figure of this process's status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def peaks(args: argparse.Namespace) -> dict[str, float]:
    """:func:`peak` of every form, each in its own process."""
    megabytes = {}
    for form in FORMS:
        flags = ["--peak", form, "--width", str(args.width), "--threads", str(args.threads)]
        command = [sys.executable, __file__, *flags]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        megabytes[form] = float(done.stdout.split()[-1])
    return megabytes


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
        work = {name: partial(form, x) for name, form in FORMS.items()}
        seconds = harness.in_turns(work, args.repeats)
    memory = peaks(args)
    middle = harness.middle(seconds)
    for form, megabytes in memory.items():
        print(f"{form:<10} {middle[form] * 1e3:9.1f} ms  {megabytes:8.0f} MB")
    report(args, seconds, memory, gate, x)


def report(
    args: argparse.Namespace,
    seconds: dict[str, list[float]],
    memory: dict[str, float],
    gate: str,
    x: Inputs,
) -> None:
    """Claims, table and picture."""
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
    speeds = {form: TEXTS / taken for form, taken in harness.middle(seconds).items()}
    details = {
        "megabytes": memory,
        "texts_per_second": speeds,
        "threads": args.threads,
        "width": args.width,
    }
    title = f"The vocabulary head alone, d = {args.width}, {args.threads} threads"
    picture = harness.bars(title, "texts/s", speeds, ("ours", "chunked"))
    harness.report("head", claims, seconds, args, details, picture)


if __name__ == "__main__":
    main()
