"""The resumable encoding run: reads a collection, writes an index folder.

Documents are read in windows. Each window becomes one part file, which exists whole or not at all; after the last part
the index is built from them and moved into place. A killed run leaves its parts: the same command reads the collection
again, checks each finished part against its documents, and continues. Because a window is always encoded as a whole,
the resumed index is bit-identical to that of an undisturbed run.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from dupmae_ir import __version__
from dupmae_ir.config import to_dict
from dupmae_ir.console import progress, say
from dupmae_ir.device import with_torch_threads
from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.encode.device_workers import DeviceWorkers
from dupmae_ir.encode.estimate import estimate
from dupmae_ir.encode.jobs import EncodeJob, summary
from dupmae_ir.encode.ray_workers import RayWorkers
from dupmae_ir.encode.representation_files import JsonlFolder, jsonl_work
from dupmae_ir.encode.shards import Encoded, EncoderChoice, EncoderFacts, Shard
from dupmae_ir.encode.shared_work import SharedWork, remove_shared_work
from dupmae_ir.encode.window_files import PartStore, build_index, load_part
from dupmae_ir.encode.windows import documents_digest, windows
from dupmae_ir.encode.workers import Here, Workers
from dupmae_ir.errors import UsageError
from dupmae_ir.index.changes.object_store import Output
from dupmae_ir.index.format.manifest import Meta, check_target
from dupmae_ir.io.sources import Source
from dupmae_ir.models.checkpoints.layout import CONFIG
from dupmae_ir.models.names import model_folder
from dupmae_ir.types import SEPARATORS, Encoder


@with_torch_threads
def run(config: EncodeConfig) -> dict[str, Any]:
    """Encode ``config.corpus`` into ``config.index`` and return the summary.

    With ``config.estimate``, an :class:`~dupmae_ir.encode.estimate.Estimate` as a dict instead; nothing is written.
    Raises :class:`DupmaeError` subclasses. An existing index stays as it was until the new one is complete, and
    finished parts stay for the next run.
    """
    config.shard_of()
    if config.estimate:
        return dataclasses.asdict(estimate(config))
    output = Output(config.index, overwrite=config.overwrite, quiet=config.quiet)
    collection = config.collection()
    check_target(output.folder)
    collection.check()  # before the model is loaded
    output.prepare()
    with closing(_workers(config)) as workers, output.named():
        result = _Run(config, output, collection, workers)()
    published = output.publish(result)
    if output.remote:
        remove_shared_work(output.remote, config.quiet)
    return published


class _Run:
    """One run: its settings, and the steps from the collection to the summary."""

    def __init__(self, config: EncodeConfig, output: Output, collection: Source, workers: Workers) -> None:
        self.config, self.output, self.collection, self.workers = config, output, collection, workers
        self.encoder = workers.facts
        self.shard, self.shards = config.shard_of()
        self.separator = _separator(config, self.encoder.settings.title_separator)
        self.shared: SharedWork | None = None
        self.started = time.monotonic()
        self.encoded = self.resumed = self.windows = 0
        self.at_work: dict[int, Shard] = {}  # what the workers have, by number
        self.busy: dict[str, float] = {}  # seconds in the encoder, by worker
        self.by_worker: dict[str, int] = {}  # documents, by worker

    def __call__(self) -> dict[str, Any]:
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
            if result := job.finished():
                self._check_jsonl(job.meta())
            else:
                result = self._make(job)
        return {"index": config.index, **result, **self._progress()}

    def _settings(self) -> dict[str, Any]:
        """The settings that two runs must share for their parts to belong to one index, by the flags' names."""
        config, own = self.config, self.encoder.settings
        sparse = self.encoder.terms is not None
        return {
            "model": self.encoder.digest,
            "parts": config.parts,
            "document_length": own.document_length,
            "top_k": own.top_k if sparse else None,
            "activation": own.activation if sparse else None,
            "ot": own.ot if sparse and own.ot != "mlm" else None,
            "scale": (config.scale or own.impact_scale or "calibrated") if sparse else None,
            "dtype": own.dtype,
            "title_separator": self.separator,
            "normalize": own.normalize or None,
            "fields": list(config.fields),
            "docid_field": config.docid_field,
            "delimiter": config.unescaped_delimiter(),
            **self.collection.settings,
            "window": config.window,
            "shard": config.shard if self.shards > 1 else None,
            "store_texts": None if config.store_texts else False,
            "postings": None if config.postings else False,
            "jsonl": str(Path(config.jsonl).absolute()) if config.jsonl else None,
        }

    def _check_jsonl(self, meta: Meta) -> None:
        """The representation files of a finished index must be those that are asked for."""
        jsonl = self.config.jsonl
        if jsonl and jsonl_work(Path(jsonl)) != meta["work"]:
            raise UsageError(
                f"{self.config.index} is complete, but {jsonl} does not contain its representation files; "
                f"add --overwrite to encode again"
            )

    def _make(self, job: EncodeJob) -> dict[str, Any]:
        """Encode what is missing, build the index and publish it."""
        self.shared = self._shared(job)
        parts = PartStore(job.begin())
        target = self.config.jsonl
        jsonl = None
        try:
            if target:
                jsonl = JsonlFolder(Path(target).absolute(), parts.id, self.config.overwrite)
            self._encode(parts, jsonl)
        except BaseException:
            if not parts.numbers():  # nothing that a resumption could use
                job.discard()
                if jsonl:
                    jsonl.discard()
            raise
        if jsonl:
            jsonl.publish()
        meta = self._build(job, parts)
        return job.publish(job.work / "index", summary(meta), inputs=self.collection.digests())

    def _shared(self, job: EncodeJob) -> SharedWork | None:
        """The work at the URL of the index, with --share-work, once what is there is here, too."""
        if not (self.config.share_work and self.output.remote):
            return None
        shared = SharedWork(self.output.remote, job.work, self.config.quiet)
        if self.config.restart:
            shared.remove()
        else:
            shared.receive(job.settings)
        return shared

    def _encode(self, parts: PartStore, jsonl: JsonlFolder | None) -> None:
        if done := len(parts.numbers()):
            say(f"resuming: checking {done} finished window(s)", self.config.quiet)
        with progress("encode", "documents", quiet=self.config.quiet) as bar:
            shards = self._shards(parts, jsonl, bar)
            # The first shard chooses the scale, before any other is read; islice takes one and leaves the rest.
            for some in (islice(shards, 1), shards):
                for encoded in self.workers.encode(some):
                    self._commit(parts, jsonl, encoded, bar)
        self._check_parts(parts)
        self.workers.close()  # what they occupy is free while the index is built

    def _shards(self, parts: PartStore, jsonl: JsonlFolder | None, bar: tqdm[Any]) -> Iterator[Shard]:
        """The shards to encode: neither finished nor another machine's."""
        for number, window in enumerate(windows(self.collection, self.config.window)):
            self.windows = number + 1
            self._show_total(bar)
            digest, mine = documents_digest(window), number % self.shards == self.shard
            finished = mine and parts.has(number, digest, self.collection.source, self.encoder.digest)
            wanted = mine and not (finished and (jsonl is None or jsonl.has(number)))
            calibrates = number == 0 and self.encoder.terms is not None and parts.chosen_scale is None
            if wanted or calibrates:
                self.at_work[number] = Shard(number, window, digest, parts.chosen_scale, wanted)
                yield self.at_work[number]
            if self.shared and finished:
                self.shared.send(parts, number, str(Shard(number, window, digest, None)))
            if not wanted:
                self.resumed += len(window) if mine else 0
                if not bar.disable:  # read but not encoded: fills the bar but not the rate
                    bar.initial += len(window)
                bar.update(len(window))

    def _commit(self, parts: PartStore, jsonl: JsonlFolder | None, encoded: Encoded, bar: tqdm[Any]) -> None:
        """Write what a worker returned; from here on the shard is finished."""
        shard = self.at_work.pop(encoded.number)
        self.busy[encoded.worker] = self.busy.get(encoded.worker, 0.0) + encoded.seconds
        if encoded.scale is not None and parts.chosen_scale is None:
            parts.set_scale(encoded.scale)
        if encoded.part is None:
            return
        parts.save(shard.number, encoded.part, str(shard))
        if self.shared:
            self.shared.send(parts, shard.number, str(shard))
        if jsonl:
            jsonl.write(shard.number, shard.documents, load_part(parts.path(shard.number)), self.encoder.terms)
        self.encoded += len(shard.documents)
        self.by_worker[encoded.worker] = self.by_worker.get(encoded.worker, 0) + len(shard.documents)
        if len(self.by_worker) > 1:
            bar.set_postfix_str(", ".join(f"{name} {count:,}" for name, count in sorted(self.by_worker.items())))
        bar.update(len(shard.documents))

    def _show_total(self, bar: tqdm[Any]) -> None:
        """Estimate the number of documents, which is known at the end only, from that of bytes."""
        if self.collection.total_bytes:
            share = self.collection.bytes_read / self.collection.total_bytes
            bar.total = max(bar.n, round(self.collection.documents / max(share, 1e-9)))
            bar.refresh()

    def _check_parts(self, parts: PartStore) -> None:
        expected = list(range(self.shard, self.windows, self.shards))
        if not expected:
            raise UsageError(
                f"--shard {self.config.shard}: the collection has only {self.windows} window(s); "
                f"use at most {self.windows} shards, or a smaller --window"
            )
        if parts.numbers() != expected:
            raise parts.changed(self.collection.source, "it is shorter now")

    def _build(self, job: EncodeJob, parts: PartStore) -> Meta:
        total = self.encoded + self.resumed
        with progress("index", "documents", total=total, quiet=self.config.quiet) as bar:
            return build_index(
                parts,
                job.fresh("index"),
                dim=self.encoder.dim,
                terms=self.encoder.terms,
                scale=parts.scale,
                describe=lambda: self._describe(job, parts),
                on_documents=bar.update,
                texts=self.config.store_texts,
                postings=self.config.postings,
            )

    def _describe(self, job: EncodeJob, parts: PartStore) -> dict[str, Any]:
        shard = {"number": self.shard, "of": self.shards, "windows": self.windows} if self.shards > 1 else None
        return {
            "made_by": f"dupmae-ir {job.command}",
            "version": __version__,
            "encoder": encoder_record(self.encoder, self.separator),
            "scale_source": parts.scale_source,
            "inputs": [dataclasses.asdict(i) for i in self.collection.inputs],
            **({"sources": report} if (report := self.collection.report) else {}),
            "settings": job.settings,
            "work": parts.id,
            "running": self.encoder.running,
            "shard": shard,
            "config": to_dict(self.config),
        }

    def _progress(self) -> dict[str, Any]:
        """What this run did, as opposed to what the index is."""
        seconds = max(1e-9, *self.busy.values(), 0.0)  # they work at the same time
        return {
            "encoded_now": self.encoded,
            "resumed": self.resumed,
            "seconds": round(time.monotonic() - self.started, 2),
            "documents_per_second": round(self.encoded / seconds, 1) if self.encoded else None,
            **({"by_worker_now": self.by_worker} if len(self.by_worker) > 1 else {}),
        }


