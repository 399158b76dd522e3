"""The work of ``dupmae-ir eval.case``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dupmae_ir.errors import UnknownName, UsageError
from dupmae_ir.eval.case.config import CaseConfig
from dupmae_ir.eval.case.published import published
from dupmae_ir.eval.reports.case import LISTS, Case, Shown, text
from dupmae_ir.eval.reports.tally import Tally, first_ranks
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.topics import read_topics
from dupmae_ir.registry import suggest
from dupmae_ir.search.answers import find_documents
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.types import Document, Hit, Qrels, Query


@dataclass(frozen=True)
class Study:
    """The cases, and with ``--find`` the counts over all topics."""

    cases: list[Case]
    tally: Tally | None = None

    def text(self, config: CaseConfig) -> str:
        """The study in the format of ``config``."""
        return text(self.cases, "json" if config.json else config.format, self.tally)


def run(config: CaseConfig) -> Study:
    """One :class:`Case` per query; also written to ``config.output``. Raises :class:`DupmaeError` subclasses."""
    queries, judged = _queries(config), _judgements(config)
    if config.find:
        queries = [query for query in queries if query.qid in judged and query.text.strip()]
    for query in queries:
        if config.qrels and query.qid not in judged:
            raise UnknownName(f"{config.qrels} has no judgements for query {query.qid!r}.{suggest(query.qid, judged)}")
    searcher = Searcher.open(
        config.index, config.model, device=config.device, dtype=config.dtype, threads=config.threads
    )
    tally = None
    if config.find:
        tally = find(searcher, queries, judged, config)
        chosen = [ranks.qid for ranks in tally.found[: config.most]]
        queries = sorted((q for q in queries if q.qid in chosen), key=lambda q: chosen.index(q.qid))
    cases = study(searcher, queries, judged, config) if queries else []
    documents = find_documents(config.corpus, {docid for case in cases for docid in case.documents})
    known = published() if config.published else {}
    cases = [replace(_with_texts(c, documents), paper=known[c.qid].sentence if c.qid in known else "") for c in cases]
    made = Study(cases, tally)
    if config.output is not None:
        with atomic_write(config.output) as file:
            file.write(made.text(config) + "\n")
    return made


def find(searcher: Searcher, queries: Sequence[Query], judged: Qrels, config: CaseConfig) -> Tally:
    """Search all ``queries`` in the three modes and count which of them are answered within ``config.within``.

    Raises :class:`UsageError` if no query has an answer in the index.
    """
    answers = {
        q.qid: {d for d, grade in judged[q.qid].items() if grade >= config.rel_level and searcher.row(d) is not None}
        for q in queries
    }
    queries = [query for query in queries if answers[query.qid]]
    if not queries:
        raise UsageError(
            f"no topic of {config.topics} has an answer of {config.qrels} in {config.index}; "
            "check that the three belong together"
        )
    lists = {mode: searcher.search(queries, config.within, mode, remove_query=config.remove_query) for mode in LISTS}
    ranks = tuple(
        first_ranks(qid, {mode: [h.docid for h in lists[mode][qid]] for mode in LISTS}, answers[qid], config.within)
        for qid in (query.qid for query in queries)
    )
    assert config.find
    found = sum(r.satisfies(config.find) for r in ranks)
    return Tally(config.find, config.within, ranks, min(found, config.most))


def study(searcher: Searcher, queries: Sequence[Query], judged: Qrels, config: CaseConfig) -> list[Case]:
    """The three lists of each query and the data of the documents to show, without titles and texts."""
    runs: dict[str, dict[str, list[Hit]]] = {
        mode: searcher.search(queries, config.depth, mode, remove_query=config.remove_query) for mode in LISTS
    }
    return [
        _case(searcher, query, {mode: runs[mode][query.qid] for mode in LISTS}, judged.get(query.qid, {}), config)
        for query in queries
    ]


def _case(
    searcher: Searcher, query: Query, lists: dict[str, list[Hit]], grades: Mapping[str, int], config: CaseConfig
) -> Case:
    places = {mode: {hit.docid: rank for rank, hit in enumerate(hits, 1)} for mode, hits in lists.items()}
    relevant = [docid for docid, grade in grades.items() if grade >= config.rel_level]
    answers = [docid for docid in relevant if searcher.row(docid) is not None]
    shown = {mode: _to_show([h.docid for h in hits], set(answers), config) for mode, hits in lists.items()}
    wanted = list(dict.fromkeys([*answers, *(docid for listed in shown.values() for docid in listed)]))
    documents = {
        hit.explanation.docid: Shown(
            docid=hit.explanation.docid,
            grade=grades.get(hit.explanation.docid),
            ranks={mode: places[mode].get(hit.explanation.docid) for mode in LISTS},
            score=hit.explanation.score,
            dense=hit.explanation.dense or 0.0,
            impact=hit.explanation.impact or 0.0,
            matched=len(hit.explanation.terms),
            terms=tuple(hit.explanation.terms[: config.terms]),
            matching=hit.words[: config.terms],
            matching_words=len(hit.words),
            title=hit.document.title if hit.document else "",
            text=hit.document.text if hit.document else "",
        )
        for hit in searcher.describe(query.text, wanted)
    }
    return Case(
        qid=query.qid,
        query=query.text,
        judged=bool(grades),
        within=config.within,
        depth=config.depth,
        answers=tuple(sorted(answers, key=lambda d: (-grades[d], documents[d].ranks["hybrid"] or sys.maxsize, d))),
        absent=tuple(docid for docid in relevant if docid not in documents),
        lists={mode: tuple(listed) for mode, listed in shown.items()},
        documents=documents,
    )


def _to_show(docids: list[str], answers: set[str], config: CaseConfig) -> list[str]:
    """The first hits of a list, and its first answer if that has a lower rank but is found."""
    first, rest = docids[: config.hits], docids[config.hits : config.within]
    if answers & set(first):
        return first
    return first + [docid for docid in rest if docid in answers][:1]


def _with_texts(case: Case, documents: Mapping[str, Document]) -> Case:
    found = {
        docid: replace(shown, title=documents[docid].title, text=documents[docid].text) if docid in documents else shown
        for docid, shown in case.documents.items()
    }
    return replace(case, documents=found)


def _judgements(config: CaseConfig) -> Qrels:
    """The judgements of ``--qrels``, else those of the published queries."""
    if config.qrels:
        return read_qrels(config.qrels, config.split)
    return {q.qid: {q.answer: 1} for q in published().values()} if config.published else {}


def _queries(config: CaseConfig) -> list[Query]:
    """The queries of the study; with ``--find``, all topics."""
    if config.query is not None:
        return [Query(config.qid[0] if config.qid else "", config.query)]
    if config.published:
        return [Query(q.qid, q.text) for q in published().values()]
    assert config.topics
    topics = {topic.qid: topic for topic in read_topics(config.topics)}
    if config.find:
        return list(topics.values())
    for qid in config.qid:
        if qid not in topics:
            raise UnknownName(f"{config.topics} has no topic {qid!r}.{suggest(qid, topics)}")
        if not topics[qid].text.strip():
            raise UsageError(f"{config.topics}: topic {qid!r} is blank, so there is nothing to search")
    return [topics[qid] for qid in dict.fromkeys(config.qid)]
