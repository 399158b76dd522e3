"""A fault at each fsync and each rename of the commands that write an index, and two writers at once.

The n-th call of ``os.fsync``, ``os.rename`` or ``os.replace`` fails, finds the disk full, is interrupted by Ctrl-C, or
ends the process before or after it, for every n; then a second fault meets the run that continues, at random. After
each, a search of the index finds what it found before or what it finds after the change, and in the end the command
has made what it makes undisturbed.

Two writers: ``index add`` and ``index delete``, or two of one kind, begin at the same moment on one index. Each is done
or refused, and the index can be searched.

A trial is a forked process that runs the command on a few documents in a folder in memory. Nothing of it needs Java,
which would not survive the fork: impacts are stored as postings, as without Pyserini.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dupmae_ir import pyserini
from dupmae_ir.__main__ import main as dupmae_ir
from dupmae_ir.errors import DupmaeError
from dupmae_ir.search.searcher import Searcher
from tests.campaign.contents import contents
from tests.campaign.forked import finished, start
from tests.campaign.records import Record, Records, counted, number_of

TITLE = "Faults: each fsync and each rename fails or is the last, and two writers at once"
FAULTS = ("fails", "disk full", "Ctrl-C", "killed before", "killed after")
WRITERS = ("index add", "index delete", "index update", "index compact", "index sync")
VERDICTS = ("identical", "different", "failed", "traceback", "unusable")
MEMORY = Path("/dev/shm")
_WORDS = (
    "quick",
    "brown",
    "fox",
    "cat",
    "mat",
    "list",
    "tree",
    "lock",
    "wait",
    "queue",
    "sort",
    "date",
    "month",
    "graph",
)
_ENCODE = ("encode", "--model", "testing:hashing", "--scale", 50, "--window", 8)


@dataclass(frozen=True)
class Command:
    """A command: its words, from the inputs and the folder of a trial; the index of the inputs that it changes."""

    name: str
    words: Callable[[Path, Path], list[Any]]
    index: str = ""
    made: str = "index"

    def prepare(self, inputs: Path, out: Path) -> None:
        """Make the folder of a trial."""
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        if self.index:
            shutil.copytree(inputs / self.index, out / "index", symlinks=True)


COMMANDS = [
    Command(
        "encode", lambda i, o: [*_ENCODE, "--corpus", i / "corpus.jsonl", "--index", o / "index"]
    ),
    Command(
        "encode.merge",
        lambda i, o: ["encode.merge", i / "shard0", i / "shard1", "--index", o / "index"],
    ),
    Command(
        "encode.passages",
        lambda i, o: [
            "encode.passages",
            "--corpus",
            i / "corpus.jsonl",
            "--output",
            o / "made.jsonl",
        ],
        made="made.jsonl",
    ),
    Command(
        "index add",
        lambda i, o: ["index", "add", "--index", o / "index", "--corpus", i / "more.jsonl"],
        "whole",
    ),
    Command(
        "index update",
        lambda i, o: ["index", "update", "--index", o / "index", "--corpus", i / "new.jsonl"],
        "whole",
    ),
    Command(
        "index sync",
        lambda i, o: ["index", "sync", "--index", o / "index", "--corpus", i / "new.jsonl"],
        "segmented",
    ),
    Command(
        "index delete",
        lambda i, o: ["index", "delete", "--index", o / "index", "--ids", "n3", "n5"],
        "whole",
    ),
    Command("index compact", lambda i, o: ["index", "compact", o / "index"], "segmented"),
    Command("index dense", lambda i, o: ["index", "dense", "--index", o / "index"], "whole"),
    Command(
        "index add, twice changed",
        lambda i, o: ["index", "add", "--index", o / "index", "--corpus", i / "other.jsonl"],
        "segmented",
    ),
]


def run(seconds: float, seed: int, records: Records) -> None:
    """Every fault of every command, the commands in a random order; those of earlier runs in the same file are not
    tried again. Then pairs of faults, and two writers, until the time is over."""
    rng = random.Random(seed)
    end = time.monotonic() + seconds
    done = {(row["command"], row["fault"]) for row in records.all}
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        trials = Trials(Path(name))
        commands = rng.sample(COMMANDS, len(COMMANDS))
        for command in commands:
            for call, fault in (
                (n, fault) for n in range(1, trials.calls[command.name] + 1) for fault in FAULTS
            ):
                if time.monotonic() < end and (command.name, f"{fault} at {call}") not in done:
                    _try(trials, command, [(call, fault)], records)
        while time.monotonic() < end:
            command = rng.choice(commands)
            calls = trials.calls[command.name]
            _try(
                trials,
                command,
                [(rng.randint(1, calls), rng.choice(FAULTS)) for _ in range(2)],
                records,
            )
            if rng.random() < 0.1:
                outcome, words, said = trials.two_writers(
                    *rng.choices([c for c in COMMANDS if c.name in WRITERS], k=2)
                )
                records.add(command="two writers", fault=words, outcome=outcome, words=said)


def table(records: Sequence[Record]) -> str:
    """Faults by command, and what came of them."""
    return counted(
        records,
        "command",
        {"trials": len, **{n: number_of("outcome", n) for n in VERDICTS}},
        "command",
    )


def is_wrong(record: Record) -> bool:
    """Whether an index was unusable after a fault, the error was a traceback, or the output another one."""
    return record["outcome"] != "identical"


def _try(
    trials: Trials, command: Command, faults: Sequence[tuple[int, str]], records: Records
) -> None:
    outcome, words = trials.disturbed(command, faults)
    what = ", then ".join(f"{fault} at {call}" for call, fault in faults)
    records.add(command=command.name, fault=what, outcome=outcome, words=words)


class Trials:
    """The inputs in a folder, what each command makes of them undisturbed, and how many calls it has."""

    def __init__(self, folder: Path, commands: Sequence[Command] = COMMANDS) -> None:
        self.inputs = folder / "inputs"
        self.out = folder / "trial"
        self.errors = folder / "errors"
        self.inputs.mkdir()
        pyserini.installed = lambda: False
        write_inputs(self.inputs)
        self.calls: dict[str, int] = {}
        self.wanted: dict[str, dict[str, Any]] = {}
        self.answers: dict[
            str, list[Any]
        ] = {}  # the lists of the index before a command, and after it
        for command in commands:
            command.prepare(self.inputs, self.out)
            before = found(self.out / "index") if command.index else []
            assert self._run(command, lambda words: _counting(words, folder / "calls")) == 0, (
                self.errors.read_text()
            )
            self.calls[command.name] = int((folder / "calls").read_text())
            self.wanted[command.name] = contents(self.out / command.made, self.out)
            self.answers[command.name] = [
                before,
                found(self.out / "index") if command.made == "index" else [],
            ]

    def disturbed(self, command: Command, faults: Sequence[tuple[int, str]]) -> tuple[str, str]:
        """What came of a command with a fault in each of its first runs, and what is wrong."""
        command.prepare(self.inputs, self.out)
        for call, fault in faults:
            self._run(
                command, lambda words, call=call, fault=fault: _with_fault(call, fault, words)
            )
            if "Traceback" in (said := self.errors.read_text()):
                return "traceback", said[-600:]
            if (
                command.index or (self.out / "index" / "meta.json").exists()
            ) and command.made == "index":
                try:
                    if found(self.out / "index") not in self.answers[command.name]:
                        return "unusable", "neither the old lists nor the new"
                except DupmaeError as e:
                    return "unusable", str(e)
                except Exception:
                    return "unusable", traceback.format_exc()[-600:]
        if self._run(command, dupmae_ir):
            return "failed", self.errors.read_text()[-600:]
        made = contents(self.out / command.made, self.out)
        wanted = self.wanted[command.name]
        different = [name for name in {**made, **wanted} if made.get(name) != wanted.get(name)]
        return "different" if different else "identical", ", ".join(different)

    def two_writers(self, first: Command, second: Command) -> tuple[str, str, str]:
        """What came of two changes of one index that begin together, their names, and what is wrong."""
        first.prepare(self.inputs, self.out)
        names = f"{first.name} and {second.name}"
        errors = [self.errors.with_name(f"errors{n}") for n in range(2)]
        begun = [
            self._begun(one, dupmae_ir, path)
            for one, path in zip((first, second), errors, strict=True)
        ]
        status = [finished(child) for child in begun]
        said = "".join(path.read_text()[-300:] for path in errors)
        if "Traceback" in said or any(end < 0 for end in status):
            return "traceback", names, said
        if 0 not in status:
            return "failed", names, f"both refused: {said}"
        try:
            found(self.out / "index")
        except DupmaeError as e:
            return "unusable", names, str(e)
        return "identical", names, ""

    def _run(self, command: Command, main: Callable[[list[str]], int]) -> int:
        return finished(self._begun(command, main, self.errors))

    def _begun(self, command: Command, main: Callable[[list[str]], int], errors: Path) -> int:
        words = [*map(str, command.words(self.inputs, self.out)), "--quiet"]
        return start(lambda: main(words), errors)


def write_inputs(folder: Path) -> None:
    """Collections, an index of one segment, one with a second segment and a deleted document, and two shards."""
    rng = random.Random(0)

    def write(name: str, numbers: Sequence[int], mark: str = "") -> None:
        rows = [
            {"id": f"n{n}", "text": f"{_WORDS[n % 14]} {mark}" + " ".join(rng.choices(_WORDS, k=8))}
            for n in numbers
        ]
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    write("corpus.jsonl", range(20))
    write("more.jsonl", range(20, 23))
    write("other.jsonl", range(30, 34))
    write("new.jsonl", range(5, 25), "new ")
    corpus = ["--corpus", folder / "corpus.jsonl", "--quiet"]
    commands = [[*_ENCODE, *corpus, "--index", folder / "whole"]]
    commands += [
        [*_ENCODE, *corpus, "--index", folder / f"shard{n}", "--shard", f"{n}/2"] for n in range(2)
    ]
    for words in commands:
        assert dupmae_ir([*map(str, words)]) == 0
    shutil.copytree(folder / "whole", folder / "segmented", symlinks=True)
    index = ["--index", str(folder / "segmented"), "--quiet"]
    assert dupmae_ir(["index", "add", "--corpus", str(folder / "more.jsonl"), *index]) == 0
    assert dupmae_ir(["index", "delete", "--ids", "n1", *index]) == 0


def found(index: Path) -> list[Any]:
    """The lists of some queries, of vectors and of words."""
    searcher = Searcher.open(index)
    lists = [
        [(hit.docid, hit.score) for hit in searcher.search(text, 30, "hybrid")]
        for text in _WORDS[:3]
    ]
    del searcher
    gc.collect()  # a change leaves the segments that somebody reads
    return lists


def _counting(words: list[str], counted: Path) -> int:
    count = _shimmed(lambda _: None)
    status = dupmae_ir(words)
    counted.write_text(str(count()))
    return status


def _with_fault(call: int, fault: str, words: list[str]) -> int:
    """Run a command whose ``call``-th fsync or rename has a ``fault``."""

    def before(count: int) -> Callable[[], Any] | None:
        if count != call:
            return None
        if fault == "killed before":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "Ctrl-C":
            raise KeyboardInterrupt
        if fault in ("fails", "disk full"):
            raise OSError(errno.EIO if fault == "fails" else errno.ENOSPC, "injected")
        return lambda: os.kill(os.getpid(), signal.SIGKILL)

    _shimmed(before)
    return dupmae_ir(words)


def _shimmed(before: Callable[[int], Callable[[], Any] | None]) -> Callable[[], int]:
    """Let ``before`` see the number of each call first, and run what it returns after it; returns the counter."""
    count = 0

    def shim(inner: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            after = before(count)
            result = inner(*arguments, **named)
            return after() if after else result

        return called

    for name in ("fsync", "rename", "replace"):
        setattr(os, name, shim(getattr(os, name)))
    return lambda: count


def sample() -> list[str]:
    """What is wrong after the faults of one command that writes a file, and of one that changes an index."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        tried = [
            command for command in COMMANDS if command.name in ("encode.passages", "index delete")
        ]
        trials = Trials(Path(name), tried)
        wrong = []
        for command in tried:
            for call, fault in (
                (n, fault) for n in range(1, trials.calls[command.name] + 1) for fault in FAULTS[2:]
            ):
                outcome, words = trials.disturbed(command, [(call, fault)])
                wrong += (
                    [f"{command.name}, {fault} at {call}: {words}"]
                    if outcome != "identical"
                    else []
                )
        return wrong


if __name__ == "__main__":  # a process of its own, in which no Java runs
    sys.exit("\n".join(sample()) or 0)
