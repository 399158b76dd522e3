"""The work of ``finetune.mine``: hard negatives for every query, from BM25, from a search with a model, or from both.

A negative is a passage that the search ranks high and that is no positive of the query: neither by id nor, since
collections contain copies, by text. By default all of them are kept: the trainer samples from the list, as the papers
do from the top 200.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from dupmae_ir.config import subset
from dupmae_ir.console import progress, say
from dupmae_ir.device import pick_device, pick_encoding, processors
from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.run import run as encode
from dupmae_ir.errors import CheckpointError, InputError
from dupmae_ir.finetune.data import (
    IdTable,
    counted,
    files_digest,
    hard_negatives,
    mined_line,
    text_key,
    write_file,
)
from dupmae_ir.finetune.mine import PARTS, MineConfig, SearchOptions
from dupmae_ir.finetune.pairs import read_pairs
from dupmae_ir.index.config import Bm25Config, PostingsConfig
from dupmae_ir.index.lucene.bm25 import BM25Searcher
from dupmae_ir.index.postings.format import folder_of
from dupmae_ir.index.run import run_bm25, run_postings
from dupmae_ir.io.collections import LinesCollection
from dupmae_ir.io.jobs import Job
from dupmae_ir.io.lines import ResumableJsonl, json_lines
from dupmae_ir.io.publishing import combined_digest
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.topics import read_topics
from dupmae_ir.models.checkpoints.layout import folder_digest
from dupmae_ir.models.names import model_folder
from dupmae_ir.search.fusion import rrf
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.types import Document, Hit, Query

WINDOW = 512
"""Queries searched between two saves."""
MAX_RECORDED_QUERIES = 10
"""Queries without a negative that the record names."""


def run(config: MineConfig) -> dict[str, object]:
    """Mine, write ``config.output`` and its record, and return the counts.

    Raises :class:`DupmaeError` subclasses; see :mod:`dupmae_ir.io.jobs` for what a second run returns.
    """
    # The seed matters only if negatives are sampled; None leaves it out of the record.
    settings: dict[str, object] = {"seed": None}
    if config.negatives:
        settings["seed"] = config.seed
    if config.model:
        device, _ = pick_device(config.device)
        settings["dtype"], _, _ = pick_encoding(config.dtype or "float32", device)
    return write_file(
        config,
        "finetune.mine",
        ("pairs", "topics", "qrels", "collection", "model"),
        lambda job: _Mining(config, job).run(),
        # A folder of pairs may be a saved dataset: all its files count.
        {"model": model_digest, "pairs": partial(files_digest, patterns=("**/*",))},
        **settings,
    )


@dataclass
class MiningQuery:
    """A query and its positives by id; None for a passage that has not been read yet."""

    qid: str
    text: str
    positives: dict[str, Document | None] = field(default_factory=dict)


class _Mining:
    """One job, from the queries to the published file."""

    def __init__(self, config: MineConfig, job: Job) -> None:
        self.config = config
        self.job = job
        self.counts: dict[str, int] = {}
        self.collection_digest = ""

    def run(self) -> dict[str, object]:
        """Mine what an interrupted job has left, publish the lines, and return the result."""
        config = self.config
        started = time.monotonic()
        work = self.job.begin()
        if config.topics:
            queries = self._judged_queries(config.topics)
        else:
            queries = self._paired_queries()
        if config.collection:
            source = config.collection
            recorded_collection = config.collection
        else:
            pool = self._write_pool()
            source = str(pool)
            # It is in the folder of the output, and moves with it.
            recorded_collection = pool.name
        keys = self._read_collection(source, queries)
        queries = self._with_positives(queries, keys)
        lines = ResumableJsonl(work / "lines.jsonl", len(queries), WINDOW)
        if lines.done:
            say(f"resuming after {lines.done:,} of {len(queries):,} queries", config.quiet)
        if lines.done < len(queries):
            search = open_search(config, source, work)
            with progress("mine", "queries", len(queries), config.quiet, lines.done) as bar:
                for start in range(lines.done, len(queries), WINDOW):
                    window = queries[start : start + WINDOW]
                    hits = search([Query(query.qid, query.text) for query in window])
                    lines.append([self._line(query, hits[query.qid], keys) for query in window])
                    bar.update(len(window))
        extra: dict[str, object] = {
            "collection": recorded_collection,
            "pool": not config.collection,
            "collection_digest": self.collection_digest,
        }
        result = self.job.publish(lines.path, self._total(lines), extra)
        return result | {"seconds": round(time.monotonic() - started, 1)}

    def _judged_queries(self, path: str) -> list[MiningQuery]:
        """The topics with judgements. Judged queries without a topic are counted; other topics are ignored."""
        config = self.config
        assert config.qrels
        topics = read_topics(path)
        qrels = read_qrels(config.qrels, config.split)
        absent = sorted(set(qrels) - {topic.qid for topic in topics})
        if len(absent) == len(qrels):
            raise InputError(
                f"{config.qrels}: has judgements for none of the {len(topics):,} topics of {path}"
            )
        if absent:
            what = counted(
                absent, f"judged query is not in {path}", f"judged queries are not in {path}"
            )
            say(f"note: {what}", config.quiet)
        self.counts["judged_without_topic"] = len(absent)
        queries = []
        for topic in topics:
            if topic.qid in qrels:
                query = MiningQuery(topic.qid, topic.text)
                for docid, grade in qrels[topic.qid].items():
                    if grade > 0:
                        query.positives[docid] = None
                queries.append(query)
        return queries

    def _paired_queries(self) -> list[MiningQuery]:
        """The distinct queries of the pairs, each with an id derived from its text."""
        queries: dict[str, MiningQuery] = {}
        pair_count = 0
        for path in self.config.pairs:
            for pair in read_pairs(path):
                pair_count += 1
                query = queries.get(pair.query)
                if query is None:
                    query = MiningQuery(f"q-{_digest(pair.query)}", pair.query)
                    queries[pair.query] = query
                query.positives.setdefault(_docid(pair.positive), pair.positive)
        self.counts["pairs"] = pair_count
        return list(queries.values())

    def _write_pool(self) -> Path:
        """Write the passages of the pairs as a collection next to the output, in order of appearance.

        Raises :class:`InputError` if two passages have the same id.
        """
        passages: dict[str, Document] = {}
        for path in self.config.pairs:
            for document in _passages_of_pairs(path):
                docid = _docid(document)
                first = passages.setdefault(docid, document)
                if (first.title, first.text) != (document.title, document.text):
                    raise InputError(
                        f"{path}: id {docid!r} names two different passages; make the ids unique"
                    )
        target = self.job.target
        pool = target.with_name(f"{target.name}.passages.jsonl")
        with json_lines(pool) as write:
            for docid, document in passages.items():
                write({"_id": docid, "title": document.title, "text": document.text})
        return pool

    def _read_collection(self, source: str, queries: Iterable[MiningQuery]) -> IdTable:
        """Read the collection once: text keys by docid, and the positives of which only the id was known."""
        missing: dict[str, list[MiningQuery]] = {}
        for query in queries:
            for docid, positive in query.positives.items():
                if positive is None:
                    missing.setdefault(docid, []).append(query)
        collection = LinesCollection(source)
        keys = IdTable()
        with progress("read", "passages", quiet=self.config.quiet) as bar:
            for document in collection:
                for query in missing.get(document.docid, ()):
                    query.positives[document.docid] = document
                keys.add(document.docid, text_key(document))
                bar.update()
        self.collection_digest = combined_digest(file.sha256 for file in collection.inputs)
        return keys

    def _with_positives(self, queries: list[MiningQuery], keys: IdTable) -> list[MiningQuery]:
        """The queries with a positive. A judged positive that the collection lacks is an error, or counted."""
        config = self.config
        unknown = []
        for query in queries:
            for docid in query.positives:
                if keys.get(docid) is None:
                    unknown.append(f"{docid} of query {query.qid}")
        if unknown:
            where = f"not in {config.collection}"
            what = counted(unknown, f"positive is {where}", f"positives are {where}")
            if config.qrels and config.unknown == "refuse":
                raise InputError(
                    f"{config.qrels}: {what}; give the collection they belong to, or `unknown` skip"
                )
            say(f"note: {what}", config.quiet)
        usable = []
        without_positive = []
        for query in queries:
            query.positives = dict(_read_positives(query))
            if query.positives:
                usable.append(query)
            else:
                without_positive.append(query.qid)
        if without_positive:
            what = counted(
                without_positive,
                "query has no positive and is left out",
                "queries have no positive and are left out",
            )
            say(f"note: {what}", config.quiet)
        if not usable:
            raise InputError(
                f"{config.qrels or config.pairs[0]}: no query has a positive; nothing to mine"
            )
        self.counts |= {
            "queries": len(usable),
            "positives": sum(len(query.positives) for query in usable),
            "unknown_positives": len(unknown),
            "queries_without_positive": len(without_positive),
        }
        return usable

    def _line(self, query: MiningQuery, hits: Sequence[Hit], keys: IdTable) -> dict[str, object]:
        config = self.config
        positives = _read_positives(query)
        answers = set(map(text_key, positives.values()))
        # The collection's text of a positive's id may differ from the text in the pair.
        for docid in query.positives:
            key = keys.get(docid)
            if key is not None:
                answers.add(key)
        excluded = set(query.positives)
        if config.remove_query:
            excluded.add(query.qid)
        negatives, dropped = hard_negatives(hits, excluded, answers, keys.get, config.skip_top)
        if 0 < config.negatives < len(negatives):
            sample = random.Random(f"{config.seed} {query.qid}").sample(negatives, config.negatives)
            negatives = sorted(sample, key=lambda negative: negative.rank)
        return mined_line(query.qid, query.text, positives, negatives, dropped)

    def _total(self, lines: ResumableJsonl) -> dict[str, object]:
        """The counts, summed over the finished lines so that a resumed job has the same."""
        total: Counter[str] = Counter()
        without_negative: list[str] = []
        for row in lines.rows():
            for reason, count in row["dropped"].items():
                total[f"dropped_{reason}"] += count
            total["negatives"] += len(row["negatives"])
            if not row["negatives"]:
                without_negative.append(row["qid"])
        return {
            **self.counts,
            **total,
            "queries_without_negative": len(without_negative),
            "without_negative": without_negative[:MAX_RECORDED_QUERIES],
        }


def _passages_of_pairs(path: str) -> Iterator[Document]:
    """The positive and the negatives of every pair of a file."""
    for pair in read_pairs(path):
        yield pair.positive
        yield from pair.negatives


def _read_positives(query: MiningQuery) -> dict[str, Document]:
    """The positives whose passage was read."""
    return {docid: passage for docid, passage in query.positives.items() if passage is not None}


def _docid(document: Document) -> str:
    """The id of the passage, or one derived from its title and text if it has none."""
    return document.docid or f"p-{_digest(document.title + chr(0) + document.text)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


Search = Callable[[Sequence[Query]], Mapping[str, Sequence[Hit]]]
"""Queries -> the top ``depth`` hits of each, by query id."""


def model_digest(model: str) -> str:
    """A digest of the weights of a retriever's folder or name. Raises :class:`CheckpointError` for a missing one."""
    if model.startswith("testing:"):
        return model
    folder = model_folder(model)
    if not folder.is_dir():
        raise CheckpointError(f"{model}: no such model folder; give one that encode can read")
    return folder_digest(folder)


