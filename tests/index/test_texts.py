"""The text store: what goes in comes out, by row and by column; damage is refused."""

from __future__ import annotations

import gc
import json
import random
import threading
import weakref
import zlib

import numpy as np
import pytest
from support import index_samples as samples

from dupmae_ir.errors import IndexMismatch, UnknownName, UsageError
from dupmae_ir.index.changes.builder import IndexBuilder
from dupmae_ir.index.format import integrity
from dupmae_ir.index.format.joined import JoinedTexts
from dupmae_ir.index.format.texts import (
    MOST_COLUMNS,
    StoredDocument,
    TextStore,
    TextWriter,
    pack,
    unpack,
)


def some_documents(count: int, seed: int = 0) -> list[StoredDocument]:
    """Texts of 0 to 3,000 characters; metadata of all types, on some of the documents."""
    rng = random.Random(seed)
    made = []
    for i in range(count):
        text = "".join(rng.choices("abcdefgh \n\té\U0001f600", k=rng.randrange(0, 3000)))
        metadata = {"path": f"folder/file {i % 7}.txt", "start": i}
        if i % 3 == 0:
            metadata |= {
                "year": 2000 + i % 10,
                "mixed": rng.choice([1, 1.0, True, "1", [1, "a"], []]),
            }
        made.append(StoredDocument(f"d{i}", f"Title {i % 5}", text, metadata if i % 4 else {}))
    return made


