"""Search by postings: a dense matrix product is the oracle, and Lucene's searcher the twin."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from support import index_samples as samples
from support.seeds import grid

from dupmae_ir import __version__
from dupmae_ir.errors import EnvironmentProblem, IndexMismatch, UsageError
from dupmae_ir.index.changes.builder import IndexBuilder
from dupmae_ir.index.format.forward import Forward
from dupmae_ir.index.index import Index
from dupmae_ir.index.postings import format as module
from dupmae_ir.index.postings import searcher as searcher_module
from dupmae_ir.index.postings.format import export_postings, write_postings
from dupmae_ir.index.postings.searcher import PostingsSearcher


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small collections are searched without compiled loops, unless these are loaded; here they are tested."""
    monkeypatch.setattr(searcher_module, "pays", lambda _: True)


class Made:
    """As much of a segment as postings need, of a (documents, V) matrix of impacts."""

    def __init__(self, path: Path, impacts: np.ndarray, ids: list[str] | None = None) -> None:
        matrix = sp.csr_matrix(impacts)
        matrix.sort_indices()
        kind = np.uint16 if impacts.shape[1] <= 1 << 16 else np.uint32
        self.path = self.index = path
        self.documents = impacts.shape[0]
        self.terms = [f"t{i}" for i in range(impacts.shape[1])]
        self.forward = Forward(
            matrix.indptr.astype(np.int64),
            matrix.indices.astype(kind),
            matrix.data.astype(np.uint8),
            impacts.shape[1],
        )
        self.digest = f"digest of {path.name}"
        self.record = types.SimpleNamespace(postings=matrix.nnz)
        self.ids = ids or [str(row) for row in range(self.documents)]
        self.impacts = impacts.astype(np.int64)

    @property
    def ranks(self) -> np.ndarray:
        ranks = np.empty(self.documents, np.int64)
        ranks[sorted(range(self.documents), key=self.ids.__getitem__)] = np.arange(self.documents)
        return ranks

    def check_part(self, part: str, fix: str = "", everything: bool = False) -> None:
        """Nothing is recorded."""

    def part_problem(self, part: str) -> None:
        """Nothing is recorded."""

    def record_part(self, part: str) -> None:
        """There is no manifest."""

    def searcher(self, window: int) -> PostingsSearcher:
        export_postings(self, window)
        return PostingsSearcher(self, lambda: self.ranks)

    def best(self, query: dict[str, int], k: int, by_docid: bool) -> tuple[list[int], list[int]]:
        """Brute force."""
        vector = np.zeros(len(self.terms), np.int64)
        for term, weight in query.items():
            if term in self.terms:
                vector[self.terms.index(term)] = weight
        sums = self.impacts @ vector
        order = sorted(
            np.flatnonzero(sums), key=lambda row: (-sums[row], self.ids[row] if by_docid else row)
        )[:k]
        return [int(row) for row in order], sums[order].tolist()

    def check(
        self, searcher: PostingsSearcher, queries: list[dict[str, int]], k: int, threads: int = 1
    ) -> None:
        for by_docid in (False, True):
            found = searcher.top(queries, k, threads, by_docid)
            assert len(found) == len(queries)
            for query, (rows, scores) in zip(queries, found, strict=True):
                assert (rows.dtype, scores.dtype) == (np.int64, np.int64)
                assert (rows.tolist(), scores.tolist()) == self.best(query, k, by_docid)


