"""The second look: a cross-encoder's order, MaxSim equal to FlagEmbedding's, time, reports, and runs in order."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
from support.bge_models import write_bge_m3
from support.mutable_index import Living
from support.rerank_samples import write_base

from dupmae_ir.__main__ import main
from dupmae_ir.errors import CheckpointError, UsageError
from dupmae_ir.models import load_encoder
from dupmae_ir.models.reranker import open_reranker
from dupmae_ir.search.exact.ranking import Answer, ListReport
from dupmae_ir.search.reranking import reranked
from dupmae_ir.search.searcher import Searcher
from dupmae_ir.types import Document, Hit, Query

WORDS = ["the", "cat", "sat", "on", "mat", "dog", "Der", "Hund", "läuft", "быстро", "狗跑", "s"]
TEXT = "dog läuft on the mat"
QUERY = Query("1", TEXT)


@pytest.fixture(scope="module")
def bge(tmp_path_factory) -> str:
    return str(write_bge_m3(tmp_path_factory.mktemp("models") / "bge-m3"))


@pytest.fixture(scope="module")
def living(bge, tmp_path_factory) -> Living:
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, rng.integers(2, 15))) for _ in range(30)]
    return Living(
        tmp_path_factory.mktemp("index"),
        [Document(f"d{n}", text) for n, text in enumerate(texts)],
        bge,
    )


class ByLength:
    """Long texts first."""

    pause = 0.0

    def scores(self, query, documents):
        time.sleep(self.pause)
        return [float(len(document.text)) for document in documents]


def answer(count: int) -> Answer:
    hits = [Hit(f"d{n:02}", 9.0 - n // 2) for n in range(count)]  # with equal scores
    return Answer(
        QUERY, hits, ListReport("1", True, 5, 5, 40, 1.0, hits[-1].score if hits else None, count)
    )


def read(docid: str) -> Document:
    return Document(docid, "x" * int(docid[1:]))


def test_the_first_hits_are_in_the_scorers_order_and_the_others_keep_theirs():
    found = reranked(answer(30), ByLength(), read, 10, 0, 20)
    assert [hit.docid for hit in found.hits] == [
        f"d{n:02}" for n in [*range(9, -1, -1), *range(10, 20)]
    ]
    assert found.hits[0].score == 9.0
    by_score = sorted(found.hits, key=lambda hit: (-hit.score, hit.docid))
    assert by_score == found.hits  # what trec_eval reads
    report = found.report
    assert (report.exact, report.candidates, report.kth, report.bound) == (
        True,
        40,
        answer(30).report.kth,
        1.0,
    )
    assert (report.reranked, report.hits) == (10, 20)
    assert reranked(answer(0), ByLength(), read, 10, 0, 20).hits == []


def test_the_scores_of_search_and_scorer_are_added():
    found = reranked(answer(6), ByLength(), read, 4, 0, 6, weight=0.25)
    # 9, 9, 8, 8 and a quarter of 0, 1, 2, 3; the others keep their order, lower.
    assert [(hit.docid, hit.score) for hit in found.hits[:4]] == [
        ("d01", 9.25),
        ("d00", 9.0),
        ("d03", 8.75),
        ("d02", 8.5),
    ]
    assert [hit.docid for hit in found.hits[4:]] == ["d04", "d05"]
    assert found.hits[4].score < 8.5


def test_time_is_bounded():
    scorer = ByLength()
    scorer.pause = 0.2
    found = reranked(answer(30), scorer, read, 30, 0.3, 30)
    assert found.report.reranked == 16  # two batches of eight
    assert [hit.docid for hit in found.hits[16:]] == [f"d{n:02}" for n in range(16, 30)]


@pytest.mark.parametrize("shared", [True, False])
def test_maxsim_equals_flagembedding(bge, shared):
    flag = pytest.importorskip(
        "FlagEmbedding", reason="FlagEmbedding is not installed: pip install FlagEmbedding"
    )
    model = flag.BGEM3FlagModel(bge, use_fp16=False, devices="cpu")
    texts = [TEXT, "the cat", "быстро 狗跑 dog", ""]
    vectors = model.encode(texts, max_length=64, return_colbert_vecs=True)["colbert_vecs"]
    encoder = load_encoder(bge)
    if not shared:
        encoder._packed = None
    wanted = [float(model.colbert_score(vectors[0], one)) for one in vectors]
    scorer = open_reranker(bge, encoder, "cpu")
    assert scorer._encoder is encoder
    np.testing.assert_allclose(
        scorer.scores(TEXT, [Document("", text) for text in texts]), wanted, atol=1e-5
    )


def test_lists_by_the_models_own_token_vectors(living, bge):
    plain = Searcher.open(living.index)
    second = Searcher.open(living.index, rerank=bge, rerank_depth=12)
    candidates = plain.search(TEXT, 12)
    scorer = open_reranker(bge, second.encoder, "cpu")
    scores = scorer.scores(TEXT, [living.documents[hit.docid] for hit in candidates])
    order = sorted(
        zip(scores, (hit.docid for hit in candidates), strict=True),
        key=lambda one: (-one[0], one[1]),
    )
    assert [hit.docid for hit in second.search(TEXT, 5)] == [docid for _, docid in order[:5]]
    (found,) = second.answers([QUERY], 20)
    assert {hit.docid for hit in found.hits} == {hit.docid for hit in plain.search(TEXT, 20)}
    assert found.report.exact
    assert found.report.reranked == 12
    assert next(iter(second.answers([Query("2", " ")], 5))).hits == []


def test_a_cross_encoder_from_the_command_line(living, tmp_path, capsys):
    folder = str(write_base(tmp_path / "cross", labels=1))
    command = ["search", "--index", str(living.index), "--rerank", folder]
    assert main([*command, "--query", TEXT, "--rerank-depth", "4", "--hits", "6"]) == 0
    out, err = capsys.readouterr()
    assert out.count("reranked ") == 4
    assert out.count("not reranked, ") == 2
    assert ", candidates: nothing missed: " in err
    assert f"the first 4 reranked by {folder} in " in err
    (tmp_path / "t.tsv").write_text(f"1\t{TEXT}\n2\tcat\n")
    run = tmp_path / "run.trec"
    report = tmp_path / "report.jsonl"
    topics = [
        "--topics",
        str(tmp_path / "t.tsv"),
        "--output",
        str(run),
        "--report",
        str(report),
        "--hits",
        "9",
    ]
    assert main([*command, *topics, "--rerank-depth", "4", "--quiet"]) == 0
    rows = [line.split() for line in run.read_text().splitlines()]
    scores = [float(row[4]) for row in rows if row[0] == "1"]
    assert scores == sorted(scores, reverse=True)
    assert [json.loads(line)["reranked"] for line in report.read_text().splitlines()] == [4, 4]


def test_what_cannot_be_reranked(living, bge, tmp_path):
    with pytest.raises(CheckpointError, match="nothing is downloaded"):
        Searcher.open(living.index, rerank=str(tmp_path))
    with pytest.raises(CheckpointError, match="not a sequence classifier"):
        Searcher.open(living.index, rerank=str(write_base(tmp_path / "plain")))
    assert main(["encode", "--corpus", str(living.where / "c.jsonl"), "--model", bge, "--index", str(tmp_path / "i"),
                 "--no-store-texts", "--quiet"]) == 0  # fmt: skip
    with pytest.raises(UsageError, match="stores no texts, which `rerank` reads"):
        Searcher.open(tmp_path / "i", rerank=bge)
