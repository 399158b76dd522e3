"""Write the tables of docs/scale.md: sizes, hours and money for three collections, and the simulation of stragglers.

    python docs/make_scale.py                       # from docs/scale.json
    python docs/make_scale.py --measure CORPUS      # measure again first (processor time of one thread)

A sample is measured by benchmarks/estimate.py; kinds of machines and their prices are in docs/machines.toml.
Measured numbers are kept in docs/scale.json, so that the tables do not change with the machine that builds the
documentation. With --check, exit 1 when the page is out of date.
"""

from __future__ import annotations

import heapq
import json
import random
import statistics
import sys
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass

from pages import ROOT, write_or_check

PAGE, NUMBERS, MACHINES = (
    ROOT / "docs" / name for name in ("scale.md", "scale.json", "machines.toml")
)
COLLECTIONS = {"MS MARCO v1": 8_841_823, "MS MARCO v2": 138_364_198, "a billion": 1_000_000_000}
GIGABYTE = 1e9
WINDOW = 1024  #: documents, as --window
RUNS = 20
VARIATION = 0.1  #: standard deviation of a window's time, relative to its mean
SLOW, SLOWNESS = 0.05, 3.0  #: share of the workers that are slow for the whole run, and how much
FAILURES, RESTART = (
    1 / 100,
    120.0,
)  #: kills of a worker an hour, and the seconds until its successor works


@dataclass(frozen=True)
class Measured:
    """What the sample showed, per document unless stated otherwise."""

    rate: float  #: documents encoded a second by one core, or by the one device
    read_rate: float  #: documents that the driver reads, checks and digests a second
    build_seconds: float  #: to add a document to the index
    bytes: Mapping[str, float]  #: by part of the index
    postings: float
    dim: int | None
    words: float


@dataclass(frozen=True)
class Machine:
    """A kind of machine; the fields are explained in docs/machines.toml."""

    name: str
    devices: int
    times: float
    price: float
    host: float = 3000.0

    def __post_init__(self) -> None:
        if self.devices < 1 or self.times <= 0 or self.host <= 0 or self.price < 0:
            raise ValueError(
                f"machine {self.name!r}: devices, times and host must be positive, price at least 0"
            )


@dataclass(frozen=True)
class Plan:
    """Encoding a collection on one machine."""

    machine: str
    documents_per_second: float
    encode_hours: float
    index_hours: float
    dollars: float
    bound_by: str  #: what else than the devices limits the rate: ``host``, ``reading`` or nothing


def read_machines() -> list[Machine]:
    """The kinds of machines in docs/machines.toml."""
    return [
        Machine(**row) for row in tomllib.loads(MACHINES.read_text(encoding="utf-8"))["machine"]
    ]


def plan(measured: Measured, documents: float, machine: Machine) -> Plan:
    """Hours and dollars. The devices share the encoding; one process reads, and one builds the index afterwards."""
    device = measured.rate * machine.times
    limits = {"": device, "host": machine.host, "reading": measured.read_rate / machine.devices}
    bound_by = min(limits, key=lambda name: limits[name])
    rate = limits[bound_by] * machine.devices
    encode, build = documents / rate / 3600, documents * measured.build_seconds / 3600
    dollars = (encode + build) * machine.price
    return Plan(machine.name, rate, encode, build, dollars, bound_by)


def engine_bytes(measured: Measured) -> dict[str, float]:
    """Bytes of a document by engine, ids and payloads left out. See docs/scale.md for where the terms come from."""
    dense, impacts = 4.0 * (measured.dim or 0), measured.postings
    own = dict(measured.bytes)
    return {
        "this package": sum(size for part, size in own.items() if part != "texts"),
        "this package, with codes": sum(s for p, s in own.items() if p != "texts") + dense / 4 + 20,
        "PostgreSQL + pgvector, no vector index": dense + 8 + 16 + 8 * impacts + 60,
        "PostgreSQL + pgvector, HNSW on the vector": 2 * (dense + 8)
        + 16
        + 8 * impacts
        + 60
        + 32 * 6,
        "Qdrant": dense + 128 + 16 * impacts,
        "Milvus": dense + 16 * impacts,
        "OpenSearch, Elasticsearch": dense + 128 + own.get("ot", 0.0),
        "Vespa": dense + 16 * impacts,
    }


def row(*cells: object) -> str:
    """A line of a Markdown table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def amount(value: float) -> str:
    """Three significant digits, thousands separated."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def hours(value: float) -> str:
    """Minutes below an hour, days above a hundred hours."""
    if value < 1:
        return f"{value * 60:.0f} min"
    return f"{value:.1f} h" if value < 100 else f"{value / 24:,.1f} days"


def sizes(measured: Measured) -> str:
    """GB by engine and collection."""
    lines = [row("GB", *COLLECTIONS), "|:--|" + "--:|" * len(COLLECTIONS)]
    for engine, size in engine_bytes(measured).items():
        lines.append(row(engine, *(amount(size * n / GIGABYTE) for n in COLLECTIONS.values())))
    texts = measured.bytes.get("texts", 0.0)
    return "\n".join(
        [
            *lines,
            row("texts, compressed", *(amount(texts * n / GIGABYTE) for n in COLLECTIONS.values())),
        ]
    )


