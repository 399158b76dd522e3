"""The dense part: scores do not depend on the other candidates, and differ from faiss by at most the error bound."""

from __future__ import annotations

import numpy as np
import pytest
from support.search_fakes import NumpyFlat

from dupmae_ir.errors import IndexMismatch
from dupmae_ir.search.candidates.dense import MANY, DenseIndex, as_product, inner_products
from dupmae_ir.search.exact.certified_topk import exact_top


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    out = np.random.default_rng(0).standard_normal((3000, 48)).astype(np.float32)
    out[::9] = out[0]
    return out


@pytest.fixture(scope="module")
def queries() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((17, 48)).astype(np.float32)


def flat_index(vectors: np.ndarray) -> object:
    import faiss

    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return index


def test_equal_vectors_have_bit_identical_scores(vectors: np.ndarray, queries: np.ndarray) -> None:
    rng = np.random.default_rng(2)
    everyone = inner_products(queries[0], vectors, np.arange(3000))
    assert len(set(everyone[::9])) == 1
    for _ in range(30):
        rows = rng.choice(3000, int(rng.integers(1, 200)))
        assert (inner_products(queries[0], vectors, rows) == everyone[rows]).all()


def test_a_single_query_gets_the_same_answer_as_a_batch(
    vectors: np.ndarray, queries: np.ndarray
) -> None:
    dense = DenseIndex(flat_index(vectors), vectors)
    together = exact_top([dense.queries(queries)], 17, np.arange(3000), 50)
    for q, outcome in enumerate(together):
        alone = exact_top([dense.queries(queries[q : q + 1])], 1, np.arange(3000), 50)[0]
        assert (alone.rows == outcome.rows).all()
        assert (alone.scores == outcome.scores).all()
        expected = np.lexsort(
            (np.arange(3000), -inner_products(queries[q], vectors, np.arange(3000)))
        )[:50]
        assert (outcome.rows == expected).all()


def test_many_queries_are_a_matrix_product_and_faiss_is_left_as_it_was(vectors: np.ndarray) -> None:
    import faiss

    before = faiss.cvar.distance_compute_blas_threshold
    inside = []
    for many in (MANY - 1, MANY):
        with as_product(many):
            inside.append(faiss.cvar.distance_compute_blas_threshold)
        assert faiss.cvar.distance_compute_blas_threshold == before
    assert inside == [before, 1]
    with pytest.raises(TypeError), as_product(MANY):
        raise TypeError
    assert faiss.cvar.distance_compute_blas_threshold == before
    many_queries = np.random.default_rng(1).standard_normal((3 * MANY, 48)).astype(np.float32)
    part = DenseIndex(flat_index(vectors), vectors).queries(many_queries)
    together = part.top(range(3 * MANY), 40)
    for q in (0, 7, 3 * MANY - 1):
        (alone,) = part.top([q], 40)
        assert alone.bound == pytest.approx(together[q].bound, abs=2 * part.noise(q))
        assert exact_top([part], 3 * MANY, np.arange(3000), 15)[q].exact


def test_faiss_stays_within_the_stated_noise(vectors: np.ndarray, queries: np.ndarray) -> None:
    part = DenseIndex(flat_index(vectors), vectors).queries(queries)
    scores, rows = flat_index(vectors).search(queries, 3000)  # type: ignore[attr-defined]
    for q in range(17):
        error = np.abs(scores[q] - inner_products(queries[q], vectors, rows[q])).max()
        assert 0 < error < part.noise(q) < 1e-3


def test_a_complete_list_leaves_nothing_unseen(vectors: np.ndarray, queries: np.ndarray) -> None:
    found = DenseIndex(NumpyFlat(vectors), vectors).queries(queries).top([3], 10_000)[0]
    assert found.complete
    assert found.bound == -np.inf
    assert sorted(found.rows) == list(range(3000))


def test_queries_of_another_width_are_refused(vectors: np.ndarray) -> None:
    with pytest.raises(IndexMismatch, match="48-dimensional vectors but the queries have 16"):
        DenseIndex(NumpyFlat(vectors), vectors).queries(np.zeros((1, 16), np.float32))
