"""Dense search on fewer bytes: sq8, ivf-sq8 and hnsw-sq8 with refinement against faiss's flat index.

    python benchmarks/dense_kinds.py [--documents N] [--index I --topics T]

Peer: ``IndexFlatIP.search`` in float32, as Pyserini's FaissSearcher calls it, all questions at once, in batches of 64
(the default of ``search``) or one by one, on one thread as ours. Ours is what ``search --dense-index`` runs:
candidates from the smaller index, scored in float64 with the stored vectors, ranked, and with sq8 certified.
The truth that R@100 counts against is the certified list of
the flat index. The vectors are drawn: topics with subtopics of Zipf's sizes, on dimensions of falling variance, rotated
so that no dimension is special, of length 1; questions come from the same subtopics. ``--index`` adds the vectors of a
real index and the topics encoded by its model.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import harness
import numpy as np

from dupmae_ir.index.changes.builder import IndexBuilder
from dupmae_ir.index.config import KINDS
from dupmae_ir.index.format.dense_kinds import build_kind, open_kind
from dupmae_ir.index.format.segment import Segment
from dupmae_ir.index.index import Index
from dupmae_ir.search.candidates.dense import DenseIndex
from dupmae_ir.search.candidates.quantised_dense import ApproximateIndex, open_dense
from dupmae_ir.search.exact.certified_topk import Outcome, exact_top, first_depth

NPROBE = (1, 2, 4, 8, 16, 32, 64)
EF = (16, 32, 64, 128, 256, 512)
PEER = "faiss IndexFlatIP"
FLAT = "flat + refine, certified"
SQ8 = "sq8 + refine, certified"


def drawn(documents: int, queries: int, dim: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(documents, dim) and (queries, dim) float32 of length 1."""
    rng = np.random.default_rng(seed)
    scale = (1 + np.arange(dim, dtype=np.float32)) ** -0.4
    scale /= np.linalg.norm(scale)
    rotation = np.linalg.qr(rng.standard_normal((dim, dim)))[0].astype(np.float32)
    topics, subtopics = (rng.standard_normal((n, dim), dtype=np.float32) * scale for n in (300, 5000))
    centres = 0.6 * topics[rng.integers(0, 300, 5000)] + 0.5 * subtopics
    share = 1 / (10.0 + np.arange(5000))

    def some(rows: int) -> np.ndarray:
        noise = rng.standard_normal((rows, dim), dtype=np.float32) * scale
        x = (centres[rng.choice(5000, rows, p=share / share.sum())] + 0.65 * noise) @ rotation
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    return some(documents), some(queries)


class Bytes:
    """How much one question reads: codes once a pass, four bytes a dimension of every refined row."""

    def __init__(self, dense: DenseIndex) -> None:
        self.index, self.passes, self.refined = dense.index, 0, 0
        dense.index = self

    def search(self, queries: np.ndarray, k: int) -> Any:
        self.passes += len(queries)
        return self.index.search(queries, k)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.index, name)


class Refined:
    """A part that counts the rows it scores."""

    def __init__(self, part: Any, counted: Bytes) -> None:
        self.part, self.counted, self.top = part, counted, part.top

    def scores(self, query: int, rows: np.ndarray) -> np.ndarray:
        self.counted.refined += len(rows)
        return self.part.scores(query, rows)


def top(dense: DenseIndex, queries: np.ndarray, k: int, max_depth: int = 0) -> list[Outcome]:
    ranks = np.arange(len(dense.vectors))
    return exact_top([dense.queries(queries, 1)], len(queries), ranks, k, max_depth=max_depth)


def rows_of(outcomes: Sequence[Outcome]) -> list[np.ndarray]:
    return [outcome.rows for outcome in outcomes]


def recall(found: Sequence[np.ndarray], truth: Sequence[np.ndarray]) -> float:
    """Mean share of the true rows that were found."""
    return float(np.mean([len(np.intersect1d(f, t)) / len(t) for f, t in zip(found, truth, strict=True)]))


def bytes_read(folder: Segment, queries: np.ndarray, k: int) -> dict[str, float]:
    """Of sq8 with refinement, per question asked alone, in bytes and in percent of the flat index."""
    dense = open_dense(folder, "sq8")
    counted = Bytes(dense)
    for i in range(len(queries)):
        exact_top([Refined(dense.queries(queries[i : i + 1], 1), counted)], 1, np.arange(folder.documents), k)
    flat = 4 * dense.vectors.size
    read = (counted.passes * dense.vectors.size + counted.refined * 4 * dense.vectors.shape[1]) / len(queries)
    return {
        "flat": flat,
        "sq8": read,
        "percent": 100 * read / flat,
        "passes": counted.passes / len(queries),
        "refined": counted.refined / len(queries),
    }


