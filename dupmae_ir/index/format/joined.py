"""Parts of all segments of an index, read as one: impacts and texts by row of the index."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from dupmae_ir.errors import UnknownName
from dupmae_ir.index.format.forward import Forward
from dupmae_ir.index.format.texts import Column, StoredDocument, TextStore
from dupmae_ir.registry import suggest


class JoinedForward:
    """The forward indexes of all segments, by row of the index."""

    def __init__(self, parts: Sequence[Forward], starts: np.ndarray, live: np.ndarray) -> None:
        self._parts, self._starts, self._live = parts, starts, live

    def __len__(self) -> int:
        return int(self._starts[-1])

    def row(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Vocabulary ids and impacts of one document."""
        segment, inside = locate(self._starts, row)
        return self._parts[segment].row(inside)

    def scores(self, rows: np.ndarray, query_ids: np.ndarray, query_impacts: np.ndarray) -> np.ndarray:
        """Exact inner products with one query: (m,) rows, (t,) vocabulary ids, (t,) impacts -> (m,) int64."""
        out = np.zeros(len(rows), np.int64)
        for segment, here, inside in shares(self._starts, rows):
            out[here] = self._parts[segment].scores(inside, query_ids, query_impacts)
        return out

    @cached_property
    def frequencies(self) -> np.ndarray:
        """(V,) int64: the number of documents of each term, without deleted documents."""
        counts = np.sum([part.frequencies for part in self._parts], axis=0)
        for part, live in zip(self._parts, np.split(self._live, self._starts[1:-1]), strict=True):
            deleted = [part.row(row)[0] for row in np.flatnonzero(~live).tolist()]
            if deleted:
                counts -= np.bincount(np.concatenate(deleted), minlength=len(counts))
        return counts


class JoinedTexts:
    """The text stores of all segments, by row of the index; see :class:`~dupmae_ir.index.format.texts.TextStore`."""

    def __init__(self, path: Path, parts: Sequence[TextStore], starts: np.ndarray) -> None:
        self._path, self._parts, self._starts = path, parts, starts

    def __len__(self) -> int:
        return int(self._starts[-1])

    @cached_property
    def columns(self) -> list[str]:
        """Names of the metadata columns of all segments, in the order of their first use."""
        return list(dict.fromkeys(name for part in self._parts for name in part.columns))

    def get(self, row: int) -> StoredDocument:
        """The document of a row."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        segment, inside = locate(self._starts, row)
        return self._parts[segment].get(inside)

    def get_all(self, rows: Sequence[int]) -> list[StoredDocument]:
        """The documents of several rows, in their order."""
        return [self.get(row) for row in rows]

    def column(self, name: str) -> Column:
        """One metadata column of all rows. Raises :class:`UnknownName` for a name that no document has."""
        if name not in self.columns:
            known = ", ".join(self.columns) or "none"
            raise UnknownName(f"{self._path} has no metadata {name!r}; known: {known}.{suggest(name, self.columns)}")
        if len(self._parts) == 1:
            return self._parts[0].column(name)
        positions: dict[str, int] = {json.dumps(None): 0}
        codes = [_translated(part, name, positions) for part in self._parts]
        return Column([json.loads(text) for text in positions], np.concatenate(codes))


def _translated(part: TextStore, name: str, positions: dict[str, int]) -> np.ndarray:
    """The codes of a segment's column as positions in the values of all segments, to which new values are added."""
    if name not in part.columns:
        return np.zeros(len(part), np.uint32)
    column = part.column(name)
    # The text tells 1, 1.0 and true apart, which are equal as keys.
    codes = [positions.setdefault(json.dumps(value), len(positions)) for value in column.values]
    return np.array(codes, np.uint32)[column.codes]


def locate(starts: np.ndarray, row: int) -> tuple[int, int]:
    """The segment of a row, and its row there."""
    segment = int(np.searchsorted(starts, row, side="right")) - 1
    return segment, row - int(starts[segment])


def shares(starts: np.ndarray, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Divide (m,) rows of an index by segment: yields the segment's number, positions in ``rows``, and its own rows."""
    rows = np.asarray(rows, np.int64)
    owner = np.searchsorted(starts, rows, side="right") - 1
    for segment in np.unique(owner):
        here = np.flatnonzero(owner == segment)
        yield int(segment), here, rows[here] - starts[segment]
