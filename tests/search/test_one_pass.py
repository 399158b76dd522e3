"""One pass over both halves gives the very lists of the certified way, and brute force's."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import faiss
import numpy as np
import pytest
import scipy.sparse as sp
from support.search_fakes import rotated
from support.seeds import grid

from dupmae_ir.index.format.forward import Forward
from dupmae_ir.index.postings import searcher as postings_module
from dupmae_ir.index.postings.format import folder_of, write_postings
from dupmae_ir.index.postings.searcher import PostingsSearcher
from dupmae_ir.search.candidates import rotated_dense
from dupmae_ir.search.candidates.dense import DenseIndex
from dupmae_ir.search.candidates.impact import ImpactIndex, ImpactQuery
from dupmae_ir.search.candidates.rotated_dense import Best
from dupmae_ir.search.exact.certified_topk import Weighted, exact_top
from dupmae_ir.search.exact.one_pass import scanned_top

TERMS = [f"t{i}" for i in range(40)]
SCALE = 9.0


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small collections are searched without compiled loops, unless these are loaded; here they are tested."""
    for module in (postings_module, rotated_dense):
        monkeypatch.setattr(module, "pays", lambda _: True)
    monkeypatch.setattr(rotated_dense, "MAX_QUERIES", 1000)


class Made:
    """A random collection and questions; some documents are copies, so that scores tie."""

    def __init__(
        self, folder: Path, seed: int, n: int, window: int, copies: float = 0.3, queries: int = 7
    ) -> None:
        rng = np.random.default_rng(seed)
        impacts = rng.integers(1, 256, (n, len(TERMS))) * (rng.random((n, len(TERMS))) < 0.3)
        vectors = rng.standard_normal((n, 12)).astype(np.float32)
        twins = rng.random(n) < copies
        impacts[twins], vectors[twins] = impacts[0], vectors[0]
        csr = sp.csr_matrix(impacts.astype(np.uint8))
        forward = Forward(
            csr.indptr.astype(np.int64), csr.indices.astype(np.uint16), csr.data, len(TERMS)
        )
        index = SimpleNamespace(
            index=folder,
            path=folder,
            record=SimpleNamespace(postings=csr.nnz),
            digest="d",
            documents=n,
            terms=TERMS,
        )
        index.forward = forward
        index.check_part = lambda *_: None  # postings without an index folder have no records
        folder_of(folder).mkdir(parents=True)
        write_postings(forward, folder_of(folder), "d", window)
        self.ranks = rng.permutation(n).astype(np.int64)
        self.postings = PostingsSearcher(index, lambda: self.ranks)
        flat = faiss.IndexFlatIP(12)
        flat.add(vectors)
        asked = [np.sort(rng.choice(len(TERMS), 6, replace=False)) for _ in range(queries - 1)] + [
            np.zeros(0, int)
        ]
        ots = [ImpactQuery(ids, rng.integers(1, 256, len(ids))) for ids in asked]
        impact = ImpactIndex(lambda: self.postings, forward, TERMS, SCALE, n)
        self.impact = impact.queries(ots, 2)
        self.dense = DenseIndex(flat, vectors).queries(
            rng.standard_normal((queries, 12)).astype(np.float32)
        )
        self.queries = queries
        self.allowed: np.ndarray | None = None

    def rotate(self) -> None:
        """Search by codes of the vectors."""
        self.dense = rotated(self.dense.dense.vectors).queries(self.dense.vectors)

    def restrict(self, allowed: np.ndarray) -> None:
        self.allowed = allowed
        self.impact = self.impact.index.queries(self.impact.impact_queries, 2, False, allowed)
        self.dense = self.dense.dense.queries(self.dense.vectors, 1, allowed)

    def scanned(self, k: int, weights=(1.0, 1.0), excluded=None, threads=1, found=None):
        skip = excluded or [None] * self.queries
        self.dense.threads = threads
        best = {} if found is None else found
        return scanned_top(
            self.dense, self.impact, self.postings, weights, self.ranks, k, skip, threads, best
        )

    def certified(self, k: int, weights=(1.0, 1.0), excluded=None):
        parts = [Weighted(self.dense, weights[0]), Weighted(self.impact, weights[1])]
        return exact_top(
            parts, self.queries, self.ranks, k, excluded=excluded, allowed=self.allowed
        )


def same(scanned, certified) -> None:
    for one, two in zip(scanned, certified, strict=True):
        assert one.exact
        assert one.rows.tolist() == two.rows.tolist()
        assert one.scores.tolist() == two.scores.tolist()  # to the bit: the same operations


@pytest.mark.parametrize(
    ("seed", "size", "k", "loops"),
    grid(
        range(6), [(900, 64), (900, 1 << 16), (1, 64), (65, 64)], [1, 10, 400, 5000], [True, False]
    ),
)
def test_the_lists_are_the_certified_ones(tmp_path, seed, size, k, loops, monkeypatch):
    n, window = size
    monkeypatch.setattr(postings_module, "pays", lambda _: loops)
    made = Made(tmp_path, seed, n, window)
    same(made.scanned(k), made.certified(k))


@pytest.mark.parametrize(
    ("seed", "size", "k", "threads"),
    grid(range(6), [(900, 64), (900, 1 << 16), (1, 64), (65, 64)], [1, 10, 400], [1, 3, 20]),
)
def test_codes_give_the_same_lists_as_vectors(tmp_path, seed, size, k, threads):
    """Also with weights, of some rows only, and without a row."""
    n, window = size
    made = Made(tmp_path, seed, n, window)
    excluded = [int(made.ranks[0]), *[None] * 6]
    expected = made.certified(k, (2.0, 1.0), excluded)
    made.rotate()
    assert made.dense.excludes(7, k, window)
    same(made.scanned(k, (2.0, 1.0), excluded, threads), expected)
    made.restrict(np.random.default_rng(seed).random(n) < 0.5)
    same(made.scanned(k, threads=threads), made.certified(k))


