"""What the answering thread does with a batch: encode all its texts together, then search, explain and look up.

Searches with the same settings are ranked together, by one call of :meth:`Searcher.answers`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import scipy.sparse as sp

from dupmae_ir.errors import DupmaeError, UsageError
from dupmae_ir.index.format.texts import StoredDocument
from dupmae_ir.registry import suggest
from dupmae_ir.search.exact.ranking import Answer, ListReport
from dupmae_ir.search.query.filters import Filter, Selection
from dupmae_ir.search.query_batching import Pending
from dupmae_ir.search.view.naming import Place
from dupmae_ir.search.view.results import DescribedHit, Explanation
from dupmae_ir.serve.catalogue import CachingLexicalEncoder, OpenIndex, OpenIndexes
from dupmae_ir.serve.schemas import (
    Certificate,
    Encoding,
    Explained,
    FileText,
    QueryResult,
    SearchHit,
    StoredText,
    Term,
    WeightedTerm,
)
from dupmae_ir.types import Query

T = TypeVar("T")
LOG = logging.getLogger("dupmae_ir.serve")


class NotFound(DupmaeError):
    """No document of that id, or no stored texts."""


class Unavailable(DupmaeError):
    """The index lacks what a request needs."""


class WrongFilter(DupmaeError):
    """A condition that cannot be read, or names metadata that no document has."""


class Ranking(NamedTuple):
    """Index, mode and number of hits: settings that searches of one batch must share to be ranked together."""

    name: str | None
    mode: str | None
    hits: int
    within: tuple[str, ...] | None = None
    filter: str | None = None


class HitFields(NamedTuple):
    """What a search returns for each hit: stored texts, the strongest ``terms`` of an explanation, and its words with a
    passage of ``passage`` characters (None = neither)."""

    texts: bool = False
    terms: int | None = None
    passage: int | None = None


@dataclass(frozen=True)
class Search:
    """Rank documents for some queries."""

    ranking: Ranking
    texts: Sequence[str]
    shown: HitFields

    @property
    def index(self) -> str | None:
        """The name of the index."""
        return self.ranking.name


@dataclass(frozen=True)
class SearchResult:
    """The result of a :class:`Search`."""

    generation: OpenIndex
    mode: str
    results: list[QueryResult]
    described: list[list[DescribedHit]]


@dataclass(frozen=True)
class IndexTask(Generic[T]):
    """Any other work with one generation of an index; ``texts``: queries that it encodes."""

    index: str | None
    run: Callable[[OpenIndex], T]
    texts: Sequence[str] = ()


class Answerer:
    """Answers batches from the current generations of a catalogue."""

    def __init__(self, catalogue: OpenIndexes) -> None:
        self.catalogue = catalogue
        self.certified = self.uncertified = 0  #: lists so far

    def __call__(self, batch: list[Pending[Search | IndexTask[Any], Any]]) -> None:
        """Set the future of every request of the batch."""
        with self.catalogue.lock:
            pinned: dict[str | None, OpenIndex] = {}
            for waiting in batch:
                work = waiting.work
                with _failing([waiting.future]):
                    if work.index not in pinned:
                        pinned[work.index] = self.catalogue.get(work.index)
                    modes = pinned[work.index].modes
                    if isinstance(work, Search) and work.ranking.mode not in (None, *modes):
                        raise Unavailable(f"index {pinned[work.index].name!r} has only: {', '.join(modes)}")
            left = [waiting for waiting in batch if not waiting.future.done()]
            for generation in {id(g): g for g in pinned.values()}.values():
                texts = [text for w in left if pinned[w.work.index] is generation for text in w.work.texts]
                if nonblank := [text for text in texts if text.strip()]:
                    generation.encoder.encode_queries(nonblank, generation.searcher.settings.query_terms)
            searches: dict[Ranking, list[tuple[Future[SearchResult], Search]]] = {}
            for waiting in left:
                work = waiting.work
                if isinstance(work, Search):
                    searches.setdefault(work.ranking, []).append((waiting.future, work))
                    continue
                with _failing([waiting.future]):
                    waiting.future.set_result(work.run(pinned[work.index]))
            for ranking, group in searches.items():
                self._search(pinned[ranking.name], ranking, group)
            for generation in pinned.values():
                generation.encoder.trim()

    def _search(
        self, generation: OpenIndex, ranking: Ranking, group: list[tuple[Future[SearchResult], Search]]
    ) -> None:
        """Rank the queries of searches with the same settings."""
        with _failing([future for future, _ in group]):
            texts = [text for _, search in group for text in search.texts]
            queries = [Query(str(number), text) for number, text in enumerate(texts)]
            within = selected(generation, ranking.within, ranking.filter)
            answers = iter(list(generation.searcher.answers(queries, ranking.hits, ranking.mode, within=within)))
            for future, search in group:
                own = [next(answers) for _ in search.texts]
                with _failing([future]):
                    future.set_result(self._result(generation, search, own))

    def _result(self, generation: OpenIndex, search: Search, answers: list[Answer]) -> SearchResult:
        described = [descriptions(generation, answer, search.shown) for answer in answers]
        results = [
            query_result(generation, answer, search.shown, about)
            for answer, about in zip(answers, described, strict=True)
        ]
        exact = sum(result.certificate.exact for result in results)
        self.certified += exact
        self.uncertified += len(results) - exact
        return SearchResult(generation, search.ranking.mode or generation.searcher.mode, results, described)


@contextmanager
def _failing(futures: Sequence[Future[Any]]) -> Iterator[None]:
    """An error in the block is the result of the futures that have none yet."""
    try:
        yield
    except Exception as e:
        if not isinstance(e, DupmaeError):
            LOG.exception("a request failed")
        for future in futures:
            if not future.done():
                future.set_exception(e)


def selected(generation: OpenIndex, within: Sequence[str] | None, condition: str | None) -> Selection:
    """The documents to search. Raises :class:`WrongFilter`, or :class:`Unavailable` for an index without metadata."""
    texts = generation.searcher.index.texts
    if condition is not None and texts is None:
        raise Unavailable(f"index {generation.name!r} stores no metadata to filter by")
    if condition is not None and texts is not None:
        try:
            Filter.parse(condition).check([texts])
        except UsageError as e:
            raise WrongFilter(str(e).removeprefix("`filter`").lstrip(",: ")) from None
    return generation.searcher.selection(within, condition)


def descriptions(generation: OpenIndex, answer: Answer, shown: HitFields) -> list[DescribedHit]:
    """The words and the passage of each hit, if they are shown."""
    if shown.passage is None or not answer.hits:
        return []
    docids = [hit.docid for hit in answer.hits]
    return generation.searcher.describe(answer.query.text, docids, longest=shown.passage)


def query_result(
    generation: OpenIndex, answer: Answer, shown: HitFields, described: Sequence[DescribedHit] = ()
) -> QueryResult:
    """An answer as the API returns it. ``described``: its hits with their explanations, if they are known already."""
    docids = [hit.docid for hit in answer.hits]
    explanations: Sequence[Explanation | None] = [hit.explanation for hit in described] or [None] * len(docids)
    if shown.terms is not None and docids and not described:
        explanations = generation.searcher.explain_all(answer.query.text, docids)
    known = shown.texts or generation.searcher.index.files
    documents = [stored(generation, docid) if known else None for docid in docids]
    hits = [
        SearchHit(
            rank=rank,
            docid=hit.docid,
            score=hit.score,
            explanation=shares(why, shown.terms) if why else None,
            document=document if shown.texts else None,
            **in_file(document),
        )
        for rank, (hit, why, document) in enumerate(zip(answer.hits, explanations, documents, strict=True), start=1)
    ]
    assert answer.report
    return QueryResult(query=answer.query.text, hits=hits, certificate=certificate(answer.report))


def in_file(document: StoredText | None) -> dict[str, Any]:
    """The fields of :class:`~dupmae_ir.serve.schemas.InFile`."""
    place = Place.of(document.metadata) if document else None
    return place._asdict() if place else {}


def certificate(report: ListReport) -> Certificate:
    """The certificate of a list, with the reason where it is missing."""
    why = None if report.exact else "the candidate lists are too short, or the dense index is approximate"
    return Certificate(why_not=why, scored=report.candidates, **vars(report))


def shares(why: Explanation, max_terms: int | None = None) -> Explained:
    """An explanation with its ``max_terms`` strongest terms."""
    terms = [Term(**vars(term)) for term in why.terms[:max_terms]]
    return Explained(**{**vars(why), "terms": terms}, cls_share=cls_share(why), matched_terms=len(why.terms))


def cls_share(why: Explanation) -> float | None:
    """The part of the positive summands that [CLS] adds; None without both parts or without a positive one."""
    if why.dense is None or why.impact is None:
        return None
    scores = (why.dense, why.impact, why.bm25 or 0.0)
    parts = [max(0.0, weight * score) for weight, score in zip(why.weights, scores, strict=True)]
    return parts[0] / sum(parts) if sum(parts) > 0 else None


def stored(generation: OpenIndex, docid: str) -> StoredText | None:
    """A document's stored text; None if the index stores no texts or has no such document."""
    row, texts = generation.searcher.row(docid), generation.searcher.index.texts
    if row is None or texts is None:
        return None
    found = texts.get(row)
    return StoredText(docid=docid, title=found.title, text=found.text, metadata=dict(found.metadata))


