"""The analyzer gives the terms of Anserini's, word by word."""

from __future__ import annotations

import json

import pytest

from dupmae_ir.models.analyzer import MAX_TOKEN_LENGTH, parts, porter, stems, stems_and_parts

# Examples of the steps in Porter's paper, and what his implementation makes of them.
STEMS = {
    "caresses": "caress",
    "ponies": "poni",
    "cats": "cat",
    "agreed": "agre",
    "feed": "feed",
    "plastered": "plaster",
    "bled": "bled",
    "motoring": "motor",
    "sing": "sing",
    "hopping": "hop",
    "hoping": "hope",
    "falling": "fall",
    "sky": "sky",
    "happy": "happi",
    "relational": "relat",
    "digitizer": "digit",
    "adoption": "adopt",
    "region": "region",
    "controll": "control",
    "archaeology": "archaeolog",
    "is": "is",
}
ODD = [
    "naïve Café's O’Neil's U.S.A. 3,000.5 x_y foo__bar a.b a:b 1:2 don't wi-fi C++ x² 日本語 かな カタカナ ﬁne",
    "İstanbul ΣΊΣΥΦΟΣ СССР Straße 1,2;3 a,b _a_ ___ 5G 4x4 x'y's 'quoted' l'homme's "
    + "a" * 600
    + "s running",
    "",
    "the and of",
]


@pytest.mark.parametrize(("word", "expected"), STEMS.items())
def test_porter(word, expected):
    assert porter(word) == expected


def test_words_of_a_sentence():
    text = "The U.S.A's 3,000 Searchers' index_files aren't in Paris's cafés"
    assert stems(text) == ["u.s.a", "3,000", "searcher", "index_fil", "aren't", "pari", "café"]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("threading.Thread.join", ["threading", "Thread", "join"]),
        ("index_files", ["index", "files"]),
        ("__init__", ["init"]),
        ("std:vector", ["std", "vector"]),
        ("FileNotFoundError", ["File", "Not", "Found", "Error"]),
        ("HTTPServer", ["HTTP", "Server"]),
        ("mRNA", ["RNA"]),
        ("v1.2", ["v1"]),
        *(
            (word, [])
            for word in (
                "DNAs",
                "DNA",
                "U.S.A",
                "3,000.5",
                "Word",
                "words",
                "don't",
                "日",
                "x_y",
                "",
            )
        ),
    ],
)
def test_parts_of_identifiers(word, expected):
    assert parts(word) == expected


def test_parts_follow_their_word():
    text = "Why does threading.Thread's join_all of the HTTPError hang?"
    assert stems_and_parts(text) == [
        *("why", "doe", "threading.thread", "thread", "thread", "join_al", "join"),
        *("all", "httperror", "http", "error", "hang"),
    ]
    assert set(stems(text)) <= set(stems_and_parts(text))
    plain = "Words without parts aren't changed, 3,000 times in the U.S.A"
    assert stems_and_parts(plain) == stems(plain)


def test_a_long_token_is_cut():
    assert list(map(len, stems("x" * (MAX_TOKEN_LENGTH + 5)))) == [MAX_TOKEN_LENGTH, 5]


@pytest.mark.jvm
def test_equals_anserini(shared_data):
    """Some thousand different words of real text, and odd characters."""
    from dupmae_ir import pyserini

    texts = list(ODD)
    for name in ("scifact", "cacm", "vaswani"):
        with open(shared_data / name / "corpus.jsonl", encoding="utf-8") as f:
            documents = [json.loads(line) for line, _ in zip(f, range(400), strict=False)]
        texts += [f"{d.get('title', '')} {d['text']}" for d in documents]
    pyserini.start_jvm()
    analyzer = pyserini.autoclass(
        "io.anserini.analysis.DefaultEnglishAnalyzer"
    ).newDefaultInstance()
    analyze = pyserini.autoclass("io.anserini.analysis.AnalyzerUtils").analyze
    theirs = [list(analyze(analyzer, text).toArray()) for text in texts]
    assert len({term for terms in theirs for term in terms}) > 5000
    assert [stems(text) for text in texts] == theirs
