"""Codes of the stored vectors that bound their inner products, beside them: cls/rotated.bin and cls/rotated.json.

Vectors are rotated onto the principal components of the collection, which leaves inner products as they are, and
rounded to one byte a component. The first components of a document, with the length of the rest of its vector, exclude
it from most lists; what is left is decided by more components, and then by the vector itself
(:mod:`dupmae_ir.search.candidates.rotated_dense`, docs/certificate.md).

``rotated.bin`` is the arrays of :func:`sections`, one after the other. For y = rotation x - mean, rounded to codes c:

    rotation (d, d), mean (d,), step (d,) float64    y is about step c
    head (g, b, 32, 64) int8     c of the first 128 components, for each 32 of them and block of 64 rows by component
    tail (n, t) int8             c of the other components, by row
    rests (g, 64 b) float32      the length of y without the first 32, 64, 96, 128 components, rounded up
    errors (n,) float32          the length of y - step c, rounded up
    most_errors (b,) float32     the largest error of each block
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from dupmae_ir.console import megabytes
from dupmae_ir.device import blas_threads
from dupmae_ir.errors import IndexMismatch, UsageError
from dupmae_ir.index.config import ROTATED, RotatedRecord
from dupmae_ir.index.format.faiss import mapped_vectors
from dupmae_ir.index.format.forward import release
from dupmae_ir.index.format.integrity import size_problem
from dupmae_ir.index.format.manifest import sweep_lock
from dupmae_ir.index.postings.compiling import BLOCK, GROUP, Codes
from dupmae_ir.io.jobs import Job, JobRecord
from dupmae_ir.io.publishing import read_json_object, write_json

if TYPE_CHECKING:
    from dupmae_ir.index.format.segment import Segment

FORMAT = 1
PAYS = 100_000
"""Documents from which on encode makes the codes; all vectors of fewer are multiplied in some milliseconds."""
PART = f"cls/{ROTATED}"
AGAIN = "make them with dupmae-ir index dense"
_GROUPS = 4
"""Most groups of components that are stored by block; a search for the sum seldom needs more than two."""
_SAMPLE = 1 << 16
"""Vectors from which the rotation and the steps are taken."""
_ROOM = 1.125
"""How far codes reach beyond the sample. What is beyond that is cut, and counts as error."""
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
    """Name -> type and shape of the arrays of ``rotated.bin``, in their order."""
    groups, blocks = min(_GROUPS, -(-dim // GROUP)), -(-rows // BLOCK)
    return {
        "rotation": (np.float64, (dim, dim)),
        "mean": (np.float64, (dim,)),
        "step": (np.float64, (dim,)),
        "head": (np.int8, (groups, blocks, GROUP, BLOCK)),
        "rests": (np.float32, (groups, blocks * BLOCK)),
        "errors": (np.float32, (rows,)),
        "most_errors": (np.float32, (blocks,)),
        "tail": (np.int8, (rows, max(0, dim - GROUP * groups))),
    }


def build_rotated(segment: Segment) -> RotatedRecord:
    """Make the codes of a segment, replacing older ones; returns their description, as in the JSON.

    The same vectors give the same bytes with the same libraries. Memory does not grow with the collection. Raises
    :class:`UsageError` for an index without documents, :class:`IndexMismatch` for one without vectors.
    """
    with RotatedJob(segment, overwrite=True) as job:
        job.build()
        return job.description


class RotatedJob(Job):
    """Makes the codes of a segment. ``cls/rotated.json`` is its record; codes that are unusable are replaced."""

    def __init__(self, segment: Segment, overwrite: bool = False, quiet: bool = True) -> None:
        self.segment = segment
        segment.check_part("cls", everything=True)
        if not len(segment.vectors):
            raise UsageError(f"{segment.path} has no documents, so there is nothing to index")
        super().__init__(
            _files(segment.path)[0],
            "index dense",
            {},
            {"index": segment.digest},
            overwrite=overwrite or not _usable(segment),
            resumable=False,
            quiet=quiet,
        )
        self.description: RotatedRecord  #: as written

    def __enter__(self) -> Self:
        """As :meth:`Job.__enter__`; a killed run may also have left the lock of the index's record."""
        super().__enter__()
        sweep_lock(self.segment.index)
        return self

    def build(self) -> Mapping[str, object]:
        """Make and publish the codes; returns their description with the job's ``output`` and ``status``."""
        made = self.begin() / self.target.name
        description = write_codes(self.segment.vectors, self.segment.digest, made)
        for old in reversed(_files(self.segment.path)):  # the record first: without it the codes are unfinished
            old.unlink(missing_ok=True)
        result = self.publish(made, {}, description)
        self.segment.record_part(PART)
        return {**result, **self.description}

    def recorded(self) -> JobRecord:
        """The description of the existing codes as a job's record."""
        meta = read_record(self.segment)
        return {
            "made_by": f"dupmae-ir {self.command}",
            "settings": {},
            "inputs": {"index": meta["digest"]},
            "result": meta,
        }

    def write_record(self, made: Path, record: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Write ``rotated.json``."""
        self.description = cast("RotatedRecord", dict(record))
        write_json(_files(self.segment.path)[1], record)

    def check_replaceable(self) -> None:
        """Files of this name in an index folder are always this command's."""


def add_rotated(folder: Path, rows: int, dim: int, digest: str) -> None:
    """Make the codes of a segment that is being written to ``folder`` and has the index id ``digest``."""
    data, described = _files(folder)
    write_json(described, write_codes(mapped_vectors(folder / "cls" / "index", rows, dim), digest, data))


def write_codes(vectors: np.ndarray, digest: str, path: Path) -> RotatedRecord:
    """Write the codes of the (n, d) float32 vectors, n > 0, of the segment ``digest``; returns their record."""
    rows, dim = vectors.shape
    arrays = _arrays(path, rows, dim, "w+")
    with blas_threads(1):
        _choose(vectors, arrays)
        longest = _encode(vectors, arrays)
    rotation = arrays["rotation"]
    return {
        "format": FORMAT,
        "documents": rows,
        "dim": dim,
        "digest": digest,
        "longest": longest + float(np.linalg.norm(arrays["mean"])),
        "deviation": float(np.linalg.norm(rotation @ rotation.T - np.eye(dim))),
        "bytes": path.stat().st_size,
    }


def _choose(vectors: np.ndarray, arrays: dict[str, np.ndarray]) -> None:
    """Set the rotation, the mean and the steps by a sample of the vectors, which is read twice."""
    rotation, mean, step = arrays["rotation"], arrays["mean"], arrays["step"]
    every = -(-len(vectors) // _SAMPLE)
    rotation[:] = np.linalg.eigh(sum(x.T @ x for x in _blocks(vectors, every)))[1].T[::-1]
    turned = [(y.sum(axis=0), y.min(axis=0), y.max(axis=0)) for y in (x @ rotation.T for x in _blocks(vectors, every))]
    sums, lowest, highest = (np.stack(values) for values in zip(*turned, strict=True))
    mean[:] = sums.sum(axis=0) / -(-len(vectors) // every)
    step[:] = np.maximum(highest.max(axis=0) - mean, mean - lowest.min(axis=0)) * (_ROOM / 127)
    step[step == 0] = 1


def _blocks(vectors: np.ndarray, every: int = 1) -> Iterator[np.ndarray]:
    """Each vector, or one of every few, in float64, some thousand at a time."""
    for start in range(0, len(vectors), _ROWS * every):
        yield np.asarray(vectors[start : start + _ROWS * every : every], np.float64)
        release(vectors)


def _encode(vectors: np.ndarray, arrays: dict[str, np.ndarray]) -> float:
    """Set codes, errors and rests; returns the largest sum of the lengths of a vector, of y and of its error."""
    rotation, mean, step = arrays["rotation"], arrays["mean"], arrays["step"]
    longest, codes, rows = 0.0, arrays["head"], len(vectors)
    for start, x in zip(range(0, rows, _ROWS), _blocks(vectors), strict=True):
        here = slice(start, start + len(x))
        y = x @ rotation.T - mean
        rounded = np.clip(np.rint(y / step), -127, 127)
        lost = np.linalg.norm(y - step * rounded, axis=1)
        arrays["errors"][here] = _up(lost)
        arrays["tail"][here] = rounded[:, GROUP * len(codes) :]
        for group in range(len(codes)):
            arrays["rests"][group, here] = _up(np.linalg.norm(y[:, GROUP * (group + 1) :], axis=1))
            _by_block(rounded[:, GROUP * group : GROUP * (group + 1)], codes[group, start // BLOCK :])
        longest = max(longest, float((np.linalg.norm(x, axis=1) + np.linalg.norm(y, axis=1) + lost).max()))
        release(codes)
    arrays["most_errors"][:] = np.maximum.reduceat(arrays["errors"], np.arange(0, rows, BLOCK))
    return longest


def _by_block(rounded: np.ndarray, blocks: np.ndarray) -> None:
    """Store (m, c) codes of rows, c at most 32, in (b, 32, 64) blocks; what is missing stays 0."""
    for number, start in enumerate(range(0, len(rounded), BLOCK)):
        block = rounded[start : start + BLOCK].T
        blocks[number, : block.shape[0], : block.shape[1]] = block


def _up(values: np.ndarray) -> np.ndarray:
    """float32 that is not below the float64 values."""
    near = values.astype(np.float32)
    return np.where(near < values, np.nextafter(near, np.float32(np.inf)), near)


def _arrays(path: Path, rows: int, dim: int, mode: Any) -> dict[str, np.ndarray]:
    """The arrays of the file, mapped."""
    parts = sections(rows, dim)
    sizes = {name: np.dtype(kind).itemsize * int(np.prod(shape)) for name, (kind, shape) in parts.items()}
    whole, arrays, end = np.memmap(path, np.uint8, mode, shape=(sum(sizes.values()),)), dict[str, np.ndarray](), 0
    for name, (kind, shape) in parts.items():
        arrays[name] = whole[end : end + sizes[name]].view(kind).reshape(shape).view(np.ndarray)
        end += sizes[name]
    return arrays


def open_rotated(segment: Segment) -> Rotated:
    """Map the codes of a segment. Raises :class:`IndexMismatch`, with the command that makes them again, for codes that
    are missing, damaged, or of other vectors."""
    segment.vectors  # noqa: B018 (the one-line refusal of an index without vectors)
    meta = read_record(segment)
    segment.check_part(PART, AGAIN)
    return map_codes(_files(segment.path)[0], meta)


def map_codes(path: Path, record: RotatedRecord) -> Rotated:
    """The codes of a file that :func:`write_codes` wrote and described."""
    arrays = _arrays(path, record["documents"], record["dim"], "r")
    first = {name: arrays.pop(name) for name in ("rotation", "mean", "step")}
    return Rotated(**first, codes=Codes(**arrays), longest=record["longest"], deviation=record["deviation"])


def read_record(segment: Segment) -> RotatedRecord:
    """The JSON of the codes, checked against the index and the size of the data; raises as :func:`open_rotated`."""
    data, described = _files(segment.path)
    if not (meta := read_json_object(described)):
        raise IndexMismatch(f"{segment.path} has no (finished) {ROTATED} codes; {AGAIN}")
    if problem := _stale(meta, segment) or size_problem(data, meta["bytes"]):
        raise IndexMismatch(f"{problem}; {AGAIN}")
    return cast("RotatedRecord", meta)


def describe_rotated(segment: Segment) -> dict[str, str]:
    """The codes of a segment, if there are any: their size, or why they are unusable."""
    if not any(path.exists() for path in _files(segment.path)):
        return {}
    try:
        size = megabytes(read_record(segment)["bytes"])
        if problem := segment.part_problem(PART):
            raise IndexMismatch(f"{problem}; {AGAIN}")
    except IndexMismatch as e:
        return {ROTATED: f"unusable: {e}"}
    return {ROTATED: size}


def _usable(segment: Segment) -> bool:
    try:
        open_rotated(segment)
    except IndexMismatch:
        return False
    return True


def _files(folder: Path) -> tuple[Path, Path]:
    return folder / f"{PART}.bin", folder / f"{PART}.json"


def _stale(meta: Mapping[str, Any], segment: Segment) -> str | None:
    expected = {"format": FORMAT, "digest": segment.digest, "documents": segment.documents, "dim": segment.dim}
    found = {name: meta.get(name) for name in expected}
    if found == expected and {type(meta.get(name)) for name in ("longest", "deviation", "bytes")} <= {int, float}:
        return None
    if found.get("digest") != expected["digest"]:
        return f"the {ROTATED} codes of {segment.path} were made from other vectors"
    return f"{segment.path / PART}.json does not describe {ROTATED} codes of this folder"
