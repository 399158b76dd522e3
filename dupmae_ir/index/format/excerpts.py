"""The vectors of excerpts of documents, on disk, written as documents arrive and mapped when they are searched.

starts.npy   (n + 1,) int64: document i has the excerpts starts[i] to starts[i + 1]
codes.npy    (m d,) int8, row after row
steps.npy    (m,) float32: the vector of an excerpt is its step times its codes
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from dupmae_ir.errors import IndexMismatch
from dupmae_ir.index.format.forward import NpyWriter, PartWriter, entries_of_rows, mapped
from dupmae_ir.index.format.integrity import AGAIN

FILES = ("starts.npy", "codes.npy", "steps.npy")


@dataclass(frozen=True)
class Excerpts:
    """The vectors of the excerpts of ``n`` documents, as whole numbers of one byte.

    Document ``i`` has the excerpts ``starts[i]`` to ``starts[i + 1]``; one that is no longer than an excerpt has none.
    ``starts``: (n + 1,) int64. ``codes``: (m, d) int8. ``steps``: (m,) float32; the vector of an excerpt is its step
    times its codes.
    """

    starts: np.ndarray
    codes: np.ndarray
    steps: np.ndarray

    def __len__(self) -> int:
        return len(self.starts) - 1

    @classmethod
    def of(cls, vectors: np.ndarray, counts: Sequence[int]) -> Self:
        """The codes of (m, d) float32 vectors, of which each document has one of ``counts``, in order."""
        steps = np.abs(vectors).max(axis=1, initial=0.0).astype(np.float32) / np.float32(127)
        steps[steps == 0] = 1.0
        codes = np.rint(vectors / steps[:, None]).astype(np.int8)
        return cls(np.cumsum([0, *counts]), codes, steps)

    def of_rows(self, rows: np.ndarray) -> Self:
        """The excerpts of some documents, in their order: (m,) int64 rows."""
        starts, numbers = entries_of_rows(self.starts, rows)
        return type(self)(starts, self.codes[numbers], self.steps[numbers])

    def times(self, factors: np.ndarray) -> Self:
        """With the vectors of each document multiplied by one of (n,) float32 ``factors``."""
        steps = self.steps * np.repeat(factors, np.diff(self.starts))
        return type(self)(self.starts, self.codes, steps)


class ExcerptWriter(PartWriter):
    """Writes the excerpts of documents into ``folder``, which exists, document by document."""

    def __init__(self, folder: Path) -> None:
        self._starts = NpyWriter(folder / "starts.npy", np.int64)
        self._codes = NpyWriter(folder / "codes.npy", np.int8)
        self._steps = NpyWriter(folder / "steps.npy", np.float32)
        self._starts.add(np.zeros(1, np.int64))

    def add(self, excerpts: Excerpts) -> None:
        """Append the excerpts of documents."""
        # Before the steps are added: the new documents begin where the excerpts end so far.
        self._starts.add(excerpts.starts[1:] - excerpts.starts[0] + self._steps.count)
        self._codes.add(excerpts.codes.ravel())
        self._steps.add(excerpts.steps)

    def close(self) -> None:
        """Finish all files; when one fails, close the others too."""
        with contextlib.ExitStack() as files:
            for part in self._parts():
                files.callback(part.close)

    def abandon(self) -> None:
        """Close all files; when one fails, as on a full disk, close the others too."""
        with contextlib.ExitStack() as files:
            for part in self._parts():
                files.callback(part.abandon)

    def _parts(self) -> Sequence[NpyWriter]:
        return self._starts, self._codes, self._steps


def open_excerpts(folder: Path, documents: int, dim: int) -> Excerpts:
    """Map the files. Raises :class:`IndexMismatch` for one that is missing, truncated or inconsistent."""
    starts, codes, steps = (mapped(folder / name) for name in FILES)
    end = int(starts[-1]) if len(starts) else -1
    is_ascending = len(starts) == documents + 1 and starts[0] == 0 and (np.diff(starts) >= 0).all()
    if not is_ascending or end != len(steps) or len(codes) != end * dim:
        raise IndexMismatch(
            f"{folder}: {len(starts)} offsets, {len(steps)} steps and {len(codes)} codes do not belong to "
            f"{documents} documents with vectors of width {dim}; {AGAIN}"
        )
    if not np.isfinite(steps).all():
        raise IndexMismatch(f"{folder / 'steps.npy'} has a step that is not finite; {AGAIN}")
    return Excerpts(starts, codes.reshape(-1, dim), steps)
