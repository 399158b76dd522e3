"""The demonstration: the embedded collection encoded, indexed, searched in four ways and evaluated.

Where MiniLM's package is installed, MiniLM and its fusions with BM25, what a practitioner would use instead, are
evaluated too.

Every step runs a command of the toolkit, prints it, and leaves its files in the output folder, so each can be run
again by hand. A complete index is kept; everything else is computed again, with the same results.
"""

from __future__ import annotations

import importlib.util
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dupmae_ir import pyserini
from dupmae_ir.collections.stdlib import KINDS, GradedQuery, load_queries, write_beir
from dupmae_ir.config import flags
from dupmae_ir.console import one_line, say
from dupmae_ir.demo.config import DemoConfig
from dupmae_ir.device import need_packages
from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.run import run as encode
from dupmae_ir.errors import IndexMismatch
from dupmae_ir.eval.evaluate import evaluate
from dupmae_ir.index.config import Bm25Config
from dupmae_ir.index.run import run_bm25
from dupmae_ir.io.locks import exclusive, lock_path
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.runs import read_run
from dupmae_ir.models.names import PACKAGED
from dupmae_ir.search.config import SearchConfig
from dupmae_ir.search.exact.fused import run as fuse
from dupmae_ir.search.fusion import FusionConfig
from dupmae_ir.search.run import run as search
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.serve.config import ServeConfig
from dupmae_ir.types import Hit, Run

SYSTEMS = ("bm25", "dense", "impact", "hybrid")
MINILM = "minilm"
FUSIONS: dict[str, dict[str, Any]] = {
    "bm25+minilm-rrf": {"method": "rrf"},
    "bm25+minilm-mean": {"method": "interpolation", "normalize": True},
}
"""Fusions of the lists of BM25 and MiniLM: reciprocal ranks (k = 60), and the mean of scores mapped to 0 to 1."""
MEASURES = ("nDCG@10", "MRR@10", "R@100")
SHOWN_HITS, SHOWN_WORDS = 3, 4
VERBS = {EncodeConfig: "encode", Bm25Config: "index bm25", SearchConfig: "search", FusionConfig: "search.fusion"}


def run(config: DemoConfig) -> dict[str, Any]:
    """Write the collection, build the indexes, search, evaluate, and return the table and three examples.

    Raises :class:`UsageError` while another process runs the demonstration in the same folder, and
    :class:`IndexMismatch` if the existing index has other settings.
    """
    started = time.perf_counter()
    if not config.serve:
        pyserini.version()  # BM25 needs it, minutes later
    folder = Path(config.output)
    with exclusive(lock_path(folder.absolute()), f"running the demonstration in {folder.absolute()}"):
        say("the documentation of this Python's standard library, in BEIR's layout", config.quiet)
        counts = write_beir(folder / "collection")
        status = _encode(folder, config)
        if config.serve:
            return {"status": status, **counts, "folder": str(folder), "served": _serve(folder, config)}
        _index_bm25(folder, config)
        for system in SYSTEMS:
            _search(folder, system, config)
        competitors = has_minilm()
        if competitors:
            _compete(folder, config)
        scores = _evaluate(folder, config, (MINILM, *FUSIONS) if competitors else ())
        examples = _examples(folder)
    return {
        "status": status,
        **counts,
        "table": scores,
        "competitors": competitors,
        "examples": examples,
        "folder": str(folder),
        "seconds": round(time.perf_counter() - started, 1),
    }


def has_minilm() -> bool:
    """Whether the package with MiniLM's weights is installed."""
    return importlib.util.find_spec(PACKAGED[MINILM]) is not None


def _compete(folder: Path, config: DemoConfig) -> None:
    """Write the runs of MiniLM and of its fusions with BM25."""
    _encode(folder, replace(config, model=MINILM), MINILM, parts="cls")
    _search(folder, "dense", config, MINILM)
    for name, options in FUSIONS.items():
        runs = (str(folder / f"{MINILM}.trec"), str(folder / "bm25.trec"))
        settings = FusionConfig(runs=runs, output=str(folder / f"{name}.trec"), quiet=config.quiet, **options)
        _print_command(settings, config)
        fuse(settings)


def _encode(folder: Path, config: DemoConfig, index: str = "index", parts: str = "cls,ot") -> str:
    """Encode the collection; returns the status of the index."""
    threads: dict[str, Any] = {"threads": config.threads} if config.threads else {}
    settings = EncodeConfig(
        corpus=str(folder / "collection" / "corpus.jsonl"),
        index=str(folder / index),
        model=config.model,
        parts=parts,
        device=config.device,
        dtype=config.dtype,
        overwrite=config.overwrite,
        quiet=config.quiet,
        **threads,
    )
    _print_command(settings, config)
    try:
        summary = encode(settings)
    except IndexMismatch as e:
        raise IndexMismatch(
            f"{folder / index} was made by another model or with other settings: add `overwrite` to encode again, or "
            f"name another `output` ({one_line(e, 300)})"
        ) from None
    say(f"  {summary['documents']:,} documents {summary['status']}", config.quiet)
    return str(summary["status"])


