"""How long a collection takes to encode on this machine, and how many bytes its index has, from a sample of it.

    python benchmarks/estimate.py --sample 512 --corpus collection.tsv.gz --index I

All other flags are those of ``dupmae-ir encode``; nothing is written.
"""

from __future__ import annotations

import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import islice, pairwise
from pathlib import Path

from dupmae_ir.config import option, parse, with_flags
from dupmae_ir.console import Parser, guarded, megabytes, say, show, table, waiting
from dupmae_ir.device import torch_threads
from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.window_encoding import EncoderChoice, encode_window
from dupmae_ir.encode.windows import (
    EncodedWindow,
    Window,
    build_index,
    document_digest,
    documents_digest,
    write_window,
)
from dupmae_ir.errors import InputError
from dupmae_ir.index.format.manifest import read_manifest
from dupmae_ir.index.format.quantisation import Scale
from dupmae_ir.io.collections import DocumentSource
from dupmae_ir.io.documents.collection import DocumentCollection
from dupmae_ir.types import Document, Encoder

READ = 20_000
"""Documents read from the beginning of the collection; those that are encoded are spread evenly over them."""
PIECES = 4
"""Pieces of what is read and of the sample, whose rates differ: they give the ranges of documents and of seconds."""
FEWEST_FILES = 8
"""Files of a folder that an estimate needs to read."""
WARM_UP_DOCUMENTS = 16
POSTING_BYTES = 3
"""Bytes of a posting in a window of the work folder."""
DOCUMENT_BYTES = 40
"""Bytes of a document in a window of the work folder, apart from its vector, its postings and its text."""


@dataclass(frozen=True, kw_only=True)
class EstimateConfig(EncodeConfig):
    """The settings of the run to estimate, and the size of the sample."""

    sample: int = option(512, "documents to encode", group="planning", at_least=2)


@dataclass(frozen=True)
class Estimate:
    """What encoding a collection takes on this machine."""

    corpus: str
    documents: int
    #: the fewest and the most documents, by the piece with the longest and the one with the shortest documents
    span: tuple[int, int]
    exact: bool  #: all documents were read, so their number is no estimate
    read: int
    encoded: int
    words: float  #: of a document, on average, as are ``postings``
    postings: float
    dim: int | None
    model: str
    device: str
    bytes: dict[str, int]  #: by part of the index
    work_bytes: int  #: of the work folder, which is removed at the end
    #: fewest documents at the fastest rate, most at the slowest
    encode_seconds: tuple[float, float]
    index_seconds: float
    read_seconds: float

    def as_text(self) -> str:
        """The estimate as two sentences and a table of bytes."""
        if self.exact:
            count = f"{self.documents:,}"
        else:
            fewest, most = self.span
            count = f"{_rounded(fewest):,} to {_rounded(most):,}"

        shortest, longest = self.encode_seconds
        encode_time = f"{_duration(shortest)} to {_duration(longest)}"

        parts = sorted(self.bytes.items(), key=lambda row: -row[1])
        rows = [[part, megabytes(size)] for part, size in parts if size]
        rows.append(["index", megabytes(sum(self.bytes.values()))])

        return (
            f"{self.corpus}: {count} documents of {self.words:.0f} words ({self.read:,} read, "
            f"{self.encoded:,} of them encoded by {self.model} on {self.device})\n"
            f"time with one process on this machine: {encode_time} to encode, {_duration(self.index_seconds)} to "
            f"index\ndisk while encoding: {megabytes(self.work_bytes)} more, in the work folder\n\n"
            + table(rows, ["part", "bytes"])
        )


