"""Hard negatives for every query, from BM25, from a model's own search, or from both.

A negative is a passage that the search ranks high and that is no positive of the query: neither by id nor, since
collections contain copies, by text. By default all of them are kept: the trainer samples from the list, as the papers
do from the top 200.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dupmae_ir.console import progress, say
from dupmae_ir.device import pick_device, pick_encoding
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.finetune.data.mined import IdTable, counted, survey, text_key
from dupmae_ir.finetune.mine.config import MineConfig
from dupmae_ir.finetune.mine.filter import hard_negatives
from dupmae_ir.finetune.mine.queries import MiningQuery, judged_queries, paired_queries, passages_of_pairs
from dupmae_ir.finetune.mine.search import model_digest, open_search
from dupmae_ir.io.collections import LinesCollection, file_digests
from dupmae_ir.io.jobs import Job
from dupmae_ir.io.publishing import atomic_write, combined_digest, sha256_file
from dupmae_ir.io.resumable_jsonl import ResumableJsonl
from dupmae_ir.types import Document, Hit, Query

WINDOW = 512  #: queries searched between two saves


def run(config: MineConfig) -> dict[str, Any]:
    """Mine, write ``config.output`` and its record, and return the counts.

    Raises :class:`DupmaeError` subclasses; see :mod:`dupmae_ir.io.jobs` for what a second run returns.
    """
    if Path(config.output).is_dir():
        raise UsageError(f"{config.output} is a folder; name a file to write")
    with Job(config.output, "finetune.mine", _settings(config), lambda: _inputs(config), quiet=config.quiet) as job:
        return job.finished() or _Mining(config, job).run()


class _Mining:
    """One run, from the queries to the published file."""

    def __init__(self, config: MineConfig, job: Job) -> None:
        self.config, self.job = config, job
        self.counts: dict[str, int] = {}
        self.collection_digest = ""

    def run(self) -> dict[str, Any]:
        """Mine what an interrupted run has left, publish the lines, and return the result."""
        config, started, work = self.config, time.monotonic(), self.job.begin()
        queries = judged_queries(config, self.counts) if config.topics else paired_queries(config, self.counts)
        pool = None if config.collection else self._write_pool()
        source = config.collection or str(pool)
        keys = self._survey(source, queries)
        queries = self._with_positives(queries, keys)
        lines = ResumableJsonl(work / "lines.jsonl", len(queries), WINDOW)
        if lines.done:
            say(f"resuming after {lines.done:,} of {len(queries):,} queries", config.quiet)
        if lines.done < len(queries):
            self._search(source, queries, keys, lines, work)
        extra: dict[str, Any] = {
            "collection": pool.name if pool else config.collection,
            "pool": pool is not None,
            "collection_digest": self.collection_digest,
        }
        result = self.job.publish(lines.path, self._total(lines), extra)
        return result | {"seconds": round(time.monotonic() - started, 1)}

    def _write_pool(self) -> Path:
        """Write the passages of the pairs as a collection beside the output."""
        target = self.job.target
        path = target.with_name(f"{target.name}.passages.jsonl")
        with atomic_write(path) as f:
            for docid, document in passages_of_pairs(self.config.pairs).items():
                row = {"_id": docid, "title": document.title, "text": document.text}
                f.write(json.dumps(row, ensure_ascii=False) + "\n")
        return path

    def _survey(self, source: str, queries: Iterable[MiningQuery]) -> IdTable:
        """Read the collection once: text keys by docid, and the positives of which only the id was known."""
        missing: dict[str, list[MiningQuery]] = {}
        for query in queries:
            for docid, document in query.positives.items():
                if document is None:
                    missing.setdefault(docid, []).append(query)
        with progress("read", "passages", quiet=self.config.quiet) as bar:

            def on_document(document: Document, _: int) -> None:
                for query in missing.get(document.docid, ()):
                    query.positives[document.docid] = document
                bar.update()

            collection = LinesCollection(source)
            keys = survey(collection, on_document)
        self.collection_digest = combined_digest(i.sha256 for i in collection.inputs)
        return keys

    def _with_positives(self, queries: list[MiningQuery], keys: IdTable) -> list[MiningQuery]:
        """The queries with a positive. A judged positive that the collection lacks is an error, or counted."""
        config = self.config
        unknown = [f"{d} of query {q.qid}" for q in queries for d in q.positives if keys.get(d) is None]
        if unknown:
            where = f"not in {config.collection}"
            what = counted(unknown, f"positive is {where}", f"positives are {where}")
            if config.qrels and config.unknown == "refuse":
                raise InputError(f"{config.qrels}: {what}; give the collection they belong to, or --unknown skip")
            say(f"note: {what}", config.quiet)
        for query in queries:
            query.positives = {d: p for d, p in query.positives.items() if p is not None}
        bare = [q.qid for q in queries if not q.positives]
        if bare:
            what = counted(bare, "query has no positive and is left out", "queries have no positive and are left out")
            say(f"note: {what}", config.quiet)
        kept = [q for q in queries if q.positives]
        if not kept:
            raise InputError(f"{config.qrels or config.pairs[0]}: no query has a positive; nothing to mine")
        self.counts |= {
            "queries": len(kept),
            "positives": sum(len(q.positives) for q in kept),
            "unknown_positives": len(unknown),
            "queries_without_positive": len(bare),
        }
        return kept

    def _search(
        self, source: str, queries: list[MiningQuery], keys: IdTable, lines: ResumableJsonl, work: Path
    ) -> None:
        config = self.config
        search = open_search(config, source, work)
        with progress("mine", "queries", len(queries), config.quiet, lines.done) as bar:
            for start in range(lines.done, len(queries), WINDOW):
                window = queries[start : start + WINDOW]
                hits = search([Query(q.qid, q.text) for q in window])
                lines.append([self._line(q, hits[q.qid], keys) for q in window])
                bar.update(len(window))

    def _line(self, query: MiningQuery, hits: Sequence[Hit], keys: IdTable) -> dict[str, Any]:
        config = self.config
        documents = [d for d in query.positives.values() if d is not None]
        positives = {*query.positives, *([query.qid] if config.remove_query else [])}
        answers = {text_key(d) for d in documents}
        # The collection's text of a positive's id may differ from the pair's own text.
        answers |= {k for d in query.positives if (k := keys.get(d)) is not None}
        kept, dropped = hard_negatives(hits, positives, answers, keys.get, config.skip_top)
        if 0 < config.negatives < len(kept):
            drawn = random.Random(f"{config.seed} {query.qid}").sample(kept, config.negatives)
            kept = sorted(drawn, key=lambda c: c.rank)
        return {
            "qid": query.qid,
            "query": query.text,
            "positives": [{"id": i, "title": d.title, "text": d.text} for i, d in query.positives.items() if d],
            "negatives": [c.docid for c in kept],
            "scores": [float(f"{c.score:.6g}") for c in kept],
            "ranks": [c.rank for c in kept],
            "dropped": dropped,
        }

    def _total(self, lines: ResumableJsonl) -> dict[str, Any]:
        """The counts, summed over the finished lines so that a resumed run has the same."""
        total: Counter[str] = Counter()
        bare: list[str] = []
        for row in lines.rows():
            total.update({f"dropped_{k}": n for k, n in row["dropped"].items()} | {"negatives": len(row["negatives"])})
            if not row["negatives"]:
                bare.append(row["qid"])
        return {**self.counts, **total, "queries_without_negative": len(bare), "without_negative": bare[:10]}


def _settings(config: MineConfig) -> dict[str, Any]:
    """The settings that decide the lines; those that do not apply to the search are None."""
    by_model, by_bm25 = config.by != "bm25", config.by != "model"
    dtype = None
    if by_model:
        dtype, _, _ = pick_encoding(config.dtype or "float32", pick_device(config.device)[0])
    return {
        "split": config.split if config.topics else None,
        "unknown": config.unknown,
        "by": config.by,
        "depth": config.depth,
        "skip_top": config.skip_top,
        "negatives": config.negatives,
        "seed": config.seed if config.negatives else None,
        "remove_query": config.remove_query,
        "dtype": dtype,
        **{
            n: getattr(config, n) if by_model else None
            for n in ("parts", "document_length", "query_length", "title_separator")
        },
        **{n: getattr(config, n) if by_bm25 else None for n in ("k1", "b")},
    }


def _inputs(config: MineConfig) -> dict[str, str]:
    """Digests of what is read, by field."""
    digests = {
        "pairs": _files_digest(config.pairs),
        "topics": _files_digest([config.topics] if config.topics else []),
        "qrels": _files_digest([config.qrels] if config.qrels else []),
    }
    if config.collection:
        digests["collection"] = combined_digest(file_digests(config.collection))
    if config.model:
        digests["model"] = model_digest(config.model)
    return {name: digest for name, digest in digests.items() if digest}


def _files_digest(paths: Sequence[str]) -> str:
    """A digest of files; of a folder, all judgements in it; the name of Pyserini's topics counts as its contents."""
    whole = hashlib.sha256()
    for path in map(Path, paths):
        inner = sorted([*path.glob("*.tsv"), *path.glob("qrels/*.tsv")]) if path.is_dir() else [path]
        for file in inner:
            whole.update((sha256_file(file) if file.is_file() else file.name).encode())
    return whole.hexdigest() if paths else ""
