"""Token masks for pre-training: whole words, keywords, one mask per row (RetroMAE Eq. 7), and the replaced ids.

The loops are compiled with numba. They read padded rows ``[CLS] pieces [SEP] padding`` and share these arguments:

- ``continues`` (B, L) bool: True where a piece continues the word before it.
- ``lengths`` (B,) int: tokens of each row, both special tokens included; at most L.
- ``seeds`` (B,) uint64: one random stream per row and use, from :func:`seeds_for`.

A row's result depends on its own seed and tokens only, so it does not change with the batch it is in, the number of
workers or a resumption. Special tokens and padding are never masked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dupmae_ir.errors import UsageError

MAX_MASKED = 512
"""Most tokens that one mask covers, as in transformers' whole-word collator."""
MASKS_PER_TEXT = 256
"""Masks drawn for one text in enhanced decoding; its rows share them, as in the released code."""
IGNORED = -100

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bits = NDArray[np.uint64]
"""64 positions per element, lowest bit first; also seeds."""

# Constants of splitmix64. They are uint64, because numba turns a mix of uint64 and int into float64.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S30 = np.uint64(30)
_S27 = np.uint64(27)
_S31 = np.uint64(31)
_S33 = np.uint64(33)
_ALL_BITS = np.uint64(0xFFFFFFFFFFFFFFFF)

_BYTES = np.arange(256, dtype=np.uint8)[:, None]
_BYTE_BITS = np.unpackbits(_BYTES, axis=1, bitorder="little").view(np.uint64).ravel()
"""Lookup table: the eight bits of a byte as eight bytes."""


def seeds_for(seed: int, draws: np.ndarray, use: str | int) -> Bits:
    """(B,) uint64: an independent random stream for each combination of run ``seed``, draw number and ``use``."""
    key = hashlib.blake2b(f"{seed} {use}".encode(), digest_size=8).digest()
    start = np.frombuffer(key, np.uint64)
    return _mixed(_mixed(start) ^ (np.asarray(draws).astype(np.uint64) * _GOLDEN))


def word_mask(
    continues: np.ndarray,
    lengths: np.ndarray,
    ratio: float,
    seeds: np.ndarray,
    count_special: bool = True,
) -> Bools:
    """Mask whole words, drawn uniformly until the budget is reached: (B, L) bool, True = masked.

    A word that would exceed the budget is skipped. The budget is ``ratio`` of the tokens, rounded half to even, at
    least 1 and at most :data:`MAX_MASKED`. With ``count_special`` it is a share of all tokens including [CLS] and [SEP]
    (RetroMAE's code), otherwise of the ordinary tokens only (MASTER's code). Raises :class:`UsageError` for a ratio
    outside (0, 1).
    """
    lengths, seeds = _check_rows(continues, lengths, seeds)
    budgets = _budgets(lengths, ratio, count_special)
    masked = np.zeros(continues.shape, np.bool_)
    _mask_words(continues, lengths, budgets, seeds, masked)
    return masked


def complement(masked: np.ndarray, lengths: np.ndarray) -> Bools:
    """(B, L) bool: the ordinary tokens that are not ``masked`` (MASTER's complementary mask)."""
    position = np.arange(masked.shape[1])
    return ~masked & (position > 0) & (position < np.asarray(lengths)[:, None] - 1)


def keyword_mask(
    continues: np.ndarray, lengths: np.ndarray, weights: np.ndarray, ratio: float, seeds: np.ndarray
) -> Bools:
    """Mask words drawn without replacement in proportion to their weights: (B, L) bool, True = masked.

    Words are drawn until ``ratio`` of the ordinary tokens is masked; the last word may exceed it (MASTER's keyword
    mask). ``weights`` (B, L) float32 contains a word's weight at its first piece. Words of weight 0 are drawn last, in
    random order.
    """
    lengths, seeds = _check_rows(continues, lengths, seeds)
    if weights.shape != continues.shape:
        raise ValueError(f"weights have shape {weights.shape}, pieces {continues.shape}")
    masked = np.zeros(continues.shape, np.bool_)
    budgets = _budgets(lengths, ratio, count_special=False)
    _mask_keywords(continues, lengths, weights.astype(np.float64), budgets, seeds, masked)
    return masked


