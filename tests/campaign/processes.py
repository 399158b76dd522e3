"""Processes whose eight threads all open an index and search it at the same moment."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from dupmae_ir.encode import run as _encode  # noqa: F401  (imported once, for all children)
from dupmae_ir.search.searcher import Searcher
from tests.campaign import small_index
from tests.campaign.forked import finished, start
from tests.campaign.records import Record, Records, markdown

TITLE = "Processes: eight threads open and search at the same moment"
THREADS = 8
PROCESSES = 100


def run(seconds: float, seed: int, records: Records) -> None:
    """One process after another, until there are :data:`PROCESSES` records or the time is over."""
    del seed
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        errors = Path(name) / "errors"
        if finished(start(lambda: bool(not small_index.write(folder)), errors)):
            raise RuntimeError(errors.read_text())
        end = time.monotonic() + seconds
        while len(records.all) < PROCESSES and time.monotonic() < end:
            status = finished(start(lambda: _opened_by_threads(folder / "index"), errors))
            records.add(status=status, words=errors.read_text()[-600:] if status else "")


def table(records: Sequence[Record]) -> str:
    """How many processes, and in how many all threads found the same."""
    return markdown(
        ["processes of 8 threads", "all threads right"], [[str(len(records)), _right(records)]]
    )


def is_wrong(record: Record) -> bool:
    """Whether a thread failed or found something else."""
    return record["status"] != 0


def _right(records: Sequence[Record]) -> int:
    return sum(row["status"] == 0 for row in records)


def _opened_by_threads(index: Path) -> int:
    together = Barrier(THREADS)

    def opened(_: int) -> list[tuple[str, float]]:
        together.wait()
        return small_index.found(Searcher.open(index, device="cpu"))

    with ThreadPoolExecutor(THREADS) as pool:
        first, *others = pool.map(opened, range(THREADS))
    return int(not first or any(other != first for other in others))
