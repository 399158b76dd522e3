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

from dupmae_ir.config import flags, option
from dupmae_ir.console import say

SYSTEMS = ("bm25", "dense", "impact", "hybrid")
MEASURES = ("nDCG@10", "MRR@10", "R@100")


@dataclass(frozen=True)
class DemoConfig:
    """Everything that ``python -m dupmae_ir.demo`` can be told."""

    output: str = option(
        "runs/demo", "folder for the collection, the indexes and the runs", group="output", metavar="FOLDER"
    )
    model: str | None = option(
        None, "model folder; without it, the embedded default model", group="what", metavar="FOLDER"
    )
    dtype: str | None = option(None, "arithmetic, as for encode; without it, float32", group="running")
    overwrite: bool = option(False, "encode again even when the index is complete", group="running")
    quiet: bool = option(False, "print the results only", group="output")
    json: bool = option(False, "print the results as JSON", group="output")


def run(config: DemoConfig) -> dict[str, Any]:
    """Collection, indexes, runs, evaluation, three answers. Returns all that is shown."""
    started = time.perf_counter()
    folder = Path(config.output)
    counts = _collection(folder / "collection", config)
    _encode(folder, config)
    _bm25_index(folder, config)
    for system in SYSTEMS:
        _search(folder, system, config)
    scores = _evaluate(folder, config)
    return {
        **counts,
        "table": scores,
        "examples": _examples(folder),
        "folder": str(folder),
        "seconds": round(time.perf_counter() - started, 1),
    }


def _collection(target: Path, config: DemoConfig) -> dict[str, int]:
    """Write the running interpreter's documentation in BEIR's layout."""
    from dupmae_ir.collections.stdlib.documentation import write_beir

    say("the documentation of this Python's standard library, in BEIR's layout", config.quiet)
    return dict(write_beir(target))


def _encode(folder: Path, config: DemoConfig) -> None:
    from dupmae_ir.encode.config import EncodeConfig
    from dupmae_ir.encode.run import run

    settings = EncodeConfig(
        corpus=str(folder / "collection" / "corpus.jsonl"),
        index=str(folder / "index"),
        model=config.model,
        dtype=config.dtype,
        overwrite=config.overwrite,
        quiet=config.quiet,
    )
    _show("encode", settings, config)
    summary = run(settings)
    say(f"  {summary['documents']:,} documents {summary['status']}", config.quiet)


def _bm25_index(folder: Path, config: DemoConfig) -> None:
    from dupmae_ir.index.config import Bm25Config
    from dupmae_ir.index.run import run_bm25

    # Made anew each time: the collection is the interpreter's own, and another Python's must not linger.
    settings = Bm25Config(
        corpus=str(folder / "collection" / "corpus.jsonl"),
        index=str(folder / "bm25"),
        overwrite=True,
        quiet=config.quiet,
    )
    _show("index bm25", settings, config)
    run_bm25(settings)


def _search(folder: Path, system: str, config: DemoConfig) -> None:
    from dupmae_ir.search.run import SearchConfig, run

    how: dict[str, Any] = {system: True}
    settings = SearchConfig(
        index=str(folder / ("bm25" if system == "bm25" else "index")),
        output=str(folder / f"{system}.trec"),
        topics=str(folder / "collection" / "queries.jsonl"),
        quiet=config.quiet,
        **how,
    )
    _show("search", settings, config)
    summary = run(settings)
    if "certified" in summary:
        say(f"  {summary['certified']} of {summary['topics']} lists certified exact", config.quiet)


def _show(verb: str, settings: Any, config: DemoConfig) -> None:
    say(f"$ dupmae-ir {verb} {shlex.join(flags(settings))}", config.quiet)


def _evaluate(folder: Path, config: DemoConfig) -> dict[str, Any]:
    """The four runs against the graded answers: means, and nDCG@10 by kind of question."""
    from dupmae_ir.collections.stdlib.queries import load_questions
    from dupmae_ir.eval.evaluate import evaluate
    from dupmae_ir.io.qrels import read_qrels
    from dupmae_ir.io.runs import read_run

    qrels_path = folder / "collection" / "qrels" / "test.tsv"
    runs = " ".join(shlex.quote(str(folder / f"{s}.trec")) for s in SYSTEMS)
    say(f"$ dupmae-ir eval --qrels {qrels_path} {runs} -m {' '.join(MEASURES)}", config.quiet)
    qrels = read_qrels(qrels_path)
    kinds = {q.qid: q.kind for q in load_questions()}
    scores: dict[str, Any] = {}
    for system in SYSTEMS:
        evaluation = evaluate(qrels, read_run(folder / f"{system}.trec"), MEASURES)
        by_kind: dict[str, list[float]] = {}
        for qid, values in evaluation.per_query.items():
            by_kind.setdefault(kinds[qid], []).append(values["nDCG@10"])
        scores[system] = {**evaluation.mean, **{k: sum(v) / len(v) for k, v in sorted(by_kind.items())}}
    return scores


def _examples(folder: Path) -> list[dict[str, Any]]:
    """One question of each kind with its best three: the first that hybrid answers there and BM25 does not."""
    from dupmae_ir.collections.stdlib.queries import load_questions
    from dupmae_ir.io.qrels import read_qrels
    from dupmae_ir.io.runs import read_run
    from dupmae_ir.search.searcher import Searcher

    qrels = read_qrels(folder / "collection" / "qrels" / "test.tsv")
    runs = {system: read_run(folder / f"{system}.trec") for system in SYSTEMS}
    searcher = Searcher.open(folder / "index")
    shown = []
    for kind in ("lexical", "mixed", "paraphrase"):
        asked = [q for q in load_questions() if q.kind == kind and q.qid in qrels]
        question = next((q for q in asked if _wins(runs, q.qid, qrels[q.qid])), asked[0])
        hits = runs["hybrid"][question.qid][:3]
        reasons = searcher.explain_all(question.text, [h.docid for h in hits])
        answers = qrels[question.qid]
        shown.append(
            {
                "qid": question.qid,
                "kind": kind,
                "query": question.text,
                "ranks": {s: _rank(runs[s].get(question.qid, []), answers) for s in SYSTEMS},
                "hits": [
                    {
                        "docid": why.docid,
                        "score": why.score,
                        "dense": why.dense,
                        "impact": why.impact,
                        "grade": answers.get(why.docid),
                        "terms": [asdict(t) for t in why.terms[:4]],
                    }
                    for why in reasons
                ],
            }
        )
    return shown


def _wins(runs: dict[str, Any], qid: str, answers: Any) -> bool:
    hybrid, bm25 = (_rank(runs[system].get(qid, [])[:3], answers) for system in ("hybrid", "bm25"))
    return hybrid is not None and bm25 is None


def _rank(hits: list[Any], answers: Any) -> int | None:
    """Rank of the first graded answer, from 1; None when none was found."""
    return next((r for r, h in enumerate(hits, 1) if answers.get(h.docid, 0) > 0), None)
