"""Fusion against its formulas written out and against Pyserini's own class."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dupmae_ir.errors import UsageError
from dupmae_ir.search.fusion import Fusion, fuse, fuse_runs, interpolate, rrf
from dupmae_ir.types import Hit

DENSE = [Hit("a", 9.0), Hit("b", 5.0), Hit("c", 1.0)]
IMPACT = [Hit("b", 40.0), Hit("d", 20.0)]


def test_reciprocal_ranks_by_hand() -> None:
    assert rrf([DENSE, IMPACT]) == [
        Hit("b", 1 / 62 + 1 / 61),
        Hit("a", 1 / 61),
        Hit("d", 1 / 62),
        Hit("c", 1 / 63),
    ]
    assert rrf([DENSE, IMPACT], rrf_k=0)[1] == Hit("a", 1.0)
    assert rrf([]) == []


def test_equal_sums_are_in_docid_order_for_any_order_of_the_lists() -> None:
    a = [Hit("z", 1.0)]
    b = [Hit("y", 7.0)]
    c = [Hit("x", 3.0)]
    for lists in itertools.permutations([a, b, c]):
        assert [hit.docid for hit in rrf(lists)] == ["x", "y", "z"]


def test_score_of_a_missing_document() -> None:
    def scores(missing: str, normalize: bool = False) -> dict[str, float]:
        return dict(interpolate(DENSE, IMPACT, 0.25, normalize, missing))

    assert scores("zero") == {"b": 0.25 * 5 + 0.75 * 40, "d": 0.75 * 20, "a": 0.25 * 9, "c": 0.25}
    assert scores("min") == {"b": 31.25, "d": 0.25 + 15, "a": 2.25 + 15, "c": 0.25 + 15}
    assert scores("zero", normalize=True) == {"b": 0.25 * 0.5 + 0.75, "d": 0.0, "a": 0.25, "c": 0.0}


def test_degenerate_lists() -> None:
    assert interpolate([], [], normalize=True) == []
    assert interpolate([Hit("a", 3.0)], [], normalize=True) == [Hit("a", 0.5)]
    assert interpolate([], IMPACT, 0.5, missing="min") == [Hit("b", 20.0), Hit("d", 10.0)]


def random_list(rng: np.random.Generator) -> list[Hit]:
    docs = rng.permutation(12)[: int(rng.integers(0, 9))]
    hits = [Hit(f"d{d}", float(s)) for d, s in zip(docs, rng.random(len(docs)) * 30, strict=True)]
    return sorted(hits, key=lambda h: -h.score)


@pytest.mark.jvm
@pytest.mark.parametrize("normalization", [False, True])
@pytest.mark.parametrize("weight_on_dense", [False, True])
def test_ranks_as_the_pyserini_class(normalization: bool, weight_on_dense: bool) -> None:
    from dupmae_ir.pyserini import HybridSearcher

    rng = np.random.default_rng(0)
    total = 1 + 0.3
    alpha = 0.3 / total if weight_on_dense else 1 / total
    fusion = Fusion("interpolation", alpha=alpha, normalize=normalization, missing="min")
    compared = 0
    for _ in range(200):
        dense = random_list(rng)
        sparse = random_list(rng)
        if normalization and 1 in (len(dense), len(sparse)):
            continue  # Pyserini divides by zero here
        theirs = HybridSearcher._hybrid_results(
            dense, sparse, 0.3, 10, normalization, weight_on_dense
        )
        ours = fuse(fusion, dense, sparse, 10)
        differences = [[h.score - hits[0].score for h in hits] for hits in (ours, theirs)]
        assert differences[0] == pytest.approx([d / total for d in differences[1]], abs=1e-12)
        # Pyserini's order among equals follows a set.
        sure = {h.docid for h in theirs if h.score > theirs[-1].score + 1e-9}
        assert sure == {h.docid for h in ours[: len(sure)]}
        compared += 1
    assert compared > 100


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"method": "rrff"}, "Did you mean 'rrf'"),
        ({"method": "rrf", "alpha": 0.1}, "`alpha` applies only with `method` interpolation"),
        ({"method": "rrf", "rrf_k": -1}, "`rrf_k` must be at least 0"),
        ({"method": "interpolation", "alpha": 0.0, "missing": "zero", "normalize": True}, None),
        ({"method": "rrf", "missing": "min"}, "`missing` applies only with `method` interpolation"),
        ({"method": "interpolation", "alpha": 1.5}, "`alpha` must be at most 1"),
        ({"method": "interpolation", "missing": "none"}, "choose from zero, min"),
    ],
)
def test_parameters_without_effect_are_refused(settings: dict, says: str | None) -> None:
    if says is None:
        Fusion(**settings)
        return
    with pytest.raises(UsageError, match=says):
        Fusion(**settings)


def test_a_query_that_one_run_lacks() -> None:
    fused = fuse_runs(Fusion(), {"1": DENSE, "2": DENSE}, {"1": IMPACT, "3": IMPACT}, 2)
    docids = {qid: [hit.docid for hit in hits] for qid, hits in fused.items()}
    assert docids == {"1": ["b", "a"], "2": ["a", "b"], "3": ["b", "d"]}