@pytest.mark.parametrize("k", [1, 10])
def test_codes_that_say_little_of_some_rows_lose_none(tmp_path, k):
    """These have high upper bounds; their lower bounds must exclude nothing."""
    made = Made(tmp_path, 3, 900, 64)
    expected = made.certified(k)
    made.rotate()
    stored = made.dense.dense.rotated
    errors = stored.codes.errors.copy()
    errors[:, ::2] += 3
    made.dense.dense.rotated = dataclasses.replace(
        stored, codes=stored.codes._replace(errors=errors)
    )
    same(made.scanned(k), expected)


def test_codes_need_whole_blocks(tmp_path):
    """Postings with windows of another length are searched by vectors."""
    made = Made(tmp_path, 1, 300, 100)
    expected = made.certified(10)
    made.rotate()
    assert not made.dense.excludes(7, 10, 100)
    same(made.scanned(10), expected)


@pytest.mark.parametrize("weights", [(0.25, 1.0), (1.0, 0.01), (300.0, 1e-4)])
def test_weights_count(tmp_path, weights):
    made = Made(tmp_path, 1, 700, 128)
    same(made.scanned(20, weights), made.certified(20, weights))


def test_threads_and_excluded_rows_change_nothing_else(tmp_path):
    made = Made(tmp_path, 2, 700, 128)
    first = [int(found.rows[0]) for found in made.certified(1)]
    excluded = [first[0], None, first[2], 699, None, first[5], 0]
    for threads in (1, 2, 3, 20):
        same(
            made.scanned(15, excluded=excluded, threads=threads),
            made.certified(15, excluded=excluded),
        )


def test_many_small_windows_make_the_kept_lists_overflow_and_nothing_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(postings_module, "_SPARE_ROWS", 64)
    made = Made(tmp_path, 3, 4000, 64, copies=0.0)
    same(made.scanned(10), made.certified(10))


@pytest.mark.parametrize("codes", [False, True])
def test_too_many_ties_are_left_to_the_other_way(tmp_path, monkeypatch, codes):
    for module in (postings_module, rotated_dense):
        monkeypatch.setattr(module, "_SPARE_ROWS", 64)
    made = Made(tmp_path, 4, 2000, 64, copies=1.0)
    if codes:
        made.rotate()
    assert made.scanned(3) == [None] * made.queries


@pytest.mark.parametrize("seed", range(3))
def test_documents_that_float32_cannot_tell_apart_are_not_lost(tmp_path, seed):
    """Their vectors differ in the last bits alone, so the order of float32 sums is no order."""
    made = Made(tmp_path, seed, 2000, 256, copies=1.0)
    rng = np.random.default_rng(seed)
    vectors = made.dense.dense.vectors * (1 + 3e-7 * rng.standard_normal((2000, 12))).astype(
        np.float32
    )
    flat = faiss.IndexFlatIP(12)
    flat.add(vectors)
    made.dense = DenseIndex(flat, vectors).queries(made.dense.vectors)
    expected = made.certified(10)
    same(made.scanned(10), expected)
    made.rotate()
    same(made.scanned(10), expected)


def test_what_was_not_kept_is_bounded(tmp_path):
    made = Made(tmp_path, 5, 900, 64, copies=0.0)
    for query, found in enumerate(made.scanned(10)):
        everything = np.arange(900)
        scores = made.dense.scores(query, everything) + made.impact.scores(query, everything)
        assert found.bound < found.scores[-1]
        assert np.sort(scores)[-11] <= found.bound
        assert found.candidates < 900


@pytest.mark.parametrize(
    ("seed", "k", "codes"), grid(range(8), [1, 5, 60, 5000], [(True, True), (True, False)])
)
def test_segments_that_share_their_best_give_the_lists_of_one(tmp_path, seed, k, codes):
    """The best of the lists of two segments, by codes or the second by vectors, are those of both apart, without a row
    of each; the lower bounds of the first exclude rows of the second, which change no list."""
    made = [Made(tmp_path / name, seed, n, 64) for name, n in (("a", 500), ("b", 700))]
    made[1].impact = made[1].impact.index.queries(made[0].impact.impact_queries, 2)
    made[1].dense = made[1].dense.dense.queries(made[0].dense.vectors)
    first = [[int(outcome.rows[0]) for outcome in one.certified(1)] for one in made]
    without = [[None, first[0][1], *[None] * 5], [first[1][0], *[None] * 6]]
    apart = [one.certified(k, excluded=rows) for one, rows in zip(made, without, strict=True)]
    for one, by_codes in zip(made, codes, strict=True):
        if by_codes:
            one.rotate()
    found: Best = {}
    shared = [
        one.scanned(k, excluded=rows, found=found) for one, rows in zip(made, without, strict=True)
    ]
    for expected, listed in zip(zip(*apart, strict=True), zip(*shared, strict=True), strict=True):
        assert best_of(listed, k) == best_of(expected, k)
        assert all(one.exact for one in listed)
    if k <= 5 and codes[1]:
        alone = made[1].scanned(k, excluded=without[1])
        assert sum(one.candidates for one in shared[1]) < sum(one.candidates for one in alone)


def best_of(outcomes, k):
    """The k best (score, segment, row) of two lists."""
    both = [
        (-score, segment, row)
        for segment, one in enumerate(outcomes)
        for score, row in zip(one.scores.tolist(), one.rows.tolist(), strict=True)
    ]
    return sorted(both)[:k]
