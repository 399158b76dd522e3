"""The work of ``dupmae-ir bench``: a short selection of the benchmarks, with the machine that they ran on.

Documents and queries are those of the embedded collection, so every machine does the same work. Recorded machines are
in ``records.json``: this command's own ``--json`` output on them.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dupmae_ir import __version__, pyserini
from dupmae_ir.bench.config import DOCUMENTS, BenchConfig
from dupmae_ir.collections.stdlib.documentation import stdlib_documents
from dupmae_ir.collections.stdlib.queries import load_queries
from dupmae_ir.console import say
from dupmae_ir.device import processors
from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.run import run as encode
from dupmae_ir.errors import DupmaeError
from dupmae_ir.eval.regressions.environment import processor
from dupmae_ir.index.format.manifest import versions
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.search.candidates.impact import ImpactQuery
from dupmae_ir.search.query.encoder import QueryEncodings
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.types import Query


class Measure(NamedTuple):
    """One figure."""

    name: str
    value: float
    unit: str
    more_is_better: bool = False


def run(config: BenchConfig) -> dict[str, Any]:
    """Measure, and return the figures with the machine, its load before, and the recorded machines.

    Raises :class:`DupmaeError` where a step fails.
    """
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    if load is not None and load > 0.5:
        say(f"note: other programs are running (load average {load:.1f}), which makes every figure worse", config.quiet)
    measures = list(_measured(config))
    result = {
        "machine": {"processor": processor(), "cores": processors(), "version": __version__, "versions": versions()},
        "load_average": load,
        "documents": config.documents,
        "measures": [measure._asdict() for measure in measures],
    }
    return result | {"recorded": records() if _comparable(config) else []}


def records() -> list[dict[str, Any]]:
    """The results of recorded machines."""
    return list(json.loads(resources.files("dupmae_ir.bench").joinpath("records.json").read_text(encoding="utf-8")))


def _comparable(config: BenchConfig) -> bool:
    return config.documents == DOCUMENTS and config.model is None


def _measured(config: BenchConfig) -> Iterator[Measure]:
    with tempfile.TemporaryDirectory() as folder:
        index, queries = Path(folder) / "index", [query.text for query in load_queries()]
        say("encoding ...", config.quiet)
        yield _encoded(config, Path(folder) / "corpus.jsonl", index)
        say("answers of new processes ...", config.quiet)
        yield Measure("first answer of a new process", _first_answer(index, queries[0]), "s")
        say("searching ...", config.quiet)
        yield from _searched(config, index, queries)


def _encoded(config: BenchConfig, corpus: Path, index: Path) -> Measure:
    with atomic_write(corpus) as out:
        for document in stdlib_documents()[: config.documents]:
            out.write(json.dumps({"_id": document.docid, "title": document.title, "text": document.text}) + "\n")
    made = encode(EncodeConfig(corpus=str(corpus), index=str(index), model=config.model, quiet=True))
    return Measure("encode, both parts", made["documents_per_second"], "documents/s", True)


def _first_answer(index: Path, query: str) -> float:
    """Seconds of ``search --query``, from the start of Python to its end."""
    command = [sys.executable, "-m", "dupmae_ir.search", "--index", str(index), "--query", query, "--json"]

    def ask() -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise DupmaeError(f"dupmae-ir search ended with status {done.returncode}: {done.stderr.strip()}")

    ask()  # fills the disk cache
    return _median(ask, 3)


def _searched(config: BenchConfig, index: Path, queries: Sequence[str]) -> Iterator[Measure]:
    started = time.perf_counter()
    searcher = Searcher.open(index)
    searcher.search(queries[0])
    yield Measure("open an index, and its first query", time.perf_counter() - started, "s")
    taken = [_seconds(partial(searcher.search, text)) for _ in range(config.rounds) for text in queries]
    for name, percent in (("median", 50), ("99th percentile", 99)):
        yield Measure(f"one query, hybrid, 10 hits, {name}", 1000 * float(np.percentile(taken, percent)), "ms")
    yield from _impacts(config, searcher, queries)
    topics = [Query(str(number), text) for number, text in enumerate(queries)]
    searcher.search(topics, 1000)
    seconds = _median(partial(searcher.search, topics, 1000), config.rounds)
    yield Measure("all queries at once, hybrid, 1,000 hits", len(queries) / seconds, "queries/s", True)


def _impacts(config: BenchConfig, searcher: Searcher, queries: Sequence[str]) -> Iterator[Measure]:
    """Impact search of encoded queries, one thread, by both engines. Raises :class:`DupmaeError` if they differ."""
    encodings = QueryEncodings(searcher.encoder, searcher.index.scale, 1024, list(queries))
    asked: list[ImpactQuery] = [encoded.ot for encoded in encodings.take(list(queries))]
    found: dict[str, list[np.ndarray]] = {}
    for engine in ("postings", "lucene")[: 1 + pyserini.installed()]:
        part = searcher.with_settings(impact_search=engine).impact.queries(asked)
        search = partial(part.top, range(len(asked)), 10)
        found[engine] = [np.sort(candidates.rows) for candidates in search()]
        rate = len(asked) / _median(search, config.rounds)
        yield Measure(f"impacts by {engine}, 10 hits, one thread", rate, "queries/s", True)
    first, *others = found.values()
    if not all(all(map(np.array_equal, first, other)) for other in others):
        raise DupmaeError("Lucene and the postings have different hits; check the index with dupmae-ir index verify")


def _median(work: Callable[[], object], rounds: int) -> float:
    return statistics.median(_seconds(work) for _ in range(rounds))


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
