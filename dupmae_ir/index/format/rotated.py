"""Codes of the stored vectors that bound their inner products, in the same folder: cls/rotated.bin.

Vectors are rotated onto the principal components of the collection, which leaves inner products as they are, and
rounded to one byte a component. The high halves of the bytes of the first components, with the length of the rest of
the vector, exclude most documents. The high halves of the other components, then the low halves, and finally the
vectors decide about the remaining ones (:mod:`dupmae_ir.search.candidates.rotated_dense`, docs/certificate.md).

The file is the arrays of :func:`sections`, one after the other. For y = rotation x - mean and its byte c,
0 <= c < 256, of which the high half alone stands for the middle of its sixteen values:

    facts (8,) float64           the version of this format; no vector, decoded vector or intermediate value is longer;
                                 how far the rotation is from orthogonal, the Frobenius norm of R R' - I; zeros, so
                                 that what follows does not share a line of a cache
    rotation (d, d), mean (d,), step (d,) float64    y is about step (c - 127.5)
    head (b, 16, 64, 4) uint8    high halves of the first chunk of 128 components, of blocks of 64 rows
    rests (64 b,) float32        the length of y without the first chunk, rounded up
    errors (3, 64 b) float32     the length of the codes' error, rounded up: of the first chunk by high halves, of all
                                 components by high halves, and by bytes
    high (n, 64 (c - 1)) uint8   high halves of the other chunks, by row
    low (n, 64 c) uint8          low halves of all chunks, by row

A byte of a chunk has the halves of components i and i + 64 (:mod:`dupmae_ir.index.postings.code_products`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from dupmae_ir.console import megabytes
from dupmae_ir.device import blas_threads
from dupmae_ir.errors import IndexMismatch, UsageError
from dupmae_ir.index.dense_kinds import ROTATED
from dupmae_ir.index.format.faiss import mapped_vectors
from dupmae_ir.index.format.forward import release
from dupmae_ir.index.format.manifest import sweep_lock
from dupmae_ir.index.postings.compiling import BLOCK, CHUNK, Codes
from dupmae_ir.io.jobs import Job, JobRecord

if TYPE_CHECKING:
    from dupmae_ir.index.format.segment import Segment

FORMAT = 2
PAYS = 100_000
"""Documents from which on encode makes the codes; with fewer, all vectors are multiplied in some milliseconds."""
PART = f"cls/{ROTATED}"
AGAIN = "make them with dupmae-ir index dense"
_SAMPLE = 1 << 16
"""Vectors from which the rotation and the steps are taken."""
_STEP = 0.42 / 16
"""Step of a byte, in standard deviations. Few components are beyond 128 steps; they are cut, and count as error."""
_ROWS = 1024
"""Vectors handled at a time, a multiple of the rows of a block."""
_ZERO_CODE = 127.5
"""The code of a component of 0: codes stand for the middles of 256 steps, half of them below zero."""


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
    chunks = math.ceil(dim / CHUNK)
    blocks = math.ceil(rows / BLOCK)
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
        # Codes of damaged vectors would exclude the wrong documents.
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
            # Unusable codes are replaced even without `overwrite`; their record may say that they are complete.
            self.overwrite = True
        return self

    def build(self) -> Mapping[str, object]:
        """Make and publish the codes; returns their counts with the job's ``output`` and ``status``."""
        new_file = self.begin() / self.target.name
        write_codes(self.segment.vectors, new_file)
        # First the file, then its digest in the manifest. A process killed in between leaves a file that the manifest
        # does not describe, and the next run makes it again.
        result = self.publish(new_file, {})
        self.segment.record_part(PART)
        return {**result, **self._counts()}

    def recorded(self) -> JobRecord:
        """The counts of the existing codes as a job's record."""
        return {
            "made_by": f"dupmae-ir {self.command}",
            "settings": {},
            "inputs": {"index": self.segment.digest},
            "result": self._counts(),
        }

    def _counts(self) -> dict[str, int]:
        return {"documents": self.segment.documents, "bytes": self.target.stat().st_size}

    def write_record(self, made: Path, record: Mapping[str, Any]) -> None:
        """Write nothing: the manifest has the record."""

    def check_replaceable(self) -> None:
        """Accept any existing file: one of this name in an index folder always belongs to this command."""


