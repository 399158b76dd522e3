"""Search of some documents against filtering afterwards, from 0.1 % to 100 % of the documents.

    python benchmarks/filters.py [--documents 100000] [--queries 20]

Filtering afterwards retrieves the best 10 of all documents, drops the others, and doubles the depth until 10 are left
or the list ends; it is given the same engine. Before anything is timed, both must return the same rows with the same
scores. One query at a time, one thread, in turns; ties in row order. Times are processor time, which other work on the
machine changes less. The collection is made up: 128-dimensional vectors, and about 60 terms a document with frequencies
as in text.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from dupmae_ir.console import table
from dupmae_ir.index.changes.builder import IndexBuilder
from dupmae_ir.index.format.row_set import RowSet
from dupmae_ir.index.format.segment import Segment
from dupmae_ir.index.index import Index
from dupmae_ir.index.postings.format import export_postings
from dupmae_ir.search.candidates.dense import DenseIndex

SHARES = (0.001, 0.01, 0.1, 0.5, 0.9, 1.0)
DIM = 128
TERMS = 20_000
LENGTH = 60
HITS = 10
BATCH = 5_000

Found = tuple[np.ndarray, np.ndarray]
Search = Callable[[int, int, RowSet | None], Found]
"""Query, depth, allowed rows -> rows and scores, best first."""


def build(folder: Path, documents: int) -> Segment:
    """The made-up index, with postings."""
    chances = 1 / np.arange(1, TERMS + 1) ** 0.8
    steps = np.cumsum(chances / chances.sum())
    with IndexBuilder(folder, dim=DIM, terms=[f"t{i}" for i in range(TERMS)], scale=1.0) as builder:
        for start in range(0, documents, BATCH):
            rng = np.random.default_rng(start)
            count = min(BATCH, documents - start)
            terms = np.minimum(np.searchsorted(steps, rng.random((count, LENGTH))), TERMS - 1)
            rows = np.repeat(np.arange(count), LENGTH)
            weights = sp.csr_matrix(
                (rng.integers(1, 100, rows.size), (rows, terms.ravel())), (count, TERMS), np.float32
            )
            weights.data = np.minimum(weights.data, 255)
            vectors = rng.standard_normal((count, DIM)).astype(np.float32)
            builder.add([f"{start + i:08d}" for i in range(count)], vectors, weights)
        builder.finish({})
    index = Index.open(folder).only_segment
    export_postings(index)
    return index


def searches(index: Segment, queries: int) -> dict[str, Search]:
    """Each part of the score, by its engine."""
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((queries, DIM)).astype(np.float32)
    terms = [
        {f"t{i}": int(rng.integers(1, 100)) for i in rng.integers(0, 2_000, 24)}
        for _ in range(queries)
    ]
    dense = DenseIndex(index.faiss_index, index.vectors)

    def by_vectors(query: int, depth: int, allowed: RowSet | None) -> Found:
        part = dense.queries(vectors[query : query + 1], 1, allowed)
        rows = part.top([0], depth)[0].rows
        return rows, part.scores(0, rows)

    def by_lucene(query: int, depth: int, allowed: RowSet | None) -> Found:
        return index.searcher.top([terms[query]], depth, 1, False, allowed)[0]

    def by_postings(query: int, depth: int, allowed: RowSet | None) -> Found:
        return index.postings.top([terms[query]], depth, 1, False, allowed)[0]

    return {"dense": by_vectors, "Lucene": by_lucene, "postings": by_postings}


def afterwards(search: Search, query: int, allowed: RowSet) -> Found:
    """The best allowed rows of ever longer lists of all rows."""
    depth = HITS
    while True:
        rows, scores = search(query, depth, None)
        kept = np.flatnonzero(allowed.mask[rows])[:HITS]
        if len(kept) == HITS or len(rows) < depth or depth >= allowed.documents:
            return rows[kept], scores[kept]
        depth = min(2 * depth, allowed.documents)


def timed(run: Callable[[], object]) -> float:
    """Milliseconds of processor time of one call."""
    started = time.process_time()
    run()
    return 1000 * (time.process_time() - started)


def main() -> None:
    """Compare the results, then time both in turns and print medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=20)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        index = build(Path(folder) / "I", args.documents)
        for name, search in searches(index, args.queries).items():
            for share in SHARES:
                allowed = RowSet(np.random.default_rng(7).random(args.documents) < share)
                ours = []
                theirs = []
                for query in range(args.queries):
                    one = search(query, HITS, allowed)
                    two = afterwards(search, query, allowed)
                    if one[0].tolist() != two[0].tolist() or one[1].tolist() != two[1].tolist():
                        raise SystemExit(
                            f"{name}, {share:.1%}: query {query} has other hits filtered afterwards"
                        )
                for query in range(args.queries):
                    ours.append(timed(lambda: search(query, HITS, allowed)))  # noqa: B023 (called at once)
                    theirs.append(timed(lambda: afterwards(search, query, allowed)))  # noqa: B023
                a = float(np.median(ours))
                b = float(np.median(theirs))
                rows.append([name, f"{100 * share:g} %", f"{a:.2f}", f"{b:.2f}", f"{b / a:.1f}x"])
    print(
        f"{args.documents:,} documents, {args.queries} queries, best {HITS}, median milliseconds of processor time"
    )
    print(table(rows, ["part", "searched", "filter", "afterwards", "ratio"]))


if __name__ == "__main__":
    main()
