"""What screening the vocabulary head in 8 bits could gain: its product alone, in 8 bits and in bfloat16.

    python benchmarks/head_products.py [--widths 384 768] [--threads 1]

Row 4 of the second table of benchmarks/archive.md.
The head finds its candidates by bfloat16 products of all token states
with all words (models/inference/topk_screen.py). Products of 8-bit integers could take their place with a wider bound;
the ratio of the two products is the most that this could gain, since the choice of words, the refinement and the
rounding to 8 bits come on top. 1,024 token states, 30,522 words.

  bfloat16   oneDNN with a packed weight, which is what the encoder runs
  8 bits     torch._int_mm, int8 times int8 to int32, which is what torch offers for whole matrices on a CPU

Gate: the 8-bit product equals that of the same integers in float64, and the bfloat16 product that of the rounded
numbers to the accuracy of bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable

import harness
import torch

from dupmae_ir.models.inference.cpu_linear import onednn_linear

TOKENS = 1024
WORDS = 30522
GOALS = {384: 1.6, 768: 1.4}


def products(width: int) -> tuple[dict[str, Callable[[], torch.Tensor]], str]:
    """Both products at a width, and what was checked."""
    drawn = torch.Generator().manual_seed(0)
    states = torch.randn(TOKENS, width, generator=drawn)
    words = torch.randn(WORDS, width, generator=drawn) * 0.05
    packed = onednn_linear(words.bfloat16(), torch.zeros(WORDS, dtype=torch.bfloat16))
    rounded = states.bfloat16()
    small = _eight_bits(states)
    small_words = _eight_bits(words).t().contiguous()
    work = {
        "bfloat16": lambda: packed(rounded),
        "8 bits": lambda: torch._int_mm(small, small_words),
    }
    some = slice(0, 16)
    exact = small[some].double() @ small_words.double()
    assert torch.equal(work["8 bits"]()[some].double(), exact)
    wide = rounded[some].double() @ words.bfloat16().double().t()
    off = float((work["bfloat16"]()[some].double() - wide).abs().max() / wide.abs().max())
    assert off < 2**-8, off
    return (
        work,
        f"the 8-bit product is exact; the bfloat16 product is within {off:.1e} of the largest logit",
    )


def _eight_bits(x: torch.Tensor) -> torch.Tensor:
    """(n, d) numbers, each row scaled to at most 127 and rounded, as int8."""
    return (x * (127 / x.abs().amax(1, keepdim=True))).round().to(torch.int8)


def main() -> None:
    parser = harness.arguments(__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=list(GOALS))
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    claims = []
    seconds = dict[str, list[float]]()
    rates = dict[str, float]()
    with torch.inference_mode():
        for width in args.widths:
            work, gate = products(width)
            _, taken = harness.both_times(work, args.repeats)
            claims.append(
                harness.Claim(
                    4,
                    f"product of the head, d = {width}, processor time: the most that screening in 8 bits can gain",
                    "8 bits",
                    "bfloat16",
                    harness.speedup(taken, "bfloat16", "8 bits"),
                    GOALS.get(width, 1.0),
                    gate=gate,
                    note="the head is screened in bfloat16; 8 bits would need a wider bound, more words to refine, and "
                    "the rounding of the states",
                    round=2,
                )
            )
            for name, each in taken.items():
                seconds[f"{name}, d = {width}"] = each
    work_of = {name: 2.0 * TOKENS * WORDS * int(name.rpartition(" ")[2]) for name in seconds}
    rates = {name: work_of[name] / s / 1e9 for name, s in harness.middle(seconds).items()}
    harness.report(
        "head_products",
        claims,
        seconds,
        args,
        {"giga_operations_per_second": rates, "threads": args.threads},
        harness.bars("Products of token states with all words", "10^9 operations/s", rates),
    )


if __name__ == "__main__":
    main()
