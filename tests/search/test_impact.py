"""Impacts: quantising queries, and scores in real units."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from search_fakes import World

from dupmae_ir.search.certified_topk import exact_top
from dupmae_ir.search.config import MOST_TERMS
from dupmae_ir.search.impact import ImpactQuery, _ceiling
from dupmae_ir.search.query_encoder import quantise


def test_quantise_rounds_half_to_even_clips_and_drops_zeros() -> None:
    weights = sp.csr_matrix(np.array([[0.04, 0.0625, 0.1875, 0.3125, 30.0, 0, 1.0], [0] * 7, [0.01] * 7], np.float32))
    first, empty, faint = quantise(weights, scale=8.0)
    # 0.5, 1.5 and 2.5 go to the even neighbour.
    assert first.ids.tolist() == [2, 3, 4, 6]
    assert first.impacts.tolist() == [2, 2, 240, 8]
    assert quantise(sp.csr_matrix(np.array([[32.0]], np.float32)), 8.0)[0].impacts.tolist() == [255]
    assert len(empty.ids) == len(faint.ids) == 0


def test_quantise_orders_ids() -> None:
    matrix = sp.csr_matrix((np.array([2.0, 1.0, 3.0]), np.array([5, 0, 2]), np.array([0, 3])), shape=(1, 6))
    (query,) = quantise(matrix, 1.0)
    assert query.ids.tolist() == [0, 2, 5]
    assert query.impacts.tolist() == [1, 3, 2]


def test_real_units_are_the_integers_over_the_scale_squared() -> None:
    world = World.draw(np.random.default_rng(4), documents=50)
    index, _ = world.impact()
    real, raw = (index.queries(world.sparse_queries(), raw=raw) for raw in (False, True))
    rows = np.arange(50)
    for q in range(3):
        assert raw.scores(q, rows).tolist() == (world.impacts @ world.query_impacts[q]).tolist()
        assert (real.scores(q, rows) * world.scale**2 == raw.scores(q, rows)).all()


def test_a_query_without_terms_never_reaches_lucene() -> None:
    world = World.draw(np.random.default_rng(4), documents=50)
    index, matrix = world.impact()
    part = index.queries([ImpactQuery(np.zeros(0, np.int64), np.zeros(0, np.int64))])
    (outcome,) = exact_top([part], 1, world.ranks, 5, floor=0.0)
    assert matrix.asked == []
    assert outcome.exact
    assert len(outcome.rows) == 0


def test_a_score_beyond_float32_integers_gets_room_above() -> None:
    for true in (2**24 - 1, 2**24 + 1, 2**25 + 3, MOST_TERMS * 255 * 255):
        as_lucene_says = int(np.float32(true))
        assert true <= _ceiling(as_lucene_says)