def drawn(
    rng: np.random.Generator, documents: int, terms: int, density: float, highest: int
) -> np.ndarray:
    """Random impacts; a third of the documents are copies of others (ties) and some are empty."""
    impacts = rng.integers(1, highest + 1, (documents, terms)) * (
        rng.random((documents, terms)) < density
    )
    copies = rng.integers(0, documents, documents // 3)
    impacts[rng.permutation(documents)[: len(copies)]] = impacts[copies]
    impacts[rng.random(documents) < 0.1] = 0
    return impacts


def asked(rng: np.random.Generator, terms: int, count: int = 12) -> list[dict[str, int]]:
    """Queries of one term, of some, of all; one that nothing matches, one that is empty."""
    sizes = [1, 1, terms, *rng.integers(1, terms + 1, count)]
    made = [
        {f"t{t}": int(rng.integers(1, 256)) for t in rng.permutation(terms)[:size]}
        for size in sizes
    ]
    return [*made, {"unknown": 3}, {}, {"unknown": 255, "t0": 2}]


@pytest.mark.parametrize(
    ("seed", "window", "loops"), grid(range(8), [1, 16, 37, 64, 300, 1 << 16], [True, False])
)
def test_top_k_is_the_brute_force_top_k(tmp_path, window, seed, loops, monkeypatch):
    monkeypatch.setattr(searcher_module, "pays", lambda _: loops)
    rng = np.random.default_rng(seed)
    documents = int(rng.integers(1, 300))
    terms = int(rng.integers(1, 40))
    highest = int(rng.choice([1, 3, 255]))
    ids = [f"d{i}" for i in rng.permutation(documents)]
    made = Made(
        tmp_path, drawn(rng, documents, terms, float(rng.choice([0.05, 0.3, 0.9])), highest), ids
    )
    searcher = made.searcher(window)
    queries = asked(rng, terms)
    for k in (1, 2, 10, documents, 10 * documents):
        made.check(searcher, queries, k, threads=int(rng.integers(1, 4)))


@pytest.mark.parametrize("highest", [1, 2, 255])
@pytest.mark.parametrize("k", [1, 10, 100, 1000])
def test_many_documents_fill_the_list_of_candidates_again_and_again(tmp_path, k, highest):
    """Windows large enough for the guessed floor, more candidates than room, ties by the thousand."""
    rng = np.random.default_rng(k + highest)
    ids = [f"d{i}" for i in rng.permutation(9000)]
    impacts = drawn(rng, 9000, 12, 0.4, highest)
    impacts[:4000:2] *= rng.integers(
        0, 2, (2000, 1)
    )  # a quiet start: later windows hold what is best
    made = Made(tmp_path, impacts, ids)
    for window in (4096, 1 << 16):
        made.check(made.searcher(window), asked(rng, 12, 3), k)


def test_scores_that_rise_and_fall_with_the_row(tmp_path):
    """The worst orders for a floor: every row beats all before it, and every row is beaten."""
    steps = np.arange(3000)
    impacts = np.stack(
        [1 + steps % 250, 1 + steps // 250, 250 - steps % 250, 12 - steps // 250], axis=1
    )
    made = Made(tmp_path, impacts)
    searcher = made.searcher(1024)
    made.check(searcher, [{"t0": 1, "t1": 250}, {"t2": 1, "t3": 250}, {"t1": 7}, {"t3": 7}], 20)


def test_a_floor_guessed_too_high_is_not_used(tmp_path):
    """Every sixteenth row is what the guess looks at: only these score well, and there are fewer of them than k."""
    impacts = np.ones((4096, 1), np.int64)
    impacts[::16] = 200
    made = Made(tmp_path, impacts)
    made.check(made.searcher(4096), [{"t0": 1}], 700)


def test_queries_of_more_terms_than_lucene_takes(tmp_path):
    rng = np.random.default_rng(3)
    made = Made(tmp_path, drawn(rng, 50, 3000, 0.2, 255))
    made.check(
        made.searcher(32), [dict.fromkeys(made.terms, 255), dict.fromkeys(made.terms[:1025], 1)], 50
    )


def test_scores_are_exact_where_float32_is_not(tmp_path):
    weight = (2**31 - 1) // 255
    made = Made(tmp_path, np.array([[255], [254]]))
    searcher = made.searcher(64)
    made.check(searcher, [{"t0": weight}], 2)
    with pytest.raises(UsageError, match="could score 2"):
        searcher.top([{"t0": weight + 1}], 2)


def test_a_vocabulary_wider_than_16_bits(tmp_path):
    rng = np.random.default_rng(4)
    impacts = np.zeros((40, 70_000), np.int64)
    impacts[:, [0, 65_535, 65_536, 69_999]] = rng.integers(0, 9, (40, 4))
    made = Made(tmp_path, impacts)
    made.check(made.searcher(16), [{"t0": 1, "t65536": 2}, {"t69999": 1}], 40)


@pytest.mark.parametrize("impacts", [np.zeros((0, 5), np.int64), np.zeros((7, 5), np.int64)])
def test_nothing_to_find(tmp_path, impacts):
    made = Made(tmp_path, impacts)
    made.check(made.searcher(16), [{"t0": 1}, {}], 3)
    assert made.searcher(16).top([], 3) == []


@pytest.mark.parametrize("seed", range(4))
def test_queries_by_ids_are_those_by_names(tmp_path, seed):
    """An id that the index does not have, of an additional language, matches nothing."""
    rng = np.random.default_rng(seed)
    made = Made(tmp_path, drawn(rng, 200, 12, 0.4, 255))
    searcher = made.searcher(64)
    by_name = asked(rng, 12)
    by_id = []
    for query in by_name:
        ids = [12 if name == "unknown" else int(name[1:]) for name in query]
        by_id.append((np.array(ids, np.int64), np.array(list(query.values()), np.int64)))
    expected = searcher.top(by_name, 20)
    for found in (searcher.top(by_id, 20), searcher.top(by_id, 20, threads=3)):
        for (rows, scores), (expected_rows, expected_scores) in zip(found, expected, strict=True):
            assert rows.tolist() == expected_rows.tolist()
            assert scores.tolist() == expected_scores.tolist()
    with pytest.raises(UsageError, match="of 3 must be a positive whole number, got 0"):
        searcher.top([(np.array([3]), np.array([0]))], 20)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"t1": 0}, "'t1' must be a positive whole number, got 0"),
        ({"t1": -3}, "got -3"),
        ({"t1": 2.5}, "got 2.5"),
        ({"t1": float("nan")}, "got nan"),
        ({"t0": float("inf"), "t1": 0}, "'t0' must be a positive whole number, got inf"),
    ],
)
def test_queries_that_cannot_be_answered_are_refused(tmp_path, query, message):
    searcher = Made(tmp_path, np.ones((4, 3), np.int64)).searcher(16)
    with pytest.raises(UsageError, match=message):
        searcher.top([{"t2": 1}, query], 3)
    with pytest.raises(UsageError, match="at least 1, got 0"):
        searcher.top([{"t2": 1}], 0)


