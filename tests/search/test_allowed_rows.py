"""A search restricted to some rows returns the list of a collection that has only these rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import faiss
import numpy as np
import pytest
from support.search_fakes import World, rotated
from support.search_samples import write_index
from support.seeds import seeds
from test_one_pass import Made, same
from test_rotated_dense import clustered, flat

from dupmae_ir import pyserini
from dupmae_ir.index.postings import searcher as postings_module
from dupmae_ir.index.postings.format import export_postings
from dupmae_ir.search.candidates import dense as dense_module
from dupmae_ir.search.candidates import rotated_dense
from dupmae_ir.search.candidates.dense import DenseIndex
from dupmae_ir.search.exact.certified_topk import Weighted, exact_top
from dupmae_ir.search.fusion import Fusion
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.testing import HashingEncoder
from dupmae_ir.types import Hit, Query

SHARES = [0.0, 0.01, 0.1, 0.5, 0.95]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(before)


@pytest.mark.parametrize("seed", seeds())
def test_equals_brute_force_with_many_ties(seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = World.draw(rng, documents=int(rng.integers(1, 300)), levels=int(rng.integers(2, 6)))
    allowed = rng.random(len(world.docids)) < rng.choice(SHARES)
    k = int(rng.integers(1, 15))
    index = DenseIndex(flat(world.vectors), world.vectors)
    parts = [
        Weighted(index.queries(world.query_vectors, 1, allowed), 1.0),
        Weighted(world.impact()[0].queries(world.sparse_queries(), 1, False, allowed), 0.5),
    ]
    skip = [int(rng.integers(len(world.docids))), None, None]
    scores = np.where(allowed, world.scores(1.0, 0.5), -np.inf)
    for q, found in enumerate(exact_top(parts, 3, world.ranks, k, excluded=skip, allowed=allowed)):
        assert found.exact
        listed = [
            (float(s), world.docids[r]) for s, r in zip(found.scores, found.rows, strict=True)
        ]
        assert listed == world.best(scores[q], k, without=skip[q])


def test_the_bound_is_about_the_allowed_rows() -> None:
    world = World.draw(np.random.default_rng(1), documents=200, levels=5)
    allowed = np.arange(200) % 3 == 0
    parts = [
        DenseIndex(flat(world.vectors), world.vectors).queries(world.query_vectors, 1, allowed),
        world.impact()[0].queries(world.sparse_queries(), 1, False, allowed),
    ]
    for q, found in enumerate(exact_top(parts, 3, world.ranks, 3, max_depth=8, allowed=allowed)):
        inside = np.sort(world.scores()[q][allowed])
        assert found.candidates < len(inside)
        assert (inside[: len(inside) - found.candidates] <= found.bound).all()
        assert found.bound < world.scores()[q][~allowed].max() or q != 0


@pytest.mark.parametrize("few", [1, 10**9])
@pytest.mark.parametrize("queries", [1, 20])
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("make", [lambda x: DenseIndex(flat(x), x), rotated])
def test_dense_indexes_that_certify(
    make, share: float, queries: int, few: int, monkeypatch
) -> None:
    """By copies of the rows, and by faiss's selector."""
    monkeypatch.setattr(dense_module, "FEW", few)
    monkeypatch.setattr(rotated_dense, "pays", lambda _: True)
    monkeypatch.setattr(rotated_dense, "MAX_QUERIES", 1000)
    rng = np.random.default_rng(5)
    x, asked = clustered(rng, 2000)
    x[:300] = x[0]
    allowed = rng.random(2000) < share
    ranks = rng.permutation(2000)
    part = make(x).queries(asked[:queries], 1, allowed)
    for q, found in enumerate(exact_top([part], queries, ranks, 25, allowed=allowed)):
        rows = np.flatnonzero(allowed)
        scores = dense_module.inner_products(asked[q], x, rows)
        best = np.lexsort((ranks[rows], -scores))[:25]
        assert found.exact
        assert found.rows.tolist() == rows[best].tolist()
        assert found.scores.tolist() == scores[best].tolist()


@pytest.mark.parametrize("few", [1, 10**9])
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("window", [64, 1 << 16])
@pytest.mark.parametrize("k", [1, 10, 400])
@pytest.mark.parametrize("loops", [True, False])
def test_one_pass_and_postings(tmp_path: Path, window, share, k, few, loops, monkeypatch) -> None:
    monkeypatch.setattr(postings_module, "pays", lambda _: loops)
    monkeypatch.setattr(postings_module, "FEW", few)
    made = Made(tmp_path, 11, 900, window)
    allowed = np.random.default_rng(3).random(900) < share
    made.restrict(allowed)
    skip = [None, 5, *[int(row) for row in np.flatnonzero(allowed)[:1]], *[None] * 4][
        : made.queries
    ]
    skip += [None] * (made.queries - len(skip))
    same(made.scanned(k, (1.0, 0.3), skip), made.certified(k, (1.0, 0.3), skip))
    everything = np.where(allowed, np.stack([made.dense.scores(0, np.arange(900))]), -np.inf)[0]
    everything += 0.3 * made.impact.scores(0, np.arange(900))
    best = np.lexsort((made.ranks, -everything))[: min(k, int(allowed.sum()))]
    assert made.certified(k, (1.0, 0.3))[0].rows.tolist() == best.tolist()


