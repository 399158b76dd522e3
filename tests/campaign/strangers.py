"""A server with one worker, while strangers send it in a loop what is dearest to answer.

Meanwhile another client asks plain queries, each new, and for the health of the server. Both are measured in quiet
moments between the attacks too: 95 of 100 plain queries, which is what a user notices, may take ten times as long as
the median then, and the health a second at most. The longest query is listed, and not judged: on a machine of few
processors it says how they were shared. So does the first attack, whose strangers compute and ask for nothing.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from support.waiting import until

from dupmae_ir.__main__ import main
from tests.campaign.records import Record, Records, markdown

TITLE = "Strangers: a plain query and the health of a server while others ask for all they can"
DOCUMENTS = 600
STRANGERS = 4
SLOWER = 10.0
OFTEN = 0.95
HEALTHY = 1.0
TOKEN = "0123456789abcdef-of-the-campaign"
ROOT = Path(__file__).resolve().parents[2]
WORDS = [
    f"{a}{b}{c}"
    for a in ("ba", "ke", "lo", "mi", "su")
    for b in ("nd", "rt", "lk", "m")
    for c in "aeiou"
]


@dataclass
class Stranger:
    """Who asks the server at ``port``."""

    port: int

    def ask(
        self, method: str, path: str, body: Any = None, token: str = TOKEN, **headers: str
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            content = (
                body
                if isinstance(body, bytes)
                else None
                if body is None
                else json.dumps(body).encode()
            )
            given = {
                "content-type": "application/json",
                "authorization": f"Bearer {token}",
                **headers,
            }
            connection.request(method, path, content, given)
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def leave(self, method: str, path: str, body: Any, wait: float) -> None:
        """Ask, and close the connection without reading the answer after ``wait`` seconds."""
        content = json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(head.encode() + content)
            time.sleep(wait)


def random_queries(n: int, words: int) -> list[str]:
    return [" ".join(random.choices(WORDS, k=words)) for _ in range(n)]


def _heaviest(words: int = 5) -> dict[str, Any]:
    return {
        "query": random_queries(128, words),
        "hits": 1000,
        "texts": True,
        "explain": True,
        "terms": 1024,
    }


ATTACKS: dict[str, Callable[[Stranger], object]] = {
    "none: strangers compute and do not ask": lambda _: sum(range(1_000_000)),
    "cookie of 40 kB": lambda s: s.ask(
        "GET", "/api/indexes", token="no", cookie=f'dupmae_ir="{chr(92) * 40_000}"'
    ),
    "wrong origin": lambda s: s.ask("POST", "/api/reload", token="no", origin="http://["),
    "wrong tokens": lambda s: s.ask("GET", "/api/indexes", token="x" * 60_000),
    "wrong cookies": lambda s: s.ask(
        "GET", "/api/indexes", token="no", cookie="dupmae_ir=x;" * 4000
    ),
    "page of a long text": lambda s: s.ask("GET", f"/?q=lock%20{random_queries(1, 1)[0]}&hits=50"),
    "search of a long text": lambda s: s.ask(
        "POST", "/api/search", {"query": "lock", "texts": True, "explain": True}
    ),
    "heaviest search": lambda s: s.ask("POST", "/api/search", _heaviest()),
    "heaviest search, long queries": lambda s: s.ask("POST", "/api/search", _heaviest(600)),
    "heaviest search, then leaves": lambda s: s.leave("POST", "/api/search", _heaviest(), 0.2),
    "eight queries": lambda s: s.ask(
        "POST", "/api/search", {"query": random_queries(8, 5), "hits": 10, "explain": True}
    ),
    "many hits": lambda s: s.ask(
        "POST", "/api/search", {"query": random_queries(1, 5), "hits": 1000, "explain": True}
    ),
    "encode documents": lambda s: s.ask(
        "POST", "/api/encode", {"texts": random_queries(128, 600), "kind": "document"}
    ),
    "explain 1,000 documents": lambda s: s.ask(
        "POST",
        "/api/explain",
        {"query": random_queries(1, 300)[0], "docids": [f"d{n % DOCUMENTS}" for n in range(1000)]},
    ),
    "long filter": lambda s: s.ask(
        "POST",
        "/api/search",
        {"query": "x", "filter": " or ".join(f"year = {n}" for n in range(700))},
    ),
    "100,000 ids": lambda s: s.ask(
        "POST", "/api/search", {"query": "x", "within": ["d1"] * 100_000}
    ),
    "deep JSON": lambda s: s.ask("POST", "/api/search", b"[" * 1_000_000),
    "slow reader": lambda s: s.leave(
        "POST", "/api/search", {"query": random_queries(8, 5), "hits": 1000, "texts": True}, 3
    ),
    "half a head": lambda s: s.leave("POST", "/api/search HTTP/1.1\r\nX", None, 3),
    "reloads": lambda s: s.ask("POST", "/api/reload"),
}


def run(seconds: float, seed: int, records: Records) -> None:
    """Every attack once, in equal times."""
    random.seed(seed)
    with tempfile.TemporaryDirectory() as name, serving(_index(Path(name))) as server:
        port = server.port
        measured(port, 2.0)
        for attack in ATTACKS:
            quiet, _, _ = measured(port, 3.0)
            with strangers(attack, port):
                asked, health, failed = measured(port, max(3.0, seconds / len(ATTACKS) - 4))
            records.add(
                attack=attack,
                queries=len(asked),
                failed=failed,
                quiet=statistics.median(quiet),
                median=statistics.median(asked),
                often=float(np.quantile(asked, OFTEN)),
                longest=max(asked),
                health=max(health),
            )


def table(records: Sequence[Record]) -> str:
    """Times by attack, in milliseconds."""
    rows = []
    for row in records:
        times = [
            f"{1000 * row[name]:.0f}" for name in ("quiet", "median", "often", "longest", "health")
        ]
        rows.append([row["attack"], row["queries"], row["failed"], *times])
    measured = ["quiet, ms", "median, ms", "95 of 100, ms", "longest, ms", "health at most, ms"]
    return markdown(["attack", "plain queries", "failed", *measured], rows)


def is_wrong(record: Record) -> bool:
    """Whether a plain query failed or took longer than it may, or the health did."""
    slow = record["often"] > SLOWER * record["quiet"] or record["health"] > HEALTHY
    return bool(slow or record["failed"])


class Server(NamedTuple):
    """A service that runs."""

    port: int
    pid: int


def measured(port: int, seconds: float) -> tuple[list[float], list[float], int]:
    """Seconds of plain queries and of the health, and how many queries were not answered."""
    client = Stranger(port)
    asked = list[float]()
    health = list[float]()
    failed = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for path, body, times in (
            ("/api/search", {"query": random_queries(1, 4)[0]}, asked),
            ("/health", None, health),
        ):
            began = time.monotonic()
            status, _ = client.ask("POST" if body else "GET", path, body)
            times.append(time.monotonic() - began)
            failed += status != 200
        time.sleep(0.02)
    return asked, health, failed


@contextlib.contextmanager
def strangers(attack: str, port: int) -> Iterator[None]:
    """Meanwhile, the strangers ask. They are processes of their own and of lower priority, as if on other machines:
    what is measured is how long the server takes, not who gets a processor that it shares with them."""
    words = [sys.executable, "-m", "tests.campaign.strangers", attack, str(port)]
    begun = [
        subprocess.Popen(["nice", "-n", "10", *words], cwd=ROOT, stdout=subprocess.PIPE)
        for _ in range(STRANGERS)
    ]
    try:
        for stranger in begun:
            assert stranger.stdout is not None
            assert stranger.stdout.readline(), "a stranger did not start"
        time.sleep(0.5)
        yield
    finally:
        for stranger in begun:
            stranger.kill()
            stranger.communicate()


def _ask_again_and_again(attack: str, port: int) -> None:
    random.seed(os.getpid())
    print("here", flush=True)
    parent = os.getppid()
    # A stranger whose campaign was killed would otherwise go on asking for ever.
    while os.getppid() == parent:
        with contextlib.suppress(OSError, http.client.HTTPException):
            ATTACKS[attack](Stranger(port))


def _index(folder: Path) -> Path:
    """Short documents, and three of 900,000 characters."""
    lines = [
        {
            "_id": f"d{n}",
            "title": f"number {n}",
            "text": " ".join(random_queries(12, 6)),
            "year": 1900 + n % 150,
        }
        for n in range(DOCUMENTS)
    ]
    lines += [
        {"_id": f"long{n}", "title": "long", "text": word * 190_000}
        for n, word in enumerate(("lock ", "a.b_"))
    ]
    lines += [{"_id": "signs", "title": "signs", "text": "lock " + "_" * 900_000}]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = [
        "encode",
        "--corpus",
        folder / "corpus.jsonl",
        "--index",
        folder / "docs",
        "--device",
        "cpu",
        "--quiet",
    ]
    assert main([*map(str, words)]) == 0
    assert main(["index", "postings", "--index", str(folder / "docs"), "--quiet"]) == 0
    return folder / "docs"


@contextlib.contextmanager
def serving(index: Path, *more: str) -> Iterator[Server]:
    """A service of an index, with one thread; ``more`` are further words of its command."""
    words = [
        sys.executable,
        "-m",
        "dupmae_ir",
        "serve",
        "--index",
        index,
        "--port",
        "0",
        "--threads",
        "1",
        *more,
    ]
    environment = {**os.environ, "DUPMAE_IR_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
    log = index.parent / "serve.log"
    with open(log, "w") as said:
        server = subprocess.Popen([*map(str, words)], stderr=said, cwd=ROOT, env=environment)
    try:
        assert until(lambda: _port(log) is not None), "the server did not start"
        yield Server(_port(log) or 0, server.pid)
        server.send_signal(signal.SIGTERM)
        server.wait(20)  # --stop-seconds is 15
    finally:
        server.kill()
        server.wait()


def _port(log: Path) -> int | None:
    """The port that a service says it listens on; None before."""
    found = re.search(r"http://127\.0\.0\.1:(\d+)/", log.read_text())
    return int(found[1]) if found else None


if __name__ == "__main__":
    _ask_again_and_again(sys.argv[1], int(sys.argv[2]))
