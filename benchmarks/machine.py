"""How fast this machine is, in about two minutes, beside recorded machines.

    python benchmarks/machine.py
    python benchmarks/machine.py --json > this-machine.json

How soon new documents can be searched by words and by meaning; the first answer of a new process; one query; impact
search by postings and by Lucene; and many queries at once, with a thousand hits each. Documents and queries come from
the embedded collection, so every machine does the same work. Close other programs first. ``machines.json`` has the
``--json`` output of recorded machines.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dupmae_ir import __version__, pyserini
from dupmae_ir.collections.stdlib import load_queries, stdlib_documents
from dupmae_ir.console import guarded, say, table
from dupmae_ir.device import processor, processors
from dupmae_ir.errors import DupmaeError
from dupmae_ir.index.format.manifest import META, versions
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.search.candidates.impact import ImpactQuery
from dupmae_ir.search.query.encoder import QueryEncodings
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.types import Query

RECORDS = Path(__file__).with_name("machines.json")
DOCUMENTS = 2000
ROUNDS = 5
WORDS_SEARCHED = "new documents, until words can be searched"
MEANING_SEARCHED = "new documents, until meaning can be searched, too"
FIRST_ANSWER = "first answer of a new process"
ONE_QUERY = "one query, hybrid, 10 hits"


class Figure(NamedTuple):
    """A measured value of the machine."""

    name: str
    value: float
    unit: str
    more_is_better: bool = False


def run(
    documents: int = DOCUMENTS, rounds: int = ROUNDS, model: str | None = None, quiet: bool = False
) -> dict[str, Any]:
    """Measure, and return the figures with the machine, its load before, and the recorded machines.

    Raises :class:`DupmaeError` if a step fails.
    """
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    if load is not None and load > 0.5:
        say(
            f"note: other programs are running (load average {load:.1f}), which makes every figure worse",
            quiet,
        )
    measures = list(measure(documents, rounds, model, quiet))
    return {
        "machine": {
            "processor": processor(),
            "cores": processors(),
            "version": __version__,
            "versions": versions(),
        },
        "load_average": load,
        "documents": documents,
        "measures": [figure._asdict() for figure in measures],
        "recorded": records() if documents == DOCUMENTS and model is None else [],
    }


def records() -> list[dict[str, Any]]:
    """The results of recorded machines."""
    return list(json.loads(RECORDS.read_text(encoding="utf-8")))


def measure(documents: int, rounds: int, model: str | None, quiet: bool) -> Iterator[Figure]:
    """The figures, one after the other."""
    # Where it is set, each process compiles every module that it imports again, and the figures could not be compared.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        queries = [query.text for query in load_queries()]
        say("encoding ...", quiet)
        yield from _encoded(documents, model, Path(folder) / "corpus.jsonl", index)
        say("answers of new processes ...", quiet)
        yield Figure(FIRST_ANSWER, _first_answer(index, queries[0]), "s")
        say("searching ...", quiet)
        yield from _searched(rounds, index, queries)


def _encoded(documents: int, model: str | None, corpus: Path, index: Path) -> Iterator[Figure]:
    """Figures of the encode command, from the start of Python."""
    with atomic_write(corpus) as out:
        for document in stdlib_documents()[:documents]:
            row = {"_id": document.docid, "title": document.title, "text": document.text}
            out.write(json.dumps(row) + "\n")
    command = [
        sys.executable,
        "-m",
        "dupmae_ir.encode",
        "--corpus",
        str(corpus),
        "--index",
        str(index),
    ]
    command += ["--quiet", "--json"]
    if model:
        command += ["--model", model]

    words_seconds = None
    started = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while process.poll() is None:
            # An index of words comes first, unless there are few documents.
            if words_seconds is None and (index / META).exists():
                words_seconds = time.perf_counter() - started
            time.sleep(0.02)
        seconds = time.perf_counter() - started
        output, errors = process.communicate()
    if process.returncode:
        raise DupmaeError(
            f"dupmae-ir encode ended with status {process.returncode}: {errors.strip()}"
        )
    yield Figure(WORDS_SEARCHED, words_seconds or seconds, "s")
    yield Figure(MEANING_SEARCHED, seconds, "s")
    rate = json.loads(output)["documents_per_second"]
    yield Figure("encode, both parts", rate, "documents/s", True)


def _first_answer(index: Path, query: str) -> float:
    """Seconds of ``search --query``, from the start of Python to its end."""
    flags = ["--index", str(index), "--query", query, "--json"]
    command = [sys.executable, "-m", "dupmae_ir.search", *flags]

    def search() -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise DupmaeError(
                f"dupmae-ir search ended with status {done.returncode}: {done.stderr.strip()}"
            )

    search()  # fills the disk cache
    return _median(search, 3)


def _searched(rounds: int, index: Path, queries: Sequence[str]) -> Iterator[Figure]:
    started = time.perf_counter()
    searcher = Searcher.open(index)
    searcher.search(queries[0])
    yield Figure("open an index, and its first query", time.perf_counter() - started, "s")

    taken = []
    for _ in range(rounds):
        for text in queries:
            taken.append(_seconds(partial(searcher.search, text)))
    for name, percent in (("median", 50), ("99th percentile", 99)):
        milliseconds = 1000 * float(np.percentile(taken, percent))
        yield Figure(f"{ONE_QUERY}, {name}", milliseconds, "ms")

    yield from _impacts(rounds, searcher, queries)

    topics = [Query(str(number), text) for number, text in enumerate(queries)]
    searcher.search(topics, 1000)
    seconds = _median(partial(searcher.search, topics, 1000), rounds)
    yield Figure(
        "all queries at once, hybrid, 1,000 hits", len(queries) / seconds, "queries/s", True
    )


def _impacts(rounds: int, searcher: Searcher, queries: Sequence[str]) -> Iterator[Figure]:
    """Impact search of encoded queries, one thread, by postings and by Lucene, which must agree."""
    encodings = QueryEncodings(searcher.encoder, searcher.index.scale, 1024, list(queries))
    impact_queries: list[ImpactQuery] = [encoded.ot for encoded in encodings.take(list(queries))]
    engines = ["postings"]
    if pyserini.installed():
        engines.append("lucene")

    rows: dict[str, list[np.ndarray]] = {}
    for engine in engines:
        part = searcher.with_settings(impact_search=engine).impact.queries(impact_queries)
        search = partial(part.top, range(len(impact_queries)), 10)
        # The engines are compared by their documents, whatever the order.
        rows[engine] = [np.sort(candidates.rows) for candidates in search()]
        rate = len(impact_queries) / _median(search, rounds)
        yield Figure(f"impacts by {engine}, 10 hits, one thread", rate, "queries/s", True)

    if "lucene" in rows and not all(map(np.array_equal, rows["postings"], rows["lucene"])):
        raise DupmaeError(
            "Lucene and the postings have different hits; check the index with dupmae-ir index verify"
        )


def _median(work: Callable[[], object], rounds: int) -> float:
    return statistics.median(_seconds(work) for _ in range(rounds))


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def show(result: Mapping[str, Any]) -> str:
    """The figures as a table, with those of recorded machines."""
    recorded = result["recorded"]
    names = [f"machine {number}" for number in range(1, len(recorded) + 1)]
    rows = []
    for measure in result["measures"]:
        row = [measure["name"], f"{_short(measure['value'])} {measure['unit']}"]
        for record in recorded:
            values = {m["name"]: m["value"] for m in record["measures"]}
            row.append(_compared(measure, values.get(measure["name"])))
        rows.append(row)

    lines = [
        table(rows, [f"{result['documents']:,} documents", "here", *names]),
        "",
        f"here: {_machine(result)}",
    ]
    for name, record in zip(names, recorded, strict=True):
        lines.append(f"{name}: {_machine(record)}")
    return "\n".join(lines)


def _compared(measure: Mapping[str, Any], recorded: float | None) -> str:
    """A recorded figure, and how many times better (above 1) or worse this machine is."""
    if not recorded or not measure["value"]:
        return "-"
    if measure["more_is_better"]:
        times = measure["value"] / recorded
    else:
        times = recorded / measure["value"]
    return f"{_short(recorded)} ({times:.2f}x)"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _machine(result: Mapping[str, Any]) -> str:
    machine = result["machine"]
    load = result["load_average"]
    busy = "" if load is None else f", load average {load:.1f} before"
    return f"{machine['processor']}, {machine['cores']} cores, torch {machine['versions'].get('torch')}{busy}"


def main(argv: list[str] | None = None) -> int:
    """Print the figures; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--documents",
        type=int,
        default=DOCUMENTS,
        help="recorded machines are compared for the default alone",
    )
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="repetitions of each search; the median counts"
    )
    parser.add_argument("--model", help="model folder; without it, the embedded default model")
    parser.add_argument("--quiet", action="store_true", help="print no progress")
    parser.add_argument("--json", action="store_true", help="print a record of this machine")
    options = parser.parse_args(argv)

    def job() -> None:
        result = run(options.documents, options.rounds, options.model, options.quiet)
        print(json.dumps(result) if options.json else show(result))

    return guarded(job, "benchmarks/machine.py")


if __name__ == "__main__":
    sys.exit(main())
