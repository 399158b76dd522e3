"""The case study of DupMAE's appendix A: one query, three lists.

python eval/studies/case.py --index runs/demo/index --query "how do I wait for a thread to end"
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from case_report import (
    FINDS,
    LISTS,
    CaseStudy,
    CaseTally,
    ShownDocument,
    as_json,
    first_ranks,
    render,
)
from study import study

from dupmae_ir.config import ComputeOptions, OneOf, OutputOptions, Requires, option, read_toml
from dupmae_ir.errors import UnknownName, UsageError
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.topics import read_topics
from dupmae_ir.registry import suggest
from dupmae_ir.search.answers import find_documents
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.types import Document, Hit, Qrels, Query

DATA = Path(__file__).with_name("published.toml")


@dataclass(frozen=True, kw_only=True)
class CaseConfig(ComputeOptions, OutputOptions):
    r"""The case study of the DupMAE paper's appendix for your own queries: what the [CLS] vectors retrieve, what the OT
    weights retrieve, what their sum retrieves, the terms that each document matched, and the rank of every judged
    answer in the three lists. As in the paper, a list succeeds if an answer is among its first 10. --find searches all
    judged topics for queries that one part answers and the other does not (DupMAE, Tables 5 and 6), counts them and
    shows the clearest; --published shows the paper's own four queries beside the ranks that it prints.

    Examples:
        python eval/studies/case.py --index I --query "how do I wait for a thread to end" --corpus corpus.jsonl
        python eval/studies/case.py --index runs/demo/index --topics runs/demo/collection/queries.jsonl \
            --qid q069 q091 --qrels runs/demo/collection --corpus runs/demo/collection --format html --output cases.html
        python eval/studies/case.py --index runs/demo/index --topics runs/demo/collection/queries.jsonl \
            --qrels runs/demo/collection --corpus runs/demo/collection --find cls-hit-ot-miss --most 3
        python eval/studies/case.py --index indexes/dupmae-msmarco --published --corpus msmarco-passage/corpus.jsonl
    """

    RULES: ClassVar[tuple[OneOf | Requires, ...]] = (
        OneOf(("query", "topics", "published")),
        OneOf(("qid", "find"), required=False),
        OneOf(("qid", "published"), required=False),
        Requires("topics", ("qid", "find")),
        Requires("qrels", ("qid", "find", "published")),
        Requires("find", ("topics",)),
        Requires("find", ("qrels",)),
        Requires("remove_query", ("qid", "find", "published")),
    )

    index: str = option(help="index folder with both parts", group="input", metavar="FOLDER")
    query: str | None = option(None, "text of one query", group="input", metavar="TEXT")
    topics: str | None = option(
        None, "topics file; select queries with --qid or --find", group="input", metavar="FILE"
    )
    qid: tuple[str, ...] = option(
        (),
        "queries of --topics; with --query, the id of the query in --qrels",
        group="input",
        metavar="QID",
    )
    published: bool = option(
        False,
        "the four queries of DupMAE's Tables 5 and 6 (MS MARCO dev), with the ranks that the paper prints",
        group="input",
    )
    qrels: str | None = option(
        None,
        "judgements (TREC, BEIR, or a BEIR folder), to report the ranks of answers",
        group="input",
        metavar="PATH",
    )
    split: str = option(
        "test", "which qrels/SPLIT.tsv of a BEIR folder", group="input", metavar="SPLIT"
    )
    corpus: str | None = option(
        None, "the collection, to show titles and texts (read once)", group="input", metavar="PATH"
    )
    find: str | None = option(
        None,
        "search all judged topics and show those that [CLS], OT and their sum answer in this way, best rank first",
        group="study",
        choices=tuple(FINDS),
    )
    most: int = option(2, "cases shown of those found", group="study", at_least=1, only_with="find")
    rel_level: int = option(1, "smallest grade of an answer", group="study", at_least=1)
    within: int = option(
        10, "ranks within which an answer counts as found", group="study", at_least=1
    )
    depth: int = option(
        1000, "length of the lists in which ranks are looked up", group="study", at_least=1
    )
    hits: int = option(
        3,
        "documents shown per list; the first answer within --within is always shown",
        group="study",
        at_least=1,
    )
    terms: int = option(
        6, "matched terms shown per document, strongest first", group="study", at_least=0
    )
    remove_query: bool = option(
        False, "remove the document with the topic's own id (ArguAna, Quora)", group="study"
    )
    model: str | None = option(
        None,
        "model folder (default: the one recorded in the index)",
        group="query encoder",
        metavar="FOLDER",
    )
    format: str = option(
        "text", "output format", group="output", choices=("text", "markdown", "html", "json")
    )
    output: str | None = option(
        None, "file to write instead of printing", group="output", metavar="FILE"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.query is not None and not self.query.strip():
            raise UsageError("`query` is blank")
        if self.query is not None and len(self.qid) > 1:
            raise UsageError("`query` is one query; give at most one `qid` with it")
        if self.depth < max(self.within, self.hits):
            raise UsageError(
                f"`depth` {self.depth} is less than `within` {self.within} or `hits` {self.hits}"
            )


@dataclass(frozen=True)
class Published:
    """One query. ``cls`` and ``ot``: printed rank of the answer; None: missed within the first 10."""

    qid: str  #: of MS MARCO's passage dev set
    text: str
    answer: str  #: docid of the relevant passage
    source: str
    cls: int | None = None
    ot: int | None = None

    @property
    def sentence(self) -> str:
        """What the paper prints."""
        ranks = {"[CLS]": self.cls, "OT": self.ot}
        words = (
            f"{name} rank {rank}" if rank else f"{name} misses" for name, rank in ranks.items()
        )
        return f"{self.source}: {', '.join(words)}"


def published() -> dict[str, Published]:
    """Query id -> query, in the order of the tables."""
    return {row["qid"]: Published(**row) for row in read_toml(DATA)["query"]}


@dataclass(frozen=True)
class CaseStudies:
    """The cases, and with ``--find`` the counts over all topics."""

    cases: list[CaseStudy]
    tally: CaseTally | None = None

    def text(self, config: CaseConfig) -> str:
        """The studies in the format of ``config``."""
        return render(self.cases, config.format, self.tally)


def run(config: CaseConfig) -> CaseStudies:
    """One :class:`CaseStudy` per query; also written to ``config.output``. Raises :class:`DupmaeError` subclasses."""
    queries, judged = _queries(config), _judgements(config)
    if config.find:
        queries = [query for query in queries if query.qid in judged and query.text.strip()]
    for query in queries:
        if config.qrels and query.qid not in judged:
            raise UnknownName(
                f"{config.qrels} has no judgements for query {query.qid!r}.{suggest(query.qid, judged)}"
            )
    searcher = Searcher.open(
        config.index, config.model, device=config.device, dtype=config.dtype, threads=config.threads
    )
    tally = None
    if config.find:
        tally = find(searcher, queries, judged, config)
        chosen = [ranks.qid for ranks in tally.found[: config.most]]
        queries = sorted((q for q in queries if q.qid in chosen), key=lambda q: chosen.index(q.qid))
    cases = study_queries(searcher, queries, judged, config) if queries else []
    documents = find_documents(config.corpus, {docid for case in cases for docid in case.documents})
    known = published() if config.published else {}
    cases = [
        replace(_with_texts(c, documents), paper=known[c.qid].sentence if c.qid in known else "")
        for c in cases
    ]
    studies = CaseStudies(cases, tally)
    if config.output is not None:
        with atomic_write(config.output) as file:
            file.write(studies.text(config) + "\n")
    return studies


def find(
    searcher: Searcher, queries: Sequence[Query], judged: Qrels, config: CaseConfig
) -> CaseTally:
    """Search all ``queries`` in the three modes and count which of them are answered within ``config.within``.

    Raises :class:`UsageError` if no query has an answer in the index.
    """
    answers = {
        q.qid: {
            d
            for d, grade in judged[q.qid].items()
            if grade >= config.rel_level and searcher.row(d) is not None
        }
        for q in queries
    }
    queries = [query for query in queries if answers[query.qid]]
    if not queries:
        raise UsageError(
            f"no topic of {config.topics} has an answer of {config.qrels} in {config.index}; "
            "check that the three belong together"
        )
    lists = {
        mode: searcher.search(queries, config.within, mode, remove_query=config.remove_query)
        for mode in LISTS
    }
    ranks = tuple(
        first_ranks(
            qid,
            {mode: [h.docid for h in lists[mode][qid]] for mode in LISTS},
            answers[qid],
            config.within,
        )
        for qid in (query.qid for query in queries)
    )
    assert config.find
    found = sum(r.satisfies(config.find) for r in ranks)
    return CaseTally(config.find, config.within, ranks, min(found, config.most))


def study_queries(
    searcher: Searcher, queries: Sequence[Query], judged: Qrels, config: CaseConfig
) -> list[CaseStudy]:
    """The three lists of each query and the data of the documents to show, without titles and texts."""
    runs: dict[str, dict[str, list[Hit]]] = {
        mode: searcher.search(queries, config.depth, mode, remove_query=config.remove_query)
        for mode in LISTS
    }
    return [
        _case(
            searcher,
            query,
            {mode: runs[mode][query.qid] for mode in LISTS},
            judged.get(query.qid, {}),
            config,
        )
        for query in queries
    ]


def _case(
    searcher: Searcher,
    query: Query,
    lists: dict[str, list[Hit]],
    grades: Mapping[str, int],
    config: CaseConfig,
) -> CaseStudy:
    ranks = {
        mode: {hit.docid: rank for rank, hit in enumerate(hits, 1)} for mode, hits in lists.items()
    }
    relevant = [docid for docid, grade in grades.items() if grade >= config.rel_level]
    answers = [docid for docid in relevant if searcher.row(docid) is not None]
    shown = {
        mode: _to_show([h.docid for h in hits], set(answers), config)
        for mode, hits in lists.items()
    }
    wanted = list(
        dict.fromkeys([*answers, *(docid for listed in shown.values() for docid in listed)])
    )
    documents = {
        hit.explanation.docid: ShownDocument(
            docid=hit.explanation.docid,
            grade=grades.get(hit.explanation.docid),
            ranks={mode: ranks[mode].get(hit.explanation.docid) for mode in LISTS},
            score=hit.explanation.score,
            dense=hit.explanation.dense or 0.0,
            impact=hit.explanation.impact or 0.0,
            matched=len(hit.explanation.terms),
            terms=tuple(hit.explanation.terms[: config.terms]),
            matching=hit.words[: config.terms],
            matching_words=len(hit.words),
            weights=hit.explanation.weights[:2],
            title=hit.document.title if hit.document else "",
            text=hit.document.text if hit.document else "",
        )
        for hit in searcher.describe(query.text, wanted)
    }
    return CaseStudy(
        qid=query.qid,
        query=query.text,
        judged=bool(grades),
        within=config.within,
        depth=config.depth,
        answers=tuple(
            sorted(
                answers, key=lambda d: (-grades[d], documents[d].ranks["hybrid"] or sys.maxsize, d)
            )
        ),
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


def _with_texts(case: CaseStudy, documents: Mapping[str, Document]) -> CaseStudy:
    found = {
        docid: replace(shown, title=documents[docid].title, text=documents[docid].text)
        if docid in documents
        else shown
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
            raise UsageError(
                f"{config.topics}: topic {qid!r} is blank, so there is nothing to search"
            )
    return [topics[qid] for qid in dict.fromkeys(config.qid)]


main = study(
    "case",
    CaseConfig,
    run,
    lambda config, studies: "" if config.output else studies.text(config),
    lambda studies: json.loads(as_json(studies.cases, studies.tally)),
    lambda config: f"case study: {config.output}" if config.output else "",
)

if __name__ == "__main__":
    sys.exit(main())
