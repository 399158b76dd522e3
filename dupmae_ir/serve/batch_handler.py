"""What the answering thread does with a batch: encode all its texts together, then search, explain and look up.

Searches with the same settings are ranked together, by one call of :meth:`Searcher.answers`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import scipy.sparse as sp

from dupmae_ir.errors import DupmaeError, UsageError
from dupmae_ir.search.exact.ranking import Answer, ListReport
from dupmae_ir.search.query.filters import Filter
from dupmae_ir.search.query.selection import Selection
from dupmae_ir.search.query_batching import Pending
from dupmae_ir.search.view.explain import DescribedHit, Explanation
from dupmae_ir.serve.catalogue import OpenIndex, OpenIndexes
from dupmae_ir.serve.schemas import (
    Certificate,
    Encoding,
    Explained,
    QueryResult,
    SearchHit,
    Shares,
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


NOTHING_SHOWN = HitFields()


@dataclass(frozen=True)
class Search:
    """Rank documents for some queries."""

    ranking: Ranking
    queries: Sequence[str]
    shown: HitFields = NOTHING_SHOWN

    @property
    def weight(self) -> int:
        """Number of queries."""
        return len(self.queries)


@dataclass(frozen=True)
class SearchResult:
    """The result of a :class:`Search`."""

    generation: OpenIndex
    mode: str
    results: list[QueryResult]
    described: list[list[DescribedHit]]


@dataclass(frozen=True)
class IndexTask:
    """Any other work with one generation of an index; ``texts``: queries that it encodes."""

    index: str | None
    run: Callable[[OpenIndex], Any]
    texts: Sequence[str] = ()

    @property
    def weight(self) -> int:
        """Number of queries, at least 1."""
        return max(1, len(self.texts))


class Answerer:
    """Answers batches from the current generations of a catalogue."""

    def __init__(self, catalogue: OpenIndexes) -> None:
        self.catalogue = catalogue
        self.certified = self.uncertified = 0  #: lists so far

    def __call__(self, batch: list[Pending[Any, Any]]) -> None:
        """Set the future of every request of the batch."""
        with self.catalogue.lock:
            pinned: dict[str | None, OpenIndex] = {}
            for waiting in batch:
                _settle([waiting.future], partial(self._pin, waiting.work, pinned), keep=True)
            left = [waiting for waiting in batch if not waiting.future.done()]
            for generation in {id(g): g for g in pinned.values()}.values():
                own = [w.work for w in left if pinned[_index_of(w.work)] is generation]
                _encode(generation, [text for work in own for text in _texts(work)])
            self._search([waiting for waiting in left if isinstance(waiting.work, Search)], pinned)
            for waiting in left:
                if isinstance(waiting.work, IndexTask):
                    _settle([waiting.future], partial(waiting.work.run, pinned[waiting.work.index]))
            for generation in pinned.values():
                generation.encoder.trim()

    def _pin(self, work: Search | IndexTask, pinned: dict[str | None, OpenIndex]) -> None:
        index = _index_of(work)
        if index not in pinned:
            pinned[index] = self.catalogue.get(index)
        generation, mode = pinned[index], work.ranking.mode if isinstance(work, Search) else None
        if mode is not None and mode not in generation.modes:
            raise Unavailable(f"index {generation.name!r} has only: {', '.join(generation.modes)}")

    def _search(self, searches: list[Pending[Any, Any]], pinned: dict[str | None, OpenIndex]) -> None:
        groups: dict[Ranking, list[Pending[Any, Any]]] = {}
        for waiting in searches:
            groups.setdefault(waiting.work.ranking, []).append(waiting)
        for ranking, group in groups.items():
            self._search_group(pinned[ranking.name], ranking, group)

    def _search_group(self, generation: OpenIndex, ranking: Ranking, group: list[Pending[Any, Any]]) -> None:
        found = _settle([w.future for w in group], lambda: _ranked(generation, ranking, group), keep=True)
        if found is not None:
            answers = iter(found)
            for waiting in group:
                own = [next(answers) for _ in waiting.work.queries]
                _settle([waiting.future], partial(self._found, generation, waiting.work, own))

    def _found(self, generation: OpenIndex, work: Search, answers: list[Answer]) -> SearchResult:
        mode = work.ranking.mode or generation.searcher.mode
        described = [descriptions(generation, answer, work.shown) for answer in answers]
        results = [
            query_result(generation, answer, work.shown, about)
            for answer, about in zip(answers, described, strict=True)
        ]
        exact = sum(result.certificate.exact for result in results)
        self.certified += exact
        self.uncertified += len(results) - exact
        return SearchResult(generation, mode, results, described)


def _index_of(work: Search | IndexTask) -> str | None:
    return work.ranking.name if isinstance(work, Search) else work.index


def _texts(work: Search | IndexTask) -> Sequence[str]:
    return work.queries if isinstance(work, Search) else work.texts


def _encode(generation: OpenIndex, texts: list[str]) -> None:
    nonblank = [text for text in texts if text.strip()]
    if nonblank:
        generation.encoder.encode_queries(nonblank, generation.searcher.settings.query_terms)


def _ranked(generation: OpenIndex, ranking: Ranking, group: list[Pending[Any, Any]]) -> list[Answer]:
    texts = [text for waiting in group for text in waiting.work.queries]
    queries = [Query(str(number), text) for number, text in enumerate(texts)]
    selection = selected(generation, ranking.within, ranking.filter)
    return list(generation.searcher.answers(queries, ranking.hits, ranking.mode, within=selection))


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


def _settle(futures: Iterable[Future[Any]], run: Callable[[], T], keep: bool = False) -> T | None:
    """Run and set the futures: to the result unless ``keep``, or to the exception."""
    try:
        result = run()
    except Exception as e:
        if not isinstance(e, DupmaeError):
            LOG.exception("a request failed")
        for future in futures:
            future.set_exception(e)
        return None
    if not keep:
        for future in futures:
            future.set_result(result)
    return result


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
    hits = [
        SearchHit.model_construct(
            rank=rank,
            docid=hit.docid,
            score=hit.score,
            explanation=shares(why, shown.terms) if why else None,
            document=stored(generation, hit.docid) if shown.texts else None,
        )
        for rank, (hit, why) in enumerate(zip(answer.hits, explanations, strict=True), start=1)
    ]
    assert answer.report
    return QueryResult.model_construct(query=answer.query.text, hits=hits, certificate=certificate(answer.report))


def certificate(report: ListReport) -> Certificate:
    """The certificate of a list, with the reason where it is missing."""
    why = None if report.exact else "the candidate lists are too short, or the dense index is approximate"
    return Certificate.model_construct(
        exact=why is None,
        why_not=why,
        kth=report.kth,
        bound=report.bound,
        scored=report.candidates,
        depth_dense=report.depth_dense,
        depth_impact=report.depth_impact,
        depth_bm25=report.depth_bm25,
        depth_sum=report.depth_sum,
    )


def shares(why: Explanation, most: int | None = None) -> Shares:
    """An explanation with its ``most`` strongest terms."""
    return Shares.model_construct(
        dense=why.dense,
        impact=why.impact,
        bm25=why.bm25,
        cls_share=cls_share(why),
        matched_terms=len(why.terms),
        terms=[
            Term.model_construct(
                term=t.term, query_weight=t.query_weight, document_weight=t.document_weight, share=t.share
            )
            for t in why.terms[:most]
        ],
    )


def cls_share(why: Explanation) -> float | None:
    """The part of the positive summands that [CLS] adds; None without both parts or without a positive one."""
    if why.dense is None or why.impact is None:
        return None
    parts = [max(0.0, part) for part in (why.dense, why.impact, why.bm25 or 0.0)]
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


def explained(generation: OpenIndex, query: str, docids: Sequence[str]) -> list[Explained]:
    """The composition of each document's score. Raises :class:`NotFound` for an unknown id."""
    if unknown := [docid for docid in docids if generation.searcher.row(docid) is None]:
        raise NotFound(f"index {generation.name!r} has no document of id {unknown[0][:200]!r}")
    return [
        Explained.model_construct(docid=why.docid, score=why.score, **vars(shares(why)))
        for why in generation.searcher.explain_all(query, docids)
    ]


