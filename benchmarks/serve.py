"""Requests per second and latencies of dupmae-ir serve, a plain FastAPI loop over the Searcher, and Pyserini's server.

    python benchmarks/serve.py --index I --topics queries.jsonl                  # 1, 8 and 64 clients
    python benchmarks/serve.py --index I --topics queries.jsonl --repeated       # each query again and again
    python benchmarks/serve.py --index I --topics queries.jsonl --soak 1800      # memory under load, with exchanges

Each server is a process of its own on loopback; the clients of this process keep one connection each and send the next
query when the answer is there. Runs are interleaved: in every round each server has its turn, and a ratio is the median
of the ratios within a round. Other work on the machine takes time from a server but hardly adds to its processor time,
so requests per processor-second are given too.

dupmae-ir keeps no encodings (``--query-cache 0``) and every query has a number of its own, so each is encoded. With
``--repeated`` the texts come again and again, and dupmae-ir has its default cache.

Hybrid search: ours and the plain loop, one ``def`` route that searches for each request alone (``searcher.answers``);
once with as many threads for a query as ours, and once with one thread, since FastAPI runs the calls side by side. The
same loop with ``searcher.search``, which batches concurrent queries, is listed for comparison; it has no goal.
Impact search: ours and Pyserini 1.6's REST server over the impacts of the same index with the same query encoder. Its
controller is given the index as one more entry, and empty documents, since it would download a collection otherwise.

Gate: the peers' lists have the same documents.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any

from harness import Claim, report

from dupmae_ir import read_topics
from dupmae_ir.index.index import Index

PLAIN_START = """
import sys, uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from dupmae_ir import Searcher
from dupmae_ir.types import Query
app, searcher = FastAPI(), Searcher.open(
    sys.argv[1], impact_search="auto", threads=int(sys.argv[3]), dtype=sys.argv[4] if len(sys.argv) > 4 else None
)
class Asked(BaseModel):
    query: str
    hits: int = 10
@app.post("/search")
def search(asked: Asked):
"""
EACH_ALONE = """    answer = next(searcher.answers([Query("", asked.query)], asked.hits))
    return [{"docid": h.docid, "score": h.score} for h in answer.hits]
"""
TOGETHER = """    return [{"docid": h.docid, "score": h.score} for h in searcher.search(asked.query, asked.hits)]
"""
PLAIN_END = """uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
"""
PYSERINI = """
import sys, types
from dupmae_ir import pyserini
pyserini.start_jvm()
import pyserini.search.lucene as lucene
# Needed for pictures alone, from a package that Pyserini does not install.
absent = types.ModuleType("pyserini.encode.optional._uniir")
absent.UniIRQueryEncoder = None
sys.modules[absent.__name__] = absent
from pyserini.server import models
# The controller downloads MS MARCO when it is imported; its index is ours instead.
lucene.LuceneSearcher.from_prebuilt_index = classmethod(lambda cls, name, *a, **k: None)
from pyserini.server import search_controller as module
from dupmae_ir.encode.pyserini_encoders import DupmaeQueryEncoder
queries = DupmaeQueryEncoder.for_index(sys.argv[1])
searcher = lucene.LuceneImpactSearcher(sys.argv[1] + "/ot", queries.impact, min_idf=-1)
controller = module.get_controller()
controller.indexes["mine"] = models.IndexConfig("mine", searcher, index_type="impact", base_index="none")
controller.get_document = lambda docid, index: {"contents": ""}
import uvicorn
from pyserini.server.rest.app import app
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
"""


@dataclass(frozen=True)
class Kind:
    """How a server is asked.

    ``body`` is a request's JSON with ``%s`` for the query. ``threads`` are those of one query; None: ``--threads``.
    """

    search: str
    route: str
    body: str
    threads: int | None = None


PLAIN_BODY = '{"query": %s, "hits": 10}'
ALONE = "plain loop, 1 thread a query"
JOINED = "plain loop, searcher.search"
PYSERINI_NAME = "Pyserini 1.6, impact"
SERVERS = {
    "dupmae-ir": Kind("hybrid", "/api/search", '{"query": %s, "hits": 10, "mode": "hybrid"}'),
    "plain loop": Kind("hybrid", "/search", PLAIN_BODY),
    ALONE: Kind("hybrid", "/search", PLAIN_BODY, threads=1),
    JOINED: Kind("hybrid", "/search", PLAIN_BODY, threads=1),
    "dupmae-ir, impact": Kind(
        "impact", "/api/search", '{"query": %s, "hits": 10, "mode": "impact"}'
    ),
    PYSERINI_NAME: Kind("impact", "/v1/indexes/mine/search", PLAIN_BODY),
}
"""The first server of each kind of search is ours; the others are its peers."""


@dataclass(frozen=True)
class Turn:
    """The measurements of one turn's clients. ``work``: the server's processor seconds."""

    latencies: list[float]
    seconds: float
    work: float

    @property
    def per_second(self) -> float:
        """Requests per second."""
        return len(self.latencies) / self.seconds

    @property
    def per_processor_second(self) -> float:
        """Requests per second of processor time."""
        # /proc counts in ticks of 10 ms, so a short turn may read 0.
        return len(self.latencies) / max(self.work, 0.01)


@dataclass
class Server:
    """A running server. ``turns``: number of clients -> what they measured in each turn."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    turns: dict[int, list[Turn]] = field(default_factory=dict)

    @property
    def work(self) -> float:
        """Processor seconds of the process so far."""
        # The name of the command, in parentheses, may contain spaces: the fields are counted from its end.
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        user_ticks = int(fields[11])
        system_ticks = int(fields[12])
        return (user_ticks + system_ticks) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def command(name: str, args: argparse.Namespace, index: str, port: int) -> list[str]:
    kind = SERVERS[name]
    threads = str(args.threads if kind.threads is None else kind.threads)

    if name.startswith("dupmae-ir"):
        words = [sys.executable, "-m", "dupmae_ir", "serve", "--index", index, "--port", str(port)]
        words += ["--threads", threads, "--quiet"]
        if args.dtype:
            words += ["--dtype", args.dtype]
        if not args.repeated:
            words += ["--query-cache", "0"]
        return words

    if name == PYSERINI_NAME:
        code = PYSERINI
    elif name == JOINED:
        code = PLAIN_START + TOGETHER + PLAIN_END
    else:
        code = PLAIN_START + EACH_ALONE + PLAIN_END
    words = [sys.executable, "-c", code, index, str(port), threads]
    if args.dtype:
        words.append(args.dtype)
    return words


