"""``benchmarks/estimate.py``: the sizes it predicts are those of the index."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from support.encode_runs import arguments, write_corpus
from support.index_samples import first_segment

from dupmae_ir.encode.__main__ import main as encode
from dupmae_ir.io.documents.collection import DocumentCollection

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
from estimate import main


@pytest.mark.nightly
@pytest.mark.jvm
def test_an_estimate_has_the_bytes_of_the_index_and_writes_nothing(tmp_path, capsys):
    corpus = write_corpus(tmp_path / "corpus.jsonl", 4000)
    index = tmp_path / "I"
    asked = arguments(corpus, index, "--sample", 600, "--json")
    assert main(asked) == 0
    result = json.loads(capsys.readouterr().out)
    assert [p.name for p in tmp_path.iterdir()] == ["corpus.jsonl"]
    assert (result["documents"], result["exact"], result["encoded"]) == (4000, True, 600)
    low, high = result["encode_seconds"]
    assert 0 < low <= high
    assert result["index_seconds"] > 0
    assert encode([*arguments(corpus, index), "--quiet"]) == 0
    for part in ("cls", "forward", "texts", "digests.bin"):
        path = first_segment(index) / part
        real = sum(f.stat().st_size for f in [path, *path.rglob("*")] if f.is_file())
        assert result["bytes"][part] == pytest.approx(real, rel=0.1), part
    assert main(asked[:-1]) == 0
    assert "4,000 documents of" in capsys.readouterr().out


def test_a_collection_of_one_document_cannot_be_extrapolated(tmp_path, capsys):
    assert main(arguments(write_corpus(tmp_path / "c.jsonl", 1), tmp_path / "I")) == 2
    assert "has 1 document; an estimate needs two" in capsys.readouterr().err


def test_an_estimate_of_a_folder_is_a_range_or_a_refusal(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("estimate.READ", 200)
    asked = arguments(tmp_path, tmp_path / "I", "--sample", 8, "--parts", "cls")
    for i in range(60):
        (tmp_path / f"n{i}.txt").write_text(f"Note {i}. " + "word " * (600 if i % 2 else 1350))
    assert main(asked) == 0
    said = capsys.readouterr().out
    low, high = (
        int(n.replace(",", ""))
        for n in re.search(r": ([\d,]+) to ([\d,]+) documents", said).groups()
    )
    true = len(list(DocumentCollection([str(tmp_path)])))
    assert 200 < low <= true <= high < 1.5 * true
    for i in range(60):
        (tmp_path / f"n{i}.txt").write_text(f"Note {i}. " + "word " * 60_000)
    assert main(asked) == 2
    said = capsys.readouterr().err
    assert "no estimate is possible: 200 passages are from 1 of its 60 files" in said
    assert "Leave large files out with --exclude" in said
