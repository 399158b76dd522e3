"""``dupmae-ir index add`` and ``index update``: encode what is new or changed into a new segment.

The collection is read once, without a model: the digest of each document tells whether the index has it. Documents that
it lacks are written to a nameless temporary file and then encoded in windows, each saved in the work folder under the
digest of its documents. A killed run leaves its windows; any later change of the index that encodes the same documents
uses them. The scale of the index is fixed, so later weights may be clipped at 255: they are counted and reported.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

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
    windows,
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
    deleted: int = 0  #: documents that the collection lacks
    rows_to_delete: list[int] = field(
        default_factory=list
    )  #: of deleted documents, and old rows of updated ones

    @property
    def encoded(self) -> int:
        return self.added + self.updated

    def documents(self) -> Iterator[Document]:
        """The documents to encode, in the order of the collection."""
        self.spool.seek(0)
        for line in self.spool:
            yield Document(*json.loads(line))


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
        self.resumed = 0

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
                now = {
                    "added_now": plan.added,
                    "updated_now": plan.updated,
                    "deleted_now": plan.deleted,
                    "unchanged_now": plan.unchanged,
                }
                if not plan.encoded and not plan.rows_to_delete:
                    result = job.unchanged(index, now)
                else:
                    segment = None
                    clipped = 0
                    if plan.encoded:
                        segment, clipped = self._encode_segment(job, index, collection, plan)
                    now |= {"clipped_now": clipped, "resumed": self.resumed}
                    deleted = np.array(plan.rows_to_delete, np.int64)
                    # Only `index sync` reads everything that the index has afterwards.
                    reads_all = self.command == "index sync" and paths is None
                    sources = collection.report if reads_all else None
                    result = job.commit(index, deleted, segment, now, sources=sources)
            # Only after the commit: until then a killed run continues from its windows.
            _sweep_windows(job)
            return {**result, "seconds": round(time.monotonic() - self.started, 2)}

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
        if row is None:
            plan.added += 1
        elif self.command == "index add":
            raise UsageError(
                f"{self.config.index} already has a document {document.docid!r} with other contents; nothing was "
                "added. Replace documents with: dupmae-ir index update"
            )
        else:
            plan.updated += 1
            plan.rows_to_delete.append(row)
        plan.spool.write(json.dumps(list(document)) + "\n")

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
                f"{self.config.corpus} has none of the {index.documents:,} documents of {self.config.index}, so all of "
                "them would be deleted; name the right collection, or pass `replace_all`"
            )
        plan.rows_to_delete += missing
        plan.deleted = len(missing)

    def _encode_segment(
        self, job: ChangeJob, index: Index, collection: DocumentSource, plan: _Plan
    ) -> tuple[Path, int]:
        """Encode the documents of the plan; returns the new segment and the number of weights that were clipped."""
        work = job.begin()
        encoder = self.encoders.get(index, self.config)
        languages = _Languages(work, index)
        paths = self._encode_windows(job, work, index, encoder, plan, languages)
        terms: Sequence[str] | None = index.terms if index.has_ot else None
        if languages.factors and encoder.terms is not None:
            terms = terms_in_languages(encoder.terms)
        new = job.fresh("segment")
        with progress("index", collection.unit, total=plan.encoded, quiet=self.config.quiet) as bar:
            meta = build_index(
                map(EncodedWindow.read, paths),
                new,
                dim=index.dim,
                terms=terms,
                scale=index.scale,
                describe=lambda: {
                    "made_by": f"dupmae-ir {self.command}",
                    "inputs": [dataclasses.asdict(source) for source in collection.inputs],
                    "languages": languages.factors,
                },
                on_documents=bar.update,
                texts=index.segments[0].has_part("texts"),
                excerpts=index.has_excerpts,
            )
        build_optional(index, new)
        if meta["clipped"]:
            say(
                f"note: {meta['clipped']:,} of {meta['postings']:,} weights are above the highest that the scale of "
                f"{self.config.index} can store ({index.scale:g}, fixed when it was made) and were clipped at 255",
                self.config.quiet,
            )
        note = truncation_note(meta, encoder.settings, collection.unit)
        say(note, self.config.quiet or not note)
        return new, meta["clipped"]

    def _encode_windows(
        self,
        job: ChangeJob,
        work: Path,
        index: Index,
        encoder: Encoder,
        plan: _Plan,
        languages: _Languages,
    ) -> list[Path]:
        """The files of the encoded windows, in order."""
        paths = []
        separator = index.meta["encoder"]["title_separator"]
        measure = self._excerpt_measure(index)
        texts = index.segments[0].has_part("texts")
        size = (index.meta.get("settings") or {}).get("window") or WINDOW
        with progress("encode", "documents", total=plan.encoded, quiet=self.config.quiet) as bar:
            for window in windows(plan.documents(), size):
                job.check_deadline()
                # By contents, not by number: another change may have other documents before these.
                digest = documents_digest(window)
                path = work / f"window-{digest[:32]}.safetensors"
                if path.exists() and read_header(path)["documents"] == digest:
                    self.resumed += len(window)
                    if not bar.disable:  # read but not encoded: fills the bar but not the rate
                        bar.initial += len(window)
                else:
                    own = languages.of(window, encoder)
                    representation, excerpts = represent_with_excerpts(
                        encoder, window, separator, own, measure
                    )
                    encoded = quantised_window(
                        window,
                        representation,
                        index.scale,
                        texts,
                        index.language,
                        own,
                        languages.factors,
                        excerpts,
                    )
                    write_window(path, encoded.to_bytes(digest))
                paths.append(path)
                bar.update(len(window))
        return paths

    def _excerpt_measure(self, index: Index) -> TokenMeasure | None:
        """What measures the excerpts of an index; None if it has none. Raises :class:`IndexMismatch` for an index whose
        excerpts are of another length."""
        if index.excerpts is None:
            return None
        if index.excerpts != excerpt_record():
            raise IndexMismatch(
                f"{self.config.index} has excerpts of another version; encode it again"
            )
        return excerpt_measure(_model(index.meta["encoder"], self.config))


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
