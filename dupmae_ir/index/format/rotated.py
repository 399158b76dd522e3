"""Codes of the stored vectors that bound their inner products, beside them: cls/rotated.bin.

Vectors are rotated onto the principal components of the collection, which leaves inner products as they are, and
rounded to one byte a component. The high halves of the bytes of the first components, with the length of the rest of
the vector, exclude a document from most lists; what is left is decided by those of the others, by the low halves, and
then by the vector itself (:mod:`dupmae_ir.search.candidates.rotated_dense`, docs/certificate.md).

The file is the arrays of :func:`sections`, one after the other. For y = rotation x - mean and its byte c,
0 <= c < 256, of which the high half alone stands for the middle of its sixteen values:

    facts (8,) float64           the version of this format; no vector, decoded vector or intermediate value is longer;
                                 how far the rotation is from orthogonal, the Frobenius norm of R R' - I; zeros, so
                                 that what follows does not share a line of a cache
    rotation (d, d), mean (d,), step (d,) float64    y is about step (c - 127.5)
    head (b, 16, 64, 4) uint8    high halves of the first chunk of 128 components, of blocks of 64 rows
    rests (64 b,) float32        the length of y without the first chunk, rounded up
    errors (3, 64 b) float32     the length of what codes lack, rounded up: of the first chunk by high halves, of all
                                 components by high halves, and by bytes
    high (n, 64 (c - 1)) uint8   high halves of the other chunks, by row
    low (n, 64 c) uint8          low halves of all chunks, by row

A byte of a chunk has the halves of components i and i + 64 (:mod:`dupmae_ir.index.postings.code_products`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from dupmae_ir.console import megabytes
from dupmae_ir.device import blas_threads
from dupmae_ir.errors import IndexMismatch, UsageError
from dupmae_ir.index.config import ROTATED
from dupmae_ir.index.format.faiss import mapped_vectors
from dupmae_ir.index.format.forward import release
from dupmae_ir.index.format.manifest import sweep_lock
from dupmae_ir.index.postings.compiling import BLOCK, CHUNK, Codes
from dupmae_ir.io.jobs import Job, JobRecord

if TYPE_CHECKING:
    from dupmae_ir.index.format.segment import Segment

FORMAT = 2
PAYS = 100_000
"""Documents from which on encode makes the codes; all vectors of fewer are multiplied in some milliseconds."""
PART = f"cls/{ROTATED}"
AGAIN = "make them with dupmae-ir index dense"
_SAMPLE = 1 << 16
"""Vectors from which the rotation and the steps are taken."""
_STEP = 0.42 / 16
"""Step of a byte, in standard deviations. Few components are beyond 128 steps; they are cut, and count as error."""
_ROWS = 8192
"""Vectors handled at a time."""


@dataclass(frozen=True)
class Rotated:
    """The opened codes of a segment. ``longest``: no vector, decoded vector or intermediate value is longer;
    ``deviation``: how far the rotation is from orthogonal, the Frobenius norm of R R' - I."""

    rotation: np.ndarray
    mean: np.ndarray
    step: np.ndarray
    codes: Codes
    longest: float
    deviation: float


