"""One server whose index is exchanged again and again, with requests in between: nothing of what was before stays."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from support.serving import Client, queries, serving, texts, write_index

from tests.campaign.records import Record, Records, markdown

TITLE = "Generations: the index of a server is exchanged again and again, with requests in between"
CHANGES = 1_000
REQUESTS = 10
BEFORE = 200
ALLOWED = 16.0
"""Megabytes by which the process may grow after the first :data:`BEFORE` changes."""


def run(seconds: float, seed: int, records: Records) -> None:
    """As many changes as there is time for, up to :data:`CHANGES` in one process."""
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as name:
        folder = write_index(Path(name) / "I", texts(200, seed))
        with serving(folder) as client:
            expected = _answers(client)
            wrong = 0
            before = 0.0
            changes = 0
            while changes < CHANGES and time.monotonic() < end:
                os.utime(folder / "meta.json", ns=(changes + 1, changes + 1))
                wrong += [change.what for change in client.service.reload()] != ["opened"]
                wrong += _answers(client) != expected
                changes += 1
                if changes == BEFORE:
                    before = _megabytes()
            files = len(list(Path("/proc/self/fd").iterdir()))
            growth = _megabytes() - before if changes > BEFORE else 0.0
            records.add(
                changes=changes,
                requests=changes * REQUESTS,
                wrong=wrong,
                growth=round(growth, 1),
                files=files,
            )


def table(records: Sequence[Record]) -> str:
    """Changes, requests and what grew."""
    heads = [
        "changes",
        "requests",
        "wrong",
        f"growth in MB after the first {BEFORE} changes",
        "open files",
    ]
    return markdown(
        heads,
        [
            [f"{r['changes']:,}", *(r[n] for n in ("requests", "wrong", "growth", "files"))]
            for r in records
        ],
    )


def is_wrong(record: Record) -> bool:
    """Whether an answer differed or memory grew."""
    return bool(record["wrong"] or record["growth"] > ALLOWED or record["files"] > 500)


def _answers(client: Client) -> list[object]:
    replies = [client.post("/api/search", {"query": q, "hits": 5}) for q in queries(REQUESTS)]
    return [[hit["docid"] for hit in reply.json["results"][0]["hits"]] for reply in replies]


def _megabytes() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6
