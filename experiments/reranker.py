r"""The pairs and the measurements of the reranker of experiments/code-encoder.md.

    python experiments/reranker.py sample --general DATA/pairs/train.jsonl.gz --code CODE/mining.jsonl.gz \
        --output runs/reranker-pairs.jsonl.gz
    dupmae-ir export --model runs/reranker/reranker --to compact --output runs/reranker/compact
    python experiments/reranker.py measure --model runs/reranker/compact --data DATA --output runs/reranker
    python experiments/reranker.py compare runs/reranker/records

``sample`` writes :data:`GENERAL_PAIRS` and :data:`CODE_PAIRS` of the pairs, as many as the training reads: mining
negatives for all of them takes half an hour. ``measure`` writes ``OUTPUT/records/COLLECTION.json`` with nDCG@10 of
each query by hybrid search and by every way to use the reranker's scores of its first 50 hits. It leaves out
collections that have a record, so the same command continues after an interruption. ``compare`` chooses the way by
``dev`` and prints what the rule asks for.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import heapq
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from code_encoder import mean, p_value
from code_pairs import write_lines
from sentences_and_titles import CLASSIC, DEMO, Collection, read_dev, write_demo
from tqdm import tqdm

from dupmae_ir.console import guarded
from dupmae_ir.errors import InputError
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.models import load_encoder
from dupmae_ir.models.reranker import open_reranker
from dupmae_ir.types import Reranker

DEV = "dev"
"""The collection that chooses how the scores are used."""
DEV_QUERIES = 300
COLLECTIONS = (DEV, DEMO, *CLASSIC)
HYBRID = "hybrid"
ALONE = "reranker alone"
WEIGHTS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Weights of the reranker's score beside that of hybrid search."""
MEASURE = "nDCG@10"
DEPTH = 50
BELOW = -1e6
"""The score of documents that are not read: below every other."""
GENERAL_PAIRS = 8000
CODE_PAIRS = 2400
LEAST_GAIN = 0.02
MOST_LOSS = 0.005


def sample(args: argparse.Namespace) -> None:
    """Write the pairs that have the smallest digests, which are the same wherever they are drawn."""
    pairs = []
    for path, count in ((args.general, GENERAL_PAIRS), (args.code, CODE_PAIRS)):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            pairs += heapq.nsmallest(count, lines, key=_digest)
    write_lines(args.output, map(json.loads, pairs))


def _digest(line: str) -> bytes:
    return hashlib.sha256(line.encode()).digest()


def scores_by_way(hybrid: np.ndarray, read: np.ndarray) -> dict[str, np.ndarray]:
    """Way -> (Q, N) scores. ``read``: the reranker's scores, NaN for documents that it did not read."""
    ways = {HYBRID: hybrid}
    combined = {ALONE: read}
    for weight in WEIGHTS:
        combined[f"hybrid + {weight:g}"] = hybrid + weight * read
    for way, scores in combined.items():
        # The measure sees ten hits, and more than ten are read.
        ways[way] = np.where(np.isnan(scores), BELOW, scores)
    return ways


def measure(folder: Path, reranker: Reranker) -> dict[str, Any]:
    """Way -> query id -> nDCG@10, for a collection in BEIR's layout."""
    collection = Collection(folder, vectors=folder)  # none are kept: each passage has one vector
    parts = collection.parts(load_encoder())
    hybrid = parts.dense + parts.words
    read = np.full(hybrid.shape, np.nan, np.float32)
    for row, topic in enumerate(tqdm(collection.topics, unit="queries")):
        best = np.argsort(-hybrid[row], kind="stable")[:DEPTH]
        read[row, best] = reranker.scores(topic.text, [collection.documents[i] for i in best])
    record = {}
    for way, scores in scores_by_way(hybrid, read).items():
        values = collection.scores(scores)[MEASURE]
        record[way] = {
            topic.qid: value for topic, value in zip(collection.topics, values, strict=True)
        }
    return record


def measure_all(args: argparse.Namespace) -> None:
    """Measure the collections that have no record yet."""
    records = args.output / "records"
    records.mkdir(parents=True, exist_ok=True)
    made = args.output / "collections"
    if not (made / DEV).is_dir():
        found = read_dev(args.data / "pairs")
        found.questions = found.questions[:DEV_QUERIES]
        found.write(made / DEV)
    write_demo(made / DEMO)
    reranker = open_reranker(str(args.model), None, "cpu")
    for name in COLLECTIONS:
        path = records / f"{name}.json"
        if path.is_file():
            continue
        print(f"{name}: started", flush=True)
        folder = (made if name in (DEV, DEMO) else args.data) / name
        record = measure(folder, reranker)
        with atomic_write(path) as f:
            json.dump(record, f)
    print("complete", flush=True)


def read_records(folder: Path) -> dict[str, dict[str, Any]]:
    """Collection -> record of :func:`measure`. Raises :class:`InputError` for one that is missing."""
    records = {}
    for name in COLLECTIONS:
        path = folder / f"{name}.json"
        if not path.is_file():
            raise InputError(f"{path}: is missing; run `measure` to its end")
        records[name] = json.loads(path.read_text(encoding="utf-8"))
    return records


def compare(args: argparse.Namespace) -> None:
    """Print the means of every way, and whether the one that ``dev`` chooses meets the rule."""
    records = read_records(args.records)
    for way in records[DEV]:
        cells = [f"{name} {mean(records[name][way]):.4f}" for name in COLLECTIONS]
        print(f"{way:15} {'  '.join(cells)}")
    ways = [way for way in records[DEV] if way != HYBRID]
    chosen = max(ways, key=lambda way: mean(records[DEV][way]))
    differences = {}
    for name in CLASSIC:
        differences[name] = mean(records[name][chosen]) - mean(records[name][HYBRID])
    after = pooled(records, chosen)
    before = pooled(records, HYBRID)
    gain = mean(after) - mean(before)
    p = p_value(after, before)
    is_met = gain >= LEAST_GAIN and p < 0.01 and min(differences.values()) >= -MOST_LOSS
    print(f"{DEV} chooses: {chosen}")
    print("  ".join(f"{name} {difference:+.4f}" for name, difference in differences.items()))
    print(f"all queries: {gain:+.4f}, p {p:.2g}; the rule is {'met' if is_met else 'not met'}")


def pooled(records: Mapping[str, Mapping[str, Any]], way: str) -> dict[str, float]:
    """The values of all queries of the four collections that decide."""
    values = {}
    for name in CLASSIC:
        for query, value in records[name][way].items():
            values[f"{name} {query}"] = value
    return values


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    sampling = commands.add_parser("sample")
    for name, what in (("general", "pairs of text"), ("code", "pairs of code")):
        sampling.add_argument(f"--{name}", type=Path, required=True, help=f"{what}, *.jsonl.gz")
    sampling.add_argument("--output", type=Path, required=True, help="*.jsonl.gz")
    sampling.set_defaults(work=sample)
    measuring = commands.add_parser("measure")
    measuring.add_argument("--model", type=Path, required=True, help="folder of the reranker")
    measuring.add_argument(
        "--data", type=Path, required=True, help="classic collections and pairs/dev"
    )
    measuring.add_argument("--output", type=Path, required=True)
    measuring.set_defaults(work=measure_all)
    comparing = commands.add_parser("compare")
    comparing.add_argument("records", type=Path)
    comparing.set_defaults(work=compare)
    args = parser.parse_args(argv)
    return guarded(lambda: args.work(args), "reranker.py")


if __name__ == "__main__":
    raise SystemExit(main())
