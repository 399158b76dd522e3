"""Parts: encoded windows, saved until the index is built from them.

``.I.work/part-000000.safetensors`` and so on are the finished windows of an index ``I``, each a file that exists whole
or not at all; ``parts.json`` records the impact scale. Impacts are stored as the integers of the index: three bytes a
posting instead of eight, and the same bits whether the index is built at once, after a resumption, or from shards.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from dupmae_ir.errors import IndexMismatch, OutputError
from dupmae_ir.index.changes.builder import IndexBuilder
from dupmae_ir.index.format.integrity import DIGEST_BYTES
from dupmae_ir.index.format.manifest import Meta
from dupmae_ir.index.format.quantisation import Scale, dropped, quantise
from dupmae_ir.index.format.texts import StoredDocument, pack, unpack
from dupmae_ir.io.publishing import atomic_write, disk_full, read_json_object, write_json
from dupmae_ir.types import Representation

STATE = "parts.json"


@dataclass(frozen=True)
class Part:
    """``docids``: n ids. ``cls``: (n, dim) float32 or None. ``impacts``: (n, V) CSR of uint8, sorted columns, or None.

    ``clipped`` and ``dropped`` count the weights that were above 255 and that rounded to 0. ``documents``: titles,
    texts and metadata, where the index stores them. ``digests``: one for each document
    (:func:`~dupmae_ir.encode.windows.document_digest`).
    """

    docids: list[str]
    cls: np.ndarray | None
    impacts: sp.csr_matrix | None
    clipped: int = 0
    dropped: int = 0
    documents: list[StoredDocument] | None = None
    digests: list[bytes] | None = None


def quantised(
    docids: list[str],
    representation: Representation,
    scale: float | None,
    documents: list[StoredDocument] | None = None,
) -> Part:
    """The part of one window: vectors unchanged, weights as impacts.

    Raises :class:`IndexMismatch` for a value that is not finite.
    """
    if representation.cls is not None and len(wrong := np.flatnonzero(~np.isfinite(representation.cls).all(axis=1))):
        raise IndexMismatch(
            f"the [CLS] vector of document {docids[wrong[0]]!r} is not finite; check the model's weights and --dtype"
        )
    if representation.ot is None:
        return Part(docids, representation.cls, None, documents=documents)
    if scale is None:
        raise ValueError("OT weights need a scale")
    impacts, clipped = quantise(representation.ot, scale)
    return Part(docids, representation.cls, impacts, clipped, dropped(representation.ot, impacts), documents)


class PartStore:
    """The parts in a job's work folder. The caller holds the lock of the target."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._state = read_json_object(folder / STATE)
        if "id" not in self._state:
            self._state = {"id": uuid.uuid4().hex, "scale": None, "scale_source": None}
            self._save()

    @property
    def id(self) -> str:
        """Identifies this encoding; recorded in the index and in its representation files."""
        return self._state["id"]

    @property
    def scale(self) -> float | None:
        """The impact scale; None before it is chosen, and without impacts."""
        return self._state["scale"]

    @property
    def scale_source(self) -> str | None:
        """Where the scale comes from, in words."""
        return self._state["scale_source"]

    @property
    def chosen_scale(self) -> Scale | None:
        """Both, as they were set; None before."""
        return None if self.scale is None else Scale(self.scale, str(self.scale_source))

    def set_scale(self, scale: Scale) -> None:
        """Fix the scale before the first part is written; later runs read it from here."""
        self._state.update(scale=scale.value, scale_source=scale.source)
        self._save()

    def numbers(self) -> list[int]:
        """The finished windows, ascending."""
        return sorted(int(p.stem.removeprefix("part-")) for p in self.folder.glob("part-*.safetensors"))

    def path(self, number: int) -> Path:
        """The file of window ``number``."""
        return self.folder / f"part-{number:06d}.safetensors"

    def has(self, number: int, documents: str, source: str, encoder: str) -> bool:
        """Whether window ``number`` is finished; :class:`IndexMismatch` when it was made from other documents, or by
        an encoder of another digest."""
        path = self.path(number)
        if not path.exists():
            return False
        header = part_header(path)
        if header["documents"] != documents:
            raise self.changed(source, f"the documents of window {number} differ")
        if header.get("encoder", encoder) != encoder:
            raise IndexMismatch(
                f"{path}: encoded by another model ({header['encoder'][:12]} instead of {encoder[:12]}); remove this "
                f"file and run the same command again"
            )
        return True

    def changed(self, source: str, how: str) -> IndexMismatch:
        """The error for an input that is not the one that the work began with."""
        return IndexMismatch(
            f"{source}: the input changed since the work began ({how}); restore it, or start over with --restart"
        )

    def save(self, number: int, part: bytes, name: str) -> None:
        """Commit window ``number``: the bytes of :func:`part_bytes`. ``name`` stands for it in messages."""
        try:
            write_part(self.path(number), part)
        except OSError as e:
            if disk_full(e, self.folder) is None:
                raise
            raise OutputError(
                f"{self.folder}: the disk is full, at {name}; the shards before it are kept: free some space and run "
                f"the same command again"
            ) from e

    def __iter__(self) -> Iterator[Part]:
        """Every finished part in order, one in memory at a time."""
        for number in self.numbers():
            yield load_part(self.path(number))

    def _save(self) -> None:
        write_json(self.folder / STATE, self._state)