def encoder_record(encoder: Encoder | EncoderFacts, separator: str) -> dict[str, Any]:
    """The settings of the encoder that queries must share, as the meta records them."""
    settings = encoder.settings
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
        "ot": settings.ot,
        **({"head_scale": settings.head_scale} if settings.head_scale else {}),
        "vocabulary": vocabulary_record(encoder.terms),
    }


def vocabulary_record(terms: Sequence[str] | None) -> dict[str, Any] | None:
    """Size and sha256 of the index terms, in the order of their ids; None for an encoder without the OT part."""
    if terms is None:
        return None
    return {"size": len(terms), "sha256": hashlib.sha256("\n".join(terms).encode("utf-8", "replace")).hexdigest()}


def _separator(config: EncodeConfig, trained: str) -> str:
    """What joins title and text: --title-separator, else what the model was trained with. A difference is noted."""
    chosen = SEPARATORS[config.title_separator] if config.title_separator else trained
    if chosen != trained and config.model and (model_folder(config.model) / CONFIG).is_file():
        say(
            f"note: {config.model} was trained with title and text joined by {trained!r}; this index joins them by "
            f"{chosen!r} (--title-separator {config.title_separator})",
            config.quiet,
        )
    return chosen


def _workers(config: EncodeConfig) -> Workers:
    """Who encodes: this process, one process for each of --devices, or a Ray cluster."""
    choice = EncoderChoice.of(config)
    if config.executor == "ray":
        return RayWorkers(choice, config.device, config.workers, config.quiet)
    if devices := config.device_names():
        return DeviceWorkers(choice, devices, config.quiet)
    return Here(choice, config.device)
