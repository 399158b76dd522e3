"""Exact search of real passages that does not read every vector, against the same search without codes.

    python benchmarks/exact_scale.py --data DATA --work FOLDER [--size 100000 1000000] [--before CHECKOUT] [--parts N]

The passages are windows of 30 words of DATA/pretrain, shuffled; they are encoded by the embedded model in parts of
100,000 into --work, once, and the indexes of all sizes are made of these. With --parts N no more than N are encoded;
larger collections are drawn from them and labelled as drawn: vectors with noise, paired with the impacts of other
passages. For these only rotated and before sq8 are compared, for ten hits: 8,800,000 need 24 GB of disk.
Queries are the questions of DATA/pairs/dev. They are encoded beforehand, so search alone is timed: one query at a time,
on one thread, in processes that take turns.

  rotated        this code, with the codes of rotated vectors
  flat           this code, all vectors
  before flat    the same of --before, a checkout of the commit before the codes (b83afd7)
  before sq8     its index of one byte a dimension, of which every search reads all
  faiss          IndexFlatIP.search, k as asked, without exact scores or an order of ties

Gate: rotated, flat, before flat and before sq8 give the same documents with the same scores, to the last bit.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import hashlib
import inspect
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from processes import Worker, timed
from processes import answer as answer_lines

ROOT = Path(__file__).resolve().parents[1]
PART = 100_000
WORDS, STEP, SHORTEST = 30, 28, 8
FILTERS = {"1 % of the documents": 0.01, "10 %": 0.1, "50 %": 0.5}
DELETED = 0.05
NOISE, SHIFT = 0.5, 7919
"""Length of the noise of a drawn vector against its own, and by how many rows its impacts are moved."""
OWN = ("segments", "deleted", "manifest_sha256", "origin")
"""What the manifest of a new index has of its own."""


def windows(data: Path) -> list[str]:
    """The passages, in an order drawn once."""
    found = []
    for path in sorted((data / "pretrain").glob("*.txt.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                words = line.split()
                parts = [
                    words[i : i + WORDS] for i in range(0, max(1, len(words) - SHORTEST), STEP)
                ]
                found += [" ".join(part) for part in parts if len(part) >= SHORTEST]
    random.Random(0).shuffle(found)
    return found


def encoded(data: Path, work: Path, parts: int) -> list[Path]:
    """The folders of the first parts, each an index of 100,000 passages; those that are missing are encoded."""
    from dupmae_ir.encode.config import EncodeConfig
    from dupmae_ir.encode.run import run as encode

    folders = [work / "parts" / str(number) for number in range(parts)]
    if all((folder / "meta.json").is_file() for folder in folders):
        return folders
    texts = windows(data)
    for number, folder in enumerate(folders):
        if not (folder / "meta.json").is_file():
            corpus = work / f"{number}.jsonl"
            some = texts[PART * number : PART * (number + 1)]
            lines = (
                json.dumps({"_id": str(PART * number + i), "text": text})
                for i, text in enumerate(some)
            )
            corpus.write_text("\n".join(lines) + "\n")
            encode(
                EncodeConfig(
                    corpus=str(corpus),
                    index=str(folder),
                    dtype="mixed",
                    threads=1,
                    store_texts=False,
                )
            )
    return folders


def joined(parts: list[Path], target: Path, rows: slice) -> Path:
    """An index of some rows of the parts, with postings and codes, without Lucene; made once."""
    from dupmae_ir.index.changes.builder import IndexBuilder
    from dupmae_ir.index.format import rotated
    from dupmae_ir.index.index import Index

    if (target / "meta.json").is_file():
        return target
    shutil.rmtree(target, ignore_errors=True)  # what an interrupted run left
    import scipy.sparse as sp

    segments = [Index.open(part).only_segment for part in parts]
    meta, first = Index.open(parts[0]).meta, segments[0]
    with mock.patch("dupmae_ir.pyserini.installed", return_value=False):
        builder = IndexBuilder(
            target, dim=first.dim, terms=first.terms, scale=first.scale, postings=True
        )
    with builder:
        for number in range(-(-rows.stop // PART)):
            segment, drawn = segments[number % len(segments)], number // len(segments)
            here = slice(max(0, rows.start - PART * number), min(PART, rows.stop - PART * number))
            if here.start >= here.stop:
                continue
            csr = (segment.forward.impacts, segment.forward.terms, segment.forward.indptr)
            impacts = sp.csr_matrix(csr, shape=(segment.documents, len(segment.terms)))
            vectors = np.array(segment.vectors[here])
            if drawn:
                impacts = impacts[np.roll(np.arange(PART), SHIFT * drawn)]
                noise = np.random.default_rng(number).standard_normal(
                    vectors.shape, dtype=np.float32
                )
                lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
                vectors += NOISE * lengths / np.sqrt(vectors.shape[1]) * noise
                vectors *= lengths / np.linalg.norm(vectors, axis=1, keepdims=True)
            docids = [str(PART * number + row) for row in range(here.start, here.stop)]
            builder.add_impacts(docids, vectors, impacts[here])
        builder.finish({name: value for name, value in meta.items() if name not in OWN})
    segment = Index.open(target).only_segment
    if not segment.has_part(rotated.PART):
        rotated.build_rotated(segment)
    return target


def ranked(searcher: Any, request: Any, query: Any, text: str) -> list[Any]:
    """The answer to an encoded query, also by the code before, whose rankers are given queries when they rank."""
    from dupmae_ir.search.exact.ranking import Ranker
    from dupmae_ir.types import Query

    own = [searcher._opened, searcher.settings, request]
    if "encoded" in inspect.signature(Ranker).parameters:
        return Ranker(*own, [query]).rank([Query("", text)])
    return Ranker(*own).rank([Query("", text)], [query])


def worker(folders: list[str], kind: str, queries: str) -> None:
    """Answers [mode, k, share of the documents that are searched] with seconds and a digest of all lists."""
    from dupmae_ir.index.format.row_set import RowSet
    from dupmae_ir.index.index import Index
    from dupmae_ir.index.postings import kernels
    from dupmae_ir.search.exact.ranking import Request
    from dupmae_ir.search.searcher import Searcher

    assert kernels  # a process loads the loops after some hundred small searches
    texts = json.loads(Path(queries).read_text())
    settings = {
        "impact_search": "postings",
        "threads": 1,
        "dense_index": "flat" if kind == "faiss" else kind,
    }
    searcher = Searcher.open(Index.open(*folders), **settings)
    found = searcher._encodings(texts).take(texts)
    flat = searcher.index.segments[0].faiss_index if kind == "faiss" else None
    searcher.search(texts[0])
    drawn = np.random.default_rng(0).random(searcher.index.rows)
    live = searcher.index.live

    def search(mode: str, k: int, share: float = 1.0) -> tuple[float, float, str, float]:
        mask = live & (drawn < share)
        request = Request(mode, k, allowed=None if mask.all() else RowSet(mask))
        pairs = list(zip(texts, found, strict=True))
        if flat is not None:
            taken, _ = timed(lambda: [flat.search(query.cls[None], k) for _, query in pairs])
            return taken.wall / len(texts), taken.used / len(texts), "", 0.0
        taken, lists = timed(
            lambda: [ranked(searcher, request, query, text)[0] for text, query in pairs]
        )
        told = [[(hit.docid, hit.score.hex()) for hit in answer.hits] for answer in lists]
        assert all(answer.report.exact for answer in lists)
        left = float(np.mean([answer.report.candidates for answer in lists]))
        digest = hashlib.sha256(json.dumps(told).encode()).hexdigest()
        return taken.wall / len(texts), taken.used / len(texts), digest, left

    answer_lines(search)


def asked(checkout: Path, folders: list[Path], kind: str, queries: Path) -> Worker:
    """A process that searches when it is called."""
    return Worker(
        [__file__, "--worker", kind, "--queries", queries, "--folders", *folders], checkout
    )


@dataclasses.dataclass
class Turns:
    """Seconds and processor seconds of a query, by name of what was timed; gates."""

    wall: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    used: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    left: dict[str, float] = dataclasses.field(default_factory=dict)

    def take(
        self, what: str, ways: dict[str, tuple[Worker, tuple[Any, ...]]], repeats: int, same: bool
    ) -> None:
        """Ask all in turns, ``repeats`` times after one turn that does not count."""
        for turn in range(-1, repeats):
            digests = set()
            for name, (ask, arguments) in ways.items():
                wall, used, digest, left = ask(*arguments)
                digests |= {digest} - {""}
                if turn >= 0:
                    self.wall.setdefault(f"{what}: {name}", []).append(wall)
                    self.used.setdefault(f"{what}: {name}", []).append(used)
                    self.left[f"{what}: {name}"] = left
            assert not same or len(digests) == 1, f"{what}: the lists differ"
        for name in ways:
            key = f"{what}: {name}"
            middle = 1e3 * float(np.median(self.wall[key])), 1e3 * float(np.median(self.used[key]))
            print(f"{key:<60} {middle[0]:9.2f} ms {middle[1]:9.2f} ms of processor", flush=True)


def questions(data: Path, count: int, path: Path) -> Path:
    """Questions, from all over the file."""
    with gzip.open(data / "pairs" / "dev.jsonl.gz", "rt", encoding="utf-8") as file:
        texts = [json.loads(line)["query"] for line in file]
    path.write_text(json.dumps(texts[:: max(1, len(texts) // count)][:count]))
    return path


def before_sq8(checkout: Path, folder: Path) -> None:
    """Make the codes of the code before: one byte a dimension."""
    if not list(folder.glob("segments/*/cls/sq8*")):
        words = [
            sys.executable,
            "-m",
            "dupmae_ir.index",
            "dense",
            "--index",
            str(folder),
            "--kind",
            "sq8",
            "--quiet",
        ]
        subprocess.run(
            words, env={**os.environ, "PYTHONPATH": str(checkout)}, cwd=checkout, check=True
        )


def measured(args: argparse.Namespace, size: int, turns: Turns) -> None:
    """Rows 1, 3, 4 and 6 at one size; row 2 alone where vectors are drawn."""
    parts = encoded(args.data, args.work, min(args.parts, -(-size // PART)))
    whole = joined(parts, args.work / f"whole-{size}-{len(parts)}", slice(0, size))
    queries = questions(args.data, args.queries, args.work / "queries.json")
    of, drawn = passages(size, args.parts), size > PART * args.parts
    ways = {"rotated": (ROOT, "rotated")} | (
        {} if drawn else {"flat": (ROOT, "flat"), "faiss": (ROOT, "faiss")}
    )
    if args.before:
        before_sq8(args.before, whole)
        ways |= {} if drawn else {"before flat": (args.before, "flat")}
        ways["before sq8"] = (args.before, "sq8")
    thirds = [] if drawn else deleted_thirds(args.work, parts, size)
    if args.build:
        return
    ask = {name: asked(checkout, [whole], kind, queries) for name, (checkout, kind) in ways.items()}
    exact = [name for name in ask if name != "faiss"]
    for k in (10,) if drawn else (10, 1000):
        what, arguments = f"hybrid top {k:,}, {of}", ("hybrid", k)
        turns.take(what, {name: (ask[name], arguments) for name in exact}, args.repeats, same=True)
    if not drawn:
        turns.take(
            f"dense top 10, {of}",
            {name: (ask[name], ("dense", 10)) for name in ask},
            args.repeats,
            same=True,
        )
    for name in set(ask) - {"rotated"}:
        ask.pop(name).close()
    if not drawn:
        ask["segments"] = asked(ROOT, thirds, "rotated", queries)
        arguments = ("hybrid", 10)
        filters = {"all, one segment": (ask["rotated"], arguments)}
        filters["three segments, 5 % deleted"] = (ask["segments"], arguments)
        filters |= {name: (ask["rotated"], (*arguments, share)) for name, share in FILTERS.items()}
        turns.take(f"filters, hybrid top 10, {of}", filters, args.repeats, same=False)
    for each in ask.values():
        each.close()


def deleted_thirds(work: Path, parts: list[Path], size: int) -> list[Path]:
    """The passages in three indexes, each without some."""
    from dupmae_ir.index.changes.changes import run_delete
    from dupmae_ir.index.config import DeleteConfig

    cuts = [slice(size * n // 3, size * (n + 1) // 3) for n in range(3)]
    thirds = [joined(parts, work / f"third-{size}-{len(parts)}-{cut.start}", cut) for cut in cuts]
    gone = tuple(map(str, np.flatnonzero(np.random.default_rng(1).random(size) < DELETED)))
    for folder in thirds:
        run_delete(DeleteConfig(index=str(folder), ids=gone, ignore_unknown=True, quiet=True))
    return thirds


def passages(size: int, parts: int) -> str:
    """What a collection is called."""
    return f"{size:,} passages" + (f", drawn from {PART * parts:,}" if size > PART * parts else "")


def claims(turns: Turns, sizes: list[str], before: bool) -> list[Any]:
    import harness

    gate = "rotated, flat and the code before give the same documents and scores, to the last bit, all certified"
    found = []

    def claim(row: int, what: str, ours: str, peer: str, goal: float, sense: str = ">=") -> None:
        pair = (f"{what}: {peer}", f"{what}: {ours}")
        value = harness.speedup(turns.wall, *(pair if sense == ">=" else pair[::-1]))
        found.append(harness.Claim(row, what, ours, peer, value, goal, sense, gate=gate, round=3))

    for of in sizes:
        what, drawn = f"hybrid top 10, {of}", "drawn" in of
        flat, sq8 = ("before flat", "before sq8") if before else ("flat", None)
        if sq8:
            claim(2 if drawn else 1, what, "rotated", sq8, 4)
        if drawn:
            continue
        claim(1, what, "rotated", flat, 15)
        what = f"hybrid top 1,000, {of}"
        peers = [name for name in (flat, sq8) if name]
        claim(
            3, what, "rotated", min(peers, key=lambda n: np.median(turns.wall[f"{what}: {n}"])), 2
        )
        claim(4, f"dense top 10, {of}", "rotated", "faiss", 4)
        what = f"filters, hybrid top 10, {of}"
        for name in (*FILTERS, "three segments, 5 % deleted"):
            claim(6, what, name, "all, one segment", 1.5, "<=")
    return found


def of_passages(parser: argparse.ArgumentParser) -> None:
    """The options that say which passages."""
    parser.add_argument(
        "--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of the data sets"
    )
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("runs/exact_scale"),
        help="where indexes are made and kept",
    )
    parser.add_argument("--size", type=int, nargs="+", default=[PART], help="passages")
    parser.add_argument(
        "--parts",
        type=int,
        default=10,
        help="most parts of 100,000 passages to encode (default: 10)",
    )
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--build", action="store_true", help="make the indexes and stop")


def main() -> None:
    import harness

    parser = harness.arguments(__doc__, repeats=3)
    of_passages(parser)
    parser.add_argument(
        "--before", type=Path, help="checkout of the commit before, to compare with"
    )
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    turns = Turns()
    for size in args.size:
        measured(args, size, turns)
    if args.build:
        return
    milliseconds = [
        [
            name,
            f"{1e3 * np.median(taken):.2f}",
            f"{1e3 * np.median(turns.used[name]):.2f}",
            f"{turns.left[name]:,.0f}",
        ]
        for name, taken in turns.wall.items()
    ]
    header = ["", "ms a query", "ms of processor", "documents scored exactly"]
    details = {"table": {"header": header, "rows": milliseconds}}
    sizes = [passages(size, args.parts) for size in args.size]
    name = f"exact_scale{'' if max(args.size) <= PART * args.parts else '_drawn'}"
    harness.report(name, claims(turns, sizes, bool(args.before)), turns.wall, args, details)


if __name__ == "__main__":
    if "--worker" in sys.argv:
        inner = argparse.ArgumentParser()
        for flag in ("--worker", "--queries"):
            inner.add_argument(flag)
        inner.add_argument("--folders", nargs="+")
        told = inner.parse_args()
        worker(told.folders, told.worker, told.queries)
    else:
        main()