def deepest(name: str, k: int) -> int:
    """--max-depth of a point on a curve: a graph walked with ef below the depth of the list would be walked with that
    depth, so the list is kept as short as may be. (Points with ef below k are still that of ef k.)"""
    return k if name.startswith("hnsw") else 0


def variants(
    folder: Segment, queries: np.ndarray, single: int, k: int
) -> tuple[dict[str, Callable[[], Any]], dict[str, DenseIndex]]:
    """What is timed, under "NAME, batch" and "NAME, one by one"; and the approximate indexes by name."""
    flat = folder.faiss_index
    alone = [queries[i : i + 1] for i in range(single)]
    batches = [queries[i : i + 64] for i in range(0, len(queries), 64)]
    small, whole = open_dense(folder, "sq8"), open_dense(folder)
    approximate: dict[str, DenseIndex] = {}
    for kind, word, efforts in (("ivf-sq8", "nprobe", NPROBE), ("hnsw-sq8", "ef", EF)):
        opened = open_kind(folder, kind)
        approximate |= {f"{kind} {word} {e}": ApproximateIndex(opened, folder.vectors, e) for e in efforts}
    work: dict[str, Callable[[], Any]] = {
        f"{PEER}, batch": lambda: flat.search(queries, k),
        f"{PEER}, one by one": lambda: [flat.search(q, k) for q in alone],
        f"{PEER}, batches of 64": lambda: [flat.search(q, k) for q in batches],
        f"{FLAT}, batches of 64": lambda: [top(whole, q, k) for q in batches],
        f"{SQ8}, batches of 64": lambda: [top(small, q, k) for q in batches],
        f"{SQ8}, batch": lambda: top(small, queries, k),
        f"{SQ8}, one by one": lambda: [top(small, q, k) for q in alone],
    }
    for name, dense in approximate.items():
        deep = deepest(name, k)
        work[f"{name}, batch"] = lambda dense=dense, deep=deep: top(dense, queries, k, deep)
        work[f"{name}, one by one"] = lambda dense=dense, deep=deep: [top(dense, q, k, deep) for q in alone]
    return work, approximate


def measure(vectors: np.ndarray, queries: np.ndarray, args: argparse.Namespace) -> tuple[dict[str, Any], dict]:
    """Everything about one collection: what was built, gates, recall, bytes, queries per second; and the seconds."""
    import faiss

    k = args.hits
    with tempfile.TemporaryDirectory() as where:
        with IndexBuilder(Path(where) / "I", dim=vectors.shape[1], terms=None, scale=None) as builder:
            builder.add([str(i) for i in range(len(vectors))], vectors, None)
            builder.finish({})
        folder = Index.open(Path(where) / "I").only_segment
        built = {}
        for kind in KINDS:
            start = time.perf_counter()
            built[kind] = build_kind(folder, kind)
            built[kind]["seconds"] = round(time.perf_counter() - start, 2)
            print(f"{kind}: {built[kind]['bytes']:,} bytes, {built[kind]['seconds']} s", flush=True)
        faiss.omp_set_num_threads(1)
        truth = top(open_dense(folder), queries, k)
        small = top(open_dense(folder, "sq8"), queries, k)
        gate(truth, small)
        true = rows_of(truth)
        work, approximate = variants(folder, queries, min(args.single, len(queries)), k)
        depth = first_depth(k)
        seconds = harness.in_turns(work, args.repeats, quiet=True)
        alone = dict.fromkeys(work, len(queries)) | {n: min(args.single, len(queries)) for n in work if "one by" in n}
        rates = {name: alone[name] / took for name, took in harness.middle(seconds).items()}
        recalls = {
            name: recall(rows_of(top(dense, queries, k, deepest(name, k))), true) for name, dense in approximate.items()
        }
        one_look = top(open_dense(folder, "sq8"), queries, k, depth)
        codes = open_kind(folder, "sq8").index.search(queries, k)[1]
        defaults = {kind: recall(rows_of(top(open_dense(folder, kind), queries, k)), true) for kind in KINDS}
        details = {
            "documents": len(vectors),
            "dim": int(vectors.shape[1]),
            "queries": len(queries),
            "k": k,
            "built": {
                kind: {n: m[n] for n in ("bytes", "parameters", "reasons", "error", "seconds")}
                for kind, m in built.items()
            },
            "bytes": bytes_read(folder, queries, k),
            "certified": sum(o.exact for o in small),
            "depth": {str(p): float(np.percentile([o.depths[0] for o in small], p)) for p in (50, 90, 99, 100)},
            "recall": {
                SQ8: recall(rows_of(small), true),
                f"sq8 + refine, one look {depth} deep": recall(rows_of(one_look), true),
                "sq8 alone": recall(codes, true),
                **{f"{kind}, automatic settings": r for kind, r in defaults.items()},
                **recalls,
            },
            "queries_per_second": {name: round(rate, 1) for name, rate in rates.items()},
            "speedup": {
                name: harness.speedup(seconds, f"{PEER}, {how}", name)
                for name in work
                if (how := name.rsplit(", ", 1)[1]) and not name.startswith(PEER)
            },
        }
    return details, seconds


