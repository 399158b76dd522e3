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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import scipy.sparse as sp
from pydantic import BaseModel

from dupmae_ir.errors import DupmaeError, UnknownName, UsageError
from dupmae_ir.index.filters import Filter
from dupmae_ir.index.format.texts import StoredDocument
from dupmae_ir.models.languages import LANG
from dupmae_ir.registry import suggest
from dupmae_ir.search.exact.hits import RankedHits
from dupmae_ir.search.exact.ranking import Answer, ListReport
from dupmae_ir.search.query.filters import Selection
from dupmae_ir.search.query.words import SNIPPET
from dupmae_ir.search.query_batching import MAX_BATCH, Pending
from dupmae_ir.search.view.naming import Place, language_name
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
from dupmae_ir.types import Hit, MetadataValue, Query

T = TypeVar("T")
Item = TypeVar("Item")
LOG = logging.getLogger("dupmae_ir.serve")
SLICE = 0.02
"""Seconds of a piece of work, besides encoding and ranking; the next hit or item begins in this time, or in the next
piece."""
SMALL = 8
"""Queries of a piece of work."""
MAX_COMPARISONS = 50
"""Comparisons of a condition, each of which looks at all distinct values of a column."""
EXPLANATIONS_PER_QUERY = 16
"""Documents whose explanations take about as long as a query."""
LONG_QUERY_CHARACTERS = 256
"""Characters of a query that takes about as long as two short ones."""
_ARRIVALS = itertools.count()
"""Numbers of requests, in the order of their arrival."""
_SHOWN_METADATA = frozenset((*Place._fields, LANG))
JSON_CLOSING = b"]}"
"""After the items of a list that is the last field of a value."""
MAX_QUERIES = 4
"""Queries of a search that is not large. Those of many clients are answered together, and a plain query with them."""
MAX_PLAIN_HITS = 1000
MAX_DESCRIBED_HITS = 100
"""Hits of a search that is not large: of ids and scores alone, and with texts or explanations."""
MAX_IDS = 1000
"""Ids, to which a search that is not large can be restricted."""
MAX_FILTER_CHARACTERS = 1000
"""Characters of the condition of a search that is not large: they are read in a millisecond."""


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
    """A ranked query and, of its first hits, what is returned: hits in ``result`` or, with ``as_json``, JSON."""

    answer: Answer
    result: QueryResult  #: ``as_json``: without its hits
    as_json: bool = False
    count: int = 0  #: of the hits that are described
    hits_json: bytearray = field(default_factory=bytearray)  #: with commas in between
    described: list[DescribedHit] = field(default_factory=list)  #: if passages are shown

    @property
    def done(self) -> bool:
        """Whether every hit is described."""
        return self.count == len(self.answer.hits)

    def add(self, hit: SearchHit) -> None:
        """Add the next hit."""
        self.count += 1
        if not self.as_json:
            self.result.hits.append(hit)
            return
        if self.hits_json:
            self.hits_json += b","
        self.hits_json += json_of(hit)

    def pieces(self) -> tuple[bytes, bytearray, bytes]:
        """``as_json``: the result with its hits, in pieces."""
        return json_opening(self.result), self.hits_json, JSON_CLOSING