# ---------------------------------------------------------------- a whole index

WORDS = [f"word{i}" for i in range(60)]
MODES = ("dense", "impact", "hybrid")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """700 documents, a third of them copies, with postings."""
    path = tmp_path_factory.mktemp("allowed") / "I"
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, int(rng.integers(0, 12)))) for _ in range(500)]
    texts += texts[:200]
    write_index(path, [f"d{i}" for i in rng.permutation(700)], texts, scale=30.0)
    from dupmae_ir.index.index import Index

    export_postings(Index.open(path).only_segment, window=256)
    return path


@pytest.fixture(scope="module")
def topics() -> list[Query]:
    rng = np.random.default_rng(1)
    found = [Query(f"q{i}", " ".join(rng.choice(WORDS, 4))) for i in range(20)]
    return [
        *found,
        Query("d3", " ".join(rng.choice(WORDS, 4))),
        Query("blank", " "),
        Query("alien", "zyzzyva"),
    ]


def filtered(
    searcher: Searcher, topics: list[Query], mode: str, ids: set[str], k: int, **options
) -> list[list[Hit]]:
    """Brute force: the list of all documents, filtered."""
    everything = searcher.answers(topics, searcher.index.documents, mode, **options)
    return [[hit for hit in answer.hits if hit.docid in ids][:k] for answer in everything]


@pytest.mark.jvm
@pytest.mark.parametrize("engine", ["lucene", "postings"])
@pytest.mark.parametrize("batch", [1, 256])
@pytest.mark.parametrize("share", [0.003, 0.1, 0.7])
@pytest.mark.parametrize("mode", MODES)
def test_a_searcher_equals_its_own_list_filtered(
    folder: Path, topics: list[Query], mode: str, share: float, batch: int, engine: str
) -> None:
    searcher = Searcher.open(folder, HashingEncoder(), impact_search=engine, batch_size=batch)
    ids = {docid for docid, drawn in zip(searcher.index.docids, np.random.default_rng(2).random(700), strict=True)
           if drawn < share}  # fmt: skip
    for k in (1, 10, 1000):
        wanted = filtered(searcher, topics, mode, ids, k, remove_query=True)
        found = list(searcher.answers(topics, k, mode, within=ids, remove_query=True))
        assert [answer.hits for answer in found] == wanted  # scores bit for bit
        assert all(answer.report is not None and answer.report.exact for answer in found)


@pytest.mark.jvm
def test_fused_lists_are_of_the_allowed_documents(folder: Path, topics: list[Query]) -> None:
    searcher = Searcher.open(folder, HashingEncoder())
    ids = {f"d{i}" for i in range(0, 700, 7)}
    depth = 30
    for found in searcher.answers(
        topics[:5], 10, fusion=Fusion("rrf"), fusion_depth=depth, within=ids
    ):
        ranks: dict[str, float] = {}
        for mode in ("dense", "impact"):
            for rank, hit in enumerate(
                filtered(searcher, [found.query], mode, ids, depth)[0], start=1
            ):
                ranks[hit.docid] = ranks.get(hit.docid, 0.0) + 1 / (60 + rank)
        best = sorted(ranks.items(), key=lambda pair: (-pair[1], pair[0]))[:10]
        assert [hit.docid for hit in found.hits] == [docid for docid, _ in best]


@pytest.mark.jvm
@pytest.mark.parametrize("mode", ["impact", "hybrid"])
def test_lucene_without_our_filter_class_returns_the_same(
    folder: Path, topics: list[Query], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = {f"d{i}" for i in range(0, 700, 50)}
    wanted = Searcher.open(folder, HashingEncoder()).search(topics, 5, mode, within=ids)
    monkeypatch.setattr(pyserini, "own_class", lambda _: None)
    assert Searcher.open(folder, HashingEncoder()).search(topics, 5, mode, within=ids) == wanted


@pytest.mark.jvm
def test_unknown_ids_are_reported_and_none_means_no_document(
    folder: Path, topics: list[Query]
) -> None:
    searcher = Searcher.open(folder, HashingEncoder())
    chosen = searcher.selection(within=["d1", "nothing", "d2", "d1", "other"])
    assert (chosen.documents, chosen.unknown) == (2, ("nothing", "other"))
    assert {hit.docid for hit in searcher.search(topics[0].text, within=chosen, mode="dense")} == {
        "d1",
        "d2",
    }
    for mode in MODES:
        (answer,) = searcher.answers(topics[:1], 5, mode, within=[])
        assert answer.hits == []
        assert answer.report is not None
        assert answer.report.exact
    assert searcher.selection().allowed is None
    assert searcher.selection(within=searcher.index.docids).allowed is None
