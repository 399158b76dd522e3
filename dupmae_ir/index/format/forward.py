"""The forward index: the impacts by document, for exact scores of any candidate.

Three numpy files, memory-mapped if they are large, a CSR matrix of the same impacts as in the Lucene index:
``indptr.npy`` (n + 1,) int64, ``terms.npy`` (p,) uint16 or uint32 vocabulary ids, ``impacts.npy`` (p,) uint8. A fourth,
``frequencies.npy`` (V,) int64, has the number of documents of each term, which could be counted from ``terms.npy``.
"""

from __future__ import annotations

import contextlib
import functools
import io
import mmap
from abc import ABC, abstractmethod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np

from dupmae_ir.device import pays
from dupmae_ir.errors import IndexMismatch

if TYPE_CHECKING:
    import scipy.sparse as sp

FILES = ("indptr.npy", "terms.npy", "impacts.npy")
FREQUENCIES = "frequencies.npy"
SMALL = 1 << 18
"""Bytes of a file that is read instead of mapped: a mapped file is an open one, and an index that follows a folder has
hundreds of small files, of which a process may have 1,024 (on macOS 256)."""
_BLOCK = 1 << 22
"""Postings scored at a time, which bounds the scratch memory at about 100 MB."""


def term_dtype(vocabulary: int) -> np.dtype[Any]:
    """The narrowest type for all vocabulary ids."""
    return np.dtype(np.uint16 if vocabulary <= 1 << 16 else np.uint32)


