"""From last hidden states to the two parts of the representation (DupMAE section 3.4, Eq. 6-7 and 10-12).

Pure arithmetic: no files, no devices, no flags; one set of functions serves pre-training, fine-tuning and
encoding. The logits of a batch, (B, L, V), are never held: the vocabulary is walked in chunks and each chunk
is pooled before the next one is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from dupmae_ir.models.inference.cpu_linear import Pieces, even, in_pieces, plain

CHUNK = 2048
"""Vocabulary rows per step: the logits of a chunk stay in the processor's cache."""

LOGITS = 1 << 23
"""Logits held at most (32 MB in float32), down to 256 vocabulary rows; beyond the cache larger steps win no time."""

PACKED_LOGITS = 1 << 20
"""The same for packed tokens, where nothing is kept for a way back: a chunk stays in the cache until it is pooled."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "log1p": lambda x: torch.log1p(torch.relu(x)),
    "none": lambda x: x,
}
"""Applied after the maximum: all are monotone, so activation(max(x)) = max(activation(x))."""


def ot_max(hidden: Tensor, speaking: Tensor, weight: Tensor, bias: Tensor | None = None, chunk: int = CHUNK) -> Tensor:
    """Strongest evidence of any ordinary token for each vocabulary word (DupMAE Eq. 6-7, mu_X).

    ``hidden`` (B, L, d) outputs of the head's transform; ``speaking`` (B, L) True on the tokens that count;
    ``weight`` (V, d) and ``bias`` (V,) of the head's projection. Returns (B, V) in ``hidden``'s dtype (under
    autocast the products run in the autocast dtype). A row without a speaking token is -inf throughout.
    The gradient flows to the strongest token alone, as torch's own maximum does.
    """
    pooled = _OTMax.apply(hidden, speaking.bool(), weight, chunk)
    # The bias is the same for every token of a text, so it can wait until after the maximum.
    return pooled if bias is None else pooled + bias.to(pooled.dtype)


class _OTMax(torch.autograd.Function):
    """Chunked projection and maximum; keeps (B, V) winners instead of (B, L, V) logits for the way back.

    The way back walks the vocabulary in chunks too: with a gradient on every word the indices alone would outweigh
    the rest.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, speaking: Tensor, weight: Tensor, chunk: int) -> Tensor:
        batch, _, width = hidden.shape
        vocabulary = weight.shape[0]
        dtype = _product_dtype(hidden)
        flat, table = hidden.to(dtype).reshape(-1, width), weight.to(dtype)
        chunk = min(chunk, max(256, LOGITS // max(1, len(flat))))
        quiet = ~speaking.unsqueeze(-1)
        pooled = hidden.new_empty(batch, vocabulary)
        train = any(ctx.needs_input_grad)
        winners = torch.empty(batch, vocabulary, dtype=torch.int64, device=hidden.device) if train else None
        for start in range(0, vocabulary, chunk):
            part = slice(start, min(start + chunk, vocabulary))
            logits = torch.mm(flat, table[part].t()).view(batch, -1, part.stop - start)
            logits.masked_fill_(quiet, -torch.inf)
            if winners is None:
                pooled[:, part] = logits.amax(1)
            else:
                best = logits.max(1)
                pooled[:, part], winners[:, part] = best.values, best.indices
        if winners is not None:
            ctx.save_for_backward(hidden, weight, winners)
        return pooled

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, Tensor | None, None]:
        hidden, weight, winners = ctx.saved_tensors
        batch, length, width = hidden.shape
        exact = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        for_hidden, for_weight = ctx.needs_input_grad[0], ctx.needs_input_grad[2]
        grad_hidden = hidden.new_zeros(batch * length, width, dtype=exact) if for_hidden else None
        grad_weight = torch.empty_like(weight) if for_weight else None
        flat = hidden.reshape(-1, width).to(exact)
        for start in range(0, weight.shape[0], CHUNK):
            part = slice(start, start + CHUNK)
            # After top-k and ReLU few of the (B, V) gradients are non-zero, so both products are sparse.
            row, word = grads[0][:, part].nonzero(as_tuple=True)
            token = row * length + winners[:, part][row, word]
            shape = (batch * length, len(weight[part]))
            value = grads[0][:, part][row, word].to(exact)
            into = torch.sparse_coo_tensor(torch.stack([token, word]), value, shape, check_invariants=False)
            if grad_hidden is not None:
                grad_hidden += torch.sparse.mm(into, weight[part].to(exact))
            if grad_weight is not None:
                grad_weight[part] = torch.sparse.mm(into.t(), flat).to(weight.dtype)
        if grad_hidden is not None:
            grad_hidden = grad_hidden.view(batch, length, width).to(hidden.dtype)
        return grad_hidden, None, grad_weight, None


def _product_dtype(x: Tensor) -> torch.dtype:
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def ot_max_plain(hidden: Tensor, speaking: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """:func:`ot_max` as the formula reads, with all (B, L, V) logits: the oracle of the tests."""
    logits = torch.nn.functional.linear(hidden, weight, bias)
    return logits.masked_fill(~speaking.bool().unsqueeze(-1), -torch.inf).amax(1)


def ot_max_packed(
    hidden: Tensor, counts: Sequence[int], weight: Tensor | Pieces, bias: Tensor | None = None, chunk: int = 0
) -> Tensor:
    """:func:`ot_max` for packed tokens, forward only.

    ``hidden`` (S, d): the speaking tokens of all texts end to end; ``counts``: how many each text has. ``weight``
    (V, d), or what :func:`~dupmae_ir.models.inference.cpu_linear.in_pieces` made of it.
    Returns (B, V); -inf for a text with none.
    """
    pieces = in_pieces(weight, plain, chunk or _rows_at_a_time(len(hidden))) if isinstance(weight, Tensor) else weight
    pooled = hidden.new_empty(len(counts), pieces[-1][0].stop)
    groups = list(runs(counts))
    rows = even(hidden)
    for part, product in pieces:
        logits = product(rows)
        row = 0
        for start, n, length in groups:
            out = pooled[row : row + n, part]
            if length:
                out.copy_(logits[start : start + n * length].view(n, length, -1).amax(1))
            else:
                out.fill_(-torch.inf)
            row += n
    return pooled if bias is None else pooled.add_(bias)


def _rows_at_a_time(tokens: int) -> int:
    return max(512, min(PACKED_LOGITS // max(1, tokens) // 64 * 64, 8192))


def runs(lengths: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Neighbours of equal length as (first token, texts, tokens each): [5, 5, 3] -> (0, 2, 5), (10, 1, 3)."""
    start = row = 0
    while row < len(lengths):
        n = 1
        while row + n < len(lengths) and lengths[row + n] == lengths[row]:
            n += 1
        yield start, n, lengths[row]
        start, row = start + n * lengths[row], row + n


def keep_top_k(weights: Tensor, k: int) -> Tensor:
    """Zero all but the ``k`` largest of each row, (B, V) -> (B, V): Eq. 11, I_d of Eq. 12; differentiable where kept.

    Ties at the border are all kept here; :func:`strongest` is the exact, ordered form for an index.
    """
    if k >= weights.shape[1]:
        return weights
    border = weights.detach().topk(k, dim=1).values[:, -1:]
    return torch.where(weights >= border, weights, torch.zeros_like(weights))


def strongest(weights: Tensor, k: int, spare: int = 64) -> tuple[Tensor, Tensor]:
    """The ``k`` largest positive entries of each row: ids (B, k) int64 and weights (B, k), weight descending,
    equal weights by ascending id; padded with id -1 and weight 0 where fewer are positive.

    Deterministic on every device: torch's own topk orders ties as it likes, so a margin of ``spare`` is
    fetched and sorted, and rows whose ties reach past the margin are sorted in full.
    """
    k = min(k, weights.shape[1])
    fetched = min(k + spare, weights.shape[1])
    values, ids = weights.topk(fetched, dim=1)
    values, ids = _by_weight_then_id(values, ids)
    if fetched < weights.shape[1]:
        open_ties = (values[:, k - 1] == values[:, -1]) & (values[:, k - 1] > 0)
        for row in open_ties.nonzero().flatten().tolist():
            full, order = weights[row].sort(descending=True, stable=True)
            values[row], ids[row] = full[:fetched], order[:fetched]
    values, ids = values[:, :k], ids[:, :k]
    absent = ~(values > 0)
    return ids.masked_fill(absent, -1), values.masked_fill(absent, 0)


def _by_weight_then_id(values: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    by_id = ids.argsort(dim=1)
    values, ids = values.gather(1, by_id), ids.gather(1, by_id)
    order = values.argsort(dim=1, descending=True, stable=True)
    return values.gather(1, order), ids.gather(1, order)
