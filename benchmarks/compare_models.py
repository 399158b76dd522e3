"""Compare the encoding speed of two models on the same documents, in turns, in one process.

    python benchmarks/compare_models.py OLD NEW --corpus DATA/scifact/corpus.jsonl [--documents 128 --rounds 7]

Each round encodes all documents with OLD, NEW, NEW, OLD, so that a change of the machine's load hits both. Printed are
the ratios of processor time and of elapsed time, NEW / OLD: the median of the rounds, the smallest and the largest.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from pathlib import Path

from dupmae_ir.console import guarded
from dupmae_ir.io.collections import read_collection
from dupmae_ir.models.inference.encoder import TextEncoder


def seconds(encoder: TextEncoder, documents: list) -> tuple[float, float]:
    """(processor time, elapsed time) of encoding the documents."""
    cpu, clock = time.process_time(), time.perf_counter()
    encoder.encode_collection(documents)
    return time.process_time() - cpu, time.perf_counter() - clock


def compare(args: argparse.Namespace) -> None:
    """Print a line of JSON with the ratios."""
    documents = list(itertools.islice(read_collection(args.corpus), args.documents))
    old, new = (TextEncoder.load(folder, dtype=args.dtype) for folder in (args.old, args.new))
    for encoder in (old, new):
        encoder.encode_collection(documents[:16])
    ratios = []
    for _ in range(args.rounds):
        a, b, c, d = (seconds(encoder, documents) for encoder in (old, new, new, old))
        ratios.append([(b[i] + c[i]) / (a[i] + d[i]) for i in (0, 1)])
    result = {"dtype": old.settings.dtype, "documents": len(documents), "rounds": args.rounds}
    for name, values in zip(("processor", "elapsed"), zip(*ratios, strict=True), strict=True):
        result[name] = [round(f(values), 3) for f in (statistics.median, min, max)]
    print(json.dumps(result))


def main(argv: list[str] | None = None) -> int:
    """Parse the flags and run. Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", help="model folder or name")
    parser.add_argument("new", help="model folder or name")
    parser.add_argument("--corpus", type=Path, required=True, help="documents to encode")
    parser.add_argument(
        "--documents", type=int, default=128, help="number of documents (default: 128)"
    )
    parser.add_argument("--rounds", type=int, default=7, help="number of rounds (default: 7)")
    parser.add_argument("--dtype", default="float32", help="precision (default: float32)")
    args = parser.parse_args(argv)
    return guarded(lambda: compare(args), "compare_models.py")


if __name__ == "__main__":
    sys.exit(main())