def write(folder, documents, pieces=1):
    step = -(-len(documents) // pieces) or 1
    with TextWriter(folder) as writer:
        for start in range(0, len(documents), step):
            writer.add(documents[start : start + step])
    return folder


@pytest.mark.parametrize("count", [0, 1, 3, 400])
def test_every_row_comes_out_as_it_went_in(tmp_path, count):
    documents = some_documents(count)
    store = TextStore(write(tmp_path / "texts", documents))
    assert len(store) == count
    rows = list(range(count))
    random.Random(1).shuffle(rows)
    assert store.get_all(rows) == [documents[row] for row in rows]
    assert store.verify() is None
    for row in (-1, count):
        with pytest.raises(IndexError):
            store.get(row)


def test_columns_equal_the_metadata_of_the_rows(tmp_path):
    documents = some_documents(400)
    store = TextStore(write(tmp_path / "texts", documents, pieces=9))
    assert store.columns == ["path", "start", "year", "mixed"]
    for name in store.columns:
        values, codes = store.column(name)
        assert codes.shape == (400,)
        assert values[0] is None
        assert len({json.dumps(v) for v in values}) == len(values)
        found = [values[code] for code in codes]
        expected = [document.metadata.get(name) for document in documents]
        assert list(map(repr, found)) == list(
            map(repr, expected)
        )  # 1, 1.0 and True are different values
    with pytest.raises(
        UnknownName,
        match=r"no metadata 'yeer'; known: path, start, year, mixed. Did you mean 'year'",
    ):
        store.column("yeer")


def test_bytes_do_not_depend_on_how_the_documents_are_given(tmp_path):
    documents = some_documents(300)
    one = write(tmp_path / "one", documents)
    many = write(tmp_path / "many", documents, pieces=50)
    names = sorted(path.name for path in one.iterdir())
    assert {name: (one / name).read_bytes() for name in names} == {
        n: (many / n).read_bytes() for n in names
    }
    raw = sum(len(d.text.encode()) for d in documents)
    assert sum(path.stat().st_size for path in one.iterdir()) < 0.7 * raw


def test_a_row_reads_one_block(tmp_path, monkeypatch):
    store = TextStore(write(tmp_path / "texts", some_documents(400)))
    assert len(store._table) > 5
    read = []
    plain = zlib.decompress

    def decompress(data):
        read.append(data)
        return plain(data)

    monkeypatch.setattr(zlib, "decompress", decompress)
    store.get(200)
    store.get(200)
    assert len(read) == 1


def test_several_threads_read_the_same(tmp_path):
    documents = some_documents(400)
    store = TextStore(write(tmp_path / "texts", documents))
    wrong = []

    def read(seed):
        rng = random.Random(seed)
        for row in rng.choices(range(400), k=200):
            if store.get(row) != documents[row]:
                wrong.append(row)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_half_of_a_surrogate_pair_is_replaced(tmp_path):
    store = TextStore(
        write(tmp_path / "texts", [StoredDocument("d", "t\ud800", "x\udfff", {"a": "\ud800"})])
    )
    assert store.get(0) == StoredDocument("d", "t?", "x?", {"a": "?"})
    assert store.column("a").values == [None, "?"]


@pytest.mark.parametrize("value", [None, {"a": 1}, [[1]], float("nan"), b"x", [None]])
def test_metadata_that_no_column_can_have(tmp_path, value):
    with pytest.raises(UsageError, match="document 'd': metadata must be"):
        write(tmp_path / "texts", [StoredDocument("d", "", "", {"a": value})])
    with pytest.raises(UsageError, match="metadata name"):
        write(tmp_path / "more", [StoredDocument("d", "", "", {"": 1})])


def test_more_names_of_metadata_than_files_that_can_be_open(tmp_path):
    values = {f"n{i}": i for i in range(MOST_COLUMNS + 1)}
    with pytest.raises(
        UsageError, match=f"document 'd': 'n{MOST_COLUMNS}' is a metadata name beyond"
    ):
        write(tmp_path / "texts", [StoredDocument("d", "", "", values)])


def test_packed_documents_come_back():
    documents = some_documents(20)
    assert unpack(pack(documents)) == documents


# ---------------------------------------------------------------- in an index


def build(folder, **options):
    ids, vectors, _ = samples.documents()
    made = some_documents(len(ids))
    documents = [document._replace(docid=docid) for docid, document in zip(ids, made, strict=True)]
    with IndexBuilder(folder, dim=samples.DIM, terms=None, scale=None, **options) as builder:
        builder.add(ids, vectors, None, documents if options.get("texts") else None)
        builder.finish({})
    return documents


def test_an_index_with_texts_records_them(tmp_path):
    documents = build(tmp_path / "I", texts=True)
    index = samples.opened(tmp_path / "I")
    assert [index.texts.get(row) for row in range(index.documents)] == documents
    recorded = {name for name in index.record.files if name.startswith("texts/")}
    assert recorded == {f"texts/{path.name}" for path in (index.path / "texts").iterdir()}
    assert {integrity.part_of(name) for name in recorded} == {"texts"}
    assert build(tmp_path / "J") is not None
    bare = samples.opened(tmp_path / "J")
    assert bare.texts is None
    assert bare.digest == index.digest  # texts are no part of what is searched


def test_texts_of_other_documents_are_refused(tmp_path):
    ids, vectors, _ = samples.documents()
    with IndexBuilder(
        tmp_path / "I", dim=samples.DIM, terms=None, scale=None, texts=True
    ) as builder:
        with pytest.raises(IndexMismatch, match="the index needs texts"):
            builder.add(ids, vectors, None)
        with pytest.raises(IndexMismatch, match="their ids differ"):
            builder.add(ids, vectors, None, some_documents(len(ids)))


def names_of_a_store():
    return ["blocks.npy", "columns.json", "column-0000.npy", "column-0003.npy", "part.json"]


@pytest.mark.parametrize("name", names_of_a_store())
@pytest.mark.parametrize("how", ["flip", "cut", "remove"])
def test_damage_is_refused_when_the_texts_are_used(tmp_path, name, how):
    build(tmp_path / "I", texts=True)
    damage(samples.first_segment(tmp_path / "I") / "texts" / name, how)
    index = samples.opened(tmp_path / "I")  # the rest can be searched
    assert index.vectors.shape == (120, samples.DIM)
    with pytest.raises(IndexMismatch, match=r"texts.*; encode the collection again"):
        _ = index.texts


@pytest.mark.parametrize("how", ["flip", "cut", "remove"])
def test_a_damaged_block_is_refused_when_it_is_read(tmp_path, how):
    documents = build(tmp_path / "I", texts=True)
    damage(samples.first_segment(tmp_path / "I") / "texts" / "blocks.bin", how)
    index = samples.opened(tmp_path / "I")
    if how == "flip":
        assert index.texts.get(0) == documents[0]  # another block
        assert "block" in index.texts.verify()
        with pytest.raises(IndexMismatch, match=r"blocks.bin is damaged: block \d+ is not the one"):
            index.texts.get(119)
        with pytest.raises(IndexMismatch, match=r"blocks.bin is damaged"):
            index.verify()
    else:
        with pytest.raises(IndexMismatch, match=r"blocks\.bin"):
            _ = index.texts


def damage(path, how):
    data = path.read_bytes()
    if how == "flip":
        path.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
    elif how == "cut":
        path.write_bytes(data[:-5])
    else:
        path.unlink()


def test_column_files_that_do_not_fit_are_refused(tmp_path):
    folder = write(tmp_path / "texts", some_documents(30))
    np.save(folder / "column-0000.npy", np.full(30, 99, np.uint32))
    with pytest.raises(IndexMismatch, match=r"column-0000\.npy is damaged: it does not belong"):
        TextStore(folder).column("path")
    (folder / "columns.json").write_text('{"rows": 29, "columns": []}')
    with pytest.raises(IndexMismatch, match="number of rows"):
        TextStore(folder)


def test_a_store_that_nobody_uses_closes_its_files_at_once(tmp_path):
    """A watcher opens a store with every change: those of 130 changes waited for Python's collector."""
    store = TextStore(write(tmp_path / "texts", some_documents(40)))
    store.get(3)
    store.column("path")
    alive = weakref.ref(store)
    gc.disable()
    try:
        del store
        assert alive() is None
    finally:
        gc.enable()


def test_values_of_several_stores_are_those_of_their_documents(tmp_path):
    documents = [*some_documents(50), *some_documents(30, seed=1)]
    first = documents[:50]
    second = [document._replace(metadata={"lang": "fr", "year": 1}) for document in documents[50:]]
    stores = [
        TextStore(write(tmp_path / "first", first)),
        TextStore(write(tmp_path / "second", second)),
    ]
    joined = JoinedTexts(tmp_path, stores, np.array([0, 50, 80]), usual={"lang": "en"})
    for name in ("path", "start", "year", "mixed", "lang"):
        column = joined.column(name)
        assert joined.column(name) is column, "it is joined once"
        for row, document in enumerate([*first, *second]):
            expected = document.metadata.get(name, "en" if name == "lang" else None)
            for value in (joined.value(name, row), column.values[column.codes[row]]):
                # As text, since 1, 1.0 and True are equal.
                assert json.dumps(value) == json.dumps(expected)


def test_a_value_is_read_without_joining_columns(tmp_path, monkeypatch):
    stores = [TextStore(write(tmp_path / name, some_documents(20))) for name in ("a", "b")]
    joined = JoinedTexts(tmp_path, stores, np.array([0, 20, 40]), usual={"lang": "en"})
    monkeypatch.setattr(JoinedTexts, "column", None)
    assert joined.value("path", 21) == "folder/file 1.txt"
