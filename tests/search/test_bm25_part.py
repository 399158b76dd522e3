"""BM25 as a third part of the exact sum: against brute force, in Lucene and with a fake of it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from support.search_fakes import World
from support.search_samples import write_index
from support.seeds import seeds

from dupmae_ir.errors import IndexMismatch, UsageError
from dupmae_ir.index.format.row_set import RowSet
from dupmae_ir.index.lucene.bm25 import BM25Searcher, build_bm25
from dupmae_ir.io.runs import read_run
from dupmae_ir.search.__main__ import main
from dupmae_ir.search.candidates import bm25 as part
from dupmae_ir.search.candidates.bm25 import Bm25Index
from dupmae_ir.search.exact.certified_topk import Weighted, exact_top
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.testing import HashingEncoder
from dupmae_ir.types import Document, Query

WEIGHT = 0.6
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


class FakeBm25:
    """A BM25 index in memory, its documents in another order: ``matrix`` (queries, documents), queries by number."""

    def __init__(self, matrix: np.ndarray, docids: list[str], order: np.ndarray) -> None:
        self.folder = Path("fake")
        self.matrix = matrix[:, order]
        self._docids = [docids[i] for i in order]
        self.rescored = 0

    def docids(self) -> tuple[np.ndarray, list[str]]:
        by_id = np.argsort(self._docids)
        return by_id, [self._docids[i] for i in by_id]

    def top(
        self, texts: Sequence[str], k: int, threads: int, allowed: RowSet | None = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        lists = []
        for scores in self.matrix[[int(text) for text in texts]]:
            rows = np.argsort(-scores, kind="stable")
            rows = rows if allowed is None else rows[allowed.mask[rows]]
            rows = rows[scores[rows] > 0][:k]
            lists.append((rows, scores[rows]))
        return lists

    def scores(self, text: str, docids: Sequence[str]) -> list[tuple[int, float]]:
        self.rescored += 1
        numbers = [self._docids.index(docid) for docid in docids]
        return [
            (n, float(self.matrix[int(text), n])) for n in numbers if self.matrix[int(text), n] > 0
        ]


@pytest.mark.parametrize("kept", [1, 7, 10_000])
@pytest.mark.parametrize("seed", seeds())
def test_three_parts_equal_brute_force_with_many_ties(
    seed: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, "MIN_FETCHED", kept)
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 250))
    world = World.draw(rng, documents=n, levels=int(rng.integers(2, 6)))
    lexical = rng.integers(0, 4, (3, n)) * (rng.random((3, n)) < rng.choice([0.05, 0.5, 1.0])) / 4
    fake: Any = FakeBm25(lexical, world.docids, rng.permutation(n))
    folder: Any = type(
        "Folder",
        (),
        {"docids": world.docids, "path": Path("I"), "live": np.ones(len(world.docids), bool)},
    )
    impact, _ = world.impact()
    parts = [
        Weighted(world.dense().queries(world.query_vectors), 1.0),
        Weighted(impact.queries(world.sparse_queries()), 0.5),
        Weighted(Bm25Index(fake, folder).queries(["0", "1", "2"]), 2.0),
    ]
    k = int(rng.integers(1, 15))
    wanted = world.scores(1.0, 0.5) + 2.0 * lexical
    for q, outcome in enumerate(exact_top(parts, 3, world.ranks, k)):
        assert outcome.exact
        found = [
            (float(s), world.docids[r]) for s, r in zip(outcome.scores, outcome.rows, strict=True)
        ]
        assert found == world.best(wanted[q], k)


@pytest.mark.parametrize("seed", seeds())
def test_three_parts_of_some_rows_equal_brute_force(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, "MIN_FETCHED", 3)
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 250))
    world = World.draw(rng, documents=n, levels=int(rng.integers(2, 6)))
    allowed = rng.random(n) < rng.choice([0.02, 0.3, 0.9])
    lexical = rng.integers(0, 4, (3, n)) * (rng.random((3, n)) < 0.5) / 4
    fake: Any = FakeBm25(lexical, world.docids, rng.permutation(n))
    folder: Any = type(
        "Folder",
        (),
        {"docids": world.docids, "path": Path("I"), "live": np.ones(len(world.docids), bool)},
    )
    flat = faiss.IndexFlatIP(world.vectors.shape[1])
    flat.add(world.vectors)
    impact, _ = world.impact()
    parts = [
        world.dense(flat).queries(world.query_vectors, 1, allowed),
        impact.queries(world.sparse_queries(), 1, False, allowed),
        Bm25Index(fake, folder).queries(["0", "1", "2"], 1, allowed),
    ]
    k = int(rng.integers(1, 15))
    scores = np.where(allowed, world.scores() + lexical, -np.inf)
    for q, outcome in enumerate(exact_top(parts, 3, world.ranks, k, allowed=allowed)):
        assert outcome.exact
        found = [
            (float(s), world.docids[r]) for s, r in zip(outcome.scores, outcome.rows, strict=True)
        ]
        assert found == world.best(scores[q], k)


def test_the_bound_of_three_parts_holds_and_certificates_are_true(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(part, "MIN_FETCHED", 1)
    seen = set()
    rescored = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        world = World.draw(rng, documents=100, levels=4)
        lexical = rng.integers(0, 9, (3, 100)) / 4
        fake: Any = FakeBm25(lexical, world.docids, rng.permutation(100))
        folder: Any = type(
            "Folder",
            (),
            {"docids": world.docids, "path": Path("I"), "live": np.ones(len(world.docids), bool)},
        )
        impact, _ = world.impact()
        parts = [
            world.dense().queries(world.query_vectors),
            impact.queries(world.sparse_queries()),
            Bm25Index(fake, folder).queries(["0", "1", "2"]),
        ]
        scores = world.scores() + lexical
        for q, outcome in enumerate(exact_top(parts, 3, world.ranks, 3, max_depth=6)):
            seen.add(outcome.exact)
            assert (np.sort(scores[q])[: 100 - outcome.candidates] <= outcome.bound).all()
            if outcome.exact:
                found = [
                    (float(s), world.docids[r])
                    for s, r in zip(outcome.scores, outcome.rows, strict=True)
                ]
                assert found == world.best(scores[q], 3)
        rescored += fake.rescored
    assert seen == {True, False}
    assert rescored  # documents outside the list of BM25 were scored too


# ---- With Lucene


def texts(n: int, seed: int = 0) -> dict[str, str]:
    """Docids in no order of rows; every fifth text repeats an earlier one, some are empty."""
    rng = np.random.default_rng(seed)
    found: list[str] = []
    for i in range(n):
        copied = found[int(rng.integers(len(found)))] if i % 5 == 4 else None
        words = rng.choice(WORDS, int(rng.integers(0, 9))).tolist()
        found.append(" ".join(words) if copied is None else copied)
    return {f"d{i}": text for i, text in zip(rng.permutation(n).tolist(), found, strict=True)}


@pytest.fixture(scope="module")
def documents() -> dict[str, str]:
    return texts(600)


@pytest.fixture(scope="module")
def topics() -> list[Query]:
    return [Query(f"q{i}", text) for i, text in enumerate(texts(25, seed=1).values()) if text] + [
        Query("unknown", "zyzzyva qwertz"),
        Query("stop", "the of and"),
    ]


def index(folder: Path, documents: dict[str, str], encoder: HashingEncoder) -> Path:
    return write_index(folder, list(documents), list(documents.values()), encoder, SCALE)


@pytest.fixture(scope="module")
def home(documents: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index ``I`` and a BM25 index ``B`` of the same documents in another order."""
    home = tmp_path_factory.mktemp("three")
    index(home / "I", documents, HashingEncoder())
    build_bm25((Document(docid, documents[docid]) for docid in sorted(documents)), home / "B")
    return home


