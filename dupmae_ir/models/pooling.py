"""Max pooling of vocabulary logits and top-k selection (DupMAE section 3.4, Eq. 6-7, 11 and 12).

Pure arithmetic without files, devices or flags, shared by pre-training, fine-tuning and encoding. The logits of a
batch, (B, L, V), are never materialised: they are computed in chunks of the vocabulary, and each chunk is pooled before
the next is computed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from dupmae_ir.device import to_device
from dupmae_ir.models.inference.cpu_linear import RowBlocks, pad_rows, row_blocks, torch_linear

CHUNK = 2048
"""Vocabulary rows per step; the logits of a chunk fit the processor's cache."""

LOGITS = 1 << 23
"""Most logits held at once (32 MB in float32), but at least 256 vocabulary rows; larger steps are not faster."""

PACKED_LOGITS = 1 << 20
"""The same for packed tokens, which have no backward pass: a chunk stays in the cache until it is pooled."""

CACHED = 1 << 20
"""Logits that are compared with their maximum while they are in the cache."""

DEVICE_LOGITS = 1 << 29
"""The same on an accelerator: a gigabyte in half precision."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "log1p": lambda x: torch.log1p(torch.relu(x)),
    "log1p-log1p": lambda x: torch.log1p(torch.log1p(torch.relu(x))),
    "none": lambda x: x,
}
"""Applied after the maximum; all are monotone, so activation(max(x)) = max(activation(x))."""


def ot_max(
    hidden: Tensor, mask: Tensor, weight: Tensor, bias: Tensor | None = None, chunk: int = CHUNK
) -> Tensor:
    """Maximum over the pooled tokens of each vocabulary logit (DupMAE Eq. 6-7, mu_X).

    The gradient goes to the token with the maximum, as in ``torch.max``.

    Args:
        hidden: (B, L, d) outputs of the head's transform.
        mask: (B, L), True for the tokens to pool.
        weight: (V, d) projection of the head.
        bias: (V,) bias of the head.
        chunk: most vocabulary rows per step.

    Returns:
        (B, V) in the dtype of ``hidden`` (under autocast the products run in the autocast dtype); a row without a
        pooled token is -inf.
    """
    pooled = _OTMax.apply(hidden, mask.bool(), weight, chunk)
    # The bias is the same for every token of a text, so it can be added after the maximum.
    return pooled if bias is None else pooled + bias.to(pooled.dtype)


class _OTMax(torch.autograd.Function):
    """Chunked projection and maximum; saves (B, V) argmax positions instead of (B, L, V) logits for the backward pass.

    The backward pass is chunked as well: with a gradient on every word, the indices alone would take the most memory.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, mask: Tensor, weight: Tensor, chunk: int) -> Tensor:
        batch, length, _ = hidden.shape
        vocabulary = weight.shape[0]
        dtype = product_dtype(hidden)
        # Only pooled tokens are projected.
        rows = mask.flatten().nonzero()[:, 0]
        tokens = hidden.flatten(0, 1)[rows].to(dtype)
        table = weight.to(dtype)
        chunk = min(chunk, max(256, LOGITS // max(1, batch * length)))
        logits = tokens.new_full((batch * length, chunk), -torch.inf)  # other rows stay so
        pooled = hidden.new_empty(batch, vocabulary)
        # The token with the maximum, which alone gets a gradient.
        winners = None
        if any(ctx.needs_input_grad):
            winners = pooled.new_empty(pooled.shape, dtype=torch.int32)
        for start in range(0, vocabulary, chunk):
            part = slice(start, min(start + chunk, vocabulary))
            logits[rows, : part.stop - start] = torch.mm(tokens, table[part].t())
            by_text = logits[:, : part.stop - start].view(batch, length, -1)
            if winners is None:
                pooled[:, part] = by_text.amax(1)
            else:
                pooled[:, part], winners[:, part] = max_and_position(by_text)
        if winners is not None:
            ctx.save_for_backward(hidden, weight, winners)
        return pooled

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, Tensor | None, None]:
        hidden, weight, winners = ctx.saved_tensors
        batch, length, width = hidden.shape
        exact = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        for_hidden, _, for_weight, _ = ctx.needs_input_grad
        grad_hidden = hidden.new_zeros(batch * length, width, dtype=exact) if for_hidden else None
        grad_weight = torch.empty_like(weight) if for_weight else None
        flat = hidden.reshape(-1, width).to(exact)
        for start in range(0, weight.shape[0], CHUNK):
            part = slice(start, start + CHUNK)
            # After top-k and ReLU few of the (B, V) gradients are non-zero, so both products are sparse.
            row, word = grads[0][:, part].nonzero(as_tuple=True)
            token = row * length + winners[:, part][row, word].long()
            shape = (batch * length, len(weight[part]))
            value = grads[0][:, part][row, word].to(exact)
            into = torch.sparse_coo_tensor(
                torch.stack([token, word]), value, shape, check_invariants=False
            )
            if grad_hidden is not None:
                grad_hidden += torch.sparse.mm(into, weight[part].to(exact))
            if grad_weight is not None:
                grad_weight[part] = torch.sparse.mm(into.t(), flat).to(weight.dtype)
        if grad_hidden is not None:
            grad_hidden = grad_hidden.view(batch, length, width).to(hidden.dtype)
        return grad_hidden, None, grad_weight, None


def max_and_position(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The maximum (B, C) over L of (B, L, C) ``logits``, and the last L at which it is.

    As ``logits.max(1)``, which takes up to twice as long on a CPU, since it cannot compute several numbers at a time.
    """
    batch, length, width = logits.shape
    if logits.device.type != "cpu" or length > torch.iinfo(torch.int16).max:
        found = logits.max(1)
        return found.values, found.indices
    values = logits.new_empty(batch, width)
    positions = torch.empty(batch, width, dtype=torch.int16)
    numbers = torch.arange(length, dtype=torch.int16).unsqueeze(1)
    texts = max(1, CACHED // max(1, length * width))
    for start in range(0, batch, texts):
        part = slice(start, start + texts)
        best = logits[part].amax(1, keepdim=True)
        values[part] = best.squeeze(1)
        positions[part] = ((logits[part] == best) * numbers).amax(1)
    return values, positions


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which autocast, if it is on, computes products with ``x``."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return x.dtype


def ot_sum(
    hidden: Tensor, mask: Tensor, head: tuple[Tensor, Tensor | None], activation: str
) -> Tensor:
    """Sum over the pooled tokens of the activation of each vocabulary logit, as in the first SPLADE; differentiable.

    Args:
        hidden: (B, L, d) outputs of the head's transform.
        mask: (B, L), True for the tokens to pool.
        head: (V, d) projection and (V,) bias of the head.
        activation: a key of :data:`ACTIVATIONS`.

    Returns:
        (B, V).
    """
    weight, bias = head
    chunk = min(CHUNK, max(256, LOGITS // max(1, mask.numel())))
    activate = ACTIVATIONS[activation]
    excluded = ~mask.bool().unsqueeze(-1)
    sums = []
    for start in range(0, len(weight), chunk):
        part = slice(start, start + chunk)
        part_bias = None if bias is None else bias[part]
        logits = torch.nn.functional.linear(hidden, weight[part], part_bias)
        sums.append(activate(logits).masked_fill(excluded, 0.0).sum(1))
    return torch.cat(sums, 1)


def token_max(logits: Tensor, ids: Tensor, mask: Tensor, terms: int) -> Tensor:
    """Maximum over equal tokens of one logit for each token (the lexical part of BGE-M3); differentiable.

    Args:
        logits: (B, L).
        ids: (B, L) the token of each.
        mask: (B, L), True for the tokens to pool.
        terms: V, the size of the vocabulary.

    Returns:
        (B, V); -inf for terms without a pooled token.
    """
    absent = logits.new_full((len(logits), terms), -torch.inf)
    return absent.scatter_reduce(1, ids, logits.masked_fill(~mask.bool(), -torch.inf), "amax")


def strongest_tokens(
    weights: Tensor, ids: Tensor, counts: Sequence[int], k: int
) -> tuple[Tensor, Tensor]:
    """:func:`strongest` of the maximum over equal tokens, for packed tokens: no (B, V) weights are made.

    Args:
        weights: (S,) of the pooled tokens of all texts, concatenated.
        ids: (S,) the token of each.
        counts: number of pooled tokens of each text.
        k: weights kept of each text.

    Returns:
        Ids and weights, (B, k) or fewer columns.
    """
    # Padded to (B, L): which entries of a row are tokens of its text.
    lengths = torch.tensor(list(counts)).unsqueeze(1)
    inside = torch.arange(max(1, int(lengths.max()))) < lengths
    positions = to_device(inside.flatten().nonzero()[:, 0], ids.device)

    # Sorted by term, then by weight descending; padding comes last.
    by_term = ids.new_full(inside.shape, _LAST << 32 | _LAST)
    by_term.view(-1)[positions] = (ids << 32) + _LAST - _bits(weights)
    by_term = by_term.sort(1).values
    terms = by_term >> 32
    bits = _LAST - (by_term & _LAST)

    # The first of equal terms has the maximum.
    repeated = torch.nn.functional.pad(terms[:, 1:] == terms[:, :-1], (1, 0))
    keys = (bits << 32) + _LAST - terms
    return _decode(keys.masked_fill_(repeated, 0), k)


def ot_max_packed(
    hidden: Tensor,
    counts: Sequence[int],
    weight: Tensor | RowBlocks,
    bias: Tensor | None = None,
    chunk: int = 0,
) -> Tensor:
    """:func:`ot_max` for packed tokens, forward only.

    Args:
        hidden: (S, d) states of the pooled tokens of all texts, concatenated.
        counts: number of pooled tokens of each text.
        weight: (V, d), or its blocks (:func:`~dupmae_ir.models.inference.cpu_linear.row_blocks`).
        bias: (V,).
        chunk: vocabulary rows per step; 0 = chosen by the number of tokens.

    Returns:
        (B, V); -inf for a text without pooled tokens.
    """
    if isinstance(weight, Tensor):
        max_logits = PACKED_LOGITS if hidden.is_cpu else DEVICE_LOGITS
        rows_per_step = max_logits // max(1, len(hidden)) // 64 * 64
        blocks = row_blocks(weight, torch_linear, chunk or max(512, min(rows_per_step, 8192)))
    else:
        blocks = weight
    last_part, _ = blocks[-1]
    pooled = hidden.new_full((len(counts), last_part.stop), -torch.inf)
    groups = list(runs(counts))
    rows = pad_rows(hidden)
    lengths = None
    if not hidden.is_cpu:
        lengths = to_device(torch.tensor(list(counts)), hidden.device)
    for part, linear in blocks:
        logits = linear(rows)
        if lengths is not None:
            pooled[:, part] = torch.segment_reduce(logits, "max", lengths=lengths, unsafe=True)
            continue
        row = 0
        for start, n, length in groups:
            if length:
                by_text = logits[start : start + n * length].view(n, length, -1)
                pooled[row : row + n, part] = by_text.amax(1)
            row += n
    if bias is None:
        return pooled
    return pooled.add_(bias)


def runs(lengths: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Runs of texts of equal length as (first token, texts, tokens each): [5, 5, 3] -> (0, 2, 5), (10, 1, 3)."""
    start = 0
    for length, texts in itertools.groupby(lengths):
        count = len(list(texts))
        yield start, count, length
        start += count * length


def keep_top_k(weights: Tensor, k: int) -> Tensor:
    """(B, V) -> (B, V) with all but the ``k`` largest weights of each row set to zero (Eq. 11); differentiable.

    All weights equal to the k-th largest are kept; :func:`strongest` returns exactly ``k``, in order.
    """
    if k >= weights.shape[1]:
        return weights
    kth = weights.detach().topk(k, dim=1).values[:, -1:]
    return torch.where(weights >= kth, weights, torch.zeros_like(weights))


def strongest(weights: Tensor, k: int, spare: int = 64) -> tuple[Tensor, Tensor]:
    """The ``k`` largest positive weights of each row: ids (B, k) int64 and weights (B, k) float32.

    Sorted by weight descending, then by id ascending; padded with id -1 and weight 0 if fewer are positive.
    Deterministic on every device: the order of ties in ``torch.topk`` is undefined, so weights and ids are sorted as
    one number. On a CPU only ``spare`` more weights are fetched, and rows with ties beyond these are sorted in full.
    """
    weights = weights.float()
    width = weights.shape[1]
    if weights.is_cpu:
        fetched = min(k + spare, width)
        values, ids = weights.topk(fetched, dim=1)
    else:
        # All of them, since looking for ties would wait for the device.
        fetched = width
        values = weights
        ids = torch.arange(width, device=weights.device)
    if fetched < width:
        # The k-th weight ties with the last one that was fetched, so it may tie with others.
        unresolved = (values[:, k - 1] == values[:, -1]) & (values[:, k - 1] > 0)
        for row in unresolved.nonzero().flatten().tolist():
            full, order = weights[row].sort(descending=True, stable=True)
            values[row] = full[:fetched]
            ids[row] = order[:fetched]
    return _decode((_bits(values) << 32) + _LAST - ids, k)


_LAST = (1 << 31) - 1


def _bits(weights: Tensor) -> Tensor:
    """int64 numbers in the order of float32 weights; 0 for those that are not positive."""
    return torch.where(weights > 0, weights, 0.0).float().view(torch.int32).long()


def _decode(keys: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Ids and weights of the ``k`` largest keys of each row: bits of a weight, then _LAST minus its id."""
    keys = keys.topk(min(k, keys.shape[1]), dim=1).values
    weights = (keys >> 32).int().view(torch.float32)
    return (_LAST - (keys & _LAST)).masked_fill(weights == 0, -1), weights


def at_least_float32(x: Tensor) -> Tensor:
    """``x``, in float32 if it is in a half-precision dtype."""
    if x.dtype in (torch.float16, torch.bfloat16):
        return x.float()
    return x
