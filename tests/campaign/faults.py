"""A fault at each fsync and each rename of the commands that write an index, and two writers at once.

The n-th call of ``os.fsync``, ``os.rename`` or ``os.replace`` fails, or ends the process before or after it, for every
n. Then the index can be read and searched, and the same command makes what it makes undisturbed.

Two writers: ``index add`` and ``index delete``, or two of one kind, begin at the same moment on one index. Each is done
or refused, and the index has the documents of those that were done.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support.making_commands import MAKING, Making

from dupmae_ir.search.searcher import Searcher
from tests.campaign import kills
from tests.campaign.forked import finished, start
from tests.campaign.records import Record, Records, counted, number_of

TITLE = "Faults: each fsync and each rename fails or is the last, and two writers at once"
COMMANDS = ("encode", "index add", "index update", "index delete", "index compact", "index sync", "index dense")
FAULTS = ("fails", "disk full", "killed before", "killed after")
WRITERS = ("index add", "index delete", "index update", "index compact")


def run(seconds: float, seed: int, records: Records) -> None:
    """Every fault of every command, in a random order of commands, and two writers in between, until the time is
    over; those of earlier runs in the same file are not tried again."""
    rng, end = random.Random(seed), time.monotonic() + seconds
    for path in kills.PACKAGE.rglob("*.py"):  # imported once, for all children
        if path.name != "__main__.py":
            with contextlib.suppress(ImportError):  # of an extra that is not installed
                importlib.import_module(".".join(path.relative_to(kills.PACKAGE.parent).with_suffix("").parts))
    done = {(row["command"], row["fault"], row["call"]) for row in records.all}
    makings = [making for making in MAKING if making.name in COMMANDS]
    rng.shuffle(makings)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kills._inputs(folder / "inputs")
        for making in makings:
            whole, _ = kills._undisturbed(making, folder)
            for call in range(1, 1000):
                if time.monotonic() > end or not _faults(making, folder, call, whole, records, done):
                    break
            _two_writers(makings, folder, rng, records)


def table(records: Sequence[Record]) -> str:
    """Faults by command, and what came of them."""
    names = ("identical", "different", "failed", "traceback", "unusable")
    return counted(records, "command", {"faults": len, **{n: number_of("outcome", n) for n in names}}, "command")


def is_wrong(record: Record) -> bool:
    """Whether the index was unusable after a fault, the error was a traceback, or the output another one."""
    return record["outcome"] != "identical"


def _faults(
    making: Making, folder: Path, call: int, whole: dict[str, Any], records: Records, done: set[tuple[str, str, int]]
) -> bool:
    """Every fault at one call; False if the command has fewer calls."""
    for fault in FAULTS:
        if (making.name, fault, call) in done:
            continue
        out = folder / "trial"
        making.prepare(folder / "inputs", out)
        reached, outcome, words = _trial(making, folder / "inputs", out, call, fault, whole)
        shutil.rmtree(out)
        if not reached:
            return False
        records.add(command=making.name, fault=fault, call=call, outcome=outcome, words=words)
    return True


def _trial(
    making: Making, inputs: Path, out: Path, call: int, fault: str, whole: dict[str, Any]
) -> tuple[bool, str, str]:
    """Whether the call was reached, what came of it, and what is wrong."""
    errors, words = out.with_name("trial.err"), [*making.words(inputs, out), "--quiet"]
    status = finished(start(lambda: _with_fault(call, fault, words), errors))
    said = errors.read_text()
    reached = status != 0 or "injected" in said  # a fault may not matter, such as of a hint
    if "Traceback" in said:
        return reached, "traceback", said[-600:]
    if making.adds_to_index and (problem := _problem(out / "index", errors)):
        return reached, "unusable", problem
    if finished(kills._begun(making, inputs, out)):
        return reached, "failed", out.with_name(f"{out.name}.err").read_text()[-600:]
    found = kills.contents(kills._whole(making, out), out)
    different = [name for name in {**found, **whole} if found.get(name) != whole.get(name)]
    return reached, "different" if different else "identical", ", ".join(different)


def _with_fault(call: int, fault: str, words: Sequence[Any]) -> int:
    """Run a command whose ``call``-th fsync or rename has a ``fault``."""
    count = 0

    def faulty(inner: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count != call:
                return inner(*arguments, **named)
            if fault == "killed before":
                os.kill(os.getpid(), signal.SIGKILL)
            if fault in ("fails", "disk full"):
                os.write(2, b"injected\n")
                raise OSError(errno.EIO if fault == "fails" else errno.ENOSPC, "injected")
            inner(*arguments, **named)
            return os.kill(os.getpid(), signal.SIGKILL)

        return called

    for name in ("fsync", "rename", "replace"):
        setattr(os, name, faulty(getattr(os, name)))
    return kills._main(list(words))


def _problem(index: Path, errors: Path) -> str:
    """What is wrong with an index that a change did not finish; empty if it can be read and searched."""

    def searched() -> int:
        searcher = Searcher.open(index, device="cpu")
        assert len(searcher.search("quick brown fox", 5, "dense")) == 5
        return 0

    return errors.read_text()[-600:] if finished(start(searched, errors)) else ""


def _two_writers(makings: Sequence[Making], folder: Path, rng: random.Random, records: Records) -> None:
    """Two changes of one index that begin together."""
    by_name = {making.name: making for making in makings}
    for number in range(4):
        first, second = (by_name[name] for name in rng.choices(WRITERS, k=2))
        out = folder / f"writers{number}"
        first.prepare(folder / "inputs", out)
        begun = [kills._begun(making, folder / "inputs", out) for making in (first, second)]
        status = [finished(child) for child in begun]
        said = out.with_name(f"{out.name}.err").read_text()
        outcome, words = "identical", ""
        if "Traceback" in said or any(end < 0 for end in status):
            outcome, words = "traceback", said[-600:]
        elif status == [1, 1] or status == [2, 2]:
            outcome, words = "failed", f"{first.name}, {second.name}: both refused: {said[-300:]}"
        elif problem := _problem(out / "index", out.with_name("writers.err")):
            outcome, words = "unusable", problem
        call = 1 + sum(row["command"] == "two writers" for row in records.all)
        fault = f"{first.name} and {second.name}"
        records.add(command="two writers", fault=fault, call=call, outcome=outcome, words=words)
        shutil.rmtree(out)
