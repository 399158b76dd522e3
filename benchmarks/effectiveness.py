"""BM25, dense, impact and hybrid on collections in BEIR layout, with the toolkit's own commands.

    python benchmarks/effectiveness.py DATA/scifact DATA/vaswani DATA/cranfield DATA/cacm --output runs/effectiveness

Prints a Markdown table per measure, the effect of a cap on the query's OT terms, and whether every hybrid list equals
a brute-force sum of both inner products in numpy (scores and order). `--json FILE` saves the figures.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from dupmae_ir.encode.__main__ import main as encode
from dupmae_ir.eval.evaluate import evaluate
from dupmae_ir.index.__main__ import main as index
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.runs import read_run
from dupmae_ir.search.__main__ import main as search

SYSTEMS = ("bm25", "dense", "impact", "hybrid")
MEASURES = ("nDCG@10", "MRR@10", "R@100")
CAPS = (32, 64, 128, 256, 1024)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("collections", nargs="+", type=Path, help="folders in BEIR layout")
    parser.add_argument(
        "--output", type=Path, default=Path("runs/effectiveness"), help="where indexes and runs go"
    )
    parser.add_argument("--model", help="model folder (default: the embedded model)")
    parser.add_argument("--dtype", help="arithmetic of the encoder, as for encode")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    figures = {
        c.name: measure(c, args.output / c.name, args.model, args.dtype) for c in args.collections
    }
    print(report(figures))
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def measure(collection: Path, folder: Path, model: str | None, dtype: str | None) -> dict[str, Any]:
    """Index, search and evaluate one collection; figures by system, cap and check."""
    corpus, topics = collection / "corpus.jsonl", collection / "queries.jsonl"
    qrels_path = collection / "qrels/test.tsv"
    more = [*(["--model", model] if model else []), *(["--dtype", dtype] if dtype else [])]
    started = time.perf_counter()
    call(encode, "encode", "--corpus", corpus, "--index", folder / "index", *more)
    seconds = time.perf_counter() - started
    call(index, "index", "bm25", "--corpus", corpus, "--index", folder / "bm25", "--overwrite")
    qrels = read_qrels(qrels_path)
    common = ("--topics", topics, "--qrels", qrels_path, "--hits", 1000)
    scores: dict[str, Any] = {}
    for system in SYSTEMS:
        source = folder / ("bm25" if system == "bm25" else "index")
        run = folder / f"{system}.trec"
        extra = ("--report", folder / f"{system}.report.jsonl") if system == "hybrid" else ()
        call(search, "search", "--index", source, *common, f"--{system}", "--output", run, *extra)
        scores[system] = evaluate(qrels, read_run(run), MEASURES).mean
    caps = {}
    for cap in CAPS:
        run = folder / f"hybrid.cap{cap}.trec"
        call(
            search,
            "search",
            "--index",
            folder / "index",
            *common,
            "--hybrid",
            "--query-terms",
            cap,
            "--output",
            run,
        )
        caps[cap] = evaluate(qrels, read_run(run), ["nDCG@10"]).mean["nDCG@10"]
    meta = json.loads((folder / "index/meta.json").read_text())
    return {
        "documents": meta["documents"],
        "queries": len(qrels),
        "encode_seconds": round(seconds, 1),
        "scores": scores,
        "caps": caps,
        "postings": meta["postings"],
        "scale": meta["scale"],
        "clipped": meta["clipped"],
        "oracle": against_brute_force(folder, topics, qrels, model, dtype),
    }


def call(command: Any, verb: str, *words: Any) -> None:
    arguments = [str(w) for w in words]
    print(f"$ dupmae-ir {verb} {shlex.join(arguments)}", file=sys.stderr)
    if command(arguments):
        sys.exit(1)


def against_brute_force(
    folder: Path, topics: Path, qrels: Any, model: str | None, dtype: str | None
) -> dict[str, Any]:
    """Compare every hybrid list with Eq. 12 over all documents, in float64, from the stored vectors and impacts."""
    import scipy.sparse as sp

    from dupmae_ir.index.format.quantisation import quantise
    from dupmae_ir.index.index import Index
    from dupmae_ir.io.topics import read_topics
    from dupmae_ir.search.query.encoder import load_query_encoder

    index = Index.open(folder / "index")
    opened = index.only_segment
    encoder = load_query_encoder(index, model, "auto", dtype, None)
    queries = [q for q in read_topics(str(topics)) if q.qid in qrels]
    encoded = encoder.encode_queries([q.text for q in queries])
    forward, n = opened.forward, len(opened.docids)
    weights, shape = forward.impacts.astype(np.float64), (n, len(opened.terms))
    documents = sp.csr_matrix(
        (weights, forward.terms.astype(np.int64), forward.indptr), shape=shape
    )
    impacts = quantise(encoded.ot, index.scale)[0].astype(np.float64)
    dense = encoded.cls.astype(np.float64) @ opened.vectors.astype(np.float64).T
    weights_of = index.part_weights
    total = (
        weights_of[0] * dense
        + weights_of[1] * np.asarray((impacts @ documents.T).todense()) / index.scale**2
    )
    run = read_run(folder / "hybrid.trec")
    worst, same_order = 0.0, 0
    for row, query in enumerate(queries):
        hits = run[query.qid]
        best = sorted(range(n), key=lambda i: (-total[row, i], opened.docids[i]))[: len(hits)]
        want = total[row, best]
        got = np.array([h.score for h in hits])
        worst = max(worst, float(np.abs(got - want).max() / max(1.0, np.abs(want).max())))
        same_order += [opened.docids[i] for i in best] == [h.docid for h in hits]
    reports = [
        json.loads(line) for line in (folder / "hybrid.report.jsonl").read_text().splitlines()
    ]
    return {
        "queries": len(queries),
        "same_order": same_order,
        "worst_relative_difference": worst,
        "certified": sum(r["exact"] for r in reports),
    }


def heading(first: str, names: list[str]) -> list[str]:
    return [f"| {first} | " + " | ".join(names) + " |", "|:--" + "|--:" * len(names) + "|"]


def report(figures: dict[str, Any]) -> str:
    """Markdown: one table of the measures, one of the caps, one line per check."""
    names = list(figures)
    lines = []
    for measure_name in MEASURES:
        lines += heading(measure_name, names)
        for system in SYSTEMS:
            values = [figures[n]["scores"][system][measure_name] for n in names]
            best = [max(figures[n]["scores"][s][measure_name] for s in SYSTEMS) for n in names]
            cells = [
                f"**{v:.4f}**" if v == b else f"{v:.4f}" for v, b in zip(values, best, strict=True)
            ]
            lines.append(f"| {system} | " + " | ".join(cells) + " |")
        lines.append("")
    lines += heading("hybrid nDCG@10 with the query cut to", names)
    for cap in CAPS:
        lines.append(
            f"| {cap} terms | " + " | ".join(f"{figures[n]['caps'][cap]:.4f}" for n in names) + " |"
        )
    lines.append("")
    for n in names:
        o, f = figures[n]["oracle"], figures[n]
        lines.append(
            f"- {n}: {f['documents']:,} documents in {f['encode_seconds']} s, {f['postings']:,} postings; hybrid is "
            f"brute force's order on {o['same_order']}/{o['queries']} queries, scores to "
            f"{o['worst_relative_difference']:.1e}; {o['certified']}/{o['queries']} certified exact"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
