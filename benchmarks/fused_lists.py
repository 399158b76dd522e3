"""The exact hybrid top 10 against what else one would run: HNSW and Lucene, and their two lists fused.

    python benchmarks/fused_lists.py --data DATA --work FOLDER --pyserini PYTHON [--size 100000 1000000] [--build]

Row 5 of the third table of docs/performance.md. The passages, their index and the queries are those of
benchmarks/exact_scale.py, in the same --work; queries are encoded beforehand and searched one at a time on one thread.

  rotated     this code, with the codes of rotated vectors; the list is exact and certified
  HNSW        Pyserini's HybridSearcher over faiss's IndexHNSWFlat (inner products, M = 32, efConstruction = 200) and
              Lucene's impacts. Both give --depth hits; a document that one list lacks gets the least score of that
              list. Everything is tried with every efSearch and depth; the claim is against the fastest setting among
              those with the best recall of our ten hits

PYTHON is an interpreter with the Pyserini to compare with; 2.3, with Lucene 10, needs Python 3.12. The HNSW index is
built once into --work (--build: nothing else), on --threads threads.

Gate: our lists are certified, and for every query Lucene's ten best have the scores of our impact search.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import exact_scale
import harness
import numpy as np
from pyserini_process import Pyserini

from dupmae_ir.index.index import Index
from dupmae_ir.search.exact.ranking import Request
from dupmae_ir.search.searcher import Searcher

HITS = 10
NEIGHBOURS = 32
CONSTRUCTION = 200
ROWS = 10_000


def hnsw(index: Index, folder: Path, threads: int) -> float:
    """Processor seconds of building IndexHNSWFlat; ``folder`` is as FaissSearcher reads it, and documents are rows."""
    import faiss

    mark = folder / "built.json"
    if not mark.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        vectors = index.only_segment.vectors
        start = time.process_time()
        graph = faiss.IndexHNSWFlat(vectors.shape[1], NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = CONSTRUCTION
        faiss.omp_set_num_threads(threads)
        for first in range(0, len(vectors), ROWS):
            graph.add(np.ascontiguousarray(vectors[first : first + ROWS]))
            print(
                f"HNSW: {graph.ntotal:,}, {time.process_time() - start:,.0f} s of processor time",
                flush=True,
            )
        faiss.omp_set_num_threads(1)
        faiss.write_index(graph, str(folder / "index"))
        (folder / "docid").write_text(
            "".join(f"{row}\n" for row in range(graph.ntotal)), encoding="utf-8"
        )
        mark.write_text(json.dumps({"seconds": round(time.process_time() - start)}))
    return float(json.loads(mark.read_text())["seconds"])


class Contest:
    """Both sides over one collection."""

    def __init__(self, args: argparse.Namespace, size: int) -> None:
        parts = exact_scale.encoded(
            args.data, args.work, min(args.parts, -(-size // exact_scale.PART))
        )
        folder = exact_scale.joined(parts, args.work / f"whole-{size}-{len(parts)}", slice(0, size))
        self.index = Index.open(folder)
        graph = args.work / f"hnsw-{size}-{len(parts)}"
        self.built = hnsw(self.index, graph, args.threads)
        if args.build:
            return
        self.peer = Pyserini(
            args.pyserini, self.index.only_segment.path, args.work / f"lucene-{size}", graph
        )
        queries = exact_scale.questions(args.data, args.queries, args.work / "queries.json")
        self.texts = json.loads(queries.read_text())
        settings: dict[str, Any] = {
            "impact_search": "postings",
            "threads": 1,
            "dense_index": "rotated",
        }
        self.searcher = Searcher.open(self.index, **settings)
        self.encoded = self.searcher._encodings(self.texts).take(self.texts)
        self.vectors = [query.cls.tolist() for query in self.encoded]
        terms = self.index.terms
        pairs = [
            zip(query.ot.ids.tolist(), query.ot.impacts.tolist(), strict=True)
            for query in self.encoded
        ]
        self.weights = [{terms[term]: weight for term, weight in query} for query in pairs]

    def ours(self, mode: str = "hybrid") -> list[Any]:
        """The answers to all queries."""
        request = Request(mode, HITS, allowed=None)
        pairs = zip(self.encoded, self.texts, strict=True)
        return [exact_scale.ranked(self.searcher, request, query, text)[0] for query, text in pairs]

    def gate(self) -> list[list[str]]:
        """Our ten documents of every query; ends the program when a list is not what it should be."""
        answers = self.ours()
        assert all(answer.report.exact for answer in answers)
        for answer, (_, scores) in zip(
            self.ours("impact"), self.peer.hits(self.weights, HITS), strict=True
        ):
            found = [hit.score * self.index.scale**2 for hit in answer.hits]
            assert np.allclose(found, scores, rtol=1e-6), (answer.query, found, scores)
        return [[hit.docid for hit in answer.hits] for answer in answers]

    def setting(self, depth: int, ef: int) -> dict[str, Any]:
        """The arguments of a fused search."""
        return {"vectors": self.vectors, "depth": depth, "ef": ef, "alpha": 1 / self.index.scale**2}

    def recall(self, exact: list[list[str]], **setting: Any) -> float:
        """Share of our hits that the fused lists have."""
        docids = self.index.docids
        found = self.peer.hits(self.weights, HITS, **setting)
        shared = [
            len({docids[row] for row in rows} & set(ours))
            for (rows, _), ours in zip(found, exact, strict=True)
        ]
        return sum(shared) / sum(map(len, exact))


def measured(
    args: argparse.Namespace, size: int, seconds: dict[str, list[float]], rows: list[list[str]]
) -> Any:
    """The claim of a size; adds to the seconds and to the table."""
    contest = Contest(args, size)
    of = exact_scale.passages(size, args.parts)
    if args.build:
        return None
    exact = contest.gate()
    ways: dict[str, Callable[[], Any]] = {"rotated": contest.ours}
    recalls = {}
    for depth in args.depth:
        for ef in sorted({max(ef, depth) for ef in args.ef}):  # one below the depth loses hits
            name = f"depth {depth:,}, efSearch {ef:,}"
            setting = contest.setting(depth, ef)
            recalls[name] = contest.recall(exact, **setting)
            ways[name] = partial(contest.peer.search, contest.weights, HITS, **setting)
    wall, used = harness.both_times(ways, args.repeats, warm=2)  # Java compiles
    middle = harness.middle(wall)
    for name in ways:
        figures = (1e3 / len(exact) * middle[name], 1e3 / len(exact) * harness.middle(used)[name])
        rows.append(
            [
                f"{of}: {name}",
                *(f"{figure:.2f}" for figure in figures),
                f"{recalls.get(name, 1):.3f}",
            ]
        )
        seconds[f"{of}: {name}"] = wall[name]
    best = min(recalls, key=lambda name: (-recalls[name], middle[name]))
    return harness.Claim(
        5,
        f"hybrid top {HITS}, {of}",
        "rotated, recall 1",
        f"HNSW and Lucene {contest.peer.versions['lucene']}, {best}, recall {recalls[best]:.3f}",
        1 / harness.speedup(wall, best, "rotated"),
        1,
        "<=",
        gate="all lists are certified, and Lucene's ten best have the scores of our impact search",
        note=f"{contest.peer.name}; building HNSW took {contest.built:,.0f} s of processor time",
        round=3,
    )


def main() -> None:
    parser = harness.arguments(__doc__, repeats=3)
    exact_scale.of_passages(parser)
    parser.add_argument(
        "--pyserini",
        required=True,
        metavar="PYTHON",
        help="interpreter with the Pyserini to compare",
    )
    parser.add_argument(
        "--ef", type=int, nargs="+", default=[16, 64, 256, 1024], help="efSearch of HNSW"
    )
    parser.add_argument(
        "--depth", type=int, nargs="+", default=[10, 100, 1000], help="hits of both lists"
    )
    parser.add_argument("--threads", type=int, default=2, help="threads that build HNSW")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    seconds: dict[str, list[float]] = {}
    rows: list[list[str]] = []
    claims = [measured(args, size, seconds, rows) for size in args.size]
    if not args.build:
        header = ["", "ms a query", "ms of processor", "recall"]
        harness.report(
            "fused_lists", claims, seconds, args, {"table": {"header": header, "rows": rows}}
        )


if __name__ == "__main__":
    main()