def _serve(folder: Path, config: DemoConfig) -> dict[str, Any]:
    """Serve the collection until Ctrl-C."""
    need_packages("`serve`", ("fastapi", "uvicorn"), "serve")
    # The package is an extra of its own, so it is imported only where it is used.
    from dupmae_ir.serve.run import run as serve

    settings = ServeConfig(
        index=(f"python={folder / 'index'}",),
        port=config.port,
        threads=config.threads,
        device=config.device,
        quiet=config.quiet,
    )
    say(f"$ dupmae-ir serve {shlex.join(flags(settings))}", config.quiet)
    return serve(settings)


def _index_bm25(folder: Path, config: DemoConfig) -> None:
    # Always built again, in case the collection was written by another version of Python.
    settings = Bm25Config(
        corpus=str(folder / "collection" / "corpus.jsonl"),
        index=str(folder / "bm25"),
        overwrite=True,
        quiet=config.quiet,
    )
    _print_command(settings, config)
    run_bm25(settings)


def _search(folder: Path, system: str, config: DemoConfig, index: str = "index") -> None:
    """Write the run of ``system``, named after it or, for another index, after the index."""
    mode: dict[str, Any] = {system: True}
    if system != "bm25":
        mode["device"] = config.device
    settings = SearchConfig(
        index=(str(folder / ("bm25" if system == "bm25" else index)),),
        output=str(folder / f"{system if index == 'index' else index}.trec"),
        topics=str(folder / "collection" / "queries.jsonl"),
        threads=config.threads,
        quiet=config.quiet,
        **mode,
    )
    _print_command(settings, config)
    summary = search(settings)
    if "certified" in summary:
        say(f"  {summary['certified']} of {summary['topics']} lists certified exact", config.quiet)


def _print_command(settings: EncodeConfig | Bm25Config | SearchConfig | FusionConfig, config: DemoConfig) -> None:
    say(f"$ dupmae-ir {VERBS[type(settings)]} {shlex.join(flags(settings))}", config.quiet)


def _evaluate(folder: Path, config: DemoConfig, competitors: Sequence[str]) -> dict[str, dict[str, float]]:
    """System -> mean of each measure, and nDCG@10 for each kind of question."""
    qrels_path = folder / "collection" / "qrels" / "test.tsv"
    systems = (SYSTEMS[0], *competitors, *SYSTEMS[1:])
    runs = " ".join(shlex.quote(str(folder / f"{s}.trec")) for s in systems)
    say(f"$ dupmae-ir eval --qrels {qrels_path} {runs} -m {' '.join(MEASURES)}", config.quiet)
    qrels = read_qrels(qrels_path)
    kinds = {q.qid: q.kind for q in load_queries()}
    scores = {}
    for system in systems:
        evaluation = evaluate(qrels, read_run(folder / f"{system}.trec"), MEASURES)
        by_kind: dict[str, list[float]] = {}
        for qid, values in evaluation.per_query.items():
            by_kind.setdefault(kinds[qid], []).append(values["nDCG@10"])
        scores[system] = {**evaluation.mean, **{k: sum(v) / len(v) for k, v in sorted(by_kind.items())}}
    return scores


def _examples(folder: Path) -> list[dict[str, Any]]:
    """For each kind, the first question that hybrid answers in its top three and BM25 does not, with these hits."""
    qrels = read_qrels(folder / "collection" / "qrels" / "test.tsv")
    runs = {system: read_run(folder / f"{system}.trec") for system in SYSTEMS}
    searcher = Searcher.open(folder / "index")
    examples = []
    for kind in KINDS:
        queries = [q for q in load_queries() if q.kind == kind and q.qid in qrels]
        query = next((q for q in queries if _only_hybrid_answers(runs, q.qid, qrels[q.qid])), queries[0])
        examples.append(_example(query, runs, qrels[query.qid], searcher))
    return examples


def _example(
    query: GradedQuery, runs: Mapping[str, Run], answers: Mapping[str, int], searcher: Searcher
) -> dict[str, Any]:
    hits = runs["hybrid"][query.qid][:SHOWN_HITS]
    found = searcher.describe(query.text, [h.docid for h in hits])
    return {
        "qid": query.qid,
        "kind": query.kind,
        "query": query.text,
        "ranks": {s: _first_rank(runs[s].get(query.qid, []), answers) for s in SYSTEMS},
        "hits": [
            {
                "docid": hit.explanation.docid,
                "score": hit.explanation.score,
                "dense": hit.explanation.dense,
                "impact": hit.explanation.impact,
                "grade": answers.get(hit.explanation.docid),
                "words": [asdict(word) for word in hit.words[:SHOWN_WORDS]],
            }
            for hit in found
        ],
    }


def _only_hybrid_answers(runs: Mapping[str, Run], qid: str, answers: Mapping[str, int]) -> bool:
    top = {system: runs[system].get(qid, [])[:SHOWN_HITS] for system in ("hybrid", "bm25")}
    return _first_rank(top["hybrid"], answers) is not None and _first_rank(top["bm25"], answers) is None


def _first_rank(hits: Sequence[Hit], answers: Mapping[str, int]) -> int | None:
    """Rank of the first graded answer, from 1; None if there is none."""
    return next((r for r, h in enumerate(hits, 1) if answers.get(h.docid, 0) > 0), None)