def test_a_window_that_uint16_cannot_number_is_refused(tmp_path):
    with pytest.raises(UsageError, match="1 to 65536 rows"):
        export_postings(Made(tmp_path, np.ones((4, 3), np.int64)), (1 << 16) + 1)
    assert not (tmp_path / "postings").exists()


def test_a_term_beyond_the_vocabulary_is_no_place_in_memory(tmp_path):
    forward = Forward(np.array([0, 2]), np.array([3, 5], np.uint16), np.ones(2, np.uint8), 5)
    with pytest.raises(ValueError, match="indices"):
        write_postings(forward, tmp_path, "d")


def test_a_file_that_cannot_be_opened_leaves_none_open(tmp_path):
    (tmp_path / "rows.npy").mkdir()
    with pytest.raises(OSError, match="rows"):
        write_postings(Made(tmp_path, np.ones((4, 3), np.int64)).forward, tmp_path, "d")


def test_the_files_are_the_transposed_forward_index(tmp_path):
    rng = np.random.default_rng(5)
    impacts = drawn(rng, 100, 30, 0.3, 255)
    impacts[:, ::3] *= rng.random((100, 10)) < 0.1  # every third term is rare
    made = Made(tmp_path, impacts)
    made.searcher(32)
    arrays = {name: np.load(tmp_path / "postings" / f"{name}.npy") for name in module.FILES}
    assert {name: array.dtype for name, array in arrays.items()} == {
        n: np.dtype(t) for n, t in module.FILES.items()
    }
    starts = arrays["starts"]
    pointers = arrays["pointers"].reshape(4, 31)
    columns = arrays["columns"].reshape(4, 30)
    for w in range(4):
        part = impacts[32 * w : 32 * w + 32]
        for t in range(30):
            assert arrays["maxima"].reshape(4, 30)[w, t] == part[:, t].max()
            if (part[:, t] > 0).sum() * module.DENSE >= max(1, len(part)):
                at = arrays["column_starts"][w] + (int(columns[w, t]) - 1) * len(part)
                assert arrays["dense"][at : at + len(part)].tolist() == part[:, t].tolist()
                assert pointers[w, t] == pointers[w, t + 1]
                continue
            assert columns[w, t] == 0
            here = slice(starts[w] + pointers[w, t], starts[w] + pointers[w, t + 1])
            assert arrays["rows"][here].tolist() == np.flatnonzero(part[:, t]).tolist()
            assert arrays["impacts"][here].tolist() == part[part[:, t] > 0, t].tolist()
    assert 0 < len(arrays["rows"]) < made.record.postings
    meta = json.loads((tmp_path / "postings" / "meta.json").read_text())
    assert meta == {
        "format": 1,
        "documents": 100,
        "postings": int((impacts > 0).sum()),
        "vocabulary": 30,
        "window": 32,
        "sparse": len(arrays["rows"]),
        "dense": len(arrays["dense"]),
        "digest": made.digest,
        "made_by": "dupmae-ir index postings",
        "version": __version__,
        "settings": {"window": 32},
        "inputs": {"index": made.digest},
        "result": {},
    }


