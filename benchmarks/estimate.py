"""How long a collection takes to encode on this machine, and how many bytes its index has, from a sample of it.

    python benchmarks/estimate.py --sample 512 --corpus collection.tsv.gz --index I

All other flags are those of ``dupmae-ir encode``; nothing is written.
"""

from __future__ import annotations

import json
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
from dupmae_ir.io.documents.collection import DocumentCollection, text_size
from dupmae_ir.types import Document, Encoder

READ = 20_000
"""Documents read from the beginning of the collection; those that are encoded are spread evenly over them."""
PIECES = 4
"""Pieces of what is read and of the sample, whose rates differ: they give the ranges of documents and of seconds."""
FEWEST_FILES = 8
"""Files of a folder that an estimate needs to read."""


@dataclass(frozen=True, kw_only=True)
class EstimateConfig(EncodeConfig):
    """The settings of the run to estimate, and the size of the sample."""

    sample: int = option(512, "documents to encode", group="planning", at_least=2)


@dataclass(frozen=True)
class Estimate:
    """What encoding a collection takes on this machine."""

    corpus: str
    documents: int
    span: tuple[
        int, int
    ]  #: the fewest and the most documents, by the densest and the sparsest piece that was read
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
    encode_seconds: tuple[
        float, float
    ]  #: fewest documents at the fastest rate, most at the slowest
    index_seconds: float
    read_seconds: float

    def as_text(self) -> str:
        """For a person."""
        count = (
            f"{self.documents:,}"
            if self.exact
            else " to ".join(f"{_rounded(n):,}" for n in self.span)
        )
        low, high = (_duration(seconds) for seconds in self.encode_seconds)
        rows = [
            [part, megabytes(size)]
            for part, size in sorted(self.bytes.items(), key=lambda row: -row[1])
            if size
        ]
        return (
            f"{self.corpus}: {count} documents of {self.words:.0f} words ({self.read:,} read, "
            f"{self.encoded:,} of them encoded by {self.model} on {self.device})\n"
            f"time with one process on this machine: {low} to {high} to encode, {_duration(self.index_seconds)} to "
            f"index\ndisk while encoding: {megabytes(self.work_bytes)} more, in the work folder\n\n"
            + table([*rows, ["index", megabytes(sum(self.bytes.values()))]], ["part", "bytes"])
        )


