"""What smaller postings would gain and cost: gaps of 8 bits between rows, in place of rows of 16 bits.

    python benchmarks/posting_gaps.py [--repeats 7]

Row 13 of the third table of benchmarks/archive.md. One window of 65,536 made-up documents (impact_engine.py). A term's
rows are either stored as they are, two bytes each, or as gaps of one byte; a gap above 255 takes entries of impact 0 in
between. Each term takes the smaller form. Columns are as in the package, or for more frequent terms only, since they
take as much room as postings of one row in three, or with gaps in two. The time is that of adding postings to an
accumulator, on one thread, by how many postings a term has.

Gate: both forms give the same sums.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import harness
import numpy as np
import scipy.sparse as sp
from impact_engine import Collection

from dupmae_ir.compiled import compiled
from dupmae_ir.console import table
from dupmae_ir.index.postings.format import DENSE, WINDOW

FROM_ONE_IN = (DENSE, 4, 3, 2)
"""Terms of at least one row in this many have a column."""
BOUNDS = (300, 512, 1024, 2048, 4096, 8192)
MOST_TERMS = 400
"""Terms that are added in a turn."""
LARGEST_GAP = 255


class Postings(NamedTuple):
    """A term's (m,) impacts, uint8, and places: rows (uint16), or gaps (uint8) with entries of impact 0 between."""

    places: np.ndarray
    impacts: np.ndarray


@compiled
def add_rows(rows, impacts, weight, sums):  # type: ignore[no-untyped-def]
    """What the package does."""
    for i in range(len(rows)):
        sums[rows[i]] += weight * np.int32(impacts[i])


@compiled
def add_gaps(gaps, impacts, weight, sums):  # type: ignore[no-untyped-def]
    """The same for gaps: each row needs the one before."""
    row = np.int64(-1)
    for i in range(len(gaps)):
        row += np.int64(gaps[i])
        sums[row] += weight * np.int32(impacts[i])


def in_gaps(rows: np.ndarray, impacts: np.ndarray) -> Postings:
    """The postings of (m,) ascending rows as gaps."""
    gaps = np.diff(rows.astype(np.int64), prepend=-1)
    between = (gaps - 1) // LARGEST_GAP
    ends = np.cumsum(between + 1) - 1
    small = np.full(len(rows) + between.sum(), LARGEST_GAP, np.uint8)
    small[ends] = gaps - LARGEST_GAP * between
    weights = np.zeros(len(small), np.uint8)
    weights[ends] = impacts
    return Postings(small, weights)


def sizes(by_term: sp.csc_matrix, entries: np.ndarray) -> list[list[str]]:
    """Bytes a posting for each choice of columns: with rows alone, and with the smaller form of each term."""
    counts = np.diff(by_term.indptr)
    rows = []
    for share in FROM_ONE_IN:
        has_column = counts >= by_term.shape[0] / share
        columns = by_term.shape[0] * has_column.sum()
        as_rows = 3 * counts[~has_column]
        smaller = np.minimum(as_rows, 2 * entries[~has_column])
        sums = (columns + as_rows.sum(), columns + smaller.sum())
        rows.append([f"1 in {share}", *(f"{total / by_term.nnz:.2f}" for total in sums)])
    return rows


def nanoseconds(
    add: Callable[..., None], terms: list[Postings], repeats: int, postings: int
) -> float:
    """The shortest time of adding a posting."""
    sums = np.zeros(WINDOW, np.int32)
    best = math.inf
    for _ in range(repeats + 1):
        began = time.perf_counter()
        for term in terms:
            add(term.places, term.impacts, np.int32(3), sums)
        best = min(best, time.perf_counter() - began)
    return 1e9 * best / postings


def sums_of(add: Callable[..., None], terms: list[Postings]) -> np.ndarray:
    sums = np.zeros(WINDOW, np.int32)
    for term in terms:
        add(term.places, term.impacts, np.int32(3), sums)
    return sums


def main() -> None:
    args = harness.arguments(__doc__, repeats=7).parse_args()
    by_term = sp.vstack(list(Collection(WINDOW).batches())).tocsc()
    by_term.sort_indices()
    counts = np.diff(by_term.indptr)
    terms = {}
    for term in np.flatnonzero(counts).tolist():
        part = slice(by_term.indptr[term], by_term.indptr[term + 1])
        terms[term] = (by_term.indices[part].astype(np.uint16), by_term.data[part])
    gaps = {term: in_gaps(*postings) for term, postings in terms.items()}
    entries = np.zeros_like(counts)
    entries[list(gaps)] = [len(postings.places) for postings in gaps.values()]
    print(table(sizes(by_term, entries), ["columns from", "rows", "rows or gaps"]))

    rows = []
    for low, high in zip(BOUNDS, BOUNDS[1:], strict=False):
        chosen = np.flatnonzero((counts >= low) & (counts < high)).tolist()[:MOST_TERMS]
        as_rows = [Postings(*terms[term]) for term in chosen]
        as_gaps = [gaps[term] for term in chosen]
        assert np.array_equal(sums_of(add_rows, as_rows), sums_of(add_gaps, as_gaps))
        postings = int(counts[chosen].sum())
        took = [
            nanoseconds(add, form, args.repeats, postings)
            for add, form in ((add_rows, as_rows), (add_gaps, as_gaps))
        ]
        size = 2 * entries[chosen].sum() / postings
        rows.append([f"{low:,} to {high - 1:,}", f"{size:.2f}", *(f"{each:.2f}" for each in took)])
    print(table(rows, ["postings of a term", "bytes in gaps", "rows, ns", "gaps, ns"]))


if __name__ == "__main__":
    main()
