"""The demonstration: an embedded collection encoded, indexed, searched four ways and evaluated, with real commands.

Nothing is special about it: every step runs a command of the toolkit, prints that command, and leaves its files in
the output folder, so that each can be run again by hand.
"""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dupmae_ir.config import option
from dupmae_ir.console import say

SYSTEMS = ("bm25", "dense", "impact", "hybrid")
MEASURES = ("nDCG@10", "MRR@10", "R@100")
DEPTH = 1000


@dataclass(frozen=True)
class DemoConfig:
    """Everything that ``python -m dupmae_ir.demo`` can be told."""

    output: str = option("runs/demo", "folder for the collection, the indexes and the runs", group="output",
                         metavar="FOLDER")
    model: str | None = option(None, "model folder; without it, the embedded default model", group="what",
                               metavar="FOLDER")
    dtype: str | None = option(None, "arithmetic, as for encode; without it, float32", group="running")
    overwrite: bool = option(False, "encode again even when the index is complete", group="running")
    quiet: bool = option(False, "print the results only", group="output")
    json: bool = option(False, "print the results as JSON", group="output")


def run(config: DemoConfig) -> dict[str, Any]:
    """Collection, indexes, runs, evaluation, three answers. Returns all that is shown."""
    started = time.perf_counter()
    folder = Path(config.output)
    collection = _collection(folder / "collection", config)
    _encode(folder, config)
    _bm25_index(folder, config)
    for system in SYSTEMS:
        _search(folder, system, config)
    results = _evaluate(folder, config)
    return {
        **collection, **results, "examples": _examples(folder, results.pop("_per_query")),
        "folder": str(folder), "seconds": round(time.perf_counter() - started, 1),
    }


def _collection(target: Path, config: DemoConfig) -> dict[str, Any]:
    """Write the running interpreter's documentation in BEIR's layout."""
    from dupmae_ir.demo.collection import write_beir

    say("collection: the documentation of this Python's standard library", config.quiet)
    counts = write_beir(target)
    say(f"  {counts['documents']:,} documents, {counts['queries']} questions -> {target}", config.quiet)
    return {"documents": counts["documents"], "queries": counts["queries"]}


def _encode(folder: Path, config: DemoConfig) -> None:
    from dupmae_ir.encode.__main__ import main

    _command(main, "encode", config, "--corpus", folder / "collection" / "corpus.jsonl", "--index", folder / "index",
             *_optional(config), *(["--overwrite"] if config.overwrite else []))


def _bm25_index(folder: Path, config: DemoConfig) -> None:
    from dupmae_ir.index.__main__ import main

    # The collection is the interpreter's own, so the index of another Python's must not linger.
    _command(main, "index", config, "bm25", "--corpus", folder / "collection" / "corpus.jsonl",
             "--index", folder / "bm25", "--overwrite")


def _search(folder: Path, system: str, config: DemoConfig) -> None:
    from dupmae_ir.search.__main__ import main

    index = folder / ("bm25" if system == "bm25" else "index")
    _command(main, "search", config, "--index", index, "--topics", folder / "collection" / "queries.jsonl",
             f"--{system}", "--hits", DEPTH, "--output", folder / f"{system}.trec")


def _command(main: Any, verb: str, config: DemoConfig, *words: Any) -> None:
    """Show a command, run it, and pass its failure on."""
    arguments = [str(w) for w in words]
    say(f"$ dupmae-ir {verb} {shlex.join(arguments)}", config.quiet)
    status = main([*arguments, *(["--quiet"] if config.quiet else [])])
    if status:
        # The command has said why on standard error; its status is ours.
        raise SystemExit(status)


def _optional(config: DemoConfig) -> list[str]:
    words = []
    for flag in ("model", "dtype"):
        if (value := getattr(config, flag)) is not None:
            words += [f"--{flag}", value]
    return words


def _evaluate(folder: Path, config: DemoConfig) -> dict[str, Any]:
    """The four runs against the graded answers: means, and nDCG@10 by kind of question."""
    from dupmae_ir.demo.questions import load_questions
    from dupmae_ir.eval.evaluate import evaluate
    from dupmae_ir.io.qrels import read_qrels
    from dupmae_ir.io.runs import read_run

    qrels_path = folder / "collection" / "qrels" / "test.tsv"
    runs = " ".join(shlex.quote(str(folder / f"{s}.trec")) for s in SYSTEMS)
    say(f"$ dupmae-ir eval --qrels {qrels_path} {runs} -m {' '.join(MEASURES)}", config.quiet)
    qrels = read_qrels(qrels_path)
    kinds = {q.qid: q.kind for q in load_questions()}
    table, per_query = {}, {}
    for system in SYSTEMS:
        evaluation = evaluate(qrels, read_run(folder / f"{system}.trec"), MEASURES)
        per_query[system] = evaluation.per_query
        by_kind: dict[str, list[float]] = {}
        for qid, values in evaluation.per_query.items():
            by_kind.setdefault(kinds[qid], []).append(values["nDCG@10"])
        table[system] = {**evaluation.mean, **{k: sum(v) / len(v) for k, v in sorted(by_kind.items())}}
    return {"table": table, "_per_query": per_query}


def _examples(folder: Path, per_query: dict[str, Any]) -> list[dict[str, Any]]:
    """One question of each kind, the first whose answer hybrid puts higher than BM25 does, with its best three."""
    from dupmae_ir.demo.questions import load_questions
    from dupmae_ir.io.qrels import read_qrels
    from dupmae_ir.io.runs import read_run
    from dupmae_ir.search.searcher import Searcher

    qrels = read_qrels(folder / "collection" / "qrels" / "test.tsv")
    runs = {system: read_run(folder / f"{system}.trec") for system in SYSTEMS}
    searcher = Searcher.open(folder / "index")
    shown = []
    for kind in ("lexical", "mixed", "paraphrase"):
        question = next(
            (q for q in load_questions() if q.kind == kind and _gain(per_query, q.qid) > 0),
            next(q for q in load_questions() if q.kind == kind),
        )
        hits = runs["hybrid"][question.qid][:3]
        reasons = searcher.explain_all(question.text, [h.docid for h in hits])
        answers = qrels[question.qid]
        shown.append({
            "qid": question.qid, "kind": kind, "query": question.text,
            "ranks": {s: _rank(runs[s].get(question.qid, []), answers) for s in SYSTEMS},
            "hits": [
                {"docid": why.docid, "score": why.score, "dense": why.dense, "impact": why.impact,
                 "grade": answers.get(why.docid), "terms": [asdict(t) for t in why.terms[:4]]}
                for why in reasons
            ],
        })
    return shown


def _gain(per_query: dict[str, Any], qid: str) -> float:
    return per_query["hybrid"][qid]["nDCG@10"] - per_query["bm25"][qid]["nDCG@10"]


def _rank(hits: list[Any], answers: Any) -> int | None:
    """Rank of the first graded answer, from 1; None when none was found."""
    return next((r for r, h in enumerate(hits, 1) if answers.get(h.docid, 0) > 0), None)
