"""Lines of files that are read when they are needed: document ids by row, index terms by vocabulary id."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

import numpy as np

from dupmae_ir.errors import IndexMismatch
from dupmae_ir.index.format.forward import map_bytes
from dupmae_ir.index.format.integrity import AGAIN
from dupmae_ir.index.format.joined import locate

_BLOCK = 1 << 20
"""Bytes handled at a time."""
_MAX_FIXED_WIDTH = 64
"""Lines of at most this many bytes are sorted as an array of fixed width."""


class MappedLines(Sequence[str]):
    """The lines of several files, in order. ``paths`` must not change while they are open.

    The files are mapped, and a line is read when needed. A list of strings takes about 60 bytes a line; this takes 8,
    the end of each line. A list of the 131,072 terms of the embedded model takes a twentieth of the first answer.
    """

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self._maps = [map_bytes(Path(path)) for path in paths]
        self._ends = [_line_ends(data) for data in self._maps]
        lengths = [len(ends) for ends in self._ends]
        self._starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        """A line."""
        if isinstance(row, slice):
            return [self[position] for position in range(*row.indices(len(self)))]
        if row < 0 or row >= len(self):
            raise IndexError(f"row {row} of {len(self)}")
        file, line = locate(self._starts, row)
        ends = self._ends[file]
        start = int(ends[line - 1]) + 1 if line else 0
        return bytes(self._maps[file][start : int(ends[line])]).decode("utf-8")

    def __iter__(self) -> Iterator[str]:
        for data, ends in zip(self._maps, self._ends, strict=True):
            start = 0
            for end in ends.tolist():
                yield bytes(data[start:end]).decode("utf-8")
                start = end + 1

    def order(self) -> np.ndarray:
        """(n,) int64: the rows in ascending order of their lines, equal lines in their order."""
        lines = self._fixed_width()
        if lines is None:
            return np.array(sorted(range(len(self)), key=self.__getitem__), np.int64)
        # UTF-8 sorts as the code points do, which is how Python compares strings.
        return np.argsort(lines, kind="stable")

    def _fixed_width(self) -> np.ndarray | None:
        """(n,) lines as bytes of one width; None for long lines, and for those that numpy would cut at a NUL."""
        # The first line begins behind an imagined line feed at -1; a difference includes the line feed.
        widths = [int(np.diff(ends, prepend=-1).max(initial=1)) - 1 for ends in self._ends]
        width = max(widths, default=0)
        if width > _MAX_FIXED_WIDTH or any(data.find(b"\0") >= 0 for data in self._maps):
            return None
        out = np.zeros((len(self), max(1, width)), np.uint8)
        for data, ends, first in zip(self._maps, self._ends, self._starts.tolist(), strict=False):
            raw = np.frombuffer(data, np.uint8)
            starts = ends
            if len(ends):
                starts = np.concatenate(([0], ends[:-1] + 1))
            # One byte of all lines at a time; shorter lines keep their zeros, which numpy ignores at the end.
            for byte in range(width):
                has_byte = starts + byte < ends
                out[first : first + len(ends), byte][has_byte] = raw[starts[has_byte] + byte]
        return out.view(f"S{out.shape[1]}").ravel()


def _line_ends(data: mmap.mmap | bytes) -> np.ndarray:
    """Where the line feeds are: (n,) int64."""
    raw = np.frombuffer(data, np.uint8)
    ends = [np.zeros(0, np.int64)]
    for start in range(0, len(raw), _BLOCK):
        block = raw[start : start + _BLOCK]
        ends.append(start + np.flatnonzero(block == ord("\n")))
    return np.concatenate(ends)


def read_lines(path: Path) -> list[str]:
    """UTF-8 lines, each ended by a line feed. Raises :class:`IndexMismatch` for a missing file."""
    # Not splitlines(): vocabularies contain characters that it treats as line ends.
    try:
        return path.read_bytes().decode("utf-8").split("\n")[:-1]
    except FileNotFoundError:
        raise IndexMismatch(f"{path} is missing; {AGAIN}") from None
    except UnicodeDecodeError:
        raise IndexMismatch(f"{path} is damaged: not UTF-8 text; {AGAIN}") from None