def add_rotated(folder: Path, rows: int, dim: int) -> None:
    """Make the codes of a segment that is being written to ``folder``."""
    write_codes(mapped_vectors(folder / "cls" / "index", rows, dim), _file(folder))


def write_codes(vectors: np.ndarray, path: Path) -> None:
    """Write the codes of (n, d) float32 vectors, n > 0."""
    rows, dim = vectors.shape
    arrays = _map_arrays(path, rows, dim, "w+")
    # One thread: with several, the order of the sums and so the last digits would depend on their number.
    with blas_threads(1):
        _choose_rotation(vectors, arrays)
        longest = _encode(vectors, arrays) + float(np.linalg.norm(arrays["mean"]))
        rotation = arrays["rotation"]
        deviation = np.linalg.norm(rotation @ rotation.T - np.eye(dim))
    arrays["facts"][:3] = (FORMAT, longest, deviation)


def _choose_rotation(vectors: np.ndarray, arrays: dict[str, np.ndarray]) -> None:
    """Set the rotation, the mean and the steps by a sample of the vectors, which is read twice."""
    rotation = arrays["rotation"]
    mean = arrays["mean"]
    interval = math.ceil(len(vectors) / _SAMPLE)
    count = math.ceil(len(vectors) / interval)

    # Eigenvectors of the second moments, not of the covariance: the mean is subtracted after the rotation. eigh has
    # the largest eigenvalue last.
    moments = sum(x.T @ x for x in _blocks(vectors, interval))
    eigenvalues, directions = np.linalg.eigh(moments)
    rotation[:] = directions.T[::-1]
    mean[:] = rotation @ sum(x.sum(axis=0) for x in _blocks(vectors, interval)) / count

    # The variance of each component; rounding can make it negative.
    deviations = np.sqrt(np.maximum(eigenvalues[::-1] / count - np.square(mean), 0))
    # A component without variance still needs a step that can divide; 1 if no component has any.
    smallest = 1e-6 * deviations.max() or 1.0
    arrays["step"][:] = _STEP * np.maximum(deviations, smallest)


def _blocks(vectors: np.ndarray, interval: int = 1) -> Iterator[np.ndarray]:
    """Every ``interval``-th vector, in float64, some thousand at a time."""
    for start in range(0, len(vectors), _ROWS * interval):
        yield np.asarray(vectors[start : start + _ROWS * interval : interval], np.float64)
        release(vectors)