def entries_of_rows(starts: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The entries of some rows, in the order of the rows: where those of each row begin (m + 1,), and the position of
    each entry in the files. ``starts``: (n + 1,), where the entries of each row begin in the files."""
    lengths = np.diff(starts)[rows]
    own_starts = np.cumsum([0, *lengths])
    # The position among the entries, moved from its row's start there to its row's start in the files.
    positions = np.arange(own_starts[-1]) + np.repeat(starts[rows] - own_starts[:-1], lengths)
    return own_starts, positions


class PartWriter(ABC):
    """Writes a part of an index. Leaving the context manager finishes it; after an error, it is abandoned."""

    @abstractmethod
    def close(self) -> None:
        """Finish the part and close its files."""

    @abstractmethod
    def abandon(self) -> None:
        """Close the files without finishing the part."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()


class RowWriter(PartWriter):
    """Writes a file of rows in pieces, after a header that contains their number."""

    def __init__(self, path: str | Path, dtype: np.dtype[Any] | type) -> None:
        self.path = Path(path)
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.count = 0
        self._file: IO[bytes] = open(self.path, "wb")  # noqa: SIM115 (closed by close)
        self._file.write(self.header())

    @abstractmethod
    def header(self) -> bytes:
        """The header for the rows so far; its length does not depend on their number."""

    def add(self, values: np.ndarray) -> None:
        """Append rows."""
        block = np.ascontiguousarray(values, dtype=self.dtype)
        if block.size:
            self._file.write(block.data)
        self.count += len(block)

    def close(self) -> None:
        """Write the number of rows into the header and close the file."""
        if self._file.closed:
            return
        with self._file:  # closed also when the disk is full
            self._file.seek(0)
            self._file.write(self.header())

    def abandon(self) -> None:
        """Close the file; its header records no rows."""
        self._file.close()


class NpyWriter(RowWriter):
    """Writes a one-dimensional ``.npy`` file. numpy pads the header, so the count can grow in place."""

    def header(self) -> bytes:
        """As :func:`numpy.save` writes it."""
        described = {
            "descr": np.lib.format.dtype_to_descr(self.dtype),
            "fortran_order": False,
            "shape": (self.count,),
        }
        buffer = io.BytesIO()
        np.lib.format.write_array_header_1_0(buffer, described)
        return buffer.getvalue()


class ForwardWriter(PartWriter):
    """Writes a forward index into ``folder``, row by row."""

    def __init__(self, folder: str | Path, vocabulary: int) -> None:
        folder = Path(folder)
        self._indptr = NpyWriter(folder / "indptr.npy", np.int64)
        self._terms = NpyWriter(folder / "terms.npy", term_dtype(vocabulary))
        self._impacts = NpyWriter(folder / "impacts.npy", np.uint8)
        self._frequencies = np.zeros(vocabulary, np.int64)
        self._folder = folder
        self._indptr.add(np.zeros(1, np.int64))

    @property
    def postings(self) -> int:
        """Impacts written so far."""
        return self._terms.count

    def add(self, indptr: np.ndarray, terms: np.ndarray, impacts: np.ndarray) -> None:
        """Append the rows of a CSR matrix; ``impacts`` in 1..255."""
        # Before the terms are added: the new rows begin where the postings end so far.
        self._indptr.add(indptr[1:] - indptr[0] + self.postings)
        self._terms.add(terms)
        self._impacts.add(impacts)
        np.add.at(self._frequencies, terms, 1)

    def close(self) -> None:
        """Finish all files; when one fails, close the others too."""
        with contextlib.ExitStack() as files:
            for part in (self._indptr, self._terms, self._impacts):
                files.callback(part.close)
            np.save(self._folder / FREQUENCIES, self._frequencies, allow_pickle=False)

    def abandon(self) -> None:
        """Close all files; when one fails, as on a full disk, close the others too."""
        with contextlib.ExitStack() as files:
            for part in (self._indptr, self._terms, self._impacts):
                files.callback(part.abandon)


class Forward:
    """n documents: ``indptr`` (n + 1,) int64, ``terms`` (p,) ids below ``vocabulary``, ``impacts`` (p,) uint8."""

    def __init__(
        self,
        indptr: np.ndarray,
        terms: np.ndarray,
        impacts: np.ndarray,
        vocabulary: int,
        frequencies: np.ndarray | None = None,
    ) -> None:
        self.indptr = indptr
        self.terms = terms
        self.impacts = impacts
        self.vocabulary = vocabulary
        self._frequencies = frequencies

    @classmethod
    def open(cls, folder: str | Path, vocabulary: int) -> Forward:
        """Map the files. Raises :class:`IndexMismatch` for one that is missing, truncated or inconsistent."""
        folder = Path(folder)
        indptr, terms, impacts = (mapped(folder / name) for name in FILES)
        end = int(indptr[-1]) if len(indptr) else None
        if end is None or end != len(terms) or len(terms) != len(impacts):
            shown_end = "nothing" if end is None else end
            raise IndexMismatch(
                f"{folder}: {len(terms)} terms, {len(impacts)} impacts and offsets up to {shown_end} do not belong "
                "together; encode the collection again"
            )
        frequencies = None
        if (folder / FREQUENCIES).is_file():
            frequencies = mapped(folder / FREQUENCIES)
        return cls(indptr, terms, impacts, vocabulary, frequencies)

    @functools.cached_property
    def frequencies(self) -> np.ndarray:
        """(V,) int64: the number of documents of each term; counted if the index does not store it.

        Raises :class:`IndexMismatch` for stored numbers of another index.
        """
        if self._frequencies is None:
            counts = np.zeros(self.vocabulary, np.int64)
            for start in range(0, len(self.terms), _BLOCK):
                counts += np.bincount(self.terms[start : start + _BLOCK], minlength=self.vocabulary)
            return counts
        total = int(self._frequencies.sum())
        if len(self._frequencies) != self.vocabulary or total != len(self.terms):
            raise IndexMismatch(
                f"{FREQUENCIES} of the forward index does not belong to its terms; remove the file, and it is counted "
                "again at every search"
            )
        return self._frequencies

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def frequencies_of(self, rows: np.ndarray) -> np.ndarray:
        """(V,) int64: the number of documents of each term among ``rows``, (n,) bool."""
        postings = np.repeat(rows, np.diff(self.indptr))
        return np.bincount(self.terms[postings], minlength=len(self.frequencies))

    def row(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Vocabulary ids and impacts of one document."""
        start = int(self.indptr[row])
        end = int(self.indptr[row + 1])
        return np.asarray(self.terms[start:end]), np.asarray(self.impacts[start:end])

    def matrix(self, rows: np.ndarray) -> sp.csr_matrix:
        """(m, V) uint8 CSR: the impacts of some rows, in their order."""
        from scipy.sparse import csr_matrix  # takes longer to import than a search of a small index

        indptr, positions = entries_of_rows(self.indptr, rows)
        impacts = self.impacts[positions]
        terms = self.terms[positions].astype(np.int32)
        return csr_matrix((impacts, terms, indptr), shape=(len(rows), self.vocabulary))

    def scores(
        self, rows: np.ndarray, query_ids: np.ndarray, query_impacts: np.ndarray
    ) -> np.ndarray:
        """Exact inner products with one query: (m,) rows, (t,) vocabulary ids, (t,) impacts -> (m,) int64.

        Ids beyond the vocabulary are of terms that only other segments have.
        """
        table = np.zeros(self.vocabulary, np.int64)
        has_term = query_ids < self.vocabulary
        table[query_ids[has_term]] = query_impacts[has_term]
        rows = np.asarray(rows, dtype=np.int64)
        # Compiled code checks no bounds.
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"rows {rows.min()} to {rows.max()} of {len(self)}")
        postings = int((self.indptr[rows + 1] - self.indptr[rows]).sum())
        if not pays(postings):
            return self._numpy_scores(rows, table)
        from dupmae_ir.index.postings import kernels

        out = np.empty(len(rows), np.int64)
        kernels.inner_products(self.indptr, self.terms, self.impacts, rows, table, out)
        return out

    def _numpy_scores(self, rows: np.ndarray, table: np.ndarray) -> np.ndarray:
        """As :meth:`scores`, from the (V,) int64 impacts of the query, without numba."""
        starts = self.indptr[rows]
        lengths = self.indptr[rows + 1] - starts
        out = np.zeros(len(rows), np.int64)
        ends = np.cumsum(lengths)
        first = 0
        while first < len(rows):
            # As many complete rows as fit a block, at least one.
            before = ends[first - 1] if first else 0
            last = max(first + 1, int(np.searchsorted(ends, before + _BLOCK, side="right")))
            out[first:last] = self._score_block(starts[first:last], lengths[first:last], table)
            first = last
        return out

    def _score_block(
        self, starts: np.ndarray, lengths: np.ndarray, table: np.ndarray
    ) -> np.ndarray:
        out = np.zeros(len(starts), np.int64)
        # reduceat cannot reduce an empty slice, so rows without terms keep their 0.
        has_terms = lengths > 0
        starts = starts[has_terms]
        lengths = lengths[has_terms]
        if not len(starts):
            return out
        begins = np.cumsum(lengths) - lengths
        # As in :meth:`matrix`: positions in the files, row after row.
        positions = np.arange(int(lengths.sum())) + np.repeat(starts - begins, lengths)
        products = table[self.terms[positions]] * self.impacts[positions]
        out[has_terms] = np.add.reduceat(products, begins)
        return out


def map_bytes(path: Path) -> mmap.mmap | bytes:
    """The bytes of a file: mapped, or read if they are few."""
    if path.stat().st_size <= SMALL:
        return path.read_bytes()
    with open(path, "rb") as f:
        return mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)


def mapped(path: Path, fix: str = "encode the collection again") -> np.ndarray:
    """A one-dimensional ``.npy`` file, read-only: mapped, or read if it is small.

    Raises :class:`IndexMismatch` that ends with ``fix``.
    """
    try:
        is_small = path.stat().st_size <= SMALL
        array = np.load(path, mmap_mode=None if is_small else "r", allow_pickle=False)
    except FileNotFoundError:
        raise IndexMismatch(f"{path} is missing; {fix}") from None
    except (ValueError, EOFError) as e:
        raise IndexMismatch(f"{path} is damaged or truncated ({e}); {fix}") from None
    if array.ndim != 1:
        raise IndexMismatch(f"{path} is not one-dimensional; {fix}")
    array.flags.writeable = False
    return array.view(np.ndarray)


def release(array: np.ndarray) -> None:
    """Give back the memory of a mapped file's pages; the next use reads the file again.

    Nothing is lost: what was written to a shared mapping stays in the system's cache of the file.
    """
    # An array may be a view of a view; the first array in the chain has the mapping as its base.
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        owner.madvise(mmap.MADV_DONTNEED)
