"""Drawing masks: whole words, keywords, one mask per row (RetroMAE Eq. 7), and what stands in a hidden place.

Compiled loops over padded rows ``[CLS] pieces [SEP] padding``. Every row has a seed of its own and its result depends
on nothing else, so neither the company of a batch nor workers nor a resumption change it. Everywhere: ``continues``
(B, L) bool, True where a piece continues the word before it; ``lengths`` (B,) tokens of each row, both specials
counted; specials and padding are never hidden.
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


def seeds_for(seed: int, draws: np.ndarray, use: str) -> np.ndarray:
    """(B,) uint64: a stream of its own for every run ``seed``, draw number and ``use``."""
    start = np.frombuffer(hashlib.blake2b(f"{seed} {use}".encode(), digest_size=8).digest(), np.uint64)
    return _mixed(_mixed(start) ^ (np.asarray(draws).astype(np.uint64) * _GOLDEN))


def word_mask(
    continues: np.ndarray, lengths: np.ndarray, ratio: float, seeds: np.ndarray, count_special: bool = True
) -> np.ndarray:
    """(B, L) bool, True = hidden: whole words drawn uniformly until the budget is reached; a word that would exceed
    it is passed over. The budget is the rounded share of the tokens, at least 1 and at most :data:`MOST`; the
    specials count in it with ``count_special`` (RetroMAE's code; MASTER's does not)."""
    hidden = np.zeros(continues.shape, np.bool_)
    _hide_words(continues, _int64(lengths), _budgets(lengths, ratio, count_special), _uint64(seeds), hidden)
    return hidden


def complement(hidden: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """(B, L) bool: the other ordinary tokens (MASTER's complementary mask)."""
    place = np.arange(hidden.shape[1])
    return ~hidden & (place > 0) & (place < np.asarray(lengths)[:, None] - 1)


def keyword_mask(
    continues: np.ndarray, lengths: np.ndarray, weights: np.ndarray, ratio: float, seeds: np.ndarray
) -> np.ndarray:
    """(B, L) bool: words drawn one after the other in proportion to their weight until the share of ordinary tokens
    is hidden; the last word may overshoot (MASTER's keyword mask). ``weights`` (B, L) float32 holds a word's weight
    at its first piece."""
    hidden = np.zeros(continues.shape, np.bool_)
    budgets = _budgets(lengths, ratio, count_special=False)
    _hide_keywords(continues, _int64(lengths), weights.astype(np.float64), budgets, _uint64(seeds), hidden)
    return hidden


def position_masks(
    continues: np.ndarray, lengths: np.ndarray, ratio: float, seeds: np.ndarray, distinct: int = DISTINCT,
    bits: bool = False,
) -> np.ndarray:
    """(B, L, L) bool, True = visible; or its bits, (B, L, ceil(L / 8)) uint8, lowest first (RetroMAE Eq. 7).

    A text of n tokens has min(n, ``distinct``) whole-word masks; each row takes one of them at random and never sees
    itself. All rows but the first see column 0. Rows and columns of padding are False.
    """
    batch, length = continues.shape
    packed = np.zeros((batch, length, (length + 63) // 64), np.uint64)
    budgets = _budgets(lengths, ratio, count_special=True)
    _position_bits(continues, _int64(lengths), budgets, _uint64(seeds), distinct, packed)
    rows = packed.view(np.uint8)
    if bits:
        return np.ascontiguousarray(rows[:, :, : (length + 7) // 8])
    visible = np.empty((batch, length, (length + 7) // 8), np.uint64)
    _spread(rows, _SPREAD, visible)
    return np.ascontiguousarray(visible.view(np.bool_)[:, :, :length])


def corrupt(
    ids: np.ndarray, hidden: np.ndarray, seeds: np.ndarray, mask_id: int, vocabulary_size: int,
    replace: Sequence[float] = (0.8, 0.1, 0.1),
) -> tuple[np.ndarray, np.ndarray]:
    """(ids with hidden places replaced, labels), both (B, L) int64: [MASK], a random id below ``vocabulary_size`` or
    the same id with the shares of ``replace``; labels are the original ids there and :data:`IGNORED` elsewhere."""
    if len(replace) != 3 or min(replace) < 0 or abs(sum(replace) - 1) > 1e-6:
        raise UsageError(f"shares of [MASK], random and unchanged tokens {tuple(replace)} must be 3 that add up to 1")
    out, labels = ids.copy(), np.full(ids.shape, IGNORED, np.int64)
    _replace(out, labels, hidden, _uint64(seeds), mask_id, vocabulary_size, float(replace[0]), float(replace[1]))
    return out, labels


def _budgets(lengths: np.ndarray, ratio: float, count_special: bool) -> np.ndarray:
    if not 0 < ratio < 1:
        raise UsageError(f"mask ratio {ratio:g}: wants a share above 0 and below 1, for example 0.3")
    counted = np.asarray(lengths) - (0 if count_special else 2)
    return np.clip(np.rint(counted * ratio), 1, MOST).astype(np.int64)


def _int64(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x, np.int64)


def _uint64(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x, np.uint64)


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
            weight = weights[b, start[i]]
            waits[i] = -np.log(uniform) / weight if weight > 0 else np.inf
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
    order, taken = np.empty(longest, np.int32), np.empty(longest, np.int64)
    drawn = np.empty(min(longest, distinct), np.bool_)
    pool = np.empty((min(longest, distinct), width), np.uint64)
    every = np.empty(width, np.uint64)
    # A word's places as the 64 bits they lie in and, where it reaches into the next 64, those too.
    chunk, keep, keep_next = np.empty(longest, np.int64), np.empty(longest, np.uint64), np.empty(longest, np.uint64)
    for b in range(batch):
        length = lengths[b]
        masks = min(length, distinct)
        count = _words(continues[b], length, start, size)
        for word in range(count):
            order[word] = word
            chunk[word], keep[word], keep_next[word] = start[word] >> 6, _ALL, _ALL
            for z in range(start[word], start[word] + size[word]):
                if z >> 6 == chunk[word]:
                    keep[word] &= ~_bit(z)
                elif z >> 6 == chunk[word] + 1:
                    keep_next[word] &= ~_bit(z)
        every[:] = 0
        for z in range(length):
            every[z >> 6] |= _bit(z)
        state = seeds[b]
        # Which mask each row takes comes first: a mask that no row takes need not be drawn.
        drawn[:] = False
        for row in range(length):
            state += _GOLDEN
            taken[row] = _below(state, masks)
            drawn[taken[row]] = True
        for m in range(masks):
            if not drawn[m]:
                continue
            mask = pool[m]
            for w in range(width):
                mask[w] = every[w]
            left = budgets[b]
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
                    mask[chunk[word]] &= keep[word]
                    if size[word] > 64:
                        for z in range(start[word], start[word] + size[word]):
                            mask[z >> 6] &= ~_bit(z)
                    elif keep_next[word] != _ALL:
                        mask[chunk[word] + 1] &= keep_next[word]
        for row in range(length):
            mask = pool[taken[row]]
            for w in range(width):
                out[b, row, w] = mask[w]
            out[b, row, row >> 6] &= ~_bit(row)


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