@contextmanager
def started(name: str, args: argparse.Namespace, index: str) -> Iterator[Server]:
    """Start a server, wait until it listens, and end it on exit."""
    port = free_port()
    process = subprocess.Popen(command(name, args, index, port))
    try:
        for _ in range(1800):  # three minutes
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None:
                sys.exit(f"the server {name!r} ended with status {process.returncode}")
            time.sleep(0.1)
        yield Server(name, port, process)
    finally:
        process.kill()
        process.wait()


async def ask(
    server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: str
) -> Any:
    """The answer to one query."""
    kind = SERVERS[server.name]
    content = (kind.body % json.dumps(text)).encode()
    head = f"POST {kind.route} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    assert answer.startswith("http/1.1 200"), answer
    length = int(answer.partition("content-length:")[2].partition("\r\n")[0])
    return json.loads(await reader.readexactly(length))


async def client(server: Server, texts: Iterator[str], until: float, pause: float) -> list[float]:
    """Send queries on one connection until a time, and return the seconds of each answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    latencies = []
    while time.perf_counter() < until:
        sent = time.perf_counter()
        assert await ask(server, reader, writer, next(texts)), "an empty answer"
        latencies.append(time.perf_counter() - sent)
        await asyncio.sleep(pause)
    writer.close()
    return latencies


async def load(
    server: Server, clients: int, texts: Iterator[str], seconds: float, pause: float = 0
) -> Turn:
    """Send queries by ``clients`` clients for ``seconds``; each pauses for ``pause`` seconds after an answer."""
    begun = time.perf_counter()
    work_before = server.work
    connections = [client(server, texts, begun + seconds, pause) for _ in range(clients)]
    by_client = await asyncio.gather(*connections)
    latencies = list(chain.from_iterable(by_client))
    return Turn(latencies, time.perf_counter() - begun, server.work - work_before)


def endless(texts: Sequence[str], numbered: bool) -> Iterator[str]:
    """Cycle through the texts; ``numbered``: append a number, so that no text is repeated."""
    for number in count():
        text = texts[number % len(texts)]
        yield f"{text} {number}" if numbered else text


async def documents(server: Server, texts: Sequence[str]) -> list[list[str]]:
    """The docids of each query's hits, in order."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    answers = [await ask(server, reader, writer, text) for text in texts]
    writer.close()
    return [[hit["docid"] for hit in hits_of(answer)] for answer in answers]


def hits_of(answer: Any) -> list[dict[str, Any]]:
    """The hits in the JSON of any of the servers."""
    if isinstance(answer, list):  # the plain loop
        return answer
    if "candidates" in answer:  # Pyserini
        return answer["candidates"]
    result = answer["results"][0]
    return result["hits"] if isinstance(result, dict) else result


