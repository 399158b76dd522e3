"""Every format that can be read, and every way a collection can be broken."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import sys
import tracemalloc
from pathlib import Path

import pytest

from dupmae_ir.errors import InputError
from dupmae_ir.io.collections import (
    LinesCollection,
    Seen,
    file_digests,
    list_files,
    natural_key,
    read_collection,
)
from dupmae_ir.types import Document

BEIR = (
    '{"_id": "d1", "title": "One", "text": "first"}\n{"_id": "d2", "title": "", "text": "second"}\n'
)
BOTH_HALVES = gzip.compress(BEIR[:47].encode()) + gzip.compress(BEIR[47:].encode())
EXPECTED = [Document("d1", "first", "One"), Document("d2", "second", "")]

SPLIT = {"fields": ["title", "text"]}


def put(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("name", "content", "settings", "expected"),
    [
        ("c.jsonl", BEIR, {}, EXPECTED),
        ("c.json", '{"id": "a", "contents": "T\\nbody"}\n', {}, [Document("a", "T\nbody")]),
        ("c.jsonl", '{"id": 7, "contents": "x"}\n', {}, [Document("7", "x")]),
        ("c.jsonl", '{"docid": "7", "contents": "T\\nbody"}', SPLIT, [Document("7", "body", "T")]),
        # Pyserini: one trailing delimiter closes the last field; a title alone keeps its empty text.
        ("c.jsonl", '{"id": "1", "contents": "T\\nbody\\n"}', SPLIT, [Document("1", "body", "T")]),
        ("c.jsonl", '{"id": "1", "contents": "T\\n"}', SPLIT, [Document("1", "", "T")]),
        (
            "c.jsonl",
            '{"id": "1", "contents": "T|b"}',
            {"fields": ["title", "text"], "delimiter": "|"},
            [Document("1", "b", "T")],
        ),
        (
            "c.jsonl",
            '{"id": "1", "body": "b", "url": "u", "title": "T"}',
            {"fields": ["title", "body"]},
            [Document("1", "b", "T", {"url": "u"})],
        ),
        (
            "c.jsonl",
            '{"key": "1", "a": "x", "b": "y"}',
            {"docid_field": "key", "fields": ["a", "b"]},
            [Document("1", "x y")],
        ),
        ("c.jsonl", '{"id": "1", "text": null, "title": null}', {}, [Document("1", "")]),
        ("c.jsonl", '{"id": "1", "text": "half \\ud83d pair"}', {}, [Document("1", "half ? pair")]),
        # Titles that serve as ids (FEVER, DBpedia): a joiner is no white space, C's isspace agrees.
        (
            "c.jsonl",
            '{"id": "<a:b_(c)>\u200cd\u0301", "text": "x"}',
            {},
            [Document("<a:b_(c)>\u200cd\u0301", "x")],
        ),
        ("c.tsv", "0\tfirst text\n1\t\n", {}, [Document("0", "first text"), Document("1", "")]),
        (
            "c.tsv",
            "D1\thttp://x\tTitle\tBody\n",
            {},
            [Document("D1", "Body", "Title", {"url": "http://x"})],
        ),
        (
            "c.tsv",
            "id\turl\ttext\n1\tu\tbody\n2\t\tmore\n",
            {},
            [Document("1", "body", "", {"url": "u"}), Document("2", "more")],
        ),
        (
            "c.jsonl",
            '{"_id": "1", "text": "x", "year": 2020, "tags": ["a", "b"], "none": null, "": 1, "deep": {"a": 1}, '
            '"metadata": {"lang": "en", "x": NaN, "ok": true}, "long": "'
            + 1001 * "x"
            + '", "vector": [1, 2]}',
            {},
            [Document("1", "x", "", {"year": 2020, "tags": ["a", "b"], "lang": "en", "ok": True})],
        ),
        ("c.tsv", "id\ttext\ttitle\n1\tbody\tT\n", {}, [Document("1", "body", "T")]),
        (
            "c.tsv",
            "1\tT\tbody\tx\n",
            {"fields": ["title", "text", "_"]},
            [Document("1", "body", "T")],
        ),
        ("no-ending", BEIR, {}, EXPECTED),
        ("no-ending", "1\ttext\n", {}, [Document("1", "text")]),
        ("c.jsonl", b"\xef\xbb\xbf" + BEIR.replace("\n", "\r\n\r\n").encode(), {}, EXPECTED),
        ("c.tsv", "\n\n1\ttext\r\n  \n2\tmore", {}, [Document("1", "text"), Document("2", "more")]),
        ("c.jsonl.gz", gzip.compress(BEIR.encode(), mtime=0), {}, EXPECTED),
        ("gzip-without-ending", BOTH_HALVES, {}, EXPECTED),
        ("plain-in-spite-of.jsonl.gz", BEIR, {}, EXPECTED),
    ],
)
def test_formats(tmp_path, name, content, settings, expected):
    path = put(tmp_path, name, content)
    assert list(read_collection(path, **settings)) == expected


def test_standard_input(monkeypatch):
    for content in (BEIR.encode(), gzip.compress(BEIR.encode())):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        collection = LinesCollection("-")
        assert list(collection) == EXPECTED
        assert collection.total_bytes is None
        assert collection.inputs[0].sha256 == hashlib.sha256(content).hexdigest()


def test_a_folder_is_read_in_natural_order_and_beir_folders_by_their_corpus(tmp_path):
    for i in (10, 2, 1):
        put(tmp_path / "parts", f"docs{i}.jsonl", json.dumps({"id": f"d{i}", "contents": "x"}))
    put(tmp_path / "parts", ".hidden.jsonl", "broken")
    put(tmp_path / "parts", "README.txt", "not a document")
    put(tmp_path / "parts", "docs3.jsonl", "")  # an empty part among others is no mistake
    assert [d.docid for d in read_collection(tmp_path / "parts")] == ["d1", "d2", "d10"]

    put(tmp_path / "beir", "corpus.jsonl", BEIR)
    put(tmp_path / "beir", "queries.jsonl", '{"_id": "q", "text": "x"}')
    assert list_files(tmp_path / "beir") == [tmp_path / "beir" / "corpus.jsonl"]
    assert sorted(["a10", "a9", "a", "10", "9"], key=natural_key) == ["9", "10", "a", "a9", "a10"]


def test_digests_are_of_the_bytes_on_disk(tmp_path):
    put(tmp_path, "a.jsonl.gz", gzip.compress(BEIR.encode()))
    put(tmp_path, "b.tsv", "3\tthird\n")
    collection = LinesCollection(tmp_path)
    assert len(list(collection)) == 3
    expected = [
        (str(p), hashlib.sha256(p.read_bytes()).hexdigest()) for p in sorted(tmp_path.iterdir())
    ]
    assert [(i.path, i.sha256) for i in collection.inputs] == expected
    assert file_digests(tmp_path) == [digest for _, digest in expected]
    assert [i.documents for i in collection.inputs] == [2, 1]
    assert (
        collection.bytes_read
        == collection.total_bytes
        == sum(p.stat().st_size for p in tmp_path.iterdir())
    )


GOOD = '{"id": "ok", "contents": "fine"}\n'
BROKEN = {
    "broken JSON": ("c.jsonl", GOOD + '{"id": "x", \n', r"c.jsonl:2: broken JSON: .* at column"),
    "JSON cut at the end": ("c.jsonl", GOOD + '{"id": "x", "contents": "ab', r":2: broken JSON"),
    "a string": ("c.jsonl", GOOD + '"text"\n', r":2: a string; expected one JSON object"),
    "a number": ("c.jsonl", GOOD + "17\n", r":2: a single value; expected"),
    "an array of objects": (
        "c.json",
        '[{"id": "x", "contents": "a"}]',
        r":1: a JSON array; expected one JSON object",
    ),
    "nested beyond reason": ("c.jsonl", '{"id":' * 200000, r":1: broken JSON"),
    "no id": (
        "c.jsonl",
        '{"contents": "a"}',
        r":1: no id: expected 'id' or '_id' or 'docid', found 'contents'",
    ),
    "empty id": ("c.jsonl", GOOD + '{"id": "", "contents": "a"}', r":2: empty id"),
    "empty id in a tsv": ("c.tsv", "\ttext\n", r":1: empty id"),
    "id null": ("c.jsonl", '{"id": null, "contents": "a"}', r":1: the id 'id' is null"),
    "id true": ("c.jsonl", '{"id": true, "contents": "a"}', r":1: the id 'id' is true"),
    "id 1.5": ("c.jsonl", '{"id": 1.5, "contents": "a"}', r":1: the id 'id' is 1.5"),
    "id with a blank": (
        "c.jsonl",
        '{"id": "a b", "contents": "a"}',
        r":1: the id 'a b' contains white space",
    ),
    "id with a blank in a tsv": ("c.tsv", "a b\ttext\n", r":1: the id 'a b' contains white space"),
    "id with a no-break space": ("c.tsv", "a\u00a0b\ttext\n", r"contains white space"),
    "id with a control character": ("c.tsv", "a\u0007b\ttext\n", r"control character"),
    "id with a line end": ("c.jsonl", '{"id": "a\\n", "contents": "a"}', r"contains white space"),
    "id with half a surrogate": (
        "c.jsonl",
        '{"id": "a\\ud800", "contents": "a"}',
        r"control character",
    ),
    "duplicate id": (
        "c.jsonl",
        GOOD + '{"id": "x", "contents": "a"}\n' + GOOD,
        r":3: duplicate id 'ok'",
    ),
    "no text": (
        "c.jsonl",
        GOOD + '{"id": "x", "body": "a"}',
        r":2: no text: expected .* found 'id', 'body'",
    ),
    "text is a list": (
        "c.jsonl",
        '{"id": "x", "text": ["a"]}',
        r""":1: 'text' is \["a"\]; expected a string""",
    ),
    "title is a number": (
        "c.jsonl",
        '{"id": "x", "text": "a", "title": 5}',
        r":1: 'title' is 5; expected a string",
    ),
    "NUL byte": ("c.jsonl", GOOD.encode() + b'{"id": "x\0"}', r":2: a binary file"),
    "latin-1": (
        "c.tsv",
        "1\tcaf\xe9\n".encode("latin-1"),
        r":1: not UTF-8 text: byte 0xe9 at position 6",
    ),
    "UTF-16": ("c.jsonl", GOOD.encode("utf-16"), r":1: UTF-16 text; save"),
    "an image": ("c", b"\x89PNG\r\n\x1a\n\0\0\0", r":1: not UTF-8 text"),
    "nothing at all": ("c.jsonl", "", r"no documents in it \(0 bytes read\)"),
    "only blank lines": ("c.tsv", "\n \n", r"no documents in it"),
    "only a header": ("c.tsv", "id\ttext\n", r"no documents in it"),
    "prose": ("c", "It was a dark night.\n", r":1: neither a JSON object nor tab-separated"),
    "3 columns": ("c.tsv", "1\ta\tb\n", r":1: 3 columns; expected 2"),
    "a row with a tab too many": (
        "c.tsv",
        "1\ta\n2\tb\tc\n",
        r":2: 3 column\(s\), expected 2; a text contains a tab",
    ),
    "a row without a tab": (
        "c.tsv",
        "1\ta\n2 b\n",
        r":2: 1 column\(s\), expected 2; a tab is missing",
    ),
    "damaged gzip": (
        "c.jsonl.gz",
        gzip.compress(GOOD.encode())[:-8] + b"\1" * 8,
        r"damaged gzip file",
    ),
    "garbage after gzip": (
        "c.jsonl.gz",
        gzip.compress(GOOD.encode()) + b"garbage",
        r"damaged gzip file",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_collections_name_the_file_and_the_line(tmp_path, case):
    name, content, message = BROKEN[case]
    path = put(tmp_path, name, content)
    with pytest.raises(InputError, match=message) as caught:
        list(read_collection(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_truncated_gzip_is_told_from_a_short_one(tmp_path):
    rows = "".join(
        json.dumps({"id": f"d{i}", "contents": str(random.Random(i).random())}) + "\n"
        for i in range(2000)
    )
    path = put(tmp_path, "c.jsonl.gz", gzip.compress(rows.encode())[:-200])
    with pytest.raises(InputError, match=r"truncated after line \d+"):
        list(read_collection(path))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"fields": ["title", "text"]},
            r":1: 'contents' has 1 field\(s\) split by '\\n', `fields` names 2",
        ),
        ({"docid_field": "key"}, r":1: no id: expected 'key', found 'id', 'contents'$"),
        ({"delimiter": ""}, r"delimiter between fields is empty"),
    ],
)
def test_settings_that_do_not_fit(tmp_path, settings, message):
    with pytest.raises(InputError, match=message):
        list(read_collection(put(tmp_path, "c.jsonl", GOOD), **settings))


def test_missing_paths_and_folders_without_a_collection(tmp_path):
    with pytest.raises(InputError, match="no such file or folder"):
        LinesCollection(tmp_path / "nowhere.jsonl")
    with pytest.raises(InputError, match="no collection in this folder"):
        LinesCollection(tmp_path)


@pytest.mark.skipif(
    not Path("/proc/self/mem").exists(), reason="needs a file that opens but cannot be read"
)
def test_unreadable_file():
    with pytest.raises(InputError, match="/proc/self/mem: cannot be read: Input/output error"):
        list(read_collection("/proc/self/mem"))


def test_duplicates_are_found_across_files(tmp_path):
    put(tmp_path, "1.jsonl", GOOD)
    put(tmp_path, "2.jsonl", '{"id": "x", "contents": "a"}\n' + GOOD)
    with pytest.raises(InputError, match=r"2.jsonl:2: duplicate id 'ok'"):
        list(read_collection(tmp_path))


def test_seen_is_a_set():
    seen = Seen()
    reference = set()
    rng = random.Random(0)
    for _ in range(20000):
        text = str(rng.randrange(15000))
        assert seen.add(text) == (text in reference)
        reference.add(text)


def test_memory_stays_flat_while_the_collection_grows(tmp_path):
    """Ten times the documents must not need more than the ids' own bytes more."""
    peaks = []
    for count in (2000, 20000):
        path = put(
            tmp_path, f"{count}.tsv", "".join(f"{i}\t{'word ' * 40}\n" for i in range(count))
        )
        tracemalloc.start()
        for _ in read_collection(path):
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # 18,000 documents more: 24 bytes each for ids, where their texts would be 200 bytes each.
    assert peaks[1] - peaks[0] < 18000 * 48


def test_a_real_collection(shared_data):
    documents = list(read_collection(shared_data / "scifact"))
    assert len(documents) == 5183
    assert documents[0].docid == "4983"
    assert documents[0].title.startswith("Microstructural development")
    assert documents[0].text.startswith("Alterations of the architecture")
