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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import numpy as np

from dupmae_ir.device import pays
from dupmae_ir.index.config import ROTATED
from dupmae_ir.index.format.rotated import Rotated
from dupmae_ir.index.format.row_set import RowSet
from dupmae_ir.index.postings.compiling import ALL, BLOCK, CHUNK, CodeQuery, Files, Left, Queries
from dupmae_ir.index.postings.searcher import FEW
from dupmae_ir.search.candidates.dense import DenseIndex, DensePart
from dupmae_ir.search.exact.certified_topk import Candidates

TOGETHER = 4
"""At most this many queries are searched by codes; for more, one product with all vectors takes less time."""
_SPARE = 4096
"""Rows that a list may keep beyond four times ``k``."""
_HIGHEST_WEIGHT = 32512
_LOWEST = np.float32(-3.0e38)
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
        if count == self.documents or not self.excludes(len(queries)):
            return super().top(queries, depth)
        slacks, best = np.array([self.error(query) for query in queries]), Best()
        found = self.best_sums(queries, count, 1.0, NO_IMPACTS, slacks, best)
        known = [
            Candidates(some.rows, float(best[q, count][0]), False)
            for q, some in enumerate(found)
            if some
        ]
        return known if len(known) == len(found) else super().top(queries, depth)

    def excludes(self, queries: int, window: int = BLOCK) -> bool:
        """Whether codes are used for this many queries and windows of so many rows."""
        few = self.allowed is not None and len(self.allowed) * FEW <= len(self.dense.vectors)
        return (
            queries <= TOGETHER
            and not few
            and window % BLOCK == 0
            and pays(queries * len(self.dense.vectors))
        )

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
    ) -> list[Left | None]:
        """Candidates for the ``k`` best rows by ``weight`` times the inner product plus the impacts, for each query;
        None where there is no room for them. ``slacks`` (q,) bound the rounding. Rows that the ``best`` of other
        segments exclude are no candidates."""
        windows, known = -(-len(self.dense.vectors) // impacts.window), list[Left | None]()
        pieces = max(1, min(self.threads // len(queries), windows))
        cuts = list(itertools.pairwise(windows * piece // pieces for piece in range(pieces + 1)))
        with ThreadPoolExecutor(self.threads) if self.threads > 1 else nullcontext() as pool:
            run, lists = pool.map if pool else map, []
            for q, (query, slack) in enumerate(zip(queries, slacks, strict=True)):
                before = best.setdefault((q, k), np.full(k, _LOWEST))
                asked = self._asked(query, weight, impacts.unit, slack)
                lists.append(run(partial(self._search, q, asked, impacts, k, before[0]), cuts))
            for q, found in enumerate(lists):
                left, best[q, k] = _joined(list(found), best[q, k])
                known.append(left)
        return known

    def _search(
        self,
        query: int,
        asked: CodeQuery,
        impacts: Impacts,
        k: int,
        least: np.float32,
        windows: tuple[int, int],
    ) -> Left | None:
        """What is left of the rows of some windows."""
        from dupmae_ir.index.postings import kernels

        room, mask = 4 * k + _SPARE, ALL if self.allowed is None else self.allowed.mask
        kept = Left(*np.empty((2, room), np.int32), *np.empty((2, room), np.float32))
        of = impacts.files, impacts.window, len(self.dense.vectors), impacts.queries, query
        count = kernels.search_codes(
            *of, self.dense.rotated.codes, asked, mask, windows, k, least, kept
        )
        return None if count < 0 else Left(*(array[:count] for array in kept))

    def _asked(self, query: int, weight: float, unit: float, slack: float) -> CodeQuery:
        """A query as the compiled loops take it; upper bounds contain the slack."""
        rotated = self.dense.rotated
        turned = weight * (rotated.rotation @ self.vectors[query].astype(np.float64))
        weights = np.zeros(-(-len(turned) // CHUNK) * CHUNK)
        weights[: len(turned)] = turned * rotated.step
        # Whole numbers of two bytes; twice the sums of their products with 4 bits fit into 32.
        scale = float(np.abs(weights).max()) / min(_HIGHEST_WEIGHT, (1 << 27) // len(turned)) or 1.0
        whole = np.rint(weights / scale).astype(np.int32)
        high = (whole + 128) >> 8
        slack += 127.5 * float(np.abs(weights - scale * whole).sum())  # what rounding loses
        first, rest, length = (
            np.linalg.norm(some) for some in (turned[:CHUNK], turned[CHUNK:], turned)
        )
        return CodeQuery(
            np.float32(turned @ rotated.mean + slack),
            high.astype(np.int8),
            (whole - 256 * high).astype(np.int8),
            15 * np.array([whole[:CHUNK].sum(), whole[CHUNK:].sum(), whole.sum()], np.int32),
            np.float32(scale / 2),
            np.array([first, length, length], np.float32),
            np.float32(rest),
            np.float32(slack),
            np.float32(unit),
        )


def _joined(found: list[Left | None], before: np.ndarray) -> tuple[Left | None, np.ndarray]:
    """What is left of all windows; the best lower bounds of these and ``before``."""
    known = [left for left in found if left is not None]
    if len(known) < len(found):
        return None, before
    rows, sums, totals, lowers = (np.concatenate(arrays) for arrays in zip(*known, strict=True))
    best = np.partition(np.concatenate([before, lowers]), len(lowers))[len(lowers) :]
    near = ~(totals < best[0])
    return Left(
        rows[near].astype(np.int64), sums[near].astype(np.int64), totals[near], lowers[near]
    ), best
