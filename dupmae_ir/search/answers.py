"""Sources of answers for ``dupmae-ir search``, and one query's answer with everything that is shown of it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dupmae_ir.config import subset
from dupmae_ir.console import say
from dupmae_ir.errors import UsageError
from dupmae_ir.index.format.row_set import row_set
from dupmae_ir.index.format.segments import folders_of
from dupmae_ir.index.format.texts import StoredDocument
from dupmae_ir.index.lucene.bm25 import BM25Searcher
from dupmae_ir.io.sources import CorpusOptions
from dupmae_ir.search.config import MODES, QUERY_HITS, SearchConfig, SearchSettings
from dupmae_ir.search.exact.hits import without
from dupmae_ir.search.exact.ranking import Answer
from dupmae_ir.search.fusion import Fusion
from dupmae_ir.search.query.selection import read_ids, with_ids
from dupmae_ir.search.query.words import QueryWords
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.search.view.explain import DescribedHit, Explanation, described
from dupmae_ir.types import Document, Hit, Query

_SHOWN = 100
"""Most unknown ids listed in a summary."""


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


def open_engine(config: SearchConfig) -> Engine:
    """The source of answers that ``config`` selects. Raises :class:`UsageError` for the wrong kind of index."""
    lucene = any(any(Path(index).glob("segments_*")) for index in config.index)
    if lucene and len(config.index) > 1:
        raise UsageError("a Lucene index cannot be searched together with other folders")
    if config.bm25 and not lucene:
        raise UsageError(f"{config.where} is not a BM25 index; build one with dupmae-ir index bm25")
    if not config.bm25 and lucene:
        raise UsageError(f"{config.where} is a Lucene index; search it with `bm25`, or name a folder made by encode")
    return Bm25Engine(config) if config.bm25 else IndexEngine(config)


class IndexEngine:
    """An index folder, searched by the requested mode or fusion."""

    def __init__(self, config: SearchConfig, opened: Searcher | None = None, mode: str | None = None) -> None:
        """``opened``: a searcher of the same index and settings, which is used instead of opening another. ``mode``
        replaces that of ``config``, or its fusion."""
        self.config = config
        self.searcher = searcher = opened or Searcher.open(
            config.index,
            config.model,
            device=config.device,
            dtype=config.dtype,
            query_length=config.query_length,
            settings=subset(config, SearchSettings),
        )
        self.mode = mode or config.mode or searcher.mode
        self.fusion = None if mode else config.fusion
        self.name = self.fusion or self.mode
        if not mode and self.mode != "hybrid" and (config.dense_weight, config.impact_weight) != (1.0, 1.0):
            raise UsageError(f"`dense_weight` and `impact_weight` need both parts; {config.where} has only one")
        _note_overrides(searcher, config.quiet)
        ids = read_ids(config.within) if config.within else None
        self.selection = searcher.selection(ids, config.filter)
        self.within = _described_selection(config, self.selection.documents, self.selection.unknown)
        self.parts = [part for part in MODES[self.mode] if part in searcher.index.meta["parts"]]
        if "ot" in self.parts and not config.server and searcher.impact_search[0] == "postings":
            for folder in folders_of(searcher.index):
                _ = folder.postings  # report damaged postings before queries are encoded

    def answers(self, topics: Sequence[Query], hits: int) -> Iterable[Answer]:
        """See :class:`Engine`."""
        config = self.config
        return self.searcher.answers(
            topics,
            hits,
            self.mode,
            remove_query=config.remove_query,
            raw_impacts=config.raw_impacts and self.mode == "impact",
            fusion=subset(config, Fusion, method=self.fusion) if self.fusion else None,
            fusion_depth=config.fusion_depth if self.fusion else None,
            within=self.selection,
        )

    def described(self) -> dict[str, Any]:
        """See :class:`Engine`."""
        config, found = self.config, dict[str, Any]()
        if source := self.searcher.source:
            return {"server": source.described()} | self.within
        if "ot" in self.parts:
            found["impact_search"], found["impact_search_reason"] = self.searcher.impact_search
        if "cls" in self.parts:
            found["dense_index"] = self.searcher.dense.described()
        if config.bm25_index:
            found["bm25"] = {"index": config.bm25_index, "weight": config.bm25_weight, "k1": config.k1, "b": config.b}
        return found | self.within


def _described_selection(config: SearchConfig, documents: int, unknown: Sequence[str]) -> dict[str, Any]:
    """``--within`` and ``--filter`` for the summary. Raises :class:`UsageError` if no id is one of the index."""
    if not config.within and config.filter is None:
        return {}
    if not documents and unknown and config.filter is None:
        raise UsageError(
            f"{config.within}: the index has none of these {len(unknown):,} documents; the first id is {unknown[0]!r}"
        )
    found: dict[str, Any] = {"documents": documents}
    if config.filter is not None:
        found["filter"] = config.filter
    if config.within:
        found |= {"file": config.within, "unknown": len(unknown), "unknown_ids": unknown[:_SHOWN]}
    return {"within": found}


def _note_overrides(searcher: Searcher, quiet: bool) -> None:
    recorded = searcher.index.meta.get("encoder") or {}
    settings = searcher.encoder.settings
    for name, value in (("query_length", settings.query_length), ("dtype", settings.dtype)):
        if recorded.get(name) not in (None, value):
            what = name.replace("_", " ")
            say(f"note: queries are encoded with {what} {value}, the index with {recorded[name]}", quiet)


class Bm25Engine:
    """A BM25 index."""

    name = "bm25"
    searcher: Searcher | None = None

    def __init__(self, config: SearchConfig) -> None:
        self.config = config
        self.bm25 = BM25Searcher(config.where, config.k1, config.b)
        self.allowed, self.within = None, dict[str, Any]()
        if config.within:
            numbers, docids = self.bm25.docids()
            known, unknown = with_ids(docids, read_ids(config.within))
            mask = np.zeros(len(docids), np.bool_)
            mask[numbers] = known
            self.allowed = row_set(mask, len(mask))
            self.within = _described_selection(config, int(mask.sum()), unknown)

    def answers(self, topics: Sequence[Query], hits: int) -> Iterable[Answer]:
        """See :class:`Engine`."""
        remove, size = self.config.remove_query, self.config.batch_size
        for start in range(0, len(topics), size):
            batch = topics[start : start + size]
            found = self.bm25.search(batch, hits + remove, self.config.workers, self.allowed)
            for query in batch:
                kept = without(found[query.qid], query.qid, hits) if remove else found[query.qid]
                yield Answer(query, kept, None)

    def described(self) -> dict[str, Any]:
        """See :class:`Engine`."""
        return self.within


def described_answer(config: SearchConfig, engine: Engine, text: str, explained: str | None = None) -> dict[str, Any]:
    """The hits of one query, with shares, strongest words and, where known, texts; or one ``explained`` document."""
    searcher = engine.searcher
    started = time.perf_counter()
    if explained is not None:
        assert searcher
        found = searcher.explain(text, explained)
        hits, report = [Hit(found.docid, found.score)], None
    else:
        answer = next(iter(engine.answers([Query("query", text)], config.hits or QUERY_HITS)))
        hits, report = list(answer.hits), answer.report
    seconds = time.perf_counter() - started
    descriptions = _descriptions(config, searcher, text, [hit.docid for hit in hits])
    about = engine.described()
    return {
        "query": text,
        "index": config.where,
        "mode": "explain" if explained is not None else engine.name,
        **{name: about[name] for name in ("impact_search", "impact_search_reason") if name in about},
        "documents": searcher.index.documents if searcher else None,
        "weights": [config.dense_weight, config.impact_weight],
        **{name: about[name] for name in ("bm25", "server") if name in about},
        **({"within": about["within"]} if "within" in about else {}),
        "dense_index": about.get("dense_index"),
        "report": dataclasses.asdict(report) if report else None,
        **checks_of(engine),
        "seconds": round(seconds, 3),
        "hits": [
            _described_hit(config, rank, hit, description, None if explained is not None else config.terms)
            for rank, (hit, description) in enumerate(zip(hits, descriptions, strict=True), start=1)
        ],
    }


def checks_of(engine: Engine) -> dict[str, Any]:
    """What the certificate of an index folder does not cover: an index without records, and bytes not read."""
    if engine.searcher is None:
        return {}
    index = engine.searcher.index
    found: dict[str, Any] = {"not_sealed": index.certifies} if index.certifies else {}
    return found | ({"unread_bytes": index.unread} if index.unread else {})


def _described_hit(config: SearchConfig, rank: int, hit: Hit, found: DescribedHit, kept: int | None) -> dict[str, Any]:
    described: dict[str, Any] = {"rank": rank, "docid": hit.docid, "score": hit.score}
    explanation, document = found.explanation, found.document
    if not config.bm25:
        described |= {
            "dense": explanation.dense,
            "impact": explanation.impact,
            **({} if explanation.bm25 is None else {"bm25": explanation.bm25}),
            "matched_terms": len(explanation.terms),
            "terms": [dataclasses.asdict(term) for term in explanation.terms[:kept]],
            "matched_words": len(found.words),
            "words": [dataclasses.asdict(word) for word in found.words[:kept]],
        }
    if document is not None or config.corpus is not None:
        described |= {"title": document.title if document else None, "text": document.text if document else None}
    if isinstance(document, StoredDocument) and document.metadata:
        described["metadata"] = dict(document.metadata)
    if found.snippet is not None:
        described["snippet"] = dataclasses.asdict(found.snippet)
    return described


def _descriptions(
    config: SearchConfig, searcher: Searcher | None, text: str, docids: Sequence[str]
) -> list[DescribedHit]:
    """The hits described by the index, or, for BM25, by the words of the query in the texts of ``--corpus``."""
    given = find_documents(config.corpus, set(docids)) if config.corpus is not None else None
    if searcher is not None:
        return searcher.describe(text, docids, given)
    words = QueryWords(None, text)
    return [described(words, Explanation(docid, 0.0, None, None, []), (given or {}).get(docid)) for docid in docids]


def find_documents(corpus: str | None, docids: set[str]) -> dict[str, Document]:
    """Docid -> document, for ``docids``; the collection is read until all are found."""
    found: dict[str, Document] = {}
    if corpus is None or not docids:
        return found
    for document in CorpusOptions(corpus=corpus).collection():
        if document.docid in docids:
            found[document.docid] = document
            if len(found) == len(docids):
                break
    return found
