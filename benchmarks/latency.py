"""One query, from its text to ten hybrid hits of 100,000 documents: how long, how evenly, and from eight threads.

    python benchmarks/latency.py [--documents 100000] [--queries 100] [--threads 1] [--work FOLDER]

Rows 7 and 14b of the second table of benchmarks/archive.md, and row 9 of the third.
The documents are drawn: each takes nine in ten impacts of a
document of the embedded collection and some of a second one, and its [CLS] vector with noise. The questions are those
of that collection. The index is written once into --work and used again.

  ours           Searcher.search(text, 10): the embedded model and the certified sum of both parts by postings
  ours, codes    the same by codes of the rotated vectors (dupmae-ir index dense)
  pyserini       HybridSearcher.search(text, 10): SpladeQueryEncoder with LuceneImpactSearcher, AutoQueryEncoder with
                 FaissSearcher, ten hits of each fused. Both encoders have the embedded model's shape and compute each
                 query; what they return is replaced by our query, so that both sides search for the same
  eight threads  Searcher.search called by eight threads, against one call with all queries (row 14b), and beside
                 Searcher.answers, which does not search together what several threads ask; by all vectors, and by codes

Gate: the ten best by vectors and the ten best by impacts have the same scores from both, all sums are certified, and
codes and eight threads find what a single one finds.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import harness
import hybrid
import numpy as np
import passages
import scipy.sparse as sp
import torch

from dupmae_ir.collections.stdlib import load_queries, stdlib_documents
from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.run import run as encode
from dupmae_ir.index.changes.builder import IndexBuilder
from dupmae_ir.index.format.rotated import PART, build_rotated
from dupmae_ir.index.index import Index
from dupmae_ir.models.checkpoints.loading import quiet_transformers
from dupmae_ir.search.query.encoder import QueryEncodings
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.types import Query

HITS = 10
CLIENTS = 8
SOURCES = 2000
BATCH = 5000


def opened(work: Path, documents: int) -> Index:
    """The index of drawn documents, with postings and codes; written if it does not exist."""
    index = hybrid.with_postings(
        work / f"latency-{documents}", lambda folder: _write(folder, documents)
    )
    if not index.only_segment.has_part(PART):
        build_rotated(index.only_segment)
    return index


def _write(folder: Path, documents: int) -> None:
    source = _source(folder.with_name("latency-source"))
    forward = source.only_segment.forward
    arrays = (
        np.asarray(forward.impacts),
        np.asarray(forward.terms).astype(np.int32),
        np.asarray(forward.indptr),
    )
    impacts = sp.csr_matrix(arrays, shape=(source.documents, forward.vocabulary))
    known = np.asarray(source.only_segment.vectors)
    rng = np.random.default_rng(0)
    with IndexBuilder(
        folder, dim=known.shape[1], terms=list(source.terms), scale=source.scale
    ) as builder:
        for first in range(0, documents, BATCH):
            count = min(BATCH, documents - first)
            one, two = rng.integers(0, source.documents, (2, count))
            drawn = (
                _thinned(impacts[one], 0.9, rng).maximum(_thinned(impacts[two], 0.1, rng)).tocsr()
            )
            drawn.sort_indices()
            noise = 0.3 * known.std() * rng.standard_normal((count, known.shape[1]))
            vectors = np.ascontiguousarray(known[one] + noise, np.float32)
            builder.add_impacts([str(first + i) for i in range(count)], vectors, drawn)
        builder.finish({"encoder": source.meta["encoder"]})


def _source(folder: Path) -> Index:
    """The index of some documents of the embedded collection."""
    if not (folder / "meta.json").is_file():
        corpus = folder.with_suffix(".jsonl")
        with open(corpus, "w", encoding="utf-8") as f:
            for d in stdlib_documents()[:SOURCES]:
                f.write(json.dumps({"_id": d.docid, "title": d.title, "text": d.text}) + "\n")
        encode(EncodeConfig(corpus=str(corpus), index=str(folder), quiet=True))
    return Index.open(folder)


def _thinned(matrix: sp.csr_matrix, kept: float, rng: np.random.Generator) -> sp.csr_matrix:
    """A share of the impacts of a matrix."""
    chosen = rng.random(matrix.nnz) < kept
    thin = sp.csr_matrix((matrix.data * chosen, matrix.indices, matrix.indptr), shape=matrix.shape)
    thin.eliminate_zeros()
    return thin


class Peer:
    """Pyserini's hybrid search whose encoders compute a query and return ours."""

    def __init__(self, index: Index, model: Path, searcher: Searcher, texts: Sequence[str]) -> None:
        from dupmae_ir.pyserini import (
            FaissSearcher,
            HybridSearcher,
            LuceneImpactSearcher,
            QueryEncoder,
        )

        # After our module, since Pyserini's own import requires the key of a paid service.
        from pyserini.encode import AutoQueryEncoder, SpladeQueryEncoder  # isort: skip

        taken = QueryEncodings(
            searcher.encoder, index.scale, searcher.settings.query_terms, list(texts), 1
        ).take(texts)
        known = dict(zip(texts, taken, strict=True))
        with quiet_transformers():
            words = SpladeQueryEncoder(str(model), device="cpu")
            vectors = AutoQueryEncoder(str(model), device="cpu", pooling="mean")

        class Words(QueryEncoder):  # type: ignore[misc, valid-type]
            def __init__(self) -> None: ...
            def encode(self, text: str, **_: Any) -> dict[str, int]:
                words.encode(text)
                query = known[text].ot
                names = [index.terms[t] for t in query.ids.tolist()]
                return dict(zip(names, query.impacts.tolist(), strict=True))

        class Vectors:
            def encode(self, text: str, **_: Any) -> np.ndarray:
                vectors.encode(text)
                return known[text].cls

        self.dense = FaissSearcher(str(index.path / "cls"), Vectors())
        self.impact = LuceneImpactSearcher(str(index.path / "ot"), Words(), min_idf=-1)
        self.hybrid = HybridSearcher(self.dense, self.impact)

    def search(self, text: str) -> Any:
        """Ten hits."""
        return self.hybrid.search(text, k0=HITS, k=HITS)


