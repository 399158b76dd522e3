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
    figures = {}
    for collection in args.collections:
        folder = args.output / collection.name
        figures[collection.name] = measure(collection, folder, args.model, args.dtype)
    print(report(figures))
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def measure(collection: Path, folder: Path, model: str | None, dtype: str | None) -> dict[str, Any]:
    """Index, search and evaluate one collection; figures by system, cap and check."""
    corpus = collection / "corpus.jsonl"
    topics = collection / "queries.jsonl"
    qrels_path = collection / "qrels/test.tsv"
    index_folder = folder / "index"
    bm25_folder = folder / "bm25"

    encoder_flags = []
    if model:
        encoder_flags += ["--model", model]
    if dtype:
        encoder_flags += ["--dtype", dtype]
    started = time.perf_counter()
    call(encode, "encode", "--corpus", corpus, "--index", index_folder, *encoder_flags)
    seconds = time.perf_counter() - started
    call(index, "index", "bm25", "--corpus", corpus, "--index", bm25_folder, "--overwrite")

    qrels = read_qrels(qrels_path)
    common = ("--topics", topics, "--qrels", qrels_path, "--hits", 1000)
    scores: dict[str, Any] = {}
    for system in SYSTEMS:
        run = folder / f"{system}.trec"
        searched = bm25_folder if system == "bm25" else index_folder
        flags = ["--index", searched, *common, f"--{system}", "--output", run]
        if system == "hybrid":
            flags += ["--report", folder / f"{system}.report.jsonl"]
        call(search, "search", *flags)
        scores[system] = evaluate(qrels, read_run(run), MEASURES).mean

    caps = {}
    for cap in CAPS:
        run = folder / f"hybrid.cap{cap}.trec"
        flags = ["--index", index_folder, *common, "--hybrid", "--query-terms", cap]
        call(search, "search", *flags, "--output", run)
        caps[cap] = evaluate(qrels, read_run(run), ["nDCG@10"]).mean["nDCG@10"]

    meta = json.loads((index_folder / "meta.json").read_text())
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
    """Print and run one command of the toolkit in this process; exit if it fails."""
    arguments = [str(word) for word in words]
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
    segment = index.only_segment
    docids = segment.docids
    encoder = load_query_encoder(index, model, "auto", dtype, None)
    queries = [query for query in read_topics(str(topics)) if query.qid in qrels]
    encoded = encoder.encode_queries([query.text for query in queries])

    forward = segment.forward
    documents = sp.csr_matrix(
        (forward.impacts.astype(np.float64), forward.terms.astype(np.int64), forward.indptr),
        shape=(len(docids), len(segment.terms)),
    )
    # The query's weights are quantised as search does it, so that the integer products are the same.
    query_impacts = quantise(encoded.ot, index.scale)[0].astype(np.float64)
    impact_products = np.asarray((query_impacts @ documents.T).todense())
    dense_products = encoded.cls.astype(np.float64) @ segment.vectors.astype(np.float64).T
    dense_weight, impact_weight = index.part_weights
    total = dense_weight * dense_products + impact_weight * impact_products / index.scale**2

    run = read_run(folder / "hybrid.trec")
    worst = 0.0
    same_order = 0
    for row, query in enumerate(queries):
        hits = run[query.qid]
        # Equal scores are ordered by docid, as in every list of the toolkit.
        order = sorted(range(len(docids)), key=lambda i: (-total[row, i], docids[i]))
        best = order[: len(hits)]
        expected = total[row, best]
        actual = np.array([hit.score for hit in hits])
        difference = np.abs(actual - expected).max() / max(1.0, np.abs(expected).max())
        worst = max(worst, float(difference))
        same_order += [docids[i] for i in best] == [hit.docid for hit in hits]

    report_lines = (folder / "hybrid.report.jsonl").read_text().splitlines()
    reports = [json.loads(line) for line in report_lines]
    return {
        "queries": len(queries),
        "same_order": same_order,
        "worst_relative_difference": worst,
        "certified": sum(report["exact"] for report in reports),
    }


def heading(first: str, names: list[str]) -> list[str]:
    """The two header lines of a Markdown table with a column per collection."""
    return [f"| {first} | " + " | ".join(names) + " |", "|:--" + "|--:" * len(names) + "|"]


def row(first: str, cells: list[str]) -> str:
    """A row of such a table."""
    return f"| {first} | " + " | ".join(cells) + " |"


def score_cells(figures: dict[str, Any], measure_name: str, system: str) -> list[str]:
    """A system's scores on every collection; bold for the best system of the collection."""
    cells = []
    for figure in figures.values():
        scores = figure["scores"]
        value = scores[system][measure_name]
        best = max(scores[other][measure_name] for other in SYSTEMS)
        cells.append(f"**{value:.4f}**" if value == best else f"{value:.4f}")
    return cells


def report(figures: dict[str, Any]) -> str:
    """Markdown: one table of the measures, one of the caps, one line per check."""
    names = list(figures)
    lines = []
    for measure_name in MEASURES:
        lines += heading(measure_name, names)
        for system in SYSTEMS:
            lines.append(row(system, score_cells(figures, measure_name, system)))
        lines.append("")

    lines += heading("hybrid nDCG@10 with the query cut to", names)
    for cap in CAPS:
        cells = [f"{figure['caps'][cap]:.4f}" for figure in figures.values()]
        lines.append(row(f"{cap} terms", cells))
    lines.append("")

    for name, figure in figures.items():
        oracle = figure["oracle"]
        queries = oracle["queries"]
        lines.append(
            f"- {name}: {figure['documents']:,} documents in {figure['encode_seconds']} s, {figure['postings']:,} "
            f"postings; hybrid is brute force's order on {oracle['same_order']}/{queries} queries, scores to "
            f"{oracle['worst_relative_difference']:.1e}; {oracle['certified']}/{queries} certified exact"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
