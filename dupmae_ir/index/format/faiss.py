"""Flat inner-product indexes on disk, byte-identical to those that faiss writes, but streamed.

``IndexFlatIP.add`` keeps every vector in memory until it is written. A flat index file is a short header followed by
the vectors, row after row, so :class:`FlatWriter` writes faiss's header, appends vectors as they arrive and writes the
count at the end. Memory does not grow with the collection. The vectors are mapped from the file without faiss, whose
import takes a twentieth of a second.
"""

from __future__ import annotations

import struct
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from dupmae_ir.errors import IndexMismatch

_UNUSED = 1 << 20
"""What faiss writes for two fields that it does not use."""


def _header(dim: int, rows: int) -> bytes:
    """What faiss writes first: type, width, rows, two unused fields, trained, metric, and how many numbers follow."""
    return b"IxFI" + struct.pack("<iqqqBiQ", dim, rows, _UNUSED, _UNUSED, True, 0, rows * dim)


def vectors_offset(dim: int) -> int:
    """Bytes before the first vector in a flat index file."""
    return len(_header(dim, 0))


class FlatWriter:
    """Writes an ``IndexFlatIP`` of width ``dim`` to ``path`` without keeping it in memory."""

    def __init__(self, path: str | Path, dim: int) -> None:
        self.path = Path(path)
        self.dim = dim
        self.rows = 0
        self._file: IO[bytes] = open(self.path, "wb")  # noqa: SIM115 (closed by close)
        self._file.write(_header(dim, 0))

    def add(self, vectors: np.ndarray) -> None:
        """Append (n, dim) vectors, stored as float32.

        Raises :class:`IndexMismatch` for another width and for values that are not finite.
        """
        if vectors.ndim != 2 or vectors.shape[1] != self.dim:
            raise IndexMismatch(f"{self.path} takes vectors of width {self.dim}, got an array of shape {vectors.shape}")
        block = np.ascontiguousarray(vectors, dtype="<f4")
        if not np.isfinite(block).all():
            row = self.rows + int(np.flatnonzero(~np.isfinite(block).all(axis=1))[0])
            raise IndexMismatch(f"{self.path}: vector {row} is not finite; check the model's weights and `dtype`")
        self._file.write(block.data if block.size else b"")
        self.rows += len(block)

    def close(self) -> None:
        """Write the count and close the file. Until then faiss reads the file as an empty index."""
        if self._file.closed:
            return
        with self._file:  # closed also when the disk is full
            self._file.seek(0)
            self._file.write(_header(self.dim, self.rows))

    def __enter__(self) -> FlatWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()


def read_index(path: str | Path, mapped: bool = True) -> Any:
    """Open an index with faiss; ``mapped`` maps its data instead of reading them, where faiss can (1.10 and later)."""
    import faiss

    flag = getattr(faiss, "IO_FLAG_MMAP_IFC", 0) if mapped else 0
    return faiss.read_index(str(path), flag)


def mapped_vectors(path: str | Path, rows: int, dim: int) -> np.ndarray:
    """The (rows, dim) float32 vectors of a flat index file, mapped and read-only."""
    if not rows:
        return np.zeros((0, dim), np.float32)
    return np.asarray(np.memmap(path, "<f4", "r", vectors_offset(dim), (rows, dim)))


def flat_problem(path: str | Path, rows: int, dim: int) -> str | None:
    """Why ``path`` is not a flat inner-product index of (rows, dim); None when it is. Reads the header only."""
    path = Path(path)
    if not path.is_file():
        return f"{path} is missing"
    expected = vectors_offset(dim) + rows * dim * 4
    with open(path, "rb") as f:
        head = f.read(vectors_offset(dim))
    if head[:4] != _header(dim, rows)[:4]:
        return f"{path} is not a flat inner-product faiss index"
    if head != _header(dim, rows):
        found_dim, found_rows = struct.unpack_from("<iq", head, 4) if len(head) >= 16 else (0, 0)
        return f"{path} has {found_rows} vectors of width {found_dim}, expected {rows} of width {dim}"
    if (size := path.stat().st_size) != expected:
        return f"{path} is {'truncated' if size < expected else 'too long'}: {size} bytes, expected {expected}"
    return None