def estimate(config: EstimateConfig, clock: Callable[[], float] = time.monotonic) -> Estimate:
    """Encode and index a sample in a temporary folder. Nothing else is written.

    ``clock``: ``time.process_time`` measures one thread on a machine that others use at the same time.
    """
    collection, started = config.collection(), clock()
    if isinstance(collection, DocumentCollection):
        if note := collection.dominating:
            say(f"note: {note}", config.quiet)
        random.Random(0).shuffle(collection.files)  # a sample of all of them
    head: list[Document] = []
    positions = [0]  # bytes read before each document, and after the last
    with waiting(f"reading up to {READ:,} documents", config.quiet):
        for document in islice(collection, READ):
            document_digest(document)  # as the process that reads does
            head.append(document)
            positions.append(collection.bytes_read)
    read_seconds = clock() - started
    if len(head) < 2:
        raise InputError(f"{collection.source}: has {len(head)} document; an estimate needs two")
    total, span = float(len(head)), (len(head), len(head))
    if len(head) == READ:
        total, span = _extrapolated(collection, positions)
    documents = list(islice(head[:: max(1, len(head) // config.sample)], config.sample))
    choice = EncoderChoice.of(config)
    encoder = choice.load(config.device)
    with tempfile.TemporaryDirectory() as folder:
        with waiting(f"encoding {len(documents):,} of them", config.quiet):
            encoded, scale, seconds = _encode(documents, encoder, choice, Path(folder), clock)
        half = len(encoded) // 2
        _index(encoded[:half], Path(folder) / "warm", encoder, scale, config)  # starts the JVM
        times = [clock()]
        first = _index(encoded[:half], Path(folder) / "first", encoder, scale, config)
        times.append(clock())
        both = _index(encoded, Path(folder) / "both", encoder, scale, config)
        times.append(clock())
    # What the second half of the documents adds: some files and some work do not grow with their number.
    added = sum(len(window.docids) for window in encoded[half:])
    one, two = times[1] - times[0], times[2] - times[1]
    sizes = {part: max(0, size - first.get(part, 0)) / added for part, size in both.items()}
    postings = sum(window.impacts.nnz for window in encoded if window.impacts is not None) / len(
        documents
    )
    work = 4 * (encoder.dim or 0) + 3 * postings + 40 + sizes.get("texts", 0.0)
    return Estimate(
        corpus=collection.source,
        documents=round(total),
        span=span,
        exact=len(head) < READ,
        read=len(head),
        encoded=len(documents),
        words=sum(len(d.joined().split()) for d in documents) / len(documents),
        postings=postings,
        dim=encoder.dim,
        model=encoder.name,
        device=encoder.settings.device,
        bytes={part: round(size * total) for part, size in sizes.items()},
        work_bytes=round(work * total),
        encode_seconds=(min(seconds) * span[0], max(seconds) * span[1]),
        index_seconds=(two - one if two > one else two / 2) / added * total,
        read_seconds=read_seconds / len(head) * total,
    )


def _extrapolated(
    collection: DocumentSource, positions: list[int]
) -> tuple[float, tuple[int, int]]:
    """The number of documents by the share of bytes that was read, and a range: the rest is like the sparsest, or like
    the densest, quarter of what was read. Raises :class:`InputError` if what was read says nothing about the rest."""
    read, whole = collection.bytes_read, collection.total_bytes
    if not whole:
        raise InputError(
            f"{collection.source}: its size is not known, so its documents cannot be counted; name a file"
        )
    if isinstance(collection, DocumentCollection) and collection.read < FEWEST_FILES:
        unopened = sum(map(text_size, collection.files[collection.read :]))
        if unopened * 2 > whole:
            raise InputError(
                f"{collection.source}: no estimate is possible: {READ:,} passages are from {collection.read} of its "
                f"{len(collection.files):,} files, and {megabytes(unopened)} of {megabytes(whole)} are in the others. "
                "Leave large files out with `exclude`, or encode without an estimate"
            )
    borders = [positions[READ * piece // PIECES] for piece in range(PIECES + 1)]
    rates = [READ / PIECES / max(1, after - before) for before, after in pairwise(borders)]
    left = max(0, whole - read)
    return READ * whole / max(1, read), (
        READ + round(min(rates) * left),
        READ + round(max(rates) * left),
    )


def _rounded(number: int) -> int:
    """Two digits."""
    return int(float(f"{number:.2g}"))


def _encode(
    documents: list[Document],
    encoder: Encoder,
    choice: EncoderChoice,
    folder: Path,
    clock: Callable[[], float],
) -> tuple[list[EncodedWindow], Scale | None, list[float]]:
    """The windows of the sample, the scale, and the seconds a document of each window."""
    encode_window(
        encoder, Window(0, documents[:16], "", None), choice
    )  # the first call of an encoder is slow
    size = -(-len(documents) // min(PIECES, len(documents)))
    scale: Scale | None = None
    windows, seconds = list[EncodedWindow](), list[float]()
    for start in range(0, len(documents), size):
        some, began = documents[start : start + size], clock()
        result = encode_window(encoder, Window(0, some, documents_digest(some), scale), choice)
        seconds.append((clock() - began) / len(some))
        scale = result.scale
        write_window(folder / f"{start}", result.contents or b"")
        windows.append(EncodedWindow.read(folder / f"{start}"))
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
    return {p.name: sum(f.stat().st_size for f in [p, *p.rglob("*")] if f.is_file()) for p in parts}


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:,.1f} h"


def main(argv: list[str] | None = None) -> int:
    """Print the estimate. Returns the exit status."""
    return guarded(
        lambda: _main(argv), "estimate.py", "", lambda message: with_flags(message, EstimateConfig)
    )


def _main(argv: list[str] | None) -> int:
    config = parse(Parser("estimate.py", __doc__ or ""), EstimateConfig, argv)
    with torch_threads(config.threads):
        found = estimate(config)
    show(json.dumps(asdict(found)) if config.json else found.as_text(), emphasis=not config.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
