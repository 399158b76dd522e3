"""What smaller postings would gain and cost: words of 16 bits with a gap and an impact, in place of 24 bits.

    python benchmarks/posting_words.py [--index FOLDER] [--repeats 9]

Row 13 of the third table of benchmarks/archive.md. One window of 65,536 made-up documents (impact_engine.py), or of the
first segment of an index. A posting of the package is a row of 16 bits and an impact of 8. Here it is a word: some high
bits for the gap to the row before, the others for the impact; what does not fit takes further words. Each term has its
own number of bits for gaps, the one with the fewest words; where that is more than two words a posting, a word each for
row and impact is counted. Columns are as in the package, or for more frequent terms only, since a column takes as much
room as smaller postings of more rows. What is timed is the loop that adds postings to an accumulator, on one thread,
for terms of different frequency.

Gate: both forms give the same sums.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import harness
import numpy as np
import scipy.sparse as sp
from impact_engine import Collection

from dupmae_ir.compiled import compiled
from dupmae_ir.console import table
from dupmae_ir.index.index import Index
from dupmae_ir.index.postings import kernels
from dupmae_ir.index.postings.format import DENSE, WINDOW

FROM_ONE_IN = (DENSE, 4, 3, 2)
"""Terms of at least one row in this many have a column."""
BOUNDS = (100, 300, 512, 1024, 2048, 4096, 8192)
MOST_TERMS = 400
"""Terms that are added in a turn."""
GAP_BITS = range(6, 13)


class Pairs(NamedTuple):
    """A term's (m,) rows, uint16, and impacts, uint8."""

    rows: np.ndarray
    impacts: np.ndarray


class Words(NamedTuple):
    """A term's (w,) words, uint16, and how many low bits of each are for the impact."""

    words: np.ndarray
    impact_bits: np.int64


@compiled
def add_words(words, impact_bits, weight, sums):  # type: ignore[no-untyped-def]
    """As the package's :func:`~dupmae_ir.index.postings.kernels._add_postings`, for words."""
    row = np.int64(-1)
    mask = np.int32((1 << impact_bits) - 1)
    for i in range(len(words)):
        word = np.int64(words[i])
        row += word >> impact_bits
        sums[row] += weight * (np.int32(word) & mask)


def largest(gap_bits: int) -> tuple[int, int]:
    """The largest gap and the largest impact in a word of 16 bits."""
    return (1 << gap_bits) - 1, (1 << (16 - gap_bits)) - 1


def word_counts(pairs: Pairs, gap_bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Words (m,) that a posting takes before its row is reached, and after that for the rest of its impact."""
    gaps = np.diff(pairs.rows.astype(np.int64), prepend=-1)
    largest_gap, largest_impact = largest(gap_bits)
    return (gaps - 1) // largest_gap, (pairs.impacts.astype(np.int64) - 1) // largest_impact


def in_words(pairs: Pairs) -> Words:
    """Postings as words, with the number of bits for gaps that needs the fewest."""
    totals = {bits: sum(map(np.sum, word_counts(pairs, bits))) for bits in GAP_BITS}
    gap_bits = min(totals, key=totals.__getitem__)
    largest_gap, largest_impact = largest(gap_bits)
    words = list[int]()
    row = -1
    for next_row, impact in zip(pairs.rows.tolist(), pairs.impacts.tolist(), strict=True):
        gap = next_row - row
        while gap > largest_gap:
            words.append(largest_gap << (16 - gap_bits))
            gap -= largest_gap
        rest = impact
        while rest > largest_impact:
            words.append(gap << (16 - gap_bits) | largest_impact)
            gap = 0
            rest -= largest_impact
        words.append(gap << (16 - gap_bits) | rest)
        row = next_row
    return Words(np.array(words, np.uint16), np.int64(16 - gap_bits))


def impacts_of(index: Path | None) -> sp.csr_matrix:
    """(n, V) uint8 impacts of a window."""
    if index is None:
        return sp.vstack(list(Collection(WINDOW).batches()))
    forward = Index.open(index).segments[0].forward
    indptr = forward.indptr[: WINDOW + 1]
    postings = slice(0, int(indptr[-1]))
    shape = (len(indptr) - 1, forward.vocabulary)
    return sp.csr_matrix((forward.impacts[postings], forward.terms[postings], indptr), shape)


def sizes(documents: int, counts: np.ndarray, words: np.ndarray) -> list[list[str]]:
    """Bytes a posting for each choice of columns, with pairs and with words."""
    rows = []
    for share in FROM_ONE_IN:
        has_column = counts >= documents / share
        columns = documents * has_column.sum()
        pairs_size = columns + 3 * counts[~has_column].sum()
        words_size = columns + 2 * np.minimum(words, 2 * counts)[~has_column].sum()
        sums = (pairs_size, words_size)
        label = f"bytes a posting, columns from 1 row in {share}"
        rows.append([label, *(f"{size / counts.sum():.2f}" for size in sums), ""])
    return rows


def sums_of(add: Callable[..., None], terms: Sequence[tuple[Any, Any]]) -> np.ndarray:
    """The accumulator after adding some terms."""
    sums = np.zeros(WINDOW, np.int32)
    for term in terms:
        add(*term, np.int32(3), sums)
    return sums


def main() -> None:
    parser = harness.arguments(__doc__, repeats=9)
    parser.add_argument(
        "--index", type=Path, help="index with impacts (default: made-up documents)"
    )
    args = parser.parse_args()
    by_term = impacts_of(args.index).tocsc()
    by_term.sort_indices()
    counts = np.diff(by_term.indptr)
    pairs = []
    for start, end in itertools.pairwise(by_term.indptr.tolist()):
        rows = by_term.indices[start:end].astype(np.uint16)
        pairs.append(Pairs(rows, by_term.data[start:end]))
    words = list(map(in_words, pairs))
    word_counts_by_term = np.array([len(term.words) for term in words])
    lines = sizes(by_term.shape[0], counts, word_counts_by_term)
    for low, high in itertools.pairwise(BOUNDS):
        chosen = np.flatnonzero((counts >= low) & (counts < high)).tolist()[:MOST_TERMS]
        if not chosen:
            continue
        forms = {
            kernels._add_postings: [pairs[term] for term in chosen],
            add_words: [words[term] for term in chosen],
        }
        sums = [sums_of(add, terms) for add, terms in forms.items()]
        assert np.array_equal(*sums)
        seconds = dict.fromkeys(forms, math.inf)
        for _ in range(args.repeats):
            for add, terms in forms.items():
                began = time.perf_counter()
                sums_of(add, terms)
                seconds[add] = min(seconds[add], time.perf_counter() - began)
        postings = int(counts[chosen].sum())
        times = [f"{1e9 * took / postings:.2f}" for took in seconds.values()]
        ratio = seconds[kernels._add_postings] / seconds[add_words]
        label = f"ns a posting, terms of {low:,} to {high - 1:,}"
        lines.append([label, *times, f"{ratio:.2f}"])
    heads = ["", "24 bits", "words", "speed of words"]
    print(table(lines, heads))
    details = {"table": {"header": heads, "rows": lines}, "documents": by_term.shape[0]}
    harness.report("posting_words", [], {}, args, details)


if __name__ == "__main__":
    main()
