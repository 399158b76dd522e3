"""Base, stage 1, stage 2 and stage 3 of fine-tuning, and each part of the similarity alone, in one table.

    python benchmarks/stages.py --pairs train.jsonl.gz --dev dev.jsonl.gz --pool corpus.jsonl.gz \\
        --collections DATA/cranfield DATA/cacm --output runs/stages [--queries 1200]

The model is trained on a sample of the pairs (benchmarks/stages.toml, run by `dupmae-ir finetune`), not on the
collections. Each model is evaluated on the dev pairs and on every collection by encode, search and eval; `*` marks a
difference with p < 0.05 (paired t-test over queries) from the previous stage, for single parts from stage 1. The row
"teacher" is the cross-encoder's order of stage 2's first 20. A killed run is resumed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from scipy.stats import ttest_rel

from dupmae_ir.eval.evaluate import evaluate
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.runs import read_run

RECIPE = Path(__file__).with_name("stages.toml")
MODELS = ("base", "stage1", "stage2", "teacher", "stage3", "stage1_cls", "stage1_ot")
ALL_SYSTEMS = ("dense", "impact", "hybrid")
SYSTEMS = {"stage1_cls": ("dense",), "stage1_ot": ("impact",), "teacher": ("hybrid",)}
"""The systems that a model is evaluated with, if not all."""
BEFORE = {
    "stage1": "base",
    "stage2": "stage1",
    "stage3": "stage2",
    "stage1_cls": "stage1",
    "stage1_ot": "stage1",
    "teacher": "stage2",
}
LENGTH = 128
"""Word pieces of a document, in every row."""
RERANKED = 20
"""Documents of stage 2's list that the teacher reorders, to see whether it is better."""
LEFT_OUT = {"faq question->answer", "field->text"}
"""Templated kinds of pairs."""


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a compressed JSONL file."""
    with gzip.open(path, "rt", encoding="utf-8") as f:
        yield from map(json.loads, f)


def usable_pairs(path: Path) -> list[dict[str, Any]]:
    """The pairs of a file, without the templated kinds."""
    return [row for row in rows_of(path) if row["kind"] not in LEFT_OUT]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as a JSONL file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")


def sample(args: argparse.Namespace, folder: Path) -> None:
    """pairs.jsonl, dev.jsonl, the pool of negatives, and the dev pairs' passages among 1,000 others."""
    rng = random.Random(0)
    pairs = rng.sample(usable_pairs(args.pairs), args.queries)
    dev = rng.sample(usable_pairs(args.dev), args.dev_queries)

    pair_answers = {pair["positive"]["id"] for pair in pairs}
    dev_answers = {pair["positive"]["id"] for pair in dev}
    pool, distractors = split_by_id(pool_passages(args.pool), pair_answers | dev_answers)
    pool += rng.sample(distractors, args.others)
    write(folder / "pairs.jsonl", pairs)
    write(folder / "dev.jsonl", dev)
    write(folder / "pool.jsonl", pool)

    dev_folder = folder / "dev"
    corpus, distractors = split_by_id(pool, dev_answers)
    corpus += rng.sample(distractors, min(1000, len(pool) - len(dev_answers)))
    queries = [{"_id": str(i), "text": pair["query"]} for i, pair in enumerate(dev)]
    qrels = ["query-id\tcorpus-id\tscore\n"]
    for i, pair in enumerate(dev):
        qrels.append(f"{i}\t{pair['positive']['id']}\t1\n")
    write(dev_folder / "corpus.jsonl", corpus)
    write(dev_folder / "queries.jsonl", queries)
    (dev_folder / "qrels").mkdir(exist_ok=True)
    (dev_folder / "qrels" / "test.tsv").write_text("".join(qrels), encoding="utf-8")


def pool_passages(path: Path) -> Iterator[dict[str, Any]]:
    """The passages of the pool, with the id under BEIR's name for it."""
    for row in rows_of(path):
        yield {"_id" if key == "id" else key: value for key, value in row.items()}


