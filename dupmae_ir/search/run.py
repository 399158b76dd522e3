"""The work of ``dupmae-ir search``: topics to a run file, one query to its hits, or one query after the other."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from dupmae_ir.console import progress, say
from dupmae_ir.errors import UsageError
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.runs import open_run
from dupmae_ir.io.topics import read_topics
from dupmae_ir.search.answers import TopicSearch, answer_query, open_search
from dupmae_ir.search.config import RUN_HITS, SearchConfig
from dupmae_ir.search.exact.hits import best_passages, without
from dupmae_ir.search.exact.ranking import Answer
from dupmae_ir.search.view.results import QueryAnswer, RunSummary
from dupmae_ir.search.view.shell import converse
from dupmae_ir.types import LazyEncoder, Query


def run(config: SearchConfig) -> RunSummary | QueryAnswer | None:
    """Search. Returns the summary of the run file, or the answer to ``config.query``; None after an interactive search.

    Raises :class:`DupmaeError` subclasses. An existing run file stays in place until the new one is complete.
    """
    if (
        config.output
        and config.report
        and Path(config.output).absolute() == Path(config.report).absolute()
    ):
        raise UsageError("`output` and `report` name the same file")
    for path in (config.output, config.report):
        if path and Path(path).is_dir():
            raise UsageError(f"{path} is a folder; name a file to write")
    if config.interactive:
        converse(config)
        return None
    if config.query is None:
        return _search_topics(config)
    return answer_query(config, open_search(config), config.query, config.explain)


def _search_topics(config: SearchConfig) -> RunSummary:
    assert config.output
    topics = _topics(config)
    search = open_search(config)
    encoder = search.searcher.encoder if search.searcher else None
    if isinstance(encoder, LazyEncoder) and not encoder.is_quick(len(topics)):
        # Loaded before the clock starts: the reported time is that of searching.
        encoder.whole()
    if search.searcher:
        search.searcher.load_reranker()
    summary = RunSummary(search.searched(), config.output, len(topics))
    started = time.perf_counter()
    with ExitStack() as files:
        out = files.enter_context(
            open_run(config.output, config.tag or f"dupmae-ir-{search.name}", config.format)
        )
        report = files.enter_context(atomic_write(config.report)) if config.report else None
        bar = files.enter_context(progress("search", "topics", len(topics), config.quiet))
        for answer in _documents(config, search, topics, summary):
            out.add(answer.query.qid, answer.hits)
            summary.add(answer)
            if report and answer.report:
                report.write(json.dumps(vars(answer.report), ensure_ascii=False) + "\n")
            bar.update()
    summary.seconds = time.perf_counter() - started
    return summary


def _documents(
    config: SearchConfig, search: TopicSearch, topics: Sequence[Query], summary: RunSummary
) -> Iterator[Answer]:
    """The answers; with ``--max-passage``, with passages replaced by their documents."""
    hits = config.hits or RUN_HITS
    if not config.max_passage:
        yield from search.answers(topics, hits)
        return
    depth = config.passage_hits or 10 * hits
    for answer in search.answers(topics, depth):
        documents = best_passages(answer.hits)
        if config.remove_query:
            best = without(documents, answer.query.qid, hits)
        else:
            best = documents[:hits]
        # The list of passages was full, so a longer one might have had more documents.
        if len(best) < hits and len(answer.hits) == depth:
            summary.short.append(answer.query.qid)
        yield dataclasses.replace(answer, hits=best)


def _topics(config: SearchConfig) -> list[Query]:
    assert config.topics
    topics = read_topics(config.topics)
    if config.qrels is None:
        return topics
    judgements = read_qrels(config.qrels)
    judged = [query for query in topics if query.qid in judgements]
    if not judged:
        raise UsageError(
            f"{config.qrels} has judgements for none of the {len(topics)} topics; check that it belongs to "
            f"{config.topics}"
        )
    absent = len(judgements) - len(judged)
    if absent:
        say(f"note: {absent} judged topics are not in {config.topics}", config.quiet)
    return judged
