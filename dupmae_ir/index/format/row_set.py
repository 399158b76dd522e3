"""A subset of an index's rows, to which a search can be restricted."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from dupmae_ir.errors import UsageError


class RowSet:
    """Some rows of an index, with the forms in which faiss, Lucene and the compiled loops take them.

    Compared by identity. ``len`` is the number of rows in the set, ``documents`` the number of rows of the index.
    """

    def __init__(self, mask: np.ndarray, count: int | None = None) -> None:
        """``mask``: (n,) bool, True for the rows of the set. Copied. ``count``: the number of rows in the set, if
        ``mask`` has more."""
        self.mask = np.array(mask, dtype=np.bool_)
        # Read-only: the cached forms below stay true, and compiled loops see one type of array.
        self.mask.flags.writeable = False
        self.documents = len(self.mask)
        if count is None:
            count = int(np.count_nonzero(self.mask))
        self._count = count

    def __len__(self) -> int:
        return self._count

    @cached_property
    def rows(self) -> np.ndarray:
        """The rows, ascending: (m,) int64."""
        return np.flatnonzero(self.mask)

    @cached_property
    def bits(self) -> np.ndarray:
        """One bit per row, lowest first, padded to whole 64-bit words: uint8."""
        packed = np.packbits(self.mask, bitorder="little")
        return np.pad(packed, (0, -len(packed) % 8))

    def between(self, first: int, last: int) -> np.ndarray:
        """The rows from ``first`` to ``last`` (exclusive), ascending: int64."""
        start, stop = np.searchsorted(self.rows, (first, last))
        return self.rows[start:stop]

    def blocks(self, size: int) -> Iterator[np.ndarray]:
        """The rows, ascending, at most ``size`` at a time."""
        return (self.rows[start : start + size] for start in range(0, len(self), size))


def row_set(allowed: np.ndarray | RowSet | None, documents: int) -> RowSet | None:
    """``allowed`` as a :class:`RowSet`; None if it contains every row, or is None.

    Raises :class:`UsageError` for a mask that is not (``documents``,) bool.
    """
    if allowed is None:
        return None
    if not isinstance(allowed, RowSet):
        if allowed.dtype != np.bool_ or allowed.shape != (documents,):
            raise UsageError(
                f"allowed rows must be a mask of shape ({documents},) and type bool, got {allowed.shape} of "
                f"{allowed.dtype}"
            )
        allowed = RowSet(allowed)
    if allowed.documents != documents:
        raise UsageError(
            f"the allowed rows are those of {allowed.documents:,} documents; the index has {documents:,}"
        )
    if len(allowed) == documents:
        return None
    return allowed
