"""Dense candidates, and candidates of the sum, from codes of rotated vectors; scores come from the stored vectors.

The rotation leaves inner products as they are. For y = rotation x - mean, its code c and the first i components:

    <q, x> = <q', mean> + <q', y>                              with q' = rotation q
           <= <q', mean> + <q'_i, step c_i> + |q'| |y - step c| + |q'_rest| |y_rest|

The lengths are stored with the codes, rounded up. The impacts of a document are known exactly, so it is out as soon as
this bound plus its impact score is below the k-th best of the lower bounds found so far, after 32, 64, 96, 128 or all
components (:func:`~dupmae_ir.index.postings.kernels.search_codes`). The rows that are left contain the k best and all
their ties; they are scored from the vectors, so lists are those of the flat index, bit for bit.

Few rows, many queries, and small work in a process without the compiled loops, are multiplied as vectors.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dupmae_ir.index.config import ROTATED
from dupmae_ir.index.format.rotated import Rotated, open_rotated
from dupmae_ir.index.format.row_set import RowSet
from dupmae_ir.index.postings.compiling import BLOCK, GROUP, CodeQueries, Files, Kept, Queries, pays
from dupmae_ir.search.candidates.dense import DenseIndex, DensePart, FlatOnDemand
from dupmae_ir.search.exact.certified_topk import Candidates

if TYPE_CHECKING:
    from dupmae_ir.index.format.segment import Segment

TOGETHER = 4
"""At most this many queries are searched by codes; for more, one product with all vectors takes less time."""
_SPARE = 4096
"""Rows that a list may keep beyond four times ``k``."""
_LOWEST = np.float32(-3.0e38)
"""Below every score of a row that is searched."""


class Impacts(NamedTuple):
    """The impact part of a sum: postings and their window, the queries, and what one impact adds to a score."""

    files: Files
    window: int
    queries: Queries
    unit: float


def open_rotated_dense(segment: Segment) -> RotatedIndex:
    """The dense index of a segment that has codes."""
    return RotatedIndex(FlatOnDemand(segment), segment.vectors, open_rotated(segment))


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
        slacks = np.array([2 * self.error(query) for query in queries])
        found = self._kept(list(queries), count, 1.0, self.threads, _no_impacts(len(queries)), slacks)
        if any(kept is None for kept in found):
            return super().top(queries, depth)
        return [Candidates(kept[0], float(kept[2]), False) for kept in found if kept is not None]

    def excludes(self, queries: int, window: int = BLOCK) -> bool:
        """Whether codes are used for this many queries and windows of so many rows."""
        few = self.allowed is not None and self.copies(1)
        return queries <= TOGETHER and not few and window % BLOCK == 0 and pays(queries * len(self.dense.vectors))

    def best_sums(
        self, weight: float, k: int, threads: int, impacts: Impacts, slacks: np.ndarray
    ) -> list[tuple[np.ndarray, np.ndarray] | None]:
        """Candidates for the ``k`` best rows by ``weight`` times the inner product plus the impacts, as
        :meth:`~dupmae_ir.index.postings.searcher.PostingsSearcher.best_sums`; ``slacks`` (q,) bound the rounding."""
        found = self._kept(list(range(len(self.vectors))), k, weight, threads, impacts, slacks)
        return [None if kept is None else kept[:2] for kept in found]

    def error(self, query: int) -> float:
        """As :meth:`DensePart.error`; a rotation in float64 is orthogonal up to its own rounding."""
        deviation = self.length(query) * self.dense.longest * self.dense.rotated.deviation
        # The noise once for the codes and once for the bounds of what they lack.
        return 2 * self.noise(query) + deviation

    def _kept(
        self, queries: list[int], k: int, weight: float, threads: int, impacts: Impacts, slacks: np.ndarray
    ) -> list[tuple[np.ndarray, np.ndarray, np.float32] | None]:
        """Rows and impacts of what is left for each query, and the ``k``-th highest lower bound of a score."""
        asked = self._asked(queries, weight, impacts.unit, slacks)
        documents, count = len(self.dense.vectors), min(k, self.documents)
        windows = -(-documents // impacts.window)
        share = -(-len(queries) // threads)
        shares = [slice(start, start + share) for start in range(0, len(queries), share)]
        pieces = max(1, min(threads // len(shares), windows))  # of a query that has several threads
        cuts = [windows * piece // pieces for piece in range(pieces + 1)]
        tasks = list(itertools.product(shares, itertools.pairwise(cuts)))

        def search(task: tuple[slice, tuple[int, int]]) -> list[tuple[np.ndarray, ...] | None]:
            return self._search(_some(asked, task[0]), _some_impacts(impacts, task[0]), count, task[1])

        if len(tasks) == 1:
            return _merged([search(tasks[0])], count)
        with ThreadPoolExecutor(len(tasks)) as pool:
            found = list(pool.map(search, tasks))
        return [
            kept for start in range(0, len(tasks), pieces) for kept in _merged(found[start : start + pieces], count)
        ]

    def _search(
        self, asked: CodeQueries, impacts: Impacts, k: int, windows: tuple[int, int]
    ) -> list[tuple[np.ndarray, ...] | None]:
        """Rows, impacts, upper bounds and the highest lower bounds of some queries in some windows."""
        from dupmae_ir.index.postings import kernels

        queries, room = len(asked.constants), 4 * k + _SPARE
        rows, sums = np.empty((queries, room), np.int32), np.empty((queries, room), np.int32)
        kept, counts = Kept(rows, sums, np.empty((queries, room), np.float32)), np.zeros(queries, np.int64)
        best = np.full((queries, k), _LOWEST, np.float32)
        mask = _ALL if self.allowed is None else self.allowed.mask
        documents, codes = len(self.dense.vectors), self.dense.rotated.codes
        kernels.search_codes(
            impacts.files, impacts.window, documents, impacts.queries, codes, asked, mask, windows, kept, counts, best
        )
        return [
            None if n < 0 else (rows[q, :n], sums[q, :n], kept.totals[q, :n], best[q])
            for q, n in enumerate(counts.tolist())
        ]

    def _asked(self, queries: list[int], weight: float, unit: float, slacks: np.ndarray) -> CodeQueries:
        """The queries as the compiled loops take them; upper bounds contain the slack."""
        rotated = self.dense.rotated
        turned = weight * (self.vectors[queries].astype(np.float64) @ rotated.rotation.T)
        groups, tail = len(rotated.codes.head), rotated.codes.tail.shape[1]
        weights = np.zeros((len(queries), GROUP * groups + tail), np.float32)
        weights[:, : turned.shape[1]] = turned * rotated.step
        # Lengths of the query without the components of each group and of those before.
        spreads = [np.linalg.norm(turned[:, GROUP * (group + 1) :], axis=1) for group in range(groups)]
        return CodeQueries(
            (turned @ rotated.mean + slacks).astype(np.float32),
            weights,
            np.stack(spreads, axis=1).astype(np.float32),
            np.linalg.norm(turned, axis=1).astype(np.float32),
            slacks.astype(np.float32),
            np.float32(unit),
        )


def _some(asked: CodeQueries, share: slice) -> CodeQueries:
    arrays = {name: array[share] for name, array in asked._asdict().items() if name != "unit"}
    return asked._replace(**arrays)


def _some_impacts(impacts: Impacts, share: slice) -> Impacts:
    starts = impacts.queries.starts[share.start : share.stop + 1]
    return impacts._replace(queries=impacts.queries._replace(starts=starts))


def _merged(
    found: list[list[tuple[np.ndarray, ...] | None]], k: int
) -> list[tuple[np.ndarray, np.ndarray, np.float32] | None]:
    """The rows of some queries in all windows that can be among the ``k`` best, ascending."""
    merged: list[tuple[np.ndarray, np.ndarray, np.float32] | None] = []
    for pieces in zip(*found, strict=True):
        known = [piece for piece in pieces if piece is not None]
        if len(known) < len(pieces):
            merged.append(None)
            continue
        rows, sums, totals, best = (np.concatenate(arrays) for arrays in zip(*known, strict=True))
        least = np.partition(best, len(best) - k)[len(best) - k]
        near = ~(totals < least)
        merged.append((rows[near].astype(np.int64), sums[near].astype(np.int64), least))
    return merged


def _frozen(kind: type, *shape: int) -> np.ndarray:
    array: np.ndarray = np.zeros(shape, kind)
    array.flags.writeable = False  # as the mapped arrays of postings: one compiled signature
    return array


_ALL = _frozen(np.bool_, 0)
_NO_FILES = Files(
    _frozen(np.int64, 1),
    _frozen(np.uint32, 1, 1),
    _frozen(np.uint8, 1, 1),
    _frozen(np.uint16, 0),
    _frozen(np.uint8, 0),
    _frozen(np.uint16, 1, 1),
    _frozen(np.int64, 1),
    _frozen(np.uint8, 0),
)


def _no_impacts(queries: int) -> Impacts:
    """The impact part of a search by vectors alone."""
    nothing = Queries(np.zeros(queries + 1, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int32))
    return Impacts(_NO_FILES, 1 << 16, nothing, 0.0)
