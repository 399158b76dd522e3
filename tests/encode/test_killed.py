"""Kill -9 at any moment, then the same command: the index is the undisturbed one."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.encode_runs import content, meta, start, write_corpus

SETTINGS = ("--window", 60, "--quiet")

pytestmark = pytest.mark.jvm


def finish(corpus: Path, index: Path, delay: float) -> float:
    """Run to the end; seconds taken."""
    begun = time.monotonic()
    process = start(corpus, index, *SETTINGS, delay=delay)
    _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (0, "")
    return time.monotonic() - begun


def killed(corpus: Path, index: Path, delay: float, when: Callable[[], bool]) -> bool:
    """Run, and kill without warning as soon as ``when()``; False when the run was done before."""
    process = start(corpus, index, *SETTINGS, delay=delay)
    try:
        while not when() and process.poll() is None:
            time.sleep(0.002)
        return process.poll() is None
    finally:
        process.kill()
        process.communicate()


def after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def assert_same(index: Path, whole: Path) -> None:
    assert content(index) == content(whole)
    assert meta(index)["digest"] == meta(whole)["digest"]


def test_three_kills(tmp_path):
    """After the first part, in the middle, and while the index is built: each time further than before."""
    corpus = write_corpus(tmp_path / "corpus.jsonl", 900)
    whole = tmp_path / "whole"
    index = tmp_path / "trial" / "I"
    finish(corpus, whole, 0)
    work = index.with_name(".I.work")
    moments: list[Callable[[], bool]] = [
        lambda: len(list(work.glob("window-*"))) >= 1,
        lambda: len(list(work.glob("window-*"))) >= 8,
        lambda: any((work / "index").glob("segments/*/ot")),
    ]
    for when in moments:
        assert killed(corpus, index, 0.05, when)
        assert work.exists()
        assert not index.exists()
    finish(corpus, index, 0)
    assert_same(index, whole)
    assert [p.name for p in index.parent.iterdir()] == ["I"]


@pytest.mark.nightly
def test_twenty_kills(tmp_path):
    """At random moments until twenty runs were really cut short; every third index is killed twice."""
    corpus = write_corpus(tmp_path / "corpus.jsonl", 900)
    whole = tmp_path / "whole"
    delay = 0.1
    seconds = finish(corpus, whole, delay)
    rng = random.Random(0)
    hits = 0
    trials = 0
    while hits < 20:
        index = tmp_path / "trial" / f"I{trials}"
        for _ in range(2 if trials % 3 == 2 else 1):
            hits += killed(corpus, index, delay, after(seconds * rng.random()))
        finish(corpus, index, delay)
        assert_same(index, whole)
        trials += 1
        assert trials < 40
    assert sorted(p.name for p in (tmp_path / "trial").iterdir()) == sorted(
        f"I{t}" for t in range(trials)
    )


def test_a_killed_process_leaves_no_lock(tmp_path):
    corpus = write_corpus(tmp_path / "corpus.jsonl", 200)
    index = tmp_path / "I"
    assert killed(corpus, index, 0.2, lambda: any(tmp_path.glob(".I.work/window-*")))
    assert (tmp_path / ".I.lock").exists()
    finish(corpus, index, 0)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["I", "corpus.jsonl"]
