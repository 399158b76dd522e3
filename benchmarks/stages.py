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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scipy.stats import ttest_rel

from dupmae_ir.eval.evaluate import evaluate
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.runs import read_run

RECIPE = Path(__file__).with_name("stages.toml")
MODELS = ("base", "stage1", "stage2", "teacher", "stage3", "stage1_cls", "stage1_ot")
SYSTEMS = {"stage1_cls": ("dense",), "stage1_ot": ("impact",), "teacher": ("hybrid",)}
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
    with gzip.open(path, "rt", encoding="utf-8") as f:
        yield from map(json.loads, f)


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), encoding="utf-8"
    )


def sample(args: argparse.Namespace, folder: Path) -> None:
    """pairs.jsonl, dev.jsonl, the pool of negatives, and the dev pairs' passages among 1,000 others."""
    chance = random.Random(0)
    kept = [r for r in rows_of(args.pairs) if r["kind"] not in LEFT_OUT]
    pairs = chance.sample(kept, args.queries)
    dev = chance.sample(
        [r for r in rows_of(args.dev) if r["kind"] not in LEFT_OUT], args.dev_queries
    )
    passages = [{"_id" if k == "id" else k: v for k, v in r.items()} for r in rows_of(args.pool)]
    wanted = {r["positive"]["id"] for r in pairs} | {r["positive"]["id"] for r in dev}
    pool = [p for p in passages if p["_id"] in wanted]
    pool += chance.sample([p for p in passages if p["_id"] not in wanted], args.others)
    write(folder / "pairs.jsonl", pairs)
    write(folder / "dev.jsonl", dev)
    write(folder / "pool.jsonl", pool)
    home = folder / "dev"
    answers = {r["positive"]["id"] for r in dev}
    others = chance.sample(
        [p for p in pool if p["_id"] not in answers], min(1000, len(pool) - len(answers))
    )
    write(home / "corpus.jsonl", [p for p in pool if p["_id"] in answers] + others)
    write(home / "queries.jsonl", [{"_id": str(i), "text": r["query"]} for i, r in enumerate(dev)])
    judged = "".join(f"{i}\t{r['positive']['id']}\t1\n" for i, r in enumerate(dev))
    (home / "qrels").mkdir(exist_ok=True)
    (home / "qrels" / "test.tsv").write_text(
        "query-id\tcorpus-id\tscore\n" + judged, encoding="utf-8"
    )


def make_base(corpus: Path, folder: Path) -> None:
    """MiniLM with a calibrated head and projection, the base of every stage."""
    from dupmae_ir.models.checkpoints.loading import load_model
    from dupmae_ir.models.checkpoints.saving import save_model
    from dupmae_ir.models.heads.calibration import add_head
    from dupmae_ir.models.names import model_folder

    bare, tokenizer, config = load_model(model_folder("minilm"), need_ot=False)
    texts = [
        json.loads(line)["text"] for line in corpus.read_text(encoding="utf-8").splitlines()[:1000]
    ]
    save_model(folder, add_head(bare.lm, tokenizer, texts, cls_dim=384), tokenizer, config)


def call(*words: Any) -> None:
    command = [str(w) for w in words]
    print("$ python -m dupmae_ir." + " ".join(command), file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", f"dupmae_ir.{command[0]}", *command[1:]], check=True)


def runs_of(model: str, collection: Path, args: argparse.Namespace) -> dict[str, Path]:
    """Run files of one model on one collection; created if missing."""
    folder = args.output / "eval" / collection.name / model
    found = {}
    for system in SYSTEMS.get(model, ("dense", "impact", "hybrid")):
        run = folder / f"{system}.trec"
        if not run.is_file() and model == "teacher":
            rerank(
                args.output / "teacher",
                runs_of("stage2", collection, args)["hybrid"],
                collection,
                run,
            )
        elif not run.is_file():
            common = ("--corpus", collection / "corpus.jsonl", "--index", folder / "index")
            call(
                "encode",
                *common,
                "--model",
                args.output / model,
                "--dtype",
                "bfloat16",
                "--document-length",
                LENGTH,
                "--quiet",
            )
            call(
                "search",
                "--index",
                folder / "index",
                "--model",
                args.output / model,
                "--topics",
                collection / "queries.jsonl",
                "--qrels",
                collection / "qrels/test.tsv",
                f"--{system}",
                "--output",
                run,
                "--quiet",
            )
        found[system] = run
    return found


def rerank(teacher: Path, run: Path, collection: Path, target: Path) -> None:
    """The teacher's order of the first documents of ``run``."""
    import torch

    from dupmae_ir.io.collections import read_collection
    from dupmae_ir.io.runs import write_run
    from dupmae_ir.io.topics import read_topics
    from dupmae_ir.models.reranker import load_reranker, score_pairs
    from dupmae_ir.types import Hit

    texts = {d.docid: d.joined() for d in read_collection(collection / "corpus.jsonl")}
    asked = {q.qid: q.text for q in read_topics(collection / "queries.jsonl")}
    model, tokenizer = load_reranker(teacher)
    model = model.to(torch.bfloat16).eval()
    found = {}
    for qid, hits in read_run(run).items():
        first = hits[:RERANKED]
        scores = score_pairs(
            model, tokenizer, [asked[qid]] * len(first), [texts[h.docid] for h in first], 192, 8192
        )
        ranked = zip(first, scores.tolist(), strict=True)
        found[qid] = sorted((Hit(h.docid, s) for h, s in ranked), key=lambda h: (-h.score, h.docid))
    target.parent.mkdir(parents=True, exist_ok=True)
    write_run(target, found, "teacher")


def table(collections: list[Path], args: argparse.Namespace) -> str:
    """Markdown: nDCG@10 by model and part on every collection."""
    lines = [
        "| nDCG@10 | | " + " | ".join(c.name for c in collections) + " |",
        "|:--|:--|" + "--:|" * len(collections),
    ]
    seen: dict[tuple[str, str, str], dict[str, float]] = {}
    for model in MODELS:
        if not (args.output / model).is_dir():
            continue
        cells: dict[str, list[str]] = {}
        for collection in collections:
            qrels = read_qrels(collection / "qrels/test.tsv")
            for system, path in runs_of(model, collection, args).items():
                result = evaluate(qrels, read_run(path), ["nDCG@10"])
                each = {qid: values["nDCG@10"] for qid, values in result.per_query.items()}
                last = seen.get((collection.name, system, BEFORE.get(model, "")))
                star = ""
                if last is not None:
                    shared = sorted(each.keys() & last.keys())
                    star = (
                        "*"
                        if ttest_rel([each[q] for q in shared], [last[q] for q in shared]).pvalue
                        < 0.05
                        else ""
                    )
                seen[collection.name, system, model] = each
                cells.setdefault(system, []).append(f"{result.mean['nDCG@10']:.4f}{star}")
        lines += [
            f"| {model} | {system} | " + " | ".join(row) + " |" for system, row in cells.items()
        ]
    return "\n".join(lines)


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
    settings = [w for k, v in inputs.items() for w in ("--set", f"{k}={v}")]
    call("finetune", "--recipe", RECIPE, "--output", args.output, *settings)
    print(table([data / "dev", *args.collections], args))


if __name__ == "__main__":
    main()
