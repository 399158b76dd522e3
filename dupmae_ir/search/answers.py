"""What ``dupmae-ir search`` asks (an index folder or a BM25 index), and the answer to one query with its details."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from dupmae_ir.config import subset
from dupmae_ir.console import say
from dupmae_ir.errors import UsageError
from dupmae_ir.index.format.row_set import row_set
from dupmae_ir.index.lucene.bm25 import BM25Searcher
from dupmae_ir.search.config import MODES, QUERY_HITS, SearchConfig, SearchSettings
from dupmae_ir.search.exact.hits import without
from dupmae_ir.search.exact.ranking import Answer
from dupmae_ir.search.fusion import Fusion
from dupmae_ir.search.query.filters import read_ids, with_ids
from dupmae_ir.search.query.words import QueryWords
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.search.view.results import (
    Bm25Summary,
    DescribedHit,
    Explanation,
    QueryAnswer,
    Searched,
    SearchedDocuments,
    ShownHit,
    describe,
)
from dupmae_ir.types import Document, Hit, Query


class IndexSearch:
    """An index folder, searched by the requested mode or fusion."""

    def __init__(
        self, config: SearchConfig, opened: Searcher | None = None, mode: str | None = None
    ) -> None:
        """``opened``: a searcher of the same index and settings, which is used instead of opening another. ``mode``
        replaces that of ``config``, or its fusion."""
        self.config = config
        self.searcher = searcher = opened or Searcher.open(
            config.index,
            config.model,
            device=config.device,
            dtype=config.dtype,
            query_length=config.query_length,
            settings=_settings(config),
        )
        self.mode = mode or config.mode or searcher.mode
        self.fusion = None if mode else config.fusion
        self.name = self.fusion or self.mode
        weighted = config.dense_weight is not None or config.impact_weight is not None
        if not mode and self.mode != "hybrid" and weighted:
            raise UsageError(
                f"`dense_weight` and `impact_weight` need both parts; {config.where} has only one"
            )
        self._note_other_settings()
        ids = read_ids(config.within) if config.within else None
        self.selection = searcher.selection(ids, config.filter)
        self.within = _restriction(config, self.selection.documents, self.selection.unknown)
        self.parts = [part for part in MODES[self.mode] if part in searcher.index.meta["parts"]]
        if "ot" in self.parts and not config.server:
            impact_search, _ = searcher.impact_search
            if impact_search == "postings":
                # Opened now, so that damaged postings are reported before queries are encoded.
                for segment in searcher.index.segments:
                    _ = segment.postings

    def _note_other_settings(self) -> None:
        """Say which settings of the queries' encoder are not those of the documents'."""
        recorded = self.searcher.index.meta.get("encoder") or {}
        settings = self.searcher.encoder.settings
        for name, value in (("query_length", settings.query_length), ("dtype", settings.dtype)):
            if recorded.get(name) not in (None, value):
                what = name.replace("_", " ")
                say(
                    f"note: queries are encoded with {what} {value}, the index with {recorded[name]}",
                    self.config.quiet,
                )

    def answers(self, topics: Sequence[Query], hits: int) -> Iterable[Answer]:
        """The answers in the order of the topics."""
        config = self.config
        fusion = None
        fusion_depth = None
        if self.fusion:
            fusion = subset(config, Fusion, method=self.fusion)
            fusion_depth = config.fusion_depth
        return self.searcher.answers(
            topics,
            hits,
            self.mode,
            remove_query=config.remove_query,
            raw_impacts=config.raw_impacts and self.mode == "impact",
            fusion=fusion,
            fusion_depth=fusion_depth,
            within=self.selection,
        )

    def searched(self) -> Searched:
        """What is searched, with automatic choices and what the certificate of the index does not cover."""
        config = self.config
        searcher = self.searcher
        server = searcher.server
        impact_search = None
        reason = None
        dense_index = None
        # With a server, neither part of the index proposes candidates.
        if "ot" in self.parts and not server:
            impact_search, reason = searcher.impact_search
        if "cls" in self.parts and not server:
            dense_index = searcher.dense.summary()
        bm25 = None
        if config.bm25_index:
            bm25 = Bm25Summary(config.bm25_index, config.bm25_weight, config.k1, config.b)
        return Searched(
            config.where,
            self.name,
            impact_search=impact_search,
            impact_search_reason=reason,
            dense_index=dense_index,
            bm25=bm25,
            server=server.summary() if server else None,
            within=self.within,
            unread_bytes=searcher.index.unread or None,
            rerank=config.rerank if self.fusion is None else None,
            missing=searcher.index.missing,
        )


def _settings(config: SearchConfig) -> SearchSettings:
    settings = subset(config, SearchSettings)
    if config.topics and config.rerank and config.rerank_seconds is None:
        # A run must not depend on the speed of the machine.
        return dataclasses.replace(settings, rerank_seconds=0.0)
    return settings


class Bm25Search:
    """A BM25 index."""

    name = "bm25"
    searcher: Searcher | None = None

    def __init__(self, config: SearchConfig) -> None:
        self.config = config
        self.bm25 = BM25Searcher(config.where, config.k1, config.b)
        self.allowed = None
        self.within = None
        if config.within:
            numbers, docids = self.bm25.docids()
            known, unknown = with_ids(docids, read_ids(config.within))
            mask = np.zeros(len(docids), np.bool_)
            mask[numbers] = known
            self.allowed = row_set(mask, len(mask))
            self.within = _restriction(config, int(mask.sum()), unknown)

    def answers(self, topics: Sequence[Query], hits: int) -> Iterable[Answer]:
        """The answers in the order of the topics."""
        config = self.config
        # One more where the query itself is removed.
        depth = hits + config.remove_query
        for start in range(0, len(topics), config.batch_size):
            batch = topics[start : start + config.batch_size]
            lists = self.bm25.search(batch, depth, config.workers, self.allowed)
            for query in batch:
                query_hits = lists[query.qid]
                if config.remove_query:
                    query_hits = without(query_hits, query.qid, hits)
                yield Answer(query, query_hits, None)

    def searched(self) -> Searched:
        """What is searched."""
        return Searched(self.config.where, self.name, within=self.within)


TopicSearch = IndexSearch | Bm25Search


def open_search(config: SearchConfig) -> TopicSearch:
    """The search that ``config`` selects. Raises :class:`UsageError` for the wrong kind of index."""
    # Every Lucene index has a file segments_N: its last commit.
    lucene = any(any(Path(index).glob("segments_*")) for index in config.index)
    if lucene and len(config.index) > 1:
        raise UsageError("a Lucene index cannot be searched together with other folders")
    if config.bm25 and not lucene:
        raise UsageError(f"{config.where} is not a BM25 index; build one with dupmae-ir index bm25")
    if not config.bm25 and lucene:
        raise UsageError(
            f"{config.where} is a Lucene index; search it with `bm25`, or name a folder made by encode"
        )
    if config.bm25:
        return Bm25Search(config)
    return IndexSearch(config)


def _restriction(
    config: SearchConfig, documents: int, unknown: Sequence[str]
) -> SearchedDocuments | None:
    """``--within`` and ``--filter`` for the summary. Raises :class:`UsageError` if no id is one of the index."""
    if not config.within and config.filter is None:
        return None
    if not documents and unknown and config.filter is None:
        raise UsageError(
            f"{config.within}: the index has none of these {len(unknown):,} documents; the first id is {unknown[0]!r}"
        )
    return SearchedDocuments(documents, config.within, config.filter, unknown)


def answer_query(
    config: SearchConfig, search: TopicSearch, text: str, explained: str | None = None
) -> QueryAnswer:
    """The hits of one query, with shares, strongest words and, where known, texts; or one ``explained`` document."""
    searcher = search.searcher
    report = None
    started = time.perf_counter()
    if explained is None:
        answer = next(iter(search.answers([Query("query", text)], config.hits or QUERY_HITS)))
        hits = list(answer.hits)
        report = answer.report
    else:
        assert searcher
        explanation = searcher.explain(text, explained)
        hits = [Hit(explanation.docid, explanation.score)]
    seconds = time.perf_counter() - started

    searched = search.searched()
    max_terms: int | None = config.terms
    if explained is not None:
        searched = dataclasses.replace(searched, mode="explain")
        max_terms = None
    shown_hits: list[ShownHit] = []
    for hit, details in zip(hits, _details(config, searcher, text, hits), strict=True):
        shown_hits.append(
            ShownHit(
                len(shown_hits) + 1,
                hit.docid,
                hit.score,
                details,
                max_terms=max_terms,
                explained=not config.bm25,
                has_text=details.document is not None or config.corpus is not None,
            )
        )
    return QueryAnswer(
        text,
        searched,
        searcher.index.documents if searcher else None,
        searcher.index.size_in_words() if searcher else "",
        searcher.part_weights if searcher else (1.0, 1.0),
        report,
        seconds,
        shown_hits,
    )


def _details(
    config: SearchConfig, searcher: Searcher | None, text: str, hits: Sequence[Hit]
) -> list[DescribedHit]:
    """The hits described by the index, or, for BM25, by the words of the query in the texts of ``--corpus``."""
    docids = [hit.docid for hit in hits]
    documents = None
    if config.corpus is not None:
        documents = find_documents(config.corpus, set(docids))
    if searcher is not None:
        return searcher.describe(text, docids, documents)
    words = QueryWords(None, text)
    described = []
    for docid in docids:
        document = documents.get(docid) if documents else None
        described.append(describe(words, Explanation(docid, 0.0, None, None, []), document))
    return described


def find_documents(corpus: str | None, docids: set[str]) -> dict[str, Document]:
    """Docid -> document, for ``docids``; the collection is read until all are found."""
    documents: dict[str, Document] = {}
    if corpus is None or not docids:
        return documents
    from dupmae_ir.io.sources import CorpusOptions  # only here: readers of files take 25 ms

    for document in CorpusOptions(corpus=corpus).collection():
        if document.docid in docids:
            documents[document.docid] = document
            if len(documents) == len(docids):
                break
    return documents
