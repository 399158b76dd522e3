"""A local Ray cluster: the same bytes as one process, whoever is killed."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from pathlib import Path

import pytest
from support.encode_runs import content, meta, write_corpus
from test_device_workers import finished, running, start, until, whole

pytest.importorskip("ray", reason="needs the extra: pip install 'dupmae-ir[ray]'")

pytestmark = [
    pytest.mark.jvm,
    pytest.mark.nightly,  # a cluster is nine processes
    pytest.mark.skipif(
        not Path("/proc/self/stat").exists(), reason="the tests find workers in /proc"
    ),
]
TWO = ("--executor", "ray", "--workers", 2)


@pytest.fixture(autouse=True)
def own_cluster(monkeypatch):
    """None that the machine may have."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def descendants(pid: int) -> dict[int, str]:
    """The processes below ``pid`` that run, with their command lines."""
    parents = {}
    words = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            line = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(entry.name)], words[int(entry.name)] = (
                int(fields[1]),
                line.replace(b"\0", b" ").decode(),
            )
    found = {pid}
    last = 0
    while len(found) > last:
        last = len(found)
        found |= {child for child, parent in parents.items() if parent in found}
    return {child: words[child] for child in found - {pid} if child in words}


def actors(pid: int) -> list[int]:
    return [child for child, line in descendants(pid).items() if line.startswith("ray::Actor")]


def gone(pids: list[int]) -> None:
    """Wait until a dead driver's cluster has ended, too."""
    end = time.monotonic() + 400
    while any(
        Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes()
        for pid in pids
    ):
        assert time.monotonic() < end, "a process outlived its driver"
        time.sleep(0.1)


def kill_worker(corpus: Path, index: Path) -> str:
    """Run, kill one of the two workers at its work, and let the run end; what it said."""
    with running(start(corpus, index, *TWO)) as process:
        until(lambda: finished(index) >= 2 and len(actors(process.pid)) == 2, process)
        os.kill(random.choice(actors(process.pid)), signal.SIGKILL)
        _, said = process.communicate(timeout=500)
    assert process.returncode == 0, said
    return said


def test_a_killed_worker(tmp_path):
    corpus = write_corpus(tmp_path / "corpus.jsonl", 3000)
    index = tmp_path / "trial" / "I"
    said = kill_worker(corpus, index)
    assert re.search(
        r"worker cpu#[01] ended \(\w+\) with window \d+ \(documents d\d+ to d\d+\), which", said
    )
    assert content(index) == content(whole(corpus, tmp_path / "whole"))
    assert [p.name for p in index.parent.iterdir()] == ["I"]


def test_five_kills(tmp_path):
    """Three workers and two drivers, in turn; the sixth run ends whole."""
    corpus = write_corpus(tmp_path / "corpus.jsonl", 9000)
    index = tmp_path / "trial" / "I"
    for _ in range(2):
        before = finished(index)
        with running(start(corpus, index, *TWO)) as process:
            until(
                lambda before=before: (
                    finished(index) >= before + 2 and len(actors(process.pid)) == 2
                ),
                process,
            )
            os.kill(actors(process.pid)[0], signal.SIGKILL)
            at = finished(index)
            until(lambda at=at: finished(index) >= at + 1, process)
            below = list(descendants(process.pid))
        gone(below)
        assert not index.exists()
        assert finished(index) > before
    kill_worker(corpus, index)
    assert content(index) == content(whole(corpus, tmp_path / "whole"))
    assert meta(index)["digest"] == meta(tmp_path / "whole")["digest"]
    assert [p.name for p in index.parent.iterdir()] == ["I"]
