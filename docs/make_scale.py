"""Write the tables of docs/scale.md: sizes, hours and money for three collections, and the simulation of stragglers.

    python docs/make_scale.py                       # from docs/scale.json
    python docs/make_scale.py --measure CORPUS      # measure again first (processor time of one thread)

The arithmetic is that of ``dupmae-ir encode --estimate`` (``dupmae_ir.encode.planning``). Measured numbers are kept in
docs/scale.json, so that the tables do not change with the machine that builds the documentation. With --check, exit 1
when the page is out of date.
"""

from __future__ import annotations

import heapq
import json
import random
import statistics
import sys
import time

from pages import ROOT, write_or_check

from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.estimate import estimate
from dupmae_ir.encode.planning import Measured, engine_bytes, plan, read_machines

PAGE, NUMBERS = ROOT / "docs" / "scale.md", ROOT / "docs" / "scale.json"
COLLECTIONS = {"MS MARCO v1": 8_841_823, "MS MARCO v2": 138_364_198, "a billion": 1_000_000_000}
GIGABYTE = 1e9
SHARD = 1024  #: documents, as --window
RUNS = 20
VARIATION = 0.1  #: standard deviation of a shard's time, relative to its mean
SLOW, SLOWNESS = 0.05, 3.0  #: share of the workers that are slow for the whole run, and how much
FAILURES, RESTART = 1 / 100, 120.0  #: kills of a worker an hour, and the seconds until its successor works


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
    return "\n".join([*lines, row("texts, compressed", *(amount(texts * n / GIGABYTE) for n in COLLECTIONS.values()))])


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


def shared_queue(workers: int, shards: int, seconds: float, seed: int) -> float:
    """Seconds until the last shard is done, where every worker takes the next one when it is free (--devices, Ray)."""
    rng = random.Random(seed)
    pace = [SLOWNESS if rng.random() < SLOW else 1.0 for _ in range(workers)]
    free = [(0.0, worker) for worker in range(workers)]
    for _ in range(shards):
        now, worker = heapq.heappop(free)
        heapq.heappush(free, (now + _shard(rng, seconds * pace[worker]), worker))
    return max(now for now, _ in free)


def fixed_shares(workers: int, shards: int, seconds: float, seed: int) -> float:
    """The same where every worker has its own share from the start (--shard i/n)."""
    rng = random.Random(seed)
    pace = [SLOWNESS if rng.random() < SLOW else 1.0 for _ in range(workers)]
    return max(sum(_shard(rng, seconds * p) for _ in range(w, shards, workers)) for w, p in enumerate(pace))


def _shard(rng: random.Random, seconds: float) -> float:
    taken = max(0.1 * seconds, rng.gauss(seconds, VARIATION * seconds))
    killed = rng.random() < taken / 3600 * FAILURES
    return taken + (rng.random() * taken + RESTART if killed else 0.0)


def stragglers(measured: Measured) -> str:
    """Time of a run relative to that of perfect workers, by number of workers."""
    shards = COLLECTIONS["MS MARCO v1"] // SHARD + 1
    gpu = next(machine for machine in read_machines() if machine.name.startswith("1 x A100"))
    seconds = SHARD / plan(measured, 1, gpu).documents_per_second
    lines = [row("workers", "perfect", "next shard to whoever is free", "fixed shares"), "|--:|--:|--:|--:|"]
    for workers in (1, 8, 32, 128):
        perfect = seconds * shards / workers
        shared = [shared_queue(workers, shards, seconds, seed) / perfect for seed in range(RUNS)]
        fixed = [fixed_shares(workers, shards, seconds, seed) / perfect for seed in range(RUNS)]
        cells = (f"x {statistics.median(found):.2f} (worst x {max(found):.2f})" for found in (shared, fixed))
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
            row("read, checked and digested by one process", f"{measured.read_rate:,.0f} documents/s"),
            row("indexed by one process", f"{1 / measured.build_seconds:,.0f} documents/s"),
            row("impacts", f"{measured.postings:.0f} a document"),
            row("bytes a document", parts),
        ]
    )


def measure(corpus: str) -> None:
    """Measure again, by processor time."""
    config = EncodeConfig(corpus=corpus, index="not-made", threads=1, sample=1024, estimate=True, quiet=True)
    found = estimate(config, time.process_time)
    NUMBERS.write_text(json.dumps({"corpus": corpus.rstrip("/").split("/")[-1], **found["measured"]}, indent=2) + "\n")


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
