"""Drawing masks: whole words, keywords, one mask per row (RetroMAE Eq. 7), and what stands in a hidden place.

Compiled loops over padded rows ``[CLS] pieces [SEP] padding``. Every row has a seed of its own and its result depends
on nothing else, so neither the company of a batch nor workers nor a resumption change it. Everywhere: ``continues``
(B, L) bool, True where a piece continues the word before it; ``lengths`` (B,) tokens of each row, both specials
counted, at most L; specials and padding are never hidden; ``seeds`` (B,) uint64, of which every use of a row needs one
of its own: :func:`seeds_for`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit

from dupmae_ir.errors import UsageError

MOST = 512
"""Most tokens that one mask hides, as in transformers' whole-word collator."""
DISTINCT = 256
"""Masks drawn for one text; its rows share them, as released."""
IGNORED = -100

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S33 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(33)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_SPREAD = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little").view(np.uint64).ravel()
"""The eight bits of a byte as eight bytes."""


def seeds_for(seed: int, draws: np.ndarray, use: str | int) -> np.ndarray:
    """(B,) uint64: a stream of its own for every run ``seed``, draw number and ``use``."""
    start = np.frombuffer(hashlib.blake2b(f"{seed} {use}".encode(), digest_size=8).digest(), np.uint64)
    return _mixed(_mixed(start) ^ (np.asarray(draws).astype(np.uint64) * _GOLDEN))


def word_mask(
    continues: np.ndarray, lengths: np.ndarray, ratio: float, seeds: np.ndarray, count_special: bool = True
) -> np.ndarray:
    """(B, L) bool, True = hidden: whole words drawn uniformly until the budget is reached; a word that would exceed
    it is passed over. The budget is the rounded share of the tokens, at least 1 and at most :data:`MOST`; the
    specials count in it with ``count_special`` (RetroMAE's code; MASTER's does not)."""
    lengths, seeds = _checked(continues, lengths, seeds)
    hidden = np.zeros(continues.shape, np.bool_)
    _hide_words(continues, lengths, _budgets(lengths, ratio, count_special), seeds, hidden)
    return hidden


