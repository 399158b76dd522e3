"""``dupmae-ir index add``, ``index update`` and ``index sync``: encode what is new or changed into a new segment.

The collection is read once, without a model: the digest of each document tells whether the index has it. What it lacks
is written to a nameless temporary file and then encoded in windows, each saved in the work folder under the digest of
its documents. A killed run leaves its windows; any later change of the index that encodes the same documents uses them.
The scale is that of the index, so later weights may be clipped at 255: they are counted, and a note says so.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from dupmae_ir.console import progress, say
from dupmae_ir.device import with_torch_threads
from dupmae_ir.encode.run import vocabulary_record
from dupmae_ir.encode.window_encoding import represent
from dupmae_ir.encode.windows import (
    EncodedWindow,
    build_index,
    document_digest,
    documents_digest,
    read_header,
    window_paths,
    windows,
    write_window,
)
from dupmae_ir.errors import CheckpointError, IndexMismatch, UsageError
from dupmae_ir.index.changes.changes import ChangeJob, build_optional
from dupmae_ir.index.config import AddConfig, ChangeOptions, ChangeResult, SyncConfig, UpdateConfig
from dupmae_ir.index.format.manifest import Meta, recorded_options
from dupmae_ir.index.index import Index
from dupmae_ir.io.collections import DocumentSource
from dupmae_ir.io.sources import READING, left_out
from dupmae_ir.models import load_encoder
from dupmae_ir.types import Document, Encoder, EncoderOptions

WINDOW = 1024
"""Documents of a window for an index that does not record its own."""
_COMPARED = (
    "document_length",
    "top_k",
    "activation",
    "dtype",
    "normalize",
    "dimensions",
    "ot",
    "fold_terms",
    "language",
)
_WORK = ("digest", "title_separator", *_COMPARED)


@with_torch_threads
def run_add(config: AddConfig) -> ChangeResult:
    """Add documents and return a summary. Documents that the index has already are skipped.

    Raises :class:`UsageError` for a document whose id the index has with another text; nothing is added then.
    """
    return _Change(config, "index add")()


@with_torch_threads
def run_update(config: UpdateConfig) -> ChangeResult:
    """Add documents, replacing those of the same ids that changed, and return a summary."""
    return _Change(config, "index update")()


@with_torch_threads
def run_sync(config: SyncConfig) -> ChangeResult:
    """Make the index that of the collection: as :func:`run_update`; documents that it lacks are deleted."""
    return _Change(config, "index sync")()


@dataclass
class _Plan:
    """What a change does: ``spool`` has the documents to encode, ``gone`` the rows to delete."""

    spool: IO[str]
    added: int = 0
    updated: int = 0
    unchanged: int = 0
    deleted: int = 0
    gone: list[int] = field(default_factory=list)

    @property
    def encoded(self) -> int:
        return self.added + self.updated

    def documents(self) -> Iterator[Document]:
        """The documents to encode, in the order of the collection."""
        self.spool.seek(0)
        for line in self.spool:
            yield Document(*json.loads(line))


class _Change:
    """One run of a command."""

    def __init__(self, config: ChangeOptions, command: str) -> None:
        self.config, self.command = config, command
        self.started = time.monotonic()
        self.resumed = 0

    def __call__(self) -> ChangeResult:
        config = self.config
        with ChangeJob(
            config.index, self.command, restart=config.restart, quiet=config.quiet
        ) as job:
            index = job.current()
            job.settings = _work_settings(index, config.index)
            collection = self._collection(index.meta)
            with tempfile.TemporaryFile("w+", encoding="utf-8", dir=job.target.parent) as spool:
                plan = self._planned(index, collection, _Plan(spool))
                counted = ("added", "updated", "deleted", "unchanged")
                now = {f"{name}_now": getattr(plan, name) for name in counted}
                if not plan.encoded and not plan.gone:
                    result = job.unchanged(index, now)
                else:
                    new, clipped = (
                        self._segment(job, index, collection, plan) if plan.encoded else (None, 0)
                    )
                    now |= {"clipped_now": clipped, "resumed": self.resumed}
                    result = job.commit(index, np.array(plan.gone, np.int64), new, now)
            _sweep_windows(job)
            return {**result, "seconds": round(time.monotonic() - self.started, 2)}

    def _collection(self, meta: Meta) -> DocumentSource:
        """The collection, read as the one that the index was made from unless flags say otherwise."""
        recorded, config = meta.get("settings") or {}, self.config
        kept = {name: recorded[name] for name in READING if recorded.get(name) is not None}
        given = {f.name for f in dataclasses.fields(config) if getattr(config, f.name) != f.default}
        changes: dict[str, Any] = {name: value for name, value in kept.items() if name not in given}
        changes = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in changes.items()
        }
        return dataclasses.replace(config, **changes).collection()

    def _planned(self, index: Index, collection: DocumentSource, plan: _Plan) -> _Plan:
        """Compare the collection with the index."""
        live = index.live
        rows = {docid: row for row, docid in enumerate(index.docids) if live[row]}
        known = index.digests
        if known is None and self.command != "index add":
            say(
                f"note: {self.config.index} has no digests of its documents: all are encoded again",
                self.config.quiet,
            )
        left = live.copy()
        with progress("read", collection.unit, quiet=self.config.quiet) as bar:
            for document in collection:
                row = rows.get(document.docid)
                if row is not None:
                    left[row] = False
                    if known is not None and known[row].tobytes() == document_digest(document):
                        plan.unchanged += 1
                        bar.update()
                        continue
                self._take(document, row, plan)
                bar.update()
        if text := left_out(collection.report):
            say(f"{collection.source}:{text}", self.config.quiet)
        if self.command == "index sync":
            gone = [
                row
                for row in np.flatnonzero(left).tolist()
                if not collection.may_have(index.docids[row])
            ]
            if kept := int(left.sum()) - len(gone):
                say(
                    f"note: {kept:,} passages of files that cannot be read now were kept",
                    self.config.quiet,
                )
            if (
                rows
                and len(gone) == len(rows)
                and isinstance(self.config, SyncConfig)
                and not self.config.replace_all
            ):
                raise UsageError(
                    f"{self.config.corpus} has none of the {len(rows):,} documents of {self.config.index}, so all of "
                    "them would be deleted; name the right collection, or pass `replace_all`"
                )
            plan.gone += gone
            plan.deleted = len(gone)
        return plan

    def _take(self, document: Document, row: int | None, plan: _Plan) -> None:
        """Plan to encode a document, and to delete its old ``row``."""
        if row is not None:
            if self.command == "index add":
                raise UsageError(
                    f"{self.config.index} already has a document {document.docid!r} with other contents; nothing was "
                    "added. Replace documents with: dupmae-ir index update"
                )
            plan.gone.append(row)
        plan.added += row is None
        plan.updated += row is not None
        plan.spool.write(json.dumps(list(document)) + "\n")

    def _segment(
        self, job: ChangeJob, index: Index, collection: DocumentSource, plan: _Plan
    ) -> tuple[Path, int]:
        """Encode the documents of the plan; returns the new segment and the number of weights that were clipped."""
        work = job.begin()
        encoder = _encoder(index, self.config)
        paths = self._encode(job, work, index, encoder, plan)
        new = job.fresh("segment")
        with progress("index", collection.unit, total=plan.encoded, quiet=self.config.quiet) as bar:
            meta = build_index(
                map(EncodedWindow.read, paths),
                new,
                dim=index.dim,
                terms=index.terms if index.has_ot else None,
                scale=index.scale,
                describe=lambda: {
                    "made_by": f"dupmae-ir {self.command}",
                    "inputs": [dataclasses.asdict(source) for source in collection.inputs],
                },
                on_documents=bar.update,
                texts=index.segments[0].has_part("texts"),
            )
        build_optional(index, new)
        if meta["clipped"]:
            say(
                f"note: {meta['clipped']:,} of {meta['postings']:,} weights are above the highest that the scale of "
                f"{self.config.index} can store ({index.scale:g}, fixed when it was made) and were clipped at 255",
                self.config.quiet,
            )
        return new, meta["clipped"]

    def _encode(
        self, job: ChangeJob, work: Path, index: Index, encoder: Encoder, plan: _Plan
    ) -> list[Path]:
        """The files of the encoded windows, in order."""
        paths = []
        separator = index.meta["encoder"]["title_separator"]
        size = (index.meta.get("settings") or {}).get("window") or WINDOW
        with progress("encode", "documents", total=plan.encoded, quiet=self.config.quiet) as bar:
            for window in windows(plan.documents(), size):
                job.check_deadline()
                digest = documents_digest(window)
                path = work / f"window-{digest[:32]}.safetensors"
                if path.exists() and read_header(path)["documents"] == digest:
                    self.resumed += len(window)
                    if not bar.disable:  # read but not encoded: fills the bar but not the rate
                        bar.initial += len(window)
                else:
                    representation = represent(encoder, window, separator)
                    texts = index.segments[0].has_part("texts")
                    encoded = EncodedWindow.of(window, representation, index.scale, texts=texts)
                    write_window(path, encoded.to_bytes(digest))
                paths.append(path)
                bar.update(len(window))
        return paths


def _sweep_windows(job: ChangeJob) -> None:
    """Remove saved windows whose documents the index has, and the work folder if no others are left."""
    paths = window_paths(job.work)
    if paths:
        index = job.current()
        digests = index.digests
        there = (
            set()
            if digests is None
            else {digests[row].tobytes() for row in np.flatnonzero(index.live)}
        )
        for path in paths:
            with suppress(IndexMismatch):
                if not set(EncodedWindow.read(path).digests or ()) <= there:
                    continue
            path.unlink()
    if left := window_paths(job.work):
        say(
            f"note: {len(left)} window(s) of an unfinished change are kept for it; --restart discards them",
            job.quiet,
        )
    else:
        job.discard()


def _work_settings(index: Index, name: str) -> Mapping[str, object]:
    """What decides the bytes of a saved window."""
    recorded = index.meta.get("encoder")
    if not recorded:
        raise IndexMismatch(
            f"{name}: meta.json does not name the encoder, so nothing can be added; encode it again"
        )
    shared = {name: recorded.get(name) for name in _WORK}
    return {
        "model": shared.pop("digest"),
        **shared,
        "scale": index.scale,
        "parts": ",".join(index.meta["parts"]),
    }


def _encoder(index: Index, config: ChangeOptions) -> Encoder:
    """The encoder that the index records, or ``config.model``. Raises :class:`IndexMismatch` for another one."""
    recorded = index.meta["encoder"]
    name = recorded["name"] if config.model is None else config.model
    try:
        options: EncoderOptions = {
            **recorded_options(index.meta),
            "device": config.device,
            "dtype": recorded["dtype"],
        }
        encoder = load_encoder(None if name == "default" else name, **options)
    except CheckpointError as e:
        hint = (
            ""
            if config.model
            else f" (recorded in {config.index}/meta.json; if it moved, name it as `model`)"
        )
        raise CheckpointError(f"{e}{hint}") from None
    _check_encoder(encoder, recorded, config.index)
    return encoder


def _check_encoder(encoder: Encoder, recorded: Mapping[str, Any], name: str) -> None:
    if encoder.digest != recorded["digest"]:
        raise IndexMismatch(
            f"{name} was encoded by {recorded['name']} (digest {recorded['digest'][:12]}), and {encoder.name} is "
            f"another model (digest {encoder.digest[:12]}); add documents with the former, or encode everything again"
        )
    wrong = [n for n in _COMPARED if n in recorded and recorded[n] != getattr(encoder.settings, n)]
    vocabulary = vocabulary_record(encoder.terms)
    if wrong or recorded.get("vocabulary", vocabulary) != vocabulary:
        raise IndexMismatch(
            f"{name}: {encoder.name} has another {', '.join(wrong) or 'vocabulary'} than the index records"
        )
