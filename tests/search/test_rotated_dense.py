"""Candidates from codes of rotated vectors: lists are brute force's in rows, scores and order, and bounds hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import faiss
import numpy as np
import pytest
from support.search_fakes import World, rotated
from support.seeds import sample

from dupmae_ir.errors import UsageError
from dupmae_ir.index.dense_kinds import FLAT, ROTATED
from dupmae_ir.index.postings.compiling import CHUNK
from dupmae_ir.search.candidates import rotated_dense
from dupmae_ir.search.candidates.dense import DenseIndex, DenseSummary, inner_products
from dupmae_ir.search.candidates.rotated_dense import RotatedIndex
from dupmae_ir.search.config import DENSE_INDEXES, SearchSettings
from dupmae_ir.search.exact.certified_topk import Candidates, Part, Weighted, exact_top

CASES = range(60)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread of faiss; compiled loops also for small collections and many queries."""
    monkeypatch.setattr(rotated_dense, "pays", lambda _: True)
    monkeypatch.setattr(rotated_dense, "MAX_QUERIES", 1000)
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(before)


def flat(x: np.ndarray) -> faiss.IndexFlatIP:
    index = faiss.IndexFlatIP(x.shape[1])
    index.add(x)
    return index


def clustered(
    rng: np.random.Generator, rows: int, dim: int = 32, clusters: int = 40
) -> tuple[np.ndarray, np.ndarray]:
    """(rows, dim) and 20 queries of the same clusters, all of length 1."""
    centres = rng.standard_normal((clusters, dim))
    x = centres[rng.integers(0, clusters, rows + 20)] + 0.5 * rng.standard_normal((rows + 20, dim))
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    return x[:rows], x[rows:]


