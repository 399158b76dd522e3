"""Parts of all segments of an index, read as one by row of the index: impacts and texts."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from dupmae_ir.errors import UnknownName
from dupmae_ir.index.format.forward import Forward
from dupmae_ir.index.format.texts import Column, StoredDocument, TextStore
from dupmae_ir.registry import suggest
from dupmae_ir.types import Metadata, MetadataValue


class JoinedForward:
    """The forward indexes of all segments, by row of the index."""

    def __init__(self, parts: Sequence[Forward], starts: np.ndarray, live: np.ndarray) -> None:
        self._parts = parts
        self._starts = starts
        self._live = live

    def __len__(self) -> int:
        return int(self._starts[-1])

    def row(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Vocabulary ids and impacts of one document."""
        segment, segment_row = locate(self._starts, row)
        return self._parts[segment].row(segment_row)

    def scores(
        self, rows: np.ndarray, query_ids: np.ndarray, query_impacts: np.ndarray
    ) -> np.ndarray:
        """Exact inner products with one query: (m,) rows, (t,) vocabulary ids, (t,) impacts -> (m,) int64."""
        out = np.zeros(len(rows), np.int64)
        for segment, positions, segment_rows in shares(self._starts, rows):
            out[positions] = self._parts[segment].scores(segment_rows, query_ids, query_impacts)
        return out

    def frequencies_of(self, rows: np.ndarray) -> np.ndarray:
        """(V,) int64: the number of documents of each term among ``rows``, (n,) bool."""
        counts = []
        parts = np.split(rows, self._starts[1:-1])
        for part, part_rows in zip(self._parts, parts, strict=True):
            counts.append(part.frequencies_of(part_rows))
        return _total(counts)

    @cached_property
    def frequencies(self) -> np.ndarray:
        """(V,) int64: the number of documents of each term, without deleted documents."""
        counts = _total([part.frequencies for part in self._parts])
        live_by_segment = np.split(self._live, self._starts[1:-1])
        for part, live in zip(self._parts, live_by_segment, strict=True):
            deleted_terms = []
            for row in np.flatnonzero(~live).tolist():
                terms, _ = part.row(row)
                deleted_terms.append(terms)
            if deleted_terms:
                counts -= np.bincount(np.concatenate(deleted_terms), minlength=len(counts))
        return counts


def _total(counts: Sequence[np.ndarray]) -> np.ndarray:
    """The sum of the counts of all segments, of which those without documents in additional languages have fewer
    terms."""
    total = np.zeros(max(map(len, counts)), np.int64)
    for segment_counts in counts:
        total[: len(segment_counts)] += segment_counts
    return total


class JoinedTexts:
    """The text stores of all segments, by row of the index; see :class:`~dupmae_ir.index.format.texts.TextStore`.

    ``usual``: metadata of the rows that do not have another value.
    """

    def __init__(
        self,
        path: Path,
        parts: Sequence[TextStore],
        starts: np.ndarray,
        usual: Metadata | None = None,
    ) -> None:
        self._path = path
        self._parts = parts
        self._starts = starts
        self._usual = dict(usual or {})
        self._joined_columns: dict[str, Column] = {}

    def __len__(self) -> int:
        return int(self._starts[-1])

    @cached_property
    def columns(self) -> list[str]:
        """Names of the metadata columns of all segments, in the order of their first use."""
        names = itertools.chain.from_iterable(part.columns for part in self._parts)
        return list(dict.fromkeys([*names, *self._usual]))

    def get(self, row: int) -> StoredDocument:
        """The document of a row."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        segment, segment_row = locate(self._starts, row)
        document = self._parts[segment].get(segment_row)
        if not self._usual:
            return document
        missing = {
            name: value for name, value in self._usual.items() if name not in document.metadata
        }
        return document._replace(metadata={**document.metadata, **missing})

    def get_all(self, rows: Sequence[int]) -> list[StoredDocument]:
        """The documents of several rows, in their order."""
        return [self.get(row) for row in rows]

    def value(self, name: str, row: int) -> MetadataValue | None:
        """One value of the metadata of a row; None if it has none. It is read from its column: the text stays
        compressed, and no column is joined."""
        segment, segment_row = locate(self._starts, row)
        part = self._parts[segment]
        value = None
        if name in part.columns:
            column = part.column(name)
            value = column.values[column.codes[segment_row]]
        return self._usual.get(name) if value is None else value

    def column(self, name: str) -> Column:
        """One metadata column of all rows. Raises :class:`UnknownName` for a name that no document has."""
        if name not in self.columns:
            names = ", ".join(self.columns) or "none"
            raise UnknownName(
                f"{self._path} has no metadata {name!r}; known: {names}.{suggest(name, self.columns)}"
            )
        if len(self._parts) == 1 and name not in self._usual:
            return self._parts[0].column(name)
        if name not in self._joined_columns:
            self._joined_columns[name] = self._join_columns(name)
        return self._joined_columns[name]

    def _join_columns(self, name: str) -> Column:
        """A column of all segments, with the usual value where a row has none."""
        positions: dict[str, int] = {json.dumps(None): 0}
        codes = np.concatenate([_translate_codes(part, name, positions) for part in self._parts])
        if name in self._usual:
            usual = positions.setdefault(json.dumps(self._usual[name]), len(positions))
            codes[codes == 0] = usual
        return Column([json.loads(text) for text in positions], codes)


def _translate_codes(part: TextStore, name: str, positions: dict[str, int]) -> np.ndarray:
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
    """Divide (m,) rows of an index by segment: yields the segment's number, positions in ``rows``, and its rows."""
    rows = np.asarray(rows, np.int64)
    owner = np.searchsorted(starts, rows, side="right") - 1
    for segment in np.unique(owner):
        positions = np.flatnonzero(owner == segment)
        yield int(segment), positions, rows[positions] - starts[segment]
