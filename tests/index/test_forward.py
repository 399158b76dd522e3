"""The forward index against a scipy product."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from dupmae_ir.errors import IndexMismatch
from dupmae_ir.index.format import forward as module
from dupmae_ir.index.format.forward import (
    Forward,
    ForwardWriter,
    NpyWriter,
    mapped,
    release,
    term_dtype,
)

ROWS = 300
VOCABULARY = 500


@pytest.fixture
def matrix():
    rng = np.random.default_rng(0)
    dense = rng.integers(1, 256, (ROWS, VOCABULARY)) * (rng.random((ROWS, VOCABULARY)) < 0.1)
    dense[[0, 17, 18, ROWS - 1]] = 0  # empty rows at both ends and side by side
    return sp.csr_matrix(dense)


@pytest.fixture
def folder(tmp_path, matrix):
    with ForwardWriter(tmp_path, VOCABULARY) as writer:
        for start in range(0, ROWS, 64):
            part = matrix[start : start + 64]
            writer.add(part.indptr, part.indices, part.data)
    return tmp_path


@pytest.mark.parametrize(
    ("compiled", "block"), [(True, 1), (False, 1), (False, 50), (False, 1 << 22)]
)
def test_scores_are_the_inner_products(folder, matrix, monkeypatch, compiled, block):
    monkeypatch.setattr(module, "pays", lambda _: compiled)
    monkeypatch.setattr(module, "_BLOCK", block)
    forward = Forward.open(folder, VOCABULARY)
    rng = np.random.default_rng(1)
    for size in (0, 1, 40, VOCABULARY):
        ids = rng.permutation(VOCABULARY)[:size]
        impacts = rng.integers(1, 256, size)
        query = np.zeros(VOCABULARY, np.int64)
        query[ids] = impacts
        rows = rng.integers(0, ROWS, 70)  # any order, repeated
        found = forward.scores(rows, ids, impacts)
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, matrix[rows] @ query)
    for row in (ROWS, -1):
        with pytest.raises(IndexError):
            forward.scores(np.array([0, row]), ids, impacts)
    assert forward.scores(np.zeros(0, np.int64), ids, impacts).shape == (0,)
    np.testing.assert_array_equal(forward.scores(np.array([0, 17]), ids, impacts), [0, 0])


@pytest.mark.parametrize("compiled", [True, False])
def test_sums_beyond_32_bits_are_exact(monkeypatch, compiled):
    monkeypatch.setattr(module, "pays", lambda _: compiled)
    many = 70_000
    forward = Forward(
        np.array([0, many]), np.arange(many, dtype=np.uint32), np.full(many, 255, np.uint8), many
    )
    found = forward.scores(np.array([0]), np.arange(many), np.full(many, 255))
    assert found.tolist() == [many * 255 * 255]
    assert found[0] > 2**32


def test_rows_and_types(folder, matrix):
    forward = Forward.open(folder, VOCABULARY)
    assert len(forward) == ROWS
    terms, impacts = forward.row(5)
    np.testing.assert_array_equal(terms, matrix[5].indices)
    np.testing.assert_array_equal(impacts, matrix[5].data)
    assert (forward.terms.dtype, forward.impacts.dtype, forward.indptr.dtype) == (
        np.uint16,
        np.uint8,
        np.int64,
    )
    assert term_dtype(1 << 16) == np.uint16
    assert term_dtype((1 << 16) + 1) == np.uint32


@pytest.mark.parametrize("count", [0, 1, 12345])
def test_npy_files_written_in_pieces_are_numpys_own(tmp_path, count):
    values = np.arange(count, dtype=np.int64)
    writer = NpyWriter(tmp_path / "ours.npy", np.int64)
    writer.add(values[:3])
    writer.add(values[3:])
    writer.close()
    np.save(tmp_path / "theirs.npy", values)
    np.testing.assert_array_equal(np.load(tmp_path / "ours.npy"), values)
    assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "theirs.npy").read_bytes()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_what_was_read_of_a_file_is_given_back(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(1 << 20))

    def resident() -> int:
        of_file = Path("/proc/self/smaps").read_text().partition(str(tmp_path / "a.npy"))[2]
        return int(re.search(r"Rss: +(\d+)", of_file)[1])

    array = mapped(tmp_path / "a.npy")
    total = int(array.sum())
    assert resident() > 4096  # KiB
    release(array[5:])
    assert resident() == 0
    assert int(array.sum()) == total
    release(np.arange(3))  # not of a file: nothing to do


def test_no_documents_at_all(tmp_path):
    ForwardWriter(tmp_path, 10).close()
    forward = Forward.open(tmp_path, 10)
    assert len(forward) == 0


@pytest.mark.parametrize("name", module.FILES)
@pytest.mark.parametrize("damage", ["missing", "empty", "half", "garbage", "short"])
def test_damage_is_one_clear_line(folder, name, damage):
    path = folder / name
    whole = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "short":  # a sound file of fewer values
        np.save(path, np.load(path)[:-2])
    else:
        path.write_bytes(
            {"empty": b"", "half": whole[: len(whole) // 2], "garbage": b"\x80\x04nonsense" * 9}[
                damage
            ]
        )
    with pytest.raises(IndexMismatch, match="encode the collection again") as error:
        Forward.open(folder, VOCABULARY)
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)