def save_part(path: Path, part: Part, documents: str) -> None:
    """Write :func:`part_bytes` atomically."""
    write_part(path, part_bytes(part, documents))


def write_part(path: Path, contents: bytes) -> None:
    """Write the bytes of a part's file: the file is there whole, on the disk, or not at all."""
    with atomic_write(path, "wb") as f:
        f.write(contents)


def part_bytes(part: Part, documents: str, encoder: str | None = None) -> bytes:
    """The contents of a part's file. ``documents`` is the :func:`~dupmae_ir.encode.windows.documents_digest` of its
    documents, ``encoder`` the digest of what encoded them."""
    tensors: dict[str, np.ndarray] = {"docids": np.frombuffer("\n".join(part.docids).encode(), np.uint8)}
    if part.cls is not None:
        tensors["cls"] = np.ascontiguousarray(part.cls, np.float32)
    header = {"documents": documents, "clipped": str(part.clipped), "dropped": str(part.dropped)}
    header |= {"encoder": encoder} if encoder else {}
    if part.impacts is not None:
        width = part.impacts.shape[1]
        header["vocabulary"] = str(width)
        tensors["indptr"] = part.impacts.indptr.astype(np.int64)
        tensors["terms"] = part.impacts.indices.astype(np.uint16 if width <= 1 << 16 else np.uint32)
        tensors["impacts"] = part.impacts.data
    if part.documents is not None:
        tensors["documents"] = pack(part.documents)
    if part.digests is not None:
        tensors["digests"] = np.frombuffer(b"".join(part.digests), np.uint8)
    return save(tensors, header)


def part_digest(path: Path) -> str:
    """The documents' digest in a part's header, without reading the rest."""
    return part_header(path)["documents"]


def part_header(path: Path) -> dict[str, str]:
    """A part's header: digests and counts, without reading the rest."""
    with _opened(path) as f:
        return dict(f.metadata())


def load_part(path: Path) -> Part:
    """Read a part that :func:`save_part` wrote."""
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
        documents = unpack(f.get_tensor("documents")) if "documents" in names else None
        digests = split_digests(f.get_tensor("digests")) if "digests" in names else None
    return Part(docids, cls, impacts, int(header["clipped"]), int(header["dropped"]), documents, digests)


def split_digests(stored: np.ndarray) -> list[bytes]:
    """uint8 of any shape -> the digests, 16 bytes each."""
    joined = stored.tobytes()
    return [joined[start : start + DIGEST_BYTES] for start in range(0, len(joined), DIGEST_BYTES)]


def build_index(
    parts: Iterable[Part],
    folder: Path,
    *,
    dim: int | None,
    terms: list[str] | None,
    scale: float | None,
    describe: Callable[[], Mapping[str, object]],
    on_documents: Callable[[int], object],
    texts: bool = False,
    postings: bool = False,
) -> Meta:
    """Write the index of ``parts`` into ``folder``, which is new, and return its meta.

    ``describe`` is called after the last part and returns what the meta records beyond the counts. ``on_documents`` is
    called with the number of documents of each part.
    """
    with IndexBuilder(folder, dim=dim, terms=terms, scale=scale, texts=texts, postings=postings) as builder:
        for part in parts:
            counts = part.clipped, part.dropped
            builder.add_impacts(part.docids, part.cls, part.impacts, *counts, part.documents, part.digests)
            on_documents(len(part.docids))
        return builder.finish(describe())


def _opened(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="np")
    except SafetensorError as e:
        raise IndexMismatch(f"{path}: damaged part ({e}); remove this file and run the same command again") from None
