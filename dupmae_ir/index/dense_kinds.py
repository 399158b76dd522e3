"""Smaller dense indexes beside the flat one, built from its stored vectors: I/cls/KIND.faiss and I/cls/KIND.json.

    sq8        one byte a dimension, every code read for every question: a quarter of the bytes
    ivf-sq8    the same codes in lists around centroids, of which a search reads the nearest
    hnsw-sq8   the same codes in a graph of neighbours, through which a search walks

They propose candidates; what is reported is always computed from the stored float32 vectors. For ``sq8`` the error of
the codes is known (``error`` in the JSON), so lists can be certified exact; the other two are approximate.
The JSON is written last and removed first, so a half-built kind is none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dupmae_ir.console import megabytes
from dupmae_ir.device import faiss_threads
from dupmae_ir.errors import IndexMismatch, UsageError
from dupmae_ir.index.faiss import read_flat
from dupmae_ir.io.locks import exclusive
from dupmae_ir.io.publishing import atomic_write, write_json
from dupmae_ir.registry import lookup

if TYPE_CHECKING:
    from dupmae_ir.index.folder import IndexFolder

FORMAT = 1
FLAT = "flat"
KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "sq8": ((), ()),
    "ivf-sq8": (("nlist",), ("nprobe",)),
    "hnsw-sq8": (("m", "ef_construction"), ("ef_search",)),
}
"""Kind -> the settings that shape it when it is built, and when it is searched."""

_BLOCK = 8192
"""Vectors handled at a time."""
_FEWEST_PER_LIST = 39
"""faiss's own limit for training a centroid."""
_TRAINED_PER_LIST = 64
"""Vectors a centroid is trained on at most."""
_SEED = 0


@dataclass(frozen=True)
class Parameters:
    """What shapes a kind when it is built; 0 is automatic (see :func:`choose`)."""

    nlist: int = 0  #: ivf-sq8: lists
    m: int = 0  #: hnsw-sq8: neighbours of a document
    ef_construction: int = 0  #: hnsw-sq8: candidates looked at to find them
    threads: int = 1  #: faiss's, 0 for all; with more than one, two hnsw-sq8 graphs need not be alike


class Chosen(NamedTuple):
    """A setting and why it has that value."""

    value: int
    reason: str


@dataclass(frozen=True)
class DenseKind:
    """An opened kind: its faiss index (codes mapped from the file where faiss can) and its JSON."""

    kind: str
    index: Any
    meta: dict[str, Any]


def choose(kind: str, documents: int, given: Parameters) -> dict[str, Chosen]:
    """The settings of ``kind`` for so many documents: as given, or automatic with the reason.

    Raises :class:`UnknownName` for a kind that there is not, :class:`UsageError` for settings of another kind or
    out of range.
    """
    mine, _ = lookup("kind of dense index", kind, KINDS)
    for owner, (names, _) in KINDS.items():
        for name in names:
            if name not in mine and getattr(given, name):
                raise UsageError(f"--{name.replace('_', '-')} belongs to --kind {owner}")
    for name in (*mine, "threads"):
        if getattr(given, name) < 0:
            raise UsageError(f"--{name.replace('_', '-')} must be 0 or more, got {getattr(given, name)}")
    if given.nlist > documents:
        raise UsageError(f"--nlist {given.nlist:,} is more than the {documents:,} documents; name fewer, or none")
    if given.m == 1:
        raise UsageError("--m must be at least 2: one neighbour makes no graph")
    return {
        name: Chosen(value, "given") if (value := getattr(given, name)) else _automatic(name, documents)
        for name in mine
    }


def search_effort(meta: dict[str, Any]) -> Chosen | None:
    """What ``--nprobe`` or ``--ef-search`` is unless given; None for a kind that reads everything."""
    if meta["kind"] == "ivf-sq8":
        nlist = meta["parameters"]["nlist"]
        return Chosen(min(nlist, max(64, round(nlist / 16))), f"1/16 of {nlist:,} lists, at least 64")
    if meta["kind"] == "hnsw-sq8":
        return Chosen(128, "128; the depth of the candidate list, where that is more")
    return None