def _encode(vectors: np.ndarray, arrays: dict[str, np.ndarray]) -> float:
    """Set codes, errors and rests; returns the largest sum of the lengths of a vector, of y and of its error.

    The length of a decoded vector is at most the sum of the lengths of y and of its error.
    """
    rotation = arrays["rotation"]
    mean = arrays["mean"]
    step = arrays["step"]
    longest = 0.0
    for start, x in zip(range(0, len(vectors), _ROWS), _blocks(vectors), strict=True):
        rows = slice(start, start + len(x))
        y = x @ rotation.T - mean
        codes = np.clip(np.floor(y / step), -128, 127) + 128
        # A high half h alone stands for the middle of the codes 16 h to 16 h + 15, of which 127.5 is taken as zero.
        coarse_errors = y - step * (16 * (codes // 16) - 120)
        byte_errors = y - step * (codes - _ZERO_CODE)
        stages = (coarse_errors[:, :CHUNK], coarse_errors, byte_errors)
        for lengths, differences in zip(arrays["errors"], stages, strict=True):
            lengths[rows] = _round_up(np.linalg.norm(differences, axis=1))
        arrays["rests"][rows] = _round_up(np.linalg.norm(y[:, CHUNK:], axis=1))

        high = _pack_chunks(codes // 16)
        _store_by_block(high[:, : CHUNK // 2], arrays["head"][start // BLOCK :])
        arrays["high"][rows] = high[:, CHUNK // 2 :]
        arrays["low"][rows] = _pack_chunks(codes % 16)

        lengths_of_all = (np.linalg.norm(values, axis=1) for values in (x, y, coarse_errors))
        longest = max(longest, float(sum(lengths_of_all).max()))
        # All arrays are views of one mapping, so this releases the pages of all of them.
        release(arrays["low"])
    return longest


def _pack_chunks(halves: np.ndarray) -> np.ndarray:
    """The halves (m, d) of components as the bytes of chunks, (m, 64 c). The last chunk is padded with 0."""
    rows, dim = halves.shape
    padded = np.zeros((rows, math.ceil(dim / CHUNK) * CHUNK), np.uint8)
    padded[:, :dim] = halves
    pairs = padded.reshape(rows, -1, 2, CHUNK // 2)
    return (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(rows, -1)


def _store_by_block(chunk: np.ndarray, blocks: np.ndarray) -> None:
    """Store the (m, 64) bytes of rows in (b, 16, 64, 4) blocks, four components of all rows together."""
    for number, start in enumerate(range(0, len(chunk), BLOCK)):
        fours = chunk[start : start + BLOCK].reshape(-1, 16, 4)
        blocks[number, :, : len(fours)] = fours.transpose(1, 0, 2)


def _round_up(values: np.ndarray) -> np.ndarray:
    """float32 that is not below the float64 values."""
    nearest = values.astype(np.float32)
    return np.where(nearest < values, np.nextafter(nearest, np.float32(np.inf)), nearest)


def _map_arrays(path: Path, rows: int, dim: int, mode: Any) -> dict[str, np.ndarray]:
    """The arrays of the file, mapped."""
    parts = sections(rows, dim)
    sizes = {}
    for name, (kind, shape) in parts.items():
        sizes[name] = np.dtype(kind).itemsize * int(np.prod(shape))
    file = np.memmap(path, np.uint8, mode, shape=(sum(sizes.values()),))
    arrays: dict[str, np.ndarray] = {}
    end = 0
    for name, (kind, shape) in parts.items():
        # Plain arrays: operations on a memmap would give memmaps, and compiled loops want one type.
        section = file[end : end + sizes[name]]
        arrays[name] = section.view(kind).reshape(shape).view(np.ndarray)
        end += sizes[name]
    return arrays


def open_rotated(segment: Segment) -> Rotated:
    """Map the codes of a segment.

    Raises :class:`IndexMismatch`, with the command that makes them again, for codes that are missing or damaged, or
    belong to other vectors.
    """
    segment.check_part(PART, AGAIN)
    return map_codes(_file(segment.path), *segment.vectors.shape)


def map_codes(path: Path, rows: int, dim: int) -> Rotated:
    """The codes of a file that :func:`write_codes` wrote. Raises :class:`IndexMismatch` for one of another version."""
    if np.fromfile(path, np.float64, 1).tolist() != [FORMAT]:
        raise IndexMismatch(f"{path} has codes of another version; {AGAIN}")
    arrays = _map_arrays(path, rows, dim, "r")
    _, longest, deviation, *_ = arrays["facts"].tolist()
    codes = Codes(**{name: arrays[name] for name in Codes._fields})
    return Rotated(
        rotation=arrays["rotation"],
        mean=arrays["mean"],
        step=arrays["step"],
        codes=codes,
        longest=longest,
        deviation=deviation,
    )


def describe_rotated(segment: Segment) -> dict[str, str]:
    """The codes of a segment, if there are any: their size, or why they are unusable."""
    if not segment.has_part(PART):
        return {}
    problem = segment.part_problem(PART)
    if problem:
        return {ROTATED: f"unusable: {problem}; {AGAIN}"}
    return {ROTATED: megabytes(_file(segment.path).stat().st_size)}


def _file(folder: Path) -> Path:
    return folder / f"{PART}.bin"
