"""Processor time of ``index sync`` by the number of changed documents, against encoding everything again.

    python benchmarks/living.py [--documents 5000] [--model FOLDER] [--work FOLDER]

Made-up texts of 60 words. Each command runs in a process of its own; its processor time (user and system, of one
thread) is compared, so other work on the machine matters little. ``fixed`` is a command that finds nothing changed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

WORDS = [
    f"{a}{b}"
    for a in ("data", "tree", "sort", "list", "graph", "query", "index")
    for b in ("", "s", "ing", "er")
]


def write(path: Path, documents: int, changed: int) -> Path:
    """A collection of which the first ``changed`` documents have other words."""
    rng = random.Random(0)
    with open(path, "w", encoding="utf-8") as f:
        for n in range(documents):
            text = " ".join(rng.choices(WORDS, k=60))
            f.write(
                json.dumps(
                    {"_id": f"d{n}", "text": f"changed {changed} {text}" if n < changed else text}
                )
                + "\n"
            )
    return path


def seconds(*command: str) -> float:
    """Processor time of ``dupmae-ir`` with these arguments."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-m", "dupmae_ir", *command, "--quiet"], check=True, env=environment
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Encode, synchronise with growing changes, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=5000)
    parser.add_argument("--model")
    parser.add_argument("--work", type=Path)
    given = parser.parse_args()
    work = given.work or Path(tempfile.mkdtemp())
    index = str(work / "I")
    corpus = work / "corpus.jsonl"
    model = ["--model", given.model] if given.model else []
    write(corpus, given.documents, 0)
    whole = seconds("encode", "--corpus", str(corpus), "--index", index, "--threads", "1", *model)
    sync = ["index", "sync", "--corpus", str(corpus), "--index", index, "--threads", "1"]
    fixed = seconds(*sync)
    print(
        f"{given.documents:,} documents; processor seconds: encode {whole:.1f}, sync without a change {fixed:.1f}"
    )
    for changed in (1, 10, 100, 1000):
        if changed < given.documents:
            write(corpus, given.documents, changed)
            took = seconds(*sync)
            print(f"  sync with {changed:>5,} changed: {took:6.1f} ({took / whole:.3f} of encode)")
    print(f"  compact: {seconds('index', 'compact', index):.1f}")


if __name__ == "__main__":
    main()
