"""Dense candidates from fewer bytes: sq8 equals brute force in rows, scores and order; the others say they may not."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import faiss
import numpy as np
import pytest
from support.search_fakes import World, sq8
from support.seeds import sample

from dupmae_ir.errors import UsageError
from dupmae_ir.index.changes.builder import IndexBuilder
from dupmae_ir.index.config import FLAT, KINDS
from dupmae_ir.index.format import dense_kinds
from dupmae_ir.index.format.dense_kinds import DenseKind
from dupmae_ir.index.index import Index
from dupmae_ir.search.candidates import quantised_dense
from dupmae_ir.search.candidates.dense import DenseIndex, DenseSummary, inner_products
from dupmae_ir.search.candidates.quantised_dense import ApproximateIndex, open_dense
from dupmae_ir.search.config import DENSE_INDEXES, SearchSettings
from dupmae_ir.search.exact.certified_topk import Candidates, Part, Weighted, exact_top

CASES = range(60)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(before)


def flat(x: np.ndarray) -> faiss.IndexFlatIP:
    index = faiss.IndexFlatIP(x.shape[1])
    index.add(x)
    return index


def ivf(vectors: np.ndarray, nlist: int, nprobe: int = 0) -> ApproximateIndex:
    meta = {"kind": "ivf-sq8", "parameters": {"nlist": nlist}}
    return ApproximateIndex(DenseKind("ivf-sq8", dense_kinds._build_ivf(vectors, nlist), meta), vectors, nprobe)


def hnsw(vectors: np.ndarray, effort: int = 0, m: int = 16) -> ApproximateIndex:
    index = dense_kinds._build_hnsw(vectors, m, 40)
    return ApproximateIndex(DenseKind("hnsw-sq8", index, {"kind": "hnsw-sq8"}), vectors, effort)


def clustered(rng: np.random.Generator, rows: int, dim: int = 32, clusters: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """(rows, dim) and 20 queries of the same clusters, all of length 1."""
    centres = rng.standard_normal((clusters, dim))
    x = centres[rng.integers(0, clusters, rows + 20)] + 0.5 * rng.standard_normal((rows + 20, dim))
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    return x[:rows], x[rows:]


def awkward(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Vectors and three queries with ties, copies, zeros, outliers, few documents, many scales."""
    rows, dim = int(rng.choice([1, 3, 40, 400])), int(rng.integers(1, 20))
    x = rng.standard_normal((rows + 3, dim)) if rng.random() < 0.5 else rng.integers(-2, 3, (rows + 3, dim)) / 4
    x = x * 10.0 ** rng.integers(-2, 3, dim) if rng.random() < 0.5 else x
    x[:rows][rng.random(rows) < 0.2] = 0
    x[:rows][rng.random(rows) < 0.3] = x[0]
    x[:rows][rng.random(rows) < 0.02] *= 100
    if rng.random() < 0.2:
        x[rows] = 0  # a query that everything ties for
    return x[:rows].astype(np.float32), x[rows:].astype(np.float32)