def awkward(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Vectors and three queries with ties, copies, opposites, zeros, last bits, outliers, few documents, many
    scales."""
    rows = int(rng.choice([1, 3, 40, 400]))
    dim = int(rng.choice([1, 7, 20, 40, 150]))
    x = (
        rng.standard_normal((rows + 3, dim))
        if rng.random() < 0.5
        else rng.integers(-2, 3, (rows + 3, dim)) / 4
    )
    x = x * 10.0 ** rng.integers(-2, 3, dim) if rng.random() < 0.5 else x
    x[:rows][rng.random(rows) < 0.2] = 0
    x[:rows][rng.random(rows) < 0.3] = x[0]
    x[:rows][rng.random(rows) < 0.1] = -x[0]
    x[:rows][rng.random(rows) < 0.02] *= 1e4
    if rng.random() < 0.2:
        x[rows] = 0  # a query that everything ties for
    x = x.astype(np.float32)
    twins = rng.random(rows) < 0.2
    x[:rows][twins] = np.nextafter(x[0], np.float32(9))
    return x[:rows], x[rows:]


def collection(seed: int, rows: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return clustered(rng, rows, dim=int(rng.choice([32, 150]))) if seed % 3 == 0 else awkward(rng)


def brute_force(
    x: np.ndarray, query: np.ndarray, ranks: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    scores = inner_products(query, x, np.arange(len(x)))
    rows = np.lexsort((ranks, -scores))[:k]
    return rows, scores[rows]


@pytest.mark.parametrize(
    "make", [lambda x: DenseIndex(flat(x), x), rotated], ids=["flat", "rotated"]
)
def test_a_search_leaves_the_number_of_threads_as_it_was(
    make: Callable[[np.ndarray], DenseIndex],
) -> None:
    x, queries = clustered(np.random.default_rng(0), 300)
    make(x).queries(queries, threads=3).top([0, 1], 5)
    assert faiss.omp_get_max_threads() == 1


@pytest.mark.parametrize("threads", [1, 3, 8])
@pytest.mark.parametrize("seed", sample(CASES))
def test_lists_equal_brute_force(seed: int, threads: int) -> None:
    x, queries = collection(seed)
    rng = np.random.default_rng(seed)
    ranks = rng.permutation(len(x))
    k = int(rng.integers(1, 40))
    for q, outcome in enumerate(
        exact_top([rotated(x).queries(queries, threads)], len(queries), ranks, k)
    ):
        rows, scores = brute_force(x, queries[q], ranks, k)
        assert outcome.exact
        assert (outcome.rows == rows).all()
        assert (outcome.scores == scores).all()


def violations(part: Part, documents: int, queries: int) -> int:
    """Unseen documents that score more than the bound, over some depths."""
    above = 0
    for depth in (1, 2, 7, 100, 300):
        for q, found in enumerate(part.top(range(queries), depth)):
            unseen = np.setdiff1d(np.arange(documents), found.rows)
            assert len(found.rows) >= min(depth, documents)
            assert found.complete == (min(depth, documents) == documents)
            above += int((part.scores(q, unseen) > found.bound).sum())
    return above


@pytest.mark.parametrize("seed", sample(CASES))
def test_the_bound_holds_for_every_unseen_document(seed: int) -> None:
    x, queries = collection(seed, 500)
    assert violations(rotated(x).queries(queries), len(x), len(queries)) == 0


def decoded(dense: RotatedIndex) -> tuple[np.ndarray, np.ndarray]:
    """(n, d): the rotated vectors as the high halves of their codes give them, and as the complete codes do."""
    stored, (rows, dim) = dense.rotated.codes, dense.vectors.shape
    head = stored.head.transpose(0, 2, 1, 3).reshape(-1, CHUNK // 2)[:rows]
    parts = np.stack([np.hstack([head, stored.high]), stored.low])
    halves = np.stack([parts & 15, parts >> 4]).reshape(2, 2, rows, -1, CHUNK // 2)
    high, low = (
        half.transpose(1, 2, 0, 3).reshape(rows, -1)[:, :dim].astype(float)
        for half in halves.swapaxes(0, 1)
    )
    return dense.rotated.step * (16 * high - 120), dense.rotated.step * (16 * high + low - 127.5)


def exact_bounds(dense: RotatedIndex, query: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(3, n): the bounds by the first chunk, by high halves and by complete codes, by the module's formula; (n,) exact
    scores."""
    stored = dense.rotated.codes
    n = len(dense.vectors)
    turned = dense.rotated.rotation @ query.astype(np.float64)
    coarse, fine = decoded(dense)
    constant = turned @ dense.rotated.mean
    bounds = []
    for codes, errors in zip((coarse[:, :CHUNK], coarse, fine), stored.errors[:, :n], strict=True):
        own = turned[: codes.shape[1]]
        bounds.append(constant + codes @ own + np.linalg.norm(own) * errors.astype(np.float64))
    bounds[0] += np.linalg.norm(turned[CHUNK:]) * stored.rests[:n].astype(np.float64)
    return np.stack(bounds), inner_products(query, dense.vectors, np.arange(n))


@pytest.mark.parametrize("seed", sample(CASES))
def test_the_formula_is_a_bound(seed: int) -> None:
    x, queries = collection(seed, 300)
    dense = rotated(x)
    for query in queries:
        bounds, scores = exact_bounds(dense, query)
        noise = 1e-12 * np.linalg.norm(query.astype(np.float64)) * dense.longest
        assert (bounds + noise >= scores).all()


@pytest.mark.parametrize("length", ["errors", "rests"])
def test_lengths_one_unit_too_small_are_no_bound(length: str) -> None:
    """The property above can fail: by the last bit of a length, for a query in the direction of what is left out."""
    x = np.random.default_rng(0).standard_normal((300, CHUNK + 8)).astype(np.float32)
    dense = rotated(x)
    y = x.astype(np.float64) @ dense.rotated.rotation.T - dense.rotated.mean
    codes, (coarse, fine) = dense.rotated.codes, decoded(dense)
    if length == "errors":
        left = [(y - coarse)[:, :CHUNK], y - coarse, y - fine]
        stored = list(codes.errors)
    else:
        left = [y[:, CHUNK:]]
        stored = [codes.rests]
    for what, lengths in zip(left, stored, strict=True):
        smaller = np.nextafter(lengths, np.float32(0))
        for row in range(300):
            exact = np.linalg.norm(what[row])
            assert smaller[row] < exact <= lengths[row]


@pytest.mark.parametrize("length", ["errors", "rests", "the last errors"])
def test_a_search_with_lengths_too_small_loses_documents(length: str) -> None:
    """The lists above can be wrong: without a part of the bound, documents of the top are excluded."""
    x, queries = clustered(np.random.default_rng(0), 3000, dim=2 * CHUNK)
    dense = rotated(x)
    codes = dense.rotated.codes
    turned = x[:100] @ dense.rotated.rotation.T
    turned[:, :CHUNK] *= 1e-3  # queries that the first chunk says little about
    queries = np.concatenate(
        [queries, x[:100], (turned @ dense.rotated.rotation).astype(np.float32)]
    )
    last = codes.errors.copy()
    last[-1] = 0
    planted = {
        "errors": {"errors": np.vstack([0 * codes.errors[:-1], codes.errors[-1:]])},
        "rests": {"rests": 0 * codes.rests},
        "the last errors": {"errors": last},
    }
    wrong = dataclasses.replace(dense.rotated, codes=codes._replace(**planted[length]))
    part = RotatedIndex(dense.index, x, wrong).queries(queries)
    assert violations(dense.queries(queries), 3000, len(queries)) == 0
    assert violations(part, 3000, len(queries)) > 0


def test_few_rows_are_left() -> None:
    """Most documents are excluded by their codes: the search reads few vectors."""
    x, queries = clustered(np.random.default_rng(0), 5000, dim=150)
    outcomes = exact_top([rotated(x).queries(queries)], 20, np.arange(5000), 10)
    assert all(outcome.exact for outcome in outcomes)
    assert (
        np.mean([outcome.candidates for outcome in outcomes]) < 100
    )  # 30 is the depth of the list


@pytest.mark.parametrize("seed", sample(CASES))
def test_hybrid_with_codes_is_hybrid_with_flat(seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = World.draw(
        rng, documents=int(rng.integers(1, 400)), dim=5, levels=int(rng.integers(2, 6))
    )
    k = int(rng.integers(1, 15))
    results = []
    for dense in (world.dense(), rotated(world.vectors)):
        parts: list[Part] = [
            Weighted(dense.queries(world.query_vectors), 0.5),
            Weighted(world.impact()[0].queries(world.sparse_queries()), 2.0),
        ]
        results.append(exact_top(parts, 3, world.ranks, k))
    for q, (whole, small) in enumerate(zip(*results, strict=True)):
        assert whole.exact
        assert small.exact
        assert (whole.rows == small.rows).all()
        assert (whole.scores == small.scores).all()
        listed = [
            (float(s), world.docids[r]) for s, r in zip(small.scores, small.rows, strict=True)
        ]
        assert listed == world.best(world.scores(0.5, 2.0)[q], k)


def test_too_many_ties_are_left_to_the_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotated_dense, "_SPARE_ROWS", 10)
    x = np.ones((2000, 40), np.float32)
    part = rotated(x).queries(x[:2])
    found: list[Candidates] = part.top([0, 1], 5)
    assert all(len(candidates.rows) == 5 for candidates in found)
    assert violations(part, 2000, 2) == 0


def test_small_work_needs_no_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotated_dense, "pays", lambda _: False)
    x, queries = clustered(np.random.default_rng(0), 500)
    part = rotated(x).queries(queries)
    monkeypatch.setattr(part, "best_sums", None)
    assert violations(part, 500, 20) == 0


@pytest.mark.parametrize(("k", "most"), [(1, 48), (100, 48), (101, 8)])
def test_many_queries_are_multiplied_as_vectors(
    k: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer queries with long lists, which take longer by codes."""
    monkeypatch.undo()
    monkeypatch.setattr(rotated_dense, "pays", lambda _: True)
    x, queries = clustered(np.random.default_rng(0), 300)
    part = rotated(x).queries(queries)
    assert part.excludes(most, k)
    assert not part.excludes(most + 1, k)


def test_summaries() -> None:
    x, _ = clustered(np.random.default_rng(0), 100)
    assert rotated(x).summary() == DenseSummary(ROTATED)
    assert DenseIndex(None, x).summary() == DenseSummary(FLAT)


def test_settings() -> None:
    assert DENSE_INDEXES == (FLAT, ROTATED, "auto")
    with pytest.raises(UsageError, match="Did you mean 'rotated'"):
        SearchSettings(dense_index="rotate")
