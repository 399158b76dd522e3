"""Document ids of many rows without a Python string for each: the files are mapped, and a row's id is read when needed.

A list of strings takes about 60 bytes a document beside its place in the list; this takes 8, the end of each line.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

import numpy as np

_BLOCK = 1 << 20
"""Rows, or bytes, handled at a time."""
_WIDEST = 64
"""Ids of at most this many bytes are sorted as an array of fixed width."""


class MappedDocids(Sequence[str]):
    """The lines of several ``docid`` files, in order. ``paths`` must not change while they are open."""

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self._maps = [_mapped(Path(path)) for path in paths]
        ends = [_line_ends(data) for data in self._maps]
        self._ends = ends
        self._starts = np.concatenate(([0], np.cumsum([len(e) for e in ends]))).astype(np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        """The id of a row."""
        if isinstance(row, slice):
            return [self[place] for place in range(*row.indices(len(self)))]
        if row < 0 or row >= len(self):
            raise IndexError(f"row {row} of {len(self)}")
        part = int(np.searchsorted(self._starts, row, side="right")) - 1
        inside, ends = row - int(self._starts[part]), self._ends[part]
        start = int(ends[inside - 1]) + 1 if inside else 0
        return bytes(self._maps[part][start : int(ends[inside])]).decode("utf-8")

    def __iter__(self) -> Iterator[str]:
        for data, ends in zip(self._maps, self._ends, strict=True):
            start = 0
            for end in ends.tolist():
                yield bytes(data[start:end]).decode("utf-8")
                start = end + 1

    def order(self) -> np.ndarray:
        """(n,) int64: the rows in ascending order of their ids, rows of equal ids in their order."""
        narrow = self._narrow()
        if narrow is None:
            return np.array(sorted(range(len(self)), key=self.__getitem__), np.int64)
        # UTF-8 sorts as the code points do, which is how Python compares strings.
        return np.argsort(narrow, kind="stable")

    def _narrow(self) -> np.ndarray | None:
        """(n,) ids as an array of bytes of one width; None for long ids, and for ids that numpy would cut at a NUL."""
        widest = max((int(np.diff(ends, prepend=-1).max(initial=1)) - 1 for ends in self._ends), default=0)
        if widest > _WIDEST or any(data.find(b"\0") >= 0 for data in self._maps):
            return None
        out = np.zeros((len(self), max(1, widest)), np.uint8)
        for data, ends, first in zip(self._maps, self._ends, self._starts.tolist(), strict=False):
            raw = np.frombuffer(data, np.uint8)
            starts = np.concatenate(([0], ends[:-1] + 1)) if len(ends) else ends
            for column in range(widest):
                there = starts + column < ends
                out[first : first + len(ends), column][there] = raw[starts[there] + column]
        return out.view(f"S{out.shape[1]}").ravel()


def _mapped(path: Path) -> mmap.mmap | bytes:
    with open(path, "rb") as f:
        return mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""


def _line_ends(data: mmap.mmap | bytes) -> np.ndarray:
    """Where the line feeds are: (n,) int64."""
    raw = np.frombuffer(data, np.uint8)
    found = [start + np.flatnonzero(raw[start : start + _BLOCK] == 10) for start in range(0, len(raw), _BLOCK)]
    return np.concatenate(found).astype(np.int64) if found else np.zeros(0, np.int64)
