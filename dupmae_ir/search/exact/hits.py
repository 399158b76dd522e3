"""Ranked lists: their order, as arrays (a thousand hits cost two arrays, not a thousand objects), and MaxP.

The order of every list is score descending, equal scores by docid ascending.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import overload

import numpy as np

from dupmae_ir.errors import UsageError
from dupmae_ir.types import PASSAGE_DELIMITER, Hit, best_first


class RankedHits(Sequence[Hit]):
    """The hits of one query, best first: a sequence of :class:`~dupmae_ir.types.Hit`, each made when it is read.

    Args:
        rows: (m,) int64, the rows of the documents in the index.
        scores: (m,) float64.
        names: the ids of all documents, by row.
    """

    def __init__(self, rows: np.ndarray, scores: np.ndarray, names: Sequence[str]) -> None:
        self.rows = rows
        self.scores = scores
        self._names = names

    @property
    def docids(self) -> list[str]:
        """The ids of the documents."""
        names = self._names
        return [names[row] for row in self.rows.tolist()]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Hit]:
        # A named tuple's own constructor takes longer than finding the hit did.
        return map(partial(tuple.__new__, Hit), zip(self.docids, self.scores.tolist(), strict=True))

    @overload
    def __getitem__(self, position: int) -> Hit: ...
    @overload
    def __getitem__(self, position: slice) -> RankedHits: ...
    def __getitem__(self, position: int | slice) -> Hit | RankedHits:
        if isinstance(position, slice):
            return RankedHits(self.rows[position], self.scores[position], self._names)
        return Hit(self._names[int(self.rows[position])], float(self.scores[position]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RankedHits | list | tuple) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"RankedHits({list(self)!r})"


def best_positions(scores: np.ndarray, ranks: np.ndarray, k: int) -> np.ndarray:
    """Positions of the ``k`` best of (m,) ``scores``, best first: (min(k, m),) int64.

    ``ranks`` (m,) breaks ties, lowest first, including ties at the k-th place.
    """
    positions = np.arange(len(scores))
    if k < len(scores):
        # Everything that ties with the k-th is sorted, so that the ranks decide who stays.
        kth = np.partition(scores, len(scores) - k)[len(scores) - k]
        positions = np.flatnonzero(scores >= kth)
    order = np.lexsort((ranks[positions], -scores[positions]))
    return positions[order[:k]]


def without(hits: Sequence[Hit], docid: str, k: int) -> list[Hit]:
    """The first ``k`` hits other than ``docid``."""
    return [hit for hit in hits if hit.docid != docid][:k]


def best_passages(hits: Iterable[Hit]) -> list[Hit]:
    """MaxP: every document of a passage list with the score of its best passage, best first, ties by document id.

    The result is exact down to the score of the last passage: unlisted passages score no more than that, so a document
    with a higher score has its best passage in the list. Raises :class:`UsageError` for an id that names no passage.
    """
    best: dict[str, float] = {}
    for hit in hits:
        docid, delimiter, _ = hit.docid.rpartition(PASSAGE_DELIMITER)
        if not delimiter:
            raise UsageError(
                f"`max_passage`: the id {hit.docid!r} has no {PASSAGE_DELIMITER!r}; index the passages that dupmae-ir "
                "encode.passages writes"
            )
        best[docid] = max(hit.score, best.get(docid, hit.score))
    return best_first(Hit(docid, score) for docid, score in best.items())