def sections(rows: int, dim: int) -> dict[str, tuple[type, tuple[int, ...]]]:
    """Name -> type and shape of the arrays of the file, in their order."""
    chunks, blocks = -(-dim // CHUNK), -(-rows // BLOCK)
    return {
        "facts": (np.float64, (8,)),
        "rotation": (np.float64, (dim, dim)),
        "mean": (np.float64, (dim,)),
        "step": (np.float64, (dim,)),
        "head": (np.uint8, (blocks, 16, BLOCK, 4)),
        "rests": (np.float32, (BLOCK * blocks,)),
        "errors": (np.float32, (3, BLOCK * blocks)),
        "high": (np.uint8, (rows, CHUNK // 2 * (chunks - 1))),
        "low": (np.uint8, (rows, CHUNK // 2 * chunks)),
    }


def build_rotated(segment: Segment) -> Mapping[str, object]:
    """Make the codes of a segment, replacing older ones; returns their counts. Raises as :class:`RotatedJob`."""
    with RotatedJob(segment, overwrite=True) as job:
        return job.build()


class RotatedJob(Job):
    """Makes the codes of a segment, whose manifest is their record; codes that are unusable are replaced.

    The same vectors give the same bytes with the same libraries. Memory does not grow with the collection. Raises
    :class:`UsageError` for a segment without documents, :class:`IndexMismatch` for one without vectors.
    """

    def __init__(self, segment: Segment, overwrite: bool = False, quiet: bool = True) -> None:
        self.segment = segment
        segment.check_part("cls", everything=True)
        if not len(segment.vectors):
            raise UsageError(f"{segment.path} has no documents, so there is nothing to index")
        super().__init__(
            _file(segment.path),
            "index dense",
            {},
            {"index": segment.digest},
            overwrite=overwrite,
            resumable=False,
            quiet=quiet,
        )

    def __enter__(self) -> Self:
        """As :meth:`Job.__enter__`; then, after recovery, decide whether the existing codes are usable."""
        super().__enter__()
        sweep_lock(self.segment.index)
        try:
            open_rotated(self.segment)
        except IndexMismatch:
            self.overwrite = True
        return self

    def build(self) -> Mapping[str, object]:
        """Make and publish the codes; returns their counts with the job's ``output`` and ``status``."""
        made = self.begin() / self.target.name
        write_codes(self.segment.vectors, made)
        result = self.publish(made, {})
        self.segment.record_part(PART)
        return {**result, **self._counts()}

    def recorded(self) -> JobRecord:
        """The counts of the existing codes as a job's record."""
        made_by, inputs = f"dupmae-ir {self.command}", {"index": self.segment.digest}
        return {"made_by": made_by, "settings": {}, "inputs": inputs, "result": self._counts()}

    def _counts(self) -> dict[str, int]:
        return {"documents": self.segment.documents, "bytes": self.target.stat().st_size}

    def write_record(self, made: Path, record: Mapping[str, Any]) -> None:
        """The manifest has the record."""

    def check_replaceable(self) -> None:
        """A file of this name in an index folder is always this command's."""


def add_rotated(folder: Path, rows: int, dim: int) -> None:
    """Make the codes of a segment that is being written to ``folder``."""
    write_codes(mapped_vectors(folder / "cls" / "index", rows, dim), _file(folder))


def write_codes(vectors: np.ndarray, path: Path) -> None:
    """Write the codes of (n, d) float32 vectors, n > 0."""
    rows, dim = vectors.shape
    arrays = _arrays(path, rows, dim, "w+")
    with blas_threads(1):
        _choose(vectors, arrays)
        longest = _encode(vectors, arrays) + float(np.linalg.norm(arrays["mean"]))
    arrays["facts"][:3] = (
        FORMAT,
        longest,
        np.linalg.norm(arrays["rotation"] @ arrays["rotation"].T - np.eye(dim)),
    )


def _choose(vectors: np.ndarray, arrays: dict[str, np.ndarray]) -> None:
    """Set the rotation, the mean and the steps by a sample of the vectors, which is read twice."""
    rotation, mean = arrays["rotation"], arrays["mean"]
    every = -(-len(vectors) // _SAMPLE)
    count = -(-len(vectors) // every)
    squares, directions = np.linalg.eigh(sum(x.T @ x for x in _blocks(vectors, every)))
    rotation[:] = directions.T[::-1]
    mean[:] = rotation @ sum(x.sum(axis=0) for x in _blocks(vectors, every)) / count
    spread = np.sqrt(np.maximum(squares[::-1] / count - np.square(mean), 0))
    arrays["step"][:] = _STEP * np.maximum(spread, 1e-6 * spread.max() or 1.0)


def _blocks(vectors: np.ndarray, every: int = 1) -> Iterator[np.ndarray]:
    """Each vector, or one of every few, in float64, some thousand at a time."""
    for start in range(0, len(vectors), _ROWS * every):
        yield np.asarray(vectors[start : start + _ROWS * every : every], np.float64)
        release(vectors)


def _encode(vectors: np.ndarray, arrays: dict[str, np.ndarray]) -> float:
    """Set codes, errors and rests; returns the largest sum of the lengths of a vector, of y and of its error."""
    rotation, mean, step = arrays["rotation"], arrays["mean"], arrays["step"]
    longest, rows = 0.0, len(vectors)
    for start, x in zip(range(0, rows, _ROWS), _blocks(vectors), strict=True):
        here = slice(start, start + len(x))
        y = x @ rotation.T - mean
        codes = np.clip(np.floor(y / step), -128, 127) + 128
        coarse = y - step * (16 * (codes // 16) - 120)
        lacks = coarse[:, :CHUNK], coarse, y - step * (codes - 127.5)
        for errors, lack in zip(arrays["errors"], lacks, strict=True):
            errors[here] = _up(np.linalg.norm(lack, axis=1))
        arrays["rests"][here] = _up(np.linalg.norm(y[:, CHUNK:], axis=1))
        high = _chunks(codes // 16)
        _by_block(high[:, : CHUNK // 2], arrays["head"][start // BLOCK :])
        arrays["high"][here] = high[:, CHUNK // 2 :]
        arrays["low"][here] = _chunks(codes % 16)
        lengths = (np.linalg.norm(what, axis=1) for what in (x, y, coarse))
        longest = max(longest, float(sum(lengths).max()))
        release(arrays["low"])
    return longest


def _chunks(halves: np.ndarray) -> np.ndarray:
    """The halves (m, d) of components as the bytes of chunks, (m, 64 c); components that are missing are 0."""
    rows, dim = halves.shape
    padded = np.zeros((rows, -(-dim // CHUNK) * CHUNK), np.uint8)
    padded[:, :dim] = halves
    pairs = padded.reshape(rows, -1, 2, CHUNK // 2)
    return (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(rows, -1)


def _by_block(chunk: np.ndarray, blocks: np.ndarray) -> None:
    """Store the (m, 64) bytes of rows in (b, 16, 64, 4) blocks, four components of all rows together."""
    for number, start in enumerate(range(0, len(chunk), BLOCK)):
        fours = chunk[start : start + BLOCK].reshape(-1, 16, 4)
        blocks[number, :, : len(fours)] = fours.transpose(1, 0, 2)


def _up(values: np.ndarray) -> np.ndarray:
    """float32 that is not below the float64 values."""
    near = values.astype(np.float32)
    return np.where(near < values, np.nextafter(near, np.float32(np.inf)), near)


def _arrays(path: Path, rows: int, dim: int, mode: Any) -> dict[str, np.ndarray]:
    """The arrays of the file, mapped."""
    parts = sections(rows, dim)
    sizes = {
        name: np.dtype(kind).itemsize * int(np.prod(shape)) for name, (kind, shape) in parts.items()
    }
    whole, arrays, end = (
        np.memmap(path, np.uint8, mode, shape=(sum(sizes.values()),)),
        dict[str, np.ndarray](),
        0,
    )
    for name, (kind, shape) in parts.items():
        arrays[name] = whole[end : end + sizes[name]].view(kind).reshape(shape).view(np.ndarray)
        end += sizes[name]
    return arrays


def open_rotated(segment: Segment) -> Rotated:
    """Map the codes of a segment. Raises :class:`IndexMismatch`, with the command that makes them again, for codes that
    are missing, damaged, or of other vectors."""
    segment.check_part(PART, AGAIN)
    return map_codes(_file(segment.path), *segment.vectors.shape)


def map_codes(path: Path, rows: int, dim: int) -> Rotated:
    """The codes of a file that :func:`write_codes` wrote. Raises :class:`IndexMismatch` for one of another version."""
    if np.fromfile(path, np.float64, 1).tolist() != [FORMAT]:
        raise IndexMismatch(f"{path} has codes of another version; {AGAIN}")
    arrays = _arrays(path, rows, dim, "r")
    _, longest, deviation, *_ = arrays.pop("facts").tolist()
    first = {name: arrays.pop(name) for name in ("rotation", "mean", "step")}
    return Rotated(**first, codes=Codes(**arrays), longest=longest, deviation=deviation)


def describe_rotated(segment: Segment) -> dict[str, str]:
    """The codes of a segment, if there are any: their size, or why they are unusable."""
    if not segment.has_part(PART):
        return {}
    problem = segment.part_problem(PART)
    return {
        ROTATED: f"unusable: {problem}; {AGAIN}"
        if problem
        else megabytes(_file(segment.path).stat().st_size)
    }


def _file(folder: Path) -> Path:
    return folder / f"{PART}.bin"
