"""This code against a checkout of the commit from which the third table of goals was set (d2f4f4d).

    python benchmarks/before.py --before CHECKOUT --text textbooks.txt.gz [--work FOLDER] [--rows 7 8 12 13]

Rows of the third table of docs/performance.md. Both sides run in processes of their own, each with the dupmae_ir, the
benchmarks and the indexes of its checkout, in turns:

  7     one query encoded by the embedded model of each side, on one thread and without importing torch
  8     `search --query --json` with ten hits, from the start of the process, over 500 documents
  12    an update of pre-training by DupMAE and of fine-tuning, in bfloat16, on two threads (benchmarks/training.py)
  13    bytes of a posting, and impact search of queries together, over the made-up documents of impact_engine.py

Gates: in row 13, the same rows and scores; in row 8, the same first document. The embedded model is another one since
the commit, with six layers of MiniLM's shape instead of seven, so its vectors and lists are not compared. Updates are
of equal batches; their losses are not compared, since methods draw differently.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from processes import ROOT, Taken, Worker, answer, timed

OURS = "ours"
PEER = "before"
QUERY = "count how often each word occurs in a list"
HITS = (10, 1000)

Work = Callable[..., Any]


def encoding(args: argparse.Namespace) -> tuple[Work, Any]:  # noqa: ARG001 (the shape of all)
    """Answers texts with the time of all."""
    from dupmae_ir.models import load_lazy_encoder

    encoder = load_lazy_encoder()

    def work(*texts: str) -> Any:
        taken, encoded = timed(lambda: [encoder.encode_queries([text]) for text in texts])
        assert "torch" not in sys.modules
        assert all(query.cls.any() and query.ot.nnz for query in encoded)
        return taken, len(encoded)

    return work, True


def training_updates(args: argparse.Namespace) -> tuple[Work, Any]:
    """Answers with the time of an update."""
    import torch
    import training

    torch.set_num_threads(2)
    chosen = argparse.Namespace(
        text=args.text, methods=["dupmae"], anchor=None, batch_size=32, length=128, threads=2
    )
    updates = {**training.pretraining(chosen), **training.finetuning(chosen)}
    return lambda name: timed(updates[f"{name}, {training.OURS}"])[:1], True


def impact_search(args: argparse.Namespace) -> tuple[Work, Any]:
    """Answers with the time of all queries and a digest of their lists; at first, with the bytes of a posting."""
    import impact_engine

    with mock.patch("dupmae_ir.pyserini.installed", return_value=False):
        index, _ = impact_engine.opened(args.work, args.documents)
    segment = getattr(index, "only_segment", index)
    queries = impact_engine.Collection(args.documents).queries(args.queries)
    files = (segment.path / "postings").iterdir()
    posting_bytes = sum(file.stat().st_size for file in files) / index.meta["postings"]

    def work(k: int) -> Any:
        taken, hits = timed(lambda: segment.postings.top(queries, k))
        lists = json.dumps([[rows.tolist(), scores.tolist()] for rows, scores in hits])
        # A digest, since the lists of all queries are long.
        return taken, hashlib.sha256(lists.encode()).hexdigest()

    return work, posting_bytes


WORKERS = {7: encoding, 12: training_updates, 13: impact_search}


class Sides:
    """A process of each side."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.checkouts = {OURS: ROOT, PEER: args.before}
        self.used: dict[str, list[float]] = {}
        self.wall: dict[str, list[float]] = {}

    def folder(self, side: str) -> Path:
        """Where a side keeps its indexes."""
        path = self.args.work / side
        path.mkdir(parents=True, exist_ok=True)
        return path

    def workers(self, row: int, threads: int = 1) -> dict[str, Worker]:
        """The processes of a row."""
        options = [
            "--queries",
            self.args.queries,
            "--documents",
            self.args.documents,
            "--text",
            self.args.text,
        ]
        return {
            side: Worker(
                [__file__, "--worker", row, "--work", self.folder(side), *options],
                path,
                threads=threads,
            )
            for side, path in self.checkouts.items()
        }

    def turns(self, what: str, ask: dict[str, Callable[[], Taken]], repeats: int) -> None:
        """Time both sides in turns."""
        import harness

        wall, used = harness.both_times(
            {f"{what}: {side}": work for side, work in ask.items()}, repeats
        )
        self.wall |= wall
        self.used |= used

    def claim(self, row: int, what: str, goal: float, gate: str, **other: Any) -> Any:
        """How many times faster ours is, by the clock; the ratio of processor times is in the note."""
        import harness

        names = [f"{what}: {PEER}", f"{what}: {OURS}"]
        if other.get("sense") == "<=":  # the goal is a share of the time before
            names.reverse()
        ratio = harness.speedup(self.wall, *names)
        note = f"{harness.speedup(self.used, *names):.3g}x in processor time"
        return harness.Claim(
            row, what, OURS, "d2f4f4d", ratio, goal, gate=gate, note=note, round=3, **other
        )


