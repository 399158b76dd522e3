"""A ranked list as arrays: a thousand hits cost two arrays, not a thousand objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import overload

import numpy as np

from dupmae_ir.types import Hit


class RankedHits(Sequence[Hit]):
    """The hits of one query, best first: a sequence of :class:`~dupmae_ir.types.Hit`, each made when it is read.

    Args:
        rows: (m,) int64, the rows of the documents in the index.
        scores: (m,) float64.
        names: the ids of all documents, by row.
    """

    def __init__(self, rows: np.ndarray, scores: np.ndarray, names: Sequence[str]) -> None:
        self.rows, self.scores, self._names = rows, scores, names

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
    def __getitem__(self, place: int) -> Hit: ...
    @overload
    def __getitem__(self, place: slice) -> RankedHits: ...
    def __getitem__(self, place: int | slice) -> Hit | RankedHits:
        if isinstance(place, slice):
            return RankedHits(self.rows[place], self.scores[place], self._names)
        return Hit(self._names[int(self.rows[place])], float(self.scores[place]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RankedHits | list | tuple) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"RankedHits({list(self)!r})"
