"""One process opens an index again and again: the same answer, and no file is left open."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from dupmae_ir.search.searcher import Searcher
from tests.campaign import small_index
from tests.campaign.records import Record, Records, markdown

TITLE = "Opens: one process opens an index again and again, with a search each time"
OPENS = 1000
BETWEEN = 100


def run(seconds: float, seed: int, records: Records) -> None:
    """A record for every :data:`BETWEEN` opens, until there are :data:`OPENS` or the time is over."""
    del seed
    with tempfile.TemporaryDirectory() as name:
        index = small_index.write(Path(name))
        wanted = small_index.found(Searcher.open(index, device="cpu"))
        before = _open_files()
        end = time.monotonic() + seconds
        while len(records.all) < OPENS // BETWEEN and time.monotonic() < end:
            wrong = 0
            most = 0
            for _ in range(BETWEEN):
                wrong += small_index.found(Searcher.open(index, device="cpu")) != wanted
                most = max(most, _open_files())
            records.add(opens=BETWEEN, wrong=wrong, before=before, most=most)


def table(records: Sequence[Record]) -> str:
    """Opens, wrong answers, and open files before and at most."""
    totals = [sum(row[name] for row in records) for name in ("opens", "wrong")]
    files = [max(row[name] for row in records) for name in ("before", "most")]
    return markdown(
        ["opens", "wrong", "open files before", "at most"], [[str(totals[0]), totals[1], *files]]
    )


def is_wrong(record: Record) -> bool:
    """Whether an answer was wrong or files stay open."""
    return record["wrong"] > 0 or record["most"] > record["before"] + 50


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
