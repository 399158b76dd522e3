"""The search command: its settings, and the way from topics to a run file or from one question to an answer."""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dupmae_ir.config import option
from dupmae_ir.console import progress, say
from dupmae_ir.device import ENGINES
from dupmae_ir.errors import UsageError
from dupmae_ir.types import Document, Hit, Query

MODES = ("dense", "impact", "hybrid", "bm25")


@dataclass(frozen=True)
class SearchConfig:
    """Everything that ``python -m dupmae_ir.search`` can be told."""

    index: str = option(help="index folder", group="what", metavar="FOLDER")
    topics: str | None = option(
        None,
        "questions: qid<tab>text, JSON lines (BEIR's queries.jsonl), .gz of these, or a name that Pyserini knows",
        group="what",
        metavar="FILE",
    )
    query: str | None = option(None, "one question, answered on standard output", group="what", metavar="TEXT")
    hits: int | None = option(
        None, "documents per question (default: 1000 with --topics, 10 with --query)", group="what"
    )

    hybrid: bool = option(
        False,
        "the exact sum of both inner products (DupMAE Eq. 12); the default where the index has both parts",
        group="how: one of",
    )
    dense: bool = option(False, "inner products of the [CLS] vectors alone", group="how: one of")
    impact: bool = option(False, "inner products of the OT weights alone", group="how: one of")
    bm25: bool = option(False, "BM25 on a folder of 'dupmae-ir index bm25'", group="how: one of")

    output: str | None = option(None, "run file to write", group="with --topics", metavar="FILE")
    format: str = option("trec", "of the run file", choices=("trec", "msmarco"), group="with --topics")
    tag: str | None = option(
        None, "last column of a TREC run (default: dupmae-ir-MODE)", group="with --topics", metavar="WORD"
    )
    qrels: str | None = option(
        None, "search only the topics judged in this file", group="with --topics", metavar="FILE"
    )
    remove_query: bool = option(
        False, "leave out the document whose id is the topic's (ArguAna, Quora)", group="with --topics"
    )
    max_passage: bool = option(
        False,
        "ids are DOCUMENT#PASSAGE (encode.segment): each document counts as its best passage",
        group="with --topics",
    )
    passage_hits: int | None = option(
        None, "--max-passage: passages looked at (default: ten times --hits)", group="with --topics"
    )
    report: str | None = option(
        None,
        "JSON lines to write, one per topic: is the list certified exact, how deep it looked, what the bound was",
        group="with --topics",
        metavar="FILE",
    )

    explain: str | None = option(
        None, "instead of searching, say why this document scores what it scores", group="with --query", metavar="DOCID"
    )
    corpus: str | None = option(
        None,
        "the collection, to show titles and texts of the answers (read once through)",
        group="with --query",
        metavar="PATH",
    )
    terms: int = option(5, "matched terms shown per answer, strongest first", group="with --query")

    raw_impacts: bool = option(
        False,
        "--impact: print integer sums; otherwise they are divided by the squared scale of the index",
        group="scores",
    )
    dense_weight: float = option(1.0, "--hybrid: factor of the dense share", group="scores")
    impact_weight: float = option(1.0, "--hybrid: factor of the impact share", group="scores")
    max_depth: int = option(
        0,
        "longest candidate list; 0 is as long as it takes to certify. A topic that needs more is reported",
        group="scores",
    )
    dense_index: str = option(
        "flat",
        "what proposes dense candidates: flat, or sq8, ivf-sq8 or hnsw-sq8 of 'dupmae-ir index dense'. Scores "
        "are the same, and with sq8 the lists, too; the other two may miss documents and certify nothing",
        group="dense index",
        metavar="KIND",
    )
    nprobe: int = option(0, "ivf-sq8: lists looked at (0: 1/16 of them, at least 64)", group="dense index")
    ef_search: int = option(
        0, "hnsw-sq8: candidates kept on the way (0: 128, or the depth of the list)", group="dense index"
    )
    k1: float = option(0.9, "--bm25: saturation of term counts", group="scores")
    b: float = option(0.4, "--bm25: length normalisation, 0 to 1", group="scores")

    fusion: str | None = option(
        None,
        "join a dense and an impact list instead of summing: by reciprocal ranks, by interpolating scores, or "
        "with the arithmetic of Pyserini's HybridSearcher (on integer impacts, as there)",
        choices=("rrf", "interpolation", "pyserini"),
        group="fusion",
    )
    fusion_depth: int | None = option(None, "documents taken from each list (default: --hits)", group="fusion")
    rrf_k: int = option(60, "rrf: added to every rank", group="fusion")
    alpha: float | None = option(
        None,
        "interpolation: alpha x dense + (1 - alpha) x impact (default: 0.5); pyserini: dense + alpha x impact "
        "(default: 0.1)",
        group="fusion",
    )
    normalize: bool = option(False, "bring both lists to one range first", group="fusion")
    missing: str = option(
        "zero",
        "interpolation: what a document scores in a list that lacks it: nothing, the list's lowest, or its "
        "true score; rrf adds nothing, pyserini takes the lowest",
        choices=("zero", "min", "exact"),
        group="fusion",
    )
    weight_on_dense: bool = option(False, "pyserini: impact + alpha x dense", group="fusion")

    model: str | None = option(
        None,
        "model folder (default: the one the index names; another is refused unless its weights are the same)",
        group="query encoder",
        metavar="FOLDER",
    )
    query_length: int | None = option(
        None, "word pieces per question, [CLS] and [SEP] included (default: the index's)", group="query encoder"
    )
    query_terms: int = option(
        1024, "strongest OT weights kept of a question; 1024 is the most Lucene takes", group="query encoder"
    )
    device: str = option("auto", "auto, cpu, cuda, cuda:N or mps", group="query encoder", metavar="NAME")
    dtype: str | None = option(
        None,
        "arithmetic: float32, bfloat16, float16 or auto (default: the index's)",
        group="query encoder",
        metavar="NAME",
    )

    engine: str = option(
        "lucene",
        "what finds documents by their impacts: lucene; postings, as 'index postings' writes them: the same "
        "hits without Java, much faster for whole topic sets; auto: postings where there are any",
        choices=ENGINES,
        group="running",
    )
    threads: int = option(0, "for all parts of a search; 0 is one per processor", group="running")
    batch_size: int = option(256, "questions encoded and searched together; no effect on scores", group="running")
    quiet: bool = option(False, "no messages", group="running")
    json: bool = option(False, "print the answer, or the summary of a run, as JSON", group="running")

    @property
    def mode(self) -> str | None:
        """The mode asked for; None leaves it to the index."""
        return next((mode for mode in MODES if getattr(self, mode)), None)


