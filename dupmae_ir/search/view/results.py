"""Results of a search as values: why a document has its score, the hits of one query, and the summary of a run file."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dupmae_ir import tables
from dupmae_ir.index.format.texts import StoredDocument
from dupmae_ir.search.candidates.dense import DenseSummary
from dupmae_ir.search.candidates.impact import ImpactQuery
from dupmae_ir.search.candidates.server import ServerSummary
from dupmae_ir.search.config import SearchSettings
from dupmae_ir.search.exact.ranking import Answer, ListReport
from dupmae_ir.search.opened_index import OpenedIndex
from dupmae_ir.search.query.encoder import EncodedQuery
from dupmae_ir.search.query.words import SNIPPET, Mark, QueryWords, Snippet, TermShare, WordShare
from dupmae_ir.search.view.naming import Place, digits, hidden_markup, language_name
from dupmae_ir.types import Document

MAX_UNKNOWN = 100
"""Unknown ids listed in a summary."""
DEPTHS = ("dense", "impact", "bm25", "sum")
"""The lists whose depths are reported."""
Json = dict[str, object]


@dataclass(frozen=True)
class Explanation:
    """The composition of a document's score. ``score`` is the weighted sum of ``dense``, ``impact`` and ``bm25``; a
    share is None if the index lacks the part, ``bm25`` if no BM25 index joins the sum. ``terms``: every matched term,
    strongest first; their shares sum to ``impact``. ``weights``: of the three in the sum."""

    docid: str
    score: float
    dense: float | None
    impact: float | None
    terms: list[TermShare]
    bm25: float | None = None
    weights: tuple[float, float, float] = (1.0, 1.0, 1.0)

    def _repr_html_(self) -> str:
        parts = {"meaning": self.dense, "words": self.impact, "BM25": self.bm25}
        rows = [(name, digits(share)) for name, share in parts.items() if share is not None]
        rows += [(f"... {term.term.removeprefix('##')}", digits(term.share)) for term in self.terms]
        return tables.html((self.docid, digits(self.score)), rows)


def explain(
    index: OpenedIndex,
    settings: SearchSettings,
    text: str,
    encoded: EncodedQuery,
    docids: Sequence[str],
    names: Mapping[str, str] | None = None,
) -> list[Explanation]:
    """One :class:`Explanation` per document. Raises :class:`UnknownName` for an id that the index does not contain.

    ``names``: index term -> the query's words for it, shown instead of terms that are hashes.
    """
    names = names or {}
    dense_weight, impact_weight = index.weights(settings)
    weights = (dense_weight, impact_weight, settings.bm25_weight)
    rows = index.known_rows(docids)
    unknown_scores: Sequence[float | None] = [None] * len(rows)
    dense_scores = unknown_scores
    if "cls" in index.parts:
        dense = index.dense(settings).queries(encoded.cls[None], settings.workers)
        dense_scores = dense.scores(0, rows).tolist()
    impact_scores = unknown_scores
    if "ot" in index.parts:
        impact = index.impact(settings).queries([encoded.ot], settings.workers)
        impact_scores = impact.scores(0, rows).tolist()
    bm25_scores = unknown_scores
    bm25 = index.bm25(settings)
    if bm25:
        bm25_scores = bm25.scores(text, rows).tolist()

    explanations = []
    for docid, row, *scores in zip(
        docids, rows.tolist(), dense_scores, impact_scores, bm25_scores, strict=True
    ):
        dense_score, impact_score, bm25_score = scores
        terms = []
        if impact_score is not None:
            terms = _term_shares(index, encoded.ot, row, names)
        explanations.append(
            Explanation(
                docid,
                _total(weights, scores),
                dense_score,
                impact_score,
                terms,
                bm25_score,
                weights,
            )
        )
    return explanations


def _total(weights: Sequence[float], scores: Sequence[float | None]) -> float:
    """The weighted sum of the scores that are known; a score that is the only one is not weighted."""
    known = []
    for score, weight in zip(scores, weights, strict=True):
        if score is not None:
            known.append((score, weight))
    if len(known) == 1:
        return known[0][0]
    return sum((weight * score for score, weight in known), 0.0)


def _term_shares(
    index: OpenedIndex, query: ImpactQuery, row: int, names: Mapping[str, str]
) -> list[TermShare]:
    """What each common term of the query and a document adds to the impact score, strongest first."""
    scale = index.scale
    ids, impacts = index.folder.forward.row(row)
    document_impacts = dict(zip(ids.tolist(), impacts.tolist(), strict=True))
    shares = []
    for term_id, impact in zip(query.ids.tolist(), query.impacts.tolist(), strict=True):
        if term_id not in document_impacts:
            continue
        term = index.folder.terms[term_id]
        in_document = document_impacts[term_id]
        shares.append(
            TermShare(
                names.get(term, term),
                impact / scale,
                in_document / scale,
                impact * in_document / scale**2,
            )
        )
    return sorted(shares, key=lambda share: (-share.share, share.term))


@dataclass(frozen=True)
class DescribedHit:
    """One document of a list.

    ``explanation``: its score by parts and index terms; ``words``: the impact by words, strongest first, whose shares
    sum to ``explanation.impact``; ``document``, ``snippet``: title and text, and the best passage of the text; None
    where they are not known. ``title_marks``, ``text_marks``: the matching words of title and text. ``hidden``: the
    markup of the text, which the snippet leaves out.
    """

    explanation: Explanation
    words: tuple[WordShare, ...]
    document: Document | StoredDocument | None
    snippet: Snippet | None
    title_marks: tuple[Mark, ...] = ()
    text_marks: tuple[Mark, ...] = ()
    hidden: tuple[tuple[int, int], ...] = ()

    @property
    def place(self) -> Place | None:
        """The file of the document; None for one that is of no file."""
        if self.document is None:
            return None
        return Place.of(self.document.metadata or {})

    @property
    def language(self) -> str | None:
        """The language of the document, in English; None where the index does not record languages."""
        if self.document is None:
            return None
        return language_name(self.document.metadata or {})

    @property
    def is_by_meaning(self) -> bool:
        """Whether a document is found although it has no word of the query."""
        return not self.words and bool(self.explanation.dense) and not self.has_query_word

    @property
    def has_query_word(self) -> bool:
        """Whether a word of the query is in the text, or the text is not known."""
        if self.document is None:
            return True
        if not self.words:
            # Without word weights, the snippet's marks are the words of the query.
            return bool(self.snippet and self.snippet.marks)
        return any(word.text_words and not word.expansion for word in self.words)


def describe(
    words: QueryWords,
    explanation: Explanation,
    document: Document | StoredDocument | None,
    longest: int = SNIPPET,
) -> DescribedHit:
    """The description of a hit from its explanation by raw index terms. ``longest``: characters of the passage."""
    title = ""
    text = ""
    hidden: list[tuple[int, int]] = []
    snippet = None
    if document:
        title = document.title
        text = document.text
        hidden = hidden_markup(text, document.metadata or {}, title)
    if text:
        snippet = words.snippet(words.weights(explanation.terms), text, longest, hidden)

    renamed = []
    for term in explanation.terms:
        renamed.append(dataclasses.replace(term, term=words.names.get(term.term, term.term)))
    renamed.sort(key=lambda term: (-term.share, term.term))
    return DescribedHit(
        dataclasses.replace(explanation, terms=renamed),
        tuple(words.shares(explanation.terms, title, text)),
        document,
        snippet,
        words.shaded(explanation.terms, title),
        words.shaded(explanation.terms, text),
        tuple(hidden),
    )


@dataclass(frozen=True)
class SearchedDocuments:
    """The documents that were searched: by the ids in a ``file``, or by a condition, the ``filter``, or both."""

    documents: int
    file: str | None = None
    filter: str | None = None
    unknown: Sequence[str] = ()  #: ids of the file that the index lacks

    def to_dict(self) -> Json:
        """As the summary shows it."""
        values: Json = {"documents": self.documents, "filter": self.filter, "file": self.file}
        if self.file:
            values["unknown"] = len(self.unknown)
            values["unknown_ids"] = self.unknown[:MAX_UNKNOWN]
        return _present(values)


@dataclass(frozen=True)
class Bm25Summary:
    """The BM25 index that joins a sum."""

    index: str
    weight: float
    k1: float
    b: float


@dataclass(frozen=True)
class Searched:
    """What was searched, and how: automatic choices and their reasons."""

    index: str
    mode: str
    impact_search: str | None = None
    impact_search_reason: str | None = None
    dense_index: DenseSummary | None = None
    bm25: Bm25Summary | None = None
    server: ServerSummary | None = None
    within: SearchedDocuments | None = None
    unread_bytes: int | None = None  #: of files whose digests were not compared
    rerank: str | None = None  #: the model that ordered the first hits anew
    missing: str | None = None  #: what the index has not read yet

    def to_dict(self) -> Json:
        """What applies."""
        values = dataclasses.asdict(self)
        if self.within:
            values["within"] = self.within.to_dict()
        for name, value in values.items():
            if isinstance(value, dict):
                values[name] = _present(value)
        return _present(values)


@dataclass
class RunSummary:
    """A run file, and counts over its topics, which are added one answer at a time."""

    searched: Searched
    output: str
    topics: int
    blank: int = 0
    without_hits: int = 0
    reported: int = 0
    exact: int = 0
    uncertified: list[str] = field(default_factory=list)
    #: topics with too few documents among their passages
    short: list[str] = field(default_factory=list)
    depths: Mapping[str, list[int]] = field(default_factory=lambda: {name: [] for name in DEPTHS})
    seconds: float = 0.0
    reranked: int = 0  #: documents that a reranker has read
    rerank_seconds: float = 0.0

    @property
    def certified(self) -> int:
        """Exact lists."""
        return self.exact

    def add(self, answer: Answer) -> None:
        """Count one topic's answer."""
        self.blank += not answer.query.text.strip()
        self.without_hits += not answer.hits
        report = answer.report
        if report is None:
            return
        self.reported += 1
        self.exact += report.exact
        self.reranked += report.reranked or 0
        self.rerank_seconds += report.rerank_seconds or 0.0
        if not report.exact:
            self.uncertified.append(answer.query.qid)
        for name, depths in self.depths.items():
            depth = getattr(report, f"depth_{name}")
            if depth is not None:
                depths.append(depth)

    def to_dict(self) -> Json:
        """The counts; depths as median and maximum."""
        counts: Json = {
            "blank": self.blank,
            "without_hits": self.without_hits,
            "short": self.short or None,
        }
        if self.reported:
            counts |= {
                "exact": self.exact,
                "certified": self.certified,
                "uncertified": self.uncertified,
            }
            for name, median, maximum in self.depth_counts():
                counts[f"depth_{name}"] = {"median": median, "max": maximum}
        if self.searched.rerank:
            counts |= {"reranked": self.reranked, "rerank_seconds": round(self.rerank_seconds, 3)}
        counts["seconds"] = round(self.seconds, 3)
        return _present(
            {"output": self.output, "topics": self.topics, **self.searched.to_dict(), **counts}
        )

    def depth_counts(self) -> list[tuple[str, int, int]]:
        """The median and the largest depth of each list."""
        return [
            (name, int(statistics.median(depths)), max(depths))
            for name, depths in self.depths.items()
            if depths
        ]


