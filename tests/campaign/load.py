"""Hours of mixed work: a service that follows a folder, while files change and strangers ask for all they can.

Before the first round, each attack runs for a moment. Each round has a quiet time, one attack of
:mod:`tests.campaign.strangers`, and changes of files all the while except in the quiet time, at whose end a new file
must be found. In the end, every file must be found by its own word, and no file that was deleted. The memory and the
open files of all processes of the service are counted three times at the end of each quiet time, and the lowest counts
are taken: while a new generation of the index is opened, the one before it is open as well.
"""

from __future__ import annotations

import json
import random
import re
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from dupmae_ir.__main__ import main
from tests.campaign.records import Record, Records, markdown, sum_of
from tests.campaign.strangers import (
    ATTACKS,
    OFTEN,
    SLOWER,
    Stranger,
    measured,
    random_queries,
    serving,
    strangers,
)

TITLE = "Load: a service follows a folder that changes, while strangers ask for all they can"
FILES = 300
FIRST_SECONDS = 5.0
"""Of each attack before the rounds."""
ATTACK_SECONDS = 30.0
QUIET_SECONDS = 10.0
FOUND_WITHIN = 30.0
"""Seconds from a change in the quiet time to its being found."""
BURST = 40
"""Files of a burst of changes, of which each round has one."""
GROWTH = 1.05
"""Of the memory, from the second fifth of all rounds to the last one."""
LOOKS = 3
"""Counts of memory and files at the end of a round, a second apart."""
MORE_FILES = 10
"""Open files of two more segments; an index has between one and twenty segments as it changes."""


def run(seconds: float, seed: int, records: Records) -> None:
    """A record for every round, and a last one for the whole."""
    rng = random.Random(seed)
    attacks = list(ATTACKS)
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as name:
        folder = ChangingFolder(Path(name) / "documents", rng)
        index = Path(name) / "index"
        words = ["encode", "--corpus", folder.path, "--index", index, "--device", "cpu", "--quiet"]
        assert main([*map(str, words)]) == 0
        with serving(index, "--watch", str(folder.path)) as server:
            for attack in attacks:
                # What is loaded when it is first needed, such as the model for documents, is not growth.
                with strangers(attack, server.port):
                    measured(server.port, FIRST_SECONDS)
            rounds = []
            while not rounds or time.monotonic() < end:
                attack = attacks[len(rounds) % len(attacks)]
                rounds.append(_round(server.port, server.pid, attack, folder))
                records.add(kind="round", seed=seed, **rounds[-1])
            answers_wrong = _files_not_as_they_are(Stranger(server.port), folder)
        records.add(kind="whole", seed=seed, wrong=answers_wrong, **_growth(rounds))


def _round(port: int, pid: int, attack: str, folder: ChangingFolder) -> Record:
    """One attack among changes, then quiet."""
    began = time.monotonic()
    with folder.changing() as changes, strangers(attack, port):
        asked, health, failed = measured(port, ATTACK_SECONDS)
    found = _seconds_until_found(Stranger(port), *folder.add())
    quiet, _, failed_in_quiet = measured(port, QUIET_SECONDS)
    megabytes, files = _least_memory_and_files(pid)
    return {
        "attack": attack,
        "seconds": time.monotonic() - began,
        "queries": len(asked) + len(quiet),
        "failed": failed + failed_in_quiet,
        "changes": changes.count,
        "found": found,
        "quiet": statistics.median(quiet),
        "often": float(np.quantile(asked, OFTEN)),
        "health": max(health),
        "megabytes": megabytes,
        "files": files,
    }