def run(config: SearchConfig) -> dict[str, Any]:
    """Search as told. Returns the summary of the run, or the answer to the one question.

    Raises :class:`DupmaeError` subclasses; a run file that was there before stays until the new one is complete.
    """
    check(config)
    if config.query is not None:
        return _answer(config, config.query)
    return _run_file(config)


def check(config: SearchConfig) -> None:
    """Refuse combinations that mean nothing, before anything is opened."""
    if (config.topics is None) == (config.query is None):
        raise UsageError("give either --topics FILE or --query TEXT")
    if sum(getattr(config, mode) for mode in MODES) > 1:
        raise UsageError(f"give at most one of {', '.join('--' + mode for mode in MODES)}")
    if config.fusion and config.mode:
        raise UsageError(f"--fusion joins a dense and an impact list; it does not go with --{config.mode}")
    if config.topics is not None and config.output is None:
        raise UsageError("--topics needs --output FILE for the run")
    if config.query is not None and not config.query.strip():
        raise UsageError("--query is blank; ask something")
    if config.hits is not None and config.hits < 1:
        raise UsageError(f"--hits must be at least 1, got {config.hits}")
    if config.terms < 0:
        raise UsageError(f"--terms must be 0 or more, got {config.terms}")
    for applies, owner, names in _owners(config):
        for name in names if not applies else ():
            if getattr(config, name) != _DEFAULTS[name]:
                raise UsageError(f"--{name.replace('_', '-')} belongs to {owner}")
    if config.passage_hits is not None and config.passage_hits < (config.hits or 1000):
        raise UsageError(
            f"--passage-hits {config.passage_hits}: wants at least as many passages as documents, {config.hits or 1000}"
        )
    if config.output and config.report and Path(config.output).absolute() == Path(config.report).absolute():
        raise UsageError("--output and --report name the same file")
    for path in (config.output, config.report):
        if path and Path(path).is_dir():
            raise UsageError(f"{path} is a folder; name a file to write")


