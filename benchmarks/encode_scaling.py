"""What encoding costs as the collection grows: processor seconds and memory of the encode command.

    python benchmarks/encode_scaling.py [--passages 10000 100000 1000000] [--work FOLDER]

Row 15 of the second table of benchmarks/archive.md, and row 10 of the third.

The whole command as a process of its own, from the collection's file to the finished index with vectors, impacts and
forward index: reading, tokenising, encoding, parts on disk, Lucene. A tiny model (two layers, 64 wide, 4,096 words, the
top 128 kept) and short texts (20 word pieces), so that what is around the model shows, and a million passages are
within reach. Both exponents are fitted to cost = a * passages ** b: time is to grow with 1, memory with 0.

Gate: the index holds every passage and passes its own verification.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness
import passages

from dupmae_ir.index.index import Index

BATCH = 10_000


def write_collection(path: Path, count: int) -> None:
    """BEIR's corpus.jsonl, drawn in batches."""
    with open(path, "w", encoding="utf-8") as f:
        for first in range(0, count, BATCH):
            texts = passages.passages(
                min(BATCH, count - first), seed=first, mean=20, longest=48, shape="tiny"
            )
            f.writelines(
                json.dumps({"_id": str(first + i), "text": t}) + "\n" for i, t in enumerate(texts)
            )


def encoded(corpus: Path, model: Path, index: Path, threads: int) -> tuple[float, float, float]:
    """Processor seconds of an encode command, and megabytes at its peak: of all memory, and without pages of files."""
    paths = ["--corpus", str(corpus), "--model", str(model), "--index", str(index)]
    words = [*paths, "--threads", str(threads), "--quiet"]
    own = 0
    pid = subprocess.Popen([sys.executable, "-m", "dupmae_ir.encode", *words]).pid
    while not (ended := os.wait4(pid, os.WNOHANG))[0]:
        found = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
        own = max(own, int(found[1]) if found else 0)
        time.sleep(0.05)
    _, status, usage = ended
    if status:
        raise SystemExit(f"encode failed with status {status}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, own / 1024


def main() -> None:
    parser = harness.arguments(__doc__, repeats=1)
    parser.add_argument("--passages", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument(
        "--work", type=Path, help="folder for collections and indexes (default: a temporary one)"
    )
    args = parser.parse_args()
    seconds = []
    memory = []
    anonymous = []
    sizes = []
    with tempfile.TemporaryDirectory() as temporary, passages.model_folder("tiny") as model:
        work = args.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        for count in args.passages:
            corpus = work / f"{count}.jsonl"
            index = work / f"index-{count}"
            write_collection(corpus, count)
            shutil.rmtree(index, ignore_errors=True)
            took, peak, own = encoded(corpus, model, index, args.threads)
            opened = Index.open(index)
            assert opened.documents == count
            opened.verify()
            seconds.append(took)
            memory.append(peak)
            anonymous.append(own)
            sizes.append(sum(f.stat().st_size for f in index.rglob("*") if f.is_file()) / 2**20)
            print(
                f"{count:>10,} passages {took:9.1f} s {count / took:8.0f}/s {peak:8.0f} MB of memory "
                f"({own:.0f} without pages of files) {sizes[-1]:8.0f} MB of index",
                flush=True,
            )
            shutil.rmtree(index)
            corpus.unlink()
    time_grows, memory_grows = (
        harness.fitted_exponent(args.passages, c) for c in (seconds, memory)
    )
    print(f"time grows as passages ** {time_grows:.2f}, memory as passages ** {memory_grows:.2f}")
    rows = [
        dict(
            zip(
                ("passages", "seconds", "megabytes", "anonymous_megabytes", "index_megabytes"),
                row,
                strict=True,
            )
        )
        for row in zip(args.passages, seconds, memory, anonymous, sizes, strict=True)
    ]
    small = min(zip(args.passages, memory, strict=True))
    large = max(zip(args.passages, memory, strict=True))
    memory_claim = harness.Claim(
        15,
        f"memory of encode at its peak, from {small[0]:,} to {large[0]:,} passages",
        "encode",
        f"encode of {small[0]:,}",
        large[1] / small[1],
        1.1,
        "<=",
        note="what grows is the heap of the JVM, while Lucene writes",
        round=2,
    )
    claims = [memory_claim, dataclasses.replace(memory_claim, row=10, goal=1.2, round=3)]
    harness.report(
        "encode_scaling",
        claims,
        {},
        args,
        {
            "growth": rows,
            "time_exponent": time_grows,
            "memory_exponent": memory_grows,
            "threads": args.threads,
        },
        harness.curves(
            f"The encode command, a tiny model: time ~ n^{time_grows:.2f}, memory ~ n^{memory_grows:.2f}",
            "passages",
            "processor seconds, megabytes",
            {
                "processor seconds": (args.passages, seconds),
                "memory at the peak, MB": (args.passages, memory),
            },
        ),
    )


if __name__ == "__main__":
    main()