def same_lists(servers: Sequence[Server], texts: Sequence[str]) -> str:
    """Compare each server's lists with those of the first server of the same search, and return how many are equal.

    Exits if more than one in ten differs: rounding may order documents of almost equal scores differently.
    """
    references: dict[str, list[list[str]]] = {}
    comparisons = []
    for server in servers:
        lists = asyncio.run(documents(server, texts))
        search = SERVERS[server.name].search
        if search not in references:
            references[search] = lists
            continue
        pairs = zip(lists, references[search], strict=True)
        equal = sum(docids == reference for docids, reference in pairs)
        if equal < 0.9 * len(texts):
            sys.exit(f"{server.name}: only {equal} of {len(texts)} lists are the same")
        same = f"{equal} of {len(texts)} lists have the same documents in the same order"
        comparisons.append(f"{server.name}: {same}")
    return "; ".join(comparisons)


def percentile(latencies: list[float], share: float) -> float:
    position = min(len(latencies) - 1, int(share * len(latencies)))
    return sorted(latencies)[position]


def latencies_of(turns: Sequence[Turn]) -> list[float]:
    return [latency for turn in turns for latency in turn.latencies]


def measure(servers: Sequence[Server], args: argparse.Namespace, texts: Iterator[str]) -> None:
    """Load all servers in turns, after a warm-up of each."""
    for server in servers:
        asyncio.run(load(server, 8, texts, 2))
    for clients in args.clients:
        for _ in range(args.rounds):
            for server in servers:
                turn = asyncio.run(load(server, clients, texts, args.seconds))
                server.turns.setdefault(clients, []).append(turn)
                line = f"{clients} clients, {server.name}: {turn.per_second:.1f}/s"
                print(line, file=sys.stderr, flush=True)


def ratio(ours: Sequence[Turn], peer: Sequence[Turn], rate: str) -> float:
    """Our ``rate`` (a property of :class:`Turn`) divided by the peer's: the median of the ratios within a round."""
    ratios = []
    for our_turn, peer_turn in zip(ours, peer, strict=True):
        ratios.append(getattr(our_turn, rate) / getattr(peer_turn, rate))
    return statistics.median(ratios)


HEADER = [
    "clients, server",
    "queries/s",
    "ours",
    "queries per processor-second",
    "ours",
    "p50 ms",
    "p95 ms",
    "p99 ms",
]


def table_rows(servers: Sequence[Server]) -> list[list[str]]:
    """A row for each number of clients and server.

    ``ours`` in the header: the ratio of our server's rate, of the same search, to that of the row.
    """
    rows = []
    # Reversed, so that the first server of each search, which is ours, remains.
    ours = {SERVERS[server.name].search: server for server in reversed(servers)}
    for clients in servers[0].turns:
        for server in servers:
            our_turns = ours[SERVERS[server.name].search].turns[clients]
            turns = server.turns[clients]
            row = [f"{clients}, {server.name}"]
            for rate in ("per_second", "per_processor_second"):
                median = statistics.median(getattr(turn, rate) for turn in turns)
                row.append(f"{median:,.1f}")
                row.append("" if turns is our_turns else f"{ratio(our_turns, turns, rate):.2f}x")
            latencies = latencies_of(turns)
            for share in (0.5, 0.95, 0.99):
                row.append(f"{1000 * percentile(latencies, share):,.0f}")
            rows.append(row)
    return rows


def claims(servers: Sequence[Server], case: str, gate: str, note: str) -> list[Claim]:
    """Hybrid search at 8 clients against each plain loop, by the clock and by processor time; and, in the third table,
    at 8 clients and at one against the first of them."""
    ours, *peers = [server for server in servers if SERVERS[server.name].search == "hybrid"]
    claimed = []
    for row, clients, goal in THIRD_TABLE:
        if clients in ours.turns:
            what = f"{case}, {clients} client{'s' * (clients > 1)}, queries a second"
            times = ratio(ours.turns[clients], peers[0].turns[clients], "per_second")
            claimed.append(
                Claim(
                    row, what, ours.name, peers[0].name, times, goal, gate=gate, note=note, round=3
                )
            )
    if 8 not in ours.turns:
        return claimed
    turns = ours.turns[8]
    p99 = 1000 * percentile(latencies_of(turns), 0.99)
    rates = {"queries a second": "per_second", "queries a processor-second": "per_processor_second"}
    for unit, rate in rates.items():
        what = f"{case}, 8 clients, {unit} (p99 {p99:.0f} ms)"
        for peer in peers:
            if peer.name == JOINED:  # for comparison only, without a goal
                continue
            times = ratio(turns, peer.turns[8], rate)
            claimed.append(Claim(ROW, what, ours.name, peer.name, times, 3, gate=gate, note=note))
    return claimed


