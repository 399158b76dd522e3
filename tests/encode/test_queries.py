"""Encoded queries: what stock Pyserini commands read, and that they answer as the exact scores say."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from support.encode_runs import ROOT

from dupmae_ir.encode.pyserini_encoders import DupmaeQueryEncoder
from dupmae_ir.encode.pyserini_files import write_queries
from dupmae_ir.encode.queries import main
from dupmae_ir.index.index import Index
from dupmae_ir.types import Query

pytestmark = pytest.mark.jvm
TOPICS = [Query("1", "word1  word2"), Query("2", "word7 word7\tword8"), Query("10", "word299")]


@pytest.fixture
def encoded(corpus, tmp_path, encode):
    """An index and the encoded queries for it: (index, queries)."""
    assert encode(corpus, tmp_path / "I", "--quiet")[0] == 0
    (tmp_path / "t.jsonl").write_text(
        "".join(json.dumps({"_id": q.qid, "text": q.text}) + "\n" for q in TOPICS)
    )
    arguments = [
        "--topics",
        tmp_path / "t.jsonl",
        "--index",
        tmp_path / "I",
        "--output",
        tmp_path / "Q",
        "--quiet",
    ]
    assert main([str(a) for a in arguments]) == 0
    return tmp_path / "I", tmp_path / "Q"


def test_the_files_hold_the_encoders_own_vectors(encoded):
    index, folder = encoded
    encoder = DupmaeQueryEncoder.for_index(index)
    lines = [json.loads(x) for x in (folder / "queries.jsonl").read_text().splitlines()]
    texts = [" ".join(q.text.split()) for q in TOPICS]
    assert [x["contents"] for x in lines] == texts
    assert [x["vector"] for x in lines] == encoder.impact.encode_batch(texts)
    assert (folder / "topics.tsv").read_text().splitlines() == [
        f"{q.qid}\t{t}" for q, t in zip(TOPICS, texts, strict=True)
    ]


def test_only_the_parts_there_are(tmp_path):
    encoder = DupmaeQueryEncoder("testing:hashing", parts=("cls",))
    assert [f.rsplit("/", 1)[1] for f in write_queries(encoder, TOPICS, tmp_path)["files"]] == [
        "topics.tsv",
        "embedding.pkl",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topics", "no-such-topics"], "no-such-topics"),
        (["--topics", "T", "--index", "no-such-index"], "no-such-index: no such index"),
    ],
)
def test_bad_arguments(tmp_path, capsys, arguments, message):
    (tmp_path / "T").write_text("1\tword\n")
    arguments = [str(tmp_path / a) if a in ("T", "no-such-index") else a for a in arguments]
    if "--index" not in arguments:
        arguments += ["--index", str(tmp_path)]
    assert main([*arguments, "--output", str(tmp_path / "Q")]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def stock(module, *arguments):
    command = [sys.executable, "-m", "dupmae_ir.pyserini", module, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def read(path):
    rows = [line.split() for line in path.read_text().splitlines()]
    return {(r[0], r[2]): float(r[4]) for r in rows}


@pytest.mark.nightly
def test_stock_commands_give_the_exact_scores(encoded, tmp_path):
    index, queries = encoded
    folder = Index.open(index)
    encoder = DupmaeQueryEncoder.for_index(index)
    texts = [" ".join(q.text.split()) for q in TOPICS]

    stock(
        "pyserini.search.lucene",
        "--impact",
        "--index",
        index / "ot",
        "--topics",
        queries / "topics.tsv",
        "--encoder",
        queries / "queries.jsonl",
        "--min-idf",
        -1,
        "--hits",
        700,
        "--output",
        tmp_path / "impact.trec",
    )
    expected = {}
    for query, vector in zip(TOPICS, encoder.impact.encode_batch(texts), strict=True):
        ids = np.array([folder.term_ids[t] for t in vector])
        exact = folder.forward.scores(np.arange(700), ids, np.array(list(vector.values())))
        expected.update({(query.qid, folder.docids[r]): int(s) for r, s in enumerate(exact) if s})
    got = read(tmp_path / "impact.trec")
    # Pyserini lowers equal scores by millionths to order them.
    assert {k: round(v) for k, v in got.items()} == expected

    stock(
        "pyserini.search.faiss",
        "--index",
        index / "cls",
        "--topics",
        queries / "topics.tsv",
        "--encoded-queries",
        queries,
        "--hits",
        700,
        "--output",
        tmp_path / "dense.trec",
    )
    got = read(tmp_path / "dense.trec")
    scores = folder.only_segment.vectors @ encoder.dense.encode_batch(texts).T
    expected = {
        (q.qid, d): float(scores[r, c])
        for c, q in enumerate(TOPICS)
        for r, d in enumerate(folder.docids)
    }
    assert got == pytest.approx(expected, rel=1e-5, abs=1e-5)  # printed with six decimals