def complement(hidden: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """(B, L) bool: the other ordinary tokens (MASTER's complementary mask)."""
    place = np.arange(hidden.shape[1])
    return ~hidden & (place > 0) & (place < np.asarray(lengths)[:, None] - 1)


def keyword_mask(
    continues: np.ndarray, lengths: np.ndarray, weights: np.ndarray, ratio: float, seeds: np.ndarray
) -> np.ndarray:
    """(B, L) bool: words drawn one after the other in proportion to their weight until the rounded share of ordinary
    tokens is hidden; the last word may overshoot (MASTER's keyword mask). ``weights`` (B, L) float32 holds a word's
    weight at its first piece; words that weigh nothing come last, in random order."""
    lengths, seeds = _checked(continues, lengths, seeds)
    if weights.shape != continues.shape:
        raise ValueError(f"weights {weights.shape} of pieces {continues.shape}")
    hidden = np.zeros(continues.shape, np.bool_)
    budgets = _budgets(lengths, ratio, count_special=False)
    _hide_keywords(continues, lengths, weights.astype(np.float64), budgets, seeds, hidden)
    return hidden


def position_masks(
    continues: np.ndarray,
    lengths: np.ndarray,
    ratio: float,
    seeds: np.ndarray,
    distinct: int = DISTINCT,
    bits: bool = False,
) -> np.ndarray:
    """(B, L, L) bool, True = visible; or its bits, (B, L, ceil(L / 8)) uint8, lowest first (RetroMAE Eq. 7).

    A text of n tokens has min(n, ``distinct``) whole-word masks; each row takes one of them at random and never sees
    itself. All rows but the first see column 0. Rows and columns of padding are False.
    """
    lengths, seeds = _checked(continues, lengths, seeds)
    if distinct < 1:
        raise UsageError(f"{distinct} distinct masks for a text: wants at least 1")
    batch, length = continues.shape
    packed = np.zeros((batch, length, (length + 63) // 64), np.uint64)
    budgets = _budgets(lengths, ratio, count_special=True)
    _position_bits(continues, lengths, budgets, seeds, distinct, packed)
    rows = packed.view(np.uint8)
    if bits:
        return np.ascontiguousarray(rows[:, :, : (length + 7) // 8])
    visible = np.empty((batch, length, (length + 7) // 8), np.uint64)
    _spread(rows, _SPREAD, visible)
    return np.ascontiguousarray(visible.view(np.bool_)[:, :, :length])


def corrupt(
    ids: np.ndarray,
    hidden: np.ndarray,
    seeds: np.ndarray,
    mask_id: int,
    vocabulary_size: int,
    replace: Sequence[float] = (0.8, 0.1, 0.1),
) -> tuple[np.ndarray, np.ndarray]:
    """(ids with hidden places replaced, labels), both (B, L) int64: [MASK], a random id below ``vocabulary_size`` or
    the same id with the shares of ``replace``; labels are the original ids there and :data:`IGNORED` elsewhere."""
    if len(replace) != 3 or min(replace) < 0 or not abs(sum(replace) - 1) <= 1e-6:  # not a number fails, too
        raise UsageError(f"shares of [MASK], random and unchanged tokens {tuple(replace)} must be 3 that add up to 1")
    _, seeds = _checked(ids, np.full(len(ids), ids.shape[1]), seeds)
    if hidden.shape != ids.shape:
        raise ValueError(f"hidden {hidden.shape} of ids {ids.shape}")
    out, labels = ids.copy(), np.full(ids.shape, IGNORED, np.int64)
    _replace(out, labels, hidden, seeds, mask_id, vocabulary_size, float(replace[0]), float(replace[1]))
    return out, labels


def _budgets(lengths: np.ndarray, ratio: float, count_special: bool) -> np.ndarray:
    if not 0 < ratio < 1:
        raise UsageError(f"mask ratio {ratio:g}: wants a share above 0 and below 1, for example 0.3")
    counted = np.asarray(lengths) - (0 if count_special else 2)
    return np.clip(np.rint(counted * ratio), 1, MOST).astype(np.int64)


def _checked(rows: np.ndarray, lengths: np.ndarray, seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(int64 lengths, uint64 seeds) of these rows; compiled loops would run past the end of what does not fit."""
    lengths, seeds = np.ascontiguousarray(lengths, np.int64), np.ascontiguousarray(seeds, np.uint64)
    if not lengths.shape == seeds.shape == rows.shape[:1]:
        raise ValueError(f"{lengths.shape} lengths and {seeds.shape} seeds of rows {rows.shape}")
    if len(lengths) and not 0 <= lengths.min() <= lengths.max() <= rows.shape[1]:
        raise ValueError(f"rows of {lengths.min()} to {lengths.max()} tokens in width {rows.shape[1]}")
    return lengths, seeds


def _mixed(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> _S30)) * _MIX_1
    x = (x ^ (x >> _S27)) * _MIX_2
    return x ^ (x >> _S31)


@njit(cache=True, nogil=True, inline="always")
def _random(state: Any) -> Any:
    """splitmix64 of a state that the caller advances by the golden ratio."""
    z = (state ^ (state >> _S30)) * _MIX_1
    z = (z ^ (z >> _S27)) * _MIX_2
    return z ^ (z >> _S31)


@njit(cache=True, nogil=True, inline="always")
def _below(state: Any, bound: Any) -> Any:
    """A whole number in [0, bound): 31 random bits scaled, uneven by at most bound / 2^31."""
    return (np.int64(_random(state) >> _S33) * bound) >> 31


@njit(cache=True, nogil=True)
def _words(continues: Any, length: int, start: Any, size: Any) -> int:
    """Fill first place and size of every word between the specials; returns their number."""
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
def _hide_words(continues: Any, lengths: Any, budgets: Any, seeds: Any, hidden: Any) -> None:
    batch, longest = continues.shape
    start, size = np.empty(longest, np.int64), np.empty(longest, np.int64)
    order = np.empty(longest, np.int64)
    for b in range(batch):
        count = _words(continues[b], lengths[b], start, size)
        for i in range(count):
            order[i] = i
        state = seeds[b]
        left = budgets[b]
        i = 0
        while left > 0 and i < count:
            state += _GOLDEN
            k = i + _below(state, count - i)
            word = order[k]
            order[k] = order[i]
            i += 1
            if size[word] <= left:
                left -= size[word]
                for z in range(start[word], start[word] + size[word]):
                    hidden[b, z] = True


@njit(cache=True, nogil=True)
def _hide_keywords(continues: Any, lengths: Any, weights: Any, budgets: Any, seeds: Any, hidden: Any) -> None:
    batch, longest = continues.shape
    start, size = np.empty(longest, np.int64), np.empty(longest, np.int64)
    for b in range(batch):
        count = _words(continues[b], lengths[b], start, size)
        # The order of exponential waiting times is successive sampling without replacement.
        waits = np.empty(count, np.float64)
        state = seeds[b]
        for i in range(count):
            state += _GOLDEN
            uniform = (np.float64(_random(state) >> np.uint64(11)) + 0.5) / 9007199254740992.0
            waits[i] = -np.log(uniform) / max(weights[b, start[i]], 1e-100)
        left = budgets[b]
        for word in np.argsort(waits):
            if left <= 0:
                break
            left -= size[word]
            for z in range(start[word], start[word] + size[word]):
                hidden[b, z] = True


@njit(cache=True, nogil=True)
def _position_bits(continues: Any, lengths: Any, budgets: Any, seeds: Any, distinct: int, out: Any) -> None:
    batch, longest = continues.shape
    width = out.shape[2]
    start, size = np.empty(longest, np.int64), np.empty(longest, np.int64)
    chunk, keep = np.empty(longest, np.int64), np.empty((longest, 2), np.uint64)
    taken, drawn = np.empty(longest, np.int64), np.empty(min(longest, distinct), np.bool_)
    pool = np.empty((min(longest, distinct), width), np.uint64)
    for b in range(batch):
        length = lengths[b]
        count = _words(continues[b], length, start, size)
        _word_bits(start, size, count, chunk, keep)
        state = _take(length, min(length, distinct), seeds[b], taken, drawn)
        _draw_pool(length, start, size, count, chunk, keep, budgets[b], state, drawn[: min(length, distinct)], pool)
        for row in range(length):
            mask = pool[taken[row]]
            for w in range(width):
                out[b, row, w] = mask[w]
            out[b, row, row >> 6] &= ~_bit(row)


@njit(cache=True, nogil=True)
def _word_bits(start: Any, size: Any, count: int, chunk: Any, keep: Any) -> None:
    """What a word leaves of the 64 bits it begins in, and of the next 64."""
    for word in range(count):
        chunk[word], keep[word, 0], keep[word, 1] = start[word] >> 6, _ALL, _ALL
        for z in range(start[word], start[word] + min(size[word], 64)):
            keep[word, (z >> 6) - chunk[word]] &= ~_bit(z)


@njit(cache=True, nogil=True)
def _take(length: int, masks: int, state: Any, taken: Any, drawn: Any) -> Any:
    """Which mask each row takes comes first: a mask that no row takes need not be drawn. Returns the state after."""
    drawn[:masks] = False
    for row in range(length):
        state += _GOLDEN
        taken[row] = _below(state, masks)
        drawn[taken[row]] = True
    return state


@njit(cache=True, nogil=True)
def _draw_pool(
    length: int,
    start: Any,
    size: Any,
    count: int,
    chunk: Any,
    keep: Any,
    budget: int,
    state: Any,
    drawn: Any,
    pool: Any,
) -> None:
    """Visible bits of every mask that is ``drawn``."""
    every = np.zeros(pool.shape[1], np.uint64)
    for z in range(length):
        every[z >> 6] |= _bit(z)
    order = np.arange(count).astype(np.int32)
    for m in range(len(drawn)):
        if not drawn[m]:
            continue
        mask = pool[m]
        for w in range(len(every)):
            mask[w] = every[w]
        left = budget
        i = 0
        # A partial shuffle may start from whatever order the last one left.
        while left > 0 and i < count:
            state += _GOLDEN
            k = i + _below(state, count - i)
            word = order[k]
            order[k] = order[i]
            order[i] = word
            i += 1
            if size[word] <= left:
                left -= size[word]
                mask[chunk[word]] &= keep[word, 0]
                if keep[word, 1] != _ALL:
                    mask[chunk[word] + 1] &= keep[word, 1]
                for z in range(start[word] + 64, start[word] + size[word]):
                    mask[z >> 6] &= ~_bit(z)


@njit(cache=True, nogil=True, inline="always")
def _bit(place: Any) -> Any:
    return np.uint64(1) << np.uint64(place & 63)


@njit(cache=True, nogil=True)
def _spread(rows: Any, spread: Any, out: Any) -> None:
    """(B, L, bytes) bits -> (B, L, bytes) uint64, each holding eight bools."""
    batch, length, width = out.shape
    for b in range(batch):
        for row in range(length):
            for w in range(width):
                out[b, row, w] = spread[rows[b, row, w]]


@njit(cache=True, nogil=True)
def _replace(
    ids: Any, labels: Any, hidden: Any, seeds: Any, mask_id: int, vocabulary_size: int, masked: float, random: float
) -> None:
    batch, length = ids.shape
    for b in range(batch):
        state = seeds[b]
        for i in range(length):
            if not hidden[b, i]:
                continue
            labels[b, i] = ids[b, i]
            state += _GOLDEN
            chance = np.float64(_random(state) >> np.uint64(11)) / 9007199254740992.0
            if chance < masked:
                ids[b, i] = mask_id
            elif chance < masked + random:
                state += _GOLDEN
                ids[b, i] = _below(state, vocabulary_size)
