"""Impacts: quantising queries, and scores in real units."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from support.search_fakes import World

from dupmae_ir.search.candidates.impact import ImpactQuery, _ceiling
from dupmae_ir.search.config import MOST_TERMS
from dupmae_ir.search.exact.certified_topk import exact_top
from dupmae_ir.search.query.encoder import quantise
from dupmae_ir.types import EncodedRows, Representation


def test_quantise_rounds_half_to_even_clips_and_drops_zeros() -> None:
    ids = np.arange(7)
    query = quantise(
        ids, np.array([0.04, 0.0625, 0.1875, 0.3125, 30.0, 0, 1.0], np.float32), scale=8.0
    )
    # 0.5, 1.5 and 2.5 go to the even neighbour.
    assert query.ids.tolist() == [2, 3, 4, 6]
    assert query.impacts.tolist() == [2, 2, 240, 8]
    assert quantise(ids[:1], np.array([32.0], np.float32), 8.0).impacts.tolist() == [255]
    for weights in (np.zeros(7), np.full(7, 0.01)):
        assert len(quantise(ids, weights, 8.0).ids) == 0


def test_rows_of_an_encoder_are_put_in_order() -> None:
    """Of any encoder that a program brings: unsorted columns, and a column twice."""
    matrix = sp.csr_matrix(
        (np.array([2.0, 1.0, 3.0, 1.0]), np.array([5, 0, 2, 2]), np.array([0, 0, 4])), shape=(2, 6)
    )
    empty, row = EncodedRows.of(Representation(None, matrix)).ot
    assert [array.tolist() for array in row] == [[0, 2, 5], [1, 4, 2]]
    assert len(empty[0]) == 0
    assert matrix.indices.tolist() == [5, 0, 2, 2]  # left as it was


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
