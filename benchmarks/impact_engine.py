"""Search by postings against Lucene: the whole of a topic set, one thread each.

    python benchmarks/impact_engine.py [--documents 10000 100000 1000000] [--queries 200] [--work FOLDER]

The collection is made up: topics with vocabularies of their own over a common background, about 207 terms a document
with impacts of a gamma distribution, questions of about 48 terms drawn from a document and the background. Its index is
written once into --work and used again; memory does not grow with it, so --documents 8800000 is a matter of patience.

The peer is Pyserini's LuceneImpactSearcher.batch_search with one thread and no idf threshold; its queries come ready
made, so that no encoder is in the figure. It makes a Python object of every Java hit, which for deep lists takes most
of its time, so every claim also says the ratio against this package's own way into Lucene, which brings all hits over
in one piece. What either returns is not read further: hits are not asked for their ids, rows not turned into ids.
Before anything is timed, every query must have the same documents with the same scores in the same order from both: the
peer puts ties in docid order, and so do we for it. This package's own Lucene searcher must agree in row order, too.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from harness import Claim, arguments, curves, fitted_exponent, in_turns, middle, report, speedup

from dupmae_ir import pyserini
from dupmae_ir.index.changes.builder import IndexBuilder
from dupmae_ir.index.index import Index
from dupmae_ir.index.postings.format import export_postings

VOCABULARY = 28_000
TOPICS = 2_000
TOPIC_TERMS = 300
BATCH = 5_000
"""Documents drawn at a time; each batch has a seed of its own, so memory does not grow with the collection."""
GOALS = {
    (1000, 100_000): 50.0,
    (1000, 1_000_000): 10.0,
    (1000, 8_800_000): 1.0,
    (10, 100_000): 10.0,
    (10, 1_000_000): 3.0,
    (10, 8_800_000): 1.0,
}
ROWS = {1000: 10, 10: 11}
"""Number of hits -> row in the table of goals."""
PEER = "LuceneImpactSearcher"
LUCENE = "ImpactSearcher (ours, Lucene)"
OURS = "postings"
BY_ROW = "postings, ties by row"
GATE = "every query: the same documents, scores and order of ties"


class Collection:
    """The made-up documents and questions."""

    def __init__(self, documents: int) -> None:
        self.documents = documents
        rng = np.random.default_rng(0)
        self.topics = np.stack(
            [rng.choice(VOCABULARY, TOPIC_TERMS, replace=False) for _ in range(TOPICS)]
        )
        self.within = _cumulative(TOPIC_TERMS, 0.7)
        self.background = _cumulative(VOCABULARY, 0.8)

    def batches(self) -> Iterator[sp.csr_matrix]:
        """(n, V) uint8 impacts."""
        for first in range(0, self.documents, BATCH):
            yield self.batch(first // BATCH)

    def batch(self, number: int) -> sp.csr_matrix:
        """Documents ``number * BATCH`` and on: some words of a main topic, of a second one, and of the background."""
        rng = np.random.default_rng([1, number])
        count = min(BATCH, self.documents - number * BATCH)
        lengths = np.clip(rng.lognormal(np.log(190), 0.3, count), 128, 384).astype(np.int64)
        main = (lengths * 0.9).astype(np.int64)
        second = (lengths * 0.2).astype(np.int64)
        common = lengths - main // 2 - second
        columns = []
        rows = []
        strengths = []
        sources = ((main, 1.6, True), (second, 1.0, True), (common, 0.7, False))
        for word_counts, strength, topical in sources:
            owner = np.repeat(np.arange(count), word_counts)
            if topical:
                topic = rng.integers(0, TOPICS, count)[owner]
                words = np.searchsorted(self.within, rng.random(len(owner)))
                columns.append(self.topics[topic, words])
            else:
                columns.append(np.searchsorted(self.background, rng.random(len(owner))))
            rows.append(owner)
            strengths.append(np.full(len(owner), strength))
        # The first of equal terms of a document counts.
        cells, first = np.unique(
            np.concatenate(rows) * VOCABULARY + np.concatenate(columns), return_index=True
        )
        scaled = rng.gamma(1.1, 28, len(cells)) * np.concatenate(strengths)[first]
        impacts = np.clip(np.round(scaled), 1, 255).astype(np.uint8)
        indptr = np.searchsorted(cells, np.arange(count + 1) * VOCABULARY)
        return sp.csr_matrix(
            (impacts, (cells % VOCABULARY).astype(np.int32), indptr), shape=(count, VOCABULARY)
        )

    def queries(self, count: int) -> list[dict[str, int]]:
        """Questions: three quarters of their terms are strong ones of some document, the rest are background."""
        rng = np.random.default_rng(2)
        queries = []
        batch = self.batch(0)
        for _ in range(count):
            document = batch[int(rng.integers(batch.shape[0]))]
            length = int(rng.integers(32, 65))
            document_share = int(length * 0.75)
            chance = document.data / document.data.sum(dtype=np.float64)
            document_terms = rng.choice(document.indices, document_share, replace=False, p=chance)
            common_terms = np.searchsorted(self.background, rng.random(length - document_share))

            # A term that is drawn from both has the weight of a document's term.
            weights = {int(term): rng.gamma(1.0, 20) for term in common_terms}
            weights |= {int(term): rng.gamma(1.5, 40) for term in document_terms}
            query = {}
            for term, weight in weights.items():
                query[f"t{term}"] = int(np.clip(np.round(weight), 1, 255))
            queries.append(query)
        return queries


def _cumulative(count: int, exponent: float) -> np.ndarray:
    shares = np.arange(1, count + 1) ** -exponent
    total = np.cumsum(shares / shares.sum())
    total[-1] = 1.0  # may be rounded to less, and a number above it would have no term
    return total


def opened(work: Path, documents: int) -> tuple[Index, dict[str, float]]:
    """The index of the collection with its postings, written unless it is there, and the seconds of writing it."""
    folder = work / f"impacts-{documents}"
    took = {}
    if not (folder / "meta.json").is_file():
        collection = Collection(documents)
        written = 0
        start = time.perf_counter()
        terms = [f"t{i}" for i in range(VOCABULARY)]
        with IndexBuilder(folder, dim=None, terms=terms, scale=1.0) as builder:
            for impacts in collection.batches():
                rows = range(written, written + impacts.shape[0])
                builder.add_impacts([str(row) for row in rows], None, impacts)
                written += impacts.shape[0]
            builder.finish({})
        took["lucene_and_forward_s"] = round(time.perf_counter() - start, 1)
    index = Index.open(folder)
    if not index.only_segment.has_part("postings"):
        start = time.perf_counter()
        export_postings(index.only_segment)
        took["postings_s"] = round(time.perf_counter() - start, 1)
    return index, took


class Ready:
    """Makes an encoder of Pyserini's own kind whose texts are the weights themselves."""

    def __new__(cls) -> Any:
        base = pyserini.QueryEncoder

        class Encoder(base):  # type: ignore[misc, valid-type]
            def __init__(self) -> None: ...
            def encode(self, text: str, **_: Any) -> dict[str, int]:
                return json.loads(text)

        return Encoder()