def open_search(config: MineConfig, source: str, work: Path) -> Search:
    """The search that ``config.by`` names over the collection ``source``; its indexes are built, or continued, in
    ``work``. Both searches are joined by reciprocal ranks: first what several list, then the lists in turn."""
    searches: list[Search] = []
    if config.model is not None:
        searcher = open_retriever(
            config, config.model, source, work / "index", config.title_separator
        )
        searches.append(
            lambda queries: retriever_hits(searcher, queries, config.depth, config.parts)
        )
    if config.by != "model":
        bm25 = open_bm25(config, source, work / "bm25")
        searches.append(
            lambda queries: bm25.search(queries, config.depth, config.threads or processors())
        )
    if len(searches) == 1:
        return searches[0]

    def search_both(queries: Sequence[Query]) -> dict[str, list[Hit]]:
        hits_by_search = [search(queries) for search in searches]
        fused = {}
        for query in queries:
            lists = [list(hits[query.qid]) for hits in hits_by_search]
            fused[query.qid] = rrf(lists)[: config.depth]
        return fused

    return search_both


def open_bm25(options: SearchOptions, source: str, index: Path) -> BM25Searcher:
    """BM25 over the collection ``source``; its index is built in ``index`` unless it is there."""
    if not index.exists():  # an index appears complete or not at all
        run_bm25(Bm25Config(corpus=source, index=str(index), quiet=options.quiet))
    return BM25Searcher(index, options.k1, options.b)


def open_retriever(
    options: SearchOptions, model: str, source: str, index: Path, title_separator: str | None = None
) -> Searcher:
    """A searcher over the collection ``source``; its index is built in ``index``, or continued there."""
    shared = subset(options, SearchOptions)
    changes = {"corpus": source, "index": str(index), "model": model, "parts": PARTS[options.parts]}
    encode(subset(shared, EncodeConfig, **changes, title_separator=title_separator))
    by_postings = options.impact_search == "postings"
    if options.impact_search == "auto":
        by_postings = find_spec("numba") is not None
    if options.parts != "dense" and by_postings and not folder_of(str(index)).exists():
        run_postings(PostingsConfig(index=str(index), quiet=options.quiet))
    return Searcher.open(
        index,
        device=options.device,
        query_length=options.query_length,
        threads=options.threads,
        impact_search=options.impact_search,
    )


def retriever_hits(
    searcher: Searcher, queries: Sequence[Query], depth: int, parts: str
) -> dict[str, Sequence[Hit]]:
    """The top ``depth`` hits of each query, by query id."""
    hits = {}
    for answer in searcher.answers(queries, depth, parts):
        hits[answer.query.qid] = answer.hits
    return hits
