"""The work of ``dupmae-ir search``: topics to a run file, or one query to its hits."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from dupmae_ir.config import subset
from dupmae_ir.console import progress, say
from dupmae_ir.errors import UsageError
from dupmae_ir.index.bm25 import BM25Searcher
from dupmae_ir.io.collections import read_collection
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.runs import open_run
from dupmae_ir.io.topics import read_topics
from dupmae_ir.search.config import MODES, QUERY_HITS, RUN_HITS, SearchConfig, SearchSettings
from dupmae_ir.search.explain import Explanation
from dupmae_ir.search.fusion.config import Fusion
from dupmae_ir.search.max_passage import best_passages
from dupmae_ir.search.ordering import without
from dupmae_ir.search.ranking import Answer
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.search.summary import RunCounts
from dupmae_ir.types import Document, Hit, Query


class Engine(Protocol):
    """A source of answers: an index folder or a BM25 index."""

    @property
    def name(self) -> str:
        """The mode, or the fusion method."""

    @property
    def searcher(self) -> Searcher | None:
        """The searcher of the index folder; None for BM25."""

    def answers(self, topics: Sequence[Query], hits: int) -> Iterable[Answer]:
        """The answers in the order of the topics."""

    def described(self) -> dict[str, Any]:
        """Automatic choices and their reasons, for the summary."""


def run(config: SearchConfig) -> dict[str, Any]:
    """Search. Returns the summary of the run file, or the hits of ``config.query``.

    Raises :class:`DupmaeError` subclasses. An existing run file stays in place until the new one is complete.
    """
    _check_paths(config)
    return _search_topics(config) if config.query is None else _search_query(config, config.query)


def _search_topics(config: SearchConfig) -> dict[str, Any]:
    assert config.output
    topics = _topics(config)
    engine = _engine(config)
    checks = _checks(engine)
    counts = RunCounts(not checks.get("not_sealed"))
    started = time.perf_counter()
    with ExitStack() as files:
        out = files.enter_context(open_run(config.output, config.tag or f"dupmae-ir-{engine.name}", config.format))
        report = files.enter_context(atomic_write(config.report)) if config.report else None
        bar = files.enter_context(progress("search", "topics", len(topics), config.quiet))
        for answer in _documents(config, engine, topics, counts):
            out.add(answer.query.qid, answer.hits)
            counts.add(answer)
            if report and answer.report:
                report.write(json.dumps(dataclasses.asdict(answer.report), ensure_ascii=False) + "\n")
            bar.update()
    described = engine.described()
    return {
        "output": config.output,
        "index": config.index,
        "mode": engine.name,
        **{name: described[name] for name in ("engine", "engine_reason") if name in described},
        "topics": len(topics),
        **({"dense_index": described["dense_index"]} if described.get("dense_index") else {}),
        **({"bm25": described["bm25"]} if "bm25" in described else {}),
        **counts.as_dict(),
        **checks,
        "seconds": round(time.perf_counter() - started, 3),
    }


def _search_query(config: SearchConfig, text: str) -> dict[str, Any]:
    """The hits of one query, with shares, strongest terms and, given the collection, texts."""
    engine = _engine(config)
    searcher = engine.searcher
    started = time.perf_counter()
    if config.explain is not None:
        assert searcher
        explained = searcher.explain(text, config.explain)
        hits, report = [Hit(explained.docid, explained.score)], None
    else:
        answer = next(iter(engine.answers([Query("query", text)], config.hits or QUERY_HITS)))
        hits, report = answer.hits, answer.report
    seconds = time.perf_counter() - started
    explanations: Sequence[Explanation | None] = [None] * len(hits)
    if searcher:
        explanations = searcher.explain_all(text, [hit.docid for hit in hits])
    documents = find_documents(config.corpus, {hit.docid for hit in hits})
    described = engine.described()
    return {
        "query": text,
        "index": config.index,
        "mode": "explain" if config.explain is not None else engine.name,
        **{name: described[name] for name in ("engine", "engine_reason") if name in described},
        "documents": searcher.index.documents if searcher else None,
        "weights": [config.dense_weight, config.impact_weight],
        **({"bm25": described["bm25"]} if "bm25" in described else {}),
        "dense_index": described.get("dense_index"),
        "report": dataclasses.asdict(report) if report else None,
        **_checks(engine),
        "seconds": round(seconds, 3),
        "hits": [
            _described_hit(config, rank, hit, explanation, documents.get(hit.docid))
            for rank, (hit, explanation) in enumerate(zip(hits, explanations, strict=True), start=1)
        ],
    }


def _checks(engine: Engine) -> dict[str, Any]:
    """What the certificate of an index folder does not cover: an index without records, and bytes not read."""
    if engine.searcher is None:
        return {}
    index = engine.searcher.index
    found: dict[str, Any] = {"not_sealed": index.certifies} if index.certifies else {}
    return found | ({"unread_bytes": index.unread} if index.unread else {})


def _described_hit(
    config: SearchConfig, rank: int, hit: Hit, explanation: Explanation | None, document: Document | None
) -> dict[str, Any]:
    described: dict[str, Any] = {"rank": rank, "docid": hit.docid, "score": hit.score}
    if explanation is not None:
        terms = explanation.terms if config.explain is not None else explanation.terms[: config.terms]
        described |= {
            "dense": explanation.dense,
            "impact": explanation.impact,
            **({} if explanation.bm25 is None else {"bm25": explanation.bm25}),
            "matched_terms": len(explanation.terms),
            "terms": [dataclasses.asdict(term) for term in terms],
        }
    if config.corpus is not None:
        described |= {"title": document.title if document else None, "text": document.text if document else None}
    return described


def find_documents(corpus: str | None, docids: set[str]) -> dict[str, Document]:
    """Docid -> document, for ``docids``; the collection is read until all are found."""
    found: dict[str, Document] = {}
    if corpus is None or not docids:
        return found
    for document in read_collection(corpus):
        if document.docid in docids:
            found[document.docid] = document
            if len(found) == len(docids):
                break
    return found


def _documents(config: SearchConfig, engine: Engine, topics: Sequence[Query], counts: RunCounts) -> Iterator[Answer]:
    """The answers; with ``--max-passage``, with passages replaced by their documents."""
    hits = config.hits or RUN_HITS
    if not config.max_passage:
        yield from engine.answers(topics, hits)
        return
    depth = config.passage_hits or 10 * hits
    for answer in engine.answers(topics, depth):
        found = best_passages(answer.hits)
        kept = without(found, answer.query.qid, hits) if config.remove_query else found[:hits]
        if len(kept) < hits and len(answer.hits) == depth:
            counts.short.append(answer.query.qid)
        yield dataclasses.replace(answer, hits=kept)


def _topics(config: SearchConfig) -> list[Query]:
    assert config.topics
    topics = read_topics(config.topics)
    if config.qrels is None:
        return topics
    judged = read_qrels(config.qrels)
    kept = [query for query in topics if query.qid in judged]
    if not kept:
        raise UsageError(
            f"{config.qrels} has judgements for none of the {len(topics)} topics; check that it belongs to "
            f"{config.topics}"
        )
    if absent := len(judged) - len(kept):
        say(f"note: {absent} judged topics are not in {config.topics}", config.quiet)
    return kept


def _check_paths(config: SearchConfig) -> None:
    if config.output and config.report and Path(config.output).absolute() == Path(config.report).absolute():
        raise UsageError("--output and --report name the same file")
    for path in (config.output, config.report):
        if path and Path(path).is_dir():
            raise UsageError(f"{path} is a folder; name a file to write")


def _engine(config: SearchConfig) -> Engine:
    lucene = any(Path(config.index).glob("segments_*"))
    if config.bm25 and not lucene:
        build = f"dupmae-ir index bm25 --corpus C --index {config.index}"
        raise UsageError(f"{config.index} is not a BM25 index; build one: {build}")
    if not config.bm25 and lucene:
        raise UsageError(f"{config.index} is a Lucene index; search it with --bm25, or name a folder made by encode")
    return _Bm25(config) if config.bm25 else _Index(config)


class _Index:
    """An index folder, searched by the requested mode or fusion."""

    def __init__(self, config: SearchConfig) -> None:
        self.config = config
        self.searcher = searcher = Searcher.open(
            config.index,
            config.model,
            device=config.device,
            dtype=config.dtype,
            query_length=config.query_length,
            settings=subset(config, SearchSettings),
        )
        self.mode = config.mode or searcher.mode
        self.name = config.fusion or self.mode
        if self.mode != "hybrid" and (config.dense_weight, config.impact_weight) != (1.0, 1.0):
            raise UsageError(f"--dense-weight and --impact-weight need both parts; {config.index} has only one")
        _note_overrides(searcher, config.quiet)
        self.parts = [part for part in MODES[self.mode] if part in searcher.index.meta["parts"]]
        if "ot" in self.parts and searcher.engine[0] == "postings":
            _ = searcher.index.postings  # report damaged postings before queries are encoded

    def answers(self, topics: Sequence[Query], hits: int) -> Iterable[Answer]:
        """See :class:`Engine`."""
        config = self.config
        return self.searcher.answers(
            topics,
            hits,
            self.mode,
            remove_query=config.remove_query,
            raw_impacts=config.raw_impacts,
            fusion=subset(config, Fusion, method=config.fusion) if config.fusion else None,
            fusion_depth=config.fusion_depth,
        )

    def described(self) -> dict[str, Any]:
        """See :class:`Engine`."""
        config, found = self.config, dict[str, Any]()
        if "ot" in self.parts:
            found["engine"], found["engine_reason"] = self.searcher.engine
        if "cls" in self.parts:
            found["dense_index"] = self.searcher.dense.described()
        if config.bm25_index:
            found["bm25"] = {"index": config.bm25_index, "weight": config.bm25_weight, "k1": config.k1, "b": config.b}
        return found


def _note_overrides(searcher: Searcher, quiet: bool) -> None:
    recorded = searcher.index.meta.get("encoder") or {}
    settings = searcher.encoder.settings
    for name, value in (("query_length", settings.query_length), ("dtype", settings.dtype)):
        if recorded.get(name) not in (None, value):
            what = name.replace("_", " ")
            say(f"note: queries are encoded with {what} {value}, the index with {recorded[name]}", quiet)


class _Bm25:
    """A BM25 index."""

    name = "bm25"
    searcher: Searcher | None = None

    def __init__(self, config: SearchConfig) -> None:
        self.config = config
        self.bm25 = BM25Searcher(config.index, config.k1, config.b)

    def answers(self, topics: Sequence[Query], hits: int) -> Iterable[Answer]:
        """See :class:`Engine`."""
        remove, size = self.config.remove_query, self.config.batch_size
        for start in range(0, len(topics), size):
            batch = topics[start : start + size]
            found = self.bm25.search(batch, hits + remove, self.config.workers)
            for query in batch:
                kept = without(found[query.qid], query.qid, hits) if remove else found[query.qid]
                yield Answer(query, kept, None)

    def described(self) -> dict[str, Any]:
        """See :class:`Engine`."""
        return {}