def _owners(config: SearchConfig) -> list[tuple[bool, str, tuple[str, ...]]]:
    """(does it apply, to what, the settings that mean something only then)."""
    return [
        (
            config.topics is not None,
            "--topics",
            ("output", "format", "tag", "qrels", "remove_query", "max_passage", "report"),
        ),
        (config.max_passage, "--max-passage", ("passage_hits",)),
        (config.query is not None, "--query", ("explain", "corpus", "terms")),
        (config.fusion is not None, "--fusion", _FUSION),
        (config.bm25, "--bm25", ("k1", "b")),
        (config.impact, "--impact", ("raw_impacts",)),
        (not config.impact and not config.bm25, "--dense, --hybrid and --fusion", _DENSE),
        (config.mode in (None, "hybrid") and not config.fusion, "--hybrid", ("dense_weight", "impact_weight")),
        (not config.bm25 and not config.fusion, "--dense, --impact and --hybrid", ("report",)),
        (not config.bm25, "--dense, --impact and --hybrid", _OURS),
        (not config.bm25 and not config.dense, "--impact and --hybrid", ("engine",)),
    ]


_OURS = ("explain", "max_depth", "model", "query_length", "query_terms", "dtype")
_DENSE = ("dense_index", "nprobe", "ef_search")
_FUSION = ("fusion_depth", "rrf_k", "alpha", "normalize", "missing", "weight_on_dense")
_DEFAULTS = {f.name: f.default for f in dataclasses.fields(SearchConfig)}

Answers = Callable[[Sequence[Query], int], Iterator[Any]]


@dataclass(frozen=True)
class _Engine:
    """What answers questions: its name, and for an index folder the searcher behind it."""

    name: str
    answers: Answers
    searcher: Any = None
    dense: dict[str, Any] | None = None  #: which dense index was searched, if one was
    impacts: tuple[str, str] | None = None  #: what finds documents by their impacts, and why


def _engine(config: SearchConfig) -> _Engine:
    return _bm25(config) if config.bm25 else _ours(config)


def _ours(config: SearchConfig) -> _Engine:
    from dupmae_ir.search.fusion import Fusion
    from dupmae_ir.search.searcher import Searcher

    fusion = None
    if config.fusion:
        fusion = Fusion(
            config.fusion, config.rrf_k, config.alpha, config.normalize, config.missing, config.weight_on_dense
        )
    _hint_at_bm25(Path(config.index))
    searcher = Searcher.open(
        config.index,
        config.model,
        device=config.device,
        dtype=config.dtype,
        query_length=config.query_length,
        threads=config.threads,
        batch_size=config.batch_size,
        query_terms=config.query_terms,
        dense_weight=config.dense_weight,
        impact_weight=config.impact_weight,
        max_depth=config.max_depth,
        dense_index=config.dense_index,
        nprobe=config.nprobe,
        ef_search=config.ef_search,
        engine=config.engine,
    )
    mode = config.mode or searcher.mode
    if mode != "hybrid" and (config.dense_weight, config.impact_weight) != (1.0, 1.0):
        raise UsageError(f"--dense-weight and --impact-weight belong to --hybrid; {config.index} has only one part")
    for name in ("query_length", "dtype"):
        then, now = searcher.index.meta.get("encoder", {}).get(name), getattr(searcher.encoder.settings, name)
        if then not in (None, now):
            say(f"note: questions are read with {name.replace('_', ' ')} {now}, the index with {then}", config.quiet)

    impacts = None if mode == "dense" else searcher.engine
    if impacts and impacts[0] == "postings":
        _ = searcher.index.postings  # what is wrong with them is told before questions are encoded

    def answers(topics: Sequence[Query], hits: int) -> Iterator[Any]:
        return searcher.answers(
            topics,
            hits,
            mode,
            remove_query=config.remove_query,
            raw_impacts=config.raw_impacts,
            fusion=fusion,
            fusion_depth=config.fusion_depth,
        )

    dense = None if mode == "impact" and not config.fusion else searcher.dense.described()
    return _Engine(config.fusion or mode, answers, searcher, dense, impacts)


