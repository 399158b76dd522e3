"""``python -m dupmae_ir.eval.case``: one query, three lists (DupMAE, appendix A); see ``--help``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dupmae_ir.config import option, parse
from dupmae_ir.console import Parser, guarded, say
from dupmae_ir.errors import UnknownName, UsageError
from dupmae_ir.eval.reports.case import FORMATS, LISTS, Case, Shown
from dupmae_ir.registry import suggest
from dupmae_ir.types import Document, Hit, Qrels, Query

if TYPE_CHECKING:
    from dupmae_ir.search.searcher import Searcher

PURPOSE = """
The case study of the DupMAE paper's appendix for queries of your own: what the [CLS] vectors find, what the OT weights
find, what their sum finds, which terms carried each document, and at which rank every judged answer stands in the three
lists. As in the paper, a list succeeds when an answer is among its first 10.
"""
EXAMPLES = """
python -m dupmae_ir.eval.case --index I --query "how do I wait for a thread to end" --corpus corpus.jsonl
python -m dupmae_ir.eval.case --index runs/demo/index --topics runs/demo/collection/queries.jsonl --qid q069 q091 \\
    --qrels runs/demo/collection --corpus runs/demo/collection --format html --output cases.html
"""


@dataclass(frozen=True)
class CaseConfig:
    """Everything that ``python -m dupmae_ir.eval.case`` can be told."""

    index: str = option(help="index folder with both parts", group="what", metavar="FOLDER")
    query: str | None = option(None, "the words of one query", group="what", metavar="TEXT")
    topics: str | None = option(None, "or topics, of which --qid chooses", group="what", metavar="FILE")
    qid: tuple[str, ...] = option(
        (), "queries of --topics; with --query, whose judgements are meant", group="what", metavar="QID"
    )
    qrels: str | None = option(
        None, "judgements (TREC, BEIR, or a BEIR folder), to say where the answers stand", group="what", metavar="PATH"
    )
    split: str = option("test", "which qrels/SPLIT.tsv of a BEIR folder", group="what", metavar="SPLIT")
    corpus: str | None = option(
        None, "the collection, to show titles and texts (read once through)", group="what", metavar="PATH"
    )
    rel_level: int = option(1, "smallest grade of an answer", group="how")
    within: int = option(10, "ranks within which an answer counts as found", group="how")
    depth: int = option(1000, "length of the lists in which ranks are looked up", group="how")
    hits: int = option(3, "documents shown of each list; the first answer within --within is always shown", group="how")
    terms: int = option(6, "matched terms shown of a document, strongest first", group="how")
    remove_query: bool = option(False, "leave out the document whose id is the topic's (ArguAna, Quora)", group="how")
    model: str | None = option(
        None, "model folder (default: the one the index names)", group="query encoder", metavar="FOLDER"
    )
    device: str = option("auto", "auto, cpu, cuda, cuda:N or mps", group="query encoder", metavar="NAME")
    format: str = option("text", "how to write", group="output", choices=tuple(FORMATS))
    output: str | None = option(None, "file to write instead of printing", group="output", metavar="FILE")
    json: bool = option(False, "the same as --format json", group="output")
    quiet: bool = option(False, "no messages", group="output")


def run(config: CaseConfig) -> list[Case]:
    """One :class:`Case` for each query. Raises :class:`DupmaeError` subclasses."""
    check(config)
    from dupmae_ir.io.qrels import read_qrels
    from dupmae_ir.search.run import find_documents
    from dupmae_ir.search.searcher import Searcher

    queries = _queries(config)
    judged = read_qrels(config.qrels, config.split) if config.qrels else {}
    for query in queries:
        if config.qrels and query.qid not in judged:
            raise UnknownName(f"{config.qrels} judges no query {query.qid!r}.{suggest(query.qid, judged)}")
    searcher = Searcher.open(config.index, config.model, device=config.device)
    cases = study(searcher, queries, judged, config)
    documents = find_documents(config.corpus, {docid for case in cases for docid in case.documents})
    return [_with_words(case, documents) for case in cases]


def check(config: CaseConfig) -> None:
    """Refuse what means nothing, before anything is opened."""
    if (config.query is None) == (config.topics is None):
        raise UsageError("give either --query TEXT or --topics FILE with --qid QID")
    if config.query is not None and not config.query.strip():
        raise UsageError("--query is blank; ask something")
    if config.query is not None and len(config.qid) > 1:
        raise UsageError("--query is one query; give at most one --qid with it")
    if config.topics is not None and not config.qid:
        raise UsageError(f"--topics {config.topics}: say which of them by --qid QID ...")
    if config.qrels is not None and not config.qid:
        raise UsageError(f"--qrels {config.qrels}: say whose judgements are meant by --qid QID")
    if config.remove_query and not config.qid:
        raise UsageError("--remove-query: name the query by --qid QID")
    for name in ("rel_level", "within", "depth", "hits"):
        if getattr(config, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(config, name)}")
    if config.terms < 0:
        raise UsageError(f"--terms must be 0 or more, got {config.terms}")
    if config.depth < max(config.within, config.hits):
        raise UsageError(f"--depth {config.depth} is less than --within {config.within} or --hits {config.hits}")


def study(searcher: Searcher, queries: Sequence[Query], judged: Qrels, config: CaseConfig) -> list[Case]:
    """The three lists of each query and what is known of the documents to show, without titles and texts."""
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
    wanted = list(dict.fromkeys([*answers, *(docid for found in shown.values() for docid in found)]))
    documents = {
        why.docid: Shown(
            docid=why.docid,
            grade=grades.get(why.docid),
            ranks={mode: places[mode].get(why.docid) for mode in LISTS},
            score=why.score,
            dense=why.dense or 0.0,
            impact=why.impact or 0.0,
            matched=len(why.terms),
            terms=tuple(why.terms[: config.terms]),
        )
        for why in searcher.explain_all(query.text, wanted)
    }
    return Case(
        qid=query.qid,
        query=query.text,
        judged=bool(grades),
        within=config.within,
        depth=config.depth,
        answers=tuple(sorted(answers, key=lambda d: (-grades[d], documents[d].ranks["hybrid"] or sys.maxsize, d))),
        absent=tuple(docid for docid in relevant if docid not in documents),
        lists={mode: tuple(found) for mode, found in shown.items()},
        documents=documents,
    )


def _to_show(docids: list[str], answers: set[str], config: CaseConfig) -> list[str]:
    """The first of a list, and its first answer where that is found but stands lower."""
    first, rest = docids[: config.hits], docids[config.hits : config.within]
    if answers & set(first):
        return first
    return first + [docid for docid in rest if docid in answers][:1]


def _with_words(case: Case, documents: Mapping[str, Document]) -> Case:
    found = {
        docid: replace(shown, title=documents[docid].title, text=documents[docid].text) if docid in documents else shown
        for docid, shown in case.documents.items()
    }
    return replace(case, documents=found)


def _queries(config: CaseConfig) -> list[Query]:
    from dupmae_ir.io.topics import read_topics

    if config.query is not None:
        return [Query(config.qid[0] if config.qid else "", config.query)]
    assert config.topics
    topics = {topic.qid: topic for topic in read_topics(config.topics)}
    for qid in config.qid:
        if qid not in topics:
            raise UnknownName(f"{config.topics} has no topic {qid!r}.{suggest(qid, topics)}")
        if not topics[qid].text.strip():
            raise UsageError(f"{config.topics}: topic {qid!r} is blank, so there is nothing to search")
    return [topics[qid] for qid in dict.fromkeys(config.qid)]


def _write(config: CaseConfig, text: str) -> int:
    from dupmae_ir.io.publishing import atomic_write

    if config.output is None:
        sys.stdout.write(text + "\n")
        return 0
    with atomic_write(config.output) as file:
        file.write(text + "\n")
    say(f"case study: {config.output}", config.quiet)
    return 0


def _main(argv: list[str] | None) -> int:
    config: Any = parse(Parser("eval.case", PURPOSE, EXAMPLES), CaseConfig, argv)
    return _write(config, FORMATS["json" if config.json else config.format](run(config)))


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    return guarded(lambda: _main(argv), "dupmae-ir eval.case")


if __name__ == "__main__":
    sys.exit(main())
