"""The index folder: built, opened, and every kind of damage named in one line."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress

import numpy as np
import pytest
import scipy.sparse as sp
from support import index_samples as samples

from dupmae_ir.errors import DupmaeError, IndexMismatch, InputError, UsageError
from dupmae_ir.index.changes.builder import IndexBuilder
from dupmae_ir.index.format.manifest import FORMAT, content_digest
from dupmae_ir.index.format.quantisation import quantise
from dupmae_ir.index.index import Index

pytestmark = pytest.mark.jvm


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "I"
    samples.build(folder)
    return folder


@pytest.fixture
def folder(built, tmp_path):
    """A copy to damage."""
    return shutil.copytree(built, tmp_path / "I")


def test_what_goes_in_comes_out(built):
    ids, vectors, weights = samples.documents()
    index = samples.opened(built)
    assert index.docids == ids
    assert list(index.terms) == samples.TERMS
    assert Index.open(built).term_ids["|"] == 0
    assert (index.documents, index.dim, index.scale) == (120, samples.DIM, 2.0)
    np.testing.assert_array_equal(index.vectors, vectors)
    _, rows = index.faiss_index.search(vectors[:3], 1)
    assert rows.ravel().tolist() == np.argmax(vectors[:3] @ vectors.T, axis=1).tolist()
    forward = sp.csr_matrix(
        (index.forward.impacts, index.forward.terms, index.forward.indptr), shape=weights.shape
    )
    np.testing.assert_array_equal(forward.toarray(), (2 * weights).toarray())
    assert [index.docids[row] for row in np.argsort(index.docid_rank)] == sorted(ids)


def test_postings_and_forward_index_agree(built):
    index = samples.opened(built)
    for query, (rows, scores) in zip(
        samples.queries(), index.searcher.top(samples.queries(), 1000), strict=True
    ):
        ids = np.array([samples.TERMS.index(term) for term in query], np.int64)
        exact = index.forward.scores(np.arange(120), ids, np.array(list(query.values()), np.int64))
        np.testing.assert_array_equal(exact[rows], scores)
        assert len(rows) == np.count_nonzero(exact)


def test_meta_counts_what_was_written(built):
    _, _, weights = samples.documents()
    meta = json.loads((built / "meta.json").read_text())
    assert meta["documents"] == 120
    assert meta["empty_documents"] == 12
    assert meta["postings"] == weights.nnz
    assert meta["sum_of_impacts"] == 2 * int(weights.sum())
    assert (meta["clipped"], meta["dropped"]) == (0, 0)
    assert meta["parts"] == ["cls", "ot"]
    assert meta["encoder"] == {"name": "sample"}
    assert {"dupmae_ir", "python", "faiss", "pyserini", "java"} <= set(meta["versions"])


def test_the_digest_depends_on_content_alone(built, tmp_path):
    meta = samples.build(tmp_path / "same", batch=7)
    assert meta["digest"] == Index.open(built).meta["digest"]
    assert samples.build(tmp_path / "other", seed=5)["digest"] != meta["digest"]
    assert samples.build(tmp_path / "scaled", scale=3.0)["digest"] != meta["digest"]


def test_verify_notices_one_changed_byte(folder):
    Index.open(folder).verify()
    path = samples.first_segment(folder) / "cls" / "index"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(IndexMismatch, match="cls/index is damaged"):
        Index.open(folder).verify()


@pytest.mark.parametrize("part", ["cls", "ot"])
def test_one_part_alone(tmp_path, part):
    ids, vectors, weights = samples.documents(20)
    dense = part == "cls"
    with IndexBuilder(
        tmp_path / "I",
        dim=samples.DIM if dense else None,
        terms=None if dense else samples.TERMS,
        scale=None if dense else 1.0,
    ) as builder:
        builder.add(ids, vectors if dense else None, None if dense else weights)
        meta = builder.finish({})
    index = samples.opened(tmp_path / "I")
    assert meta["parts"] == [part]
    assert index.docids == ids
    with pytest.raises(IndexMismatch, match="has no"):
        index.searcher if dense else index.vectors  # noqa: B018
    assert (tmp_path / "I" / "ot").exists() != dense


def test_an_index_without_documents(tmp_path):
    with IndexBuilder(tmp_path / "I", dim=3, terms=["a"], scale=1.0) as builder:
        builder.finish({})
    index = samples.opened(tmp_path / "I")
    assert (index.docids, index.vectors.shape) == ([], (0, 3))
    assert [part.tolist() for part in index.searcher.top([{"a": 1}], 5)[0]] == [[], []]


def test_quantise_rounds_half_to_even_clips_and_drops():
    weights = sp.csr_matrix(np.array([[0.25, 0.75, 0.1, 127.6, 300.0, -4.0, 1.25]]))
    impacts, clipped = quantise(weights, 2.0)
    assert impacts.toarray().tolist() == [[0, 2, 0, 255, 255, 0, 2]]
    assert impacts.dtype == np.uint8
    assert clipped == 1  # 127.6 * 2 = 255.2 rounds to 255: not clipped
    assert impacts.nnz == 4


def test_a_weight_that_is_not_a_number_is_refused():
    with pytest.raises(IndexMismatch, match="not finite"):
        quantise(sp.csr_matrix(np.array([[1.0, np.nan]])), 2.0)


def test_a_twice_used_id_is_named_with_both_places(tmp_path):
    ids, vectors, weights = samples.documents(50)
    ids[40] = ids[3]
    with IndexBuilder(tmp_path / "I", dim=samples.DIM, terms=samples.TERMS, scale=1.0) as builder:
        builder.add(ids[:20], vectors[:20], weights[:20])
        builder.add(ids[20:], vectors[20:], weights[20:])
        with pytest.raises(UsageError, match=f"'{ids[3]}' belongs to documents 4 and 41"):
            builder.finish({})
    with pytest.raises(InputError, match="not a finished index"):
        Index.open(tmp_path / "I")


@pytest.mark.parametrize("docid", ["", "a b", "a\n", "\u2003x", "tab\there"])
def test_ids_that_no_run_can_carry_are_refused(tmp_path, docid):
    builder = IndexBuilder(tmp_path / "I", dim=2, terms=None, scale=None)
    with builder, pytest.raises(UsageError, match=r"white space|empty id"):
        builder.add([docid], np.zeros((1, 2)), None)


def test_parts_that_do_not_fit_are_refused(tmp_path):
    with IndexBuilder(tmp_path / "I", dim=2, terms=["a"], scale=1.0) as builder:
        with pytest.raises(IndexMismatch, match="needs OT weights"):
            builder.add(["x"], np.zeros((1, 2)), None)
        with pytest.raises(IndexMismatch, match="for 1 documents of width 2"):
            builder.add(["x"], np.zeros((2, 2)), sp.csr_matrix((1, 1)))
    with pytest.raises(UsageError, match="positive scale"):
        IndexBuilder(tmp_path / "J", dim=2, terms=["a"], scale=0.0)
    with pytest.raises(UsageError, match="vectors, terms, or both"):
        IndexBuilder(tmp_path / "J", dim=None, terms=None, scale=None)


def test_a_used_folder_is_left_alone(folder):
    segment = samples.first_segment(folder)
    before = content_digest(segment, samples.DIM)
    with pytest.raises(UsageError, match="not an empty folder"):
        IndexBuilder(folder, dim=2, terms=None, scale=None)
    assert content_digest(segment, samples.DIM) == before


def _edit_meta(**changes):
    def edit(folder):
        meta = json.loads((folder / "meta.json").read_text())
        (folder / "meta.json").write_text(json.dumps({**meta, **changes}))

    return edit


def _path(folder, name):
    return folder / name if name == "meta.json" else samples.first_segment(folder) / name


def _cut(name):
    def cut(folder):
        path = _path(folder, name)
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])

    return cut


def _remove(name):
    def remove(folder):
        path = _path(folder, name)
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return remove


DAMAGE = {
    "missing": (lambda folder: shutil.rmtree(folder), "no such index"),
    "unfinished": (_remove("meta.json"), "not a finished index"),
    "broken meta": (_cut("meta.json"), "meta.json cannot be read"),
    "foreign meta": (
        lambda folder: (folder / "meta.json").write_text("{}"),
        "does not describe an index",
    ),
    "list as meta": (
        lambda folder: (folder / "meta.json").write_text("[1]"),
        "does not describe an index",
    ),
    "unknown format": (_edit_meta(format=9), "has index format 9"),
    "no counts": (
        lambda folder: (folder / "meta.json").write_text(json.dumps({"format": FORMAT})),
        "lacks documents, parts",
    ),
    "edited meta": (_edit_meta(encoder=None), "was edited or damaged"),
    "other parts": (_edit_meta(parts=["ot", "cls"]), "parts must be"),
    "no parts": (_edit_meta(parts=None), "parts must be"),
    "wrong count": (_edit_meta(postings="many"), "postings must be a whole number"),
    "wrong scale": (_edit_meta(scale=-5), "scale must be a positive number, got -5"),
    "scale in words": (_edit_meta(scale="2"), "scale must be a positive number"),
    "no scale": (_edit_meta(scale=None), "scale must be a positive number, got None"),
    "wrong encoder": (_edit_meta(encoder=[1]), "encoder must be an object"),
    "no segments": (_edit_meta(segments=[]), "segments must be a list of at least one"),
    "no digest": (_edit_meta(manifest_sha256="0"), "was edited or damaged"),
    "cut ids": (_cut("docid"), "docid is truncated"),
    "no ids": (_remove("docid"), "docid is missing"),
    "no vectors": (_remove("cls/index"), "cls/index is missing"),
    "cut vectors": (_cut("cls/index"), "cls/index is truncated"),
    "no faiss ids": (_remove("cls/docid"), "cls/docid is missing"),
    "no postings": (_remove("ot"), "ot/part.json is missing"),
    "no forward": (_remove("forward/impacts.npy"), "impacts.npy is missing"),
    "cut forward": (_cut("forward/terms.npy"), "terms.npy is truncated"),
    "no terms": (_remove("terms.txt"), "terms.txt is missing"),
    "second commit": (
        lambda folder: _path(folder, "ot/segments_9").touch(),
        "segments_9 is not a file of this index",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_one_clear_line(folder, damage):
    do, message = DAMAGE[damage]
    do(folder)
    with pytest.raises(DupmaeError, match=message) as error:
        Index.open(folder)
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.exit_status == 2


def test_postings_of_another_index_are_noticed(folder, tmp_path):
    samples.build(tmp_path / "J", count=50)
    ours = samples.first_segment(folder)
    theirs = samples.first_segment(tmp_path / "J")
    shutil.rmtree(ours / "ot")
    shutil.copytree(theirs / "ot", ours / "ot")
    with pytest.raises(IndexMismatch, match="ot belongs to another index"):
        Index.open(folder)
    (ours / "ot" / "part.json").write_bytes(
        (ours / "forward/part.json").read_bytes().replace(b"forward", b"ot")
    )
    samples.write_records(folder, ours)
    with pytest.raises(IndexMismatch, match="has 50 documents, "):
        samples.opened(folder).searcher  # noqa: B018


def test_a_failure_while_building_lets_go_of_everything(tmp_path):
    with (
        suppress(RuntimeError),
        IndexBuilder(tmp_path / "I", dim=2, terms=["a"], scale=1.0) as builder,
    ):
        builder.add(["x"], np.zeros((1, 2)), sp.csr_matrix([[1.0]]))
        raise RuntimeError
    with pytest.raises(InputError, match="not a finished index"):
        Index.open(tmp_path / "I")
    shutil.rmtree(tmp_path / "I")
