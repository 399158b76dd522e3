"""The cache of tokenised corpora: its contents, when it is reused, and the word counts."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from support.tiny_models import tiny_tokenizer

from dupmae_ir.errors import InputError
from dupmae_ir.pretrain import tokens
from dupmae_ir.pretrain.tokens import (
    Cutting,
    Vocabulary,
    WordCounts,
    count_words,
    load_corpus,
    pack,
    spans,
    word_hashes,
    word_starts,
)


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


def corpus_of(tmp_path, tokenizer, rows, **cutting):
    path = tmp_path / "c.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return load_corpus(path, tokenizer, Cutting(**cutting), tmp_path / "cache", quiet=True)


def test_passages_and_their_generated_texts(tmp_path, tokenizer):
    rows = [
        {"text": ["the cat sat", "on the mat"], "queries": ["cat", "the mat"]},
        {"text": "dogs"},
        {"text": "quick fox", "queries": ["fox"], "next": "jumps over the lazy dog"},
    ]
    corpus = corpus_of(tmp_path, tokenizer, rows, length=4)
    texts = [tokenizer.decode(corpus.texts[i]) for i in range(len(corpus))]
    assert texts == ["the cat sat", "on the mat", "dog ##s", "quick fox"]
    assert corpus.document.tolist() == [0, 0, 1, 2]
    queries = [[tokenizer.decode(q) for q in corpus.queries_of(i)] for i in range(4)]
    assert queries == [["cat", "the mat"], [], [], ["fox"]]
    # Generated texts are truncated like the others.
    assert [tokenizer.decode(f) for f in corpus.following_of(3)] == ["jumps over the lazy"]
    assert [corpus.neighbour(i) for i in range(4)] == [1, 0, None, None]
    assert corpus.texts.ids.dtype == np.uint16


def test_blocks_lose_nothing_and_never_cross_documents(tmp_path, tokenizer):
    text = "The cat sat. On the mat. The quick brown fox jumps over the lazy dog. Dog runs fast."
    corpus = corpus_of(
        tmp_path, tokenizer, [{"text": text}, {"text": "The list."}], unit="blocks", length=7
    )
    blocks = [corpus.texts[i] for i in range(len(corpus))]
    whole = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert (
        np.concatenate([b for b, d in zip(blocks, corpus.document, strict=True) if d == 0]).tolist()
        == whole
    )
    assert max(map(len, blocks)) <= 7
    assert corpus.document[-1] == 1
    assert corpus.document.tolist().count(1) == 1


def test_packing():
    assert list(pack([[1, 2], [3], [4, 5, 6], [7] * 9], 4)) == [
        [1, 2, 3],
        [4, 5, 6],
        [7] * 4,
        [7] * 4,
        [7],
    ]
    assert list(pack([], 4)) == []


def test_the_cache_key_is_the_content(tmp_path, tokenizer, monkeypatch):
    made = []
    real = tokens._tokenise
    monkeypatch.setattr(tokens, "_tokenise", lambda *a: (made.append(a[0]), real(*a)))
    rows = [{"text": "the cat"}]
    first = corpus_of(tmp_path, tokenizer, rows)
    assert corpus_of(tmp_path, tokenizer, rows).folder == first.folder
    assert len(made) == 1
    corpus_of(tmp_path, tokenizer, rows, length=9)
    corpus_of(tmp_path, tokenizer, rows, unit="blocks")
    corpus_of(tmp_path, tokenizer, [{"text": "the dog"}])
    assert len(made) == 4


def test_an_incomplete_cache_is_rebuilt(tmp_path, tokenizer):
    first = corpus_of(tmp_path, tokenizer, [{"text": "the cat"}])
    (first.folder / "meta.json").unlink()
    again = corpus_of(tmp_path, tokenizer, [{"text": "the cat"}])
    assert tokenizer.decode(again.texts[0]) == "the cat"


def test_a_corpus_without_words_is_refused(tmp_path, tokenizer):
    with pytest.raises(InputError, match="contains no text"):
        corpus_of(tmp_path, tokenizer, [{"text": " "}])


def test_words_are_counted(tmp_path, tokenizer, monkeypatch):
    import dupmae_ir.pretrain.tokens as words

    texts = ["the cats sat on the mat", "dogs dog cats", "cat", "s cats"]
    corpus = corpus_of(tmp_path, tokenizer, [{"text": t} for t in texts])
    vocabulary = Vocabulary.of(tokenizer, 29, "tiny")
    # Small enough that counts of several chunks are added.
    monkeypatch.setattr(words, "COUNTED_IDS", 4)
    counts = count_words(corpus, vocabulary.continues)

    def split(i):
        ids = np.asarray(corpus.texts[i])
        starts = word_starts(ids, vocabulary.continues)
        return [tuple(w) for w in np.split(ids, starts[1:])], word_hashes(ids, starts)

    every = [split(i) for i in range(len(texts))]
    times = Counter(w for ws, _ in every for w in ws)
    holding = Counter(w for ws, _ in every for w in set(ws))
    assert len(counts.hashes) == len(times)
    for ws, hashes in every:
        expected = [1 / times[w] for w in ws]
        assert counts.weights(hashes, "invfreq").tolist() == pytest.approx(expected, rel=1e-6)
        tfidf = [ws.count(w) * max(1e-3, np.log(len(texts) / holding[w])) for w in ws]
        assert counts.weights(hashes, "tfidf").tolist() == pytest.approx(tfidf, rel=1e-6)
    assert counts.weights(np.array([12345], np.uint64), "invfreq").tolist() == [1.0]


def test_an_empty_corpus_has_no_words():
    empty = WordCounts(np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int64), 0)
    assert empty.weights(np.array([1, 2], np.uint64), "tfidf").tolist() == [1.0, 1.0]
    assert len(word_hashes(np.zeros(0, np.int64), np.zeros(0, np.int64))) == 0


def test_spans_exceed_their_target_and_some_are_short():
    rng = np.random.default_rng(0)
    lengths = []
    for _ in range(40):
        sentences = [rng.integers(1, 99, size).tolist() for size in rng.integers(3, 30, 200)]
        joined = list(spans(sentences, 126))
        assert [id_ for span in joined for id_ in span] == [id_ for s in sentences for id_ in s]
        # Without its last sentence, a span is at most as long as its target.
        assert max(map(len, joined)) <= 126 + 29
        assert joined == list(spans(sentences, 126))
        # The last span of a document ends with the document.
        lengths += [len(span) for span in joined[:-1]]
    short = sum(length <= 126 for length in lengths) / len(lengths)
    # 15 % have a smaller target, and some of these exceed 126 with their last sentence.
    assert 0.08 < short < 0.15
    assert list(spans([], 126)) == []