@dataclass(frozen=True)
class ShownHit:
    """A hit, with its ``max_terms`` strongest terms and words (None for all)."""

    rank: int
    docid: str
    score: float
    details: DescribedHit
    max_terms: int | None
    explained: bool  #: whether the shares of the score are known: not for BM25 alone
    has_text: bool  #: whether title and text are asked for, or known

    def to_dict(self) -> Json:
        """The hit with what is known of it."""
        why = self.details.explanation
        document = self.details.document
        words = self.details.words
        hit: Json = {"rank": self.rank, "docid": self.docid, "score": self.score}
        if self.explained:
            hit |= {"dense": why.dense, "impact": why.impact}
            if why.bm25 is not None:
                hit["bm25"] = why.bm25
            hit |= {
                "matched_terms": len(why.terms),
                "terms": [vars(term) for term in why.terms[: self.max_terms]],
            }
            hit |= {
                "matched_words": len(words),
                "words": [vars(word) for word in words[: self.max_terms]],
            }
        if self.has_text:
            hit |= {
                "title": document.title if document else None,
                "text": document.text if document else None,
            }
        if isinstance(document, StoredDocument) and document.metadata:
            hit["metadata"] = dict(document.metadata)
        if self.details.snippet is not None:
            hit["snippet"] = vars(self.details.snippet)
        return hit


@dataclass(frozen=True)
class QueryAnswer:
    """The hits of one query, or one explained document."""

    query: str
    searched: Searched
    documents: int | None
    size: str  #: what was searched, in words
    weights: tuple[float, float]
    report: ListReport | None
    seconds: float
    hits: list[ShownHit]

    def to_dict(self) -> Json:
        """The answer as JSON has it."""
        return {
            "query": self.query,
            "documents": self.documents,
            "weights": self.weights,
            "dense_index": None,
            **self.searched.to_dict(),
            "report": vars(self.report) if self.report else None,
            "seconds": round(self.seconds, 3),
            "hits": [hit.to_dict() for hit in self.hits],
        }


def _present(values: Json) -> Json:
    return {name: value for name, value in values.items() if value is not None}
