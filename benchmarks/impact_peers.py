"""Search by postings against the engines built for learned sparse retrieval, one query at a time on one thread.

    python benchmarks/impact_peers.py [--documents 100000 1000000] [--work FOLDER]
    python benchmarks/impact_peers.py --index INDEX --topics scifact.jsonl vaswani.jsonl [--work FOLDER]
    python benchmarks/impact_peers.py --peers --pyserini PYTHON PYTHON [...]

Rows 9, 10 and 11 of the second round in benchmarks/archive.md, and with --pyserini row 11 of the third. The first form
uses the made-up collection of benchmarks/impact_engine.py; the second an index that `dupmae-ir encode` made, and topics
as `dupmae-ir search` reads them. Peers (`pip install 'dupmae-ir[benchmarks]'`; a missing one is left out and named):

  bmp                 Block-Max Pruning: blocks of 32 documents, alpha = beta = 1, the exact setting
  PISA                pyterrier-pisa: MaxScore and BlockMax-WAND over block_simdbp, without the data frames around them
  seismic             pyseismic-lsr: approximate, built with its defaults; its recall is stated, no goal refers to it
  Pyserini, Lucene    LuceneImpactSearcher.search of the Pyserini of each interpreter after --pyserini, in a process of
                      its own: 1.6 with Lucene 9.9 (Python 3.11) and 2.3 with Lucene 10.4 (3.12) side by side

The compiled loops of our postings are loaded before the timing. A process whose searches are all below 262,144 rows
times queries runs without them, to start sooner; there one query over 100,000 documents takes 1.7 ms in numpy.

Every engine gets queries in its own format, made before the timing; what it returns is not read further. Indexes are
built once into --work (--build: nothing else). Weights of queries above 255 (the embedded model's go to 8,191) are
scaled to 255 first, since a weight of w reaches PISA as w copies of a term. bmp scales a query to weights of at
most 32, rounds up, and keeps the ids of terms in 16 bits: it gets the 65,536 most frequent terms, and is compared with
our search of the same rounded query without the other terms.

Gate: for every query each exact engine returns the scores of our list in the same order, and the score of each of its
documents is the exact one. So its documents are ours, but for ties at rank k.

The figures are ratios of processor time, which other work on the machine disturbs least; the ratios by wall time are
beside them.
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import Claim, arguments, both_times, grouped_bars, middle, report, speedup
from impact_engine import Collection, opened
from sparse_peers import Engine, Lucene, Weights, engines, rounded_to, size_of

from dupmae_ir.index.index import Index
from dupmae_ir.index.postings.format import export_postings, folder_of
from dupmae_ir.io.topics import read_topics
from dupmae_ir.search.query.encoder import QueryEncodings, load_query_encoder

PEERS = ("bmp", "pisa", "pisa-bmw", "seismic")
HIGHEST = 255
OURS, OURS_BMP = "postings", "postings, bmp's query weights"
GOALS = {
    "bmp": {10: {100_000: 10.0, 1_000_000: 4.0, 8_800_000: 2.0}, 1000: 50.0},
    "pisa": {10: 3.0, 1000: 10.0},
}
"""Those of PISA are Lucene's, too."""
GATE = "every query: the scores of the exact peers are ours in the same order, and each document's score is exact"
BOUNDS = {
    10: "a query adds up all postings of its terms in each window of 65,536 rows that can reach the top 10, where the "
    "peer skips blocks of tens of documents",
    1000: "the time is that of adding up nearly all postings of the query's terms",
}


