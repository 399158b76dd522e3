"""Runs built to be awkward: ties, near ties, unjudged, missing and extra queries, lines in no order."""

from __future__ import annotations

import numpy as np

from dupmae_ir.types import Hit, Qrels


def awkward_run(
    qrels: Qrels, seed: int, queries: int = 60, depth: int = 120
) -> dict[str, list[Hit]]:
    """A run for about nine tenths of the first ``queries`` judged queries, and two that are not judged."""
    rng = np.random.default_rng(seed)
    run: dict[str, list[Hit]] = {}
    for qid in list(qrels)[:queries]:
        if rng.random() < 0.1:
            continue
        judged = [d for d in qrels[qid] if rng.random() < 0.7][: depth // 2]
        docids = judged + [f"unjudged{i}" for i in range(int(rng.integers(1, depth - len(judged))))]
        # Few distinct scores, some of which only a double could tell apart.
        scores = rng.integers(-3, 9, len(docids)) / 7 + rng.integers(0, 2, len(docids)) * 1e-12
        run[qid] = [Hit(docids[i], float(scores[i])) for i in rng.permutation(len(docids))]
    return run | {"not-judged": [Hit("x", 1.0)], "zzz": [Hit("x", 1.0), Hit("y", 1.0)]}


def random_qrels(seed: int, queries: int = 25) -> dict[str, dict[str, int]]:
    """Grades -1 to 3; some queries without a relevant document."""
    rng = np.random.default_rng(seed)
    qrels = {}
    for q in range(queries):
        judged = rng.permutation(200)[: rng.integers(1, 60)]
        qrels[f"q{q}"] = {f"d{d}": int(rng.integers(-1, 4 if q % 5 else 1)) for d in judged}
    return qrels
