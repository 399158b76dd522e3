"""Peak memory of searching several index folders as one (``--index A B C``), and of the same documents in one folder.

    python benchmarks/shards.py --work FOLDER --documents 200000 --shards 4

Made-up vectors and impacts; folders that are there already are used again. Each search runs in a process of its own
and samples its memory: ``anonymous`` is what a machine must have; ``mapped`` are pages of the index files, which the
system drops when memory is short.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import scipy.sparse as sp

DIM = 384
TERMS = 20_000
KEPT = 40
ENGINE = "postings"

SEARCH = """
import json, sys, threading, time
import numpy as np
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.testing import HashingEncoder
from dupmae_ir.types import Query, Representation
import scipy.sparse as sp

peak = {"RssAnon": 0, "RssFile": 0}
def sample():
    while True:
        for line in open("/proc/self/status"):
            name, _, value = line.partition(":")
            if name in peak:
                peak[name] = max(peak[name], int(value.split()[0]) // 1024)
        time.sleep(0.01)

dim, terms, engine, *paths = json.loads(sys.argv[1])
encoder = HashingEncoder(dim=dim, vocabulary=terms)
rng = np.random.default_rng(7)
def encode(texts, cap=1024):
    ot = sp.random(len(texts), terms, 12 / terms, "csr", np.float32, rng)
    return Representation(rng.standard_normal((len(texts), dim)).astype(np.float32), ot)
encoder.encode_queries = encode
before = dict(peak)
threading.Thread(target=sample, daemon=True).start()
time.sleep(0.05)
start = dict(peak)
searcher = Searcher.open(paths if len(paths) > 1 else paths[0], encoder, impact_search=engine, threads=1)
found = searcher.search([Query(str(n), "x") for n in range(32)], 100, "hybrid")
time.sleep(0.05)
print(json.dumps({"start": start, "peak": peak, "hits": found["0"][:3]}))
"""


def make(folder: Path, first: int, count: int) -> None:
    """An index of ``count`` made-up documents with ids from ``first`` on, with postings."""
    from dupmae_ir.index.changes.builder import IndexBuilder
    from dupmae_ir.index.index import Index
    from dupmae_ir.index.postings.format import export_postings

    if (folder / "meta.json").is_file():
        return
    with IndexBuilder(
        folder, dim=DIM, terms=[f"w{i}" for i in range(TERMS)], scale=50.0
    ) as builder:
        for start in range(first, first + count, 5000):
            # A document is the same in whichever folder it is.
            rng = np.random.default_rng(start)
            some = min(5000, first + count - start)
            terms = rng.integers(0, TERMS, (some, KEPT))
            weights = (
                rng.integers(1, 256, (some, KEPT)),
                (np.repeat(np.arange(some), KEPT), terms.ravel()),
            )
            matrix = sp.csr_matrix((weights[0].ravel(), weights[1]), shape=(some, TERMS))
            matrix.data = np.minimum(matrix.data, 255).astype(np.uint8)
            matrix.sort_indices()
            ids = [f"doc{n:09d}" for n in range(start, start + some)]
            vectors = rng.standard_normal((some, DIM)).astype(np.float32)
            builder.add_impacts(ids, vectors, matrix.astype(np.uint8))
        builder.finish({})
    export_postings(Index.open(folder).only_segment)


def measure(paths: list[Path]) -> dict[str, object]:
    """What a process reports that searches ``paths`` as one."""
    arguments = json.dumps([DIM, TERMS, ENGINE, *map(str, paths)])
    done = subprocess.run(
        [sys.executable, "-c", SEARCH, arguments], capture_output=True, text=True, check=True
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


def main() -> None:
    """Make what is missing, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--shards", type=int, default=4)
    given = parser.parse_args()
    share = -(-given.documents // given.shards // 5000) * 5000
    shards = [given.work / f"shard-{share}-{n}" for n in range(given.shards)]
    for n, shard in enumerate(shards):
        make(shard, n * share, share)
    whole = given.work / f"whole-{share * given.shards}"
    make(whole, 0, share * given.shards)
    results = {"one folder": measure([whole]), f"{given.shards} folders": measure(shards)}
    hits = [result["hits"] for result in results.values()]
    assert hits[0] == hits[1], "the lists differ"
    size = sum(p.stat().st_size for p in whole.rglob("*") if p.is_file() and "ot" not in p.parts)
    print(
        f"{share * given.shards:,} documents, {DIM} wide, {KEPT} impacts each: {size / 2**20:,.0f} MiB without Lucene's"
    )
    print(f"32 queries, 100 hits, hybrid with {ENGINE}; lists equal. MiB, peak (before opening):")
    for name, result in results.items():
        start = result["start"]
        peak = result["peak"]
        print(
            f"  {name:10} anonymous {peak['RssAnon']:,} ({start['RssAnon']:,}), "  # type: ignore[index]
            f"mapped {peak['RssFile']:,} ({start['RssFile']:,})"  # type: ignore[index]
        )


if __name__ == "__main__":
    main()