class Contest:
    """One collection, its queries and the engines over it."""

    def __init__(
        self,
        label: str,
        index: Index,
        queries: list[Weights],
        work: Path,
        peers: Sequence[str],
        pythons: Sequence[str] = (),
    ) -> None:
        self.label, self.index, self.segment = label, index, index.only_segment
        self.queries = [rounded_to(query, HIGHEST) for query in queries]
        self.peers, self.missing = engines(index, work, peers, pythons)

    def asked(self, peer: Engine) -> list[Weights]:
        """The queries whose exact answers ``peer`` gives; one without terms is left out."""
        return [query for query in map(peer.adapted, self.queries) if query]

    def variants(self, k: int) -> dict[str, Callable[[], Any]]:
        """Each engine over all queries, one by one."""
        top = self.segment.postings.top
        work: dict[str, Callable[[], Any]] = {
            OURS: lambda: [top([query], k) for query in self.queries]
        }
        for peer in self.peers:
            asked = self.asked(peer)
            if peer.name == "bmp":
                work[OURS_BMP] = lambda asked=asked: [top([query], k) for query in asked]
            if isinstance(peer, Lucene):
                work[peer.name] = lambda peer=peer, asked=asked: peer.taken(asked, k)
                continue
            ready = [peer.prepare(query) for query in asked]
            work[peer.name] = lambda peer=peer, ready=ready: [
                peer.search(query, k) for query in ready
            ]
        return work

    def gate(self, k: int) -> dict[str, float]:
        """Recall of the approximate peers; ends the program when an exact one differs from us."""
        recall = {}
        for peer in self.peers:
            shares = [self._compared(peer, query, k) for query in self.asked(peer)]
            if not peer.exact:
                recall[peer.name] = float(np.mean(shares))
        return recall

    def _compared(self, peer: Engine, query: Weights, k: int) -> float:
        """Share of our documents that ``peer`` finds."""
        rows, scores = peer.hits(peer.search(peer.prepare(query), k))
        ours, sums = self.segment.postings.top([query], k)[0]
        if peer.exact:
            ids = np.array([self.index.term_ids[term] for term in query])
            order = np.argsort(ids)
            weights = np.array(list(query.values()), np.int64)[order]
            exact = self.segment.forward.scores(rows, ids[order], weights)
            if not np.array_equal(np.sort(scores)[::-1], sums) or not np.array_equal(exact, scores):
                raise SystemExit(f"{self.label}, k={k}: {peer.name} and {OURS} differ for {query}")
        return len(np.intersect1d(rows, ours)) / max(1, len(ours))


