"""The gate of benchmarks/impact_peers.py, with fakes of index and peer, and the queries that bmp can answer."""

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
    postings = SimpleNamespace(top=lambda queries, k: [(np.array([0, 1])[:k], np.array([11, 10])[:k])] * len(queries))
    index = SimpleNamespace(
        postings=postings, forward=SimpleNamespace(scores=exact), term_ids={"a": 0, "b": 1, "c": 2}, documents=3
    )
    made = object.__new__(peers.Contest)
    made.label, made.index, made.queries = "three documents", index, [QUERY]
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
