"""Lengths in words by hand, and the counts of a real collection against a plain reading of its files."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from lengths import Lengths, main


def test_by_hand(tmp_path, capsys):
    (tmp_path / "q.tsv").write_text("1\ta b  c\n2\tone\n")
    rows = [
        {"_id": "d", "title": "Two words", "text": "and three more"},
        {"_id": "e", "title": "", "text": ""},
    ]
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, rows)))
    files = ["--queries", str(tmp_path / "q.tsv"), "--passages", str(tmp_path / "corpus.jsonl")]
    assert main([*files, "--json"]) == 0
    queries, passages = json.loads(capsys.readouterr().out)
    assert (queries["texts"], queries["mean"], queries["least"], queries["most"]) == (2, 2.0, 1, 3)
    assert (passages["texts"], passages["mean"], passages["least"], passages["most"]) == (
        2,
        1.5,
        0,
        3,
    )
    assert main([*files, "--with-titles"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[-5:] == ["2", "0~5", "2.5", "0", "5"]


def test_the_first_texts_are_examples_and_counted(tmp_path, capsys):
    """CoT-MoTE's Figure 1B."""
    (tmp_path / "q.tsv").write_text("1\ta b  c\n2\tone\n3\tfour of these words\n")
    assert main(["--queries", str(tmp_path / "q.tsv"), "--examples", "2", "--json"]) == 0
    (queries,) = json.loads(capsys.readouterr().out)
    assert (queries["texts"], queries["most"], queries["examples"]) == (3, 4, ["a b  c", "one"])
    assert main(["--queries", str(tmp_path / "q.tsv"), "--examples", "9"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("(queries): four of these words")


def test_quantiles_are_numpys_inverted_cdf():
    words = np.random.default_rng(0).integers(1, 60, 501)
    lengths = Lengths("x", "queries", Counter(words.tolist()))
    for share in (0.0, 0.1, 0.5, 0.95, 1.0):
        assert lengths.quantile(share) == np.quantile(words, share, method="inverted_cdf")
    assert lengths.mean == pytest.approx(words.mean())
    assert Lengths("none", "queries", Counter()).to_dict()["mean"] == 0


def test_ms_marcos_queries_are_as_in_the_paper(shared_data, capsys):
    """CoT-MoTE's Figure 1: 6 words on average; MASTER's Table 1: 6,980 queries of the dev set."""
    path = shared_data / "topics-and-qrels" / "topics.msmarco-passage.dev-subset.txt"
    assert main(["--queries", str(path), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["texts"] == 6980
    assert round(found["mean"]) == 6


def test_one_of_both_is_required(capsys):
    assert main([]) == 2
    assert "give --queries, --passages or both" in capsys.readouterr().err