def split_by_id(
    passages: Iterable[dict[str, Any]], ids: set[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The passages with one of ``ids``, and the others."""
    members = []
    others = []
    for passage in passages:
        if passage["_id"] in ids:
            members.append(passage)
        else:
            others.append(passage)
    return members, others


def make_base(corpus: Path, folder: Path) -> None:
    """MiniLM with a calibrated head and projection, the base of every stage."""
    from dupmae_ir.models.checkpoints.loading import load_model
    from dupmae_ir.models.checkpoints.saving import save_model
    from dupmae_ir.models.heads.calibration import add_head
    from dupmae_ir.models.names import model_folder

    bare, tokenizer, config = load_model(model_folder("minilm"), need_ot=False)
    lines = corpus.read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["text"] for line in lines[:1000]]
    model = add_head(bare.lm, tokenizer, texts, cls_dim=384)
    save_model(folder, model, tokenizer, config)


def call(*words: Any) -> None:
    """Print and run one command of the toolkit in a new process; raises if it fails."""
    command = [str(word) for word in words]
    print("$ python -m dupmae_ir." + " ".join(command), file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", f"dupmae_ir.{command[0]}", *command[1:]], check=True)


def runs_of(model: str, collection: Path, args: argparse.Namespace) -> dict[str, Path]:
    """Run files of one model on one collection; created if missing."""
    folder = args.output / "eval" / collection.name / model
    runs = {}
    for system in SYSTEMS.get(model, ALL_SYSTEMS):
        run = folder / f"{system}.trec"
        runs[system] = run
        if run.is_file():
            continue
        if model == "teacher":
            stage2_run = runs_of("stage2", collection, args)["hybrid"]
            rerank(args.output / "teacher", stage2_run, collection, run)
        else:
            encode_and_search(args.output / model, collection, folder / "index", system, run)
    return runs


def encode_and_search(model: Path, collection: Path, index: Path, system: str, run: Path) -> None:
    """Write the run of one system. The encode command finds the index of an earlier system complete."""
    encode_flags = ["--corpus", collection / "corpus.jsonl", "--index", index, "--model", model]
    encode_flags += ["--dtype", "bfloat16", "--document-length", LENGTH]
    call("encode", *encode_flags, "--quiet")

    search_flags = ["--index", index, "--model", model, "--topics", collection / "queries.jsonl"]
    search_flags += ["--qrels", collection / "qrels/test.tsv", f"--{system}", "--output", run]
    call("search", *search_flags, "--quiet")


def rerank(teacher: Path, run: Path, collection: Path, target: Path) -> None:
    """The teacher's order of the first documents of ``run``."""
    import torch

    from dupmae_ir.io.collections import read_collection
    from dupmae_ir.io.runs import write_run
    from dupmae_ir.io.topics import read_topics
    from dupmae_ir.models.reranker import load_reranker, score_pairs
    from dupmae_ir.types import Hit

    documents = {d.docid: d.joined() for d in read_collection(collection / "corpus.jsonl")}
    queries = {query.qid: query.text for query in read_topics(collection / "queries.jsonl")}
    model, tokenizer = load_reranker(teacher)
    model = model.to(torch.bfloat16).eval()

    reranked = {}
    for qid, hits in read_run(run).items():
        docids = [hit.docid for hit in hits[:RERANKED]]
        query_texts = [queries[qid]] * len(docids)
        document_texts = [documents[docid] for docid in docids]
        scores = score_pairs(model, tokenizer, query_texts, document_texts, 192, 8192)
        scored = map(Hit, docids, scores.tolist())
        reranked[qid] = sorted(scored, key=lambda hit: (-hit.score, hit.docid))
    target.parent.mkdir(parents=True, exist_ok=True)
    write_run(target, reranked, "teacher")


def table(collections: list[Path], args: argparse.Namespace) -> str:
    """Markdown: nDCG@10 by model and part on every collection."""
    lines = [
        "| nDCG@10 | | " + " | ".join(c.name for c in collections) + " |",
        "|:--|:--|" + "--:|" * len(collections),
    ]
    scores: dict[tuple[str, str, str], dict[str, float]] = {}
    for model in MODELS:
        if not (args.output / model).is_dir():
            continue
        cells: dict[str, list[str]] = {}
        for collection in collections:
            qrels = read_qrels(collection / "qrels/test.tsv")
            for system, path in runs_of(model, collection, args).items():
                result = evaluate(qrels, read_run(path), ["nDCG@10"])
                by_query = {qid: values["nDCG@10"] for qid, values in result.per_query.items()}
                previous = scores.get((collection.name, system, BEFORE.get(model, "")))
                star = "*" if previous is not None and differs(by_query, previous) else ""
                scores[collection.name, system, model] = by_query
                cells.setdefault(system, []).append(f"{result.mean['nDCG@10']:.4f}{star}")
        for system, row in cells.items():
            lines.append(f"| {model} | {system} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def differs(scores: dict[str, float], previous: dict[str, float]) -> bool:
    """Whether a paired t-test over the queries of both has p < 0.05."""
    shared = sorted(scores.keys() & previous.keys())
    test = ttest_rel([scores[qid] for qid in shared], [previous[qid] for qid in shared])
    return test.pvalue < 0.05


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--dev", type=Path, required=True)
    parser.add_argument(
        "--pool", type=Path, required=True, help="passages that negatives are mined from"
    )
    parser.add_argument(
        "--collections", type=Path, nargs="*", default=[], help="folders in BEIR layout"
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--queries", type=int, default=1200)
    parser.add_argument("--dev-queries", type=int, default=300)
    parser.add_argument(
        "--others", type=int, default=2500, help="passages of the pool that answer no query"
    )
    args = parser.parse_args()
    data = args.output / "data"
    if not (data / "pool.jsonl").is_file():
        sample(args, data)
    if not (args.output / "base" / "config.json").is_file():
        make_base(data / "pool.jsonl", args.output / "base")
    inputs = {
        "pairs": data / "pairs.jsonl",
        "dev": data / "dev.jsonl",
        "collection": data / "pool.jsonl",
        "model": args.output / "base",
    }
    settings = []
    for name, path in inputs.items():
        settings += ["--set", f"{name}={path}"]
    call("finetune", "--recipe", RECIPE, "--output", args.output, *settings)
    print(table([data / "dev", *args.collections], args))


if __name__ == "__main__":
    main()