def one_query(sides: Sides) -> Iterator[Any]:
    """Row 7."""
    from dupmae_ir.collections.stdlib import load_queries

    workers = sides.workers(7)
    texts = [query.text for query in load_queries()][: sides.args.queries]
    what = "encode one query, one thread"
    work = {side: lambda w=worker: Taken(*w(*texts)[0]) for side, worker in workers.items()}
    sides.turns(what, work, sides.args.repeats)
    for worker in workers.values():
        worker.close()
    yield sides.claim(7, what, 2.5, "both have a vector and terms for each query, without torch")


def process(command: list[str], checkout: Path) -> tuple[Taken, str]:
    """What a process takes from its start to its end, and what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    done = subprocess.run(command, env=environment, cwd=checkout, capture_output=True, text=True)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{command}: status {done.returncode}, {done.stderr[-500:]}")
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Taken(wall, used), done.stdout


def first_answer(sides: Sides) -> Iterator[Any]:
    """Row 8."""
    from dupmae_ir.collections.stdlib import stdlib_documents

    python = [sys.executable, "-m"]
    corpus = sides.args.work / "corpus.jsonl"
    lines = []
    for document in stdlib_documents()[:500]:
        row = {"_id": document.docid, "title": document.title, "text": document.text}
        lines.append(json.dumps(row) + "\n")
    corpus.write_text("".join(lines), encoding="utf-8")

    work = {}
    first = {}
    for side, checkout in sides.checkouts.items():
        index = sides.folder(side) / "first"
        if not (index / "meta.json").is_file():
            flags = ["--corpus", str(corpus), "--index", str(index), "--quiet"]
            process([*python, "dupmae_ir.encode", *flags], checkout)
        flags = ["--index", str(index), "--query", QUERY, "--json"]
        command = [*python, "dupmae_ir.search", *flags]
        _, output = process(command, checkout)
        first[side] = json.loads(output)["hits"][0]["docid"]
        work[side] = lambda command=command, checkout=checkout: process(command, checkout)[0]
    assert first[OURS] == first[PEER], first

    what = "search --query, from the start of the process"
    sides.turns(what, work, max(7, sides.args.repeats))
    yield sides.claim(8, what, 0.6, "the same first document", sense="<=")


def training_step(sides: Sides) -> Iterator[Any]:
    """Row 12."""
    ask = sides.workers(12, threads=2)
    for name, what in (("dupmae", "pre-training, dupmae"), ("finetune", "fine-tuning")):
        what = f"{what}, an update, two threads"
        ways = {
            side: lambda work=work, name=name: Taken(*work(name)[0]) for side, work in ask.items()
        }
        sides.turns(what, ways, sides.args.repeats)
        yield sides.claim(
            12, what, 1.3, "batches of 32 texts of at most 128 word pieces on both sides"
        )
    for each in ask.values():
        each.close()


def postings(sides: Sides) -> Iterator[Any]:
    """Row 13."""
    import harness

    ask = sides.workers(13)
    of = f"{sides.args.documents:,} made-up documents"
    gate = "the same rows and scores for every query"
    size = harness.Claim(
        13, f"bytes a posting, {of}", "postings", f"d2f4f4d, {ask[PEER].ready:.2f} bytes", ask[OURS].ready, 2.0, "<=",
        " bytes", gate=gate, round=3,
    )  # fmt: skip
    yield size
    for k in HITS:
        assert ask[OURS](k)[1] == ask[PEER](k)[1], f"k={k}: the lists differ"
        what = f"impact search, {of}, k={k}"
        ways = {side: lambda work=work, k=k: Taken(*work(k)[0]) for side, work in ask.items()}
        sides.turns(what, ways, sides.args.repeats)
        yield sides.claim(13, what, 0.9, gate)
    for each in ask.values():
        each.close()


ROWS = {7: one_query, 8: first_answer, 12: training_step, 13: postings}


def options(parser: argparse.ArgumentParser) -> None:
    """What workers are given, too."""
    parser.add_argument("--text", help="gzipped text to train on, one passage a line")
    parser.add_argument(
        "--work", type=Path, default=Path("runs/before"), help="where indexes are made and kept"
    )
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument(
        "--documents", type=int, default=100_000, help="of row 13 (default: 100000)"
    )


def main() -> None:
    import harness

    parser = harness.arguments(__doc__, repeats=7)
    options(parser)
    parser.add_argument("--before", type=Path, required=True, help="checkout of the commit before")
    parser.add_argument("--rows", type=int, nargs="+", choices=ROWS, default=list(ROWS))
    args = parser.parse_args()
    args.work = args.work.resolve()
    sides = Sides(args)
    claims = [claim for row in args.rows for claim in ROWS[row](sides)]
    rows = [
        [name, f"{1e3 * np.median(taken):,.1f}", f"{1e3 * np.median(sides.used[name]):,.1f}"]
        for name, taken in sides.wall.items()
    ]
    details = {"table": {"header": ["", "ms", "ms of processor"], "rows": rows}}
    harness.report("before", claims, sides.wall, args, details)


if __name__ == "__main__":
    if "--worker" in sys.argv:
        sys.path.pop(0)  # this folder: the checkout's benchmarks are the worker's
        inner = argparse.ArgumentParser()
        inner.add_argument("--worker", type=int)
        options(inner)
        given = inner.parse_args()
        answer(*WORKERS[given.worker](given))
    else:
        main()