def document(generation: OpenIndex, docid: str) -> StoredText:
    """A document's stored text. Raises :class:`NotFound`."""
    if generation.searcher.row(docid) is None:
        raise NotFound(f"index {generation.name!r} has no document of this id")
    found = stored(generation, docid)
    if found is None:
        raise NotFound(f"index {generation.name!r} stores no texts; encode the collection with `store_texts`")
    return found


def passages_of(generation: OpenIndex, path: str) -> list[StoredDocument]:
    """The passages of a file in their order. Raises :class:`NotFound`."""
    index = generation.searcher.index
    if index.texts is None or path not in index.files:
        near = suggest(path, index.files) if index.files else " It was not made of files."
        raise NotFound(f"index {generation.name!r} has no file {path[:200]!r}.{near}")
    documents = index.texts.get_all(index.files[path].tolist())
    return sorted(documents, key=lambda document: int(str(document.metadata["start"])))


def with_neighbours(generation: OpenIndex, docid: str, count: int) -> list[StoredText]:
    """A stored document after up to ``count`` passages before it in its file, and before as many. Raises
    :class:`NotFound`."""
    found = document(generation, docid)
    place = Place.of(found.metadata)
    if not count or place is None or place.path not in generation.searcher.index.files:
        return [found]
    passages = passages_of(generation, place.path)
    position = [passage.docid for passage in passages].index(docid)
    some = passages[max(0, position - count) : position + count + 1]
    return [StoredText(docid=p.docid, title=p.title, text=p.text, metadata=dict(p.metadata)) for p in some]


