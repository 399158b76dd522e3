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
from dupmae_ir.io.sources import CorpusOptions
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
        if (
            not mode
            and self.mode != "hybrid"
            and (config.dense_weight, config.impact_weight) != (None, None)
        ):
            raise UsageError(
                f"`dense_weight` and `impact_weight` need both parts; {config.where} has only one"
            )
        recorded, settings = searcher.index.meta.get("encoder") or {}, searcher.encoder.settings
        for name, value in (("query_length", settings.query_length), ("dtype", settings.dtype)):
            if recorded.get(name) not in (None, value):
                what = name.replace("_", " ")
                say(
                    f"note: queries are encoded with {what} {value}, the index with {recorded[name]}",
                    config.quiet,
                )
        self.selection = searcher.selection(
            read_ids(config.within) if config.within else None, config.filter
        )
        self.within = _restriction(config, self.selection.documents, self.selection.unknown)
        self.parts = [part for part in MODES[self.mode] if part in searcher.index.meta["parts"]]
        if "ot" in self.parts and not config.server and searcher.impact_search[0] == "postings":
            for segment in searcher.index.segments:
                _ = segment.postings  # report damaged postings before queries are encoded

    def answers(self, topics: Sequence[Query], hits: int) -> Iterable[Answer]:
        """The answers in the order of the topics."""
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

    def searched(self) -> Searched:
        """What is searched, with automatic choices and what the certificate of the index does not cover."""
        config, searcher = self.config, self.searcher
        index, server = searcher.index, searcher.server
        bm25 = config.bm25_index
        how, reason = searcher.impact_search if "ot" in self.parts and not server else (None, None)
        return Searched(
            config.where,
            self.name,
            impact_search=how,
            impact_search_reason=reason,
            dense_index=searcher.dense.summary() if "cls" in self.parts and not server else None,
            bm25=Bm25Summary(bm25, config.bm25_weight, config.k1, config.b) if bm25 else None,
            server=server.summary() if server else None,
            within=self.within,
            unread_bytes=index.unread or None,
            rerank=config.rerank if self.fusion is None else None,
        )


def _settings(config: SearchConfig) -> SearchSettings:
    settings = subset(config, SearchSettings)
    if config.topics and config.rerank_seconds is None:
        return dataclasses.replace(settings, rerank_seconds=0.0 if config.rerank else None)
    return settings


class Bm25Search:
    """A BM25 index."""

    name = "bm25"
    searcher: Searcher | None = None

    def __init__(self, config: SearchConfig) -> None:
        self.config = config
        self.bm25 = BM25Searcher(config.where, config.k1, config.b)
        self.allowed, self.within = None, None
        if config.within:
            numbers, docids = self.bm25.docids()
            known, unknown = with_ids(docids, read_ids(config.within))
            mask = np.zeros(len(docids), np.bool_)
            mask[numbers] = known
            self.allowed = row_set(mask, len(mask))
            self.within = _restriction(config, int(mask.sum()), unknown)

    def answers(self, topics: Sequence[Query], hits: int) -> Iterable[Answer]:
        """The answers in the order of the topics."""
        remove, size = self.config.remove_query, self.config.batch_size
        for start in range(0, len(topics), size):
            batch = topics[start : start + size]
            lists = self.bm25.search(batch, hits + remove, self.config.workers, self.allowed)
            for query in batch:
                own = lists[query.qid]
                yield Answer(query, without(own, query.qid, hits) if remove else own, None)

    def searched(self) -> Searched:
        """What is searched."""
        return Searched(self.config.where, self.name, within=self.within)


TopicSearch = IndexSearch | Bm25Search


def open_search(config: SearchConfig) -> TopicSearch:
    """The search that ``config`` selects. Raises :class:`UsageError` for the wrong kind of index."""
    lucene = any(any(Path(index).glob("segments_*")) for index in config.index)
    if lucene and len(config.index) > 1:
        raise UsageError("a Lucene index cannot be searched together with other folders")
    if config.bm25 and not lucene:
        raise UsageError(f"{config.where} is not a BM25 index; build one with dupmae-ir index bm25")
    if not config.bm25 and lucene:
        raise UsageError(
            f"{config.where} is a Lucene index; search it with `bm25`, or name a folder made by encode"
        )
    return Bm25Search(config) if config.bm25 else IndexSearch(config)


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
    searcher, report = search.searcher, None
    started = time.perf_counter()
    if explained is None:
        answer = next(iter(search.answers([Query("query", text)], config.hits or QUERY_HITS)))
        hits, report = list(answer.hits), answer.report
    else:
        assert searcher
        explanation = searcher.explain(text, explained)
        hits = [Hit(explanation.docid, explanation.score)]
    seconds = time.perf_counter() - started
    searched = search.searched()
    return QueryAnswer(
        text,
        searched if explained is None else dataclasses.replace(searched, mode="explain"),
        searcher.index.documents if searcher else None,
        searcher.index.size_in_words() if searcher else "",
        searcher.part_weights if searcher else (1.0, 1.0),
        report,
        seconds,
        [
            ShownHit(
                rank,
                *hit,
                details,
                max_terms=config.terms if explained is None else None,
                explained=not config.bm25,
                has_text=details.document is not None or config.corpus is not None,
            )
            for rank, (hit, details) in enumerate(
                zip(hits, _details(config, searcher, text, hits), strict=True), 1
            )
        ],
    )


def _details(
    config: SearchConfig, searcher: Searcher | None, text: str, hits: Sequence[Hit]
) -> list[DescribedHit]:
    """The hits described by the index, or, for BM25, by the words of the query in the texts of ``--corpus``."""
    docids = [hit.docid for hit in hits]
    documents = find_documents(config.corpus, set(docids)) if config.corpus is not None else None
    if searcher is not None:
        return searcher.describe(text, docids, documents)
    words = QueryWords(None, text)
    return [
        describe(words, Explanation(docid, 0.0, None, None, []), (documents or {}).get(docid))
        for docid in docids
    ]


def find_documents(corpus: str | None, docids: set[str]) -> dict[str, Document]:
    """Docid -> document, for ``docids``; the collection is read until all are found."""
    documents: dict[str, Document] = {}
    if corpus is None or not docids:
        return documents
    for document in CorpusOptions(corpus=corpus).collection():
        if document.docid in docids:
            documents[document.docid] = document
            if len(documents) == len(docids):
                break
    return documents
