"""Segmentation of documents: no word is lost, and no passage is contained in another."""

from __future__ import annotations

import gzip
import json

import pytest

from dupmae_ir.encode.passages import main, word_passages
from dupmae_ir.errors import InputError
from dupmae_ir.types import Document


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 6, 7, 8, 19])
@pytest.mark.parametrize(("words", "stride"), [(4, 2), (4, 4), (4, 1), (1, 1)])
def test_every_word_is_in_a_passage_and_no_passage_in_another(count, words, stride):
    text = [f"w{i}" for i in range(count)]
    found = list(word_passages(Document("d", " ".join(text), "T"), words, stride))
    assert [p.docid for p in found] == [f"d#{n}" for n in range(len(found))]
    assert all(p.title == "T" for p in found)
    parts = [p.text.split() for p in found]
    assert {w for part in parts for w in part} == set(text)
    assert all(len(part) <= words for part in parts)
    assert all(parts[n] == text[n * stride : n * stride + words] for n in range(len(parts)))
    assert not any(
        set(a) <= set(b) for n, a in enumerate(parts) for m, b in enumerate(parts) if n != m and a
    )


def test_titles_with_the_first_passage_alone():
    found = list(word_passages(Document("d", "a b c", "T"), 1, 1, titles=False))
    assert [p.title for p in found] == ["T", "", ""]


def test_the_command(tmp_path, capsys):
    corpus = tmp_path / "docs.tsv"
    corpus.write_text("D1\thttp://x\tTitle\tone two three\nD2\thttp://y\tOther\tfour\n")
    words = ["--corpus", str(corpus), "--words", "2", "--stride", "1"]
    assert main([*words, "--output", str(tmp_path / "p.jsonl")]) == 0
    assert "3 passages of 2 documents" in capsys.readouterr().err
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert rows[1] == {"_id": "D1#1", "title": "Title", "text": "two three"}
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        assert main([*words, "--output", str(tmp_path / name), "--quiet"]) == 0
    packed = (tmp_path / "a.jsonl.gz").read_bytes()
    assert packed == (tmp_path / "b.jsonl.gz").read_bytes()
    assert gzip.decompress(packed) == (tmp_path / "p.jsonl").read_bytes()


def test_mistakes(tmp_path, capsys):
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"_id": "a#b", "text": "x"}\n')
    assert main(["--corpus", str(corpus), "--output", str(tmp_path / "out.jsonl")]) == 2
    assert "the id 'a#b' contains '#'" in capsys.readouterr().err
    assert not (tmp_path / "out.jsonl").exists()
    assert (
        main(["--corpus", str(corpus), "--output", str(tmp_path / "o.jsonl"), "--stride", "300"])
        == 2
    )
    assert "--stride 300 must not exceed --words 200" in capsys.readouterr().err
    with pytest.raises(InputError):
        list(word_passages(Document("a#0", "x"), 1, 1))
