"""Codes of rotated vectors on disk: lengths that hold, an orthogonal rotation, and refusals of what is stale."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from support.seeds import seeds

from dupmae_ir.errors import IndexMismatch, UsageError
from dupmae_ir.index.__main__ import main
from dupmae_ir.index.changes.builder import IndexBuilder
from dupmae_ir.index.format import rotated
from dupmae_ir.index.format.rotated import PART, Rotated, build_rotated, open_rotated
from dupmae_ir.index.format.segment import Segment
from dupmae_ir.index.format.verification import problems
from dupmae_ir.index.index import Index
from dupmae_ir.index.postings.compiling import BLOCK, CHUNK

DIM = 150
"""More than the components of a chunk."""


def make(folder: Path, vectors: np.ndarray) -> Segment:
    with IndexBuilder(folder, dim=vectors.shape[1], terms=None, scale=None) as builder:
        builder.add([f"d{i}" for i in range(len(vectors))], vectors, None)
        builder.finish({})
    return Index.open(folder).only_segment


def awkward(seed: int) -> np.ndarray:
    """Vectors with zero rows, copies, constant dimensions, outliers, scales apart, sometimes a single row."""
    rng = np.random.default_rng(seed)
    rows = int(rng.choice([1, 2, 50, 700]))
    dim = int(rng.choice([1, 12, CHUNK, 100, DIM]))
    vectors = rng.standard_normal((rows, dim)) * 10.0 ** rng.integers(-3, 4, dim)
    vectors[rng.random(rows) < 0.2] = 0
    vectors[rng.random(rows) < 0.2] = vectors[0]
    vectors[:, rng.random(dim) < 0.2] = 0.3
    vectors[rng.random(rows) < 0.01] *= 50
    return vectors.astype(np.float32)


def unpacked(codes: Rotated, rows: int, dim: int) -> np.ndarray:
    """(rows, dim): the byte of every component, less 127.5, wherever its halves are stored."""
    stored = codes.codes
    head = stored.head.transpose(0, 2, 1, 3).reshape(-1, CHUNK // 2)[:rows]
    high, low = (
        part.reshape(rows, -1, CHUNK // 2) for part in (np.hstack([head, stored.high]), stored.low)
    )
    halves = [
        np.stack([half & 15, half >> 4], axis=2).reshape(rows, -1)[:, :dim] for half in (high, low)
    ]
    return 16.0 * halves[0] + halves[1] - 127.5


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    return make(
        tmp_path / "I", np.random.default_rng(0).standard_normal((500, DIM)).astype(np.float32)
    )


@pytest.mark.parametrize("seed", seeds())
def test_codes_and_lengths_bound_the_rotated_vectors(tmp_path: Path, seed: int) -> None:
    vectors = awkward(seed)
    segment = make(tmp_path / "I", vectors)
    counts = build_rotated(segment)
    opened = open_rotated(segment)
    rows, dim = vectors.shape
    assert np.abs(opened.rotation @ opened.rotation.T - np.eye(dim)).max() < 1e-6
    assert opened.deviation < 1e-6
    y = vectors.astype(np.float64) @ opened.rotation.T - opened.mean
    fine = unpacked(opened, rows, dim)
    coarse = 16 * np.floor(fine / 16) + 8
    noise = 1e-12 * opened.longest  # another order of float64 sums

    def is_length(stored: np.ndarray, what: np.ndarray) -> None:
        length = np.linalg.norm(what, axis=1)
        assert (length <= stored[:rows] + noise).all()
        assert np.allclose(length, stored[:rows], rtol=2e-7, atol=noise)  # rounded up, and no more

    for errors, codes in zip(opened.codes.errors, (coarse[:, :CHUNK], coarse, fine), strict=True):
        width = codes.shape[1]
        is_length(errors, y[:, :width] - opened.step[:width] * codes)
    is_length(opened.codes.rests, y[:, CHUNK:])
    assert opened.longest >= np.linalg.norm(vectors.astype(np.float64), axis=1).max()
    assert counts["bytes"] == (segment.path / f"{PART}.bin").stat().st_size


def test_the_first_components_have_most_of_the_length(segment: Segment) -> None:
    build_rotated(segment)
    opened = open_rotated(segment)
    y = segment.vectors.astype(np.float64) @ opened.rotation.T
    shares = np.square(y).sum(axis=0)
    assert (np.diff(shares) <= 1e-9 * shares[0]).all()


def test_blocks_do_not_show(
    segment: Segment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rotated.write_codes(segment.vectors, tmp_path / "whole")
    monkeypatch.setattr(rotated, "_ROWS", BLOCK)
    rotated.write_codes(segment.vectors, tmp_path / "pieces")
    whole, pieces = (rotated.map_codes(tmp_path / name, 500, DIM) for name in ("whole", "pieces"))
    assert pieces.longest == pytest.approx(whole.longest)
    assert (unpacked(whole, 500, DIM) == unpacked(pieces, 500, DIM)).all()


def test_the_same_twice_and_the_vectors_untouched(segment: Segment) -> None:
    flat = (segment.path / "cls" / "index").read_bytes()
    written = []
    for _ in range(2):
        build_rotated(segment)
        written.append((segment.path / f"{PART}.bin").read_bytes())
    assert written[0] == written[1]
    assert (segment.path / "cls" / "index").read_bytes() == flat
    segment.verify()
    assert problems(segment.index) == []


def test_memory_does_not_grow_with_the_vectors(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).standard_normal((8 * rotated._ROWS, 16)).astype(np.float32)
    tracemalloc.start()
    rotated.write_codes(vectors, tmp_path / "codes")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 10 * rotated._ROWS * 16 * 8  # of them in float64


def test_encode_makes_them_for_many_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = np.random.default_rng(0).standard_normal((70, 12)).astype(np.float32)
    assert not make(tmp_path / "few", vectors).has_part(PART)
    monkeypatch.setattr(rotated, "PAYS", 70)
    many = make(tmp_path / "many", vectors)
    assert many.has_part(PART)
    assert problems(tmp_path / "many") == []
    written = (many.path / f"{PART}.bin").read_bytes()
    build_rotated(many)
    assert (many.path / f"{PART}.bin").read_bytes() == written


def refused(segment: Segment, match: str) -> None:
    with pytest.raises(IndexMismatch, match=match) as error:
        open_rotated(segment)
    assert "make them with dupmae-ir index dense" in str(error.value)
    assert str(segment.index) in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_missing_cut_short_or_garbage_is_refused(segment: Segment) -> None:
    refused(segment, "does not list its files")
    build_rotated(segment)
    data = segment.path / f"{PART}.bin"
    good = data.read_bytes()
    data.write_bytes(good[:-1])
    refused(segment, f"{len(good) - 1:,} bytes, expected {len(good):,}")
    data.write_bytes(b"\0" * len(good))
    refused(segment, "is damaged: its sha256")
    data.unlink()
    refused(segment, "is missing")
    data.write_bytes(np.float64(1).tobytes())  # of another version, and shorter
    segment.record_part(PART)
    refused(segment, "of another version")
    data.write_bytes(good)
    segment.record_part(PART)
    open_rotated(segment)


def test_what_was_made_from_other_vectors_is_refused(segment: Segment, tmp_path: Path) -> None:
    other = make(tmp_path / "J", np.asarray(segment.vectors)[::-1].copy())
    for one in (segment, other):
        build_rotated(one)
    shutil.copy(other.path / f"{PART}.bin", segment.path / f"{PART}.bin")
    refused(segment, "is damaged: its sha256")


def test_a_build_that_fails_leaves_the_older_codes(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_rotated(segment)
    before = (segment.path / f"{PART}.bin").read_bytes()

    def full(*_: object) -> float:
        raise OSError("disk full")

    monkeypatch.setattr(rotated, "_encode", full)
    with pytest.raises(OSError, match="disk full"):
        build_rotated(segment)
    open_rotated(segment)
    assert (segment.path / f"{PART}.bin").read_bytes() == before
    assert {p.name for p in (segment.path / "cls").iterdir()} == {
        "index",
        "docid",
        "part.json",
        "rotated.bin",
    }


def test_the_command(segment: Segment, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["dense", "--index", str(segment.index)]
    assert main(command) == 0
    assert "codes of 500 vectors, 0.3 MB" in capsys.readouterr().err
    data = segment.path / f"{PART}.bin"
    before = data.stat().st_ino
    assert main([*command, "--json"]) == 0
    out, err = capsys.readouterr()
    assert (json.loads(out)["status"], json.loads(out)["documents"]) == ("already complete", 500)
    assert "already complete" in err
    assert data.stat().st_ino == before
    data.write_bytes(b"damaged")
    assert main([*command, "--quiet"]) == 0, "unusable codes are made again"
    open_rotated(segment)


def test_show_lists_them(segment: Segment, capsys: pytest.CaptureFixture[str]) -> None:
    def shown() -> str:
        assert main(["show", str(segment.index)]) == 0
        return capsys.readouterr().out

    assert "rotated" not in shown()
    build_rotated(segment)
    assert "\n  rotated           0.3 MB\n" in shown()
    (segment.path / f"{PART}.bin").unlink()
    assert "rotated           unusable: " in shown()


def test_nothing_to_index(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no documents"):
        build_rotated(make(tmp_path / "I", np.zeros((0, 12), np.float32)))
