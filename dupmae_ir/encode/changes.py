"""``dupmae-ir index add`` and ``index update``: encode what is new or changed into a new segment.

The collection is read once, without a model: the digest of each document tells whether the index has it. Documents that
it lacks are written to a nameless temporary file and then encoded in windows, each saved in the work folder under the
digest of its documents. A killed run leaves its windows; any later change of the index that encodes the same documents
uses them. ``index sync`` makes a large change in steps, each as large as all before it, so that the first documents can
be searched early and the index has few segments. The scale of the index is fixed, so later weights may be clipped at
255: they are counted and reported.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from tqdm import tqdm

from dupmae_ir.console import progress, say
from dupmae_ir.device import with_torch_threads
from dupmae_ir.encode.document_languages import document_languages, measured_factors
from dupmae_ir.encode.excerpts import excerpt_measure, excerpt_record
from dupmae_ir.encode.run import truncation_note, vocabulary_record
from dupmae_ir.encode.window_encoding import quantised_window, represent_with_excerpts
from dupmae_ir.encode.windows import (
    EncodedWindow,
    build_index,
    document_digest,
    documents_digest,
    read_header,
    window_paths,
    write_window,
)
from dupmae_ir.errors import CheckpointError, IndexMismatch, UsageError
from dupmae_ir.index.changes.changes import ChangeJob, build_optional
from dupmae_ir.index.config import AddConfig, ChangeOptions, ChangeResult, SyncConfig, UpdateConfig
from dupmae_ir.index.format.manifest import Meta, recorded_options
from dupmae_ir.index.index import Index
from dupmae_ir.io.collections import DocumentSource
from dupmae_ir.io.documents.collection import DocumentCollection
from dupmae_ir.io.documents.names import is_at
from dupmae_ir.io.documents.passages import EstimatedTokens, TokenMeasure
from dupmae_ir.io.publishing import read_json_object, write_json
from dupmae_ir.io.sources import READING, file_report
from dupmae_ir.models import load_encoder
from dupmae_ir.models.heads.lexical import terms_in_languages
from dupmae_ir.models.names import DEFAULT
from dupmae_ir.models.word_pieces import read_word_pieces
from dupmae_ir.types import Document, Encoder, EncoderOptions

WINDOW = 1024
"""Documents of a window for an index that does not record its own."""
_COMPARED_SETTINGS = (
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
"""Settings of an encoder that must be those of the encoder that made the index."""
_SAVED_WINDOW_SETTINGS = ("digest", "title_separator", "excerpts", *_COMPARED_SETTINGS)
"""Settings that decide the bytes of a saved window."""


@with_torch_threads
def run_add(config: AddConfig) -> ChangeResult:
    """Add documents and return a summary. Documents that the index has already are skipped.

    Raises :class:`UsageError` for a document whose id the index has with another text; nothing is added then.
    """
    return Change(config, "index add")()


@with_torch_threads
def run_update(config: UpdateConfig) -> ChangeResult:
    """Add documents, replacing those of the same ids that changed, and return a summary."""
    return Change(config, "index update")()


@dataclass
class _Plan:
    """What a change does. Documents to encode are on the disk, since they may be most of the collection."""

    spool: IO[str]  #: the documents to encode, one JSON list a line
    added: int = 0
    updated: int = 0
    unchanged: int = 0
    old_rows: list[int] = field(default_factory=list)  #: of each document to encode; -1 for none
    deleted: list[int] = field(default_factory=list)  #: rows of documents that the collection lacks

    @property
    def encoded(self) -> int:
        return self.added + self.updated

    def add(self, document: Document, old_row: int | None) -> None:
        """Plan to encode a document, in the place of the one in ``old_row`` if the index has another version of it."""
        if old_row is None:
            self.added += 1
            self.old_rows.append(-1)
        else:
            self.updated += 1
            self.old_rows.append(old_row)
        self.spool.write(json.dumps(list(document)) + "\n")

    def steps(self, size: int, at_once: bool) -> Iterator[_Step]:
        """Split the documents into steps, each with windows of ``size`` documents, in the order of the collection.

        Each step doubles the number of encoded documents, so a large change has few steps. If little is left after a
        step, it is added to that step. A change of at most two windows, or one made ``at_once``, is a single step.
        """
        self.spool.seek(0)
        documents = (Document(*json.loads(line)) for line in self.spool)
        windows = iter(lambda: list(islice(documents, size)), [])
        first = 0
        is_last = False
        # Once without documents, too, for what is deleted.
        while not is_last:
            end = max(2 * first, size)
            if at_once or self.encoded < end + end // 4 or self.encoded <= 2 * size:
                end = self.encoded
            is_last = end == self.encoded
            deleted = [row for row in self.old_rows[first:end] if row >= 0]
            if is_last:
                deleted += self.deleted
            yield _Step(islice(windows, -(-(end - first) // size)), end, deleted, is_last)
            first = end


class _Step(NamedTuple):
    """A part of a change that is made at once."""

    windows: Iterator[list[Document]]  #: the documents to encode
    end: int  #: number of documents of the change that are encoded after this step
    deleted: list[int]  #: rows that are deleted in this step
    is_last: bool


class EncoderCache:
    """The encoder of an index, loaded for the first documents, kept for the next change."""

    def __init__(self) -> None:
        self._encoder: Encoder | None = None
        self._measure: TokenMeasure | None = None

    def measure(self, index: Index, config: ChangeOptions) -> TokenMeasure:
        """How long passages are for this encoder, without loading it."""
        if self._measure is None:
            recorded = index.meta["encoder"]
            try:
                self._measure = read_word_pieces(
                    _model(recorded, config),
                    recorded.get("document_length"),
                    recorded.get("title_separator"),
                )
            except CheckpointError as e:
                raise _moved(e, config) from None
            self._measure = self._measure or EstimatedTokens()
        return self._measure

    def get(self, index: Index, config: ChangeOptions) -> Encoder:
        """The encoder that the index records, or ``config.model``. Raises :class:`IndexMismatch` for another one."""
        if self._encoder is None:
            self._encoder = _load_encoder(index, config)
        else:
            _check_encoder(self._encoder, index.meta["encoder"], config.index)
        return self._encoder


class Change:
    """One run of a command.

    ``changed``: absolute paths; only files at these paths, and below them, are compared with the index.
    """

    def __init__(
        self,
        config: ChangeOptions,
        command: str,
        encoders: EncoderCache | None = None,
        changed: Collection[str] | None = None,
    ) -> None:
        self.config = config
        self.command = command
        self.encoders = encoders or EncoderCache()
        self.changed = changed
        self.started = time.monotonic()

    def __call__(self) -> ChangeResult:
        config = self.config
        with ChangeJob(
            config.index, self.command, restart=config.restart, quiet=config.quiet
        ) as job:
            index = job.current()
            job.settings = _work_settings(index, config.index)
            collection = self._collection(index.meta)
            if isinstance(collection, DocumentCollection):
                collection.measure = self.encoders.measure(index, config)
            paths = None
            if self.changed is not None:
                assert isinstance(collection, DocumentCollection)
                paths = collection.restrict(self.changed)
            # Not in /tmp, which is often small: this may be most of a collection.
            with tempfile.TemporaryFile("w+", encoding="utf-8", dir=job.target.parent) as spool:
                plan = _Plan(spool)
                self._compare(index, collection, plan, paths)
                # Only `index sync` reads everything that the index has afterwards.
                reads_all = self.command == "index sync" and paths is None
                if not plan.encoded and not plan.deleted:
                    result = job.unchanged(index, self._counts(plan))
                else:
                    result = self._make(job, index, collection, plan, reads_all)
            # Only after the commit: until then a killed run continues from its windows.
            _sweep_windows(job)
            return {**result, "seconds": round(time.monotonic() - self.started, 2)}

    def _counts(self, plan: _Plan) -> dict[str, int]:
        return {
            "added_now": plan.added,
            "updated_now": plan.updated,
            "deleted_now": len(plan.deleted),
            "unchanged_now": plan.unchanged,
        }

    def _make(
        self, job: ChangeJob, index: Index, collection: DocumentSource, plan: _Plan, reads_all: bool
    ) -> ChangeResult:
        """Make the change, step by step. ``reads_all``: the index has nothing but the collection afterwards."""
        size = (index.meta.get("settings") or {}).get("window") or WINDOW
        now = {**self._counts(plan), "clipped_now": 0, "resumed": 0}
        unit = collection.unit
        with progress("encode", unit, total=plan.encoded, quiet=self.config.quiet) as bar:
            segments = None
            if plan.encoded:
                segments = _Segments(self, job, index, collection, bar)
            # An addition or update is made completely or not at all.
            for step in plan.steps(size, at_once=self.command != "index sync"):
                segment = None
                if segments is not None:
                    segment = segments.make(step.windows)
                    now["clipped_now"] = segments.counts["clipped"]
                    now["resumed"] = segments.resumed
                result = job.commit(
                    job.current(),
                    np.array(step.deleted, np.int64),
                    segment,
                    now,
                    sources=collection.report if reads_all and step.is_last else None,
                )
                if not step.is_last:
                    say(
                        f"{self.config.index}: {step.end:,} of {plan.encoded:,} {unit} can be searched",
                        self.config.quiet,
                    )
        if segments is not None:
            segments.say_losses()
        return result

    def _collection(self, meta: Meta) -> DocumentSource:
        """The collection, read as the one that the index was made from unless flags say otherwise."""
        recorded = meta.get("settings") or {}
        changes: dict[str, Any] = {}
        for option in dataclasses.fields(self.config):
            value = recorded.get(option.name)
            is_set = getattr(self.config, option.name) != option.default
            if option.name not in READING or value is None or is_set:
                continue
            # JSON has lists for the tuples of a config.
            changes[option.name] = tuple(value) if isinstance(value, list) else value
        return dataclasses.replace(self.config, **changes).collection()

    def _compare(
        self, index: Index, collection: DocumentSource, plan: _Plan, paths: Collection[str] | None
    ) -> None:
        """Compare the collection with the index and fill the plan; with ``paths``, only the files at these."""
        live = index.live
        if paths is not None:
            live = live & _rows_at(index, paths)
        rows = {docid: row for row, docid in enumerate(index.docids) if live[row]}
        digests = index.digests
        if digests is None and self.command != "index add":
            say(
                f"note: {self.config.index} has no digests of its documents: all are encoded again",
                self.config.quiet,
            )
        unseen = live.copy()  # live rows whose documents the collection has not had so far
        with progress("read", collection.unit, quiet=self.config.quiet) as bar:
            for document in collection:
                row = rows.get(document.docid)
                is_unchanged = False
                if row is not None:
                    unseen[row] = False
                    if digests is not None:
                        is_unchanged = digests[row].tobytes() == document_digest(document)
                if is_unchanged:
                    plan.unchanged += 1
                else:
                    self._plan_encoding(document, row, plan)
                bar.update()
        # Of a few changed files, only what is wrong with them is news.
        if paths is None or collection.has_problems:
            report = file_report(collection.report)
            if report:
                say(f"{collection.source}:{report}", self.config.quiet)
        if self.command == "index sync":
            self._plan_deletions(index, collection, np.flatnonzero(unseen).tolist(), plan)

    def _plan_encoding(self, document: Document, row: int | None, plan: _Plan) -> None:
        """Plan to encode a document and, if the index has another version of it, to delete its ``row``."""
        if row is not None and self.command == "index add":
            raise UsageError(
                f"{self.config.index} already has a document {document.docid!r} with other contents; nothing was "
                "added. Replace documents with: dupmae-ir index update"
            )
        plan.add(document, row)

    def _plan_deletions(
        self, index: Index, collection: DocumentSource, unseen: list[int], plan: _Plan
    ) -> None:
        """Plan to delete the rows whose documents the collection did not have, except for files it could not read."""
        missing = [row for row in unseen if not collection.may_have(index.docids[row])]
        kept = len(unseen) - len(missing)
        if kept:
            say(
                f"note: {kept:,} passages of files that cannot be read now were kept",
                self.config.quiet,
            )
        deletes_all = index.documents > 0 and len(missing) == index.documents
        if deletes_all and isinstance(self.config, SyncConfig) and not self.config.replace_all:
            raise UsageError(
                f"{collection.source} has none of the {index.documents:,} documents of {self.config.index}, so all of "
                "them would be deleted; name the right collection, or pass `replace_all`"
            )
        plan.deleted = missing


class _Segments:
    """Makes the segments of a change."""

    def __init__(
        self,
        change: Change,
        job: ChangeJob,
        index: Index,
        collection: DocumentSource,
        bar: tqdm[Any],
    ) -> None:
        self._config = change.config
        self._job = job
        self._index = index
        self._collection = collection
        self._bar = bar
        self._work = job.begin()
        self._encoder = change.encoders.get(index, change.config)
        self._languages = _Languages(self._work, index)
        self._measure = self._excerpt_measure()
        self._has_texts = index.segments[0].has_part("texts")
        self.resumed = 0  #: documents that an earlier run has encoded
        self.counts = {"documents": 0, "postings": 0, "clipped": 0, "truncated": 0}

    def make(self, windows: Iterable[list[Document]]) -> Path:
        """Encode documents into the index folder of a new segment."""
        index = self._index
        paths = [self._encode(window) for window in windows]
        terms: Sequence[str] | None = index.terms if index.has_ot else None
        if self._languages.factors and self._encoder.terms is not None:
            terms = terms_in_languages(self._encoder.terms)
        new = self._job.fresh("segment")
        meta = build_index(
            map(EncodedWindow.read, paths),
            new,
            dim=index.dim,
            terms=terms,
            scale=index.scale,
            describe=lambda: {
                "made_by": f"dupmae-ir {self._job.command}",
                "inputs": [dataclasses.asdict(source) for source in self._collection.inputs],
                "languages": self._languages.factors,
            },
            texts=self._has_texts,
            excerpts=index.has_excerpts,
        )
        build_optional(index, new)
        for name in self.counts:
            self.counts[name] += meta[name]
        return new

    def say_losses(self) -> None:
        """Say what of the documents the index lacks: weights above its scale, and the ends of long texts."""
        counts = self.counts
        quiet = self._config.quiet
        if counts["clipped"]:
            say(
                f"note: {counts['clipped']:,} of {counts['postings']:,} weights are above the highest that the scale "
                f"of {self._config.index} can store ({self._index.scale:g}, fixed when it was made) and were clipped "
                "at 255",
                quiet,
            )
        note = truncation_note(counts, self._encoder.settings, self._collection.unit)
        say(note, quiet or not note)

    def _encode(self, window: list[Document]) -> Path:
        """The file of an encoded window."""
        self._job.check_deadline()
        # By contents, not by number: another change may have other documents before these.
        digest = documents_digest(window)
        path = self._work / f"window-{digest[:32]}.safetensors"
        if path.exists() and read_header(path)["documents"] == digest:
            self.resumed += len(window)
            if not self._bar.disable:  # read but not encoded: fills the bar but not the rate
                self._bar.initial += len(window)
        else:
            index = self._index
            own = self._languages.of(window, self._encoder)
            representation, excerpts = represent_with_excerpts(
                self._encoder, window, index.meta["encoder"]["title_separator"], own, self._measure
            )
            encoded = quantised_window(
                window,
                representation,
                index.scale,
                self._has_texts,
                index.language,
                own,
                self._languages.factors,
                excerpts,
            )
            write_window(path, encoded.to_bytes(digest))
        self._bar.update(len(window))
        return path

    def _excerpt_measure(self) -> TokenMeasure | None:
        """What measures the excerpts of the index; None if it has none. Raises :class:`IndexMismatch` for an index
        whose excerpts are of another length."""
        excerpts = self._index.excerpts
        if excerpts is None:
            return None
        if excerpts != excerpt_record():
            raise IndexMismatch(
                f"{self._config.index} has excerpts of another version; encode it again"
            )
        return excerpt_measure(_model(self._index.meta["encoder"], self._config))


class _Languages:
    """The languages of documents that are added to ``index``, and the factors of their vectors.

    Factors are saved in the work folder before the first window that has the language.
    """

    def __init__(self, work: Path, index: Index) -> None:
        encoder = index.meta["encoder"]
        self._path = work / "languages.json"
        self._index = index
        #: an index of one chosen language, and one without stored texts, has no languages
        self._recognises = "languages" in encoder
        self.factors: dict[str, float] = {}
        if self._recognises:
            self.factors = {**encoder["languages"], **read_json_object(self._path)}

    def of(self, documents: Sequence[Document], encoder: Encoder) -> list[str] | None:
        """The language of each document; None if the index does not recognise them."""
        if not self._recognises:
            return None
        languages = document_languages(documents, self._index.language)
        reading = self._index.meta["encoder"].get("reading")
        usual_weight = reading["weight"] if reading else 1.0
        factors = measured_factors(encoder, documents, languages, self.factors, usual_weight)
        if factors:
            self.factors |= factors
            write_json(self._path, self.factors)
        return languages


def _rows_at(index: Index, paths: Collection[str]) -> np.ndarray:
    """(rows,) bool: the rows whose files are at some paths, or below them."""
    is_there = np.zeros(len(index.live), bool)
    for path, rows in index.files.items():
        if is_at(path, paths):
            is_there[rows] = True
    return is_there


def _sweep_windows(job: ChangeJob) -> None:
    """Remove saved windows whose documents the index has, and the work folder if no others remain."""
    paths = window_paths(job.work)
    if paths:
        indexed = _live_digests(job.current())
        for path in paths:
            # A window that cannot be read is removed, too.
            with suppress(IndexMismatch):
                if not set(EncodedWindow.read(path).digests or ()) <= indexed:
                    continue
            path.unlink()
    remaining = window_paths(job.work)
    if remaining:
        say(
            f"note: {len(remaining)} window(s) of an unfinished change are kept for it; --restart discards them",
            job.quiet,
        )
    else:
        job.discard()


def _live_digests(index: Index) -> set[bytes]:
    digests = index.digests
    if digests is None:
        return set()
    return {digests[row].tobytes() for row in np.flatnonzero(index.live)}


def _work_settings(index: Index, name: str) -> Mapping[str, object]:
    """The settings of unfinished work: windows saved with others cannot be used."""
    recorded = index.meta.get("encoder")
    if not recorded:
        raise IndexMismatch(
            f"{name}: meta.json does not name the encoder, so nothing can be added; encode it again"
        )
    shared = {setting: recorded.get(setting) for setting in _SAVED_WINDOW_SETTINGS}
    return {
        "model": shared.pop("digest"),
        **shared,
        "scale": index.scale,
        "parts": ",".join(index.meta["parts"]),
    }


def _load_encoder(index: Index, config: ChangeOptions) -> Encoder:
    """The encoder that the index records, or ``config.model``. Raises :class:`IndexMismatch` for another one."""
    recorded = index.meta["encoder"]
    options: EncoderOptions = {
        **recorded_options(index.meta),
        "device": config.device,
        "dtype": recorded["dtype"],
    }
    try:
        encoder = load_encoder(_model(recorded, config), **options)
    except CheckpointError as e:
        raise _moved(e, config) from None
    _check_encoder(encoder, recorded, config.index)
    return encoder


def _model(recorded: Mapping[str, Any], config: ChangeOptions) -> str | None:
    """The model that an index records, or ``config.model``; None for the embedded one."""
    name = str(recorded["name"]) if config.model is None else config.model
    return None if name == DEFAULT else name


def _moved(error: CheckpointError, config: ChangeOptions) -> CheckpointError:
    """The error, with the advice to name the model unless the command did."""
    if config.model:
        return error
    return CheckpointError(
        f"{error} (recorded in {config.index}/meta.json; if it moved, name it as `model`)"
    )


def _check_encoder(encoder: Encoder, recorded: Mapping[str, Any], name: str) -> None:
    if encoder.digest != recorded["digest"]:
        raise IndexMismatch(
            f"{name} was encoded by {recorded['name']} (digest {recorded['digest'][:12]}), and {encoder.name} is "
            f"another model (digest {encoder.digest[:12]}); add documents with the former, or encode everything again"
        )
    differing = []
    for setting in _COMPARED_SETTINGS:
        # Older indexes record fewer settings.
        if setting in recorded and recorded[setting] != getattr(encoder.settings, setting):
            differing.append(setting)
    vocabulary = vocabulary_record(encoder.terms)
    if differing or recorded.get("vocabulary", vocabulary) != vocabulary:
        raise IndexMismatch(
            f"{name}: {encoder.name} has another {', '.join(differing) or 'vocabulary'} than the index records"
        )
