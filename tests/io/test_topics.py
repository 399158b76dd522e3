"""Topics files and what is wrong with them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from dupmae_ir.errors import InputError, UnknownName
from dupmae_ir.io.topics import read_topics
from dupmae_ir.types import Query

TWO = [Query("1", "what is a lock"), Query("q2", "why  fork, and when?")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.tsv", "1\twhat is a lock\nq2\twhy  fork, and when?\n"),
        ("windows.txt", "\ufeff1\twhat is a lock\r\n\r\nq2\twhy  fork, and when?\r\n"),
        (
            "b.jsonl",
            '{"_id": "1", "text": "what is a lock", "x": {}}\n{"_id": "q2", "text": "why  fork, and when?"}\n',
        ),
        (
            "other.json",
            '{"id": 1, "contents": "what is a lock"}\n{"id": "q2", "contents": "why  fork, and when?"}',
        ),
        (
            "query.jsonl",
            '{"qid": "1", "query": "what is a lock"}\n{"qid": "q2", "query": "why  fork, and when?"}',
        ),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_every_format_gives_the_same_topics(
    tmp_path: Path, name: str, content: str, zipped: bool
) -> None:
    data = content.encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if zipped else data)
    assert read_topics(path) == TWO


def test_blank_text_is_kept_and_order_is_the_files(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_text("9\tlast first\n10\t\n")
    assert read_topics(path) == [Query("9", "last first"), Query("10", "")]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b'{"_id": "1", "text": "a"}\n{"_id": "2", "text": \n', ":2: broken JSON"),
        (
            b'{"_id": "1", "text": "a"}\n["2", "b"]\n',
            ":2: an array; expected one JSON object per line",
        ),
        (
            b'{"_id": "1", "text": "a"}\n{"text": "b"}\n',
            ":2: no id; expected one of _id, id, qid, query_id, found text",
        ),
        (b'{"_id": "1"}\n', ":1: no text; expected one of text, query"),
        (b'{"_id": true, "text": "a"}\n', ":1: the id must be a string or an integer, got True"),
        (b'{"_id": "1", "text": ["a"]}\n', ":1: the text must be a string"),
        (b"1\ta\n\n2 b\n", ":3: expected qid<TAB>text, found no tab in '2 b'"),
        (b"1\ta\n2\tb\n1\tc\n", ":3: topic '1' was already on line 1"),
        (b'{"_id": "a b", "text": "c"}\n', ":1: the topic id 'a b' contains white space"),
        (b"\tno id\n", ":1: the topic has an empty id"),
        (b"1\ta\n2\t\0\n", ":2: a binary file"),
        (b"1\ta\n2\t\xff\n", ":2: not UTF-8"),
        (gzip.compress(b"1\ta\n2\tb\n" * 500, mtime=0)[:-20], "damaged gzip"),
    ],
)
def test_bad_files_are_one_clear_line(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "topics.tsv"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_topics(path)
    assert str(path) in str(caught.value)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("missing", ["no/such/topics", "topics.tsv", "queries.jsonl.gz"])
def test_what_looks_like_a_path_is_not_looked_up_as_a_name(missing: str) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_topics(missing)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        read_topics(tmp_path)


def test_real_files(shared_data: Path) -> None:
    assert len(read_topics(shared_data / "scifact" / "queries.jsonl")) == 300
    arguana = read_topics(
        shared_data / "topics-and-qrels" / "topics.beir-v1.0.0-arguana.test.tsv.gz"
    )
    assert len(arguana) == 1406
    assert arguana[0].qid == "test-environment-aeghhgwpe-pro02a"


@pytest.mark.jvm
def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(
        UnknownName, match=r"msmarco-pasage-dev-subset.*neither a file nor.*Did you mean"
    ):
        read_topics("msmarco-pasage-dev-subset")