def estimate(config: EstimateConfig, clock: Callable[[], float] = time.monotonic) -> Estimate:
    """Encode and index a sample in a temporary folder. Nothing else is written.

    ``clock``: ``time.process_time`` measures one thread on a machine that others use at the same time.
    """
    collection = config.collection()
    started = clock()
    if isinstance(collection, DocumentCollection):
        note = collection.dominating
        if note:
            say(f"note: {note}", config.quiet)
        # The files that are read are then a sample of all files.
        random.Random(0).shuffle(collection.files)

    head: list[Document] = []
    positions = [0]  # bytes read before each document, and after the last
    with waiting(f"reading up to {READ:,} documents", config.quiet):
        for document in islice(collection, READ):
            # The encode command computes digests while it reads, so they are part of the time.
            document_digest(document)
            head.append(document)
            positions.append(collection.bytes_read)
    read_seconds = clock() - started
    if len(head) < 2:
        raise InputError(f"{collection.source}: has {len(head)} document; an estimate needs two")

    if len(head) < READ:
        total = float(len(head))
        span = (len(head), len(head))
    else:
        total, span = _extrapolated(collection, positions)
    fewest, most = span

    stride = max(1, len(head) // config.sample)
    documents = head[::stride][: config.sample]
    words = sum(len(document.joined().split()) for document in documents) / len(documents)

    choice = EncoderChoice.of(config)
    encoder = choice.load(config.device)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with waiting(f"encoding {len(documents):,} of them", config.quiet):
            encoded, scale, seconds = _encode(documents, encoder, choice, folder, clock)
        half = len(encoded) // 2

        # The first index starts the JVM and is not timed.
        _index(encoded[:half], folder / "warm", encoder, scale, config)

        started = clock()
        half_sizes = _index(encoded[:half], folder / "first", encoder, scale, config)
        half_seconds = clock() - started

        started = clock()
        full_sizes = _index(encoded, folder / "both", encoder, scale, config)
        full_seconds = clock() - started

    # Some files and some work do not grow with the number of documents, so the rates are those of what the second
    # half adds to the first.
    added = sum(len(window.docids) for window in encoded[half:])
    document_bytes = {}
    for part, size in full_sizes.items():
        document_bytes[part] = max(0, size - half_sizes.get(part, 0)) / added
    if full_seconds > half_seconds:
        added_seconds = full_seconds - half_seconds
    else:  # a busy machine, or a sample too small to measure
        added_seconds = full_seconds / 2

    impacts = [window.impacts for window in encoded if window.impacts is not None]
    postings = sum(matrix.nnz for matrix in impacts) / len(documents)
    vector_bytes = 4 * (encoder.dim or 0)
    text_bytes = document_bytes.get("texts", 0.0)
    work_bytes = vector_bytes + POSTING_BYTES * postings + DOCUMENT_BYTES + text_bytes

    return Estimate(
        corpus=collection.source,
        documents=round(total),
        span=span,
        exact=len(head) < READ,
        read=len(head),
        encoded=len(documents),
        words=words,
        postings=postings,
        dim=encoder.dim,
        model=encoder.name,
        device=encoder.settings.device,
        bytes={part: round(size * total) for part, size in document_bytes.items()},
        work_bytes=round(work_bytes * total),
        encode_seconds=(min(seconds) * fewest, max(seconds) * most),
        index_seconds=added_seconds / added * total,
        read_seconds=read_seconds / len(head) * total,
    )


def _extrapolated(
    collection: DocumentSource, positions: list[int]
) -> tuple[float, tuple[int, int]]:
    """The number of documents by the share of bytes that was read, and its range.

    The range assumes that the unread documents are as long as those of the quarter with the longest documents, or as
    short as those of the quarter with the shortest. Raises :class:`InputError` if the documents that were read say
    nothing about the rest.
    """
    read = collection.bytes_read
    total_bytes = collection.total_bytes
    if not total_bytes:
        raise InputError(
            f"{collection.source}: its size is not known, so its documents cannot be counted; name a file"
        )

    if isinstance(collection, DocumentCollection) and collection.opened < FEWEST_FILES:
        unopened = sum(map(collection.size_of, collection.files[collection.opened :]))
        if unopened * 2 > total_bytes:
            raise InputError(
                f"{collection.source}: no estimate is possible: {READ:,} passages are from {collection.opened} of its "
                f"{len(collection.files):,} files, and {megabytes(unopened)} of {megabytes(total_bytes)} are in the "
                "others. Leave large files out with `exclude`, or encode without an estimate"
            )

    borders = [positions[READ * piece // PIECES] for piece in range(PIECES + 1)]
    documents_per_byte = []
    for before, after in pairwise(borders):
        documents_per_byte.append(READ / PIECES / max(1, after - before))

    unread_bytes = max(0, total_bytes - read)
    fewest = READ + round(min(documents_per_byte) * unread_bytes)
    most = READ + round(max(documents_per_byte) * unread_bytes)
    return READ * total_bytes / max(1, read), (fewest, most)


def _rounded(number: int) -> int:
    """``number`` rounded to two significant digits."""
    return int(float(f"{number:.2g}"))


def _encode(
    documents: list[Document],
    encoder: Encoder,
    choice: EncoderChoice,
    folder: Path,
    clock: Callable[[], float],
) -> tuple[list[EncodedWindow], Scale | None, list[float]]:
    """The windows of the sample, the scale, and the seconds per document of each window."""
    # The first call of an encoder is slow; it is not timed.
    warm_up = Window(0, documents[:WARM_UP_DOCUMENTS], "", None)
    encode_window(encoder, warm_up, choice)

    window_count = min(PIECES, len(documents))
    size = math.ceil(len(documents) / window_count)
    scale: Scale | None = None
    windows: list[EncodedWindow] = []
    seconds: list[float] = []
    for start in range(0, len(documents), size):
        batch = documents[start : start + size]
        began = clock()
        window = Window(0, batch, documents_digest(batch), scale)
        result = encode_window(encoder, window, choice)
        seconds.append((clock() - began) / len(batch))

        # Later windows are quantised with the scale of the first.
        scale = result.scale
        path = folder / f"{start}"
        write_window(path, result.contents or b"")
        windows.append(EncodedWindow.read(path))
    return windows, scale, seconds


def _index(
    encoded: list[EncodedWindow],
    folder: Path,
    encoder: Encoder,
    scale: Scale | None,
    config: EncodeConfig,
) -> dict[str, int]:
    """Bytes by part of the index of encoded windows."""
    build_index(
        encoded,
        folder,
        dim=encoder.dim,
        terms=encoder.terms,
        scale=scale.value if scale else None,
        describe=dict,
        on_documents=lambda _: None,
        texts=config.store_texts,
        postings=config.postings,
    )
    (segment,) = read_manifest(folder).segments
    parts = (folder / segment.path).iterdir()
    return {part.name: _bytes_on_disk(part) for part in parts}


def _bytes_on_disk(path: Path) -> int:
    """The size of a file, or of all files below a folder."""
    files = [file for file in [path, *path.rglob("*")] if file.is_file()]
    return sum(file.stat().st_size for file in files)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:,.1f} h"


def main(argv: list[str] | None = None) -> int:
    """Print the estimate. Returns the exit status."""

    def name_flags(message: str) -> str:
        return with_flags(message, EstimateConfig)

    return guarded(lambda: _main(argv), "estimate.py", "", name_flags)


def _main(argv: list[str] | None) -> int:
    config = parse(Parser("estimate.py", __doc__ or ""), EstimateConfig, argv)
    with torch_threads(config.threads):
        result = estimate(config)
    if config.json:
        show(json.dumps(asdict(result)), emphasis=False)
    else:
        show(result.as_text(), emphasis=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