def _hint_at_bm25(folder: Path) -> None:
    if any(folder.glob("segments_*")):
        raise UsageError(f"{folder} is a bare Lucene index; search it with --bm25, or name the folder that encode made")


def _bm25(config: SearchConfig) -> _Engine:
    from dupmae_ir.index.bm25 import BM25Searcher
    from dupmae_ir.search.ordering import without
    from dupmae_ir.search.searcher import Answer, Settings

    folder = Path(config.index)
    if not any(folder.glob("segments_*")):
        raise UsageError(f"{folder} is no BM25 index; make one: dupmae-ir index bm25 --corpus C --index {folder}")
    searcher = BM25Searcher(folder, config.k1, config.b)
    settings = Settings(threads=config.threads, batch_size=config.batch_size)

    def answers(topics: Sequence[Query], hits: int) -> Iterator[Any]:
        for start in range(0, len(topics), settings.batch_size):
            batch = topics[start : start + settings.batch_size]
            found = searcher.search(batch, hits + config.remove_query, settings.workers)
            for query in batch:
                kept = without(found[query.qid], query.qid, hits) if config.remove_query else found[query.qid]
                yield Answer(query, kept, None)

    return _Engine("bm25", answers)


def _run_file(config: SearchConfig) -> dict[str, Any]:
    """Every topic into the run file, batch by batch."""
    from dupmae_ir.io.publishing import atomic_write
    from dupmae_ir.io.runs import open_run

    assert config.output
    topics = _topics(config)
    engine = _engine(config)
    count = _Count()
    started = time.perf_counter()
    with ExitStack() as files:
        out = files.enter_context(open_run(config.output, config.tag or f"dupmae-ir-{engine.name}", config.format))
        report = files.enter_context(atomic_write(config.report)) if config.report else None
        bar = files.enter_context(progress("search", "topics", len(topics), config.quiet))
        for answer in _documents(config, engine.answers, topics, count):
            out.add(answer.query.qid, answer.hits)
            count.add(answer)
            if report:
                report.write(json.dumps(dataclasses.asdict(answer.report), ensure_ascii=False) + "\n")
            bar.update()
    return {
        "output": config.output,
        "index": config.index,
        "mode": engine.name,
        **_chosen(engine),
        "topics": len(topics),
        **({"dense_index": engine.dense} if engine.dense else {}),
        **count.summary(),
        "seconds": round(time.perf_counter() - started, 3),
    }


def _chosen(engine: _Engine) -> dict[str, str]:
    """The choice of --engine and its reason, for the summary."""
    return dict(zip(("engine", "engine_reason"), engine.impacts, strict=True)) if engine.impacts else {}


def _documents(config: SearchConfig, answers: Answers, topics: Sequence[Query], count: _Count) -> Iterator[Any]:
    """The answers, of passages turned into documents where these are asked for."""
    hits = config.hits or 1000
    if not config.max_passage:
        yield from answers(topics, hits)
        return
    from dupmae_ir.search.max_passage import best_passages
    from dupmae_ir.search.ordering import without

    depth = config.passage_hits or 10 * hits
    for answer in answers(topics, depth):
        found = best_passages(answer.hits)
        kept = without(found, answer.query.qid, hits) if config.remove_query else found[:hits]
        if len(kept) < hits and len(answer.hits) == depth:
            count.short.append(answer.query.qid)
        yield dataclasses.replace(answer, hits=kept)