@dataclass
class Search:
    """Rank documents for some queries.

    ``as_json``: each hit is written as JSON at once, since hits with explanations take five times as much memory.
    """

    ranking: Ranking
    queries: Sequence[str]
    shown: HitFields
    as_json: bool = False
    lists: list[RankedQuery] = field(default_factory=list)  #: of the first queries
    bytes: int = 0
    turns: int = 0
    number: int = field(default_factory=_ARRIVALS.__next__)

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
        """Whether there are many queries, hits or ids, or a long condition."""
        max_hits = MAX_PLAIN_HITS if self.plain else MAX_DESCRIBED_HITS
        hits = self.ranking.hits * len(self.queries)
        ids = len(self.ranking.within or ())
        characters = len(self.ranking.filter or "")
        return (
            len(self.queries) > MAX_QUERIES
            or hits > max_hits
            or ids > MAX_IDS
            or characters > MAX_FILTER_CHARACTERS
        )

    @property
    def done(self) -> bool:
        """Whether every query is ranked and every hit described."""
        return len(self.lists) == len(self.queries) and all(ranked.done for ranked in self.lists)

    def texts(self, most: int) -> Sequence[str]:
        """The next queries to rank, at most ``most``; none before all hits of earlier queries are described."""
        if not all(ranked.done for ranked in self.lists):
            return ()
        start = len(self.lists)
        queries = self.queries[start : start + min(most, SMALL)]
        # As many as weigh no more than SMALL short queries together, and one in any case, or the work would never end.
        total_weights = list(itertools.accumulate(map(query_weight, queries)))
        count = sum(weight <= SMALL for weight in total_weights)
        return queries[: max(1, count)]

    def forget(self) -> None:
        """Drop the lists of a request that has failed or been abandoned, even while a piece of it is computed."""
        self.lists.clear()

    def advance(self, generation: OpenIndex, until: float) -> None:
        """Describe the next hits; some in any case."""
        for ranked in self.lists:
            while not ranked.done:
                hit = described_hit(generation, ranked, self.shown)
                self.bytes += _size(hit)
                ranked.add(hit)
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
    number: int = field(default_factory=_ARRIVALS.__next__)

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
        """The query, if there is one."""
        if self.query is None:
            return ()
        return [self.query][:most]

    def forget(self) -> None:
        """As :meth:`Search.forget`."""
        self.results.clear()

    def advance(self, generation: OpenIndex, until: float) -> None:
        """Run it for the next items; once in any case."""
        while not self.done:
            start = len(self.results)
            self.results += self.run(generation, self.items[start : start + self.step])
            if time.monotonic() > until:
                return


Work = Search | IndexTask[Any, Any]


def query_weight(text: str) -> int:
    """How many short queries take as long as this one."""
    return 1 + len(text) // LONG_QUERY_CHARACTERS


class WorkPiece(NamedTuple):
    """The next piece of a request, in a generation of an index; ``texts``: the queries that it encodes."""

    work: Work
    generation: OpenIndex
    texts: Sequence[str]

    @property
    def weight(self) -> int:
        """The number of queries; a long one counts as several."""
        return sum(map(query_weight, self.texts)) or 1

    @property
    def by_words(self) -> bool:
        """Whether the searcher encodes its queries without the model."""
        if not isinstance(self.work, Search):
            return False
        searcher = self.generation.searcher
        mode = self.work.ranking.mode or searcher.mode
        return mode == "impact" and searcher.word_encoder is not None


