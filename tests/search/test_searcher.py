"""The searcher over a real index folder, with the hashing encoder."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.search_samples import write_index

from dupmae_ir.errors import CheckpointError, DupmaeError, IndexMismatch, UnknownName, UsageError
from dupmae_ir.index.format.quantisation import quantise
from dupmae_ir.index.index import Index
from dupmae_ir.search.exact.ranking import Answer
from dupmae_ir.search.fusion import Fusion, interpolate, rrf
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.testing import HashingEncoder
from dupmae_ir.types import Hit, Query, Representation

pytestmark = pytest.mark.jvm

SCALE = 40.0
WORDS = [
    "lock",
    "thread",
    "wait",
    "queue",
    "fork",
    "pipe",
    "socket",
    "file",
    "path",
    "open",
    "close",
    "loop",
    "task",
]
MODES = ("dense", "impact", "hybrid")


def texts(n: int, seed: int = 0) -> dict[str, str]:
    """Docids in no order of rows; every fifth text repeats an earlier one, some are empty."""
    rng = np.random.default_rng(seed)
    found: list[str] = []
    for i in range(n):
        copied = found[int(rng.integers(len(found)))] if i % 5 == 4 else None
        words = rng.choice(WORDS, int(rng.integers(0, 9))).tolist()
        found.append(" ".join(words) if copied is None else copied)
    return {f"d{i}": text for i, text in zip(rng.permutation(n).tolist(), found, strict=True)}


Build = Callable[..., Path]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    def built(
        documents: dict[str, str], encoder: HashingEncoder | None = None, described: bool = True
    ) -> Path:
        folder = tmp_path_factory.mktemp("index") / "I"
        return write_index(
            folder, list(documents), list(documents.values()), encoder, SCALE, described
        )

    return built


@pytest.fixture(scope="module")
def documents() -> dict[str, str]:
    return texts(600)


@pytest.fixture(scope="module")
def searcher(build: Build, documents: dict[str, str]) -> Searcher:
    return Searcher.open(build(documents))


@pytest.fixture(scope="module")
def topics() -> list[Query]:
    return [Query(f"q{i}", text) for i, text in enumerate(texts(40, seed=1).values()) if text] + [
        Query("unknown", "zyzzyva qwertz")
    ]


def oracle(searcher: Searcher, topics: list[Query]) -> dict[str, np.ndarray]:
    """Brute force with matrix products over what the index should hold: (queries, documents) per part."""
    index: Index = searcher.index
    encoder = HashingEncoder()
    queries = encoder.encode_queries([q.text for q in topics])
    stored = encoder.encode_documents(list(texts(600).values()))
    assert queries.cls is not None
    assert stored.cls is not None
    dense = queries.cls.astype(np.float64) @ stored.cls.astype(np.float64).T
    q, d = (quantise(r.ot, SCALE)[0].astype(np.int64).toarray() for r in (queries, stored))
    assert list(index.docids) == list(texts(600))
    return {"dense": dense, "impact": (q @ d.T) / SCALE**2, "hybrid": dense + (q @ d.T) / SCALE**2}


def expected(
    searcher: Searcher, scores: np.ndarray, k: int, floor: float = -np.inf
) -> list[tuple[str, float]]:
    # Ten digits: copies of a document differ in a matrix product's last ones.
    pairs = [
        (d, float(s))
        for d, s in zip(searcher.index.docids, np.round(scores, 10), strict=True)
        if s > floor
    ]
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:k]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("k", [1, 7, 100, 1000])
def test_equals_brute_force(searcher: Searcher, topics: list[Query], mode: str, k: int) -> None:
    scores = oracle(searcher, topics)[mode]
    for row, answer in enumerate(searcher.answers(topics, k, mode)):
        want = expected(searcher, scores[row], k, 0.0 if mode == "impact" else -np.inf)
        assert [h.docid for h in answer.hits] == [d for d, _ in want]
        np.testing.assert_allclose(
            [h.score for h in answer.hits], [s for _, s in want], rtol=1e-9, atol=1e-9
        )
        assert answer.report is not None
        assert answer.report.exact


def test_hybrid_is_the_sum_of_the_two_runs(searcher: Searcher, topics: list[Query]) -> None:
    dense, impact, hybrid = (searcher.search(topics, 600, mode) for mode in MODES)
    for qid, hits in hybrid.items():
        d = dict(dense[qid])
        i = dict(impact[qid])
        assert {h.docid: h.score for h in hits} == {doc: d[doc] + i.get(doc, 0.0) for doc in d}


@pytest.mark.parametrize("mode", MODES)
def test_threads_on_one_searcher_find_what_one_finds(
    searcher: Searcher, topics: list[Query], mode: str
) -> None:
    expected = [searcher.search(query.text, 10, mode) for query in topics]
    sizes = list[int]()
    encode = searcher.encoder.encode_queries
    together = searcher.with_settings(threads=1)

    def encoded(asked: list[str], *given: Any) -> Representation:
        sizes.append(len(asked))
        return encode(asked, *given)

    with pytest.MonkeyPatch.context() as patched, ThreadPoolExecutor(8) as pool:
        patched.setattr(searcher.encoder, "encode_queries", encoded)
        found = list(
            pool.map(
                lambda query: together.search(query.text, 10, mode), [*topics, Query("blank", " ")]
            )
        )
    assert found == [*expected, []]
    assert set(sizes) == {1}  # a text of a larger call may be rounded differently


def test_a_searcher_is_freed_with_its_last_reference(build: Build) -> None:
    """Not by the next garbage collection: it holds a lock on the folder, and the client of an engine."""
    searcher = Searcher.open(build(texts(20)))
    searcher.search("lock", 3)
    left = weakref.ref(searcher)
    gc.disable()
    try:
        del searcher
        assert left() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(("threads", "inside"), [(3, 3), (0, 2)])
def test_queries_are_encoded_with_the_configured_threads(
    searcher: Searcher,
    topics: list[Query],
    monkeypatch: pytest.MonkeyPatch,
    threads: int,
    inside: int,
) -> None:
    import torch

    before = torch.get_num_threads()
    seen = []
    encode = searcher.encoder.encode_queries
    monkeypatch.setattr(
        searcher.encoder,
        "encode_queries",
        lambda *given: (seen.append(torch.get_num_threads()), encode(*given))[1],
    )
    other = searcher.with_settings(threads=threads)
    torch.set_num_threads(2)
    try:
        other.search(topics[:2])
        other.explain_all(topics[0].text, ["d1"])
        assert (seen, torch.get_num_threads()) == ([inside] * 2, 2)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("mode", MODES)
def test_results_do_not_depend_on_batches_and_threads(
    searcher: Searcher, topics: list[Query], mode: str
) -> None:
    whole = searcher.search(topics, 20, mode)
    other = searcher.with_settings(batch_size=3, threads=3)
    assert other.search(topics, 20, mode) == whole
    assert {q.qid: searcher.search(q.text, 20, mode) for q in topics[:5]} == {
        q.qid: whole[q.qid] for q in topics[:5]
    }


class Contrary(HashingEncoder):
    """Its dense part ranks in reverse, so the best documents of the sum are deep in both lists."""

    def encode_queries(self, texts: Any, cap: int = 1024) -> Representation:
        found = super().encode_queries(texts, cap)
        assert found.cls is not None
        return Representation(
            -found.cls / 16, found.ot
        )  # of similar magnitude, so that neither part dominates


def test_parts_that_disagree_need_deeper_lists(searcher: Searcher, topics: list[Query]) -> None:
    contrary = Searcher(searcher.index, Contrary())
    parts = oracle(searcher, topics)
    scores = parts["impact"] - parts["dense"] / 16
    reports = []
    for row, answer in enumerate(contrary.answers(topics, 5)):
        want = expected(searcher, scores[row], 5)
        assert [h.docid for h in answer.hits] == [d for d, _ in want]
        assert answer.report is not None
        reports.append(answer.report)
    assert len({r.depth_dense for r in reports}) > 2, "deepening was not exercised"
    for r in reports:
        assert r.exact
        assert r.candidates >= max(r.depth_dense or 0, r.depth_impact or 0)
        assert r.bound is None or (r.kth is not None and r.kth > r.bound)


def test_a_depth_limit_is_kept_and_reported(searcher: Searcher, topics: list[Query]) -> None:
    limited = Searcher(searcher.index, Contrary()).with_settings(max_depth=40)
    parts = oracle(searcher, topics)
    seen = set()
    for row, answer in enumerate(limited.answers(topics, 5)):
        assert answer.report is not None
        assert (answer.report.depth_dense or 0) <= 40
        seen.add(answer.report.exact)
        if answer.report.exact:
            want = expected(searcher, (parts["impact"] - parts["dense"] / 16)[row], 5)
            assert [h.docid for h in answer.hits] == [d for d, _ in want]
    assert seen == {True, False}


@pytest.mark.parametrize("mode", MODES)
def test_raw_and_weighted_scores(searcher: Searcher, topics: list[Query], mode: str) -> None:
    if mode == "impact":
        real = searcher.search(topics, 30, mode)
        raw = searcher.search(topics, 30, mode, raw_impacts=True)
        for qid, hits in raw.items():
            assert all(h.score == int(h.score) for h in hits)
            assert [Hit(h.docid, h.score / SCALE**2) for h in hits] == real[qid]
    else:
        with pytest.raises(UsageError, match="`raw_impacts` applies only with `impact`"):
            searcher.search(topics, 30, mode, raw_impacts=True)
    weighted = searcher.with_settings(dense_weight=0.25, impact_weight=3.0)
    if mode == "hybrid":
        for hit in weighted.search(topics[0].text, 20):
            why = weighted.explain(topics[0].text, hit.docid)
            assert hit.score == why.score == 0.25 * why.dense + 3.0 * why.impact  # type: ignore[operator]
    else:
        assert weighted.search(topics, 20, mode) == searcher.search(topics, 20, mode)


@pytest.mark.parametrize("mode", MODES)
def test_remove_query_by_its_id(searcher: Searcher, documents: dict[str, str], mode: str) -> None:
    docids = [d for d, text in documents.items() if len(text.split()) > 3][:20]
    own = [Query(docid, documents[docid]) for docid in docids]
    kept = searcher.search(own, 10, mode)
    removed = searcher.search(own, 10, mode, remove_query=True)
    longer = searcher.search(own, 11, mode)
    assert any(docid in [h.docid for h in hits] for docid, hits in kept.items())
    for docid, hits in removed.items():
        assert hits == [h for h in longer[docid] if h.docid != docid][:10]
        assert len(hits) == 10


def test_explanations_add_up(searcher: Searcher, topics: list[Query]) -> None:
    for topic in topics[:5]:
        hits = searcher.search(topic.text, 10)
        for hit, why in zip(
            hits, searcher.explain_all(topic.text, [h.docid for h in hits]), strict=True
        ):
            assert (why.docid, why.score) == (hit.docid, hit.score)
            assert why.dense + why.impact == hit.score  # type: ignore[operator]
            assert sum(t.share for t in why.terms) == pytest.approx(why.impact)
            assert all(
                t.share == pytest.approx(t.query_weight * t.document_weight) for t in why.terms
            )
            assert [t.share for t in why.terms] == sorted(
                (t.share for t in why.terms), reverse=True
            )
    with pytest.raises(UnknownName, match="has no document 'nothing'"):
        searcher.explain("lock", "nothing")


def test_as_pyserini_calls_it(searcher: Searcher, topics: list[Query]) -> None:
    hits = searcher.search("wait for a thread", 7)
    assert len(hits) == 7
    assert searcher.search("wait for a thread", hits=7) == hits
    assert hits[0].docid in searcher.index.docids
    run = searcher.batch_search([q.text for q in topics], [q.qid for q in topics], 7, threads=2)
    assert run == searcher.search(topics, 7)


def test_blank_and_unmatched_queries(searcher: Searcher) -> None:
    topics = [Query("1", "  "), Query("2", "lock"), Query("3", ""), Query("4", "zyzzyva")]
    for mode in MODES:
        answers = list(searcher.answers(topics, 5, mode))
        assert [a.query.qid for a in answers] == ["1", "2", "3", "4"]
        assert answers[0].hits == answers[2].hits == []
        assert len(answers[1].hits) == 5
        assert all(a.report and a.report.exact for a in answers)
    unmatched = searcher.search("", 5)
    assert unmatched == []
    assert list(searcher.answers([], 5)) == []


class Counting(HashingEncoder):
    """Records the texts it encodes."""

    seen: list[str]

    def encode_queries(self, texts: Any, cap: int = 1024) -> Representation:
        self.seen = [*getattr(self, "seen", []), *texts]
        return super().encode_queries(texts, cap)


def test_each_distinct_query_is_encoded_once(searcher: Searcher) -> None:
    encoder = Counting()
    counting = Searcher(searcher.index, encoder, searcher.settings).with_settings(batch_size=2)
    topics = [
        Query(str(i), text)
        for i, text in enumerate(["lock", "wait", "lock", "fork", "wait", "lock", ""])
    ]
    assert counting.search(topics, 3) == searcher.search(topics, 3)
    assert encoder.seen == ["lock", "wait", "fork"]


def test_fewer_query_terms_keep_the_strongest(searcher: Searcher) -> None:
    why = searcher.with_settings(query_terms=1).explain("lock lock lock wait", "d1")
    assert len(why.terms) <= 1
    for bad in (0, 1025):
        with pytest.raises(UsageError, match="`query_terms` must be at"):
            searcher.with_settings(query_terms=bad)


def test_fusion_of_the_two_lists(searcher: Searcher, topics: list[Query]) -> None:
    dense, impact = (searcher.search(topics, 20, mode) for mode in ("dense", "impact"))

    def fused(**settings: Any) -> dict[str, list[Hit]]:
        return searcher.search(topics, 10, fusion=Fusion(**settings), fusion_depth=20)

    ranks = fused()
    minimum = fused(method="interpolation", alpha=0.7, normalize=True, missing="min")
    for qid in dense:
        assert ranks[qid] == rrf([dense[qid], impact[qid]])[:10]
        assert minimum[qid] == interpolate(dense[qid], impact[qid], 0.7, True, "min")[:10]
    assert next(searcher.answers(topics, 10, fusion=Fusion())).report is None


@pytest.mark.parametrize("normalization", [False, True])
def test_interpolation_with_the_least_score_ranks_as_the_stock_hybrid_search(
    searcher: Searcher, topics: list[Query], normalization: bool
) -> None:
    """The stock class over the stock searchers on the same folder, each with its own query encoder shape."""
    from dupmae_ir.pyserini import FaissSearcher, HybridSearcher, LuceneImpactSearcher, QueryEncoder

    class Dense(QueryEncoder):
        def encode(self, query: str) -> np.ndarray:
            return HashingEncoder().encode_queries([query]).cls[0]  # type: ignore[index]

    class Impact(QueryEncoder):
        def encode(self, query: str) -> dict[str, int]:
            row = quantise(HashingEncoder().encode_queries([query]).ot, SCALE)[0]
            return {f"w{i}": int(w) for i, w in zip(row.indices, row.data, strict=True)}

    stock = HybridSearcher(
        FaissSearcher(str(searcher.index.path / "cls"), Dense()),
        LuceneImpactSearcher(str(searcher.index.path / "ot"), Impact(), min_idf=-1),
    )
    # Stock scores are dense + 0.1 x integer impact; normalised, each from -0.5 to 0.5.
    weight = 0.1 if normalization else 0.1 * SCALE**2
    fusion = Fusion("interpolation", alpha=1 / (1 + weight), normalize=normalization, missing="min")
    for topic in topics[:12]:
        theirs = stock.search(topic.text, 50, 10, 0.1, normalization)
        ours = searcher.search(topic.text, 10, fusion=fusion, fusion_depth=50)
        # float32 from faiss, and Anserini lowers equal impacts by 1e-6 each to keep their order.
        scores = [(1 + weight) * h.score - 0.55 * normalization for h in ours]
        np.testing.assert_allclose(scores, [h.score for h in theirs], rtol=1e-5, atol=1e-5)


def test_degenerate_indexes(build: Build) -> None:
    one = Searcher.open(build({"only": "wait for the lock"}))
    blank = Searcher.open(build({"blank": ""}))
    for mode in MODES:
        assert [h.docid for h in one.search("lock", 10, mode)] == ["only"]
        assert one.search([Query("only", "lock")], 10, mode, remove_query=True) == {"only": []}
        assert len(blank.search("lock", 10, mode)) == (0 if mode == "impact" else 1)


def test_an_index_with_one_part(build: Build) -> None:
    documents = texts(50)
    dense = Searcher.open(build(documents, HashingEncoder(vocabulary=None)))
    impact = Searcher.open(build(documents, HashingEncoder(dim=None)))
    assert (dense.mode, impact.mode) == ("dense", "impact")
    assert dense.search("lock", 3) == dense.search("lock", 3, "dense")
    for one, has, use in (
        (dense, "dense part (cls)", "dense"),
        (impact, "impact part (ot)", "impact"),
    ):
        other = "impact" if one is dense else "dense"
        for mode, fusion in ((other, None), ("hybrid", None), (None, Fusion())):
            with pytest.raises(UsageError) as caught:
                one.search("lock", 3, mode, fusion=fusion)
            name = "fused" if fusion else mode
            assert f"has only the {has}, which is not enough for {name} search" in str(caught.value)
            assert use in str(caught.value)
    (hit,) = dense.search("lock", 1)
    why = dense.explain("lock", hit.docid)
    assert (why.dense, why.impact, why.terms) == (hit.score, None, [])
    (hit,) = impact.search("lock", 1)
    why = impact.explain("lock", hit.docid)
    assert (why.impact, why.dense) == (hit.score, None)


@pytest.mark.parametrize(
    ("encoder", "says"),
    [
        (
            HashingEncoder(seed=9),
            r"was encoded by testing:hashing \(digest [0-9a-f]{12}\) but the query encoder is",
        ),
        (
            HashingEncoder(query_length=20),
            "with query length 32 but the query encoder has 20; give `query_length` 20",
        ),
        (
            HashingEncoder(activation="log1p"),
            "with activation relu but the query encoder has log1p; load the encoder",
        ),
        (
            HashingEncoder(dtype="bfloat16"),
            "with dtype float32 but the query encoder has bfloat16; give `dtype`",
        ),
    ],
)
def test_an_encoder_that_differs_is_refused_with_both_values(
    searcher: Searcher, encoder: HashingEncoder, says: str
) -> None:
    with pytest.raises(IndexMismatch, match=says):
        Searcher.open(searcher.index, encoder)


def test_settings_that_may_differ(searcher: Searcher) -> None:
    # Documents are not encoded here, so how they were read does not matter.
    Searcher.open(searcher.index, HashingEncoder(document_length=20, top_k=5, device="cuda:0"))
    assert Searcher.open(searcher.index, query_length=10).encoder.settings.query_length == 10
    assert Searcher.open(searcher.index, "testing:hashing").search("lock", 3) == searcher.search(
        "lock", 3
    )
    with pytest.raises(UsageError, match="apply to a model loaded by name"):
        Searcher.open(searcher.index, HashingEncoder(), query_length=10)


def test_an_encoder_without_one_part_is_refused(build: Build) -> None:
    folder = build({"a": "lock"}, described=False)
    with pytest.raises(IndexMismatch, match="does not name the encoder of the index"):
        Searcher.open(folder)
    assert Searcher.open(folder, HashingEncoder()).search("lock", 1)
    with pytest.raises(IndexMismatch, match="has the ot part but testing:hashing does not"):
        Searcher.open(folder, HashingEncoder(vocabulary=None))
    with pytest.raises(
        IndexMismatch, match=r"has 16 dimensions of \[CLS\] but testing:hashing has 8"
    ):
        Searcher.open(folder, HashingEncoder(dim=8))


def test_the_error_for_a_model_that_moved(build: Build) -> None:
    encoder = HashingEncoder()
    encoder.name = "/no/such/model"
    folder = build({"a": "lock"}, encoder)
    with pytest.raises(
        CheckpointError, match=r"recorded in .*meta.json; if the model moved, name it as `model`"
    ):
        Searcher.open(folder)


def test_numbers_that_are_not_finite_are_an_error(searcher: Searcher) -> None:
    class Overflowing(HashingEncoder):
        def encode_queries(self, texts: Any, cap: int = 1024) -> Representation:
            found = super().encode_queries(texts, cap)
            assert found.cls is not None
            found.cls[-1] = np.inf
            return found

    broken = Searcher(searcher.index, Overflowing())
    with pytest.raises(DupmaeError, match="not finite for 'wait'; try `dtype` float32"):
        broken.search([Query("1", "lock"), Query("2", "wait")])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"hits": 0}, "`hits` must be at least 1, got 0"),
        ({"mode": "hybird"}, "no search mode named 'hybird'.*Did you mean 'hybrid'"),
        ({"fusion": Fusion(), "fusion_depth": 0}, "`fusion_depth` must be at least 1"),
    ],
)
def test_misuse(searcher: Searcher, options: dict[str, Any], says: str) -> None:
    with pytest.raises((UsageError, UnknownName), match=says):
        searcher.search("lock", **options)


def test_settings_out_of_range(searcher: Searcher) -> None:
    with pytest.raises(UsageError, match="`dense_weight` must be greater than 0, got 0"):
        searcher.with_settings(dense_weight=0.0)
    with pytest.raises(UsageError, match="`batch_size`"):
        searcher.with_settings(batch_size=0)
    with pytest.raises(UsageError, match="`max_depth` 5 is less than the 10 requested hits"):
        searcher.with_settings(max_depth=5).search("lock", 10)
    with pytest.raises(UsageError, match="two topics have the id"):
        searcher.search([Query("1", "a"), Query("1", "b")])


def test_answers_come_in_the_order_of_the_queries(searcher: Searcher, topics: list[Query]) -> None:
    answers: list[Answer] = list(searcher.with_settings(batch_size=4).answers(topics[::-1], 2))
    assert [a.query for a in answers] == topics[::-1]