def check(
    searcher: Searcher, codes: Searcher, peer: Peer, texts: Sequence[str], some: int = 20
) -> str:
    """The gate; raises when it fails."""
    for text in texts[:some]:
        dense = [hit.score for hit in searcher.search(text, HITS, "dense")]
        assert np.allclose(
            dense, [hit.score for hit in peer.dense.search(text, HITS)], rtol=1e-4
        ), text
        impact = [hit.score for hit in searcher.search(text, HITS, "impact", raw_impacts=True)]
        assert impact == [hit.score for hit in peer.impact.search(text, HITS)], text
    answers = [next(searcher.answers([Query("", text)], HITS)) for text in texts]
    assert all(answer.report is not None and answer.report.exact for answer in answers)
    with ThreadPoolExecutor(CLIENTS) as pool:
        together = list(pool.map(lambda text: searcher.search(text, HITS), texts))
    assert together == [list(answer.hits) for answer in answers]
    assert [codes.search(text, HITS) for text in texts] == together
    return (
        f"{some} lists by vectors and by impacts have the same scores from both, {len(texts)} sums are certified, and "
        f"codes and {CLIENTS} threads find what one finds"
    )


def each(search: Callable[[str], Any], texts: Sequence[str]) -> list[float]:
    """Seconds of each query, one after the other."""
    taken = []
    for text in texts:
        start = time.perf_counter()
        search(text)
        taken.append(time.perf_counter() - start)
    return taken