class Answerer:
    """Computes batches of pieces."""

    def __init__(self, catalogue: OpenIndexes) -> None:
        self.catalogue = catalogue
        self.certified = 0  #: certified lists so far
        self.uncertified = 0  #: lists so far that could not be certified

    def __call__(self, batch: list[Pending[WorkPiece, None]]) -> None:
        """Set the future of every piece of the batch."""
        with self.catalogue.lock:
            self.catalogue.close_unused()
            generations = _generations(batch)
            # Queries first, all together: a product of many rows costs little more than that of one.
            for generation in generations:
                self._encode_queries(generation, batch)
            self._rank_searches(batch)
            self._advance(batch)
            # Only now: every search of the batch has used the encodings.
            for generation in generations:
                generation.encoder.trim()

    def _encode_queries(self, generation: OpenIndex, batch: list[Pending[WorkPiece, None]]) -> None:
        """Encode the queries of one generation together; the searches find them in the encoder's cache."""
        texts: list[str] = []
        for pending in batch:
            piece = pending.work
            if piece.generation is generation and not piece.by_words:
                texts.extend(text for text in piece.texts if text.strip())
        if texts:
            generation.encoder.prepare(texts, generation.searcher.settings.query_terms)

    def _rank_searches(self, batch: list[Pending[WorkPiece, None]]) -> None:
        """Rank the searches of the batch, those with the same settings together."""
        searches: dict[tuple[int, Ranking], list[Pending[WorkPiece, None]]] = {}
        for pending in batch:
            work = pending.work.work
            if pending.work.texts and isinstance(work, Search):
                key = (id(pending.work.generation), work.ranking)
                searches.setdefault(key, []).append(pending)
        for (_, ranking), group in searches.items():
            with _failing([pending.future for pending in group]):
                self._rank(ranking, [pending.work for pending in group])

    def _advance(self, batch: list[Pending[WorkPiece, None]]) -> None:
        """Give the pieces a time slice together; the first gets a turn in any case."""
        until = time.monotonic() + SLICE
        unfinished = [pending for pending in batch if not pending.future.done()]
        unfinished.sort(key=_place_in_line)
        for number, pending in enumerate(unfinished):
            with _failing([pending.future]):
                if number == 0 or time.monotonic() < until:
                    pending.work.work.turns += 1
                    pending.work.work.advance(pending.work.generation, until)
                pending.future.set_result(None)

    def _rank(self, ranking: Ranking, group: Sequence[WorkPiece]) -> None:
        """Rank the queries of searches with the same settings."""
        generation = group[0].generation
        queries: list[Query] = []
        for piece in group:
            for text in piece.texts:
                queries.append(Query(str(len(queries)), text))
        within = selected(generation, ranking.within, ranking.filter)
        # All lists are computed before any is shared out: an error is the error of every search of the group.
        answers = iter(
            list(generation.searcher.answers(queries, ranking.hits, ranking.mode, within=within))
        )
        for piece in group:
            for answer in itertools.islice(answers, len(piece.texts)):
                assert isinstance(piece.work, Search)
                assert answer.report
                result = QueryResult(
                    query=answer.query.text,
                    hits=[],
                    certificate=certificate(answer.report, generation.searcher.index.missing),
                )
                ranked = RankedQuery(answer, result, piece.work.as_json)
                piece.work.lists.append(ranked)
                self.certified += answer.report.exact
                self.uncertified += not answer.report.exact


def _place_in_line(pending: Pending[WorkPiece, None]) -> int:
    """The order of arrival, in which each turn, and having something to describe, count as an arrival a batch later.

    So nothing waits for ever. If the number of turns came first, a request whose turn ended early would wait as long as
    new ones arrive.
    """
    work = pending.work.work
    return work.number + MAX_BATCH * (work.turns + (not work.plain))


def _generations(batch: Sequence[Pending[WorkPiece, None]]) -> list[OpenIndex]:
    """The generations that a batch needs, each once."""
    generations = {}
    for pending in batch:
        generation = pending.work.generation
        generations[id(generation)] = generation
    return list(generations.values())


@contextmanager
def _failing(futures: Sequence[Future[Any]]) -> Iterator[None]:
    """An error in the block is the result of the futures that have none yet."""
    try:
        yield
    except Exception as e:
        # The client gets 500 without the reason, which belongs into the log.
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
            Filter.parse(condition, MAX_COMPARISONS).check(texts.columns)
        except UsageError as e:
            raise WrongFilter(str(e).removeprefix("`filter`").lstrip(",: ")) from None
    return generation.searcher.selection(within, condition)


def described_hit(generation: OpenIndex, ranked: RankedQuery, shown: HitFields) -> SearchHit:
    """The next hit of a list; for passages, its description is added to the list's."""
    position = ranked.count
    hit = ranked.answer.hits[position]
    explanation = None
    if shown.passage is not None or shown.terms is not None:
        text = ranked.answer.query.text
        longest = shown.passage or SNIPPET
        (described,) = generation.searcher.describe(text, [hit.docid], longest=longest)
        explanation = shares(described, shown.terms)
        # Otherwise the explanation is all that is shown of it, and a description takes several times as much memory.
        if shown.passage is not None:
            ranked.described.append(described)

    # The place in a file and the language are returned without the text, too.
    document = None
    metadata: Mapping[str, MetadataValue] = {}
    index = generation.searcher.index
    if shown.texts:
        document = stored(generation, hit.docid)
        metadata = document.metadata if document else {}
    elif index.files or index.languages:
        metadata = shown_metadata(generation, _row_of(generation, ranked.answer.hits, position))
    return SearchHit(
        rank=position + 1,
        docid=hit.docid,
        score=hit.score,
        language=language_name(metadata),
        explanation=explanation,
        document=document,
        **_place_fields(metadata),
    )