def times(measured: Measured) -> str:
    """Hours to encode and to index, and dollars, by kind of machine and collection."""
    lines = [row("encode + index, US$", *COLLECTIONS), "|:--|" + "--:|" * len(COLLECTIONS)]
    for machine in read_machines():
        plans = [plan(measured, n, machine) for n in COLLECTIONS.values()]
        cells = [
            f"{hours(p.encode_hours)}{f' ({p.bound_by})' if p.bound_by else ''} + {hours(p.index_hours)}, "
            f"{p.dollars:,.0f}"
            for p in plans
        ]
        lines.append(row(machine.name, *cells))
    return "\n".join(lines)


def shared_queue(workers: int, windows: int, seconds: float, seed: int) -> float:
    """Seconds until the last window is done, where every worker takes the next one when it is free (--devices, Ray)."""
    rng = random.Random(seed)
    pace = [SLOWNESS if rng.random() < SLOW else 1.0 for _ in range(workers)]
    free = [(0.0, worker) for worker in range(workers)]
    for _ in range(windows):
        now, worker = heapq.heappop(free)
        heapq.heappush(free, (now + _window(rng, seconds * pace[worker]), worker))
    return max(now for now, _ in free)


def fixed_shares(workers: int, windows: int, seconds: float, seed: int) -> float:
    """The same where every worker has its own share from the start (--shard i/n)."""
    rng = random.Random(seed)
    pace = [SLOWNESS if rng.random() < SLOW else 1.0 for _ in range(workers)]
    return max(
        sum(_window(rng, seconds * p) for _ in range(w, windows, workers))
        for w, p in enumerate(pace)
    )


def _window(rng: random.Random, seconds: float) -> float:
    taken = max(0.1 * seconds, rng.gauss(seconds, VARIATION * seconds))
    killed = rng.random() < taken / 3600 * FAILURES
    return taken + (rng.random() * taken + RESTART if killed else 0.0)


def stragglers(measured: Measured) -> str:
    """Time of a run relative to that of perfect workers, by number of workers."""
    windows = COLLECTIONS["MS MARCO v1"] // WINDOW + 1
    gpu = next(machine for machine in read_machines() if machine.name.startswith("1 x A100"))
    seconds = WINDOW / plan(measured, 1, gpu).documents_per_second
    lines = [
        row("workers", "perfect", "next window to whoever is free", "fixed shares"),
        "|--:|--:|--:|--:|",
    ]
    for workers in (1, 8, 32, 128):
        perfect = seconds * windows / workers
        shared = [shared_queue(workers, windows, seconds, seed) / perfect for seed in range(RUNS)]
        fixed = [fixed_shares(workers, windows, seconds, seed) / perfect for seed in range(RUNS)]
        cells = (
            f"x {statistics.median(found):.2f} (worst x {max(found):.2f})"
            for found in (shared, fixed)
        )
        lines.append(row(workers, hours(perfect / 3600), *cells))
    return "\n".join(lines)


def inputs(measured: Measured, corpus: str) -> str:
    """The measured numbers."""
    parts = ", ".join(f"{part} {size:,.0f}" for part, size in measured.bytes.items() if size >= 1)
    return "\n".join(
        [
            row("measured", ""),
            "|:--|:--|",
            row("collection", f"{corpus}, {measured.words:.0f} words a document"),
            row("encoded by one core", f"{measured.rate:.1f} documents/s"),
            row(
                "read, checked and digested by one process",
                f"{measured.read_rate:,.0f} documents/s",
            ),
            row("indexed by one process", f"{1 / measured.build_seconds:,.0f} documents/s"),
            row("impacts", f"{measured.postings:.0f} a document"),
            row("bytes a document", parts),
        ]
    )


def measure(corpus: str) -> None:
    """Measure again, by processor time."""
    sys.path.append(str(ROOT / "benchmarks"))
    from estimate import EstimateConfig, estimate

    config = EstimateConfig(corpus=corpus, index="not-made", threads=1, sample=1024, quiet=True)
    found = estimate(config, time.process_time)
    numbers = {
        "corpus": corpus.rstrip("/").split("/")[-1],
        "rate": 2 * found.documents / sum(found.encode_seconds),
        "read_rate": found.documents / found.read_seconds,
        "build_seconds": found.index_seconds / found.documents,
        "bytes": {part: size / found.documents for part, size in found.bytes.items()},
        "postings": found.postings,
        "dim": found.dim,
        "words": found.words,
    }
    NUMBERS.write_text(json.dumps(numbers, indent=2) + "\n")


if __name__ == "__main__":
    if "--measure" in sys.argv:
        measure(sys.argv[-1])
    stored = json.loads(NUMBERS.read_text(encoding="utf-8"))
    name = stored.pop("corpus")
    numbers = Measured(**stored)
    parts = {
        "scale_inputs": lambda: inputs(numbers, name),
        "scale_times": lambda: times(numbers),
        "scale_sizes": lambda: sizes(numbers),
        "scale_stragglers": lambda: stragglers(numbers),
    }
    write_or_check([PAGE], parts, "docs/scale.json")
