"""Benchmarks that cannot run here in full: the gate of impact_peers.py, with fakes of index and peer, the queries that
bmp can answer, and accelerator.py on the processor."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
IMPACTS = np.array([[3, 0, 1], [0, 2, 2], [1, 1, 0]])
QUERY = {"a": 2, "c": 5}


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("impact_peers", "sparse_peers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import impact_peers

    return impact_peers


def exact(rows, ids, weights):
    return IMPACTS[np.asarray(rows)][:, ids] @ weights


def contest(peers, answer):
    """One query against three documents; the peer returns ``answer``: rows and scores."""
    postings = SimpleNamespace(
        top=lambda queries, k: [(np.array([0, 1])[:k], np.array([11, 10])[:k])] * len(queries)
    )
    index = SimpleNamespace(term_ids={"a": 0, "b": 1, "c": 2}, documents=3)
    segment = SimpleNamespace(postings=postings, forward=SimpleNamespace(scores=exact))
    made = object.__new__(peers.Contest)
    made.label = "three documents"
    made.index = index
    made.segment = segment
    made.queries = [QUERY]
    rows, scores = (np.array(values) for values in answer)
    made.peers = [
        SimpleNamespace(
            name="peer",
            exact=True,
            adapted=lambda query: query,
            prepare=lambda query: query,
            search=lambda query, k: (rows[:k], scores[:k].astype(float)),
            hits=lambda found: found,
        )
    ]
    return made


def test_an_exact_peer_passes(peers):
    assert contest(peers, ([0, 1], [11, 10])).gate(2) == {}


@pytest.mark.parametrize("answer", [([0, 1], [11, 9]), ([0, 2], [11, 10]), ([0], [11])])
def test_a_peer_with_other_scores_or_documents_ends_the_benchmark(peers, answer):
    with pytest.raises(SystemExit, match="peer and postings differ"):
        contest(peers, answer).gate(2)


def test_an_approximate_peer_has_a_recall(peers):
    made = contest(peers, ([0, 2], [11, 2]))
    made.peers[0].exact = False
    assert made.gate(2) == {"peer": 0.5}


def test_weights_are_scaled_and_rounded_up(peers):
    assert peers.rounded_to({"a": 64, "b": 33, "c": 1}, 32) == {"a": 32, "b": 17, "c": 1}
    assert peers.rounded_to({"a": 32, "b": 1}, 32) == {"a": 32, "b": 1}


def test_goals_are_those_of_the_nearest_size(peers):
    assert peers.goal_of("bmp", 10, 150_000) == 10.0
    assert peers.goal_of("bmp", 10, 1_000_000) == 4.0
    assert peers.goal_of("PISA MaxScore", 1000, 1_000_000) == 10.0


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of names that older releases need
def test_the_benchmark_of_an_accelerator_runs_on_the_processor(monkeypatch, capsys):
    pytest.importorskip("sentence_transformers")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import accelerator

    words = "accelerator.py --device cpu --shape tiny --passages 8 --train-texts 4 --no-compile --no-save --repeats 1"
    monkeypatch.setattr(sys, "argv", words.split())
    accelerator.main()
    printed = capsys.readouterr().out
    assert "float32 on the device: [CLS] of the plain model" in printed
    assert [line.split()[0] for line in printed.splitlines()].count("17") == 5


def test_the_benchmark_of_an_accelerator_needs_one(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import accelerator

    monkeypatch.setattr(accelerator.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["accelerator.py"])
    with pytest.raises(SystemExit, match="no CUDA device"):
        accelerator.main()
