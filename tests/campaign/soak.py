"""Queries from eight threads of one process: the same answers as from one thread, in memory that does not grow."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dupmae_ir.search.searcher import Searcher
from tests.campaign import small_index
from tests.campaign.records import Record, Records, markdown

TITLE = "Soak: queries from eight threads of one process"
THREADS = 8
QUERIES = 50_000
BETWEEN = 2_000
TEXTS = 300
GROWTH = 64
"""Megabytes that a process may grow after its first portion."""


def run(seconds: float, seed: int, records: Records) -> None:
    """A record for every :data:`BETWEEN` queries, until there are :data:`QUERIES` or the time is over."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        searcher = Searcher.open(small_index.write(Path(name)), device="cpu")
        texts = [
            " ".join(rng.choices(small_index.WORDS, k=rng.randint(1, 9))) for _ in range(TEXTS)
        ]
        wanted = {text: small_index.found(searcher, text) for text in texts}

        def soak(number: int) -> int:
            own = random.Random(number)
            drawn = [own.choice(texts) for _ in range(BETWEEN // THREADS)]
            return sum(small_index.found(searcher, text) != wanted[text] for text in drawn)

        process = time.time()
        portion = 0
        end = time.monotonic() + seconds
        with ThreadPoolExecutor(THREADS) as pool:
            while sum(row["queries"] for row in records.all) < QUERIES and time.monotonic() < end:
                wrong = sum(pool.map(soak, range(portion * THREADS, (portion + 1) * THREADS)))
                done = BETWEEN // THREADS * THREADS
                records.add(
                    process=process,
                    portion=portion,
                    queries=done,
                    wrong=wrong,
                    megabytes=_resident(),
                )
                portion += 1


def table(records: Sequence[Record]) -> str:
    """Queries, wrong answers, and the resident memory of each process after its first and its last portion."""
    totals = [sum(row[name] for row in records) for name in ("queries", "wrong")]
    memory = [
        [rows[0]["megabytes"], max(row["megabytes"] for row in rows)]
        for rows in _processes(records)
    ]
    rows = [[f"{totals[0]:,}", totals[1], len(memory), max(last - first for first, last in memory)]]
    return markdown(
        ["queries", "wrong", "processes", "most growth in MB after the first 2,000 queries"], rows
    )


def is_wrong(record: Record) -> bool:
    """Whether an answer was wrong."""
    return record["wrong"] > 0


def _processes(records: Sequence[Record]) -> list[list[Record]]:
    return [
        [row for row in records if row["process"] == p]
        for p in sorted({row["process"] for row in records})
    ]


def _resident() -> int:
    """Megabytes of this process in memory."""
    line = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmRSS")
    )
    return int(line.split()[1]) // 1024
