"""Kill -9 at any moment, then the same command: the index is the undisturbed one."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from encode_runs import content, meta, start, write_corpus

DOCUMENTS = 900
SETTINGS = ("--window", 60, "--quiet")


def finish(corpus: Path, index: Path, delay: float) -> float:
    """Run to the end; seconds taken."""
    begun = time.monotonic()
    process = start(corpus, index, *SETTINGS, delay=delay)
    _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (0, "")
    return time.monotonic() - begun


def killed(corpus: Path, index: Path, delay: float, after: float) -> bool:
    """Run, and kill without warning after so many seconds; False when the run was done before."""
    process = start(corpus, index, *SETTINGS, delay=delay)
    try:
        process.communicate(timeout=after)
    except Exception:
        process.kill()
        process.communicate()
        return True
    return False


def check(tmp_path: Path, times: int, delay: float) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl", DOCUMENTS)
    whole = tmp_path / "whole"
    seconds = finish(corpus, whole, delay)
    rng, hits, phases = random.Random(0), 0, set()
    for trial in range(times):
        index = tmp_path / "trial" / f"I{trial}"
        # One kill in each slice of the run, so that reading, encoding and building are all met.
        hits += killed(corpus, index, delay, seconds * (trial + rng.random()) / times)
        work = index.with_name(f".{index.name}.encoding")
        phases.add("nothing" if not work.exists() else "index" if (work / "index").exists() else "parts")
        if trial % 3 == 2:
            hits += killed(corpus, index, delay, seconds * rng.random())
        finish(corpus, index, delay)
        assert content(index) == content(whole)
        assert meta(index)["digest"] == meta(whole)["digest"]
    assert hits >= times - 2
    assert {"parts", "index"} <= phases if times >= 20 else "parts" in phases
    assert sorted(p.name for p in (tmp_path / "trial").iterdir()) == sorted(f"I{t}" for t in range(times))


@pytest.mark.jvm
def test_three_kills(tmp_path):
    check(tmp_path, 3, delay=0.02)


@pytest.mark.jvm
@pytest.mark.slow
def test_twenty_kills(tmp_path):
    check(tmp_path, 20, delay=0.1)