def brute_force(x: np.ndarray, query: np.ndarray, ranks: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    scores = inner_products(query, x, np.arange(len(x)))
    rows = np.lexsort((ranks, -scores))[:k]
    return rows, scores[rows]


@pytest.mark.parametrize(
    "make", [lambda x: DenseIndex(flat(x), x), sq8, lambda x: ivf(x, 4), hnsw], ids=["flat", "sq8", "ivf", "hnsw"]
)
def test_a_search_leaves_the_number_of_threads_as_it_was(
    make: Callable[[np.ndarray], DenseIndex], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, queries = clustered(np.random.default_rng(0), 300)
    part, set_to, tell = make(x).queries(queries, threads=3), [], faiss.omp_set_num_threads
    monkeypatch.setattr(faiss, "omp_set_num_threads", lambda threads: (set_to.append(threads), tell(threads)))
    part.top([0, 1], 5)
    assert set_to == [3, 1]
    assert faiss.omp_get_max_threads() == 1


@pytest.mark.parametrize("seed", sample(CASES))
def test_sq8_equals_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, queries = clustered(rng, 3000) if seed % 3 == 0 else awkward(rng)
    ranks, k = rng.permutation(len(x)), int(rng.integers(1, 40))
    for q, outcome in enumerate(exact_top([sq8(x).queries(queries)], len(queries), ranks, k)):
        rows, scores = brute_force(x, queries[q], ranks, k)
        assert outcome.exact
        assert (outcome.rows == rows).all()
        assert (outcome.scores == scores).all()


@pytest.mark.parametrize("seed", sample(CASES))
def test_the_bound_holds_for_every_unseen_document(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, queries = clustered(rng, 500) if seed % 3 == 0 else awkward(rng)
    part = sq8(x).queries(queries)
    for depth in (1, 2, 7, 100, 300):
        for q, found in enumerate(part.top(range(len(queries)), depth)):
            unseen = np.setdiff1d(np.arange(len(x)), found.rows)
            assert len(found.rows) == min(depth, len(x)) == len(x) - len(unseen)
            assert found.complete == (len(unseen) == 0)
            assert (part.scores(q, unseen) <= found.bound).all()


def test_the_bound_needs_the_error_of_the_codes() -> None:
    """Without it some unseen document would be above: the property above can fail."""
    x, queries = clustered(np.random.default_rng(0), 500)
    dense = sq8(x)
    dense.error = 0.0
    part = dense.queries(queries)
    above = [
        (part.scores(q, np.setdiff1d(np.arange(500), found.rows)) > found.bound).any()
        for q, found in enumerate(part.top(range(len(queries)), 100))
    ]
    assert any(above)


def test_sq8_finds_what_the_codes_misplace() -> None:
    """The codes' own first is not the true first, and a certificate is not given to it."""
    rng = np.random.default_rng(1)
    x, queries = clustered(rng, 3000)
    x[1500:] = x[:1500] + (1e-3 * rng.standard_normal((1500, 32))).astype(np.float32)
    dense = sq8(x)
    _, first = dense.index.search(queries, 1)
    outcomes = exact_top([dense.queries(queries)], 20, np.arange(3000), 1)
    assert sum(o.rows[0] != first[q, 0] for q, o in enumerate(outcomes)) > 0
    assert all(o.rows[0] == brute_force(x, queries[q], np.arange(3000), 1)[0][0] for q, o in enumerate(outcomes))


def test_going_deeper_reads_the_codes_once() -> None:
    x, queries = clustered(np.random.default_rng(1), 3000)
    part = sq8(x).queries(queries)
    part.top([0, 1], 10)
    index, part.dense.index = part.dense.index, None
    part.top([1, 0], 10 * quantised_dense.LOOKAHEAD)
    part.dense.index = index
    assert len(part.top([1, 2], 100)[1].rows) == 100


@pytest.mark.parametrize("seed", sample(CASES))
def test_many_questions_at_once_find_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By matrix products over decoded blocks, in place of faiss's scan."""
    monkeypatch.setattr(quantised_dense, "MANY", 1)
    monkeypatch.setattr(quantised_dense, "_BLOCK", 97)
    test_sq8_equals_brute_force(seed)
    test_the_bound_holds_for_every_unseen_document(seed)
    rng = np.random.default_rng(seed)
    x, queries = clustered(rng, 1000)
    dense = sq8(x)
    scores, rows = dense.queries(queries)._scan(queries, 150)
    theirs, _ = dense.index.search(queries, 150)
    assert np.abs(scores - theirs).max() < 1e-5
    assert all(len(set(r)) == 150 for r in rows.tolist())


@pytest.mark.parametrize("seed", sample(CASES))
def test_hybrid_with_sq8_is_hybrid_with_flat(seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = World.draw(rng, documents=int(rng.integers(1, 400)), dim=5, levels=int(rng.integers(2, 6)))
    k = int(rng.integers(1, 15))
    results = []
    for dense in (world.dense(), sq8(world.vectors)):
        parts: list[Part] = [
            Weighted(dense.queries(world.query_vectors), 0.5),
            Weighted(world.impact()[0].queries(world.sparse_queries()), 2.0),
        ]
        results.append(exact_top(parts, 3, world.ranks, k))
    for q, (flat, small) in enumerate(zip(*results, strict=True)):
        assert flat.exact
        assert small.exact
        assert (flat.rows == small.rows).all()
        assert (flat.scores == small.scores).all()
        listed = [(float(s), world.docids[r]) for s, r in zip(small.scores, small.rows, strict=True)]
        assert listed == world.best(world.scores(0.5, 2.0)[q], k)


@pytest.mark.parametrize("make", [lambda x: ivf(x, 100, 16), lambda x: hnsw(x, 64)])
def test_approximate_kinds_find_most_and_certify_nothing(make) -> None:
    x, queries = clustered(np.random.default_rng(0), 5000)
    ranks = np.random.default_rng(1).permutation(5000)
    outcomes = exact_top([make(x).queries(queries)], 20, ranks, 20)
    overlap = []
    for q, outcome in enumerate(outcomes):
        rows, _ = brute_force(x, queries[q], ranks, 20)
        overlap.append(len(np.intersect1d(rows, outcome.rows)) / 20)
        assert not outcome.exact
        assert outcome.bound == np.inf
        assert len(outcome.rows) == 20
        assert (outcome.scores == inner_products(queries[q], x, outcome.rows)).all()
        assert (np.lexsort((ranks[outcome.rows], -outcome.scores)) == np.arange(20)).all()
    assert np.mean(overlap) > 0.95


def test_an_approximate_part_is_asked_once() -> None:
    x, queries = clustered(np.random.default_rng(0), 5000)
    asked = []

    class Watched:
        def __init__(self, part: Part) -> None:
            self.part = part

        def top(self, numbers, depth: int) -> list[Candidates]:
            asked.append((list(numbers), depth))
            return self.part.top(numbers, depth)

        def scores(self, query: int, rows: np.ndarray) -> np.ndarray:
            return self.part.scores(query, rows)

    parts = [Watched(hnsw(x, 64).queries(queries)), Weighted(DenseIndex(flat(x), x).queries(queries), 0.3)]
    outcomes = exact_top(parts, 20, np.arange(5000), 5)
    assert asked == [(list(range(20)), 20)]
    assert not any(o.exact for o in outcomes)
    assert {o.depths for o in outcomes} == {(64, 20)}


@pytest.mark.parametrize("make", [lambda x: ivf(x, 5), hnsw])
def test_approximate_kinds_are_exact_where_everything_is_looked_at(make) -> None:
    x, queries = clustered(np.random.default_rng(0), 60)
    for q, outcome in enumerate(exact_top([make(x).queries(queries)], 20, np.arange(60), 50)):
        assert outcome.exact
        assert (outcome.rows == brute_force(x, queries[q], np.arange(60), 50)[0]).all()


def test_near_lists_with_too_few_documents_are_not_all() -> None:
    x, queries = clustered(np.random.default_rng(0), 5000)
    found = ivf(x, 100, 1).queries(queries).top(range(20), 1000)
    assert [len(f.rows) for f in found] == [1000] * 20
    assert all((f.rows >= 0).all() and len(np.unique(f.rows)) == 1000 for f in found)


def test_a_graph_that_copies_have_cut_looks_at_everything() -> None:
    """More copies than a document has neighbours: faiss's walk sees only them, and the best document is not one."""
    x = np.tile(np.eye(1, 8, dtype=np.float32), (2000, 1))
    x[1500:] = np.random.default_rng(0).standard_normal((500, 8)) / 10
    x[1000] = 2 * x[0]
    queries = x[:1]
    dense = hnsw(x, 16, m=2)
    raw = dense.index.search(queries, 400)[1]
    assert (raw < 0).any()
    (found,) = dense.queries(queries).top([0], 400)
    assert found.complete
    (outcome,) = exact_top([dense.queries(queries)], 1, np.arange(2000), 195)
    assert outcome.exact
    assert (outcome.rows == brute_force(x, queries[0], np.arange(2000), 195)[0]).all()


def test_effort_and_its_reason() -> None:
    x, _ = clustered(np.random.default_rng(0), 400)
    automatic = ivf(x, 100).summary()
    assert automatic == DenseSummary("ivf-sq8", False, nprobe=64, reason="1/16 of 100 lists, at least 64")
    assert hnsw(x, 7).summary() == DenseSummary("hnsw-sq8", False, ef_search=7, reason="given")
    assert sq8(x).summary() == DenseSummary("sq8", True)
    assert DenseIndex(None, x).summary() == DenseSummary("flat", True)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"dense_index": "sq9"}, UsageError, "Did you mean 'sq8'"),
        ({"nprobe": 3}, UsageError, "`nprobe` applies only with `dense_index` ivf-sq8"),
        ({"dense_index": "sq8", "ef_search": 3}, UsageError, "`ef_search` applies only with `dense_index` hnsw-sq8"),
        ({"dense_index": "ivf-sq8", "nprobe": -3}, UsageError, "`nprobe` must be at least 0, got -3"),
        ({"dense_index": "hnsw-sq8", "ef_search": 300, "max_depth": 200}, UsageError, "is less than `ef_search` 300"),
    ],
)
def test_invalid_settings(settings: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        SearchSettings(**settings)


@pytest.mark.parametrize("kind", ["flat", "sq8", "ivf-sq8", "hnsw-sq8"])
def test_an_opened_index_outlives_its_folder(kind: str, tmp_path: Path) -> None:
    """The vectors are memory of faiss's flat index, to which there may be no other reference."""
    x, queries = clustered(np.random.default_rng(0), 400)
    with IndexBuilder(tmp_path / "I", dim=32, terms=None, scale=None) as builder:
        builder.add([str(i) for i in range(400)], x, None)
        builder.finish({})
    if kind != "flat":
        dense_kinds.build_kind(Index.open(tmp_path / "I").only_segment, kind)
    dense = open_dense(Index.open(tmp_path / "I").only_segment, kind)
    gc.collect()
    outcomes = exact_top([dense.queries(queries)], 20, np.arange(400), 5)
    assert all(o.exact == (kind in ("flat", "sq8")) for o in outcomes)
    rows = [o.rows[0] for o in outcomes]
    assert np.mean([r == brute_force(x, q, np.arange(400), 1)[0][0] for r, q in zip(rows, queries, strict=True)]) > 0.9


def test_the_command_offers_every_kind() -> None:
    assert (FLAT, *KINDS) == DENSE_INDEXES
