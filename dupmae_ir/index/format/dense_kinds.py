"""Smaller dense indexes beside the flat one, built from its stored vectors: cls/KIND.faiss and cls/KIND.json.

    sq8        one byte a dimension, every code read for every query: a quarter of the bytes
    ivf-sq8    the same codes in lists around centroids, of which a search reads the nearest
    hnsw-sq8   the same codes in a graph of neighbours, which a search traverses

They propose candidates; reported scores are always computed from the stored float32 vectors. For ``sq8`` the error of
the codes is known (``error`` in the JSON), so lists can be certified exact; the other two are approximate.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Self, cast

import faiss
import numpy as np

from dupmae_ir.console import megabytes
from dupmae_ir.device import faiss_threads, processors
from dupmae_ir.errors import IndexMismatch, UsageError
from dupmae_ir.index.config import KINDS, KindRecord, Parameters
from dupmae_ir.index.format.faiss import read_index
from dupmae_ir.index.format.integrity import size_problem
from dupmae_ir.index.format.manifest import sweep_lock
from dupmae_ir.io.jobs import Job, JobRecord
from dupmae_ir.io.publishing import write_json
from dupmae_ir.registry import lookup

if TYPE_CHECKING:
    from dupmae_ir.index.format.segment import Segment

FORMAT = 1
_BLOCK = 8192
"""Vectors handled at a time."""
_FEWEST_PER_LIST = 39
"""faiss's own minimum for training a centroid."""
_TRAINED_PER_LIST = 64
"""Most vectors that a centroid is trained on."""
_SEED = 0


class Chosen(NamedTuple):
    """A setting and why it has that value."""

    value: int
    reason: str


@dataclass(frozen=True)
class DenseKind:
    """An opened kind: its faiss index (codes mapped from the file where faiss can) and its JSON."""

    kind: str
    index: faiss.Index
    meta: KindRecord


def choose(kind: str, documents: int, given: Parameters) -> dict[str, Chosen]:
    """The settings of ``kind`` for a number of documents: as given, or automatic with the reason.

    Raises :class:`UnknownName` for an unknown kind, :class:`UsageError` for settings of another kind or out of range.
    """
    mine, _ = lookup("kind of dense index", kind, KINDS)
    for owner, (names, _) in KINDS.items():
        for name in names:
            if name not in mine and getattr(given, name):
                raise UsageError(f"`{name}` applies only with `kind` {owner}")
    if given.nlist > documents:
        raise UsageError(f"`nlist` {given.nlist:,} is more than the {documents:,} documents; give fewer, or none")
    if given.m == 1:
        raise UsageError("`m` must be at least 2: a graph needs more than one neighbour")
    return {
        name: Chosen(value, "given") if (value := getattr(given, name)) else _automatic(name, documents)
        for name in mine
    }


def search_effort(meta: KindRecord) -> Chosen | None:
    """What ``--nprobe`` or ``--ef-search`` is unless given; None for a kind that reads all codes."""
    if meta["kind"] == "ivf-sq8":
        nlist = meta["parameters"]["nlist"]
        return Chosen(min(nlist, max(64, round(nlist / 16))), f"1/16 of {nlist:,} lists, at least 64")
    if meta["kind"] == "hnsw-sq8":
        return Chosen(128, "128; the depth of the candidate list, where that is more")
    return None


def build_kind(segment: Segment, kind: str, parameters: Parameters | None = None) -> KindRecord:
    """Build ``kind`` from the vectors of ``segment``, replacing an older one; returns its description, as in the JSON.

    Memory for ``sq8`` does not grow with the collection; for the others it holds the codes. The same vectors give the
    same bytes with the same faiss and threads, except (``repeatable``) ``hnsw-sq8`` with more than one thread: faiss's
    threads link documents in the order in which they arrive. Raises :class:`UsageError` for an index without documents
    or settings that do not fit, :class:`IndexMismatch` for one without vectors.
    """
    with KindJob(segment, kind, parameters or Parameters(), overwrite=True) as job:
        job.build()
        return job.description