class Contest:
    """The engines over one collection."""

    def __init__(self, work: Path, documents: int, queries: int) -> None:
        self.index, self.took = opened(work, documents)
        self.queries = Collection(documents).queries(queries)
        self.texts = [json.dumps(query) for query in self.queries]
        self.qids = [str(number) for number in range(queries)]
        self.peer = pyserini.LuceneImpactSearcher(str(self.index.path / "ot"), Ready(), min_idf=-1)

    def variants(self, k: int) -> dict[str, Callable[[], Any]]:
        queries = self.queries
        segment = self.index.only_segment
        return {
            PEER: lambda: self.peer.batch_search(self.texts, self.qids, k=k, threads=1),
            OURS: lambda: segment.postings.top(queries, k, by_docid=True),
            BY_ROW: lambda: segment.postings.top(queries, k),
            LUCENE: lambda: segment.searcher.top(queries, k),
        }

    def gate(self, k: int) -> None:
        """End the program unless all engines agree, hit for hit."""
        results = {name: work() for name, work in self.variants(k).items()}
        docids = self.index.docids
        for number, qid in enumerate(self.qids):
            peer_hits = [(hit.docid, round(hit.score)) for hit in results[PEER][qid]]
            rows, scores = results[OURS][number]
            our_docids = [docids[row] for row in rows.tolist()]
            our_hits = list(zip(our_docids, scores.tolist(), strict=True))
            if peer_hits != our_hits:
                raise SystemExit(f"query {number}, k={k}: {OURS} and {PEER} differ")
            # The pairs are the rows and the scores of the list.
            pairs = zip(results[BY_ROW][number], results[LUCENE][number], strict=True)
            for ours, lucene in pairs:
                if not np.array_equal(ours, lucene):
                    raise SystemExit(f"query {number}, k={k}: {BY_ROW} and {LUCENE} differ")

    def sizes(self) -> dict[str, float]:
        """Bytes per posting on disk."""
        postings = self.index.meta["postings"]
        sizes = {}
        for name in ("ot", "forward", "postings"):
            part = self.index.only_segment.path / name
            size = sum(file.stat().st_size for file in part.iterdir())
            sizes[name] = round(size / postings, 3)
        return sizes


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument(
        "--documents", type=int, nargs="+", default=[100_000], help="sizes (default: 100000)"
    )
    parser.add_argument(
        "--queries", type=int, default=200, help="topics; a fifth of them from 500,000 documents on"
    )
    parser.add_argument(
        "--work", default=str(Path(tempfile.gettempdir()) / "impact-engine"), metavar="FOLDER"
    )
    args = parser.parse_args()
    claims = []
    seconds = {}
    details: dict[str, Any] = {}
    rates: dict[str, dict[int, float]] = {}
    for documents in args.documents:
        queries = args.queries if documents < 500_000 else math.ceil(args.queries / 5)
        contest = Contest(Path(args.work), documents, queries)
        sizes = contest.sizes()
        figures = {
            "queries": queries,
            "terms_per_query": round(float(np.mean([len(q) for q in contest.queries])), 1),
            "postings": contest.index.meta["postings"],
            "bytes_per_posting": sizes,
            "building": contest.took,
        }
        details[f"{documents:,} documents"] = figures
        claims.append(
            Claim(
                12,
                f"bytes a posting of the postings, {documents:,} made-up documents",
                "postings",
                "their format so far, 3 bytes",
                sizes["postings"],
                1.6,
                "<=",
                " bytes",
                note="a row in two bytes and an impact in one, and columns of one byte a row for common terms, are "
                "added without decoding; a perfect coder of gaps and impacts would need 1.6 to 1.8 bytes (`entropy` of "
                "the record of impact_writer), so the goal leaves nothing for speed",
                round=2,
            )
        )
        for k in ROWS:
            contest.gate(k)
            taken = in_turns(contest.variants(k), args.repeats, warm=2)
            for name, values in taken.items():
                seconds[f"{name}, {documents:,} documents, k={k}"] = values
            per_second = {}
            for name, median in middle(taken).items():
                rate = queries / median
                per_second[name] = float(f"{rate:.4g}")
                rates.setdefault(f"{name}, k={k}", {})[documents] = rate
            figures[f"queries_per_second_k{k}"] = per_second
            goal = GOALS.get((k, documents))
            if goal:
                claims.append(
                    Claim(
                        ROWS[k],
                        f"{queries} queries, {documents:,} documents, k={k}, per core",
                        f"{OURS}, ties by docid",
                        f"Pyserini {PEER}.batch_search",
                        speedup(taken, PEER, OURS),
                        goal,
                        gate=GATE,
                        note=f"{speedup(taken, LUCENE, BY_ROW):.3g}x of {LUCENE}, ties by row",
                    )
                )

    series = {}
    for name, by_size in rates.items():
        if name.startswith(BY_ROW):
            continue
        sizes_measured = list(by_size)
        series[name] = (sizes_measured, list(by_size.values()))
        if len(by_size) > 1:
            seconds_each = [1 / rate for rate in by_size.values()]
            exponent = fitted_exponent(sizes_measured, seconds_each)
            details[f"time of a query by {name}_exponent"] = exponent
    title = "Impact search, one thread: queries per second"
    picture = curves(title, "documents", "queries / s", series)
    report("impact_engine", claims, seconds, args, details, picture)


if __name__ == "__main__":
    main()
