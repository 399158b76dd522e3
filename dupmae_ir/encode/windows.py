"""Windows: runs of consecutive documents that are encoded and committed together, and the files that keep them.

They depend on the collection and ``--window`` only, and a window is always encoded as one, so a resumed run gives the
same bits as an undisturbed one. ``.I.work/window-000000.safetensors`` and so on are the finished windows of an index
``I``, each a file that is complete or not there, saved until the index is built from them; ``windows.json`` records the
impact scale. Impacts are stored as the integers of the index: three bytes a posting instead of eight, and the same bits
whether the index is built at once, after a resumption, or from shards.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import scipy.sparse as sp
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from dupmae_ir.encode.reading import Reading
from dupmae_ir.errors import IndexMismatch, OutputError
from dupmae_ir.index.changes.builder import IndexBuilder
from dupmae_ir.index.format.excerpts import Excerpts
from dupmae_ir.index.format.integrity import DIGEST_BYTES
from dupmae_ir.index.format.manifest import NO_LOSSES, Losses, Meta
from dupmae_ir.index.format.quantisation import CALIBRATION, Scale, dropped, quantise
from dupmae_ir.index.format.texts import StoredDocument, pack, stored, unpack
from dupmae_ir.io.publishing import atomic_write, disk_full, read_json_object, write_json
from dupmae_ir.types import Document, Representation

STATE = "windows.json"
_NAME = "window-*.safetensors"
_LOSSES = "losses"
"""Key of a window file's header."""


@dataclass(frozen=True)
class Window:
    """Documents that are encoded together.

    ``digest``: of the documents. ``scale``: None for the first window, which chooses it. ``keep``: False if only the
    scale is needed. ``languages``: of the documents, if they are recognised. ``factors``: of the vectors of each
    language; the window measures those that are missing.
    """

    number: int
    documents: list[Document]
    digest: str
    scale: Scale | None = None
    keep: bool = True
    decides: bool = False  #: on the scale or on a factor, for the windows after it
    languages: list[str] | None = None
    factors: Mapping[str, float] = dataclasses.field(default_factory=dict)
    usual_weight: float = 1.0  #: what vectors count in the language of the index

    def __str__(self) -> str:
        first = self.documents[0].docid
        last = self.documents[-1].docid
        return f"window {self.number} (documents {first} to {last})"


def windows(documents: Iterable[Document], size: int) -> Iterator[list[Document]]:
    """Lists of ``size`` documents; the last one is shorter.

    The first has at most :data:`CALIBRATION`, so that every shard of a collection calibrates on the same documents.
    """
    window: list[Document] = []
    limit = window_size(0, size)
    for document in documents:
        window.append(document)
        if len(window) == limit:
            yield window
            window = []
            limit = size
    if window:
        yield window


def window_size(number: int, size: int) -> int:
    """Documents in a full window of that number."""
    if number == 0:
        return min(size, CALIBRATION)
    return size


def document_digest(document: Document) -> bytes:
    """16 bytes that differ for documents that differ, for any number of documents that an index can have.

    The time of a file is not part of its contents: passages of a file that was only touched keep their digests.
    """
    # Only of files: in the metadata of a row, a field `modified` is content.
    if document.metadata and "path" in document.metadata:
        kept = {name: value for name, value in document.metadata.items() if name != "modified"}
        document = document._replace(metadata=kept)
    return bytes.fromhex(documents_digest([document]))[:DIGEST_BYTES]


def documents_digest(documents: Iterable[Document]) -> str:
    """Hex sha256 of ids, texts, titles and metadata, each with its length, so that different lists have different
    digests."""
    # Digests are stored in indexes and window files: another format would make all of them differ.
    sha256 = hashlib.sha256()
    for document in documents:
        pieces = list(document[:3])
        if document.metadata:
            pieces.append(json.dumps(document.metadata, sort_keys=True))
        for piece in pieces:
            raw = piece.encode()
            sha256.update(b"%d:" % len(raw))
            sha256.update(raw)
    return sha256.hexdigest()


