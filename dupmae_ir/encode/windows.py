"""A part: what one window of documents became, in one file that exists whole or not at all.

Impacts are stored as the integers that the index will hold: three bytes a posting instead of eight, and the same
bits whether the index is built at once, after a resume, or from shards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dupmae_ir.errors import IndexMismatch
from dupmae_ir.index.folder import HIGHEST_IMPACT, quantise
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.types import Document, Representation

if TYPE_CHECKING:
    import scipy.sparse as sp

CALIBRATION = 512  #: documents in the first window, on which an impact scale is calibrated
HEADROOM = 1.1  #: how far later weights may exceed the largest calibrated one before they are clipped


@dataclass(frozen=True)
class Part:
    """``docids``: n ids. ``cls``: (n, dim) float32 or None. ``impacts``: (n, V) CSR of uint8, sorted columns, or None.

    ``clipped`` and ``dropped`` count the weights that were above 255 or rounded to 0.
    """

    docids: list[str]
    cls: np.ndarray | None
    impacts: sp.csr_matrix | None
    clipped: int = 0
    dropped: int = 0


def windows(documents: Iterable[Document], size: int) -> Iterator[list[Document]]:
    """Lists of ``size`` documents; the first holds at most :data:`CALIBRATION`, so that every shard of a
    collection can calibrate on the very same batch, and the last one what is left."""
    window: list[Document] = []
    limit = window_size(0, size)
    for document in documents:
        window.append(document)
        if len(window) == limit:
            yield window
            window, limit = [], size
    if window:
        yield window


def window_size(number: int, size: int) -> int:
    """Documents in a full window of that number."""
    return size if number else min(size, CALIBRATION)


def documents_digest(documents: Iterable[Document]) -> str:
    """Hex sha256 of ids, titles and texts, each with its length so that no two lists of documents look alike."""
    sha256 = hashlib.sha256()
    for document in documents:
        for piece in document:
            raw = piece.encode()
            sha256.update(b"%d:" % len(raw))
            sha256.update(raw)
    return sha256.hexdigest()


def calibrated_scale(representation: Representation) -> float | None:
    """S = 255 / (1.1 x largest weight), 4 significant digits so that other hardware finds the same number.

    None when there is no weight to go by.
    """
    largest = float(representation.ot.data.max()) if representation.ot is not None and representation.ot.nnz else 0.0
    return float(f"{HIGHEST_IMPACT / (HEADROOM * largest):.4g}") if largest > 0 else None


def quantised(docids: list[str], representation: Representation, scale: float | None) -> Part:
    """The part of one window: vectors as they are, weights as the integers that the index will hold."""
    if representation.ot is None:
        return Part(docids, representation.cls, None)
    if scale is None:
        raise ValueError("OT weights need a scale")
    impacts, clipped = quantise(representation.ot, scale)
    dropped = int(np.count_nonzero(representation.ot.data)) - impacts.nnz
    return Part(docids, representation.cls, impacts, clipped, dropped)


def save_part(path: Path, part: Part, documents: str) -> None:
    """Write atomically; ``documents`` is the :func:`documents_digest` of what it was made from."""
    from safetensors.numpy import save

    tensors: dict[str, np.ndarray] = {"docids": np.frombuffer("\n".join(part.docids).encode(), np.uint8)}
    if part.cls is not None:
        tensors["cls"] = np.ascontiguousarray(part.cls, np.float32)
    header = {"documents": documents, "clipped": str(part.clipped), "dropped": str(part.dropped)}
    if part.impacts is not None:
        width = part.impacts.shape[1]
        header["vocabulary"] = str(width)
        tensors["indptr"] = part.impacts.indptr.astype(np.int64)
        tensors["terms"] = part.impacts.indices.astype(np.uint16 if width <= 1 << 16 else np.uint32)
        tensors["impacts"] = part.impacts.data
    with atomic_write(path, "wb") as f:
        f.write(save(tensors, header))


def part_digest(path: Path) -> str:
    """The documents' digest in a part's header, without reading the rest."""
    with _opened(path) as f:
        return str(f.metadata()["documents"])


def load_part(path: Path) -> Part:
    """Read a part back; it must be one that :func:`save_part` wrote."""
    import scipy.sparse as sp

    with _opened(path) as f:
        header, names = f.metadata(), set(f.keys())
        docids = f.get_tensor("docids").tobytes().decode().split("\n")
        cls = f.get_tensor("cls") if "cls" in names else None
        impacts = None
        if "impacts" in names:
            data, terms, indptr = (f.get_tensor(n) for n in ("impacts", "terms", "indptr"))
            impacts = sp.csr_matrix(
                (data, terms.astype(np.int32), indptr), shape=(len(docids), int(header["vocabulary"]))
            )
    return Part(docids, cls, impacts, int(header["clipped"]), int(header["dropped"]))


def _opened(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="np")
    except SafetensorError as e:
        raise IndexMismatch(f"{path}: damaged part ({e}); remove this file and run the same command again") from None
