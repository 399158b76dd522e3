"""What the answering thread does with a batch: encode all its texts together, then search, explain and look up.

Searches with the same settings are ranked together, by one call of :meth:`Searcher.answers`.

A batch has one piece of each request (:class:`Search`, :class:`IndexTask`): some of its queries, and as many hits or
items as fit in :data:`SLICE`. A large request asks for its next piece when this one is done, so others go in between,
and a piece of it is a batch alone: a small request waits for one of them at most.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import scipy.sparse as sp

from dupmae_ir.errors import DupmaeError, UnknownName, UsageError
from dupmae_ir.index.filters import Filter
from dupmae_ir.index.format.texts import StoredDocument
from dupmae_ir.registry import suggest
from dupmae_ir.search.exact.ranking import Answer, ListReport
from dupmae_ir.search.query.filters import Selection
from dupmae_ir.search.query.words import SNIPPET
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
Item = TypeVar("Item")
LOG = logging.getLogger("dupmae_ir.serve")
SLICE = 0.02
"""Seconds of a piece of work, besides encoding and ranking; the next hit or item begins in this time, or in the next
piece."""
SMALL = 8
"""Queries of a piece of work."""
MOST_COMPARISONS = 50
"""Comparisons of a condition, each of which looks at all distinct values of a column."""
LIGHT = 16
"""Documents whose explanations take about as long as a query."""
LONG = 256
"""Characters of a query that takes about as long as two short ones."""


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
    """What a search returns for each hit: stored texts, and the strongest ``terms`` words of an explanation or all its
    words with a passage of ``passage`` characters (None = neither)."""

    texts: bool = False
    terms: int | None = None
    passage: int | None = None


@dataclass
class RankedQuery:
    """A ranked query: its answer, and its first hits as they are returned, with their descriptions if these are
    shown."""

    answer: Answer
    result: QueryResult
    described: list[DescribedHit] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether every hit is described."""
        return len(self.result.hits) == len(self.answer.hits)


