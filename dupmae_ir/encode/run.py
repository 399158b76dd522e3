"""The resumable encoding run: reads a collection, writes an index folder.

Documents are read in windows. An executor encodes each window into the bytes of one window file, which is complete or
not there; after the last one the index is built from them and moved into place. A killed run leaves its window files:
the same command reads the collection again, checks each file against its documents, and continues. Because a window is
always encoded as one, the resumed index is bit-identical to that of an undisturbed run.

One machine's share (``--shard``), several devices and a Ray cluster are the same loop: :meth:`_Run._windows` says which
windows are missing, the :class:`~dupmae_ir.encode.executors.Executor` encodes them, and the
:class:`~dupmae_ir.encode.windows.WindowFiles` keep them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import Any, Self, cast

from tqdm import tqdm

from dupmae_ir import __version__
from dupmae_ir.config import to_dict
from dupmae_ir.console import progress, say
from dupmae_ir.device import MIXED, with_torch_threads
from dupmae_ir.encode.config import EncodeConfig, EncodeResult
from dupmae_ir.encode.executors import DevicePool, Executor, RayPool, ThisProcess
from dupmae_ir.encode.reading import READS_WELL, Reading
from dupmae_ir.encode.window_encoding import EncoderChoice, EncoderFacts, WindowResult
from dupmae_ir.encode.windows import Window, WindowFiles, build_index, documents_digest, windows
from dupmae_ir.errors import IndexMismatch, UsageError
from dupmae_ir.index.changes.object_store import Output
from dupmae_ir.index.format.manifest import META, Meta, check_target, read_meta
from dupmae_ir.io.collections import DocumentSource
from dupmae_ir.io.documents.collection import DocumentCollection
from dupmae_ir.io.jobs import Job, JobRecord
from dupmae_ir.io.publishing import combined_digest
from dupmae_ir.models.checkpoints.layout import CONFIG
from dupmae_ir.models.languages import AUTO, ENGLISH, collection_language
from dupmae_ir.models.names import model_folder
from dupmae_ir.types import Document, Encoder

LONG = 900.0
"""Seconds of encoding above which :data:`SOONER` is printed."""
SOONER = (
    "encoding takes more than 15 minutes here; --parts ot with another --index makes an index of words alone in about "
    "a tenth of the time"
)


@with_torch_threads
def run(config: EncodeConfig) -> EncodeResult:
    """Encode ``config.corpus`` into ``config.index`` and return the summary.

    Raises :class:`DupmaeError` subclasses. An existing index stays as it was until the new one is complete, and
    finished windows stay for the next run.
    """
    config.shard_of()
    output = Output(config.index, overwrite=config.overwrite, quiet=config.quiet)
    collection = config.collection()
    check_target(output.folder)
    collection.check()  # before the model is loaded
    if isinstance(collection, DocumentCollection):
        config = dataclasses.replace(config, dtype=config.dtype or MIXED)
        if note := collection.dominating:
            say(f"note: {note}", config.quiet)
    output.prepare()
    batches = windows(collection, config.window)
    first = list(islice(batches, 1))
    chosen = config.language if "ot" in config.parts else ENGLISH
    language, note = collection_language(
        chosen, (document.joined() for window in first for document in window)
    )
    with closing(_executor(config, language)) as executor, output.named():
        if executor.facts.settings.ot == "lexical":
            say(note, config.quiet or not note)
        elif config.language != AUTO:
            raise UsageError(
                "`language` is for word weights with stems; the terms of this model are its tokenizer's"
            )
        result = _Run(config, output, collection, executor, chain(first, batches))()
    return cast("EncodeResult", output.publish(result))


class IndexJob(Job):
    """A job whose target is an index folder; :mod:`dupmae_ir.index.changes.builder` writes its ``meta.json``."""

    ADVICE = "Name another `index`, or pass `overwrite`"

    def __enter__(self) -> Self:
        check_target(self.target)
        super().__enter__()
        return self

    def write_record(self, made: Path, record: Mapping[str, Any]) -> None:
        """Nothing: the builder has written ``meta.json``, which :meth:`recorded` reads."""

    def check_replaceable(self) -> None:
        """Any index folder may be replaced; :meth:`__enter__` refuses everything else."""

    def meta(self) -> Meta:
        """The meta of the existing index. Raises :class:`UsageError` where it does not record settings."""
        meta = read_meta(self.target)
        if not isinstance(meta.get("settings"), dict) or not isinstance(meta.get("inputs"), list):
            raise UsageError(
                f"{self.target / META}: not written by dupmae-ir encode; name another `index`"
            )
        return meta


class EncodeJob(IndexJob):
    """``dupmae-ir encode``. An index that encode.merge made from the same settings and inputs is also its output."""

    START_OVER = "pass `restart`"

    def recorded(self) -> JobRecord:
        """The record in ``meta.json``.

        Raises :class:`IndexMismatch` for an index that was changed since it was encoded.
        """
        meta = self.meta()
        if meta["generation"]:
            raise IndexMismatch(
                f"{self.target} was changed since it was encoded, by {meta['changed_by']}; bring it up to date with "
                f"dupmae-ir index sync, or pass `overwrite`"
            )
        return {
            "made_by": f"dupmae-ir {self.command}",
            "settings": meta["settings"],
            "inputs": {"corpus": combined_digest([i["sha256"] for i in meta["inputs"]])},
            "result": index_summary(meta),
        }


def index_summary(meta: Meta) -> dict[str, object]:
    """The part of a meta that a command reports."""
    names = (
        "documents",
        "empty_documents",
        "parts",
        "dim",
        "scale",
        "scale_source",
        "postings",
        "clipped",
        "digest",
    )
    return {name: meta.get(name) for name in names} | (
        {"sources": meta["sources"]} if "sources" in meta else {}
    )


class EncodingBar:
    """The progress of encoding, in bytes of the collection, or in documents if its size is not known."""

    def __init__(self, bar: tqdm[Any], collection: DocumentSource) -> None:
        self.bar, self.collection = bar, collection
        self._read = 0
        self._sizes: dict[int, int] = {}  # of the windows that were read and not encoded, by number
        self._shown: dict[int, int] = {}  # how much of each the bar has

    def read(self, number: int, documents: int) -> None:
        """A window was read: its size is the bytes since the window before."""
        position = self.collection.bytes_read
        self._sizes[number] = position - self._read if self.collection.total_bytes else documents
        self._read = position

    def advance(self, number: int, share: float) -> None:
        """A ``share`` of a window is encoded, 0 to 1."""
        shown = int(share * self._sizes.get(number, 0))
        self.bar.update(shown - self._shown.get(number, 0))
        self._shown[number] = shown

    def finish(self, number: int, note: str) -> None:
        """A window is encoded and saved; ``note`` is shown after the bar."""
        self.bar.set_postfix_str(note, refresh=False)
        self.advance(number, 1.0)
        del self._sizes[number], self._shown[number]

    def skip(self, number: int) -> None:
        """A window need not be encoded: it fills the bar but does not count for the rate."""
        left = self._sizes.pop(number) - self._shown.pop(number, 0)
        if not self.bar.disable:
            self.bar.initial += left
        self.bar.update(left)


class _Run:
    """One run: its settings, and the steps from the collection to the summary."""

    def __init__(
        self,
        config: EncodeConfig,
        output: Output,
        collection: DocumentSource,
        executor: Executor,
        batches: Iterable[list[Document]],
    ) -> None:
        self.config, self.output, self.collection, self.executor = (
            config,
            output,
            collection,
            executor,
        )
        self.batches = batches
        self.encoder = executor.facts
        self.shard, self.shards = config.shard_of()
        trained = self.encoder.settings.title_separator
        self.separator = EncoderChoice.of(config).separator(self.encoder.settings)
        if (
            self.separator != trained
            and config.model
            and (model_folder(config.model) / CONFIG).is_file()
        ):
            say(
                f"note: {config.model} was trained with title and text joined by {trained!r}; this index joins them by "
                f"{self.separator!r} (--title-separator {config.title_separator})",
                config.quiet,
            )
        self.started = time.monotonic()
        self.encoded = self.resumed = self.windows = 0
        self.at_work: dict[int, Window] = {}  # what the executor has, by number
        self.by_worker: dict[str, int] = {}  # documents, by worker

    def __call__(self) -> dict[str, object]:
        config = self.config
        with EncodeJob(
            self.output.target,
            "encode",
            self._settings(),
            config.digests,
            streamed=True,
            overwrite=config.overwrite,
            restart=config.restart,
            quiet=config.quiet,
        ) as job:
            result = job.finished() or self._make(job)
        seconds = time.monotonic() - self.started
        return {
            "index": config.index,
            **result,
            # What this run did, as opposed to what the index is.
            "encoded_now": self.encoded,
            "resumed": self.resumed,
            "seconds": round(seconds, 2),
            "documents_per_second": round(self.encoded / seconds, 1) if self.encoded else None,
            **({"by_worker_now": self.by_worker} if len(self.by_worker) > 1 else {}),
        }

    def _settings(self) -> dict[str, object]:
        """The settings that two runs must share for their windows to belong to one index, by the flags' names."""
        config, own = self.config, self.encoder.settings
        sparse = self.encoder.terms is not None
        return {
            "model": self.encoder.digest,
            "parts": config.parts,
            "document_length": own.document_length,
            "top_k": own.top_k if sparse else None,
            "activation": own.activation if sparse else None,
            "ot": own.ot if sparse and own.ot != "mlm" else None,
            "language": own.language if sparse and own.ot == "lexical" else None,
            "scale": (config.scale or own.impact_scale or "calibrated") if sparse else None,
            "dtype": own.dtype,
            "title_separator": self.separator,
            "normalize": own.normalize or None,
            "dimensions": own.dimensions,
            "fold_terms": own.fold_terms or None,
            "fields": list(config.fields),
            "docid_field": config.docid_field,
            "delimiter": config.unescaped_delimiter(),
            **self.collection.settings,
            "window": config.window,
            "shard": config.shard if self.shards > 1 else None,
            "store_texts": None if config.store_texts else False,
            "postings": None if config.postings else False,
        }

    def _make(self, job: EncodeJob) -> dict[str, Any]:
        """Encode what is missing, build the index and publish it."""
        files = WindowFiles(job.begin())
        try:
            self._encode(files)
        except BaseException:
            if not files.numbers():  # nothing that a resumption could use
                job.discard()
            raise
        folder, total = job.fresh("index"), self.encoded + self.resumed
        with progress("index", self.collection.unit, total=total, quiet=self.config.quiet) as bar:
            meta = build_index(
                files,
                folder,
                dim=self.encoder.dim,
                terms=self.encoder.terms,
                scale=files.scale.value if files.scale else None,
                describe=lambda: self._describe(job, files),
                on_documents=bar.update,
                texts=self.config.store_texts,
                postings=self.config.postings,
            )
        return job.publish(folder, index_summary(meta), inputs=self.collection.digests())

    def _encode(self, files: WindowFiles) -> None:
        if done := len(files.numbers()):
            say(f"resuming: checking {done} finished window(s)", self.config.quiet)
        total = self.collection.total_bytes  # the number of documents is known at the end only
        with progress(
            "encode", "B" if total else self.collection.unit, total or None, self.config.quiet
        ) as bar:
            work = EncodingBar(bar, self.collection)
            if isinstance(self.executor, ThisProcess):
                self.executor.on_share = work.advance
            missing = self._windows(files, work)
            # The first window chooses the scale, before any other is read; islice takes one and leaves the rest.
            for some in (islice(missing, 1), missing):
                for result in self.executor.encode(some):
                    self._commit(files, result, work)
        expected = list(range(self.shard, self.windows, self.shards))
        if not expected:
            raise UsageError(
                f"`shard` {self.config.shard}: the collection has only {self.windows} window(s); "
                f"use at most {self.windows} shards, or a smaller `window`"
            )
        if files.numbers() != expected:
            raise files.changed(self.collection.source, "it is shorter now")
        self.executor.close()  # its memory is free while the index is built

    def _windows(self, files: WindowFiles, bar: EncodingBar) -> Iterator[Window]:
        """The windows to encode: neither finished nor another machine's."""
        for number, documents in enumerate(self.batches):
            self.windows = number + 1
            bar.read(number, len(documents))
            window = Window(number, documents, documents_digest(documents))
            mine = number % self.shards == self.shard
            keep = mine and not files.has(window, self.collection.source, self.encoder.digest)
            calibrates = number == 0 and self.encoder.terms is not None and files.scale is None
            if keep or calibrates:
                self.at_work[number] = dataclasses.replace(window, scale=files.scale, keep=keep)
                yield self.at_work[number]
            if not keep:
                self.resumed += len(documents) if mine else 0
                bar.skip(number)

    def _commit(self, files: WindowFiles, result: WindowResult, bar: EncodingBar) -> None:
        """Write what a worker returned; from here on the window is finished."""
        window = self.at_work.pop(result.number)
        if result.scale is not None and files.scale is None:
            files.set_scale(result.scale, result.reading)
            if result.reading and result.reading.weight < 1:
                say(f"note: {reading_note(result.reading)}", self.config.quiet)
        if result.contents is None:
            return
        files.save(window, result.contents)
        self.encoded += len(window.documents)
        self.by_worker[result.worker] = self.by_worker.get(result.worker, 0) + len(window.documents)
        each = (
            [f"{name} {count:,}" for name, count in sorted(self.by_worker.items())]
            if len(self.by_worker) > 1
            else []
        )
        bar.finish(
            window.number,
            ", ".join([f"{self.encoded + self.resumed:,} {self.collection.unit}", *each]),
        )
        if window.number == 0 and self.encoder.settings.ot == "lexical" and self.encoder.dim:
            share = self.collection.bytes_read / (self.collection.total_bytes or 1)
            say(f"note: {SOONER}", self.config.quiet or not result.seconds > LONG * share > 0)

    def _describe(self, job: EncodeJob, files: WindowFiles) -> dict[str, object]:
        shard = (
            {"number": self.shard, "of": self.shards, "windows": self.windows}
            if self.shards > 1
            else None
        )
        return {
            "made_by": f"dupmae-ir {job.command}",
            "version": __version__,
            "encoder": encoder_record(self.encoder, self.separator, files.reading),
            "scale_source": files.scale.source if files.scale else None,
            "inputs": [dataclasses.asdict(i) for i in self.collection.inputs],
            **({"sources": report} if (report := self.collection.report) else {}),
            "settings": job.settings,
            "running": self.encoder.running,
            "shard": shard,
            "config": to_dict(self.config),
        }


