"""Dense, impact and hybrid search over an index folder.

    searcher = Searcher.open("I")
    searcher.search("how do I wait for a thread")                    # list[Hit], the ten best
    searcher.search([Query("1", "..."), Query("2", "...")], 1000)    # {"1": list[Hit], "2": list[Hit]}
    searcher.explain("how do I wait for a thread", "threading.Thread.join")

``search(q, k)`` and ``batch_search(queries, qids, k, threads)`` have the signatures of Pyserini's searchers.

The path of a query, one file after the other:

1. ``run.py``                       reads topics, writes the run file (Python callers start at 2)
2. ``searcher.py``                  :meth:`Searcher.answers` makes the request and works in batches;
   ``query_batching.py``            makes a batch of single queries that several threads ask
3. ``query/encoder.py``             text to [CLS] vector and quantised OT weights
4. ``exact/ranking.py``             the mode decides how the batch is ranked
5. ``opened_index.py``              the parts of the index, opened on first use
6. ``exact/certified_topk.py``      the exact top k of the sum of the parts
7. ``candidates/dense.py``          candidates and exact scores by [CLS] vectors (faiss)
8. ``candidates/impact.py``         candidates and exact scores by impacts (Lucene or postings)
9. ``candidates/bm25.py``           candidates and scores by BM25, where a third index joins the sum
10. ``reranking.py``                a second look at the first hits, if ``rerank`` names a model
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack, overload

from dupmae_ir.arguments import check_fields, checked, wrong_type
from dupmae_ir.device import processors
from dupmae_ir.errors import UsageError
from dupmae_ir.index.dense_kinds import ROTATED
from dupmae_ir.index.filters import DocumentFilter
from dupmae_ir.index.format.texts import StoredDocument
from dupmae_ir.index.index import Index, for_index
from dupmae_ir.io import in_memory
from dupmae_ir.io.in_memory import Table
from dupmae_ir.io.lines import usable
from dupmae_ir.io.runs import Rankings
from dupmae_ir.models.inference.pair_model import LazyCrossEncoder
from dupmae_ir.registry import lookup
from dupmae_ir.search.candidates.dense import DenseIndex
from dupmae_ir.search.candidates.impact import ImpactIndex
from dupmae_ir.search.candidates.segments import SegmentedDense, SegmentedImpact
from dupmae_ir.search.candidates.server import ServerIndex
from dupmae_ir.search.config import MODES, QUERY_HITS, RUN_HITS, SearchSettings
from dupmae_ir.search.exact.ranking import Answer, Ranker, Request
from dupmae_ir.search.fusion import Fusion
from dupmae_ir.search.opened_index import OpenedIndex
from dupmae_ir.search.query.encoder import (
    GROUP,
    LastQuery,
    QueryEncodings,
    check_encoder,
    load_query_encoder,
)
from dupmae_ir.search.query.filters import Selection, select, select_on
from dupmae_ir.search.query.words import SNIPPET, QueryWords
from dupmae_ir.search.query_batching import Pending, QueryBatches
from dupmae_ir.search.reranking import RERANK_SECONDS, reranked
from dupmae_ir.search.view.notebook import HitList
from dupmae_ir.search.view.results import DescribedHit, Explanation, describe, explain
from dupmae_ir.types import Document, Encoder, Query, QuickEncoder, WordEncoder

BATCH_WAIT = 0.01
"""Most seconds that a query waits for queries of other threads, to be computed together with them."""


class SearchKeywords(TypedDict, total=False):
    """Keywords of :meth:`Searcher.search`, which explains them."""

    raw_impacts: bool
    fusion: Fusion | None
    fusion_depth: int | None
    within: str | Iterable[str] | Selection | None
    filter: DocumentFilter | None


class TopicKeywords(SearchKeywords, total=False):
    """Those with topics."""

    remove_query: bool


class SearcherSource(NamedTuple):
    """How a searcher loaded its encoder, so that another process can do the same."""

    encoder: str | Path | None
    device: str
    dtype: str | None
    query_length: int | None


class Searcher:
    """Searches an index folder with the encoder that built it. Use :meth:`open`, also in a ``with`` statement.

    A searcher can be used by several threads and after a fork. It can be pickled: the copy opens the index and the
    model anew, by their names.
    """

    def __init__(
        self, index: Index | OpenedIndex, encoder: Encoder, settings: SearchSettings | None = None
    ) -> None:
        #: None for a closed searcher
        self._parts: OpenedIndex | None = (
            index if isinstance(index, OpenedIndex) else OpenedIndex(index)
        )
        self._model: Encoder | None = for_index(encoder, self._opened.folder)
        self._source: SearcherSource | None = None
        self.settings = settings or SearchSettings()
        # Texts that are computed together use all processors; others are computed by as many threads as there are.
        threads = processors()
        wait = 0.0
        if isinstance(encoder, QuickEncoder) and encoder.is_quick(2):
            threads = 1
            wait = BATCH_WAIT
        self._batches: QueryBatches[tuple[Request, str], Answer] = QueryBatches(threads, wait=wait)
        # Several calls may describe the hits of one query. A cached method would keep the searcher alive.
        words = lru_cache(8)(QueryWords)
        self._query_words: Callable[[Encoder, str], QueryWords] = words  # type: ignore[assignment]  # hashed by identity
        self._last_query = LastQuery()
        self._word_encoder: tuple[Encoder, Encoder | None] | None = None

    @classmethod
    @checked
    def open(
        cls,
        index: str | Path | Sequence[str | Path] | Index,
        encoder: Encoder | str | Path | None = None,
        *,
        device: str = "auto",
        dtype: str | None = None,
        query_length: int | None = None,
        settings: SearchSettings | None = None,
        **changes: Any,
    ) -> Searcher:
        """Open an index folder with the encoder recorded in it, or with ``encoder`` (a model folder or an object).

        Args:
            index: the folder, or an opened one; or several folders, which are searched as one. They must come from one
                model with one impact scale, and have no document id in common.
            encoder: None loads the encoder that the index records.
            device: for an encoder loaded here.
            dtype: precision of an encoder loaded here; None is the index's.
            query_length: word pieces per query of an encoder loaded here; None is the index's.
            settings: how to search.
            **changes: single fields of ``settings``.

        Raises :class:`IndexMismatch` for an encoder that differs from the index's in anything but ``dtype`` and
        ``query_length``, and for a dense index that is missing or out of date.
        """
        settings = _changed(settings or SearchSettings(), changes)
        if isinstance(index, str | Path):
            index = [index]
        if isinstance(index, Index):
            folder = index
        else:
            folder = Index.open(*index, record=settings.server is not None)

        overrides = set()
        if dtype is not None:
            overrides.add("dtype")
        if query_length is not None:
            overrides.add("query_length")
        # What a copy in another process opens; an encoder object has no name to open it by.
        source = None
        if encoder is None or isinstance(encoder, str | Path):
            source = SearcherSource(encoder, device, dtype, query_length)
            encoder = load_query_encoder(folder, *source)
        elif not hasattr(encoder, "encode_queries"):
            raise wrong_type("encoder", "a model folder or an encoder", encoder)
        elif overrides:
            raise UsageError(
                "dtype and query_length apply to a model loaded by name, not to an encoder object"
            )
        check_encoder(folder, encoder, frozenset(overrides))
        if not folder.segments:
            # A record has the digest of its encoder instead of the terms.
            folder.terms = for_index(encoder, folder).terms or []

        # What cannot be opened fails here rather than at the first query.
        opened = OpenedIndex(folder)
        if settings.dense_index == ROTATED:
            opened.dense(settings)
        opened.bm25(settings)
        opened.server(settings)
        opened.reranker(settings, encoder)
        searcher = cls(opened, encoder, settings)
        searcher._source = source
        return searcher

    def __reduce__(self) -> tuple[Callable[..., Searcher], tuple[object, ...]]:
        """A searcher is pickled by the names of its index and its model; loading it opens them anew."""
        if self._source is None:
            raise UsageError(
                "a searcher with an encoder object cannot be pickled; open it with the name of a model"
            )
        return _reopened, (self.index, self._source, self.settings)

    def __enter__(self) -> Searcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the index and the model. A later search is a :class:`UsageError`."""
        self._parts = None
        self._model = None
        self._query_words.cache_clear()  # type: ignore[attr-defined]

    @property
    def _opened(self) -> OpenedIndex:
        if self._parts is None:
            raise UsageError("this searcher is closed; open the index again")
        return self._parts

    @property
    def encoder(self) -> Encoder:
        """The encoder of queries."""
        if self._model is None:
            raise UsageError("this searcher is closed; open the index again")
        return self._model

    @encoder.setter
    def encoder(self, encoder: Encoder) -> None:
        self._model = encoder
        self._last_query = LastQuery()

    @property
    def word_encoder(self) -> Encoder | None:
        """The encoder of queries by words alone; None if it would need the model all the same."""
        encoder = self.encoder
        if self._word_encoder is None or self._word_encoder[0] is not encoder:
            words = encoder.without_vectors() if isinstance(encoder, WordEncoder) else None
            self._word_encoder = (encoder, words)
        return self._word_encoder[1]

    @property
    def index(self) -> Index:
        """The index folder, or the segments of an index that was changed."""
        return self._opened.folder

    @property
    def mode(self) -> str:
        """The default mode: hybrid, or the only part that the index has. With a BM25 index, hybrid."""
        if self.settings.bm25_index:
            return "hybrid"
        for mode in ("hybrid", "dense"):
            if set(MODES[mode]) <= set(self._opened.parts):
                return mode
        return "impact"

    @property
    def part_weights(self) -> tuple[float, float]:
        """The weights of the dense and the impact score in the sum."""
        return self._opened.weights(self.settings)

    @property
    def dense(self) -> DenseIndex | SegmentedDense:
        """The dense part of the index, as the settings select it."""
        return self._opened.dense(self.settings)

    @property
    def impact(self) -> ImpactIndex | SegmentedImpact:
        """The impact part of the index."""
        return self._opened.impact(self.settings)

    @property
    def impact_search(self) -> tuple[str, str]:
        """How impacts are searched, ``lucene`` or ``postings``, and the reason for the choice."""
        return self._opened.impact_search(self.settings)

    @property
    def server(self) -> ServerIndex | None:
        """The copy of the index on a server that proposes candidates; None without one."""
        return self._opened.server(self.settings)

    def with_settings(self, **changes: Any) -> Searcher:
        """A searcher with some :class:`SearchSettings` changed; opened parts and the encoder are shared."""
        searcher = Searcher(self._opened, self.encoder, _changed(self.settings, changes))
        searcher._source = self._source
        return searcher

    @overload
    def search(  # type: ignore[overload-overlap]  # a str is a sequence of str, too
        self,
        queries: str,
        hits: int = ...,
        mode: str | None = ...,
        **options: Unpack[SearchKeywords],
    ) -> HitList: ...
    @overload
    def search(  # type: ignore[overload-overlap]  # a mapping has keys that are str
        self,
        queries: Iterable[Query] | Mapping[str, str],
        hits: int = ...,
        mode: str | None = ...,
        **options: Unpack[TopicKeywords],
    ) -> Rankings: ...
    @overload
    def search(
        self,
        queries: Iterable[str],
        hits: int = ...,
        mode: str | None = ...,
        **options: Unpack[SearchKeywords],
    ) -> list[HitList]: ...
    @overload
    def search(
        self,
        queries: Table,
        hits: int = ...,
        mode: str | None = ...,
        **options: Unpack[TopicKeywords],
    ) -> HitList | list[HitList] | Rankings: ...
    @checked
    def search(
        self,
        queries: str | Iterable[str] | Iterable[Query] | Mapping[str, str] | Table,
        hits: int = QUERY_HITS,
        mode: str | None = None,
        *,
        remove_query: bool = False,
        raw_impacts: bool = False,
        fusion: Fusion | None = None,
        fusion_depth: int | None = None,
        within: str | Iterable[str] | Selection | None = None,
        filter: DocumentFilter | None = None,
    ) -> HitList | list[HitList] | Rankings:
        """The best ``hits`` documents of one query, of each of several texts (a list of lists), or of each topic (a
        run, by query id).

        Topics have an id and a text: :class:`Query` objects, dictionaries, tuples, ``{id: text}``, or a DataFrame, an
        Arrow table or a dataset with these columns. Texts without ids may be in any of these, too.

        The arguments are those of :meth:`answers`; ids of ``within`` that the index does not contain are warned about.
        Several threads can call it at a time: single queries that they ask meanwhile are searched together, with the
        hits of each query alone.
        """
        selection = self.selection(within, filter)
        # Ids of a selection that was made before were reported then.
        if selection.unknown and selection is not within:
            docids = repr(selection.unknown[0])
            if len(selection.unknown) > 1:
                docids += f" and {len(selection.unknown) - 1:,} more"
            # The caller is beyond this function and the one that checks its arguments.
            warnings.warn(f"`within`: {self.index.path} has no document {docids}", stacklevel=3)
        request = self._request(
            hits, mode, remove_query, raw_impacts, fusion, fusion_depth, selection
        )
        if isinstance(queries, str):
            text = usable(queries)
            answer = self._batches.ask(self._answer_alone, (request, text), request)
            return HitList(answer.hits, text, self.describe)
        asked = in_memory.queries(queries)
        if asked.with_ids:
            return self._run(asked.topics, request)
        lists = []
        for answer in self._answer(asked.topics, request):
            lists.append(HitList(answer.hits, answer.query.text, self.describe))
        return lists

    async def asearch(
        self,
        queries: str | Iterable[str] | Iterable[Query] | Mapping[str, str] | Table,
        hits: int = QUERY_HITS,
        mode: str | None = None,
        **options: Unpack[TopicKeywords],
    ) -> HitList | list[HitList] | Rankings:
        """:meth:`search` in another thread, for asynchronous programs. Single queries that are awaited at the same time
        are searched together."""
        import asyncio  # only here: it would take 15 ms of every other search

        search: Callable[..., HitList | list[HitList] | Rankings] = self.search
        return await asyncio.to_thread(search, queries, hits, mode, **options)

    def _run(self, topics: Sequence[Query], request: Request) -> Rankings:
        return Rankings(
            (answer.query.qid, list(answer.hits)) for answer in self._answer(topics, request)
        )

    def __repr__(self) -> str:
        return f"Searcher({str(self.index.path)!r}: {self.index.size_in_words()}, {self.mode}, {self.encoder.name})"

    @checked
    def batch_search(
        self,
        queries: Sequence[str],
        qids: Sequence[str],
        k: int = QUERY_HITS,
        threads: int | None = None,
        mode: str | None = None,
    ) -> Rankings:
        """Search texts with their ids, as Pyserini's searchers do. ``threads`` None keeps the setting."""
        if len(queries) != len(qids):
            raise UsageError(f"`qids`: {len(qids):,} ids of {len(queries):,} queries")
        searcher = self if threads is None else self.with_settings(threads=threads)
        return searcher.search(dict(zip(qids, queries, strict=True)), k, mode)

    @checked
    def answers(
        self,
        queries: Sequence[Query],
        hits: int = RUN_HITS,
        mode: str | None = None,
        *,
        remove_query: bool = False,
        raw_impacts: bool = False,
        fusion: Fusion | None = None,
        fusion_depth: int | None = None,
        within: str | Iterable[str] | Selection | None = None,
        filter: DocumentFilter | None = None,
    ) -> Iterator[Answer]:
        """Answers in the order of the queries, computed batch by batch. A blank query has no hits.

        The hits of an answer are arrays of rows and scores, and become :class:`Hit` objects when they are read.

        Args:
            queries: the topics.
            hits: documents per query.
            mode: dense, impact or hybrid; None is :attr:`mode`.
            remove_query: remove the document whose id is the query's.
            raw_impacts: integer scores instead of real units (impact mode).
            fusion: fuse a dense and an impact list instead of summing scores.
            fusion_depth: documents taken from each list for a fusion; default ``hits``.
            within: ids of the documents to search, or a :meth:`selection`; unknown ids are ignored. Lists are the exact
                ones of a collection of these documents alone.
            filter: a condition on metadata, such as ``year >= 2020``; a mask (n,) bool by row; or a function of a
                :class:`~dupmae_ir.index.format.texts.StoredDocument`.
        """
        if not isinstance(queries, Sequence):
            raise wrong_type("queries", "a list of Query objects", queries)
        for query in queries:
            if not isinstance(query, Query):
                raise wrong_type("queries", "Query objects", query)
        selection = self.selection(within, filter)
        request = self._request(
            hits, mode, remove_query, raw_impacts, fusion, fusion_depth, selection
        )
        return self._answer(queries, request)

    def _request(
        self,
        hits: int,
        mode: str | None,
        remove_query: bool,
        raw_impacts: bool,
        fusion: Fusion | None,
        fusion_depth: int | None,
        selection: Selection,
    ) -> Request:
        """The only place where a request is made: it always has the rows to search, without deleted ones."""
        # The parts that a sum takes. With BM25 a single part of the index is enough.
        available = MODES["hybrid"]
        if self.settings.bm25_index:
            available = tuple(self._opened.parts)
        candidates = hits
        shown = None
        if self.settings.rerank and not fusion:
            # As many as the reranker reads, also if fewer are shown: it may raise one from below.
            candidates = max(hits, self.settings.rerank_depth)
            shown = hits
        request = Request(
            mode=mode or self.mode,
            hits=candidates,
            remove_query=remove_query,
            raw_impacts=raw_impacts,
            fusion=fusion,
            fusion_depth=hits if fusion_depth is None else fusion_depth,
            available=available,
            allowed=selection.allowed,
            condition=selection.condition,
            shown=shown,
        )
        self._check(request)
        return request

    def _answer_alone(self, batch: list[Pending[tuple[Request, str], Answer]]) -> None:
        """Answers to texts of one request, each with the bits of a call of its own."""
        queries = [Query("", pending.work[1]) for pending in batch]
        for pending, answer in zip(batch, self._answer(queries, batch[0].work[0], 1), strict=True):
            pending.future.set_result(answer)

    def _answer(
        self, queries: Sequence[Query], request: Request, group: int = GROUP
    ) -> Iterator[Answer]:
        """Answers batch by batch; ``group`` texts are encoded together."""
        texts = [query.text for query in queries if query.text.strip()]
        encodings = self._encodings(texts, group, vectors="cls" in request.parts)
        for start in range(0, len(queries), self.settings.batch_size):
            batch = queries[start : start + self.settings.batch_size]
            nonblank = [query for query in batch if query.text.strip()]
            encoded = encodings.take([query.text for query in nonblank])
            ranker = Ranker(self._opened.for_rows(self.settings), self.settings, request, encoded)
            ranked = iter(ranker.rank(nonblank))
            for query in batch:
                answer = next(ranked) if query.text.strip() else ranker.blank(query)
                if request.shown is not None:
                    answer = self._rerank(answer, request.shown)
                yield answer

    def _rerank(self, answer: Answer, hits: int) -> Answer:
        settings = self.settings
        scorer = self._opened.reranker(settings, self.encoder)
        assert scorer is not None
        seconds = settings.rerank_seconds
        if seconds is None:
            seconds = RERANK_SECONDS
        weight = settings.rerank_weight
        return reranked(answer, scorer, self._read, settings.rerank_depth, seconds, hits, weight)

    @checked
    def load_reranker(self) -> None:
        """Compute the scores of a reranker in torch from now on, if the settings name one that needs none: it takes a
        second to load, and then a third of the time for each query."""
        reranker = self._opened.reranker(self.settings, self.encoder)
        if isinstance(reranker, LazyCrossEncoder):
            reranker.whole()

    def _read(self, docid: str) -> Document:
        document = self.document(docid)
        # `OpenedIndex.reranker` refuses an index without texts.
        assert document is not None
        return Document(docid, document.text, document.title)

    @checked
    def selection(
        self,
        within: str | Iterable[str] | Selection | None = None,
        filter: DocumentFilter | None = None,
    ) -> Selection:
        """The documents to which a search is restricted, for several calls of :meth:`answers`; arguments as there."""
        if isinstance(within, Selection):
            if filter is not None:
                raise UsageError(
                    "give the filter to Searcher.selection, with the ids, and not beside its result"
                )
            return within
        if isinstance(within, str):
            within = [within]
        # The record of an index has no rows; its server selects them.
        if not self.index.segments and (within is not None or filter is not None):
            server = self.server
            if server:
                return select_on(server, within, filter)
        return select(self._opened, within, filter)

    @checked
    def explain(self, query: str, docid: str) -> Explanation:
        """The composition of one document's score. Raises :class:`UnknownName` for an unknown id."""
        return self.explain_all(query, [docid])[0]

    @checked
    def explain_all(self, query: str, docids: Sequence[str]) -> list[Explanation]:
        """:meth:`explain` for several documents; the query is encoded once."""
        query = usable(query)
        (encoded,) = self._encodings([query]).take([query])
        names = self._query_words(self.encoder, query).names
        return explain(
            self._opened.for_rows(self.settings), self.settings, query, encoded, docids, names
        )

    @checked
    def row(self, docid: str) -> int | None:
        """The row of a document; None if the index does not contain it."""
        (row,) = self._opened.for_rows(self.settings).rows([docid]).tolist()
        if row < 0:
            return None
        return row

    @checked
    def document(self, docid: str) -> StoredDocument | None:
        """Title, text and metadata of a document; None if the index does not store them.

        Raises :class:`UnknownName` for an unknown id, :class:`IndexMismatch` for a damaged store.
        """
        opened = self._opened.for_rows(self.settings, texts=True)
        texts = opened.folder.texts
        if texts is None:
            return None
        (row,) = opened.known_rows([docid]).tolist()
        return texts.get(row)

    @checked
    def describe(
        self,
        query: str,
        docids: Sequence[str],
        documents: Mapping[str, Document | StoredDocument] | None = None,
        longest: int = SNIPPET,
    ) -> list[DescribedHit]:
        """The words behind each document's score and the best passage of its text.

        ``documents``: docid -> title and text; None takes those that the index stores. ``longest``: characters of a
        passage. The query is encoded once.
        Raises :class:`UnknownName` for an unknown id.
        """
        query = usable(query)
        (encoded,) = self._encodings([query]).take([query])
        words = self._query_words(self.encoder, query)
        opened = self._opened.for_rows(self.settings, texts=documents is None)
        if documents is None:
            rows = opened.known_rows(docids).tolist()
            texts = opened.folder.texts
            documents = {}
            if texts:
                documents = dict(zip(docids, texts.get_all(rows), strict=True))
        hits = []
        for explanation in explain(opened, self.settings, query, encoded, docids):
            document = documents.get(explanation.docid)
            hits.append(describe(words, explanation, document, longest))
        return hits

    def _encodings(
        self, texts: list[str], group: int = GROUP, *, vectors: bool = True
    ) -> QueryEncodings:
        """The encodings of texts; without ``vectors``, these are left out if that saves the model's work."""
        settings = self.settings
        encoder = self.encoder
        last_query = self._last_query
        if not vectors and self.word_encoder is not None:
            encoder = self.word_encoder
            last_query = LastQuery()
        return QueryEncodings(
            encoder,
            self.index.scale,
            settings.query_terms,
            texts,
            settings.threads,
            group,
            last_query,
        )

    def _check(self, request: Request) -> None:
        lookup("search mode", request.mode, MODES)
        parts = self._opened.parts
        if any(part not in parts for part in request.parts):
            part = "impact part (ot)"
            possible_mode = "impact"
            if "cls" in parts:
                part = "dense part (cls)"
                possible_mode = "dense"
            raise UsageError(
                f"{self.index.path} has only the {part}, which is not enough for {request.name} search; search by "
                f"`{possible_mode}`, or encode the collection with both parts"
            )
        if self.settings.bm25_index and request.name != "hybrid":
            raise UsageError(f"a BM25 index joins hybrid scores only, not {request.name} search")
        for name, number in {"hits": request.hits, "fusion_depth": request.fusion_depth}.items():
            if number < 1:
                raise UsageError(f"`{name}` must be at least 1, got {number}")
        longest = request.fusion_depth if request.fusion else request.hits
        if 0 < self.settings.max_depth < longest:
            raise UsageError(
                f"`max_depth` {self.settings.max_depth} is less than the {longest} requested hits"
            )
        if request.raw_impacts and request.name != "impact":
            raise UsageError(
                "`raw_impacts` applies only with `impact`: other scores are not integers"
            )


def _changed(settings: SearchSettings, changes: Mapping[str, object]) -> SearchSettings:
    """``settings`` with some fields changed. Raises :class:`UsageError` for one that is unknown or cannot be."""
    fields: dict[str, Any] = check_fields(SearchSettings, changes)
    return dataclasses.replace(settings, **fields)


def _reopened(index: Index, source: SearcherSource, settings: SearchSettings) -> Searcher:
    """The searcher of a pickle."""
    return Searcher.open(index, settings=settings, **source._asdict())