@dataclass
class Search:
    """Rank documents for some queries."""

    ranking: Ranking
    queries: Sequence[str]
    shown: HitFields
    lists: list[RankedQuery] = field(default_factory=list)  #: of the first queries
    bytes: int = 0
    turns: int = 0

    @property
    def index(self) -> str | None:
        """The name of the index."""
        return self.ranking.name

    @property
    def weight(self) -> int:
        """The number of queries."""
        return len(self.queries)

    @property
    def plain(self) -> bool:
        """Whether a hit is an id and a score alone."""
        return self.shown == HitFields()

    @property
    def large(self) -> bool:
        """Whether there are many queries or hits."""
        hits = self.ranking.hits * len(self.queries)
        return len(self.queries) > SMALL or hits > (1000 if self.plain else 100)

    @property
    def done(self) -> bool:
        """Whether every query is ranked and every hit described."""
        return len(self.lists) == len(self.queries) and all(ranked.done for ranked in self.lists)

    def texts(self, most: int) -> Sequence[str]:
        """The next queries to rank; none while hits of others are left."""
        if not all(ranked.done for ranked in self.lists):
            return ()
        left = self.queries[len(self.lists) :][: min(most, SMALL)]
        lengths = itertools.accumulate(1 + len(text) // LONG for text in left)
        return left[: max(1, sum(length <= SMALL for length in lengths))]

    def advance(self, generation: OpenIndex, until: float) -> None:
        """Describe the next hits; some in any case."""
        for ranked in self.lists:
            while not ranked.done:
                self.bytes += describe_hit(generation, ranked, self.shown)
                if time.monotonic() > until:
                    return


@dataclass(frozen=True)
class SearchResult:
    """The result of a :class:`Search`."""

    generation: OpenIndex
    mode: str
    lists: list[RankedQuery]

    @property
    def results(self) -> list[QueryResult]:
        """The results of all queries."""
        return [ranked.result for ranked in self.lists]


@dataclass
class IndexTask(Generic[Item, T]):
    """Any other work with one generation of an index: ``run`` is called with ``step`` of the ``items`` at a time.
    ``query``: the one that it encodes. ``light``: how many items weigh as much as a query."""

    plain: ClassVar[bool] = False

    index: str | None
    run: Callable[[OpenIndex, Sequence[Item]], list[T]]
    items: Sequence[Item]
    step: int = 1
    query: str | None = None
    light: int = 1
    results: list[T] = field(default_factory=list)
    bytes: int = 0
    turns: int = 0

    @property
    def weight(self) -> int:
        """The number of items."""
        return max(1, len(self.items) // self.light)

    @property
    def large(self) -> bool:
        """Whether there are many items."""
        return len(self.items) > self.light

    @property
    def done(self) -> bool:
        """Whether every item has its result."""
        return len(self.results) == len(self.items)

    def texts(self, most: int) -> Sequence[str]:
        """The query."""
        return [self.query][:most] if self.query is not None else ()

    def advance(self, generation: OpenIndex, until: float) -> None:
        """Run it for the next items; once in any case."""
        while not self.done:
            start = len(self.results)
            self.results += self.run(generation, self.items[start : start + self.step])
            if time.monotonic() > until:
                return


Work = Search | IndexTask[Any, Any]


class WorkPiece(NamedTuple):
    """The next piece of a request, in a generation of an index; ``texts``: the queries that it encodes."""

    work: Work
    generation: OpenIndex
    texts: Sequence[str]

    @property
    def weight(self) -> int:
        """The number of queries; a long one counts as several."""
        return sum(1 + len(text) // LONG for text in self.texts) or 1


class Answerer:
    """Computes batches of pieces."""

    def __init__(self, catalogue: OpenIndexes) -> None:
        self.catalogue = catalogue
        self.certified = self.uncertified = 0  #: lists so far

    def __call__(self, batch: list[Pending[WorkPiece, None]]) -> None:
        """Set the future of every piece of the batch."""
        with self.catalogue.lock:
            self.catalogue.close_unused()
            generations = {id(p.work.generation): p.work.generation for p in batch}.values()
            for generation in generations:
                texts = [
                    text for p in batch if p.work.generation is generation for text in p.work.texts
                ]
                if nonblank := [text for text in texts if text.strip()]:
                    generation.encoder.encode_queries(
                        nonblank, generation.searcher.settings.query_terms
                    )
            searches: dict[tuple[int, Ranking], list[Pending[WorkPiece, None]]] = {}
            for pending in batch:
                if pending.work.texts and isinstance(work := pending.work.work, Search):
                    searches.setdefault((id(pending.work.generation), work.ranking), []).append(
                        pending
                    )
            for (_, ranking), group in searches.items():
                with _failing([pending.future for pending in group]):
                    self._rank(ranking, [pending.work for pending in group])
            until = time.monotonic() + SLICE
            # What has had the fewest turns goes first, and of these, what has nothing to describe.
            left = [pending for pending in batch if not pending.future.done()]
            left.sort(key=lambda pending: (pending.work.work.turns, not pending.work.work.plain))
            for number, pending in enumerate(left):
                with _failing([pending.future]):
                    if number == 0 or time.monotonic() < until:
                        pending.work.work.turns += 1
                        pending.work.work.advance(pending.work.generation, until)
                    pending.future.set_result(None)
            for generation in generations:
                generation.encoder.trim()

    def _rank(self, ranking: Ranking, group: Sequence[WorkPiece]) -> None:
        """Rank the queries of searches with the same settings."""
        generation, texts = group[0].generation, [text for piece in group for text in piece.texts]
        queries = [Query(str(number), text) for number, text in enumerate(texts)]
        within = selected(generation, ranking.within, ranking.filter)
        answers = iter(
            list(generation.searcher.answers(queries, ranking.hits, ranking.mode, within=within))
        )
        for piece in group:
            for answer in (next(answers) for _ in piece.texts):
                assert isinstance(piece.work, Search)
                assert answer.report
                result = QueryResult(
                    query=answer.query.text, hits=[], certificate=certificate(answer.report)
                )
                piece.work.lists.append(RankedQuery(answer, result))
                self.certified += answer.report.exact
                self.uncertified += not answer.report.exact


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


def selected(
    generation: OpenIndex, within: Sequence[str] | None, condition: str | None
) -> Selection:
    """The documents to search. Raises :class:`WrongFilter`, or :class:`Unavailable` for an index without metadata."""
    texts = generation.searcher.index.texts
    if condition is not None and texts is None:
        raise Unavailable(f"index {generation.name!r} stores no metadata to filter by")
    if condition is not None and texts is not None:
        try:
            (parsed := Filter.parse(condition)).check(texts.columns)
            if parsed.comparisons > MOST_COMPARISONS:
                raise UsageError(
                    f"`filter`: more than {MOST_COMPARISONS} comparisons; `in` takes a list of values"
                )
        except UsageError as e:
            raise WrongFilter(str(e).removeprefix("`filter`").lstrip(",: ")) from None
    return generation.searcher.selection(within, condition)


def describe_hit(generation: OpenIndex, ranked: RankedQuery, shown: HitFields) -> int:
    """Add the next hit of a list to its result, and return about how many bytes it has."""
    hit, explanation = ranked.answer.hits[len(ranked.result.hits)], None
    if shown.passage is not None or shown.terms is not None:
        text, longest = ranked.answer.query.text, shown.passage or SNIPPET
        ranked.described += generation.searcher.describe(text, [hit.docid], longest=longest)
        explanation = shares(ranked.described[-1], shown.terms)
    document = (
        stored(generation, hit.docid) if shown.texts or generation.searcher.index.files else None
    )
    made = SearchHit(
        rank=len(ranked.result.hits) + 1,
        docid=hit.docid,
        score=hit.score,
        explanation=explanation,
        document=document if shown.texts else None,
        **in_file(document),
    )
    ranked.result.hits.append(made)
    size = len(document.text) if document and shown.texts else 0
    return size + 200 + 100 * len(explanation.terms if explanation else ())


def in_file(document: StoredText | None) -> dict[str, Any]:
    """The fields of :class:`~dupmae_ir.serve.schemas.InFile`."""
    place = Place.of(document.metadata) if document else None
    return place._asdict() if place else {}


def certificate(report: ListReport) -> Certificate:
    """The certificate of a list, with the reason where it is missing."""
    why = (
        None
        if report.exact
        else "the candidate lists are too short, or the dense index is approximate"
    )
    return Certificate(why_not=why, scored=report.candidates, **vars(report))


def shares(hit: DescribedHit, max_terms: int | None = None) -> Explained:
    """The explanation of a hit with its ``max_terms`` strongest words."""
    why, words = hit.explanation, hit.words[:max_terms]
    terms = [
        Term(term=w.word, share=w.share, expansion=w.expansion, text_words=list(w.text_words))
        for w in words
    ]
    return Explained(
        **{**vars(why), "terms": terms}, cls_share=cls_share(why), matched_terms=len(hit.words)
    )


def cls_share(why: Explanation) -> float | None:
    """The part of the positive summands that [CLS] adds; None without both parts or without a positive one."""
    if why.dense is None or why.impact is None:
        return None
    scores = (why.dense, why.impact, why.bm25 or 0.0)
    parts = [max(0.0, weight * score) for weight, score in zip(why.weights, scores, strict=True)]
    return parts[0] / sum(parts) if sum(parts) > 0 else None


def stored(generation: OpenIndex, docid: str) -> StoredText | None:
    """A document's stored text; None if the index stores no texts or has no such document."""
    try:
        found = generation.searcher.document(docid)
    except UnknownName:
        found = None
    if found is None:
        return None
    return StoredText(
        docid=docid, title=found.title, text=found.text, metadata=dict(found.metadata)
    )


def document(generation: OpenIndex, docid: str) -> StoredText:
    """A document's stored text. Raises :class:`NotFound`."""
    if generation.searcher.row(docid) is None:
        raise NotFound(f"index {generation.name!r} has no document of this id")
    found = stored(generation, docid)
    if found is None:
        raise NotFound(
            f"index {generation.name!r} stores no texts; encode the collection with `store_texts`"
        )
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
    return [
        StoredText(docid=p.docid, title=p.title, text=p.text, metadata=dict(p.metadata))
        for p in some
    ]


def file_text(generation: OpenIndex, path: str, start: int, most: int) -> FileText:
    """``most`` characters of a file's text from ``start``, put together from its passages, which overlap. Raises
    :class:`NotFound`."""
    passages, text, end = passages_of(generation, path), "", 0
    for passage in passages:
        first, last = int(str(passage.metadata["start"])), int(str(passage.metadata["end"]))
        text += ("\n" if 0 < end < first else "") + passage.text[max(0, end - first) :]
        end = max(end, last)
    rest = start + most if len(text) > start + most else None
    return FileText(
        path=path, text=text[start : start + most], passages=len(passages), next_start=rest
    )


def explained(generation: OpenIndex, query: str, docids: Sequence[str]) -> list[Explained]:
    """The composition of each document's score. Raises :class:`NotFound` for an unknown id."""
    if unknown := [docid for docid in docids if generation.searcher.row(docid) is None]:
        raise NotFound(f"index {generation.name!r} has no document of id {unknown[0][:200]!r}")
    return list(map(shares, generation.searcher.describe(query, docids)))


def encoded(
    generation: OpenIndex, texts: Sequence[str], documents: bool, vectors: bool
) -> list[Encoding]:
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
