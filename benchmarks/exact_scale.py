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
import functools
import gzip
import hashlib
import inspect
import json
import math
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
PASSAGE_WORDS = 30
WINDOW_STEP = 28
MIN_PASSAGE_WORDS = 8
FILTERS = {"1 % of the documents": 0.01, "10 %": 0.1, "50 %": 0.5}
"""Label of a filter -> share of the documents that it allows."""
DELETED_SHARE = 0.05
NOISE_LENGTH = 0.5
"""Length of the noise added to a drawn vector, relative to the length of the vector."""
IMPACT_SHIFT = 7919
"""Rows by which the impacts of drawn documents are moved, for each time that the parts were used before."""
INDEX_SPECIFIC_FIELDS = ("segments", "deleted", "manifest_sha256", "origin")
"""Fields of a manifest that describe one index and are not copied into another."""


def windows(data: Path) -> list[str]:
    """The passages, in an order drawn once."""
    passages = []
    for path in sorted((data / "pretrain").glob("*.txt.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                words = line.split()
                for start in range(0, max(1, len(words) - MIN_PASSAGE_WORDS), WINDOW_STEP):
                    window = words[start : start + PASSAGE_WORDS]
                    if len(window) >= MIN_PASSAGE_WORDS:
                        passages.append(" ".join(window))
    random.Random(0).shuffle(passages)
    return passages


def encoded(data: Path, work: Path, parts: int) -> list[Path]:
    """The folders of the first parts, each an index of 100,000 passages; those that are missing are encoded."""
    from dupmae_ir.encode.config import EncodeConfig
    from dupmae_ir.encode.run import run as encode

    folders = [work / "parts" / str(number) for number in range(parts)]
    if all((folder / "meta.json").is_file() for folder in folders):
        return folders
    texts = windows(data)
    for number, folder in enumerate(folders):
        if (folder / "meta.json").is_file():
            continue
        first = PART * number
        lines = []
        for row, text in enumerate(texts[first : first + PART], first):
            lines.append(json.dumps({"_id": str(row), "text": text}))
        corpus = work / f"{number}.jsonl"
        corpus.write_text("\n".join(lines) + "\n")
        encode(
            EncodeConfig(
                corpus=str(corpus), index=str(folder), dtype="mixed", threads=1, store_texts=False
            )
        )
    return folders


def joined(parts: list[Path], target: Path, rows: slice) -> Path:
    """An index of a range of rows, with postings and codes, without Lucene; built once.

    Rows beyond the encoded parts are drawn from them: see :func:`drawn_vectors`.
    """
    from dupmae_ir.index.changes.builder import IndexBuilder
    from dupmae_ir.index.format import rotated
    from dupmae_ir.index.index import Index

    if (target / "meta.json").is_file():
        return target
    shutil.rmtree(target, ignore_errors=True)  # what an interrupted run left
    import scipy.sparse as sp

    segments = [Index.open(part).only_segment for part in parts]
    meta = Index.open(parts[0]).meta
    first = segments[0]
    # Without Pyserini, the builder writes no Lucene index, which no search here reads.
    with mock.patch("dupmae_ir.pyserini.installed", return_value=False):
        builder = IndexBuilder(
            target, dim=first.dim, terms=first.terms, scale=first.scale, postings=True
        )
    with builder:
        for number in range(math.ceil(rows.stop / PART)):
            offset = PART * number
            part_rows = slice(max(0, rows.start - offset), min(PART, rows.stop - offset))
            if part_rows.start >= part_rows.stop:
                continue
            segment = segments[number % len(segments)]
            csr = (segment.forward.impacts, segment.forward.terms, segment.forward.indptr)
            impacts = sp.csr_matrix(csr, shape=(segment.documents, len(segment.terms)))
            vectors = np.array(segment.vectors[part_rows])

            # How often the parts were all used before: 0 for the documents that were encoded.
            repetition = number // len(segments)
            if repetition:
                impacts = impacts[np.roll(np.arange(PART), IMPACT_SHIFT * repetition)]
                vectors = drawn_vectors(vectors, seed=number)
            docids = [str(offset + row) for row in range(part_rows.start, part_rows.stop)]
            builder.add_impacts(docids, vectors, impacts[part_rows])

        shared = {name: value for name, value in meta.items() if name not in INDEX_SPECIFIC_FIELDS}
        builder.finish(shared)
    segment = Index.open(target).only_segment
    if not segment.has_part(rotated.PART):
        rotated.build_rotated(segment)
    return target


def drawn_vectors(vectors: np.ndarray, seed: int) -> np.ndarray:
    """``vectors`` with noise, and with their lengths of before; modified in place."""
    noise = np.random.default_rng(seed).standard_normal(vectors.shape, dtype=np.float32)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors += NOISE_LENGTH * lengths / np.sqrt(vectors.shape[1]) * noise
    vectors *= lengths / np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def ranked(searcher: Any, request: Any, query: Any, text: str) -> list[Any]:
    """The answer to an encoded query."""
    from dupmae_ir.search.exact.ranking import Ranker
    from dupmae_ir.types import Query

    arguments = [searcher._opened, searcher.settings, request]
    if _takes_queries(Ranker):
        return Ranker(*arguments, [query]).rank([Query("", text)])
    # In the checkout of --before, `rank` takes the encoded queries.
    return Ranker(*arguments).rank([Query("", text)], [query])


def worker(folders: list[str], kind: str, queries: str, is_before: bool) -> None:
    """Search all queries for each line [mode, k, share of the documents to search].

    ``queries``: the file of :func:`encode_queries`. ``is_before``: whether this runs the code of ``--before``. The
    answers are seconds and processor seconds of a query, a digest of all lists, and the mean number of candidates.
    """
    from dupmae_ir.index.format.row_set import RowSet
    from dupmae_ir.index.index import Index
    from dupmae_ir.index.postings import kernels
    from dupmae_ir.search.exact.ranking import Request
    from dupmae_ir.search.searcher import Searcher
    from dupmae_ir.testing import HashingEncoder

    assert kernels  # a process loads the loops after some hundred small searches
    texts, encodings = read_queries(queries)
    settings = {
        "impact_search": "postings",
        "threads": 1,
        "dense_index": "flat" if kind == "faiss" else kind,
    }
    index = Index.open(*folders)
    encoder = HashingEncoder(index.dim, len(index.terms)) if is_before else None
    searcher = Searcher.open(index, encoder, **settings)
    flat = searcher.index.segments[0].faiss_index if kind == "faiss" else None
    searcher.search(texts[0])
    random_numbers = np.random.default_rng(0).random(searcher.index.rows)
    live = searcher.index.live

    def search(mode: str, k: int, share: float = 1.0) -> tuple[float, float, str, float]:
        mask = live & (random_numbers < share)
        request = Request(mode, k, allowed=None if mask.all() else RowSet(mask))
        pairs = list(zip(texts, encodings, strict=True))
        if flat is not None:
            taken, _ = timed(lambda: [flat.search(query.cls[None], k) for _, query in pairs])
            return taken.wall / len(texts), taken.used / len(texts), "", 0.0

        taken, answers = timed(
            lambda: [ranked(searcher, request, query, text)[0] for text, query in pairs]
        )
        assert all(answer.report.exact for answer in answers)
        lists = []
        for answer in answers:
            # Hexadecimal, so that a difference in the last bit changes the digest.
            lists.append([(hit.docid, hit.score.hex()) for hit in answer.hits])
        digest = hashlib.sha256(json.dumps(lists).encode()).hexdigest()
        candidates = float(np.mean([answer.report.candidates for answer in answers]))
        return taken.wall / len(texts), taken.used / len(texts), digest, candidates

    answer_lines(search)


@functools.cache
def _takes_queries(ranker: type) -> bool:
    """Whether a ``Ranker`` is made with the encoded queries. To look takes a tenth of a query's time."""
    return "encoded" in inspect.signature(ranker).parameters


def encode_queries(index: Path, texts: Path) -> Path:
    """The file of the queries in ``texts`` and of their encodings by the model of an index, which all workers read."""
    from dupmae_ir.index.index import Index
    from dupmae_ir.search.searcher import Searcher

    queries = json.loads(texts.read_text())
    encoded = Searcher.open(Index.open(index))._encodings(queries).take(queries)
    path = texts.with_suffix(".npz")
    np.savez(
        path,
        texts=np.array(queries),
        cls=np.stack([query.cls for query in encoded]),
        ids=np.concatenate([query.ot.ids for query in encoded]),
        impacts=np.concatenate([query.ot.impacts for query in encoded]),
        ends=np.cumsum([len(query.ot.ids) for query in encoded]),
    )
    return path


def read_queries(path: str) -> tuple[list[str], list[Any]]:
    """The texts of :func:`encode_queries`, and an ``EncodedQuery`` of the code that runs for each."""
    from dupmae_ir.search.candidates.impact import ImpactQuery
    from dupmae_ir.search.query.encoder import EncodedQuery

    encodings = []
    with np.load(path) as stored:
        ids = np.split(stored["ids"], stored["ends"][:-1])
        impacts = np.split(stored["impacts"], stored["ends"][:-1])
        for cls, query_ids, query_impacts in zip(stored["cls"], ids, impacts, strict=True):
            encodings.append(EncodedQuery(cls, ImpactQuery(query_ids, query_impacts)))
        return stored["texts"].tolist(), encodings


def start_worker(checkout: Path, folders: list[Path], kind: str, queries: Path) -> Worker:
    """A process with the code of ``checkout`` that searches the indexes when it is called."""
    arguments = [__file__, "--worker", kind, "--queries", queries, "--folders", *folders]
    if checkout != ROOT:
        arguments.append("--is-before")
    return Worker(arguments, checkout)


@dataclasses.dataclass
class Turns:
    """Seconds and processor seconds of a query in each turn, and its candidates, by name of what was timed."""

    wall: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    used: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    candidates: dict[str, float] = dataclasses.field(default_factory=dict)

    def take(
        self,
        what: str,
        variants: dict[str, tuple[Worker, tuple[Any, ...]]],
        repeats: int,
        same: bool,
    ) -> None:
        """Time all variants in turns, ``repeats`` times after a warm-up turn; ``same``: their lists must be equal."""
        for turn in range(-1, repeats):
            digests = set()
            for name, (search, arguments) in variants.items():
                wall, used, digest, candidates = search(*arguments)
                if digest:  # faiss has none: its scores and its order of ties are not exact
                    digests.add(digest)
                if turn >= 0:
                    key = f"{what}: {name}"
                    self.wall.setdefault(key, []).append(wall)
                    self.used.setdefault(key, []).append(used)
                    self.candidates[key] = candidates
            assert not same or len(digests) == 1, f"{what}: the lists differ"
        for name in variants:
            key = f"{what}: {name}"
            wall_ms = 1e3 * float(np.median(self.wall[key]))
            used_ms = 1e3 * float(np.median(self.used[key]))
            print(f"{key:<60} {wall_ms:9.2f} ms {used_ms:9.2f} ms of processor", flush=True)


def questions(data: Path, count: int, path: Path) -> Path:
    """Questions, from all over the file."""
    with gzip.open(data / "pairs" / "dev.jsonl.gz", "rt", encoding="utf-8") as file:
        texts = [json.loads(line)["query"] for line in file]
    path.write_text(json.dumps(texts[:: max(1, len(texts) // count)][:count]))
    return path


def before_index(checkout: Path, index: Path) -> Path:
    """The same index as ``checkout`` reads it, with its codes of one byte a dimension (sq8); built once.

    Format 3 did not count truncated documents. The record of the encoder is left out, since ``checkout`` has another
    embedded model; the queries are encoded by ours.
    """
    from dupmae_ir.index.format.manifest import manifest_digest

    folder = index.with_name(f"before-{index.name}")
    if list(folder.glob("segments/*/cls/sq8*")):
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(index, folder, copy_function=os.link, symlinks=True)
    meta = json.loads((index / "meta.json").read_text())
    del meta["truncated"], meta["encoder"], meta["manifest_sha256"]
    meta["format"] = 3
    for segment in meta["segments"]:
        del segment["truncated"]
    (folder / "meta.json").unlink()
    (folder / "meta.json").write_text(
        json.dumps({**meta, "manifest_sha256": manifest_digest(meta)})
    )
    command = [sys.executable, "-m", "dupmae_ir.index", "dense"]
    command += ["--index", str(folder), "--kind", "sq8", "--quiet"]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    subprocess.run(command, env=environment, cwd=checkout, check=True)
    return folder


def measured(args: argparse.Namespace, size: int, turns: Turns) -> None:
    """Time rows 1, 3, 4 and 6 of the table of goals at one size; only row 2 if vectors are drawn."""
    parts = encoded(args.data, args.work, min(args.parts, math.ceil(size / PART)))
    whole = joined(parts, args.work / f"whole-{size}-{len(parts)}", slice(0, size))
    texts = questions(args.data, args.queries, args.work / "queries.json")
    queries = encode_queries(whole, texts)
    label = passages(size, args.parts)
    drawn = size > PART * args.parts

    variants = {"rotated": (ROOT, whole, "rotated")}
    if not drawn:
        variants["flat"] = (ROOT, whole, "flat")
        variants["faiss"] = (ROOT, whole, "faiss")
    if args.before:
        before = before_index(args.before, whole)
        if not drawn:
            variants["before flat"] = (args.before, before, "flat")
        variants["before sq8"] = (args.before, before, "sq8")
    thirds = [] if drawn else deleted_thirds(args.work, parts, size)
    if args.build:
        return

    workers = {}
    for name, (checkout, folder, kind) in variants.items():
        workers[name] = start_worker(checkout, [folder], kind, queries)
    hybrid_workers = {name: search for name, search in workers.items() if name != "faiss"}
    for k in (10,) if drawn else (10, 1000):
        searches = {name: (search, ("hybrid", k)) for name, search in hybrid_workers.items()}
        turns.take(f"hybrid top {k:,}, {label}", searches, args.repeats, same=True)
    if not drawn:
        searches = {name: (search, ("dense", 10)) for name, search in workers.items()}
        turns.take(f"dense top 10, {label}", searches, args.repeats, same=True)
    for name in set(workers) - {"rotated"}:
        workers.pop(name).close()

    if not drawn:
        workers["segments"] = start_worker(ROOT, thirds, "rotated", queries)
        filters = {
            "all, one segment": (workers["rotated"], ("hybrid", 10)),
            "three segments, 5 % deleted": (workers["segments"], ("hybrid", 10)),
        }
        for name, share in FILTERS.items():
            filters[name] = (workers["rotated"], ("hybrid", 10, share))
        turns.take(f"filters, hybrid top 10, {label}", filters, args.repeats, same=False)
    for search in workers.values():
        search.close()


def deleted_thirds(work: Path, parts: list[Path], size: int) -> list[Path]:
    """The passages in three indexes, from which a random ``DELETED_SHARE`` is deleted."""
    from dupmae_ir.index.changes.changes import run_delete
    from dupmae_ir.index.config import DeleteConfig

    cuts = [slice(size * n // 3, size * (n + 1) // 3) for n in range(3)]
    thirds = [joined(parts, work / f"third-{size}-{len(parts)}-{cut.start}", cut) for cut in cuts]
    rows = np.flatnonzero(np.random.default_rng(1).random(size) < DELETED_SHARE)
    docids = tuple(map(str, rows))
    for folder in thirds:
        # Every third has only its own part of the ids.
        run_delete(DeleteConfig(index=str(folder), ids=docids, ignore_unknown=True, quiet=True))
    return thirds


def passages(size: int, parts: int) -> str:
    """The label of a collection."""
    label = f"{size:,} passages"
    if size > PART * parts:
        label += f", drawn from {PART * parts:,}"
    return label


def claims(turns: Turns, sizes: list[str], before: bool) -> list[Any]:
    import harness

    gate = "rotated, flat and the code before give the same documents and scores, to the last bit, all certified"
    claimed = []

    def claim(row: int, what: str, ours: str, peer: str, goal: float, sense: str = ">=") -> None:
        peer_key = f"{what}: {peer}"
        our_key = f"{what}: {ours}"
        if sense == ">=":
            ratio = harness.speedup(turns.wall, peer_key, our_key)
        else:
            ratio = harness.speedup(turns.wall, our_key, peer_key)
        claimed.append(harness.Claim(row, what, ours, peer, ratio, goal, sense, gate=gate, round=3))

    peers = ["before flat", "before sq8"] if before else ["flat"]
    for label in sizes:
        hybrid_10 = f"hybrid top 10, {label}"
        drawn = "drawn" in label
        if before:
            claim(2 if drawn else 1, hybrid_10, "rotated", "before sq8", 4)
        if drawn:
            continue
        claim(1, hybrid_10, "rotated", peers[0], 15)

        hybrid_1000 = f"hybrid top 1,000, {label}"
        medians = {name: np.median(turns.wall[f"{hybrid_1000}: {name}"]) for name in peers}
        fastest = min(peers, key=medians.__getitem__)
        claim(3, hybrid_1000, "rotated", fastest, 2)
        claim(4, f"dense top 10, {label}", "rotated", "faiss", 4)
        for name in (*FILTERS, "three segments, 5 % deleted"):
            filtered = f"filters, hybrid top 10, {label}"
            claim(6, filtered, name, "all, one segment", 1.5, "<=")
    return claimed


def of_passages(parser: argparse.ArgumentParser) -> None:
    """Add the options that select the passages."""
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
    milliseconds = []
    for name, seconds in turns.wall.items():
        wall = f"{1e3 * np.median(seconds):.2f}"
        used = f"{1e3 * np.median(turns.used[name]):.2f}"
        milliseconds.append([name, wall, used, f"{turns.candidates[name]:,.0f}"])
    header = ["", "ms a query", "ms of processor", "documents scored exactly"]
    details = {"table": {"header": header, "rows": milliseconds}}
    sizes = [passages(size, args.parts) for size in args.size]
    name = "exact_scale"
    if max(args.size) > PART * args.parts:
        name += "_drawn"
    harness.report(name, claims(turns, sizes, bool(args.before)), turns.wall, args, details)


if __name__ == "__main__":
    if "--worker" in sys.argv:
        inner = argparse.ArgumentParser()
        for flag in ("--worker", "--queries"):
            inner.add_argument(flag)
        inner.add_argument("--folders", nargs="+")
        inner.add_argument("--is-before", action="store_true")
        options = inner.parse_args()
        worker(options.folders, options.worker, options.queries, options.is_before)
    else:
        main()