def file_text(generation: OpenIndex, path: str, start: int, most: int) -> FileText:
    """``most`` characters of a file's text from ``start``, put together from its passages, which overlap. Raises
    :class:`NotFound`."""
    passages, text, end = passages_of(generation, path), "", 0
    for passage in passages:
        first, last = int(str(passage.metadata["start"])), int(str(passage.metadata["end"]))
        text += ("\n" if 0 < end < first else "") + passage.text[max(0, end - first) :]
        end = max(end, last)
    rest = start + most if len(text) > start + most else None
    return FileText(path=path, text=text[start : start + most], passages=len(passages), next_start=rest)


def explained(generation: OpenIndex, query: str, docids: Sequence[str]) -> list[Explained]:
    """The composition of each document's score. Raises :class:`NotFound` for an unknown id."""
    if unknown := [docid for docid in docids if generation.searcher.row(docid) is None]:
        raise NotFound(f"index {generation.name!r} has no document of id {unknown[0][:200]!r}")
    return [shares(why) for why in generation.searcher.explain_all(query, docids)]


def encoded(generation: OpenIndex, texts: Sequence[str], documents: bool, vectors: bool) -> list[Encoding]:
    """The representation of each text, as queries or as documents."""
    encoder = generation.encoder
    if documents:
        found = encoder.encode_documents(texts)
    else:
        found = encoder.encode_queries(texts, generation.searcher.settings.query_terms)
    return [
        Encoding(
            text=text,
            vector=found.cls[row].tolist() if found.cls is not None and vectors else None,
            terms=None if found.ot is None else weighted_terms(generation, text, found.ot[[row]]),
        )
        for row, text in enumerate(texts)
    ]


def weighted_terms(generation: OpenIndex, text: str, row: sp.csr_matrix) -> list[WeightedTerm]:
    """The (1, V) term weights of ``text``, strongest first."""
    encoder, order = generation.encoder, np.argsort(-row.data, kind="stable")
    terms = [(encoder.terms or [])[term] for term in row.indices[order].tolist()]
    names = encoder.term_names(text) if isinstance(encoder, CachingLexicalEncoder) else {}
    pairs = zip(terms, row.data[order].tolist(), strict=True)
    return [WeightedTerm(term=names.get(term, term), weight=weight) for term, weight in pairs]
