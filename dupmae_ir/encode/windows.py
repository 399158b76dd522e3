"""Windows: runs of consecutive documents that are encoded and committed together.

They depend on the collection and ``--window`` only, and a window is always encoded as one, so a resumed run gives the
same bits as an undisturbed one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dupmae_ir.index.format.integrity import DIGEST_BYTES
from dupmae_ir.index.format.quantisation import CALIBRATION, Scale
from dupmae_ir.types import Document


@dataclass(frozen=True)
class Window:
    """``digest``: of the documents. ``scale``: None for the first window, which chooses it. ``keep``: False if only the
    scale is needed."""

    number: int
    documents: list[Document]
    digest: str
    scale: Scale | None = None
    keep: bool = True

    def __str__(self) -> str:
        first, last = self.documents[0].docid, self.documents[-1].docid
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
            window, limit = [], size
    if window:
        yield window


def window_size(number: int, size: int) -> int:
    """Documents in a full window of that number."""
    return size if number else min(size, CALIBRATION)


def document_digest(document: Document) -> bytes:
    """16 bytes that differ for documents that differ, for any number of documents that an index can have.

    The time of a file is no content: a passage of a file that was only touched keeps its digest.
    """
    if document.metadata and "path" in document.metadata:
        kept = {name: value for name, value in document.metadata.items() if name != "modified"}
        document = document._replace(metadata=kept)
    return bytes.fromhex(documents_digest([document]))[:DIGEST_BYTES]


def documents_digest(documents: Iterable[Document]) -> str:
    """Hex sha256 of ids, texts, titles and metadata, each with its length, so that different lists have different
    digests."""
    sha256 = hashlib.sha256()
    for document in documents:
        metadata = [json.dumps(document.metadata, sort_keys=True)] if document.metadata else []
        for piece in (*document[:3], *metadata):
            raw = piece.encode()
            sha256.update(b"%d:" % len(raw))
            sha256.update(raw)
    return sha256.hexdigest()
