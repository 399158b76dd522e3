"""Formats that are read as text to pre-train on, and input that is refused."""

from __future__ import annotations

import gzip
import json

import pytest

from dupmae_ir.errors import InputError
from dupmae_ir.pretrain.corpus import Text, digest, read_texts, text_files


def write(path, text):
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.md"])
@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ("line", [["one"], ["two"], ["three"], ["four"]]),
        ("blank", [["one", "two"], ["three", "four"]]),
        ("file", [["one", "two", "three", "four"]]),
    ],
)
def test_lines_make_documents(tmp_path, name, documents, expected):
    path = write(tmp_path / name, "one\n two \n\n\nthree\nfour\n")
    assert [t.passages for t in read_texts(path, documents)] == expected


def test_rows_of_json(tmp_path):
    rows = [
        {"title": "T", "text": "body"},
        {"contents": "only"},
        {"text": ["a", " ", "b"], "title": ""},
        {"text": ""},
        {"text": "x", "queries": ["q1", " q2 "], "next": "more"},
    ]
    path = write(tmp_path / "a.jsonl", "".join(json.dumps(r) + "\n" for r in rows))
    assert list(read_texts(path)) == [
        Text(["T body"]),
        Text(["only"]),
        Text(["a", "b"]),
        Text(["x"], ("q1", "q2"), ("more",)),
    ]


@pytest.mark.parametrize("name", ["psgs.tsv", "corpus.jsonl"])
def test_passages_of_one_title_make_an_article(tmp_path, name):
    """DPR's Wikipedia is cut after 100 words, inside sentences."""
    rows = [
        ("1", "One. Then", "A"),
        ("2", "two.", "A"),
        ("3", "Three.", "B"),
        ("4", "x", ""),
        ("5", "y", ""),
    ]
    if name == "psgs.tsv":
        lines = "id\ttext\ttitle\n" + "".join("\t".join(row) + "\n" for row in rows)
    else:
        lines = "".join(
            json.dumps({"_id": i, "text": text, "title": title}) + "\n" for i, text, title in rows
        )
    path = write(tmp_path / name, lines)
    assert [t.passages for t in read_texts(path, "title")] == [
        ["One. Then two."],
        ["Three."],
        ["x"],
        ["y"],
    ]


def test_a_beir_folder_is_its_corpus(tmp_path):
    write(tmp_path / "corpus.jsonl", '{"_id": "1", "title": "t", "text": "x"}\n')
    write(tmp_path / "queries.jsonl", '{"_id": "q", "text": "not this"}\n')
    assert [t.passages for t in read_texts(tmp_path)] == [["t x"]]


def test_a_folder_of_files_in_natural_order(tmp_path):
    for n in (10, 2, 1):
        write(tmp_path / f"part{n}.txt", f"text {n}\n")
    write(tmp_path / ".hidden.txt", "no\n")
    write(tmp_path / "part1.txt.meta.json", "{}\n")
    write(tmp_path / "picture.png", "no\n")
    assert [p.name for p in text_files(tmp_path)] == ["part1.txt", "part2.txt", "part10.txt"]


def test_tsv_passages(tmp_path):
    path = write(tmp_path / "collection.tsv", "0\tfirst passage\n1\tsecond\n")
    assert [t.passages for t in read_texts(path)] == [["first passage"], ["second"]]


def test_a_saved_dataset(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = [{"title": "T", "text": "one"}, {"title": "", "text": "two"}]
    datasets.disable_progress_bars()
    datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / "plain"))
    datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)}).save_to_disk(
        str(tmp_path / "parts")
    )
    for name in ("plain", "parts"):
        assert [t.passages for t in read_texts(tmp_path / name)] == [["T one"], ["two"]]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"text": "x"}\n{"text": 3}\n', 'a.jsonl:2: "text" must be a string'),
        (
            "a.jsonl",
            '{"txt": "x"}\n',
            'a.jsonl:1: no text: expected "text" or "contents", found txt',
        ),
        ("a.jsonl", '{"text"\n', "a.jsonl:1: broken JSON"),
        ("a.jsonl", "[1]\n", "a.jsonl:1: an array; expected one JSON object"),
        (
            "a.jsonl",
            '{"text": "x", "queries": {"a": 1}}\n',
            'a.jsonl:1: "queries" must be a string',
        ),
        ("a.txt", "\n\n", "a.txt is empty"),
    ],
)
def test_refused_with_file_and_line(tmp_path, name, text, message):
    with pytest.raises(InputError) as e:
        list(read_texts(write(tmp_path / name, text)))
    assert message in str(e.value)
    assert "\n" not in str(e.value)


def test_a_source_without_text_files_is_refused(tmp_path):
    with pytest.raises(InputError, match="no collection in this folder"):
        text_files(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        text_files(tmp_path / "absent")


def test_the_digest_covers_the_bytes(tmp_path):
    a = write(tmp_path / "a.txt", "same\n")
    b = write(tmp_path / "b.txt", "same\n")
    assert digest(a) == digest(b)
    write(b, "other\n")
    assert digest(a) != digest(b)
