"""How the cost of every step grows with the collection: index, postings, opening, one query, many queries.

    python benchmarks/growth.py [--documents 10000 100000 1000000] [--work FOLDER]

The growth page of the documentation (benchmarks/growth.md) comes from this record and from that of encode_scaling. The
collection is that of benchmarks/hybrid.py: about 207 impacts and a vector of 384 numbers a document; queries come ready
made, so no encoder is in the figures. Every step is a process of its own, whose processor seconds (of all threads, so
other work on the machine does not count) and peak memory are taken. Seconds are fitted to cost = a * documents ** b.

  index      vectors, impacts, forward index and Lucene written from arrays
  postings   made from the forward index
  open       a searcher over the index, from the start of the call to the first answer
  query      one hybrid query, ten hits, certified: median
  topics     hybrid queries together, a thousand hits each: seconds a query
  codes      codes of the rotated vectors, made from the stored ones
  query_codes  as query, by these codes

Gate: every list is certified, the ten best of one query are the first of its thousand, and the codes find the same ten.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import harness
import hybrid

from dupmae_ir.index.format.rotated import build_rotated
from dupmae_ir.index.index import Index
from dupmae_ir.index.postings.format import export_postings, folder_of
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.types import Hit, Query

QUERIES = 40
TOPICS = [Query(str(q), str(q)) for q in range(QUERIES)]


def index(work: Path, documents: int) -> dict[str, float]:
    """Write the index without postings; the seconds of drawing the collection do not count."""
    taken = 0.0
    with hybrid.builder(work / str(documents)) as out:
        for batch in hybrid.batches(documents):
            started = time.process_time()
            out.add_impacts(*batch)
            taken += time.process_time() - started
        started = time.process_time()
        out.finish({})
    return {"seconds": taken + time.process_time() - started}


def postings(work: Path, documents: int) -> dict[str, float]:
    """Write the postings."""
    opened = Index.open(work / str(documents)).only_segment
    started = time.process_time()
    export_postings(opened)
    return {"seconds": time.process_time() - started}


def search(work: Path, documents: int) -> dict[str, float]:
    """Open the index and search."""
    opened = Index.open(work / str(documents))
    encoder = hybrid.queries(opened, QUERIES)
    started = time.process_time()
    searcher = Searcher(Index.open(work / str(documents)), encoder).with_settings(
        impact_search="postings", threads=1
    )
    searcher.search("0")
    first = time.process_time() - started
    query, best = one_by_one(searcher)
    together = list(searcher.answers(TOPICS, 1000))  # loads what a batch needs
    started = time.process_time()
    together = list(searcher.answers(TOPICS, 1000))
    batch = (time.process_time() - started) / QUERIES
    assert all(answer.report is not None and answer.report.exact for answer in together)
    assert [list(answer.hits[:10]) for answer in together] == best
    return {"open": first, "query": query, "topics": batch}


def one_by_one(searcher: Searcher) -> tuple[float, list[list[Hit]]]:
    """The median of a query's processor seconds, and the ten best of each."""
    each = list[float]()
    best = list[list[Hit]]()
    for topic in [*TOPICS, *TOPICS]:
        started = time.process_time()
        answer = next(searcher.answers([topic], 10))
        each.append(time.process_time() - started)
        assert answer.report is not None
        assert answer.report.exact
        best.append(list(answer.hits))
    return statistics.median(each), best[:QUERIES]


def codes(work: Path, documents: int) -> dict[str, float]:
    """Make the codes."""
    opened = Index.open(work / str(documents)).only_segment
    started = time.process_time()
    size = build_rotated(opened)["bytes"]
    return {"seconds": time.process_time() - started, "bytes": size}


def by_codes(work: Path, documents: int) -> dict[str, float]:
    """Queries one by one, by codes."""
    opened = Index.open(work / str(documents))
    flat = Searcher(opened, hybrid.queries(opened, QUERIES)).with_settings(
        impact_search="postings", threads=1, dense_index="flat"
    )
    small = flat.with_settings(dense_index="rotated")
    small.search("0")
    seconds, best = one_by_one(small)
    assert best == one_by_one(flat)[1]
    return {"seconds": seconds}


STEPS: dict[str, Callable[[Path, int], dict[str, float]]] = {
    "index": index,
    "postings": postings,
    "search": search,
    "codes": codes,
    "query_codes": by_codes,
}


def in_process(step: str, work: Path, documents: int) -> dict[str, float]:
    """A step in a process of its own: its figures and the megabytes of memory at its peak."""
    words = [
        sys.executable,
        __file__,
        "--step",
        step,
        "--work",
        str(work),
        "--documents",
        str(documents),
    ]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    printed = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"the step {step} failed with status {status}")
    return {**json.loads(printed.splitlines()[-1]), "megabytes": usage.ru_maxrss / 1024}


def measured(work: Path, documents: int) -> dict[str, dict[str, float]]:
    """Every step at one size; the index is removed afterwards."""
    found = {step: in_process(step, work, documents) for step in STEPS}
    folder = work / str(documents)
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    own = sum(f.stat().st_size for f in folder_of(Index.open(folder).only_segment.path).iterdir())
    shutil.rmtree(folder)
    memory = found["search"].pop("megabytes")
    rows = {
        "index": {**found["index"], "bytes": size - own - found["codes"]["bytes"]},
        "postings": {**found["postings"], "bytes": own},
        **{
            name: {"seconds": seconds, "megabytes": memory}
            for name, seconds in found["search"].items()
        },
        **{name: found[name] for name in ("codes", "query_codes")},
    }
    for name, row in rows.items():
        print(
            f"{documents:>10,} {name:<9} {row['seconds']:10.4f} s {row['megabytes']:8.0f} MB",
            flush=True,
        )
    return rows


def main() -> None:
    parser = harness.arguments(__doc__, repeats=1)
    parser.add_argument("--documents", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument(
        "--work", type=Path, help="folder for the indexes (default: a temporary one)"
    )
    parser.add_argument("--step", choices=tuple(STEPS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step:
        print(json.dumps(STEPS[args.step](args.work, args.documents[0])))
        return
    with tempfile.TemporaryDirectory() as temporary:
        work = args.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        by_size = {documents: measured(work, documents) for documents in args.documents}
    sizes = list(by_size)
    steps = list(by_size[sizes[0]])
    seconds = {step: [by_size[n][step]["seconds"] for n in sizes] for step in steps}
    growth = {
        step: {
            "seconds": seconds[step],
            "megabytes": [by_size[n][step]["megabytes"] for n in sizes],
            "bytes": [by_size[n][step].get("bytes", 0) for n in sizes],
            "exponent": harness.fitted_exponent(sizes, seconds[step]) if len(sizes) > 1 else 1.0,
        }
        for step in steps
    }
    for step, row in growth.items():
        print(f"{step:<9} grows as documents ** {row['exponent']:.2f}")
    harness.report(
        "growth",
        [],
        {},
        args,
        {"documents": sizes, "steps": growth},
        harness.curves(
            "Processor seconds of every step",
            "documents",
            "processor seconds",
            {step: (sizes, row["seconds"]) for step, row in growth.items()},
        ),
    )


if __name__ == "__main__":
    main()