def encoded_queries(index: Index, topics: Sequence[str], count: int) -> list[Weights]:
    """``count`` queries spread evenly over the topics, encoded by the index's encoder; those without terms left out."""
    texts = [query.text for source in topics for query in read_topics(source)]
    chosen = [texts[i * len(texts) // count] for i in range(count)] if count < len(texts) else texts
    encoder = load_query_encoder(index, None, "cpu", None, None)
    made = QueryEncodings(encoder, index.scale, 1024, chosen).take(chosen)
    known = np.bincount(index.only_segment.forward.terms, minlength=len(index.terms)) > 0
    found = [
        {index.terms[i]: int(w) for i, w in zip(*query.ot, strict=True) if known[i]}
        for query in made
    ]
    return [query for query in found if query]


def contests(args: argparse.Namespace, work: Path) -> list[Contest]:
    """What the arguments ask for, built where it was not built before."""
    if args.index:
        index = Index.open(args.index)
        if not index.only_segment.has_part("postings"):
            export_postings(index.only_segment)
        queries = encoded_queries(index, args.topics, args.queries)
        label, where = f"{index.documents:,} encoded passages", work / "peers-encoded"
        return [Contest(label, index, queries, where, args.peers, args.pyserini)]
    found = []
    for documents in args.documents:
        index, _ = opened(work, documents)
        queries = Collection(documents).queries(args.queries)
        where = work / f"peers-{documents}"
        peers = [
            name for name in args.peers if name != "seismic" or documents <= args.seismic_up_to
        ]
        found.append(
            Contest(f"{documents:,} made-up documents", index, queries, where, peers, args.pyserini)
        )
    return found


def goal_of(peer: str, k: int, documents: int) -> float:
    goals = GOALS["bmp" if peer == "bmp" else "pisa"][k]
    return (
        goals
        if isinstance(goals, float)
        else goals[min(goals, key=lambda size: abs(size - documents))]
    )


def claim(
    contest: Contest,
    peer: str,
    k: int,
    wall: Mapping[str, Any],
    used: Mapping[str, Any],
    real: bool,
) -> Claim:
    """A row: the ratio of processor times."""
    ours = OURS_BMP if peer == "bmp" else OURS
    found, goal = speedup(used, peer, ours), goal_of(peer, k, contest.index.documents)
    note = f"{speedup(wall, peer, ours):.3g}x by wall time" + (
        "" if found >= goal else f"; {BOUNDS[k]}"
    )
    third = peer.startswith("Pyserini")
    return Claim(
        11 if real or third else 9 if peer == "bmp" else 10,
        f"one query, {contest.label}, k={k}, processor time",
        ours,
        peer,
        found,
        goal,
        gate=GATE,
        note=note,
        round=3 if third else 2,
    )


def measured(
    contest: Contest, args: argparse.Namespace, rows: list[list[str]], panels: Any, seconds: Any
) -> list[Claim]:
    """The claims of one collection; adds to the table, the picture and the seconds."""
    claims = []
    for k in args.k:
        recall = contest.gate(k)
        wall, used = both_times(
            contest.variants(k), args.repeats, warm=3 if args.pyserini else 1
        )  # Java compiles
        for name in wall:
            per_query = 1000 / len(contest.queries)
            cpu, clock = middle(used)[name] * per_query, middle(wall)[name] * per_query
            share = f"{recall[name]:.3f}" if name in recall else "exact"
            rows.append([name, contest.label, str(k), f"{cpu:.3g}", f"{clock:.3g}", share])
            if name != OURS_BMP:
                short = contest.label.partition(" ")[0] + "\n" + contest.label.partition(" ")[2]
                panels.setdefault(f"k = {k}", {}).setdefault(name, {})[short] = cpu
            seconds[f"{name}, {contest.label}, k={k}"] = wall[name]
            seconds[f"{name}, {contest.label}, k={k}, processor"] = used[name]
        exact = [peer.name for peer in contest.peers if peer.exact]
        claims += [claim(contest, name, k, wall, used, bool(args.index)) for name in exact]
    return claims


def figures(contest: Contest) -> dict[str, Any]:
    """What a reader needs to repeat it: sizes, seconds of building and settings."""
    postings = contest.index.meta["postings"]
    sizes = {
        peer.name: round(size_of(peer.folder, peer.files) / postings, 2) for peer in contest.peers
    }
    return {
        "queries": len(contest.queries),
        "terms_per_query": round(float(np.mean([len(query) for query in contest.queries])), 1),
        "postings": postings,
        "bytes_per_posting": {OURS: round(size_of(folder_of(contest.segment.path)) / postings, 2)}
        | sizes,
        "building_s": {peer.name: peer.took for peer in contest.peers},
        "missing": contest.missing,
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument(
        "--documents", type=int, nargs="+", default=[100_000], help="sizes (default: 100000)"
    )
    parser.add_argument("--index", help="an index folder instead of made-up documents")
    parser.add_argument("--topics", nargs="+", default=[], help="with --index: topic files")
    parser.add_argument("--queries", type=int, default=40, help="number of queries (default: 40)")
    parser.add_argument(
        "--k", type=int, nargs="+", default=[10, 1000], help="hits (default: 10 1000)"
    )
    parser.add_argument(
        "--peers", nargs="*", choices=PEERS, default=list(PEERS), help="peers to compare with"
    )
    parser.add_argument(
        "--pyserini",
        nargs="+",
        default=[],
        metavar="PYTHON",
        help="interpreters whose Pyserini to compare with",
    )
    parser.add_argument(
        "--seismic-up-to",
        type=int,
        default=200_000,
        metavar="N",
        help="largest collection to build it for",
    )
    parser.add_argument("--build", action="store_true", help="build the indexes and stop")
    parser.add_argument(
        "--work", default=str(Path(tempfile.gettempdir()) / "impact-engine"), metavar="FOLDER"
    )
    args = parser.parse_args()
    importlib.import_module("dupmae_ir.index.postings.kernels")
    if args.index and not args.topics:
        parser.error("--index needs --topics: topic files")
    found = contests(args, Path(args.work))
    if args.build:
        return
    claims, rows, panels, seconds, details = [], [], {}, {}, {}
    for contest in found:
        claims += measured(contest, args, rows, panels, seconds)
        details[contest.label] = figures(contest)
    header = ["engine", "collection", "k", "ms a query, processor", "ms a query, wall", "recall"]
    details["table"] = {"header": header, "rows": rows}
    usual = args.documents == parser.get_default("documents")
    name = "impact_peers" + (
        "_encoded" if args.index else "" if usual else f"_{max(args.documents)}"
    )
    name += "_lucene" if args.pyserini else ""
    picture = grouped_bars(
        "Impact search, one query at a time, one thread", "ms of processor time", panels, OURS
    )
    report(name, claims, seconds, args, details, picture)


if __name__ == "__main__":
    main()
