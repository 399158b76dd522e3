"""Questions in, ranked documents out: one object for dense, impact and hybrid search over an index folder.

    searcher = Searcher.open("I")
    searcher.search("how do I wait for a thread")                    # list[Hit], the ten best
    searcher.search([Query("1", "..."), Query("2", "...")], 1000)    # {"1": list[Hit], "2": list[Hit]}
    searcher.explain("how do I wait for a thread", "threading.Thread.join")

It also answers ``search(q, k)`` and ``batch_search(queries, qids, k, threads)`` as Pyserini's searchers do.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from dupmae_ir.device import ENGINES, pick_engine, processors, torch_threads
from dupmae_ir.errors import UnknownName, UsageError
from dupmae_ir.index.config import FLAT, KINDS
from dupmae_ir.registry import lookup
from dupmae_ir.search.certified_topk import Outcome, Part, Weighted, exact_top
from dupmae_ir.search.dense import DenseIndex
from dupmae_ir.search.fusion import Exact, Fusion
from dupmae_ir.search.impact import MOST_TERMS, ImpactIndex, ImpactQuery, Postings
from dupmae_ir.search.one_pass import MOST_HITS, scanned_top, summed_top
from dupmae_ir.search.quantised_dense import open_dense
from dupmae_ir.search.query_encoder import EncodedQuery, QueryEncodings, check_encoder, load_query_encoder
from dupmae_ir.types import Encoder, Hit, Query

if TYPE_CHECKING:
    from dupmae_ir.index.folder import IndexFolder

MODES = {"dense": ("cls",), "impact": ("ot",), "hybrid": ("cls", "ot")}
"""What each mode needs from the index."""


@dataclass(frozen=True)
class Report:
    """What one query's list rests on; a line of ``--report``. Depths are None for a part that was not searched."""

    qid: str
    exact: bool  #: certified: no document outside the list belongs into it
    depth_dense: int | None  #: length of faiss's list
    depth_impact: int | None  #: length of the list by impacts
    candidates: int  #: documents scored exactly
    bound: float | None  #: what an unseen document could reach at most; None when none is unseen or nothing bounds it
    kth: float | None  #: score of the last hit
    hits: int


@dataclass(frozen=True)
class Answer:
    """One query's hits; ``report`` is None for fused lists, which no bound describes."""

    query: Query
    hits: list[Hit]
    report: Report | None


@dataclass(frozen=True)
class TermShare:
    """One matched term: the weights on both sides and their product, in real units."""

    term: str
    query_weight: float
    document_weight: float
    share: float


@dataclass(frozen=True)
class Explanation:
    """Why a document scores what it scores. ``score`` is the weighted sum of ``dense`` and ``impact``; a share is None
    when the index lacks the part. ``terms``: every matched term, strongest first; their shares sum to ``impact``."""

    docid: str
    score: float
    dense: float | None
    impact: float | None
    terms: list[TermShare]


@dataclass(frozen=True)
class Settings:
    """How to search, apart from what."""

    threads: int = 0  #: for all parts of a search; 0 is one per processor, for the encoder torch's own number
    batch_size: int = 256  #: queries encoded and searched together
    query_terms: int = MOST_TERMS  #: strongest OT weights kept of a query
    dense_weight: float = 1.0  #: Eq. 12 has 1 for both
    impact_weight: float = 1.0
    max_depth: int = 0  #: longest candidate list, 0 for no limit
    dense_index: str = FLAT  #: what proposes dense candidates: flat, or a kind that ``index dense`` has made
    nprobe: int = 0  #: ivf-sq8: lists looked at; 0 is automatic
    ef_search: int = 0  #: hnsw-sq8: candidates kept on the way; 0 is automatic
    engine: str = "lucene"  #: what finds documents by their impacts: lucene, postings or auto

    def __post_init__(self) -> None:
        lookup("dense index", self.dense_index, {FLAT: None, **KINDS})
        for owner, (_, names) in KINDS.items():
            for name in names:
                flag, value = f"--{name.replace('_', '-')}", getattr(self, name)
                if value < 0:
                    raise UsageError(f"{flag} must be 0 or more, got {value}")
                if value and self.dense_index != owner:
                    raise UsageError(f"{flag} belongs to --dense-index {owner}")
        if 0 < self.max_depth < self.ef_search:
            raise UsageError(f"--max-depth {self.max_depth} is less than --ef-search {self.ef_search}")
        if self.engine not in ENGINES:
            raise UsageError(f"--engine {self.engine}: use one of {', '.join(ENGINES)}")
        if not 1 <= self.query_terms <= MOST_TERMS:
            raise UsageError(f"--query-terms must be 1 to {MOST_TERMS} (Lucene's limit), got {self.query_terms}")
        for name in ("dense_weight", "impact_weight"):
            if not (0 < getattr(self, name) < np.inf):
                flag = name.replace("_", "-")
                got = f"{getattr(self, name):g}"
                raise UsageError(f"--{flag} must be above 0, got {got}; use --dense or --impact for one part alone")
        if self.batch_size < 1:
            raise UsageError(f"--batch-size must be at least 1, got {self.batch_size}")
        if self.threads < 0 or self.max_depth < 0:
            raise UsageError("--threads and --max-depth must be 0 or more")

    @property
    def workers(self) -> int:
        return self.threads or processors()


