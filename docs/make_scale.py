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

PAGE = ROOT / "docs" / "scale.md"
NUMBERS = ROOT / "docs" / "scale.json"
MACHINES = ROOT / "docs" / "machines.toml"
COLLECTIONS = {"MS MARCO v1": 8_841_823, "MS MARCO v2": 138_364_198, "a billion": 1_000_000_000}
GIGABYTE = 1e9

# The simulation of stragglers.
WINDOW = 1024  #: documents, as --window
RUNS = 20
VARIATION = 0.1  #: standard deviation of a window's time, relative to its mean
SLOW_SHARE = 0.05  #: share of the workers that are slow for the complete run
SLOWDOWN = 3.0  #: how many times as long a slow worker takes
KILLS_PER_HOUR = 1 / 100  #: of a worker
RESTART_SECONDS = 120.0  #: until the successor of a killed worker starts


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
    bound_by: str  #: what limits the rate, unless the devices do: ``host`` or ``reading``


def read_machines() -> list[Machine]:
    """The kinds of machines in docs/machines.toml."""
    tables = tomllib.loads(MACHINES.read_text(encoding="utf-8"))["machine"]
    return [Machine(**table) for table in tables]


def plan(measured: Measured, documents: float, machine: Machine) -> Plan:
    """Hours and dollars. The devices share the encoding; one process reads, and one builds the index afterwards."""
    device = measured.rate * machine.times
    limits = {"": device, "host": machine.host, "reading": measured.read_rate / machine.devices}
    bound_by = min(limits, key=lambda name: limits[name])
    rate = limits[bound_by] * machine.devices
    encode_hours = documents / rate / 3600
    index_hours = documents * measured.build_seconds / 3600
    dollars = (encode_hours + index_hours) * machine.price
    return Plan(machine.name, rate, encode_hours, index_hours, dollars, bound_by)


def engine_bytes(measured: Measured) -> dict[str, float]:
    """Bytes of a document by engine, ids and payloads left out. See docs/scale.md for where the terms come from."""
    dense = 4.0 * (measured.dim or 0)
    impacts = measured.postings
    ours = sum(size for part, size in measured.bytes.items() if part != "texts")
    pgvector = dense + 8 + 16 + 8 * impacts + 60
    # HNSW keeps a second copy of the vector and 32 links of 6 bytes.
    hnsw = dense + 8 + 32 * 6
    return {
        "this package": ours,
        "this package, with codes": ours + dense / 4 + 20,
        "PostgreSQL + pgvector, no vector index": pgvector,
        "PostgreSQL + pgvector, HNSW on the vector": pgvector + hnsw,
        "Qdrant": dense + 128 + 16 * impacts,
        "Milvus": dense + 16 * impacts,
        "OpenSearch, Elasticsearch": dense + 128 + measured.bytes.get("ot", 0.0),
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
    if value < 100:
        return f"{value:.1f} h"
    return f"{value / 24:,.1f} days"


def sizes(measured: Measured) -> str:
    """GB by engine and collection."""
    lines = [row("GB", *COLLECTIONS), "|:--|" + "--:|" * len(COLLECTIONS)]
    bytes_of = engine_bytes(measured)
    bytes_of["texts, compressed"] = measured.bytes.get("texts", 0.0)
    for name, size in bytes_of.items():
        cells = [amount(size * documents / GIGABYTE) for documents in COLLECTIONS.values()]
        lines.append(row(name, *cells))
    return "\n".join(lines)


def times(measured: Measured) -> str:
    """Hours to encode and to index, and dollars, by kind of machine and collection."""
    lines = [row("encode + index, US$", *COLLECTIONS), "|:--|" + "--:|" * len(COLLECTIONS)]
    for machine in read_machines():
        cells = []
        for documents in COLLECTIONS.values():
            p = plan(measured, documents, machine)
            bound = f" ({p.bound_by})" if p.bound_by else ""
            encode = hours(p.encode_hours) + bound
            cells.append(f"{encode} + {hours(p.index_hours)}, {p.dollars:,.0f}")
        lines.append(row(machine.name, *cells))
    return "\n".join(lines)


def shared_queue(workers: int, windows: int, seconds: float, seed: int) -> float:
    """Seconds until the last window is done if every worker takes the next one when it is free (--devices, Ray)."""
    rng = random.Random(seed)
    slowdowns = _draw_slowdowns(rng, workers)
    queue = [(0.0, worker) for worker in range(workers)]
    for _ in range(windows):
        now, worker = heapq.heappop(queue)
        duration = _window_seconds(rng, seconds * slowdowns[worker])
        heapq.heappush(queue, (now + duration, worker))
    return max(now for now, _ in queue)


def fixed_shares(workers: int, windows: int, seconds: float, seed: int) -> float:
    """Seconds until the last window is done if every worker has a fixed share from the start (--shard i/n)."""
    rng = random.Random(seed)
    totals = []
    for worker, slowdown in enumerate(_draw_slowdowns(rng, workers)):
        share = range(worker, windows, workers)
        totals.append(sum(_window_seconds(rng, seconds * slowdown) for _ in share))
    return max(totals)


def _draw_slowdowns(rng: random.Random, workers: int) -> list[float]:
    return [SLOWDOWN if rng.random() < SLOW_SHARE else 1.0 for _ in range(workers)]


def _window_seconds(rng: random.Random, mean: float) -> float:
    """Seconds of a window, drawn; a worker that is killed loses what it has done of it and is started again."""
    duration = max(0.1 * mean, rng.gauss(mean, VARIATION * mean))
    killed = rng.random() < duration / 3600 * KILLS_PER_HOUR
    if not killed:
        return duration
    return duration + (rng.random() * duration + RESTART_SECONDS)


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
        cells = []
        for simulate in (shared_queue, fixed_shares):
            ratios = [simulate(workers, windows, seconds, seed) / perfect for seed in range(RUNS)]
            cells.append(f"x {statistics.median(ratios):.2f} (worst x {max(ratios):.2f})")
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
    sample = estimate(config, time.process_time)
    numbers = {
        "corpus": corpus.rstrip("/").split("/")[-1],
        # encode_seconds is a range; this is the rate at its middle.
        "rate": 2 * sample.documents / sum(sample.encode_seconds),
        "read_rate": sample.documents / sample.read_seconds,
        "build_seconds": sample.index_seconds / sample.documents,
        "bytes": {part: size / sample.documents for part, size in sample.bytes.items()},
        "postings": sample.postings,
        "dim": sample.dim,
        "words": sample.words,
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
