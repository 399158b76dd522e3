"""The work of ``dupmae-ir search``: topics to a run file, one query to its hits, or one query after the other."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dupmae_ir.console import progress, say
from dupmae_ir.errors import UsageError
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.runs import open_run
from dupmae_ir.io.topics import read_topics
from dupmae_ir.search.answers import Engine, checks_of, described_answer, open_engine
from dupmae_ir.search.config import RUN_HITS, SearchConfig
from dupmae_ir.search.exact.hits import best_passages, without
from dupmae_ir.search.exact.ranking import Answer
from dupmae_ir.search.view.shell import converse
from dupmae_ir.search.view.summary import RunCounts
from dupmae_ir.types import LazyEncoder, Query


def run(config: SearchConfig) -> dict[str, Any]:
    """Search. Returns the summary of the run file, or the hits of ``config.query``, or the number of queries answered.

    Raises :class:`DupmaeError` subclasses. An existing run file stays in place until the new one is complete.
    """
    _check_paths(config)
    if config.interactive:
        return {"queries": converse(config)}
    if config.query is None:
        return _search_topics(config)
    return described_answer(config, open_engine(config), config.query, config.explain)


def _search_topics(config: SearchConfig) -> dict[str, Any]:
    assert config.output
    topics = _topics(config)
    engine = open_engine(config)
    if engine.searcher and isinstance(engine.searcher.encoder, LazyEncoder) and len(topics) > 1:
        engine.searcher.encoder.whole()  # before the clock starts
    checks = checks_of(engine)
    counts = RunCounts(not checks.get("not_sealed"))
    started = time.perf_counter()
    with ExitStack() as files:
        out = files.enter_context(open_run(config.output, config.tag or f"dupmae-ir-{engine.name}", config.format))
        report = files.enter_context(atomic_write(config.report)) if config.report else None
        bar = files.enter_context(progress("search", "topics", len(topics), config.quiet))
        for answer in _documents(config, engine, topics, counts):
            out.add(answer.query.qid, answer.hits)
            counts.add(answer)
            if report and answer.report:
                report.write(json.dumps(dataclasses.asdict(answer.report), ensure_ascii=False) + "\n")
            bar.update()
    described = engine.described()
    return {
        "output": config.output,
        "index": config.where,
        "mode": engine.name,
        **{name: described[name] for name in ("impact_search", "impact_search_reason") if name in described},
        "topics": len(topics),
        **({"dense_index": described["dense_index"]} if described.get("dense_index") else {}),
        **{name: described[name] for name in ("bm25", "server") if name in described},
        **({"within": described["within"]} if "within" in described else {}),
        **counts.as_dict(),
        **checks,
        "seconds": round(time.perf_counter() - started, 3),
    }


def _documents(config: SearchConfig, engine: Engine, topics: Sequence[Query], counts: RunCounts) -> Iterator[Answer]:
    """The answers; with ``--max-passage``, with passages replaced by their documents."""
    hits = config.hits or RUN_HITS
    if not config.max_passage:
        yield from engine.answers(topics, hits)
        return
    depth = config.passage_hits or 10 * hits
    for answer in engine.answers(topics, depth):
        found = best_passages(answer.hits)
        kept = without(found, answer.query.qid, hits) if config.remove_query else found[:hits]
        if len(kept) < hits and len(answer.hits) == depth:
            counts.short.append(answer.query.qid)
        yield dataclasses.replace(answer, hits=kept)


def _topics(config: SearchConfig) -> list[Query]:
    assert config.topics
    topics = read_topics(config.topics)
    if config.qrels is None:
        return topics
    judged = read_qrels(config.qrels)
    kept = [query for query in topics if query.qid in judged]
    if not kept:
        raise UsageError(
            f"{config.qrels} has judgements for none of the {len(topics)} topics; check that it belongs to "
            f"{config.topics}"
        )
    if absent := len(judged) - len(kept):
        say(f"note: {absent} judged topics are not in {config.topics}", config.quiet)
    return kept


def _check_paths(config: SearchConfig) -> None:
    if config.output and config.report and Path(config.output).absolute() == Path(config.report).absolute():
        raise UsageError("`output` and `report` name the same file")
    for path in (config.output, config.report):
        if path and Path(path).is_dir():
            raise UsageError(f"{path} is a folder; name a file to write")