class KindJob(Job):
    """Builds one kind. ``I/cls/KIND.json`` is its record; an existing kind that is unusable is replaced."""

    ADVICE = "Pass `overwrite` to replace it"

    def __init__(
        self, segment: Segment, kind: str, given: Parameters, overwrite: bool = False, quiet: bool = True
    ) -> None:
        self.segment, self.kind, self.given = segment, kind, given
        segment.check_part("cls", everything=True)
        self.chosen = choose(kind, len(segment.vectors), given)
        if not len(segment.vectors):
            raise UsageError(f"{segment.path} has no documents, so there is nothing to index")
        super().__init__(
            _files(segment.path, kind)[0],
            f"index dense --kind {kind}",
            {name: value for name, (value, _) in self.chosen.items()},
            {"index": segment.digest},
            overwrite=overwrite or not _usable(segment, kind),
            resumable=False,
            quiet=quiet,
        )
        self.description: KindRecord  #: as written

    def __enter__(self) -> Self:
        """As :meth:`Job.__enter__`; a killed run may also have left the lock of the index's record."""
        super().__enter__()
        sweep_lock(self.segment.index)
        return self

    def build(self) -> Mapping[str, object]:
        """Build and publish the kind; returns its description with the job's ``output`` and ``status``."""
        made = self.begin() / self.target.name
        threads = self.given.threads or processors()
        with faiss_threads(threads), open(made, "wb") as f:
            error = None
            if self.kind == "sq8":
                error = _write_sq8(self.segment.vectors, f)
            else:
                build = _build_ivf if self.kind == "ivf-sq8" else _build_hnsw
                built = build(self.segment.vectors, **self.settings)
                faiss.write_index(built, faiss.PyCallbackIOWriter(f.write))  # type: ignore[attr-defined]  # not in faiss's stub
        size = made.stat().st_size
        data, described = _files(self.segment.path, self.kind)
        for old in (described, data):  # the record first: without it the kind is unfinished
            old.unlink(missing_ok=True)
        description: KindRecord = {
            "format": FORMAT,
            "kind": self.kind,
            "parameters": {name: value for name, (value, _) in self.chosen.items()},
            "reasons": {name: reason for name, (_, reason) in self.chosen.items()},
            "documents": len(self.segment.vectors),
            "dim": int(self.segment.vectors.shape[1]),
            "digest": self.segment.digest,
            "error": error,
            "bytes": size,
            "threads": self.given.threads,
            "repeatable": self.kind != "hnsw-sq8" or self.given.threads == 1,
            "faiss": faiss.__version__,
        }
        result = self.publish(made, {}, description)
        self.segment.record_part(f"cls/{self.kind}")
        return {**result, **self.description}

    def recorded(self) -> JobRecord:
        """The description of the existing kind as a job's record."""
        meta = read_meta(self.segment, self.kind)
        return {
            "made_by": f"dupmae-ir {self.command}",
            "settings": meta["parameters"],
            "inputs": {"index": meta["digest"]},
            "result": meta,
        }

    def write_record(self, made: Path, record: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Write ``KIND.json``."""
        self.description = cast("KindRecord", dict(record))
        write_json(_files(self.segment.path, self.kind)[1], record)

    def check_replaceable(self) -> None:
        """Files of this name in an index folder are always this command's."""


def open_kind(segment: Segment, kind: str) -> DenseKind:
    """Open ``kind`` of ``segment``. Raises :class:`IndexMismatch`, with the command that rebuilds it, for one that is
    missing, truncated, unreadable, or built from other vectors."""
    lookup("kind of dense index", kind, KINDS)
    segment.vectors  # noqa: B018 (the one-line refusal of an index without vectors)
    data, _ = _files(segment.path, kind)
    meta, again = read_meta(segment, kind), _again(kind)
    segment.check_part(f"cls/{kind}", again)
    try:
        index = read_index(data)
    except RuntimeError:
        raise IndexMismatch(f"{data} is not a faiss index; {again}") from None
    if (index.ntotal, index.d, type(index).__name__) != (segment.documents, segment.dim, _TYPES[kind]):
        raise IndexMismatch(f"{data} is not the {kind} index of {segment.path}; {again}")
    return DenseKind(kind, index, meta)


def read_meta(segment: Segment, kind: str) -> KindRecord:
    """The JSON of ``kind``, checked against the index and the size of the data; raises as :func:`open_kind`."""
    data, described = _files(segment.path, kind)
    again = _again(kind)
    try:
        meta = json.loads(described.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise IndexMismatch(f"{segment.path} has no (finished) {kind} index; {again}") from None
    except ValueError as e:
        raise IndexMismatch(f"{described} cannot be read: {e}; {again}") from None
    if problem := _stale(meta, segment, kind) or size_problem(data, meta["bytes"]):
        raise IndexMismatch(f"{problem}; {again}")
    return cast("KindRecord", meta)


def describe_kinds(segment: Segment) -> dict[str, str]:
    """The kinds of a segment, each with its size or why it is unusable."""
    found: dict[str, str] = {}
    for kind in KINDS:
        if any(path.exists() for path in _files(segment.path, kind)):
            try:
                found[kind] = megabytes(read_meta(segment, kind)["bytes"])
                if problem := segment.part_problem(f"cls/{kind}"):
                    raise IndexMismatch(f"{problem}; {_again(kind)}")
            except IndexMismatch as e:
                found[kind] = f"unusable: {e}"
    return found


def _usable(segment: Segment, kind: str) -> bool:
    try:
        open_kind(segment, kind)
    except IndexMismatch:
        return False
    return True


def _again(kind: str) -> str:
    return f"make it with dupmae-ir index dense, kind {kind}"


def _files(folder: Path, kind: str) -> tuple[Path, Path]:
    return folder / "cls" / f"{kind}.faiss", folder / "cls" / f"{kind}.json"


def _stale(meta: Any, segment: Segment, kind: str) -> str | None:
    expected = {
        "format": FORMAT,
        "kind": kind,
        "digest": segment.digest,
        "documents": segment.documents,
        "dim": segment.dim,
    }
    found = {name: meta.get(name) for name in expected} if isinstance(meta, dict) else {}
    if found == expected and {"parameters", "error"} <= meta.keys() and isinstance(meta.get("bytes"), int):
        return None
    if found.get("digest") != expected["digest"]:
        return f"the {kind} index of {segment.path} was built from other vectors"
    return f"{segment.path / 'cls' / kind}.json does not describe a {kind} index of this folder"


def _automatic(name: str, documents: int) -> Chosen:
    if name == "nlist":
        return Chosen(
            max(1, min(round(4 * math.sqrt(documents)), documents // _FEWEST_PER_LIST)),
            f"4 x the square root of {documents:,} documents, at least {_FEWEST_PER_LIST} documents a list",
        )
    if name == "m":
        return Chosen(32, "32 neighbours: faiss's choice for vectors of some hundred dimensions")
    return Chosen(100, "100 candidates: more than faiss's 40; 200 take twice as long")


def _blocks(vectors: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(vectors), _BLOCK):
        yield np.ascontiguousarray(vectors[start : start + _BLOCK])


def _ranges(vectors: np.ndarray) -> np.ndarray:
    """(2, dim): the minimum and maximum of each dimension. A quantiser trained on these two rows has that range."""
    least, most = vectors[0].copy(), vectors[0].copy()
    for block in _blocks(vectors):
        np.minimum(least, block.min(axis=0), out=least)
        np.maximum(most, block.max(axis=0), out=most)
    return np.stack([least, most])


def _write_sq8(vectors: np.ndarray, file: IO[bytes]) -> float:
    """An ``IndexScalarQuantizer`` as faiss writes it, block by block; returns max |x - decoded(x)| over all rows.

    As in a flat file the header comes first: the row count is at byte 8, the byte count at the end.
    """
    rows, dim = vectors.shape
    index = faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
    index.train(_ranges(vectors))
    head = bytearray(faiss.serialize_index(index).tobytes())
    struct.pack_into("<q", head, 8, rows)
    struct.pack_into("<Q", head, len(head) - 8, rows * dim)
    file.write(bytes(head))
    error = 0.0
    for block in _blocks(vectors):
        codes = index.sa_encode(block)
        file.write(codes.tobytes())
        lost = block.astype(np.float64) - index.sa_decode(codes)
        error = max(error, float(np.vecdot(lost, lost).max()))
    return math.sqrt(error) * (1 + 1e-12)  # float64's own rounding


def _build_ivf(vectors: np.ndarray, nlist: int) -> faiss.Index:
    rows, dim = vectors.shape
    kind, metric = faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
    index = faiss.IndexIVFScalarQuantizer(faiss.IndexFlatIP(dim), dim, nlist, kind, metric)
    index.cp.min_points_per_centroid = 1  # no warning on standard error
    index.cp.seed = _SEED
    trained = min(rows, _TRAINED_PER_LIST * nlist)
    sample = np.sort(np.random.default_rng(_SEED).choice(rows, trained, replace=False))
    index.train(np.ascontiguousarray(vectors[sample]))
    for block in _blocks(vectors):
        index.add(block)
    return index


def _build_hnsw(vectors: np.ndarray, m: int, ef_construction: int) -> faiss.Index:
    kind, metric = faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
    index = faiss.IndexHNSWSQ(vectors.shape[1], kind, m, metric)  # type: ignore[arg-type]  # faiss's stub is wrong
    index.hnsw.efConstruction = ef_construction
    index.train(_ranges(vectors))
    for block in _blocks(vectors):
        index.add(block)
    return index


_TYPES = {"sq8": "IndexScalarQuantizer", "ivf-sq8": "IndexIVFScalarQuantizer", "hnsw-sq8": "IndexHNSWSQ"}