@dataclass(frozen=True)
class _Request:
    mode: str
    hits: int
    remove_query: bool
    raw_impacts: bool
    fusion: Fusion | None
    fusion_depth: int

    @property
    def name(self) -> str:
        return "fused" if self.fusion else self.mode

    @property
    def needs(self) -> tuple[str, ...]:
        return MODES["hybrid" if self.fusion else self.mode]


class Searcher:
    """See the module's text. Use :meth:`open`."""

    def __init__(self, index: IndexFolder, encoder: Encoder, settings: Settings | None = None) -> None:
        self.index = index
        self.encoder = encoder
        self.settings = settings or Settings()
        self.parts: tuple[str, ...] = tuple(index.meta["parts"])

    @classmethod
    def open(
        cls,
        index: str | Path | IndexFolder,
        encoder: Encoder | str | Path | None = None,
        *,
        device: str = "auto",
        dtype: str | None = None,
        query_length: int | None = None,
        **settings: Any,
    ) -> Searcher:
        """Open an index folder with the encoder that made it, or with ``encoder`` (a model folder or an object).

        ``dtype`` and ``query_length`` are the index's unless given; giving them is the way to search with other ones.
        ``settings`` are fields of :class:`Settings`. Raises :class:`IndexMismatch` for an encoder that differs
        from the index's in anything else.
        """
        from dupmae_ir.index.folder import IndexFolder

        chosen = Settings(**settings)
        folder = index if isinstance(index, IndexFolder) else IndexFolder.open(index)
        given = frozenset(n for n, v in {"dtype": dtype, "query_length": query_length}.items() if v is not None)
        if encoder is None or isinstance(encoder, str | Path):
            encoder = load_query_encoder(folder, encoder, device, dtype, query_length)
        elif given:
            raise UsageError("dtype and query_length belong to a model loaded by name, not to an encoder object")
        check_encoder(folder, encoder, given)
        searcher = cls(folder, encoder, chosen)
        if chosen.dense_index != FLAT:
            searcher.dense  # noqa: B018 (refused now, if it is missing or stale, and not with the first question)
        return searcher

    @property
    def mode(self) -> str:
        """What is searched when nothing else is asked for: everything the index holds."""
        return next(mode for mode in ("hybrid", "dense", "impact") if set(MODES[mode]) <= set(self.parts))

    @overload
    def search(self, queries: str, hits: int = ..., mode: str | None = ..., **options: Any) -> list[Hit]: ...
    @overload
    def search(
        self, queries: Sequence[Query], hits: int = ..., mode: str | None = ..., **options: Any
    ) -> dict[str, list[Hit]]: ...
    def search(
        self, queries: str | Sequence[Query], hits: int = 10, mode: str | None = None, **options: Any
    ) -> list[Hit] | dict[str, list[Hit]]:
        """The best ``hits`` documents of one question, or of each topic (a Run, by query id).

        ``mode``: dense, impact or hybrid; None is all that the index holds. ``k`` is another word for ``hits``; the
        other options are those of :meth:`answers`.
        """
        hits = options.pop("k", hits)
        if isinstance(queries, str):
            return next(self.answers([Query("", queries)], hits, mode, **options)).hits
        if len({query.qid for query in queries}) < len(queries):
            raise UsageError("two topics have the same id, so their answers could not be told apart")
        return {answer.query.qid: answer.hits for answer in self.answers(queries, hits, mode, **options)}

    def batch_search(
        self,
        queries: Sequence[str],
        qids: Sequence[str],
        k: int = 10,
        threads: int | None = None,
        mode: str | None = None,
    ) -> dict[str, list[Hit]]:
        """As Pyserini's searchers have it: texts and their ids in two lists. ``threads`` None keeps the setting."""
        one = self if threads is None else self.with_settings(threads=threads)
        topics = [Query(str(qid), text) for qid, text in zip(qids, queries, strict=True)]
        return one.search(topics, k, mode)

    def with_settings(self, **changes: Any) -> Searcher:
        """The same index and encoder, searched otherwise; only another dense index is opened."""
        other = object.__new__(Searcher)
        other.__dict__.update(self.__dict__)
        other.settings = dataclasses.replace(self.settings, **changes)
        if changes.keys() & {"dense_index", "nprobe", "ef_search"}:
            other.__dict__.pop("dense", None)
        if other.settings.engine != self.settings.engine:
            other.__dict__.pop("impact", None)
        return other

    def answers(
        self,
        queries: Sequence[Query],
        hits: int = 1000,
        mode: str | None = None,
        *,
        remove_query: bool = False,
        raw_impacts: bool = False,
        fusion: Fusion | None = None,
        fusion_depth: int | None = None,
    ) -> Iterator[Answer]:
        """Answers in the order of the queries, batch by batch. A blank question has no hits.

        ``remove_query`` leaves out the document whose id is the query's. ``raw_impacts`` gives integers instead of real
        units (impact mode). ``fusion`` joins a dense and an impact list of ``fusion_depth`` (default: ``hits``)
        documents each instead of summing (see :mod:`dupmae_ir.search.fusion`).
        """
        depth = hits if fusion_depth is None else fusion_depth
        request = self._checked(_Request(mode or self.mode, hits, remove_query, raw_impacts, fusion, depth))
        encodings = self._encodings([query.text for query in queries if query.text.strip()])
        for start in range(0, len(queries), self.settings.batch_size):
            batch = queries[start : start + self.settings.batch_size]
            asked = [query for query in batch if query.text.strip()]
            found = iter(self._batch(asked, self._take(encodings, [query.text for query in asked]), request))
            yield from (next(found) if query.text.strip() else _no_answer(query, request) for query in batch)

    def explain(self, query: str, docid: str) -> Explanation:
        """Both shares of one document's score and its matched terms. Raises :class:`UnknownName` for an unknown id."""
        return self.explain_all(query, [docid])[0]

    def explain_all(self, query: str, docids: Sequence[str]) -> list[Explanation]:
        """:meth:`explain` for several documents; the query is encoded once."""
        rows = [self._known_row(docid) for docid in docids]
        (encoded,) = self._take(self._encodings([query]), [query])
        parts, at = self._score([encoded], self.parts), np.array(rows, np.int64)
        dense, impact = (
            parts[name].scores(0, at).tolist() if name in parts else [None] * len(at) for name in ("dense", "impact")
        )
        return [
            Explanation(docid, self._total(d, i), d, i, self._terms(encoded.ot, row) if i is not None else [])
            for docid, row, d, i in zip(docids, rows, dense, impact, strict=True)
        ]

    def row(self, docid: str) -> int | None:
        """The row of a document, None when the index has no such id."""
        docids = self.index.docids
        place = bisect.bisect_left(self._by_docid, docid, key=lambda row: docids[row])
        found = place < len(docids) and docids[self._by_docid[place]] == docid
        return int(self._by_docid[place]) if found else None

    @cached_property
    def dense(self) -> DenseIndex:
        """The dense part of the index, as the settings want it searched."""
        return open_dense(self.index, self.settings.dense_index, self.settings.nprobe, self.settings.ef_search)

    @cached_property
    def impact(self) -> ImpactIndex:
        """The impact part of the index."""
        index, (engine, _) = self.index, self.engine

        def postings() -> Postings:
            return index.postings if engine == "postings" else index.searcher

        return ImpactIndex(postings, index.forward, index.terms, self._scale, index.documents)

    @property
    def engine(self) -> tuple[str, str]:
        """What finds documents by their impacts, lucene or postings, and why."""
        return pick_engine(self.settings.engine, self.index.path)

    @property
    def _scale(self) -> float:
        return self.index.scale or 1.0

    @cached_property
    def _by_docid(self) -> np.ndarray:
        return np.argsort(self.index.docid_rank)

    def _checked(self, request: _Request) -> _Request:
        lookup("search mode", request.mode, MODES)
        if any(part not in self.parts for part in request.needs):
            have, use = ("dense part (cls)", "--dense") if "cls" in self.parts else ("impact part (ot)", "--impact")
            raise UsageError(
                f"{self.index.path} holds only the {have}, so it cannot answer {request.name} searches; "
                f"use {use} or encode the collection with both parts"
            )
        for name, number in {"hits": request.hits, "fusion-depth": request.fusion_depth}.items():
            if number < 1:
                raise UsageError(f"--{name} must be at least 1, got {number}")
        longest = request.fusion_depth if request.fusion else request.hits
        if 0 < self.settings.max_depth < longest:
            raise UsageError(f"--max-depth {self.settings.max_depth} is less than the {longest} hits asked for")
        if request.raw_impacts and request.name != "impact":
            raise UsageError("--raw-impacts belongs to --impact: only a sum of impacts alone is an integer")
        return request

    def _encodings(self, texts: list[str]) -> QueryEncodings:
        return QueryEncodings(self.encoder, self.index.scale, self.settings.query_terms, texts)

    def _take(self, encodings: QueryEncodings, texts: list[str]) -> list[EncodedQuery]:
        with torch_threads(self.settings.threads):
            return encodings.take(texts)

    def _score(self, queries: list[EncodedQuery], needed: Sequence[str], raw: bool = False) -> dict[str, Part]:
        """The ``needed`` parts of the score for a batch of queries, by name, the dense one first."""
        parts: dict[str, Part] = {}
        if "cls" in needed:
            parts["dense"] = self.dense.queries(np.stack([q.cls for q in queries]), self.settings.workers)
        if "ot" in needed:
            parts["impact"] = self.impact.queries([q.ot for q in queries], self.settings.workers, raw)
        return parts

    def _batch(self, asked: list[Query], encoded: list[EncodedQuery], request: _Request) -> list[Answer]:
        if not asked:
            return []
        skip = [self.row(query.qid) if request.remove_query else None for query in asked]
        if fusion := request.fusion:
            # HybridSearcher adds what LuceneImpactSearcher returns, and that is integers.
            parts = self._score(encoded, request.needs, raw=fusion.method == "pyserini")
            return self._fused(asked, parts, request, fusion, skip)
        parts = self._score(encoded, request.needs, request.raw_impacts)
        if (found := self._by_postings(asked, parts, request, skip)) is not None:
            return found
        if request.mode == "hybrid":
            weights = {"dense": self.settings.dense_weight, "impact": self.settings.impact_weight}
            parts = {name: Weighted(part, weights[name]) for name, part in parts.items()}
        return self._ranked(asked, parts, request.hits, skip)

    def _ranked(self, asked: list[Query], parts: dict[str, Part], hits: int, skip: list[int | None]) -> list[Answer]:
        """The best documents by the sum of ``parts``. A document without a matching term is no hit of impacts alone."""
        floor = 0.0 if set(parts) == {"impact"} else -np.inf
        outcomes = exact_top(
            list(parts.values()),
            len(asked),
            self.index.docid_rank,
            hits,
            excluded=skip,
            floor=floor,
            max_depth=self.settings.max_depth,
        )
        return [Answer(q, self._hits(o), _report(q, o, list(parts))) for q, o in zip(asked, outcomes, strict=True)]

    def _by_postings(
        self, asked: list[Query], parts: dict[str, Any], request: _Request, skip: list[int | None]
    ) -> list[Answer] | None:
        """Lists of impacts and hybrid lists that the postings settle in one pass; None where there are none, or where
        they do not settle all of them."""
        if request.mode == "dense" or self.engine[0] != "postings" or self.settings.max_depth:
            return None
        postings, ranks, workers = self.index.postings, self.index.docid_rank, self.settings.workers
        outcomes: Sequence[Outcome | None]
        if request.mode == "impact":
            outcomes = summed_top(parts["impact"], postings, ranks, request.hits, skip, workers)
        elif self.dense.kind == FLAT and request.hits <= MOST_HITS:
            weights = (self.settings.dense_weight, self.settings.impact_weight)
            outcomes = scanned_top(
                parts["dense"], parts["impact"], postings, weights, ranks, request.hits, skip, workers
            )
        else:
            return None
        answers = [
            Answer(query, self._hits(found), _report(query, found, list(parts)))
            for query, found in zip(asked, outcomes, strict=True)
            if found is not None
        ]
        return answers if len(answers) == len(asked) else None

    def _fused(
        self, asked: list[Query], parts: dict[str, Part], request: _Request, fusion: Fusion, skip: list[int | None]
    ) -> list[Answer]:
        def exact(part: Part, number: int) -> Exact:
            return lambda docids: part.scores(number, np.array([self.row(d) for d in docids], np.int64)).tolist()

        def scorers(number: int) -> tuple[Exact, Exact]:
            return exact(parts["dense"], number), exact(parts["impact"], number)

        dense, impact = (self._ranked(asked, {n: p}, request.fusion_depth, skip) for n, p in parts.items())
        return [
            Answer(query, fusion(d.hits, i.hits, request.hits, scorers(number)), None)
            for number, (query, d, i) in enumerate(zip(asked, dense, impact, strict=True))
        ]

    def _total(self, dense: float | None, impact: float | None) -> float:
        if dense is None or impact is None:
            return next(share for share in (dense, impact) if share is not None)
        return self.settings.dense_weight * dense + self.settings.impact_weight * impact

    def _hits(self, outcome: Outcome) -> list[Hit]:
        docids = self.index.docids
        # A named tuple's own constructor takes longer than finding the hit did.
        pairs = zip([docids[row] for row in outcome.rows.tolist()], outcome.scores.tolist(), strict=True)
        return list(map(partial(tuple.__new__, Hit), pairs))

    def _known_row(self, docid: str) -> int:
        row = self.row(docid)
        if row is None:
            raise UnknownName(f"{self.index.path} holds no document {docid!r}; {self.index.path}/docid lists all ids")
        return row

    def _terms(self, query: ImpactQuery, row: int) -> list[TermShare]:
        scale = self._scale
        ids, impacts = self.index.forward.row(row)
        document = dict(zip(ids.tolist(), impacts.tolist(), strict=True))
        shares = [
            TermShare(self.index.terms[i], w / scale, document[i] / scale, w * document[i] / scale**2)
            for i, w in zip(query.ids.tolist(), query.impacts.tolist(), strict=True)
            if i in document
        ]
        return sorted(shares, key=lambda share: (-share.share, share.term))


def _report(query: Query, outcome: Outcome, used: list[str]) -> Report:
    depths = dict(zip(used, outcome.depths, strict=True))
    return Report(
        qid=query.qid,
        exact=outcome.exact,
        depth_dense=depths.get("dense"),
        depth_impact=depths.get("impact"),
        candidates=outcome.candidates,
        bound=outcome.bound if np.isfinite(outcome.bound) else None,
        kth=float(outcome.scores[-1]) if len(outcome.scores) else None,
        hits=len(outcome.rows),
    )


def _no_answer(query: Query, request: _Request) -> Answer:
    """A blank question: nothing was searched, and nothing is the answer."""
    if request.fusion:
        return Answer(query, [], None)
    dense, impact = (0 if part in request.needs else None for part in ("cls", "ot"))
    return Answer(query, [], Report(query.qid, True, dense, impact, 0, None, None, 0))