@pytest.fixture(scope="module")
def searcher(home: Path) -> Searcher:
    return Searcher.open(home / "I", bm25_index=str(home / "B"), bm25_weight=WEIGHT)


def robertson(
    query: str, documents: dict[str, str], k1: float = 0.9, b: float = 0.4
) -> dict[str, float]:
    """BM25 of every document by the formula, as Lucene has it; no two of these words have one stem."""
    counts = {docid: Counter(text.split()) for docid, text in documents.items()}
    filled = [c for c in counts.values() if c]
    average = sum(c.total() for c in filled) / len(filled)
    scores = dict.fromkeys(documents, 0.0)
    for word in query.split():
        df = sum(word in c for c in filled)
        idf = math.log(1 + (len(filled) - df + 0.5) / (df + 0.5))
        for docid, c in counts.items():
            if c[word]:
                scores[docid] += idf * c[word] / (c[word] + k1 * (1 - b + b * c.total() / average))
    return scores


@pytest.mark.jvm
@pytest.mark.parametrize(("k", "kept"), [(1, 1), (10, 3), (10, 10_000), (100, 1), (1000, 10_000)])
def test_the_sum_equals_brute_force(
    searcher: Searcher,
    home: Path,
    documents: dict[str, str],
    topics: list[Query],
    k: int,
    kept: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(part, "MIN_FETCHED", kept)
    two = Searcher.open(home / "I").search(topics, len(documents))
    lucene = BM25Searcher(home / "B").search(topics, len(documents))
    answers = list(searcher.answers(topics, k))
    assert [a.query for a in answers] == topics
    for answer in answers:
        assert answer.report is not None
        assert answer.report.exact
        assert answer.report.depth_bm25 is not None
        lexical = {h.docid: h.score for h in lucene[answer.query.qid]}
        total = {
            h.docid: h.score + WEIGHT * lexical.get(h.docid, 0.0) for h in two[answer.query.qid]
        }
        wanted = sorted(total.items(), key=lambda pair: (-round(pair[1], 9), pair[0]))[:k]
        assert [h.docid for h in answer.hits] == [docid for docid, _ in wanted]
        assert [h.score for h in answer.hits] == pytest.approx(
            [score for _, score in wanted], rel=1e-9
        )
        formula = robertson(answer.query.text, documents) if answer.query.qid != "stop" else {}
        for docid, score in lexical.items():
            assert score == pytest.approx(formula[docid], rel=1e-5)


@pytest.mark.jvm
def test_explanations_add_up_to_the_score(searcher: Searcher, topics: list[Query]) -> None:
    for hit in searcher.search(topics[0].text, 5):
        why = searcher.explain(topics[0].text, hit.docid)
        assert why.dense is not None
        assert why.impact is not None
        assert why.bm25 is not None
        assert why.score == pytest.approx(hit.score)
        assert why.score == pytest.approx(why.dense + why.impact + WEIGHT * why.bm25)


@pytest.mark.jvm
def test_an_index_with_one_part_and_bm25(
    home: Path, documents: dict[str, str], tmp_path: Path
) -> None:
    """BM25 + c x cosine, in one exact list."""
    dense = index(tmp_path / "D", documents, HashingEncoder(vocabulary=None))
    impact = index(tmp_path / "O", documents, HashingEncoder(dim=None))
    lexical = {
        h.docid: h.score
        for h in BM25Searcher(home / "B").search([Query("q", "lock file")], 600)["q"]
    }
    for folder, weight in ((dense, {"dense_weight": 25.0}), (impact, {"impact_weight": 25.0})):
        one = Searcher.open(folder)
        total = {h.docid: 25 * h.score for h in one.search("lock file", 600)}
        total = {d: total.get(d, 0.0) + lexical.get(d, 0.0) for d in {*total, *lexical}}
        both = Searcher.open(folder, bm25_index=str(home / "B"), **weight)
        assert both.mode == "hybrid"
        hits = both.search("lock file", 20)
        wanted = sorted(total.items(), key=lambda pair: (-round(pair[1], 9), pair[0]))[:20]
        assert [h.docid for h in hits] == [d for d, _ in wanted]


@pytest.mark.jvm
def test_other_documents_and_other_searches_are_refused(
    home: Path, searcher: Searcher, tmp_path: Path
) -> None:
    docs = sorted(searcher.index.docids)
    for name, ids, says in (
        ("fewer", docs[1:], "'d0' is only in"),
        ("more", [*docs, "extra"], "'extra' is only in"),
        ("other", [*docs[1:], "extra"], "'d0' is only in"),
        ("twice", [*docs, "d0"], "ids occur twice"),
    ):
        build_bm25((Document(docid, "lock") for docid in ids), tmp_path / name)
        with pytest.raises(IndexMismatch, match=says):
            Searcher.open(home / "I", bm25_index=str(tmp_path / name))
    with pytest.raises(IndexMismatch, match="is not a Lucene index"):
        Searcher.open(home / "I", bm25_index=str(tmp_path))
    with pytest.raises(UsageError, match="joins hybrid scores only, not dense search"):
        searcher.search("lock", 3, "dense")


@pytest.mark.jvm
def test_the_command(
    home: Path, searcher: Searcher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topics = [Query("1", "lock file"), Query("2", "wait for the queue"), Query("3", " ")]
    (tmp_path / "topics.tsv").write_text(
        "".join(f"{q.qid}\t{q.text}\n" for q in topics), encoding="utf-8"
    )
    common = ["--index", str(home / "I"), "--bm25-index", str(home / "B"), "--bm25-weight", "0.6"]
    run = tmp_path / "run.trec"
    report = tmp_path / "report.jsonl"
    files = [
        "--topics",
        str(tmp_path / "topics.tsv"),
        "--output",
        str(run),
        "--report",
        str(report),
    ]
    assert main([*common, *files, "--hybrid", "--hits", "7"]) == 0
    said = capsys.readouterr().err
    assert f"hybrid + 0.6 x BM25 of {home / 'B'}" in said
    assert "certified exact: 3 of 3" in said
    assert "; bm25 median " in said
    wanted = searcher.search(topics, 7)
    assert {q: [h.docid for h in hits] for q, hits in read_run(run).items()} == {
        q: [h.docid for h in hits] for q, hits in wanted.items() if hits
    }
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert [line["exact"] for line in lines] == [True] * 3
    assert lines[0]["depth_bm25"] > 0
    assert lines[0]["bound"] < lines[0]["kth"]

    assert main([*common, "--query", "lock file", "--hits", "1", "--json"]) == 0
    (hit,) = json.loads(capsys.readouterr().out)["hits"]
    assert hit["score"] == pytest.approx(hit["dense"] + hit["impact"] + 0.6 * hit["bm25"])
    assert main([*common, "--query", "lock file", "--hits", "1"]) == 0
    assert " + 0.6 x BM25 " in capsys.readouterr().out
    assert main([*common, "--query", "lock file", "--dense"]) == 2
    assert "--bm25-index applies only" in capsys.readouterr().err
    assert main([*common[:2], *common[4:], "--query", "lock file"]) == 2
    assert "--bm25-weight applies only with --bm25-index" in capsys.readouterr().err