def reading_note(reading: Reading) -> str:
    """What the weight of the dense score follows from."""
    return (
        f"the model knows little of this language: its vectors find {reading.found:.0%} of {reading.passages} passages "
        f"by their other halves (English: {READS_WELL:.0%}), so their weight in the sum is {reading.weight:g}; search "
        "--dense-weight changes it"
    )


def encoder_record(
    encoder: Encoder | EncoderFacts, separator: str, reading: Reading | None = None
) -> dict[str, object]:
    """The settings of the encoder that queries must share, as the meta records them."""
    settings = encoder.settings
    dense, impact = settings.part_weights
    dense *= reading.weight if reading else 1.0
    return {
        "name": encoder.name,
        "digest": encoder.digest,
        "document_length": settings.document_length,
        "query_length": settings.query_length,
        "top_k": settings.top_k,
        "activation": settings.activation,
        "dtype": settings.dtype,
        "title_separator": separator,
        "normalize": settings.normalize,
        **({"dimensions": settings.dimensions} if settings.dimensions else {}),
        **({"fold_terms": settings.fold_terms} if settings.fold_terms else {}),
        "ot": settings.ot,
        **({"head_scale": settings.head_scale} if settings.head_scale else {}),
        **({"language": settings.language} if settings.ot == "lexical" else {}),
        **(
            {"part_weights": {"dense": dense, "impact": impact}}
            if (dense, impact) != (1.0, 1.0)
            else {}
        ),
        **({"reading": dataclasses.asdict(reading)} if reading else {}),
        "vocabulary": vocabulary_record(encoder.terms),
    }


def vocabulary_record(terms: Sequence[str] | None) -> dict[str, object] | None:
    """Size and sha256 of the index terms, in the order of their ids; None for an encoder without the OT part."""
    if terms is None:
        return None
    return {
        "size": len(terms),
        "sha256": hashlib.sha256("\n".join(terms).encode("utf-8", "replace")).hexdigest(),
    }


def _executor(config: EncodeConfig, language: str) -> Executor:
    choice = EncoderChoice.of(config, language)
    if config.executor == "ray":
        return RayPool(choice, config.device, config.workers, config.quiet)
    if devices := config.device_names():
        return DevicePool(choice, devices, config.quiet)
    return ThisProcess(choice, config.device)
