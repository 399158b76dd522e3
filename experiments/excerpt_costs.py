"""What vectors of excerpts cost and find in the product: the read-outs of experiments/sentences-and-titles.md.

    python experiments/excerpt_costs.py --sets SETS --output experiments/records/sentences-and-titles/costs.json

``SETS`` is made by question_sets.py. Each collection is encoded with and without ``excerpts``, in turn, and searched in
hybrid mode by the product's own commands. Seconds are of the processor, so that other programs count little.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from dupmae_ir import Searcher
from dupmae_ir.collections.prepared import QUERIES
from dupmae_ir.console import guarded
from dupmae_ir.eval.evaluate import evaluate
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.topics import read_topics

SETS = ("covid", "fairytales", "stories")
MEASURE = "nDCG@10"
_TIMED = 200
"""Questions that are asked one by one, to time them."""


def encode(corpus: Path, index: Path, *more: str) -> float:
    """Encode a collection; returns the processor seconds of the command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "dupmae_ir.encode", "--corpus", str(corpus)]
    command += ["--index", str(index), "--dtype", "mixed", "--quiet", *more]
    subprocess.run(command, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def vector_bytes(index: Path) -> int:
    """Bytes of the vectors of documents and excerpts."""
    files = [*index.glob("segments/*/cls/index"), *index.glob("segments/*/excerpts/*")]
    return sum(file.stat().st_size for file in files)


def measure(folder: Path, index: Path) -> dict[str, Any]:
    """nDCG@10 of each question, and the milliseconds of one question, the query's encoding included."""
    qrels = read_qrels(folder / "qrels" / "test.tsv")
    topics = [topic for topic in read_topics(str(folder / QUERIES)) if topic.qid in qrels]
    searcher = Searcher.open(index)
    answers = list(searcher.answers(topics, 100))
    assert all(answer.report is not None and answer.report.exact for answer in answers)
    run = {answer.query.qid: list(answer.hits) for answer in answers}
    scores = evaluate(qrels, run, (MEASURE,)).per_query
    seconds = []
    for topic in topics[:_TIMED]:
        started = time.perf_counter()
        searcher.search(topic.text, 10)
        seconds.append(time.perf_counter() - started)
    return {
        "scores": [round(scores[topic.qid][MEASURE], 4) for topic in topics],
        "documents": searcher.index.documents,
        "bytes": vector_bytes(index),
        "milliseconds": round(1000 * float(np.median(seconds)), 1),
    }


def in_words(found: dict[str, Any]) -> str:
    """What a collection shows, in one line."""
    today = found["today"]
    excerpts = found["excerpts"]
    seconds = excerpts["seconds"] / today["seconds"]
    size = excerpts["bytes"] / today["bytes"]
    return (
        f"{MEASURE} {np.mean(today['scores']):.4f} -> {np.mean(excerpts['scores']):.4f}, seconds x {seconds:.2f}, "
        f"bytes x {size:.2f}, a question {today['milliseconds']} -> {excerpts['milliseconds']} ms"
    )


def run(args: argparse.Namespace) -> None:
    """Measure all collections and write the record."""
    record: dict[str, Any] = {}
    for name in SETS:
        folder = args.sets / name
        with tempfile.TemporaryDirectory() as work:
            for kind, more in (("today", ()), ("excerpts", ("--excerpts",))):
                index = Path(work) / kind
                seconds = encode(folder / "corpus.jsonl", index, *more)
                found = measure(folder, index)
                record.setdefault(name, {})[kind] = {"seconds": round(seconds, 1), **found}
        print(f"{name}: {in_words(record[name])}", flush=True)
    with atomic_write(args.output) as f:
        json.dump(record, f)


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=Path, required=True, help="made by question_sets.py")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args(argv)
    return guarded(lambda: run(args), "excerpt_costs.py")


if __name__ == "__main__":
    raise SystemExit(main())