def _size(hit: SearchHit) -> int:
    """Bytes of a hit in an answer, about: 200, 100 for each word of its explanation, and its text."""
    size = 200
    if hit.document:
        size += len(hit.document.text)
    if hit.explanation:
        size += 100 * len(hit.explanation.terms)
    return size


def _place_fields(metadata: Mapping[str, MetadataValue]) -> dict[str, Any]:
    """The fields of :class:`~dupmae_ir.serve.schemas.InFile`."""
    place = Place.of(metadata)
    return place._asdict() if place else {}


def _row_of(generation: OpenIndex, hits: Sequence[Hit], position: int) -> int | None:
    """The row of a hit."""
    if isinstance(hits, RankedHits):
        return int(hits.rows[position])
    return generation.searcher.row(hits[position].docid)


def shown_metadata(generation: OpenIndex, row: int | None) -> dict[str, MetadataValue]:
    """What the metadata of a document say of its place and language, read from their columns: its text stays
    compressed."""
    texts = generation.searcher.index.texts
    metadata: dict[str, MetadataValue] = {}
    if texts is None or row is None:
        return metadata
    for name in _SHOWN_METADATA.intersection(texts.columns):
        value = texts.value(name, row)
        if value is not None:
            metadata[name] = value
    return metadata


def certificate(report: ListReport, missing: str | None) -> Certificate:
    """The certificate of a list, with the reason where it is missing; ``missing``: what the index has not read yet."""
    reason = None
    if not report.exact:
        reason = missing or "the candidate lists are too short, or the dense index is approximate"
    return Certificate(why_not=reason, scored=report.candidates, **vars(report))


def shares(hit: DescribedHit, max_terms: int | None = None) -> Explained:
    """The explanation of a hit with its ``max_terms`` strongest words."""
    terms = []
    for word in hit.words[:max_terms]:
        terms.append(
            Term(
                term=word.word,
                share=word.share,
                expansion=word.expansion,
                text_words=list(word.text_words),
            )
        )
    return Explained(
        **{**vars(hit.explanation), "terms": terms},
        cls_share=cls_share(hit.explanation),
        matched_terms=len(hit.words),
    )


def cls_share(why: Explanation) -> float | None:
    """The part of the positive summands that [CLS] adds; None without both parts or without a positive one."""
    if why.dense is None or why.impact is None:
        return None
    scores = (why.dense, why.impact, why.bm25 or 0.0)
    summands = [max(0.0, weight * score) for weight, score in zip(why.weights, scores, strict=True)]
    total = sum(summands)
    if total <= 0:
        return None
    return summands[0] / total


def stored(generation: OpenIndex, docid: str) -> StoredText | None:
    """A document's stored text; None if the index stores no texts or has no such document."""
    try:
        document = generation.searcher.document(docid)
    except UnknownName:
        return None
    if document is None:
        return None
    return StoredText(
        docid=docid, title=document.title, text=document.text, metadata=dict(document.metadata)
    )


def document(generation: OpenIndex, docid: str) -> StoredText:
    """A document's stored text. Raises :class:`NotFound`."""
    if generation.searcher.row(docid) is None:
        raise NotFound(f"index {generation.name!r} has no document of this id")
    text = stored(generation, docid)
    if text is None:
        raise NotFound(
            f"index {generation.name!r} stores no texts; encode the collection with `store_texts`"
        )
    return text


def passages_of(generation: OpenIndex, path: str) -> list[StoredDocument]:
    """The passages of a file in their order. Raises :class:`NotFound`."""
    index = generation.searcher.index
    if index.texts is None or path not in index.files:
        hint = " It was not made of files."
        if index.files:
            hint = suggest(path, index.files)
        raise NotFound(f"index {generation.name!r} has no file {path[:200]!r}.{hint}")
    documents = index.texts.get_all(index.files[path].tolist())
    return sorted(documents, key=_position_in_file)


def _position_in_file(document: StoredDocument) -> tuple[str, int]:
    """The file inside the file, none first, and the place in it."""
    return str(document.metadata.get("member", "")), int(str(document.metadata["start"]))


