"""The resumable encoding run: a collection in, an index folder out, whatever happens in between.

Documents are read in windows; each window becomes one part file that exists whole or not at all; when the last part
is there, the index is built aside and moved into place. A killed run leaves its parts, and the same command reads the
collection again, checks each finished part against the documents it was made from, and continues. Because a window is
always encoded as a whole, the resumed index is the undisturbed one to the last bit.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dupmae_ir.config import differences, option, to_dict
from dupmae_ir.console import progress, say
from dupmae_ir.device import DTYPES, with_torch_threads
from dupmae_ir.encode.publish import check_target, encoder_record, publish_index
from dupmae_ir.encode.representation_files import JsonlFolder, jsonl_work
from dupmae_ir.encode.unfinished import Work, recover, sweep
from dupmae_ir.encode.windows import CALIBRATION, HEADROOM, calibrated_scale, documents_digest, quantised, windows
from dupmae_ir.errors import IndexMismatch, InputError, UsageError
from dupmae_ir.io.collections import STDIN, Collection, count_and_digest
from dupmae_ir.io.locks import exclusive
from dupmae_ir.io.publishing import disk_full
from dupmae_ir.types import Document, Representation

if TYPE_CHECKING:
    from dupmae_ir.types import Encoder

SEPARATORS = {"space": " ", "sep": " [SEP] "}
UNCALIBRATED_SCALE = 32.0  #: for collections whose first documents have no weight at all


@dataclass(frozen=True)
class EncodeConfig:
    """Everything that ``python -m dupmae_ir.encode`` can be told."""

    corpus: str = option(
        help="collection: BEIR corpus.jsonl, Pyserini JSONL, MS MARCO tsv, .gz of these, a folder of them, or - for "
        "standard input",
        group="what",
        metavar="PATH",
    )
    index: str = option(help="index folder to make", group="what", metavar="FOLDER")
    model: str | None = option(
        None, "model folder; without it, the embedded default model", group="what", metavar="FOLDER"
    )
    parts: str = option(
        "cls,ot", "what to encode: cls (dense vectors), ot (impacts) or both, cls,ot, in one pass", group="what"
    )
    jsonl: str | None = option(
        None,
        "also write Pyserini's representation files (JsonVectorCollection) into this folder",
        group="what",
        metavar="FOLDER",
    )
    fields: tuple[str, ...] = option(
        (),
        "parts of a document, in order: JSON keys, else pieces of 'contents', else tsv columns after the id; "
        "'title' becomes the title, '_' is ignored, the rest is the text",
        group="reading",
        metavar="NAME",
    )
    docid_field: str | None = option(
        None, "JSON key of the id, if not id, _id or docid", group="reading", metavar="NAME"
    )
    delimiter: str = option("\\n", "what splits 'contents' into --fields (\\n and \\t are understood)", group="reading")
    document_length: int | None = option(
        None,
        "word pieces kept of each document, special tokens included; without it, the model's own",
        group="encoding",
    )
    top_k: int | None = option(
        None, "strongest impacts kept of each document; without it, the model's own", group="encoding"
    )
    activation: str | None = option(
        None, "relu or log1p of the logits; without it, the model's own", group="encoding", choices=("relu", "log1p")
    )
    title_separator: str | None = option(
        None,
        "between title and text: a blank or [SEP]; without it, the model's own",
        group="encoding",
        choices=tuple(SEPARATORS),
    )
    normalize: bool | None = option(
        None, "dense vectors of unit length (SimLM), or not; without it, the model's own", group="encoding"
    )
    scale: float | None = option(
        None,
        f"impact = round(weight x scale), at most 255; without it, the model's own, else calibrated on the first "
        f"{CALIBRATION} documents",
        group="encoding",
    )
    dtype: str | None = option(
        None, "arithmetic; without it, float32, auto is the fastest here", group="encoding", choices=DTYPES
    )
    device: str = option("auto", "auto, cpu, cuda, cuda:N or mps", group="running", metavar="NAME")
    threads: int | None = option(None, "CPU threads; without it, torch's choice", group="running")
    window: int = option(1024, "documents encoded between two saves, and sorted by length together", group="running")
    shard: str | None = option(
        None,
        "encode only part i of n (0/4, 1/4, ...); join with python -m dupmae_ir.encode.merge",
        group="running",
        metavar="I/N",
    )
    overwrite: bool = option(False, "replace an older index, once the new one is complete", group="running")
    restart: bool = option(False, "throw away the unfinished work of an earlier run", group="running")
    quiet: bool = option(False, "no progress, only errors", group="output")
    json: bool = option(False, "print the summary as JSON on standard output", group="output")


@with_torch_threads
def run(config: EncodeConfig) -> dict[str, Any]:
    """Encode ``config.corpus`` into ``config.index`` and return the summary.

    Raises :class:`DupmaeError` subclasses; whatever existed at the target stays as it was until the new index is
    complete, and finished parts stay for the next run.
    """
    target = Path(config.index).absolute()
    shard, shards = _shard(config.shard)
    _check_numbers(config)
    collection = Collection(config.corpus, config.fields, config.docid_field, _unescaped(config.delimiter))
    check_target(target)
    encoder = _encoder(config)
    with exclusive(target.with_name(f".{target.name}.lock"), f"encoding to {target}"):
        try:
            return _Run(config, collection, encoder, target, shard, shards)()
        except Exception as e:
            # Python, faiss and Lucene each have their own exception for it.
            if full := disk_full(e, target.parent):
                raise full from e
            raise


class _Run:
    """One run: its settings, and the steps from the collection to the summary."""

    def __init__(
        self, config: EncodeConfig, collection: Collection, encoder: Encoder, target: Path, shard: int, shards: int
    ) -> None:
        self.config, self.collection, self.encoder, self.target = config, collection, encoder, target
        self.shard, self.shards = shard, shards
        self.separator = (
            SEPARATORS[config.title_separator] if config.title_separator else encoder.settings.title_separator
        )
        self.settings = self._settings()
        self.started = time.monotonic()
        self.encoded = self.resumed = self.windows = 0
        self.encoding_seconds = 0.0

    def __call__(self) -> dict[str, Any]:
        config = self.config
        recover(self.target)
        if not config.overwrite and (self.target / "meta.json").is_file():
            return self._already_complete()
        work = Work.open(self.target, self.settings, config.restart)
        jsonl = JsonlFolder(Path(config.jsonl).absolute(), work.id, config.overwrite) if config.jsonl else None
        work.begin()
        try:
            self._encode(work, jsonl)
        except BaseException:
            # Nothing was finished, so there is nothing to come back to.
            if not work.numbers():
                work.remove()
                if jsonl:
                    jsonl.discard()
            raise
        if jsonl:
            jsonl.publish()
        meta = self._build(work)
        work.remove()
        return self._summary(meta, "encoded")

    def _settings(self) -> dict[str, Any]:
        """What two runs must share for their parts to belong to one index, by the flags' names."""
        config, own = self.config, self.encoder.settings
        sparse = self.encoder.terms is not None
        return {
            "model": self.encoder.digest,
            "parts": config.parts,
            "document_length": own.document_length,
            "top_k": own.top_k if sparse else None,
            "activation": own.activation if sparse else None,
            "scale": (config.scale or own.impact_scale or "calibrated") if sparse else None,
            "dtype": own.dtype,
            "title_separator": self.separator,
            "normalize": own.normalize or None,
            "fields": list(config.fields),
            "docid_field": config.docid_field,
            "delimiter": _unescaped(config.delimiter),
            "window": config.window,
            "shard": config.shard if self.shards > 1 else None,
            "jsonl": str(Path(config.jsonl).absolute()) if config.jsonl else None,
        }

    def _already_complete(self) -> dict[str, Any]:
        """The summary of the index that is there, if it is the one this command would make; else a refusal."""
        try:
            meta = json.loads((self.target / "meta.json").read_text(encoding="utf-8"))
            before = {**meta["settings"], "jsonl": self.settings["jsonl"]}
        except (ValueError, KeyError):
            raise UsageError(f"{self.target}: its meta.json is not one of this command; name another --index") from None
        if changed := differences(before, self.settings):
            raise IndexMismatch(
                f"{self.target} is complete with other settings ({changed}); "
                f"add --overwrite to replace it, or name another --index"
            )
        then = [i["sha256"] for i in meta["inputs"]]
        now = [digest for _, digest in count_and_digest(self.config.corpus)]
        if then != now:
            raise IndexMismatch(
                f"{self.target} is complete, but {self.config.corpus} is not the collection it was made from; "
                f"add --overwrite to encode it anew, or name another --index"
            )
        if self.config.jsonl and jsonl_work(Path(self.config.jsonl)) != meta["work"]:
            raise UsageError(
                f"{self.target} is complete, but {self.config.jsonl} does not hold its representation files; "
                f"add --overwrite to encode again"
            )
        sweep(self.target, meta["work"])
        return self._summary(meta, "already complete")

    def _encode(self, work: Work, jsonl: JsonlFolder | None) -> None:
        if work.numbers():
            say(f"continuing: {len(work.numbers())} window(s) are done; checking them", self.config.quiet)
        with progress("encode", "documents", quiet=self.config.quiet) as bar:
            for number, window in enumerate(windows(self.collection, self.config.window)):
                self.windows = number + 1
                if self.collection.total_bytes:
                    # How many documents there are is known at the end only; their bytes are known from the start.
                    share = self.collection.bytes_read / self.collection.total_bytes
                    bar.total = max(bar.n, round(self.collection.documents / max(share, 1e-9)))
                    bar.refresh()
                self._encode_window(work, jsonl, number, window, bar)
        self._check_parts(work)

    def _encode_window(
        self, work: Work, jsonl: JsonlFolder | None, number: int, window: list[Document], bar: Any
    ) -> None:
        mine = number % self.shards == self.shard
        digest = documents_digest(window)
        first = None
        if number == 0 and self.encoder.terms is not None and work.scale is None:
            first = self._represent(window)
            work.set_scale(*self._scale(first))
        done = mine and work.has(number, digest, self.config.corpus) and (jsonl is None or jsonl.has(number))
        if done or not mine:
            self.resumed += len(window) if mine else 0
            if not bar.disable:  # read again, not encoded again: fills the bar but not the rate
                bar.initial += len(window)
        else:
            representation = self._represent(window) if first is None else first
            part = quantised([d.docid for d in window], representation, work.scale)
            if jsonl:
                jsonl.write(number, window, part, self.encoder.terms)
            work.save(number, part, digest)
            self.encoded += len(window)
        bar.update(len(window))

    def _represent(self, window: list[Document]) -> Representation:
        start = time.monotonic()
        representation = self.encoder.encode_documents([d.joined(self.separator) for d in window])
        self.encoding_seconds += time.monotonic() - start
        return representation

    def _scale(self, first: Representation) -> tuple[float, str]:
        """The global S and how it was chosen."""
        if self.config.scale:
            return self.config.scale, "asked for"
        if own := self.encoder.settings.impact_scale:
            return own, "the model's own"
        n = len(first)
        scale = calibrated_scale(first)
        if scale is None:
            return UNCALIBRATED_SCALE, f"the first {n} documents have no weight to calibrate on"
        return scale, f"255 / ({HEADROOM} x the largest weight of the first {n} documents)"

    def _check_parts(self, work: Work) -> None:
        expected = list(range(self.shard, self.windows, self.shards))
        if not expected:
            raise UsageError(
                f"--shard {self.config.shard}: the collection has only {self.windows} window(s); "
                f"use at most {self.windows} shards, or a smaller --window"
            )
        if work.numbers() != expected:
            raise work.changed(self.config.corpus, "it is shorter now")

    def _build(self, work: Work) -> dict[str, Any]:
        total = self.encoded + self.resumed
        with progress("index", "documents", total=total, quiet=self.config.quiet) as bar:
            return publish_index(
                work.parts(),
                work.folder / "index",
                self.target,
                dim=self.encoder.dim,
                terms=self.encoder.terms,
                scale=work.scale,
                describe=lambda: self._describe(work),
                on_documents=bar.update,
            )

    def _describe(self, work: Work) -> dict[str, Any]:
        shard = {"number": self.shard, "of": self.shards, "windows": self.windows} if self.shards > 1 else None
        return {
            "encoder": encoder_record(self.encoder, self.separator),
            "scale_source": work.state["scale_source"],
            "inputs": [dataclasses.asdict(i) for i in self.collection.inputs],
            "settings": self.settings,
            "work": work.id,
            "running": getattr(self.encoder, "running", {}),
            "shard": shard,
            "config": to_dict(self.config),
        }

    def _summary(self, meta: dict[str, Any], status: str) -> dict[str, Any]:
        shown = (
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
        return {
            "index": str(self.config.index),
            "status": status,
            **{k: meta.get(k) for k in shown},
            "encoded_now": self.encoded,
            "resumed": self.resumed,
            "seconds": round(time.monotonic() - self.started, 2),
            "documents_per_second": round(self.encoded / max(self.encoding_seconds, 1e-9), 1) if self.encoded else None,
        }


def _encoder(config: EncodeConfig) -> Encoder:
    from dupmae_ir.models import load_encoder

    return load_encoder(
        config.model,
        device=config.device,
        dtype=config.dtype,
        document_length=config.document_length,
        top_k=config.top_k,
        activation=config.activation,
        normalize=config.normalize,
        parts=tuple(config.parts.split(",")),
    )


def _shard(text: str | None) -> tuple[int, int]:
    """``"1/4"`` -> (1, 4); None -> (0, 1)."""
    if text is None:
        return 0, 1
    first, slash, last = text.partition("/")
    if not (slash and first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise UsageError(f"--shard {text}: wants I/N with I from 0 to N-1, for example 0/4 up to 3/4")
    return int(first), int(last)


def _check_numbers(config: EncodeConfig) -> None:
    for name in ("window", "document_length", "top_k", "threads", "scale"):
        value = getattr(config, name)
        if value is not None and not 0 < value < float("inf"):
            raise UsageError(f"--{name.replace('_', '-')} {value}: must be greater than 0")
    if config.corpus == STDIN and sys.stdin is None:
        raise InputError("<standard input>: is closed; name a --corpus")
    if config.parts not in ("cls,ot", "cls", "ot"):
        raise UsageError(f"--parts {config.parts}: use cls, ot or cls,ot")
    if config.scale and config.parts == "cls":
        raise UsageError("--scale is about impacts, which --parts cls leaves out")


def _unescaped(delimiter: str) -> str:
    return delimiter.replace("\\n", "\n").replace("\\t", "\t")