def test_a_failed_export_leaves_the_older_postings_alone(tmp_path):
    made = Made(tmp_path, np.ones((40, 3), np.int64))
    made.searcher(16)
    before = {path.name: path.read_bytes() for path in (tmp_path / "postings").iterdir()}

    def stop(rows: int) -> None:
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        export_postings(made, 8, stop)
    assert {path.name: path.read_bytes() for path in (tmp_path / "postings").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["postings"]


@pytest.mark.parametrize("name", [f"{name}.npy" for name in module.FILES] + ["meta.json"])
@pytest.mark.parametrize("damage", ["missing", "empty", "half", "garbage", "short"])
def test_damage_is_one_clear_line(tmp_path, name, damage):
    impacts = drawn(np.random.default_rng(6), 200, 9, 0.5, 9)
    impacts[:-10, ::2] = 0  # rare terms and common ones
    made = Made(tmp_path, impacts)
    made.searcher(1024)
    path = tmp_path / "postings" / name
    whole = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "short" and name == "meta.json":
        path.write_text(json.dumps({k: v for k, v in json.loads(whole).items() if k != "window"}))
    elif damage == "short":  # a sound file of fewer values
        np.save(path, np.load(path)[:-2])
    else:
        path.write_bytes(
            {"empty": b"", "half": whole[: len(whole) // 2], "garbage": b"\x80\x04nonsense" * 9}[
                damage
            ]
        )
    with pytest.raises(
        IndexMismatch, match=f"dupmae-ir index postings --index {tmp_path}"
    ) as error:
        PostingsSearcher(made, lambda: made.ranks)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["documents", "postings", "vocabulary", "digest", "format"])
def test_postings_of_another_index_are_refused(tmp_path, key):
    made = Made(tmp_path, np.ones((4, 3), np.int64))
    made.searcher(16)
    path = tmp_path / "postings" / "meta.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: 77}))
    with pytest.raises(
        IndexMismatch,
        match="not of format 1" if key == "format" else rf"another index \({key} differ",
    ):
        PostingsSearcher(made, lambda: made.ranks)


def test_postings_do_not_outlive_their_index(tmp_path):
    made = Made(tmp_path, np.ones((4, 3), np.int64))
    made.searcher(16)
    made.digest = "of new content"
    with pytest.raises(IndexMismatch, match=r"another index \(digest differ"):
        PostingsSearcher(made, lambda: made.ranks)


def test_without_numba_the_command_that_installs_it_is_named(tmp_path, monkeypatch):
    made = Made(tmp_path, np.ones((4, 3), np.int64))
    write_postings(made.forward, tmp_path, "any")  # writing needs none
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "numba" else find(name, *a)
    )
    with pytest.raises(EnvironmentProblem, match=r"needs numba: pip install 'dupmae-ir\[speed\]'"):
        PostingsSearcher(made, lambda: made.ranks)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("both") / "index"
    samples.build(folder, count=300)
    export_postings(Index.open(folder).only_segment, 64)
    return folder


@pytest.mark.jvm
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("by_docid", [False, True])
@pytest.mark.parametrize("k", [1, 7, 100, 1000])
def test_the_hits_are_lucenes(folder, k, by_docid, threads):
    index = samples.opened(folder)
    queries = [*samples.queries(40), {"|": 3}, {"unknown": 1}, {"|": 1, "unknown": 200}]
    ours = index.postings.top(queries, k, threads, by_docid)
    theirs = index.searcher.top(queries, k, threads, by_docid)
    for (rows, scores), (lucene_rows, lucene_scores) in zip(ours, theirs, strict=True):
        assert rows.tolist() == lucene_rows.tolist()
        assert scores.tolist() == lucene_scores.tolist()


@pytest.mark.jvm
def test_an_index_without_impacts_has_no_postings(tmp_path):
    with IndexBuilder(tmp_path / "index", dim=2, terms=None, scale=None) as builder:
        builder.add(["a"], np.ones((1, 2), np.float32), None)
        builder.finish({})
    index = samples.opened(tmp_path / "index")
    with pytest.raises(IndexMismatch, match="has no impacts"):
        export_postings(index)
    with pytest.raises(IndexMismatch, match="has no impacts"):
        _ = index.postings


@pytest.mark.jvm
def test_an_index_without_postings_says_how_to_make_them(tmp_path):
    samples.build(tmp_path / "index")
    with pytest.raises(
        IndexMismatch, match="has no postings; build them with: dupmae-ir index postings --index"
    ):
        _ = Index.open(tmp_path / "index").only_segment.postings


def test_a_cache_older_than_the_classes_it_names_is_not_read(tmp_path: Path) -> None:
    """As after an upgrade that moved one of them: numba fails while it reads such a file."""
    caches = tmp_path / "loops" / "__pycache__"
    caches.mkdir(parents=True)
    for name in ("kernels.py", "compiling.py"):
        shutil.copy(Path(module.__file__).with_name(name), tmp_path / "loops")
    old = caches / "kernels.search-1.py311.nbi"
    new = caches / "kernels.search-2.py311.nbi"
    for path, seconds in ((old, -60), (new, 60)):
        path.write_bytes(b"")
        os.utime(path, (time.time() + seconds,) * 2)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", "from loops import kernels"], env=environment, check=True)
    assert (old.exists(), new.exists()) == (False, True)
