"""The exact top k of a sum: against brute force, on collections made of ties."""

from __future__ import annotations

import numpy as np
import pytest
from support.search_fakes import NumpyFlat, World
from support.seeds import sample, seeds

from dupmae_ir.search.exact.certified_topk import Outcome, Part, Weighted, exact_top
from dupmae_ir.search.exact.hits import best_positions

CASES = range(150)


def parts_of(
    world: World, flat: object = None, dense: float = 1.0, impact: float = 1.0
) -> list[Part]:
    index, _ = world.impact()
    return [
        Weighted(world.dense(flat).queries(world.query_vectors), dense),
        Weighted(index.queries(world.sparse_queries()), impact),
    ]


def listed(world: World, outcome: Outcome) -> list[tuple[float, str]]:
    return [(float(s), world.docids[r]) for s, r in zip(outcome.scores, outcome.rows, strict=True)]


@pytest.mark.parametrize("seed", sample(CASES))
def test_equals_brute_force_with_many_ties(seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = World.draw(rng, documents=int(rng.integers(1, 300)), levels=int(rng.integers(2, 6)))
    k = int(rng.integers(1, 15))
    outcomes = exact_top(parts_of(world), 3, world.ranks, k)
    for q, outcome in enumerate(outcomes):
        assert outcome.exact
        assert listed(world, outcome) == world.best(world.scores()[q], k)


@pytest.mark.parametrize("seed", sample(CASES))
def test_one_part_alone_also_settles_ties_at_the_last_place(seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = World.draw(rng, documents=int(rng.integers(1, 120)), levels=2)
    k = int(rng.integers(1, 15))
    dense, impact = parts_of(world)
    for q, outcome in enumerate(exact_top([dense], 3, world.ranks, k)):
        assert outcome.exact
        assert listed(world, outcome) == world.best(world.scores(impact=0)[q], k)
    for q, outcome in enumerate(exact_top([impact], 3, world.ranks, k, floor=0.0)):
        assert outcome.exact
        assert listed(world, outcome) == world.best(world.scores(dense=0)[q], k, floor=0.0)


@pytest.mark.parametrize("seed", seeds())
def test_an_excluded_document_leaves_a_full_list(seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = World.draw(rng, documents=60)
    skip = [int(rng.integers(60)), None, int(np.argmax(world.scores()[2]))]
    for q, outcome in enumerate(exact_top(parts_of(world), 3, world.ranks, 5, excluded=skip)):
        assert listed(world, outcome) == world.best(world.scores()[q], 5, without=skip[q])
        assert len(outcome.rows) == 5


@pytest.mark.parametrize("seed", seeds())
def test_weights_and_the_noise_of_float32_candidates(seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = World.draw(rng, documents=90)
    dense = world.dense()
    # As wrong as float32 may be by its own analysis: half of the promised margin either way.
    margin = min(dense.queries(world.query_vectors).noise(q) for q in range(3))
    flat = NumpyFlat(world.vectors, noise=rng.uniform(-margin / 2, margin / 2, 90))
    parts = parts_of(world, flat, dense=0.5, impact=2.0)
    for q, outcome in enumerate(exact_top(parts, 3, world.ranks, 4)):
        assert listed(world, outcome) == world.best(world.scores(0.5, 2.0)[q], 4)


def test_float32_candidates_may_misplace_the_first_of_many_equals() -> None:
    """All scores are equal but faiss sees each a little lower: none may be certified before all were looked at."""
    world = World.draw(np.random.default_rng(0), documents=300)
    world.vectors[:], world.query_vectors[:] = 0.25, 0.5
    dense = world.dense().queries(world.query_vectors)
    low = -np.random.default_rng(1).uniform(0, dense.noise(0), 300)
    part = world.dense(NumpyFlat(world.vectors, noise=low)).queries(world.query_vectors)
    for outcome in exact_top([part], 3, world.ranks, 1):
        assert [d for _, d in listed(world, outcome)] == ["0"]


def test_an_exhausted_impact_list_leaves_the_dense_score_to_the_unseen() -> None:
    """Nothing matches a term, so the second best document is second by its dense score alone."""
    world = World.draw(np.random.default_rng(0), documents=100)
    world.impacts[:], world.query_impacts[:] = 0, 0
    world.impacts[50], world.query_impacts[:] = 1, 1
    outcomes = exact_top(parts_of(world), 3, world.ranks, 3)
    assert [o.depths[1] for o in outcomes] == [1, 1, 1]
    for q, outcome in enumerate(outcomes):
        assert outcome.bound >= np.sort(world.scores()[q])[: 100 - outcome.candidates].max()
        assert listed(world, outcome) == world.best(world.scores()[q], 3)


def test_a_certificate_is_never_given_wrongly() -> None:
    """With a depth limit, lists reported as exact are exact, and both cases occur."""
    seen = set()
    for seed in CASES:
        rng = np.random.default_rng(seed)
        world = World.draw(rng, documents=100, levels=4)
        for q, outcome in enumerate(exact_top(parts_of(world), 3, world.ranks, 3, max_depth=6)):
            seen.add(outcome.exact)
            assert max(outcome.depths) <= 6
            if outcome.exact:
                assert listed(world, outcome) == world.best(world.scores()[q], 3)
    assert seen == {True, False}


def test_the_bound_holds_for_every_unseen_document() -> None:
    world = World.draw(np.random.default_rng(5), documents=200, levels=4)
    for q, outcome in enumerate(exact_top(parts_of(world), 3, world.ranks, 3, max_depth=16)):
        assert (np.sort(world.scores()[q])[: 200 - outcome.candidates] <= outcome.bound).all()


def test_a_tie_with_the_unseen_is_not_certified_before_it_is_looked_at() -> None:
    """500 equal documents: the first by docid may be anywhere, so everything must be seen."""
    world = World.draw(np.random.default_rng(0), documents=500)
    world.vectors[:], world.impacts[:] = 0.25, 1
    world.query_vectors[:], world.query_impacts[:] = 0.5, 1
    for outcome in exact_top(parts_of(world), 3, world.ranks, 2):
        assert [d for _, d in listed(world, outcome)] == ["0", "1"]
        assert outcome.candidates == 500


def test_only_queries_that_need_it_go_deeper_and_exhausted_lists_are_not_asked_again() -> None:
    rng = np.random.default_rng(1)
    world = World.draw(rng, documents=4000, queries=2, dim=6, terms=6, levels=5)
    # Query 0 is settled at once by one outstanding document; query 1 has no terms and a crowd of dense ties.
    world.vectors[7], world.query_vectors[0] = [10, 10, 10, 10, 10, 0], 1.0
    world.query_impacts[1] = 0
    world.query_vectors[1] = [0, 0, 0, 0, 0, 0.5]
    flat = NumpyFlat(world.vectors)
    index, matrix = world.impact()
    parts = [world.dense(flat).queries(world.query_vectors), index.queries(world.sparse_queries())]
    first, second = exact_top(parts, 2, world.ranks, 1)
    assert first.rows[0] == 7
    assert first.depths[0] == flat.depths[0] == 12
    assert second.depths == (flat.depths[-1], 0)
    assert flat.depths == [12, 24, 48, 96, 192, 384, 768][: len(flat.depths)]
    assert len(flat.depths) > 3
    assert matrix.asked == [(1, 12)]
    assert [d for _, d in listed(world, second)] == [d for _, d in world.best(world.scores()[1], 1)]


def test_more_wanted_than_there_is() -> None:
    world = World.draw(np.random.default_rng(3), documents=7)
    dense, impact = parts_of(world)
    for q, outcome in enumerate(exact_top([dense, impact], 3, world.ranks, 1000)):
        assert outcome.exact
        assert outcome.bound == -np.inf
        assert listed(world, outcome) == world.best(world.scores()[q], 1000)
        assert len(outcome.rows) == 7
    for q, outcome in enumerate(exact_top([impact], 3, world.ranks, 1000, floor=0.0)):
        assert listed(world, outcome) == world.best(world.scores(dense=0)[q], 1000, floor=0.0)


def test_no_queries() -> None:
    world = World.draw(np.random.default_rng(3), documents=7)
    assert exact_top(parts_of(world), 0, world.ranks, 5) == []


def test_best_positions_against_sorting() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        n = int(rng.integers(0, 30))
        scores = rng.integers(0, 4, n).astype(float)
        ranks = rng.permutation(n)
        k = int(rng.integers(1, 40))
        expected = sorted(range(n), key=lambda i: (-scores[i], ranks[i]))[:k]
        assert best_positions(scores, ranks, k).tolist() == expected
