"""``--estimate``: the sizes it predicts are those of the index."""

from __future__ import annotations

import json

import pytest
from support.encode_runs import arguments, write_corpus
from support.index_samples import first_segment

from dupmae_ir.encode.__main__ import main


@pytest.mark.jvm
def test_an_estimate_has_the_bytes_of_the_index_and_writes_nothing(tmp_path, capsys):
    corpus, index = write_corpus(tmp_path / "corpus.jsonl", 4000), tmp_path / "I"
    asked = arguments(corpus, index, "--estimate", "--sample", 600, "--json")
    assert main(asked) == 0
    result = json.loads(capsys.readouterr().out)
    assert [p.name for p in tmp_path.iterdir()] == ["corpus.jsonl"]
    assert (result["documents"], result["exact"], result["encoded"]) == (4000, True, 600)
    low, high = result["encode_seconds"]
    assert 0 < low <= high
    assert result["index_seconds"] > 0
    assert main([*arguments(corpus, index), "--quiet"]) == 0
    for part in ("cls", "forward", "texts", "digests.bin"):
        path = first_segment(index) / part
        real = sum(f.stat().st_size for f in [path, *path.rglob("*")] if f.is_file())
        assert result["bytes"][part] == pytest.approx(real, rel=0.1), part
    assert main(asked[:-1]) == 0
    assert "4,000 documents of" in capsys.readouterr().out


def test_a_collection_of_one_document_cannot_be_extrapolated(tmp_path, encode):
    status, said = encode(write_corpus(tmp_path / "c.jsonl", 1), tmp_path / "I", "--estimate")
    assert (status, "has 1 document; an estimate needs two" in said) == (2, True)


def test_options_of_the_estimate_need_it(tmp_path, encode, corpus):
    assert "--sample applies only with --estimate" in encode(corpus, tmp_path / "I", "--sample", 9)[1]