@dataclass(frozen=True)
class EncodedWindow:
    """``docids``: n ids. ``cls``: (n, dim) float32 or None. ``impacts``: (n, V) CSR of uint8, sorted columns, or None.

    ``losses``: what is not in them. ``documents``: titles, texts and metadata, if the index stores them. ``digests``:
    one for each document (:func:`~dupmae_ir.encode.windows.document_digest`). ``excerpts``: their vectors, if the
    index has them.
    """

    docids: list[str]
    cls: np.ndarray | None
    impacts: sp.csr_matrix | None
    losses: Losses = NO_LOSSES
    documents: list[StoredDocument] | None = None
    digests: list[bytes] | None = None
    excerpts: Excerpts | None = None

    @classmethod
    def of(
        cls,
        documents: Sequence[Document],
        representation: Representation,
        scale: float | None,
        *,
        texts: bool,
        recorded: Sequence[Document] | None = None,
        excerpts: Excerpts | None = None,
    ) -> Self:
        """The encoded window of ``documents``: vectors unchanged, weights as impacts.

        ``recorded``: the documents with what was found out about them, if that is more, for the stored texts.
        ``excerpts``: the excerpts of the documents.

        Raises :class:`IndexMismatch` for a value that is not finite.
        """
        vectors = representation.cls
        if vectors is not None:
            not_finite = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
            if len(not_finite):
                docid = documents[not_finite[0]].docid
                raise IndexMismatch(
                    f"the [CLS] vector of document {docid!r} is not finite; check the model's weights and dtype"
                )
        weights = representation.ot
        impacts = None
        losses = Losses(truncated=representation.truncated)
        if weights is not None:
            if scale is None:
                raise ValueError("OT weights need a scale")
            impacts, clipped = quantise(weights, scale)
            losses = Losses(clipped, dropped(weights, impacts), representation.truncated)
        return cls(
            [document.docid for document in documents],
            vectors,
            impacts,
            losses,
            stored(recorded or documents) if texts else None,
            [document_digest(document) for document in documents],
            excerpts,
        )

    def to_bytes(self, digest: str, encoder: str | None = None) -> bytes:
        """The contents of a window file. ``digest``: of the documents together, ``encoder``: of what encoded them."""
        tensors: dict[str, np.ndarray] = {
            "docids": np.frombuffer("\n".join(self.docids).encode(), np.uint8)
        }
        if self.cls is not None:
            tensors["cls"] = np.ascontiguousarray(self.cls, np.float32)
        if self.excerpts is not None:
            tensors["excerpt_starts"] = self.excerpts.starts
            tensors["excerpt_codes"] = self.excerpts.codes
            tensors["excerpt_steps"] = self.excerpts.steps
        header = {"documents": digest, _LOSSES: json.dumps(self.losses._asdict())}
        if encoder:
            header["encoder"] = encoder
        if self.impacts is not None:
            width = self.impacts.shape[1]
            header["vocabulary"] = str(width)
            # Two bytes an id suffice for the usual vocabularies: with the impact, three bytes a posting.
            id_type = np.uint16 if width <= 1 << 16 else np.uint32
            tensors["indptr"] = self.impacts.indptr.astype(np.int64)
            tensors["terms"] = self.impacts.indices.astype(id_type)
            tensors["impacts"] = self.impacts.data
        if self.documents is not None:
            tensors["documents"] = pack(self.documents)
        if self.digests is not None:
            tensors["digests"] = np.frombuffer(b"".join(self.digests), np.uint8)
        return save(tensors, header)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file that was written from :meth:`to_bytes`."""
        with _open(path) as f:
            header = f.metadata()
            tensors = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118 (not a dict)
        docids = tensors["docids"].tobytes().decode().split("\n")
        vectors = tensors.get("cls")
        impacts = None
        if "impacts" in tensors:
            terms = tensors["terms"].astype(np.int32)
            impacts = sp.csr_matrix(
                (tensors["impacts"], terms, tensors["indptr"]),
                shape=(len(docids), int(header["vocabulary"])),
            )
        documents = None
        if "documents" in tensors:
            documents = unpack(tensors["documents"])
        digests = None
        if "digests" in tensors:
            digests = split_digests(tensors["digests"])
        excerpts = None
        if "excerpt_steps" in tensors:
            excerpts = Excerpts(
                tensors["excerpt_starts"], tensors["excerpt_codes"], tensors["excerpt_steps"]
            )
        return cls(
            docids,
            vectors,
            impacts,
            Losses(**json.loads(header[_LOSSES])),
            documents,
            digests,
            excerpts,
        )


def read_header(path: Path) -> dict[str, str]:
    """The header of a window file: digests of its ``documents`` and of the ``encoder``, and counts."""
    with _open(path) as f:
        return dict(f.metadata())


def write_window(path: Path, contents: bytes) -> None:
    """Write a window file: it is there complete, on the disk, or not at all."""
    with atomic_write(path, "wb") as f:
        f.write(contents)


def window_paths(folder: Path) -> list[Path]:
    """The window files in a folder, by name."""
    return sorted(folder.glob(_NAME))


def split_digests(joined: np.ndarray) -> list[bytes]:
    """uint8 of any shape -> the digests, 16 bytes each."""
    raw = joined.tobytes()
    return [raw[start : start + DIGEST_BYTES] for start in range(0, len(raw), DIGEST_BYTES)]


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="np")
    except SafetensorError as e:
        raise IndexMismatch(
            f"{path}: damaged ({e}); remove this file and run the same command again"
        ) from None


class WindowFiles:
    """The window files in a job's work folder. The caller holds the lock of the target."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._state = read_json_object(folder / STATE)
        if "scale" not in self._state:
            self._state = {"scale": None, "scale_source": None, "reading": None, "factors": {}}
            write_json(folder / STATE, self._state)

    @property
    def scale(self) -> Scale | None:
        """The impact scale; None before it is chosen, and without impacts."""
        value = self._state["scale"]
        if value is None:
            return None
        return Scale(value, str(self._state["scale_source"]))

    @property
    def reading(self) -> Reading | None:
        """How well the dense part reads the collection, if it was measured."""
        value = self._state["reading"]
        if value is None:
            return None
        return Reading(**value)

    def set_scale(self, scale: Scale, reading: Reading | None) -> None:
        """Fix the scale before the first window is saved; later runs read it from here."""
        self._state["scale"] = scale.value
        self._state["scale_source"] = scale.source
        self._state["reading"] = None if reading is None else dataclasses.asdict(reading)
        write_json(self.folder / STATE, self._state)

    @property
    def factors(self) -> dict[str, float]:
        """The factor of the vectors of each language but that of the index."""
        return dict(self._state["factors"])

    def add_factors(self, factors: Mapping[str, float]) -> None:
        """Fix the factors of languages before the first window that has them is saved."""
        self._state["factors"] = self.factors | dict(factors)
        write_json(self.folder / STATE, self._state)

    def numbers(self) -> list[int]:
        """The finished windows, ascending."""
        return sorted(int(path.stem.partition("-")[2]) for path in window_paths(self.folder))

    def path(self, number: int) -> Path:
        """The file of window ``number``."""
        return self.folder / f"window-{number:06d}.safetensors"

    def has(self, window: Window, source: str, encoder: str) -> bool:
        """Whether a window is finished; :class:`IndexMismatch` if it was made from other documents, or by an encoder of
        another digest."""
        path = self.path(window.number)
        if not path.exists():
            return False
        # The header alone: the tensors are not read.
        header = read_header(path)
        if header["documents"] != window.digest:
            raise self.changed(source, f"the documents of window {window.number} differ")
        # A file that records no encoder is not compared.
        if header.get("encoder", encoder) != encoder:
            raise IndexMismatch(
                f"{path}: encoded by another model ({header['encoder'][:12]} instead of {encoder[:12]}); remove this "
                f"file and run the same command again"
            )
        return True

    def changed(self, source: str, how: str) -> IndexMismatch:
        """The error for an input that is not the one that the work began with."""
        return IndexMismatch(
            f"{source}: the input changed since the work began ({how}); restore it, or start over with `restart`"
        )

    def save(self, window: Window, contents: bytes) -> None:
        """Write the file of a window, whose bytes are ``contents``; the window is done once it exists."""
        try:
            write_window(self.path(window.number), contents)
        except OSError as e:
            if disk_full(e, self.folder) is None:
                raise
            raise OutputError(
                f"{self.folder}: the disk is full, at {window}; the windows before it are kept: free some space and "
                f"run the same command again"
            ) from e

    def __iter__(self) -> Iterator[EncodedWindow]:
        """Every finished window in order, one in memory at a time."""
        # By number, because windows finish in any order.
        for number in self.numbers():
            yield EncodedWindow.read(self.path(number))


def build_index(
    encoded: Iterable[EncodedWindow],
    folder: Path,
    *,
    dim: int | None,
    terms: Sequence[str] | None,
    scale: float | None,
    describe: Callable[[], Mapping[str, object]],
    on_documents: Callable[[int], object] = lambda _: None,
    texts: bool = False,
    postings: bool = False,
    excerpts: bool = False,
) -> Meta:
    """Write the index of encoded windows into ``folder``, which is new, and return its meta.

    ``describe`` is called after the last window and returns what the meta records beyond the counts. ``on_documents``
    is called with the number of documents of each window.
    """
    with IndexBuilder(
        folder, dim=dim, terms=terms, scale=scale, texts=texts, postings=postings, excerpts=excerpts
    ) as builder:
        for window in encoded:
            impacts = window.impacts
            # No document of the window is in an additional language, but one of another window is.
            if impacts is not None and terms is not None and 2 * impacts.shape[1] == len(terms):
                impacts.resize(len(window.docids), len(terms))
            builder.add_impacts(
                window.docids,
                window.cls,
                impacts,
                window.losses,
                window.documents,
                window.digests,
                window.excerpts,
            )
            on_documents(len(window.docids))
        return builder.finish(describe())