class ChangingFolder:
    """Text files, each with a word of its own."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        self.path = path
        self._rng = rng
        #: name of a file -> its word
        self.words: dict[str, str] = {}
        #: words of files that are no longer there
        self.gone: list[str] = []
        self.count = 0
        path.mkdir()
        for _ in range(FILES):
            self.add()

    def add(self) -> tuple[str, str]:
        """Write a new file. Returns its name and its word."""
        return self._write(f"{self.count}.txt")

    def change(self) -> None:
        """Write a new file, an old one anew, or delete one; about :data:`FILES` remain."""
        deed = self._rng.random()
        if deed < 0.3:
            self.add()
        elif deed < 0.7 or len(self.words) < FILES:
            self._write(self._rng.choice(list(self.words)))
        else:
            name = self._rng.choice(list(self.words))
            (self.path / name).unlink()
            self.gone.append(self.words.pop(name))

    def _write(self, name: str) -> tuple[str, str]:
        if name in self.words:
            self.gone.append(self.words[name])
        word = f"word{self.count}x{self._rng.randrange(10**6)}"
        (self.path / name).write_text(" ".join([word, *random_queries(4, 8)]))
        self.words[name] = word
        self.count += 1
        return name, word

    @contextmanager
    def changing(self) -> Iterator[_Changes]:
        """Meanwhile, files change: one every two seconds, and once a burst."""
        changes = _Changes(self)
        changes.start()
        try:
            yield changes
        finally:
            changes.stopped.set()
            changes.join()


class _Changes(threading.Thread):
    def __init__(self, folder: ChangingFolder) -> None:
        super().__init__(daemon=True)
        self.folder = folder
        self.stopped = threading.Event()
        self.count = 0

    def run(self) -> None:
        for _ in range(BURST):
            self.folder.change()
        self.count = BURST
        while not self.stopped.wait(2.0):
            self.folder.change()
            self.count += 1


def _files_with(client: Stranger, word: str) -> set[str] | None:
    """The files that search by words finds for a word and that have it; None if there is no answer in time.

    Words share the 131,072 dimensions of the embedded model, so a hit need not have the word, and a word may share the
    dimension of one that most files have: all hits are looked at.
    """
    body = {"query": word, "hits": 1000, "mode": "impact", "texts": True}
    status, content = client.ask("POST", "/api/search", body)
    if status != 200:
        return None
    hits = json.loads(content)["results"][0]["hits"]
    return {hit["docid"].partition("#")[0] for hit in hits if word in hit["document"]["text"]}


def _seconds_until_found(client: Stranger, name: str, word: str) -> float:
    """From now until a file is found by its word; infinite if it takes ten times as long as it may."""
    began = time.monotonic()
    while time.monotonic() < began + 10 * FOUND_WITHIN:
        if _files_with(client, word) == {name}:
            return time.monotonic() - began
        time.sleep(0.1)
    return float("inf")


def _files_not_as_they_are(client: Stranger, folder: ChangingFolder) -> int:
    """How many files are not found by their words, and how many old ones are."""
    missing = sum(_files_with(client, word) != {name} for name, word in folder.words.items())
    stale = sum(_files_with(client, word) != set() for word in folder.gone[-1000:])
    return missing + stale


def _least_memory_and_files(pid: int) -> tuple[float, int]:
    """The lowest of several counts of :func:`_memory_and_files`."""
    megabytes = list[float]()
    files = list[int]()
    for _ in range(LOOKS):
        time.sleep(1.0)
        memory_now, files_now = _memory_and_files(pid)
        megabytes.append(memory_now)
        files.append(files_now)
    return min(megabytes), min(files)


def _memory_and_files(pid: int) -> tuple[float, int]:
    """Megabytes that the service and its children hold, shared pages divided among them, and their open files."""
    kilobytes = files = 0
    for process in (pid, *_children(pid)):
        try:
            rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
            files += len(list(Path(f"/proc/{process}/fd").iterdir()))
        except OSError:  # it ended
            continue
        found = re.search(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)
        kilobytes += int(found[1]) if found else 0
    return kilobytes / 1024, files


def _children(pid: int) -> list[int]:
    """All processes below one."""
    listed = subprocess.run(
        ["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
    ).stdout
    parents = [tuple(map(int, line.split())) for line in listed.splitlines()]
    below = [pid]
    for parent in below:
        below += [child for child, above in parents if above == parent]
    return below[1:]


def _growth(rounds: Sequence[Record]) -> Record:
    """Median memory of the second and the last fifth of all rounds, and most files of the first and the second half."""
    fifth = max(1, len(rounds) // 5)
    half = max(1, len(rounds) // 2)
    grown = {}
    for name, part in (
        ("early", rounds[fifth : 2 * fifth] or rounds[:1]),
        ("late", rounds[-fifth:]),
    ):
        grown[f"{name}_megabytes"] = statistics.median(row["megabytes"] for row in part)
    for name, part in (("early", rounds[:half]), ("late", rounds[-half:])):
        grown[f"{name}_files"] = max(row["files"] for row in part)
    return {"rounds": len(rounds), **grown}


def table(records: Sequence[Record]) -> str:
    """Each attack, in milliseconds; then memory and files of each run."""
    rounds = [row for row in records if row["kind"] == "round"]
    by_attack = []
    for attack in dict.fromkeys(row["attack"] for row in rounds):
        own = [row for row in rounds if row["attack"] == attack]
        counts = [sum_of(name)(own) for name in ("queries", "failed", "changes")]
        quiet = statistics.median(row["quiet"] for row in own)
        often = max(row["often"] for row in own)
        found = max(row["found"] for row in own)
        times = [f"{1000 * quiet:.0f}", f"{1000 * often:.0f}", f"{found:.1f}"]
        by_attack.append([attack, len(own), *counts, *times])
    heads = ["attack", "rounds", "plain queries", "failed", "changes of files"]
    heads += ["quiet, ms", "95 of 100 at most, ms", "a change is found within, s"]
    whole = [row for row in records if row["kind"] == "whole"]
    lines = []
    for row in whole:
        hours = sum(r["seconds"] for r in rounds if r["seed"] == row["seed"]) / 3600
        memory = [f"{row[f'{name}_megabytes']:.0f}" for name in ("early", "late")]
        lines.append(
            [f"{hours:.1f} hours", *memory, row["early_files"], row["late_files"], row["wrong"]]
        )
    runs = ["run", "MB, second fifth", "MB, last fifth"]
    runs += ["most open files, first half", "second half", "files wrong"]
    return f"{markdown(heads, by_attack)}\n\n{markdown(runs, lines)}"


def is_wrong(record: Record) -> bool:
    """Whether queries failed or were slow, a change was not found in time, or something grew."""
    if record["kind"] == "round":
        slow = record["often"] > SLOWER * record["quiet"] or record["found"] > FOUND_WITHIN
        return bool(slow or record["failed"])
    grew = record["late_megabytes"] > GROWTH * record["early_megabytes"]
    more = record["late_files"] > record["early_files"] + MORE_FILES
    return bool(grew or more or record["wrong"])
