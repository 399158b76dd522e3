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
from functools import partial
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
MAX_WEIGHT = 255
OURS = "postings"
OURS_BMP = "postings, bmp's query weights"
GOALS = {
    "bmp": {10: {100_000: 10.0, 1_000_000: 4.0, 8_800_000: 2.0}, 1000: 50.0},
    "pisa": {10: 3.0, 1000: 10.0},
}
"""Engine -> number of hits -> speedup, for bmp at 10 by number of documents. Lucene has the goals of PISA."""
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
        self.label = label
        self.index = index
        self.segment = index.only_segment
        self.queries = [rounded_to(query, MAX_WEIGHT) for query in queries]
        self.peers, self.missing = engines(index, work, peers, pythons)

    def adapted_queries(self, peer: Engine) -> list[Weights]:
        """The queries whose exact answers ``peer`` gives; one without terms is left out."""
        return [query for query in map(peer.adapted, self.queries) if query]

    def variants(self, k: int) -> dict[str, Callable[[], Any]]:
        """Each engine over all queries, one by one."""
        top = self.segment.postings.top

        def search_ours(queries: list[Weights]) -> list[Any]:
            return [top([query], k) for query in queries]

        def search_peer(peer: Engine, prepared: list[Any]) -> list[Any]:
            return [peer.search(query, k) for query in prepared]

        variants: dict[str, Callable[[], Any]] = {OURS: partial(search_ours, self.queries)}
        for peer in self.peers:
            queries = self.adapted_queries(peer)
            if peer.name == "bmp":
                variants[OURS_BMP] = partial(search_ours, queries)
            if isinstance(peer, Lucene):
                # It times itself, in its process.
                variants[peer.name] = partial(peer.taken, queries, k)
                continue
            prepared = [peer.prepare(query) for query in queries]
            variants[peer.name] = partial(search_peer, peer, prepared)
        return variants

    def gate(self, k: int) -> dict[str, float]:
        """Recall of the approximate peers; ends the program if an exact one differs from us."""
        recall = {}
        for peer in self.peers:
            shares = [self._recall(peer, query, k) for query in self.adapted_queries(peer)]
            if not peer.exact:
                recall[peer.name] = float(np.mean(shares))
        return recall

    def _recall(self, peer: Engine, query: Weights, k: int) -> float:
        """Share of our documents that ``peer`` finds, after the gate for exact peers."""
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
    texts = []
    for source in topics:
        texts += [query.text for query in read_topics(source)]
    if count < len(texts):
        texts = [texts[i * len(texts) // count] for i in range(count)]
    encoder = load_query_encoder(index, None, "cpu", None, None)
    encodings = QueryEncodings(encoder, index.scale, 1024, texts).take(texts)

    frequencies = np.bincount(index.only_segment.forward.terms, minlength=len(index.terms))
    queries = []
    for encoding in encodings:
        query = {}
        for term_id, weight in zip(*encoding.ot, strict=True):
            if frequencies[term_id]:
                query[index.terms[term_id]] = int(weight)
        if query:
            queries.append(query)
    return queries


def contests(args: argparse.Namespace, work: Path) -> list[Contest]:
    """The contests that the arguments select; indexes that do not exist yet are built."""
    if args.index:
        index = Index.open(args.index)
        if not index.only_segment.has_part("postings"):
            export_postings(index.only_segment)
        queries = encoded_queries(index, args.topics, args.queries)
        label = f"{index.documents:,} encoded passages"
        folder = work / "peers-encoded"
        return [Contest(label, index, queries, folder, args.peers, args.pyserini)]
    selected = []
    for documents in args.documents:
        index, _ = opened(work, documents)
        queries = Collection(documents).queries(args.queries)
        folder = work / f"peers-{documents}"
        peers = list(args.peers)
        if "seismic" in peers and documents > args.seismic_up_to:
            peers.remove("seismic")
        label = f"{documents:,} made-up documents"
        selected.append(Contest(label, index, queries, folder, peers, args.pyserini))
    return selected


def goal_of(peer: str, k: int, documents: int) -> float:
    """The goal of the nearest number of documents."""
    goals = GOALS["bmp" if peer == "bmp" else "pisa"][k]
    if isinstance(goals, float):
        return goals
    nearest = min(goals, key=lambda size: abs(size - documents))
    return goals[nearest]


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
    figure = speedup(used, peer, ours)
    goal = goal_of(peer, k, contest.index.documents)
    note = f"{speedup(wall, peer, ours):.3g}x by wall time"
    if figure < goal:
        note += f"; {BOUNDS[k]}"

    lucene = peer.startswith("Pyserini")
    if real or lucene:
        row = 11
    elif peer == "bmp":
        row = 9
    else:
        row = 10
    return Claim(
        row,
        f"one query, {contest.label}, k={k}, processor time",
        ours,
        peer,
        figure,
        goal,
        gate=GATE,
        note=note,
        round=3 if lucene else 2,
    )


def measured(
    contest: Contest, args: argparse.Namespace, rows: list[list[str]], panels: Any, seconds: Any
) -> list[Claim]:
    """The claims of one collection; adds to the table, the picture and the seconds."""
    claims = []
    for k in args.k:
        recall = contest.gate(k)
        # Java compiles its loops in the first turns.
        warm = 3 if args.pyserini else 1
        wall, used = both_times(contest.variants(k), args.repeats, warm)
        used_medians = middle(used)
        wall_medians = middle(wall)
        per_query = 1000 / len(contest.queries)
        for name in wall:
            cpu = used_medians[name] * per_query
            clock = wall_medians[name] * per_query
            share = f"{recall[name]:.3f}" if name in recall else "exact"
            rows.append([name, contest.label, str(k), f"{cpu:.3g}", f"{clock:.3g}", share])
            if name != OURS_BMP:
                two_lines = contest.label.replace(" ", "\n", 1)
                panels.setdefault(f"k = {k}", {}).setdefault(name, {})[two_lines] = cpu
            seconds[f"{name}, {contest.label}, k={k}"] = wall[name]
            seconds[f"{name}, {contest.label}, k={k}, processor"] = used[name]
        exact = [peer.name for peer in contest.peers if peer.exact]
        claims += [claim(contest, name, k, wall, used, bool(args.index)) for name in exact]
    return claims


def figures(contest: Contest) -> dict[str, Any]:
    """What a reader needs to repeat it: sizes, seconds of building and settings."""
    postings = contest.index.meta["postings"]
    bytes_per_posting = {OURS: round(size_of(folder_of(contest.segment.path)) / postings, 2)}
    for peer in contest.peers:
        bytes_per_posting[peer.name] = round(size_of(peer.folder, peer.files) / postings, 2)
    return {
        "queries": len(contest.queries),
        "terms_per_query": round(float(np.mean([len(query) for query in contest.queries])), 1),
        "postings": postings,
        "bytes_per_posting": bytes_per_posting,
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
    selected = contests(args, Path(args.work))
    if args.build:
        return
    claims: list[Claim] = []
    rows: list[list[str]] = []
    panels: dict[str, Any] = {}
    seconds: dict[str, list[float]] = {}
    details: dict[str, Any] = {}
    for contest in selected:
        claims += measured(contest, args, rows, panels, seconds)
        details[contest.label] = figures(contest)
    header = ["engine", "collection", "k", "ms a query, processor", "ms a query, wall", "recall"]
    details["table"] = {"header": header, "rows": rows}
    name = "impact_peers"
    if args.index:
        name += "_encoded"
    elif args.documents != parser.get_default("documents"):
        name += f"_{max(args.documents)}"
    if args.pyserini:
        name += "_lucene"
    picture = grouped_bars(
        "Impact search, one query at a time, one thread", "ms of processor time", panels, OURS
    )
    report(name, claims, seconds, args, details, picture)


if __name__ == "__main__":
    main()
