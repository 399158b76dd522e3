"""Flat indexes written as a stream are the ones that faiss writes."""

from __future__ import annotations

from contextlib import suppress

import faiss
import numpy as np
import pytest

from dupmae_ir.errors import IndexMismatch
from dupmae_ir.index.format.faiss import FlatWriter, mapped_vectors, read_index


@pytest.fixture
def vectors():
    return np.random.default_rng(0).standard_normal((100, 24)).astype(np.float32)


@pytest.mark.parametrize("rows", [0, 1, 100])
def test_the_file_is_the_one_that_faiss_writes(tmp_path, vectors, rows):
    index = faiss.IndexFlatIP(24)
    index.add(vectors[:rows])
    faiss.write_index(index, str(tmp_path / "theirs"))
    with FlatWriter(tmp_path / "ours", 24) as writer:
        writer.add(vectors[: rows // 2])
        writer.add(vectors[rows // 2 : rows])
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


@pytest.mark.parametrize("mapped", [True, False])
def test_read_back(tmp_path, vectors, mapped):
    with FlatWriter(tmp_path / "index", 24) as writer:
        writer.add(vectors.astype(np.float64))  # any float type comes in, float32 is kept
    index = read_index(tmp_path / "index", mapped)
    found = mapped_vectors(tmp_path / "index", 100, 24)
    np.testing.assert_array_equal(found, vectors)
    _, rows = index.search(vectors[:5], 3)
    wanted = np.argsort(-(vectors[:5] @ vectors.T), axis=1)[:, :3]
    np.testing.assert_array_equal(rows, wanted)
    assert not found.flags.writeable
    assert type(found) is np.ndarray  # a slice of a memmap takes several times as long


def test_an_empty_index_has_no_vectors(tmp_path):
    with FlatWriter(tmp_path / "index", 24):
        pass
    assert mapped_vectors(tmp_path / "index", 0, 24).shape == (0, 24)


def test_what_does_not_belong_is_refused(tmp_path, vectors):
    with FlatWriter(tmp_path / "index", 24) as writer:
        writer.add(vectors[:3])
        with pytest.raises(IndexMismatch, match="width 24, got an array of shape"):
            writer.add(vectors[:, :5])
        vectors[1, 3] = np.nan
        with pytest.raises(IndexMismatch, match="vector 4 is not finite"):
            writer.add(vectors[:2])


def test_unfinished_files_are_noticed(tmp_path, vectors):
    with suppress(RuntimeError), FlatWriter(tmp_path / "index", 24) as writer:
        writer.add(vectors)
        raise RuntimeError
    assert read_index(tmp_path / "index").ntotal == 0
