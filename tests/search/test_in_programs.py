"""Searchers and their results in programs: pickles, processes, threads, ``with``, asynchronous code, DataFrames."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import pickle
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

from dupmae_ir import Index, Query, Searcher, build_index, compare, evaluate, read_run, write_run
from dupmae_ir.errors import IndexMismatch, UsageError
from dupmae_ir.types import Document, Hit

DOCUMENTS = [
    Document("lock", "the lock of a thread is released", title="Locks"),
    Document("heap", "a heap is a tree in a list", title="Heaps"),
    Document("queue", "a queue of threads that wait"),
]
QUERIES = ["the lock of a thread", "a tree in a list", "threads that wait"]
STATM = Path("/proc/self/statm")
QRELS = {"0": {"lock": 1}, "1": {"heap": 1}, "2": {"queue": 1}}


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """An index of the model that one query needs no torch for."""
    path = tmp_path_factory.mktemp("programs") / "index"
    build_index(DOCUMENTS, path)
    return path


@pytest.fixture
def searcher(index):
    return Searcher.open(index)


def topics():
    return [Query(str(number), text) for number, text in enumerate(QUERIES)]


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_hits_pickle_without_the_searcher(searcher, protocol):
    hits = searcher.search(QUERIES[0])
    pickled = pickle.dumps(hits, protocol)
    assert len(pickled) < 1000
    copy = pickle.loads(pickled)
    assert copy == hits
    assert copy.query == QUERIES[0]
    assert "lock" in copy._repr_html_()


def test_results_pickle(searcher):
    run = searcher.search(topics())
    evaluation = evaluate(QRELS, run, ["nDCG@10"])
    comparison = compare(QRELS, {"a": run, "b": {"0": {"lock": 1.0}}}, ["nDCG@10"])
    explanation = searcher.explain(QUERIES[0], "lock")
    described = searcher.describe(QUERIES[0], ["lock"])
    answers = list(searcher.answers(topics(), 2))
    for value in (run, evaluation, comparison, explanation, described):
        assert pickle.loads(pickle.dumps(value)) == value
    copies = pickle.loads(pickle.dumps(answers))
    assert [list(answer.hits) for answer in copies] == [list(answer.hits) for answer in answers]


def test_a_searcher_pickles_by_the_name_of_its_index(searcher):
    changed = searcher.with_settings(query_terms=7)
    copy = pickle.loads(pickle.dumps(changed))
    assert copy.settings == changed.settings
    assert copy.search(QUERIES[0]) == changed.search(QUERIES[0])
    assert len(pickle.dumps(searcher)) < 5000


def test_an_index_pickles_by_its_name(index, tmp_path, monkeypatch):
    monkeypatch.chdir(index.parent)
    opened = Index.open(index.name)
    monkeypatch.chdir(tmp_path)
    copy = pickle.loads(pickle.dumps(opened))
    assert copy.digest == opened.digest


def test_an_index_that_changed_is_refused_where_it_is_loaded(tmp_path):
    build_index({"a": "one"}, tmp_path / "i", model="testing:hashing")
    pickled = pickle.dumps(Index.open(tmp_path / "i"))
    build_index({"a": "two"}, tmp_path / "i", model="testing:hashing", overwrite=True)
    with pytest.raises(IndexMismatch, match="has changed since it was pickled"):
        pickle.loads(pickled)


def test_a_searcher_with_an_encoder_object_does_not_pickle(index, searcher):
    with pytest.raises(UsageError, match="open it with the name of a model"):
        pickle.dumps(Searcher.open(index, searcher.encoder))


# ---- Processes


def first_docids(searcher: Searcher, texts: list[str]) -> list[str]:
    return [searcher.search(text, 1)[0].docid for text in texts]


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_processes_search_with_a_searcher_that_is_sent_to_them(searcher, method):
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        jobs = [pool.submit(first_docids, searcher, QUERIES) for _ in range(2)]
        for job in jobs:
            assert job.result(timeout=120) == ["lock", "heap", "queue"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_searches_with_the_same_object(searcher):
    expected = [searcher.search(text) for text in QUERIES]
    batch = searcher.search(QUERIES)
    child = os.fork()
    if child == 0:
        # Nothing of pytest may run in the child.
        status = 1
        try:
            alone = [searcher.search(text) for text in QUERIES]
            status = 0 if alone == expected and searcher.search(QUERIES) == batch else 2
        finally:
            os._exit(status)
    _, waited = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(waited) == 0
    assert [searcher.search(text) for text in QUERIES] == expected


def test_joblib(searcher):
    joblib = pytest.importorskip("joblib")
    work = joblib.delayed(first_docids)
    found = joblib.Parallel(2)(work(searcher, [text]) for text in QUERIES)
    assert found == [["lock"], ["heap"], ["queue"]]


def test_threads_share_a_searcher(searcher):
    expected = {text: searcher.search(text) for text in QUERIES}
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda text: (text, searcher.search(text)), QUERIES * 20))
    assert all(hits == expected[text] for text, hits in results)


def test_asynchronous_searches(searcher):
    async def ask() -> list[list[Hit]]:
        return await asyncio.gather(*(searcher.asearch(text, 1) for text in QUERIES))

    assert asyncio.run(ask()) == [searcher.search(text, 1) for text in QUERIES]


# ---- Objects


def test_a_closed_searcher_says_so(index):
    with Searcher.open(index) as searcher:
        assert searcher.search(QUERIES[0], 1)[0].docid == "lock"
    with pytest.raises(UsageError, match="this searcher is closed; open the index again"):
        searcher.search(QUERIES[0])


def test_a_frame_of_hits(searcher):
    pytest.importorskip("pandas")
    frame = searcher.search(QUERIES[0], 2).to_frame()
    assert list(frame.columns) == ["rank", "docid", "score", "title", "text"]
    assert frame.iloc[0].tolist()[:2] == [1, "lock"]
    assert frame.iloc[0]["text"] == DOCUMENTS[0].text


def test_a_frame_of_a_run_is_read_again(searcher, tmp_path):
    pytest.importorskip("pandas")
    run = searcher.search(topics(), 2)
    frame = run.to_frame()
    assert list(frame.columns) == ["qid", "docid", "rank", "score"]
    assert len(frame) == 6
    assert evaluate(QRELS, frame, "nDCG@10").mean == evaluate(QRELS, run, "nDCG@10").mean
    write_run(tmp_path / "run.trec", run)
    assert read_run(tmp_path / "run.trec").to_frame()["docid"].tolist() == frame["docid"].tolist()
    write_run(tmp_path / "frame.trec", frame)
    assert read_run(tmp_path / "frame.trec") == read_run(tmp_path / "run.trec")


def test_a_frame_is_indexed_and_asked(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([d._asdict() for d in DOCUMENTS]).drop(columns="metadata")
    build_index(frame, tmp_path / "i", model="testing:hashing")
    searcher = Searcher.open(tmp_path / "i")
    assert searcher.index.documents == 3
    asked = pandas.DataFrame({"qid": ["a", "b"], "query": QUERIES[:2]})
    assert list(searcher.search(asked)) == ["a", "b"]


def test_texts_are_numbered(tmp_path):
    index = build_index(texts=QUERIES, index=tmp_path / "i", model="testing:hashing")
    assert list(index.docids) == ["0", "1", "2"]
    with pytest.raises(UsageError, match="give one of `corpus` and `texts`"):
        build_index(DOCUMENTS, tmp_path / "i", texts=QUERIES)
    with pytest.raises(UsageError, match="`index`: give the folder to make"):
        build_index(DOCUMENTS)


def test_progress_calls_a_function(tmp_path):
    seen = []
    build_index(DOCUMENTS, tmp_path / "i", model="testing:hashing", progress=seen.append)
    indexed = [progress for progress in seen if progress.step == "index"]
    assert indexed[0].done == 0
    assert indexed[-1].done == 3
    assert indexed[-1].unit == "documents"


def test_what_a_progress_function_raises_ends_the_job(tmp_path):
    def stop(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_index(DOCUMENTS, tmp_path / "i", model="testing:hashing", progress=stop)
    assert build_index(DOCUMENTS, tmp_path / "i", model="testing:hashing").documents == 3


@pytest.mark.skipif(not STATM.exists(), reason="the memory of a process is read from /proc")
@pytest.mark.parametrize("rounds", [20, pytest.param(170, marks=pytest.mark.nightly)])
def test_searches_keep_no_memory(index, rounds):
    """60 searches a round: 10,000 in the longer test."""
    searcher = Searcher.open(index)

    def resident() -> int:
        gc.collect()
        return int(STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")

    texts = [f"{text} {number}" for number in range(20) for text in QUERIES]
    for _ in range(10):
        for text in texts:
            searcher.search(text)
    before = resident()
    for _ in range(rounds):
        for text in texts:
            searcher.search(text)
    # A leak of one hit a search would be more.
    assert resident() - before < 4_000_000
