"""Exact top k of the OT part with most of the work in bfloat16.

The maximum over a text's tokens is computed for all V words in bfloat16, two to eight times as fast as in float32.
The rounding error is bounded: for a token x and a word w with their rounded copies x', w',

    |x.w - x'.w'|  <=  |x - x'| |w|  +  |x'| |w - w'|        (Cauchy and Schwarz)

where both residual norms are known exactly; the accumulation in float32 and the rounding of the result to bfloat16 add
further terms. A word whose upper bound is below the k-th largest lower bound cannot be among the top k. The remaining
candidates (about 2k) are recomputed in float32 from the unrounded weights. If there are too many candidates, as for
states that are equal in bfloat16, the whole batch is computed in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dupmae_ir.models.inference.cpu_linear import RowBlocks, pick_linear, row_blocks
from dupmae_ir.models.pooling import ot_max_packed

MOST_CANDIDATES = 8
"""Most candidates per text, as a multiple of k; with more, computing everything in float32 is cheaper."""

_ROUNDING = (
    1.01 * 2.0**-8
)  # relative error of rounding to the eight bits of bfloat16, with a margin
_SUMMING = 2.0**-23  # relative error per float32 addition, doubled for the unknown order of the sum


@dataclass(frozen=True)
class Screen:
    """The head's projection, prepared for screening."""

    weight: Tensor  #: (V, d) float32
    bias: Tensor  #: (V,) float32
    coarse: RowBlocks  #: products with the weight in bfloat16
    norms: Tensor  #: (V,) float32, the norms of w
    residuals: Tensor  #: (V,) float32, the norms of w - w'

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None) -> Screen:
        """The screen of a (V, d) projection and its (V,) bias, both float32."""
        coarse = weight.to(torch.bfloat16)
        bias = weight.new_zeros(len(weight)) if bias is None else bias
        blocks = row_blocks(coarse, pick_linear(torch.bfloat16)[0])
        return cls(weight, bias, blocks, weight.norm(dim=1), (weight - coarse.float()).norm(dim=1))


def candidates(
    screen: Screen, hidden: Tensor, counts: Sequence[int], term_mask: Tensor, k: int
) -> Tensor:
    """Every word that can be among the ``k`` largest positive ones of its text, and few others.

    Args:
        screen: the head's projection.
        hidden: (S, d) float32 states of the pooled tokens of all texts, concatenated.
        counts: number of pooled tokens of each text.
        term_mask: (V,) bool, True for the words that can have a weight.
        k: how many words are needed.

    Returns:
        (B, V) bool.
    """
    rounded = hidden.to(torch.bfloat16)
    wide = rounded.float()
    lengths = wide.norm(dim=1)
    residuals = wide.sub_(hidden).norm(dim=1)
    del wide  # as large as the input; free it before the products
    owners = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(list(counts)))
    # Of each text, (B, 1): the bound of its maximum takes the worst token.
    max_length, max_residual = (
        x.new_zeros(len(counts)).scatter_reduce_(0, owners, x, "amax").unsqueeze(1)
        for x in (lengths, residuals)
    )
    pooled = ot_max_packed(rounded, counts, screen.coarse).float()
    width = hidden.shape[1]
    # The two terms of the bound, and the accumulation; then the rounding of the result, and the addition of the bias.
    slack = (max_residual * screen.norms).addcmul_(
        max_length, screen.residuals + 2 * width * _SUMMING * screen.norms
    )
    slack.mul_(1 + _ROUNDING).add_(pooled.abs(), alpha=_ROUNDING).add_(_SUMMING * screen.bias.abs())
    pooled += screen.bias
    pooled.masked_fill_(~term_mask, -torch.inf)
    # The k-th largest lower bound.
    threshold = (pooled - slack).topk(min(k, pooled.shape[1]), dim=1).values[:, -1:]
    # In place; the pooled logits are not needed again.
    upper_bounds = pooled.add_(slack)
    return (upper_bounds >= threshold) & (upper_bounds > 0)


def refine(
    screen: Screen, hidden: Tensor, counts: Sequence[int], chosen: Tensor
) -> tuple[Tensor, Tensor]:
    """Exact maxima of the ``chosen`` (B, V) words: ids (B, c), ascending, and float32 values (B, c).

    Rows with fewer words, and texts without pooled tokens, are padded with id -1 and value -inf.
    """
    per_text = chosen.sum(1).tolist()
    ids = torch.full((len(counts), max([*per_text, 1])), -1, dtype=torch.int64)
    values = torch.full(ids.shape, -torch.inf)
    words = chosen.nonzero()[:, 1].split(per_text)
    for row, (tokens, kept) in enumerate(zip(hidden.split(list(counts)), words, strict=True)):
        if not len(tokens) or not len(kept):
            continue
        exact = torch.mm(tokens, screen.weight[kept].t()).amax(0)
        ids[row, : len(kept)] = kept
        values[row, : len(kept)] = exact.add_(screen.bias[kept])
    return ids, values