def build_kind(folder: IndexFolder, kind: str, parameters: Parameters | None = None) -> dict[str, Any]:
    """Build ``kind`` from the vectors of ``folder``, replacing an older one; returns what its JSON says.

    Memory for ``sq8`` does not grow with the collection; for the others it holds the codes. The same vectors make the
    same bytes with the same faiss and threads, which is not promised (``repeatable``) of ``hnsw-sq8`` with more than
    one thread: faiss's threads link documents in whatever order they come. Raises :class:`UsageError` for an index
    without documents or settings that do not fit, :class:`IndexMismatch` for one without vectors.
    """
    import faiss

    vectors, given = folder.vectors, parameters or Parameters()
    chosen = choose(kind, len(vectors), given)
    if not len(vectors):
        raise UsageError(f"{folder.path} holds no documents, so there is nothing to index")
    data, described = _files(folder.path, kind)
    settings = {name: value for name, (value, _) in chosen.items()}
    with exclusive(data.with_name(f".{kind}.lock"), f"building {data}"):
        described.unlink(missing_ok=True)
        threads = given.threads or faiss.omp_get_max_threads()
        with faiss_threads(threads), atomic_write(data, "wb", encoding=None) as f:
            error: float | None = None
            if kind == "sq8":
                error = _write_sq8(vectors, f)
            else:
                writer = faiss.PyCallbackIOWriter(f.write)  # type: ignore[attr-defined]  # not in faiss's stub
                faiss.write_index(_BUILD[kind](vectors, **settings), writer)
        meta = {
            "format": FORMAT,
            "kind": kind,
            "parameters": settings,
            "reasons": {name: reason for name, (_, reason) in chosen.items()},
            "documents": len(vectors),
            "dim": int(vectors.shape[1]),
            "digest": folder.meta["digest"],
            "error": error,
            "bytes": data.stat().st_size,
            "threads": given.threads,
            "repeatable": kind != "hnsw-sq8" or given.threads == 1,
            "faiss": faiss.__version__,
        }
        write_json(described, meta)
    return meta


def open_kind(folder: IndexFolder, kind: str) -> DenseKind:
    """Open ``kind`` of ``folder``. Raises :class:`IndexMismatch`, with the command that makes it anew, for one that
    is missing, cut short, unreadable, or built from other vectors."""
    lookup("kind of dense index", kind, KINDS)
    folder.faiss_index  # noqa: B018 (the one-line refusal of an index without vectors)
    data, _ = _files(folder.path, kind)
    meta, again = read_meta(folder, kind), _again(folder, kind)
    try:
        index = read_flat(data)
    except RuntimeError:
        raise IndexMismatch(f"{data} is not what faiss wrote; {again}") from None
    if (index.ntotal, index.d, type(index).__name__) != (folder.documents, folder.dim, _TYPES[kind]):
        raise IndexMismatch(f"{data} is not the {kind} index of {folder.path}; {again}")
    return DenseKind(kind, index, meta)


