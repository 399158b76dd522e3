"""Opening an index and answering its first query, against an earlier checkout.

    python benchmarks/open_index.py --before CHECKOUT [--documents 5000] [--rounds 15]

CHECKOUT is a folder with the package as it was before (``git worktree add CHECKOUT COMMIT``). Each round runs one
process per version, in turns, on the index that this version's ``index postings`` completed: vectors of 384 dimensions
and about 100 impacts a document, as the embedded model makes. Two times are taken inside the process, after imports:
``folder``, to open the index and map vectors and forward index; ``search``, to open it with Lucene and answer one
hybrid query, JVM start included. The encoder is a fake, so no model hides the cost.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from dupmae_ir.index.changes.builder import IndexBuilder

ROOT = Path(__file__).resolve().parents[1]
DIM, TERMS, IMPACTS = 384, 30522, 100
CHILD = """
import sys, time
import numpy, scipy.sparse
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.index.index import Index
from dupmae_ir.types import EncoderSettings, Representation
class Fake:
    name, digest, dim, settings = "fake", "0", 384, EncoderSettings()
    terms = [f"t{i}" for i in range(30522)]
    def encode_queries(self, texts, cap=1024):
        ot = scipy.sparse.csr_matrix((numpy.ones(5, "f4"), numpy.arange(5) * 100, [0, 5]), shape=(1, 30522))
        return Representation(numpy.ones((1, 384), "f4"), ot)
began = time.perf_counter()
folder = Index.open(sys.argv[1]); segment = folder.only_segment; segment.vectors; segment.forward
opened = time.perf_counter() - began
began = time.perf_counter()
assert len(Searcher.open(sys.argv[1], Fake(), impact_search="lucene").search("q")) == 10
print(opened, time.perf_counter() - began)
"""


def build(folder: Path, documents: int) -> None:
    """An index of random vectors and impacts."""
    drawn = np.random.default_rng(0)
    with IndexBuilder(folder, dim=DIM, terms=[f"t{i}" for i in range(TERMS)], scale=1.0) as builder:
        for start in range(0, documents, 500):
            rows = min(500, documents - start)
            terms = np.minimum(drawn.zipf(1.3, (rows, IMPACTS)) - 1, TERMS - 1)
            ot = sp.lil_matrix((rows, TERMS), dtype=np.float32)
            for row in range(rows):
                ot[row, np.unique(terms[row])] = 3
            vectors = drawn.standard_normal((rows, DIM)).astype(np.float32)
            builder.add([f"d{start + row}" for row in range(rows)], vectors, ot.tocsr())
        builder.finish({})


def timed(checkout: Path, index: Path) -> tuple[float, float]:
    """Seconds of ``folder`` and of ``search`` in a new process."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(index)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    opened, searched = map(float, done.stdout.split())
    return opened, searched


def main() -> None:
    """Measure in turns and print medians, and the medians of the differences within a round."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--before", type=Path, required=True, help="checkout of the version to compare with"
    )
    parser.add_argument("--documents", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=15)
    config = parser.parse_args()
    with tempfile.TemporaryDirectory() as where:
        index = Path(where) / "I"
        build(index, config.documents)
        size = sum(path.stat().st_size for path in index.rglob("*") if path.is_file())
        for checkout in (config.before, ROOT):
            timed(checkout, index)  # warm the disk cache and compiled modules
        rounds = [(timed(config.before, index), timed(ROOT, index)) for _ in range(config.rounds)]
    print(
        json.dumps(
            {
                "documents": config.documents,
                "megabytes": round(size / 1e6, 1),
                "rounds": config.rounds,
            }
        )
    )
    for place, name in enumerate(("folder", "search")):
        before, after = ([pair[side][place] for pair in rounds] for side in (0, 1))
        added = statistics.median(b - a for a, b in zip(before, after, strict=True))
        middle = statistics.median(before)
        print(
            f"{name}: before {middle * 1e3:.1f} ms, after {statistics.median(after) * 1e3:.1f} ms, "
            f"median difference {added * 1e3:+.1f} ms ({100 * added / middle:+.1f} %)"
        )


if __name__ == "__main__":
    main()