ROW = 19
THIRD_TABLE = ((14, 8, 2.5), (15, 1, 0.98))
"""Row, number of clients and goal."""
MANY = 100_000
"""Indexes with at least this many documents have their own record."""
NOTE = "the encoder takes most of a request; neither server needs torch for a single query; batches of 8 save a quarter"


def compare(args: argparse.Namespace, texts: Sequence[str]) -> None:
    """Measure, print and save."""
    names = []
    for name, kind in SERVERS.items():
        if kind.search == "impact" and (args.no_pyserini or args.repeated):
            continue
        if name == ALONE and args.threads == 1:  # the same as "plain loop"
            continue
        names.append(name)
    busy = os.getloadavg()[0]
    documents = Index.open(args.index).documents
    with ExitStack() as stack:
        servers = [stack.enter_context(started(name, args, args.index)) for name in names]
        gate = same_lists(servers, texts[:20])
        measure(servers, args, endless(texts, numbered=not args.repeated))
    rows = table_rows(servers)
    for row in [HEADER, [":--", *["--:"] * (len(HEADER) - 1)], *rows]:
        print(f"| {' | '.join(row)} |")

    details: dict[str, Any] = {"table": {"header": HEADER, "rows": rows}}
    for clients in args.clients:
        medians = {}
        for server in servers:
            median = statistics.median(turn.per_second for turn in server.turns[clients])
            medians[server.name] = round(median, 1)
        details[f"{clients} clients: queries_per_second"] = medians

    note = f"other work on the machine before: load average {busy:.0f} on {os.cpu_count()} cores"
    if args.repeated:
        case = "serve, repeated queries"
    else:
        case = f"serve, {documents:,} documents"
        note = f"{NOTE}; {note}"
    if args.repeated:
        record = "serve_repeated"
    elif args.dtype == "bfloat16":
        record = "serve_bfloat16"
    elif documents >= MANY:
        record = f"serve_{documents}"
    else:
        record = "serve"
    report(record, claims(servers, case, gate, note), {}, args, details)


def resident(pid: int) -> float:
    """Memory of a process, MB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def soak(args: argparse.Namespace, texts: Sequence[str]) -> dict[str, Any]:
    """Load our server for a long time; every ten seconds the index is exchanged for an identical copy of it."""
    with tempfile.TemporaryDirectory() as folder:
        copies = [shutil.copytree(args.index, Path(folder, name)) for name in ("a", "b")]
        link = Path(folder, "live")
        link.symlink_to(copies[0])
        with started("dupmae-ir", args, str(link)) as server:
            memory: list[float] = []
            requests = 0
            queries = endless(texts, not args.repeated)
            begun = time.perf_counter()
            while (elapsed := time.perf_counter() - begun) < args.soak:
                turn = asyncio.run(load(server, args.clients[0], queries, 10, args.pause))
                requests += len(turn.latencies)
                megabytes = round(resident(server.process.pid), 1)
                memory.append(megabytes)
                line = f"{elapsed + 10:6.0f} s  {requests:8d} requests  {megabytes:8.1f} MB"
                print(line, flush=True)
                # The link is replaced in one step: the server never sees a missing index.
                new = link.with_name("new")
                new.symlink_to(copies[len(memory) % 2])
                new.replace(link)
    third = len(memory) // 3 or 1
    thirds = []
    for start in (0, third, 2 * third):
        mean = statistics.mean(memory[start : start + third])
        thirds.append(round(mean, 1))
    return {
        "seconds": args.soak,
        "requests": requests,
        "exchanges": len(memory),
        "mb_by_thirds": thirds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--index", required=True, help="index folder, with postings")
    parser.add_argument("--topics", required=True, help="queries, in any format that search reads")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--rounds", type=int, default=3, help="turns of each server")
    parser.add_argument("--seconds", type=float, default=5, help="of a turn")
    parser.add_argument(
        "--threads", type=int, default=0, help="of each server's searches; 0 = all processors"
    )
    parser.add_argument("--dtype", help="precision of the query encoder; without it, the index's")
    parser.add_argument(
        "--repeated", action="store_true", help="each query again and again, with the default cache"
    )
    parser.add_argument(
        "--soak", type=float, default=0, help="seconds under load instead of a comparison"
    )
    parser.add_argument(
        "--pause",
        type=float,
        default=0,
        help="seconds that a client waits after an answer in a soak",
    )
    parser.add_argument("--no-pyserini", action="store_true", help="without Pyserini's server")
    parser.add_argument("--no-save", action="store_true", help="print only; keep the saved record")
    args = parser.parse_args()
    texts = [query.text for query in read_topics(args.topics)]
    if args.soak:
        print(json.dumps(soak(args, texts)))
    else:
        compare(args, texts)


if __name__ == "__main__":
    main()