def read_meta(folder: IndexFolder, kind: str) -> dict[str, Any]:
    """What the JSON of ``kind`` says, and the file beside it has that size; raises as :func:`open_kind`."""
    data, described = _files(folder.path, kind)
    again = _again(folder, kind)
    try:
        meta = json.loads(described.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise IndexMismatch(f"{folder.path} holds no (finished) {kind} index; {again}") from None
    except ValueError as e:
        raise IndexMismatch(f"{described} cannot be read: {e}; {again}") from None
    if problem := _stale(meta, folder, kind) or _truncated(data, meta):
        raise IndexMismatch(f"{problem}; {again}")
    return dict(meta)


def built(folder: IndexFolder) -> dict[str, str]:
    """Kinds that are there, and their size in words or why they are of no use."""
    found: dict[str, str] = {}
    for kind in KINDS:
        if any(path.exists() for path in _files(folder.path, kind)):
            try:
                found[kind] = megabytes(read_meta(folder, kind)["bytes"])
            except IndexMismatch as e:
                found[kind] = f"unusable: {e}"
    return found


def _again(folder: IndexFolder, kind: str) -> str:
    return f"make it with: dupmae-ir index dense --index {folder.path} --kind {kind}"


def _files(folder: Path, kind: str) -> tuple[Path, Path]:
    return folder / "cls" / f"{kind}.faiss", folder / "cls" / f"{kind}.json"


def _stale(meta: Any, folder: IndexFolder, kind: str) -> str | None:
    wanted = {
        "format": FORMAT,
        "kind": kind,
        "digest": folder.meta["digest"],
        "documents": folder.documents,
        "dim": folder.dim,
    }
    found = {name: meta.get(name) for name in wanted} if isinstance(meta, dict) else {}
    if found == wanted and {"parameters", "error", "bytes"} <= meta.keys():
        return None
    if found.get("digest") != wanted["digest"]:
        return f"the {kind} index of {folder.path} was built from other vectors"
    return f"{folder.path / 'cls' / kind}.json does not describe the {kind} index that is wanted"


def _truncated(data: Path, meta: dict[str, Any]) -> str | None:
    size = data.stat().st_size if data.is_file() else None
    if size is None:
        return f"{data} is missing"
    return None if size == meta["bytes"] else f"{data} holds {size:,} bytes, its JSON says {meta['bytes']:,}"


def _automatic(name: str, documents: int) -> Chosen:
    if name == "nlist":
        return Chosen(
            max(1, min(round(4 * math.sqrt(documents)), documents // _FEWEST_PER_LIST)),
            f"4 x the square root of {documents:,} documents, at least {_FEWEST_PER_LIST} documents a list",
        )
    if name == "m":
        return Chosen(32, "32 neighbours: what faiss takes for vectors of some hundred dimensions")
    return Chosen(100, "100 candidates: between faiss's 40 and twice as many as build twice as long")


def _blocks(vectors: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(vectors), _BLOCK):
        yield np.ascontiguousarray(vectors[start : start + _BLOCK])


def _ranges(vectors: np.ndarray) -> np.ndarray:
    """(2, dim): the least and the greatest of each dimension. A quantiser trained on these two has exactly them."""
    least, most = vectors[0].copy(), vectors[0].copy()
    for block in _blocks(vectors):
        np.minimum(least, block.min(axis=0), out=least)
        np.maximum(most, block.max(axis=0), out=most)
    return np.stack([least, most])


def _write_sq8(vectors: np.ndarray, file: Any) -> float:
    """An ``IndexScalarQuantizer`` as faiss writes it, block by block; returns max |x - decoded(x)| over all rows.

    As in a flat file the header comes first, the row count after four letters and a width, the byte count last.
    """
    import struct

    import faiss

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


def _build_ivf(vectors: np.ndarray, nlist: int) -> Any:
    import faiss

    rows, dim = vectors.shape
    kind, metric = faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
    index = faiss.IndexIVFScalarQuantizer(faiss.IndexFlatIP(dim), dim, nlist, kind, metric)
    index.cp.min_points_per_centroid = 1  # no advice on standard error
    index.cp.seed = _SEED
    wanted = min(rows, _TRAINED_PER_LIST * nlist)
    sample = np.sort(np.random.default_rng(_SEED).choice(rows, wanted, replace=False))
    index.train(np.ascontiguousarray(vectors[sample]))
    for block in _blocks(vectors):
        index.add(block)
    return index


def _build_hnsw(vectors: np.ndarray, m: int, ef_construction: int) -> Any:
    import faiss

    kind, metric = faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
    index = faiss.IndexHNSWSQ(vectors.shape[1], kind, m, metric)  # type: ignore[arg-type]  # faiss's stub is wrong
    index.hnsw.efConstruction = ef_construction
    index.train(_ranges(vectors))
    for block in _blocks(vectors):
        index.add(block)
    return index


_BUILD: dict[str, Any] = {"ivf-sq8": _build_ivf, "hnsw-sq8": _build_hnsw}
_TYPES = {"sq8": "IndexScalarQuantizer", "ivf-sq8": "IndexIVFScalarQuantizer", "hnsw-sq8": "IndexHNSWSQ"}
