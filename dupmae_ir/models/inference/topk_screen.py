"""The top k of the OT part from half the bits, and still exact: screen in bfloat16, prove, refine in float32.

The maximum over a text's tokens is computed for all V words in bfloat16, twice to eight times as fast as in float32.
What bfloat16 can have lost is bounded: for a token x and a word w with their rounded copies x', w',

    |x.w - x'.w'|  <=  |x - x'| |w|  +  |x'| |w - w'|        (Cauchy and Schwarz)

where both residual norms are known exactly; the accumulation in float32 and the rounding of the result to bfloat16 add
terms of their own. A word whose upper bound stays below the k-th largest lower bound cannot be among the k strongest.
The few words left (about twice k) are computed again in float32 from the unrounded weights. Where too many are left,
as for states that bfloat16 cannot tell apart, the text's batch is computed in float32 throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dupmae_ir.models.inference.cpu_linear import Pieces, in_pieces, pick_products
from dupmae_ir.models.pooling import ot_max_packed

MOST_CANDIDATES = 8
"""Refine up to this many times k words of a text; beyond, float32 throughout is cheaper."""

_ROUNDING = 1.01 * 2.0**-8  # half a unit in the last of bfloat16's eight bits, and what that is relative to
_SUMMING = 2.0**-23  # float32, with a factor two for the order of the sum


@dataclass(frozen=True)
class Screen:
    """The head's projection for screening: ``weight`` (V, d) and ``bias`` (V,) float32 as they are, ``coarse`` the
    products with it in bfloat16; ``norms`` and ``residuals`` (V,) float32, the lengths of w and of w - w'."""

    weight: Tensor
    bias: Tensor
    coarse: Pieces
    norms: Tensor
    residuals: Tensor

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None) -> Screen:
        """From the (V, d) projection and its (V,) bias, both float32."""
        coarse = weight.to(torch.bfloat16)
        none = weight.new_zeros(len(weight)) if bias is None else bias
        pieces = in_pieces(coarse, pick_products(torch.bfloat16)[0])
        return cls(weight, none, pieces, weight.norm(dim=1), (weight - coarse.float()).norm(dim=1))


def candidates(screen: Screen, hidden: Tensor, counts: Sequence[int], heard: Tensor, k: int) -> Tensor:
    """(B, V) bool: every word that can be among the ``k`` strongest positive ones of its text, and few others.

    ``hidden`` (S, d) float32: the speaking tokens of all texts end to end; ``counts``: how many each text has.
    ``heard`` (V,): words that take part.
    """
    rounded = hidden.to(torch.bfloat16)
    wide = rounded.float()
    lengths, residuals = wide.norm(dim=1), wide.sub_(hidden).norm(dim=1)
    del wide  # as large as the input, and the products come now
    longest, furthest = (_largest(x, counts).unsqueeze(1) for x in (lengths, residuals))
    found = ot_max_packed(rounded, counts, screen.coarse).float()
    width = hidden.shape[1]
    slack = (furthest * screen.norms).addcmul_(longest, screen.residuals + 2 * width * _SUMMING * screen.norms)
    slack.mul_(1 + _ROUNDING).add_(found.abs(), alpha=_ROUNDING).add_(_SUMMING * screen.bias.abs())
    found += screen.bias
    found.masked_fill_(~heard, -torch.inf)
    low = (found - slack).topk(min(k, found.shape[1]), dim=1).values[:, -1:]
    high = found.add_(slack)
    return (high >= low) & (high > 0)


def refine(screen: Screen, hidden: Tensor, counts: Sequence[int], wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Exact maxima of the ``wanted`` (B, V) words: ids (B, c) ascending, -1 where a text has fewer, and (B, c) float32
    values, -inf there. A text without a speaking token has none."""
    per_text = wanted.sum(1).tolist()
    ids = torch.full((len(counts), max([*per_text, 1])), -1, dtype=torch.int64)
    values = torch.full(ids.shape, -torch.inf)
    words = wanted.nonzero()[:, 1].split(per_text)
    for row, (tokens, chosen) in enumerate(zip(hidden.split(list(counts)), words, strict=True)):
        if not len(tokens) or not len(chosen):
            continue
        exact = torch.mm(tokens, screen.weight[chosen].t()).amax(0)
        ids[row, : len(chosen)] = chosen
        values[row, : len(chosen)] = exact.add_(screen.bias[chosen])
    return ids, values


def _largest(x: Tensor, counts: Sequence[int]) -> Tensor:
    """(S,) non-negative -> (B,): the largest of each text's, 0 for none."""
    owners = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(list(counts)))
    return x.new_zeros(len(counts)).scatter_reduce_(0, owners, x, "amax")