def with_neighbours(generation: OpenIndex, docid: str, count: int) -> list[StoredText]:
    """A stored document with up to ``count`` passages of its file on each side, in the order of the file.

    Raises :class:`NotFound`.
    """
    text = document(generation, docid)
    place = Place.of(text.metadata)
    if not count or place is None or place.path not in generation.searcher.index.files:
        return [text]
    passages = [
        passage
        for passage in passages_of(generation, place.path)
        if passage.metadata.get("member") == text.metadata.get("member")
    ]
    position = [passage.docid for passage in passages].index(docid)
    neighbours = []
    for passage in passages[max(0, position - count) : position + count + 1]:
        neighbours.append(
            StoredText(
                docid=passage.docid,
                title=passage.title,
                text=passage.text,
                metadata=dict(passage.metadata),
            )
        )
    return neighbours


def file_text(generation: OpenIndex, path: str, start: int, most: int) -> FileText:
    """``most`` characters of a file's text from ``start``, put together from its passages, which overlap. Raises
    :class:`NotFound`."""
    passages = passages_of(generation, path)
    text = ""
    end = 0  # of what is put together so far, as an offset in the file
    # Put together from the beginning whatever `start` is: offsets count the members' names and the gaps as well.
    member = None
    for passage in passages:
        if passage.metadata.get("member") != member:
            # Offsets begin again in an attachment.
            member = passage.metadata.get("member")
            text += f"\n\n{member}\n\n"
            end = 0
        passage_start = int(str(passage.metadata["start"]))
        passage_end = int(str(passage.metadata["end"]))
        if 0 < end < passage_start:
            text += "\n"  # a gap between passages
        overlap = max(0, end - passage_start)
        text += passage.text[overlap:]
        end = max(end, passage_end)

    next_start = None
    if len(text) > start + most:
        next_start = start + most
    return FileText(
        path=path, text=text[start : start + most], passages=len(passages), next_start=next_start
    )


def json_of(value: BaseModel) -> bytes:
    """A value of the API as it is sent."""
    return value.model_dump_json().encode()


def json_opening(value: BaseModel) -> bytes:
    """The JSON of a value whose last field is an empty list, up to the items of the list."""
    return json_of(value).removesuffix(JSON_CLOSING)


def explained(generation: OpenIndex, query: str, docids: Sequence[str]) -> list[Explained]:
    """The composition of each document's score. Raises :class:`NotFound` for an unknown id."""
    for docid in docids:
        if generation.searcher.row(docid) is None:
            raise NotFound(f"index {generation.name!r} has no document of id {docid[:200]!r}")
    return list(map(shares, generation.searcher.describe(query, docids)))


def encoded(
    generation: OpenIndex, texts: Sequence[str], documents: bool, vectors: bool
) -> list[Encoding]:
    """The representation of each text, as queries or as documents."""
    encoder = generation.encoder
    if documents:
        representation = encoder.encode_documents(texts)
    else:
        representation = encoder.encode_queries(texts, generation.searcher.settings.query_terms)
    encodings = []
    for row, text in enumerate(texts):
        encoding = Encoding(text=text, vector=None, terms=None)
        if representation.cls is not None and vectors:
            encoding.vector = representation.cls[row].tolist()
        if representation.ot is not None:
            encoding.terms = weighted_terms(generation, text, representation.ot[[row]])
        encodings.append(encoding)
    return encodings


def weighted_terms(generation: OpenIndex, text: str, row: sp.csr_matrix) -> list[WeightedTerm]:
    """The (1, V) term weights of ``text``, strongest first."""
    encoder = generation.encoder
    vocabulary = encoder.terms or []
    # An index term is a stem or a word piece; a lexical encoder knows the word of the text that it stands for.
    names = encoder.term_names(text) if isinstance(encoder, CachingLexicalEncoder) else {}
    order = np.argsort(-row.data, kind="stable")
    columns = row.indices[order].tolist()
    weights = row.data[order].tolist()
    weighted = []
    for column, weight in zip(columns, weights, strict=True):
        term = vocabulary[column]
        weighted.append(WeightedTerm(term=names.get(term, term), weight=weight))
    return weighted