def main() -> None:
    parser = harness.arguments(__doc__)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        help="threads of torch, for the peer's encoders (default: 1)",
    )
    parser.add_argument(
        "--work", type=Path, default=Path("runs/latency"), help="where the index is made and kept"
    )
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    texts = [query.text for query in load_queries()][: args.queries]
    index = opened(args.work, args.documents)
    searcher = Searcher.open(
        index, impact_search="postings", dense_index="flat", threads=args.threads
    )
    codes = searcher.with_settings(dense_index="rotated")
    with passages.model_folder("minilm") as model:
        peer = Peer(index, model, searcher, texts)
        gate = check(searcher, codes, peer, texts)
        print(gate, flush=True)
        ways = {
            "ours": searcher.search,
            "ours, codes": codes.search,
            "ours, the encoder alone": lambda text: searcher.encoder.encode_queries([text]),
            "ours, impacts alone": lambda text: searcher.search(text, HITS, "impact"),
            "pyserini": peer.search,
        }
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(args.repeats):
            for name, way in ways.items():
                taken[name] += each(way, texts)
    topics = [Query(str(number), text) for number, text in enumerate(texts)]
    torch.set_num_threads(os.cpu_count() or 1)
    batches = harness.in_turns(
        {**by_eight_threads(searcher, topics, ""), **by_eight_threads(codes, topics, ", codes")},
        args.repeats,
    )
    report(args, gate, taken, batches)


def by_eight_threads(
    one: Searcher, topics: list[Query], label: str
) -> dict[str, Callable[[], object]]:
    """The same queries by eight threads, together and each alone, and in one call; ``label`` ends their names."""
    searcher = one.with_settings(threads=os.cpu_count() or 1)
    searcher.search(topics, HITS)  # loads torch

    def by_threads() -> None:
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(lambda topic: searcher.search(topic.text, HITS), topics))

    def each_alone() -> None:
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(lambda topic: next(searcher.answers([topic], HITS)), topics))

    return {
        f"eight threads{label}": by_threads,
        f"eight threads, each query alone{label}": each_alone,
        f"one batch{label}": lambda: searcher.search(topics, HITS),
    }


def report(
    args: Any, gate: str, taken: dict[str, list[float]], batches: dict[str, list[float]]
) -> None:
    """Claims, table and picture."""
    middle = {name: statistics.median(seconds) for name, seconds in taken.items()}
    late = {name: float(np.percentile(seconds, 99)) for name, seconds in taken.items()}
    what = f"one query, encode and hybrid top {HITS}, {args.documents:,} documents"
    notes = {
        "ours": f"{1e3 * middle['ours, the encoder alone']:.1f} ms of our {1e3 * middle['ours']:.1f} are the encoder, "
        "which reads all its weights for a dozen word pieces, and most of the rest is the product with all vectors",
        "ours, codes": "the same hits; `dupmae-ir index dense` makes the codes",
    }
    by_threads = []
    for label in ("", ", codes"):
        claim = harness.Claim(
            14,
            f"queries a second of {CLIENTS} threads on one Searcher, {args.documents:,} documents",
            f"eight threads{label}",
            f"one batch{label}",
            harness.speedup(batches, f"one batch{label}", f"eight threads{label}"),
            0.7,
            gate=gate,
            note="eight queries read all weights together, and without codes all vectors; a hundred do, too",
            round=2,
        )
        by_threads += [claim, dataclasses.replace(claim, row=9, goal=0.5, round=3)]
    claims = [
        *(
            harness.Claim(
                7,
                f"{what}: p50",
                name,
                "pyserini",
                middle["pyserini"] / middle[name],
                10,
                gate=gate,
                round=2,
                note=note,
            )
            for name, note in notes.items()
        ),
        harness.Claim(
            7,
            f"{what}: p99 / p50",
            "ours",
            "its own p50",
            late["ours"] / middle["ours"],
            3,
            "<=",
            gate=gate,
            round=2,
        ),
        *by_threads,
    ]
    rows = {name: {"p50 ms": 1e3 * middle[name], "p99 ms": 1e3 * late[name]} for name in taken}
    for name, figures in rows.items():
        print(f"{name:<24} p50 {figures['p50 ms']:8.1f} ms  p99 {figures['p99 ms']:8.1f} ms")
    speeds = {name: args.queries / s for name, s in harness.middle(batches).items()}
    harness.report(
        "latency",
        claims,
        {**taken, **batches},
        args,
        {"milliseconds": rows, "queries_per_second": speeds, "threads": args.threads},
        harness.bars(
            f"Milliseconds of {what}",
            "milliseconds",
            {n: r["p50 ms"] for n, r in rows.items()},
            tuple(n for n in rows if n != "pyserini"),
        ),
    )


if __name__ == "__main__":
    main()
