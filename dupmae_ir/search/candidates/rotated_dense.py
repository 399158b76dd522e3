"""Dense candidates, and candidates of the sum, from codes of rotated vectors; scores come from the stored vectors.

The rotation leaves inner products as they are. For y = rotation x - mean, its codes c and the first i components:

    <q, x> = <q', mean> + <q', y>                              with q' = rotation q
           <= <q', mean> + <q'_i, step c_i> + |q'_i| |y_i - step c_i| + |q'_rest| |y_rest|

The lengths are stored with the codes, rounded up. The impacts of a document are known exactly, so it is out as soon as
this bound plus its impact score is below the k-th best of the lower bounds found so far, also in other segments: by
codes of 4 bits of the first 128 components, of all, or by codes of 8 bits
(:func:`~dupmae_ir.index.postings.kernels.search_codes`). The
products with codes are of whole numbers, q' step being rounded to 16 bits. The rows that are left contain the k best
and all their ties; they are scored from the vectors, so lists are those of the flat index, bit for bit.

Few rows, many queries, and small work in a process without the compiled loops, are multiplied as vectors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import numpy as np

from dupmae_ir.device import pays
from dupmae_ir.index.dense_kinds import ROTATED
from dupmae_ir.index.format.rotated import Rotated
from dupmae_ir.index.format.row_set import RowSet
from dupmae_ir.index.postings.compiling import (
    ALL,
    BLOCK,
    CHUNK,
    CodeQuery,
    Files,
    Queries,
    Survivors,
)
from dupmae_ir.index.postings.searcher import FEW
from dupmae_ir.search.candidates.dense import DenseIndex, DensePart
from dupmae_ir.search.exact.certified_topk import Candidates

MAX_QUERIES = 48
"""At most this many queries with short lists are searched by codes; for more, one product with all vectors takes less
time. With two threads and 100,000 passages, 8 queries took 5.3 ms each by vectors and 1.8 by codes, and 48 took 1.5 and
1.2; with a million passages, 48 and 7.6 ms, and 12.2 and 8.2."""
_SHORT_LIST = 100
"""Hits of a short list. For a thousand, 8 queries took 7.3 ms each by vectors and 6.3 by codes, 16 took 5.2 and 5.7."""
_SPARE_ROWS = 4096
"""Rows that a list may keep beyond four times ``k``."""
_MAX_WEIGHT = 32512
"""Largest weight of a component: its high byte, after rounding, is at most 127."""
_MIN_SCORE = np.float32(-3.0e38)
"""Below every score of a row that is searched."""


class Impacts(NamedTuple):
    """The impact part of a sum: postings and their window, the queries, and what one impact adds to a score."""

    files: Files | None
    window: int
    queries: Queries | None
    unit: float


NO_IMPACTS = Impacts(None, 1 << 16, None, 0.0)


# The k highest lower bounds of scores that one search has found so far, the lowest first, by query and k.
Best = dict[tuple[int, int], np.ndarray]


class RotatedIndex(DenseIndex):
    """The flat index, with codes of its ``vectors`` that exclude most rows."""

    kind = ROTATED

    def __init__(self, index: object, vectors: np.ndarray, rotated: Rotated) -> None:
        super().__init__(index, vectors)
        self.rotated = rotated
        self.longest = rotated.longest

    def _part(self, vectors: np.ndarray, threads: int, allowed: RowSet | None) -> DensePart:
        return RotatedPart(self, vectors, threads, allowed)


class RotatedPart(DensePart):
    """One batch of queries against a :class:`RotatedIndex`."""

    dense: RotatedIndex

    def top(self, queries: Sequence[int], depth: int) -> list[Candidates]:
        """Rows that contain the ``depth`` best of each query; the bound is the ``depth``-th lower bound."""
        count = min(depth, self.documents)
        if count == self.documents or not self.excludes(len(queries), count):
            return super().top(queries, depth)
        slacks = np.array([self.error(query) for query in queries])
        best: Best = {}
        candidates = []
        lists = self.best_sums(queries, count, 1.0, NO_IMPACTS, slacks, best)
        for position, survivors in enumerate(lists):
            if survivors is None:
                return super().top(queries, depth)
            # What was excluded has an upper bound below the depth-th lower bound.
            bound = float(best[position, count][0])
            candidates.append(Candidates(survivors.rows, bound, False))
        return candidates

    def excludes(self, queries: int, k: int, window: int = BLOCK) -> bool:
        """Whether codes are used for this many queries with ``k`` hits each, and windows of so many rows."""
        rows = len(self.dense.vectors)
        most_queries = MAX_QUERIES if k <= _SHORT_LIST else MAX_QUERIES // 6
        # The loops read codes in blocks, which a window must not divide.
        if queries > most_queries or window % BLOCK != 0:
            return False
        # A few rows are multiplied as they are: the loops would read the codes of all.
        if self.allowed is not None and len(self.allowed) * FEW <= rows:
            return False
        return pays(queries * rows)

    def error(self, query: int) -> float:
        """As :meth:`DensePart.error`, also of bounds by codes: of 32 operations in float32, and of a rotation in
        float64, which is orthogonal up to its own rounding."""
        largest = self.length(query) * self.dense.longest
        return max(self.noise(query), 2.0**-19 * largest) + self.dense.rotated.deviation * largest

    def best_sums(
        self,
        queries: Sequence[int],
        k: int,
        weight: float,
        impacts: Impacts,
        slacks: np.ndarray,
        best: Best,
    ) -> list[Survivors | None]:
        """Candidates for the ``k`` best rows by ``weight`` times the inner product plus the impacts, for each query;
        None where there is no room for them. ``slacks`` (q,) bound the rounding. Rows that the ``best`` of other
        segments exclude are no candidates."""
        window_count = math.ceil(len(self.dense.vectors) / impacts.window)
        # Threads that the queries do not need share the windows of one query.
        pieces = max(1, min(self.threads // len(queries), window_count))
        ranges = _split_evenly(window_count, pieces)

        with ThreadPoolExecutor(self.threads) if self.threads > 1 else nullcontext() as pool:
            map_ranges = pool.map if pool else map
            pending = []
            for position, query in enumerate(queries):
                lower_bounds = best.setdefault((position, k), np.full(k, _MIN_SCORE))
                code_query = self._code_query(query, weight, impacts.unit, slacks[position])
                search = partial(
                    self._search_windows, position, code_query, impacts, k, lower_bounds[0]
                )
                pending.append(map_ranges(search, ranges))

            survivors = []
            for position, results in enumerate(pending):
                merged, best[position, k] = _merge_survivors(list(results), best[position, k])
                survivors.append(merged)
        return survivors

    def _search_windows(
        self,
        query: int,
        code_query: CodeQuery,
        impacts: Impacts,
        k: int,
        threshold: np.float32,
        windows: tuple[int, int],
    ) -> Survivors | None:
        """The rows of a range of windows that the codes do not exclude; None if there are too many to keep."""
        from dupmae_ir.index.postings import kernels

        mask = ALL if self.allowed is None else self.allowed.mask
        # The loops write into fixed arrays and return -1 if these do not suffice.
        room = 4 * k + _SPARE_ROWS
        kept = Survivors(*np.empty((2, room), np.int32), *np.empty((2, room), np.float32))
        count = kernels.search_codes(
            impacts.files,
            impacts.window,
            len(self.dense.vectors),
            impacts.queries,
            query,
            self.dense.rotated.codes,
            code_query,
            mask,
            windows,
            k,
            threshold,
            kept,
        )
        if count < 0:
            return None
        return Survivors(*(array[:count] for array in kept))

    def _code_query(self, query: int, weight: float, unit: float, slack: float) -> CodeQuery:
        """A query as the compiled loops take it; upper bounds contain the slack."""
        rotated = self.dense.rotated
        turned = weight * (rotated.rotation @ self.vectors[query].astype(np.float64))
        # Padded to complete chunks, which the loops read.
        weights = np.zeros(math.ceil(len(turned) / CHUNK) * CHUNK)
        weights[: len(turned)] = turned * rotated.step

        # Whole numbers of two bytes; twice the sums of their products with 4 bits fit into 32.
        largest = min(_MAX_WEIGHT, (1 << 27) // len(turned))
        scale = float(np.abs(weights).max()) / largest or 1.0
        whole = np.rint(weights / scale).astype(np.int32)
        high = (whole + 128) >> 8
        low = whole - 256 * high
        # What rounding loses: a code is at most 127.5 from zero.
        slack += 127.5 * float(np.abs(weights - scale * whole).sum())

        # Lengths for the Cauchy-Schwarz bounds on what the codes leave out, by stage: 4 bits of the first chunk, 4 bits
        # of all, 8 bits.
        first_length = np.linalg.norm(turned[:CHUNK])
        rest_length = np.linalg.norm(turned[CHUNK:])
        length = np.linalg.norm(turned)
        sums = [whole[:CHUNK].sum(), whole[CHUNK:].sum(), whole.sum()]
        return CodeQuery(
            np.float32(turned @ rotated.mean + slack),
            high.astype(np.int8),
            low.astype(np.int8),
            # A half h of a code, 0 to 15, stands for (2 h - 15) / 2; the sums of the weights take the 15 off.
            15 * np.array(sums, np.int32),
            np.float32(scale / 2),
            np.array([first_length, length, length], np.float32),
            np.float32(rest_length),
            np.float32(slack),
            np.float32(unit),
        )


def _split_evenly(count: int, pieces: int) -> list[tuple[int, int]]:
    """(start, end) of ``pieces`` ranges of 0 to ``count`` whose lengths differ by one at most."""
    cuts = [count * piece // pieces for piece in range(pieces + 1)]
    return list(itertools.pairwise(cuts))


def _merge_survivors(
    results: list[Survivors | None], lower_bounds: np.ndarray
) -> tuple[Survivors | None, np.ndarray]:
    """The survivors of all ranges of windows, and the highest of their lower bounds and those before.

    None where one of the ranges had too many.
    """
    complete = [survivors for survivors in results if survivors is not None]
    if len(complete) < len(results):
        return None, lower_bounds
    rows, sums, totals, lowers = (np.concatenate(arrays) for arrays in zip(*complete, strict=True))
    all_bounds = np.concatenate([lower_bounds, lowers])
    highest = np.partition(all_bounds, len(lowers))[len(lowers) :]
    # Each range compared with its own threshold; the common one excludes more. NaN is kept.
    near = ~(totals < highest[0])
    survivors = Survivors(
        rows[near].astype(np.int64), sums[near].astype(np.int64), totals[near], lowers[near]
    )
    return survivors, highest