def position_masks(
    continues: np.ndarray,
    lengths: np.ndarray,
    ratio: float,
    seeds: np.ndarray,
    distinct: int = MASKS_PER_TEXT,
    bits: bool = False,
) -> np.ndarray:
    """Attention masks of enhanced decoding, one per row (RetroMAE Eq. 7): (B, L, L) bool, True = visible.

    A text of n tokens has min(n, ``distinct``) whole-word masks. Each row uses one of them, chosen at random, and never
    sees its own position. All rows but the first see column 0. Rows and columns of padding are False.

    With ``bits`` the result is packed, (B, L, ceil(L / 8)) uint8, lowest bit first.
    """
    lengths, seeds = _check_rows(continues, lengths, seeds)
    if distinct < 1:
        raise UsageError(
            f"the number of distinct masks per text must be at least 1, got {distinct}"
        )
    batch, length = continues.shape
    packed = np.zeros((batch, length, (length + 63) // 64), np.uint64)
    budgets = _budgets(lengths, ratio, count_special=True)
    _position_bits(continues, lengths, budgets, seeds, distinct, packed)

    bitmaps = packed.view(np.uint8)
    byte_count = (length + 7) // 8
    if bits:
        return np.ascontiguousarray(bitmaps[:, :, :byte_count])
    visible = np.empty((batch, length, byte_count), np.uint64)
    _spread_bits(bitmaps, _BYTE_BITS, visible)
    return np.ascontiguousarray(visible.view(np.bool_)[:, :, :length])


def corrupt(
    ids: np.ndarray,
    masked: np.ndarray,
    seeds: np.ndarray,
    mask_id: int,
    vocabulary_size: int,
    replace: Sequence[float] = (0.8, 0.1, 0.1),
) -> tuple[np.ndarray, Ints]:
    """Replace the ``masked`` ids and return (new ids, labels), both (B, L) int64.

    A masked id becomes [MASK], a random id below ``vocabulary_size``, or stays, with the probabilities ``replace``.
    Labels are the original ids at masked positions and :data:`IGNORED` elsewhere. ``ids`` is (B, L) int64, ``masked``
    (B, L) bool, ``seeds`` (B,) uint64: one for each row, so a row is corrupted alike in any batch. Raises
    :class:`UsageError` for probabilities that are not three that add up to 1, :class:`ValueError` for other shapes.
    """
    if len(replace) != 3 or min(replace) < 0 or not abs(sum(replace) - 1) <= 1e-6:  # NaN fails too
        raise UsageError(
            f"the shares of [MASK], random and unchanged tokens must be three numbers of 0 or more that add up to 1, "
            f"got {tuple(replace)}"
        )
    _, seeds = _check_rows(ids, np.full(len(ids), ids.shape[1]), seeds)
    if masked.shape != ids.shape:
        raise ValueError(f"masked has shape {masked.shape}, ids {ids.shape}")
    share_mask, share_random, _ = map(float, replace)
    corrupted = ids.copy()
    labels = np.full(ids.shape, IGNORED, np.int64)
    _replace_in_place(
        corrupted, labels, masked, seeds, mask_id, vocabulary_size, share_mask, share_random
    )
    return corrupted, labels


def _budgets(lengths: np.ndarray, ratio: float, count_special: bool) -> Ints:
    """(B,) int64: the number of tokens to mask in each row."""
    if not 0 < ratio < 1:
        raise UsageError(
            f"the mask ratio must be above 0 and below 1 (for example 0.3), got {ratio:g}"
        )
    uncounted = 0 if count_special else 2  # [CLS] and [SEP]
    counted = np.asarray(lengths) - uncounted
    return np.clip(np.rint(counted * ratio), 1, MAX_MASKED).astype(np.int64)


def _check_rows(rows: np.ndarray, lengths: np.ndarray, seeds: np.ndarray) -> tuple[Ints, Bits]:
    """Lengths as int64 and seeds as uint64. Shapes are checked because compiled loops do not check bounds."""
    lengths = np.ascontiguousarray(lengths, np.int64)
    seeds = np.ascontiguousarray(seeds, np.uint64)
    if not lengths.shape == seeds.shape == rows.shape[:1]:
        raise ValueError(
            f"lengths have shape {lengths.shape} and seeds {seeds.shape}, rows {rows.shape}"
        )
    if len(lengths) and not 0 <= lengths.min() <= lengths.max() <= rows.shape[1]:
        raise ValueError(
            f"rows have {lengths.min()} to {lengths.max()} tokens, but a width of {rows.shape[1]}"
        )
    return lengths, seeds


def _mixed(x: Bits) -> Bits:
    """splitmix64's finaliser, as :func:`_random` but over arrays."""
    x = (x ^ (x >> _S30)) * _MIX_1
    x = (x ^ (x >> _S27)) * _MIX_2
    return x ^ (x >> _S31)


@njit(cache=True, nogil=True, inline="always")
def _random(state: np.uint64) -> np.uint64:
    """splitmix64 of a state that the caller advances by the golden ratio."""
    z = (state ^ (state >> _S30)) * _MIX_1
    z = (z ^ (z >> _S27)) * _MIX_2
    return z ^ (z >> _S31)


@njit(cache=True, nogil=True, inline="always")
def _below(state: np.uint64, bound: int) -> np.int64:
    """An integer in [0, bound): 31 random bits scaled, with a bias of at most bound / 2^31."""
    return (np.int64(_random(state) >> _S33) * bound) >> 31


@njit(cache=True, nogil=True)
def _words(continues: Bools, length: int, start: Ints, size: Ints) -> int:
    """Fill in the first position and the size of each word between the special tokens; returns the number of words."""
    count = 0
    for i in range(1, length - 1):
        if continues[i] and count > 0:
            size[count - 1] += 1
        else:
            start[count] = i
            size[count] = 1
            count += 1
    return count


@njit(cache=True, nogil=True)
def _mask_words(continues: Bools, lengths: Ints, budgets: Ints, seeds: Bits, masked: Bools) -> None:
    batch, max_length = continues.shape
    start = np.empty(max_length, np.int64)
    size = np.empty(max_length, np.int64)
    order = np.empty(max_length, np.int64)
    for b in range(batch):
        count = _words(continues[b], lengths[b], start, size)
        for i in range(count):
            order[i] = i
        state = seeds[b]
        budget = budgets[b]
        # A Fisher-Yates shuffle that stops when the budget is reached.
        i = 0
        while budget > 0 and i < count:
            state += _GOLDEN
            k = i + _below(state, count - i)
            word = order[k]
            # order[i] is not read again, so the drawn word need not be stored there.
            order[k] = order[i]
            i += 1
            if size[word] <= budget:
                budget -= size[word]
                for z in range(start[word], start[word] + size[word]):
                    masked[b, z] = True


@njit(cache=True, nogil=True)
def _mask_keywords(
    continues: Bools, lengths: Ints, weights: Floats, budgets: Ints, seeds: Bits, masked: Bools
) -> None:
    batch, max_length = continues.shape
    start = np.empty(max_length, np.int64)
    size = np.empty(max_length, np.int64)
    for b in range(batch):
        count = _words(continues[b], lengths[b], start, size)
        # Sorting by exponential waiting times draws in proportion to the weights without replacement.
        waits = np.empty(count, np.float64)
        state = seeds[b]
        for i in range(count):
            state += _GOLDEN
            # 53 random bits over 2^53; half a step more, so that the logarithm is finite.
            uniform = (np.float64(_random(state) >> np.uint64(11)) + 0.5) / 9007199254740992.0
            # A word of weight 0 waits longest, but among such words the order is still random.
            waits[i] = -np.log(uniform) / max(weights[b, start[i]], 1e-100)
        budget = budgets[b]
        for word in np.argsort(waits):
            if budget <= 0:
                break
            budget -= size[word]
            for z in range(start[word], start[word] + size[word]):
                masked[b, z] = True


@njit(cache=True, nogil=True)
def _position_bits(
    continues: Bools, lengths: Ints, budgets: Ints, seeds: Bits, distinct: int, out: Bits
) -> None:
    """Fill in the visible positions of each row, (B, L, ceil(L / 64)) uint64 that the caller has set to 0."""
    batch, max_length = continues.shape
    width = out.shape[2]
    # Allocated once, and overwritten by every text.
    start = np.empty(max_length, np.int64)
    size = np.empty(max_length, np.int64)
    chunk = np.empty(max_length, np.int64)
    keep = np.empty((max_length, 2), np.uint64)
    mask_of = np.empty(max_length, np.int64)
    used = np.empty(min(max_length, distinct), np.bool_)
    pool = np.empty((min(max_length, distinct), width), np.uint64)
    for b in range(batch):
        length = lengths[b]
        count = _words(continues[b], length, start, size)
        _word_bits(start, size, count, chunk, keep)
        state = _assign(length, min(length, distinct), seeds[b], mask_of, used)
        _draw_pool(
            length,
            start,
            size,
            count,
            chunk,
            keep,
            budgets[b],
            state,
            used[: min(length, distinct)],
            pool,
        )
        for row in range(length):
            mask = pool[mask_of[row]]
            for w in range(width):
                out[b, row, w] = mask[w]
            out[b, row, row >> 6] &= ~_bit(row)


@njit(cache=True, nogil=True)
def _word_bits(start: Ints, size: Ints, count: int, chunk: Ints, keep: Bits) -> None:
    """For each word: the element that contains its first bit, and that element and the next with its bits cleared.

    Two elements hold the first 64 positions of a word; :func:`_draw_pool` clears those of a longer word one by one.
    """
    for word in range(count):
        chunk[word] = start[word] >> 6
        keep[word, 0] = _ALL_BITS
        keep[word, 1] = _ALL_BITS
        for z in range(start[word], start[word] + min(size[word], 64)):
            keep[word, (z >> 6) - chunk[word]] &= ~_bit(z)


@njit(cache=True, nogil=True)
def _assign(length: int, masks: int, state: np.uint64, mask_of: Ints, used: Bools) -> np.uint64:
    """Choose each row's mask before any mask is drawn, so that unused ones are skipped; returns the new state."""
    used[:masks] = False
    for row in range(length):
        state += _GOLDEN
        mask_of[row] = _below(state, masks)
        used[mask_of[row]] = True
    return state


@njit(cache=True, nogil=True)
def _draw_pool(
    length: int,
    start: Ints,
    size: Ints,
    count: int,
    chunk: Ints,
    keep: Bits,
    budget: int,
    state: np.uint64,
    used: Bools,
    pool: Bits,
) -> None:
    """Draw the masks that are ``used``, as bits of visible positions."""
    all_visible = np.zeros(pool.shape[1], np.uint64)
    for z in range(length):
        all_visible[z >> 6] |= _bit(z)
    order = np.arange(count).astype(np.int32)
    for m in range(len(used)):
        if not used[m]:
            continue
        mask = pool[m]
        for w in range(len(all_visible)):
            mask[w] = all_visible[w]
        remaining = budget
        i = 0
        # A partial shuffle is uniform from any starting order, so the last one is reused. Unlike in _mask_words, the
        # drawn word must therefore stay in the order.
        while remaining > 0 and i < count:
            state += _GOLDEN
            k = i + _below(state, count - i)
            word = order[k]
            order[k] = order[i]
            order[i] = word
            i += 1
            if size[word] <= remaining:
                remaining -= size[word]
                mask[chunk[word]] &= keep[word, 0]
                # Only a word that crosses the boundary has a second element; it may not exist otherwise.
                if keep[word, 1] != _ALL_BITS:
                    mask[chunk[word] + 1] &= keep[word, 1]
                for z in range(start[word] + 64, start[word] + size[word]):
                    mask[z >> 6] &= ~_bit(z)


@njit(cache=True, nogil=True, inline="always")
def _bit(position: int) -> np.uint64:
    return np.uint64(1) << np.uint64(position & 63)


@njit(cache=True, nogil=True)
def _spread_bits(bitmaps: NDArray[np.uint8], byte_bits: Bits, out: Bits) -> None:
    """(B, L, bytes) bits -> (B, L, bytes) uint64, each element eight bools."""
    batch, length, width = out.shape
    for b in range(batch):
        for row in range(length):
            for w in range(width):
                out[b, row, w] = byte_bits[bitmaps[b, row, w]]


@njit(cache=True, nogil=True)
def _replace_in_place(
    ids: Ints,
    labels: Ints,
    masked: Bools,
    seeds: Bits,
    mask_id: int,
    vocabulary_size: int,
    share_mask: float,
    share_random: float,
) -> None:
    batch, length = ids.shape
    for b in range(batch):
        state = seeds[b]
        for i in range(length):
            if not masked[b, i]:
                continue
            labels[b, i] = ids[b, i]
            state += _GOLDEN
            # 53 random bits over 2^53: in [0, 1).
            chance = np.float64(_random(state) >> np.uint64(11)) / 9007199254740992.0
            if chance < share_mask:
                ids[b, i] = mask_id
            elif chance < share_mask + share_random:
                state += _GOLDEN
                ids[b, i] = _below(state, vocabulary_size)
