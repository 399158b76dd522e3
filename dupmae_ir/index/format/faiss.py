"""Flat inner-product indexes on disk, byte-identical to those that faiss writes, but streamed.

``IndexFlatIP.add`` keeps every vector in memory until it is written. A flat index file is a short header followed by
the vectors, row after row, so :class:`FlatWriter` writes faiss's header, appends vectors as they arrive and writes the
count at the end. Memory does not grow with the collection. The vectors are mapped from the file without faiss, whose
import takes a twentieth of a second.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from dupmae_ir.errors import IndexMismatch
from dupmae_ir.index.format.forward import RowWriter

_UNUSED = 1 << 20
"""What faiss writes for two fields that it does not use."""


def _header(dim: int, rows: int) -> bytes:
    """What faiss writes first: type, width, rows, two unused fields, trained, metric, and how many numbers follow."""
    # Metric 0 is the inner product. "<": little-endian, without the padding that a C struct would have.
    return b"IxFI" + struct.pack("<iqqqBiQ", dim, rows, _UNUSED, _UNUSED, True, 0, rows * dim)


def vectors_offset(dim: int) -> int:
    """Bytes before the first vector in a flat index file."""
    return len(_header(dim, 0))


class FlatWriter(RowWriter):
    """Writes an ``IndexFlatIP`` of width ``dim`` to ``path`` without keeping it in memory.

    Until it is closed, faiss reads the file as an empty index.
    """

    def __init__(self, path: str | Path, dim: int) -> None:
        self.dim = dim
        super().__init__(path, np.float32)

    def header(self) -> bytes:
        """As faiss writes it."""
        return _header(self.dim, self.count)

    def add(self, values: np.ndarray) -> None:
        """Append (n, dim) vectors, stored as float32.

        Raises :class:`IndexMismatch` for another width and for values that are not finite.
        """
        if values.ndim != 2 or values.shape[1] != self.dim:
            raise IndexMismatch(
                f"{self.path} takes vectors of width {self.dim}, got an array of shape {values.shape}"
            )
        # After the conversion: a float64 that is finite may be infinite in float32.
        block = np.ascontiguousarray(values, dtype=self.dtype)
        if not np.isfinite(block).all():
            row = self.count + int(np.flatnonzero(~np.isfinite(block).all(axis=1))[0])
            raise IndexMismatch(
                f"{self.path}: vector {row} is not finite; check the model's weights and `dtype`"
            )
        super().add(block)


def read_index(path: str | Path, mapped: bool = True) -> Any:
    """Open an index with faiss; ``mapped`` maps its data instead of reading them, where faiss can (1.10 and later)."""
    import faiss

    flag = 0
    if mapped:
        flag = getattr(faiss, "IO_FLAG_MMAP_IFC", 0)
    return faiss.read_index(str(path), flag)


def mapped_vectors(path: str | Path, rows: int, dim: int) -> np.ndarray:
    """The (rows, dim) float32 vectors of a flat index file, mapped and read-only."""
    if not rows:
        return np.zeros((0, dim), np.float32)
    return np.asarray(np.memmap(path, "<f4", "r", vectors_offset(dim), (rows, dim)))