def _topics(config: SearchConfig) -> list[Query]:
    from dupmae_ir.io.qrels import read_qrels
    from dupmae_ir.io.topics import read_topics

    assert config.topics
    topics = read_topics(config.topics)
    if config.qrels is None:
        return topics
    judged = read_qrels(config.qrels)
    kept = [query for query in topics if query.qid in judged]
    if not kept:
        raise UsageError(f"{config.qrels} judges none of the {len(topics)} topics; are they of {config.topics}?")
    if absent := len(judged) - len(kept):
        say(f"note: {absent} judged topics are not in {config.topics}", config.quiet)
    return kept


class _Count:
    """What the summary says, gathered answer by answer."""

    def __init__(self) -> None:
        self.blank = self.without_hits = self.certified = self.reported = 0
        self.uncertified: list[str] = []
        self.short: list[str] = []  #: topics whose passages were cut off before there were enough documents
        self.depths: dict[str, list[int]] = {"dense": [], "impact": []}

    def add(self, answer: Any) -> None:
        self.blank += not answer.query.text.strip()
        self.without_hits += not answer.hits
        if answer.report is None:
            return
        self.reported += 1
        self.certified += answer.report.exact
        if not answer.report.exact:
            self.uncertified.append(answer.query.qid)
        for part, depths in self.depths.items():
            if (depth := getattr(answer.report, f"depth_{part}")) is not None:
                depths.append(depth)

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = {"blank": self.blank, "without_hits": self.without_hits}
        if self.short:
            found["short"] = self.short
        if self.reported:
            found |= {"certified": self.certified, "uncertified": self.uncertified}
            for part, depths in self.depths.items():
                if depths:
                    found[f"depth_{part}"] = {"median": int(statistics.median(depths)), "max": max(depths)}
        return found


def _answer(config: SearchConfig, text: str) -> dict[str, Any]:
    """The one question: hits with their shares, strongest terms and, given the collection, their texts."""
    engine = _engine(config)
    started = time.perf_counter()
    if config.explain is not None:
        explained = engine.searcher.explain(text, config.explain)
        hits, report = [Hit(explained.docid, explained.score)], None
    else:
        answer = next(iter(engine.answers([Query("query", text)], config.hits or 10)))
        hits, report = answer.hits, answer.report
    seconds = time.perf_counter() - started
    shares = engine.searcher.explain_all(text, [hit.docid for hit in hits]) if engine.searcher else [None] * len(hits)
    documents = find_documents(config.corpus, {hit.docid for hit in hits})
    return {
        "query": text,
        "index": config.index,
        "mode": "explain" if config.explain is not None else engine.name,
        **_chosen(engine),
        "documents": engine.searcher.index.documents if engine.searcher else None,
        "weights": [config.dense_weight, config.impact_weight],
        "dense_index": engine.dense,
        "report": dataclasses.asdict(report) if report else None,
        "seconds": round(seconds, 3),
        "hits": [
            _shown(config, rank, hit, why, documents.get(hit.docid))
            for rank, (hit, why) in enumerate(zip(hits, shares, strict=True), start=1)
        ],
    }


def _shown(config: SearchConfig, rank: int, hit: Hit, why: Any, document: Document | None) -> dict[str, Any]:
    shown: dict[str, Any] = {"rank": rank, "docid": hit.docid, "score": hit.score}
    if why is not None:
        terms = why.terms if config.explain is not None else why.terms[: config.terms]
        shown |= {
            "dense": why.dense,
            "impact": why.impact,
            "matched_terms": len(why.terms),
            "terms": [dataclasses.asdict(term) for term in terms],
        }
    if config.corpus is not None:
        shown |= {"title": document.title if document else None, "text": document.text if document else None}
    return shown


def find_documents(corpus: str | None, docids: set[str]) -> dict[str, Document]:
    """The wanted documents of a collection, which is read until all are found."""
    from dupmae_ir.io.collections import read_collection

    found: dict[str, Document] = {}
    if corpus is None or not docids:
        return found
    for document in read_collection(corpus):
        if document.docid in docids:
            found[document.docid] = document
            if len(found) == len(docids):
                break
    return found