def encoded(generation: OpenIndex, texts: Sequence[str], documents: bool, vectors: bool) -> list[Encoding]:
    """The representation of each text, as queries or as documents."""
    encoder = generation.encoder
    if documents:
        found = encoder.encode_documents(texts)
    else:
        found = encoder.encode_queries(texts, generation.searcher.settings.query_terms)
    return [
        Encoding.model_construct(
            text=text,
            vector=found.cls[row].tolist() if found.cls is not None and vectors else None,
            terms=None if found.ot is None else weighted_terms(generation, text, found.ot[[row]]),
        )
        for row, text in enumerate(texts)
    ]


def weighted_terms(generation: OpenIndex, text: str, row: sp.csr_matrix) -> list[WeightedTerm]:
    """The (1, V) term weights of ``text``, strongest first."""
    terms, names = generation.encoder.terms or [], term_names(generation, text)
    return [
        WeightedTerm.model_construct(term=names.get(term, term), weight=float(row.data[place]))
        for place in np.argsort(-row.data, kind="stable").tolist()
        for term in [terms[row.indices[place]]]
    ]


def term_names(generation: OpenIndex, text: str) -> dict[str, str]:
    """Index term -> words of ``text``, for an encoder whose terms are hashes."""
    names = getattr(generation.encoder, "term_names", None)
    return names(text) if names else {}