def gate(truth: Sequence[Outcome], small: Sequence[Outcome]) -> None:
    """Every list of sq8 is certified and the flat index's certified list: rows, order, and scores to the bit."""
    for t, s in zip(truth, small, strict=True):
        assert t.exact
        assert s.exact
        assert np.array_equal(t.rows, s.rows)
        assert np.array_equal(t.scores, s.scores)


def real(args: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    from dupmae_ir.io.topics import read_topics
    from dupmae_ir.search.searcher import Searcher

    searcher = Searcher.open(args.index)
    cls = searcher.encoder.encode_queries([query.text for query in read_topics(args.topics)]).cls
    assert cls is not None
    return np.array(searcher.index.only_segment.vectors), cls  # a copy: the file is closed with the searcher


def show(details: dict[str, Any]) -> None:
    print(f"{'':<34} {'R@' + str(details['k']):>7} {'batch q/s':>10} {'one by one':>11}")
    for name in (PEER, SQ8, *(n for n in details["recall"] if n.startswith(("ivf-sq8 n", "hnsw-sq8 e")))):
        rate = details["queries_per_second"]
        print(
            f"{name:<34} {details['recall'].get(name, 1.0):>7.4f} {rate[name + ', batch']:>10,.0f} "
            f"{rate[name + ', one by one']:>11,.0f}"
        )
    print({n: round(r, 4) for n, r in details["recall"].items() if not n.startswith(("ivf-sq8 n", "hnsw-sq8 e"))})
    print({n: round(v, 2) for n, v in details["bytes"].items()}, "depth", details["depth"])
    show_batches(details)


def show_batches(details: dict[str, Any]) -> None:
    print("batches of 64:", {n: r for n, r in details["queries_per_second"].items() if n.endswith("of 64")})


def curves(details: dict[str, Any]) -> Callable[[Path], None]:
    rate, series = details["queries_per_second"], {}
    for how in ("batch", "one by one"):
        for kind in ("ivf-sq8 n", "hnsw-sq8 e"):
            names = [n for n in details["recall"] if n.startswith(kind)]
            xs = [details["recall"][n] for n in names]
            series[f"{kind.split()[0]}, {how}"] = (xs, [rate[f"{n}, {how}"] for n in names])
        for name in (SQ8, PEER):
            series[f"{name}, {how}"] = ([1.0], [rate[f"{name}, {how}"]])
    title = f"{details['documents']:,} vectors of {details['dim']} dimensions, one thread"
    return harness.curves(title, f"R@{details['k']} against the flat index", "queries per second", series, log_x=False)


def main() -> None:
    parser = harness.arguments(__doc__)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--single", type=int, default=100, help="queries that are also asked one by one")
    parser.add_argument("--hits", type=int, default=100)
    parser.add_argument("--index", metavar="FOLDER", help="also measure the vectors of a real index")
    parser.add_argument("--topics", metavar="FILE", help="--index: questions for it")
    args = parser.parse_args()
    if bool(args.index) != bool(args.topics):
        parser.error("--index and --topics belong together")
    details, seconds = measure(*drawn(args.documents, args.queries, args.dim), args)
    show(details)
    if args.index:
        details["real"], _ = measure(*real(args), args)
        details["real"]["name"] = Path(args.index).name
        show(details["real"])
    same = (
        f"rows, order and scores of all {details['queries']} sq8 lists equal the flat index's certified lists, "
        f"and all are certified"
    )
    ours = "sq8 codes propose, float32 vectors refine, certified"
    claims = [
        harness.Claim(
            13,
            "dense, fewer bytes: R@100 against the flat index",
            ours,
            PEER,
            details["recall"][SQ8],
            0.995,
            unit="",
            gate=same,
        ),
        harness.Claim(
            13,
            "dense, fewer bytes: read per question, codes and refinement",
            ours,
            PEER,
            details["bytes"]["percent"],
            30,
            sense="<=",
            unit="%",
            gate=same,
        ),
    ]
    harness.report("dense_kinds", claims, seconds, args, details, curves(details))


if __name__ == "__main__":
    main()
