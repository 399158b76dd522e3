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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, Self, cast

from tqdm import tqdm

from dupmae_ir import __version__
from dupmae_ir.config import to_dict
from dupmae_ir.console import progress, say
from dupmae_ir.device import MIXED, with_torch_threads
from dupmae_ir.encode.config import EncodeConfig, EncodeResult
from dupmae_ir.encode.document_languages import document_languages
from dupmae_ir.encode.excerpts import ExcerptRecord, excerpt_record
from dupmae_ir.encode.executors import DevicePool, Executor, RayPool, ThisProcess
from dupmae_ir.encode.reading import READS_WELL, Reading
from dupmae_ir.encode.window_encoding import EncoderChoice, EncoderFacts, WindowResult
from dupmae_ir.encode.windows import (
    Window,
    WindowFiles,
    build_index,
    documents_digest,
    window_size,
    windows,
)
from dupmae_ir.errors import IndexMismatch, UsageError
from dupmae_ir.index.changes.object_store import Output
from dupmae_ir.index.format.manifest import META, Meta, check_target, read_meta
from dupmae_ir.index.format.unread import UNREAD, MeaningProgress, is_unread
from dupmae_ir.io.collections import STDIN, DocumentSource
from dupmae_ir.io.documents.collection import DocumentCollection
from dupmae_ir.io.jobs import Job, JobRecord
from dupmae_ir.io.publishing import combined_digest, move_into_place, read_json_object
from dupmae_ir.io.transfer import is_url
from dupmae_ir.models.checkpoints.layout import CONFIG
from dupmae_ir.models.heads.lexical import terms_in_languages
from dupmae_ir.models.language_detection import described, language_shares, main_language
from dupmae_ir.models.languages import AUTO, ENGLISH, LANGUAGES
from dupmae_ir.models.names import DEFAULT, MULTILINGUAL, is_installed, model_folder
from dupmae_ir.models.word_pieces import read_word_pieces
from dupmae_ir.types import SEPARATORS, Document, Encoder, EncoderSettings

MOSTLY = 0.5
"""Share of text in other languages than English from which ``--model auto`` is the model for all languages."""
_LITTLE = 0.7
"""A note names the languages whose vectors have a smaller factor."""
SLOW_ENCODING_SECONDS = 900.0
"""Seconds of encoding above which :data:`WORDS_ONLY_HINT` is printed."""
WORDS_ONLY_HINT = (
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
    # A mistake in the collection is reported before the model is loaded, which takes longer.
    collection.check()
    if isinstance(collection, DocumentCollection):
        config = dataclasses.replace(config, dtype=config.dtype or MIXED)
        dominating = collection.dominating
        if dominating:
            say(f"note: {dominating}", config.quiet)
    output.prepare()

    if isinstance(collection, DocumentCollection):
        if config.model == AUTO:
            # Passages are as long as the model reads, so the first ones are read once more for the chosen model.
            beginning = next(windows(config.collection(), config.window))
            config, _ = _choose(config, beginning)
        separator = SEPARATORS[config.title_separator] if config.title_separator else None
        pieces = read_word_pieces(config.model, config.document_length, separator)
        collection.measure = pieces or collection.measure
    # The language is that of the first window. What was read for it is put before the rest again.
    batches = windows(collection, config.window)
    first_windows = list(islice(batches, 1))
    beginning = list(chain.from_iterable(first_windows))
    config, language = _choose(config, beginning)
    with closing(_executor(config, language)) as executor, output.named():
        if executor.facts.settings.ot == "lexical":
            if config.language == AUTO:
                languages = [language]
                if _recognises(config, executor.facts):
                    languages = document_languages(beginning, language)
                note = languages_note(languages)
                say(note, config.quiet or not note)
        elif config.language != AUTO:
            raise UsageError(
                "`language` is for word weights with stems; the terms of this model are its tokenizer's"
            )
        # Raises for a model by whose word pieces nothing can be cut.
        EncoderChoice.of(config).measure()
        # One window of documents is read in seconds.
        is_long = len(beginning) == window_size(0, config.window)
        batches = chain(first_windows, batches)
        result = _Run(config, output, collection, executor, batches, is_long)()
    return cast("EncodeResult", output.publish(result))


def _choose(config: EncodeConfig, beginning: Sequence[Document]) -> tuple[EncodeConfig, str]:
    """The configuration with a model for ``auto``, and the language of the index, by the first documents."""
    language = config.language
    if language == AUTO or config.model == AUTO:
        shares = language_shares(document.joined() for document in beginning)
        if language == AUTO:
            language = main_language(shares)
        if config.model == AUTO:
            foreign = sum(share for code, share in shares.items() if code != ENGLISH)
            model = MULTILINGUAL if foreign > MOSTLY and is_installed(MULTILINGUAL) else DEFAULT
            say(f"model: {model} ({described(shares) or 'no language recognised'})", config.quiet)
            config = dataclasses.replace(config, model=model)
    if "ot" not in config.parts:
        language = ENGLISH
    return config, language


def _recognises(config: EncodeConfig, encoder: EncoderFacts) -> bool:
    """Whether each document has its own language: a chosen one is that of all documents, and without stored texts
    nothing records another one."""
    return config.language == AUTO and config.store_texts and encoder.settings.ot == "lexical"


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
        """The meta of the existing index. Raises :class:`UsageError` if it does not record settings."""
        meta = read_meta(self.target)
        if not isinstance(meta.get("settings"), dict) or not isinstance(meta.get("inputs"), list):
            raise UsageError(
                f"{self.target / META}: not written by dupmae-ir encode; name another `index`"
            )
        return meta


class EncodeJob(IndexJob):
    """``dupmae-ir encode``. An index that encode.merge made from the same settings and inputs is also its output. An
    index of words that an earlier run has made first is unfinished."""

    START_OVER = "pass `restart`"

    def finished(self) -> dict[str, Any] | None:
        """As :meth:`Job.finished`."""
        if is_unread(read_json_object(self.target / META)):
            return None
        return super().finished()

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
            "inputs": {"corpus": combined_digest([file["sha256"] for file in meta["inputs"]])},
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
        "truncated",
        "digest",
    )
    summary = {name: meta.get(name) for name in names}
    if "sources" in meta:
        summary["sources"] = meta["sources"]
    return summary


class EncodingBar:
    """The progress of encoding, in bytes of the collection, or in documents if its size is not known."""

    def __init__(self, bar: tqdm[Any], collection: DocumentSource) -> None:
        self.bar = bar
        self.collection = collection
        self._read = 0
        # Of the windows that were read and are not encoded yet, by number: their sizes, and how much of each the bar
        # shows.
        self._sizes: dict[int, int] = {}
        self._shown: dict[int, int] = {}

    def read(self, number: int, documents: int) -> None:
        """A window was read: its size is the bytes since the window before."""
        position = self.collection.bytes_read
        size = documents
        if self.collection.total_bytes:
            size = position - self._read
        self._sizes[number] = size
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
        remaining = self._sizes.pop(number) - self._shown.pop(number, 0)
        # tqdm's rate is (n - initial) / time. A disabled bar has no `initial`.
        if not self.bar.disable:
            self.bar.initial += remaining
        self.bar.update(remaining)


class _Run:
    """One run: its settings, and the steps from the collection to the summary."""

    def __init__(
        self,
        config: EncodeConfig,
        output: Output,
        collection: DocumentSource,
        executor: Executor,
        batches: Iterable[list[Document]],
        is_long: bool = False,
    ) -> None:
        self.config = config
        self.output = output
        self.collection = collection
        self.executor = executor
        self.batches = batches
        self.is_long = is_long
        self.encoder = executor.facts
        self.recognises = _recognises(config, self.encoder)
        self.shard, self.shards = config.shard_of()
        self.separator = EncoderChoice.of(config).separator(self.encoder.settings)
        self._note_other_separator()
        self.started = time.monotonic()
        self.encoded = 0  # documents, by this run
        self.resumed = 0  # documents that an earlier run has encoded
        self.windows = 0  # of the collection, read so far
        self.steps = 0  # of encoding; see _step_of
        self.at_work: dict[int, Window] = {}  # what the executor has, by number
        self.by_worker: dict[str, int] = {}  # documents, by worker
        self.meaning: MeaningProgress | None = None  # of an index of words that was made first

    def _note_other_separator(self) -> None:
        """Say so if a trained model joined titles and texts in another way."""
        config = self.config
        trained = self.encoder.settings.title_separator
        if self.separator == trained or not config.model:
            return
        if (model_folder(config.model) / CONFIG).is_file():
            say(
                f"note: {config.model} was trained with title and text joined by {trained!r}; this index joins them by "
                f"{self.separator!r} (--title-separator {config.title_separator})",
                config.quiet,
            )

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
        summary = {
            "index": config.index,
            **result,
            # What this run did, as opposed to what the index is.
            "encoded_now": self.encoded,
            "resumed": self.resumed,
            "seconds": round(seconds, 2),
            "documents_per_second": round(self.encoded / seconds, 1) if self.encoded else None,
        }
        if len(self.by_worker) > 1:
            summary["by_worker_now"] = self.by_worker
        return summary

    def _settings(self) -> dict[str, object]:
        """The settings that two runs must share for their windows to belong to one index, by the flags' names."""
        config = self.config
        encoder = self.encoder.settings
        # Settings of the OT part, which count only if there is one.
        sparse: dict[str, object] = {}
        if self.encoder.terms is not None:
            sparse["top_k"] = encoder.top_k
            sparse["activation"] = encoder.activation
            sparse["scale"] = config.scale or encoder.impact_scale or "calibrated"
            if encoder.ot != "mlm":
                sparse["ot"] = encoder.ot
            if encoder.ot == "lexical":
                sparse["language"] = encoder.language
        return {
            "model": self.encoder.digest,
            "parts": config.parts,
            "document_length": encoder.document_length,
            "top_k": sparse.get("top_k"),
            "activation": sparse.get("activation"),
            "ot": sparse.get("ot"),
            "language": sparse.get("language"),
            "scale": sparse.get("scale"),
            "dtype": encoder.dtype,
            "title_separator": self.separator,
            "normalize": encoder.normalize or None,
            "dimensions": encoder.dimensions,
            "fold_terms": encoder.fold_terms or None,
            "excerpts": excerpt_record() if config.excerpts else None,
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
        if self._words_come_first(job):
            self._publish_words(job)
        words = read_json_object(job.target / META)
        if is_unread(words):
            self.meaning = MeaningProgress(job.work, words["documents"])
        try:
            self._encode(files)
        except BaseException:
            # Also for Ctrl-C. Without a finished window, there is nothing to resume from.
            if not files.numbers():
                job.discard()
            raise
        # A new folder: a run that was killed while it built the index leaves a part of one.
        folder = job.fresh("index")
        total = self.encoded + self.resumed
        terms = self.encoder.terms
        if terms is not None and files.factors:
            terms = terms_in_languages(terms)
        with progress("index", self.collection.unit, total=total, quiet=self.config.quiet) as bar:
            meta = build_index(
                files,
                folder,
                dim=self.encoder.dim,
                terms=terms,
                scale=files.scale.value if files.scale else None,
                describe=lambda: self._describe(job, files),
                on_documents=bar.update,
                texts=self.config.store_texts,
                postings=self.config.postings,
                excerpts=self.config.excerpts,
            )
        note = truncation_note(meta, self.encoder.settings, self.collection.unit)
        say(note, self.config.quiet or not note)
        return job.publish(folder, index_summary(meta), inputs=self.collection.digests())

    def _words_come_first(self, job: EncodeJob) -> bool:
        """Whether an index of words is made before the vectors: where encoding is long, and words take much less time.

        Not in the place of an older index, whose vectors can be searched meanwhile.
        """
        config = self.config
        settings = self.encoder.settings
        has_plain_words = settings.ot == "lexical" and not settings.head_scale
        # What comes from elsewhere is read once.
        is_local = not any(source == STDIN or is_url(source) for source in config.sources())
        return (
            self.is_long
            and self.encoder.dim is not None
            and self.encoder.terms is not None
            and has_plain_words
            and is_local
            and self.shards == 1
            and self.output.remote is None
            and not (job.target / META).exists()
        )

    def _publish_words(self, job: EncodeJob) -> None:
        """Make the index of words and put it in the place of the complete one, until that is there."""
        config = dataclasses.replace(
            self.config,
            index=str(job.work / "words"),
            parts="ot",
            dimensions=None,
            normalize=None,
            excerpts=False,
            devices=None,
            executor="local",
            workers=0,
            overwrite=True,
            restart=False,
        )
        output = Output(config.index, overwrite=True, quiet=config.quiet)
        collection = config.collection()
        if isinstance(self.collection, DocumentCollection):
            assert isinstance(collection, DocumentCollection), "the same sources are read again"
            collection.measure = self.collection.measure
        choice = EncoderChoice.of(config, self.encoder.settings.language)
        with closing(ThisProcess(choice, config.device)) as executor:
            batches = windows(collection, config.window)
            result = _WordsFirst(config, output, collection, executor, batches)()
        move_into_place(output.folder, job.target)
        say(
            f"{self.config.index}: {result['documents']:,} {self.collection.unit} can be searched by words; meaning "
            "follows",
            config.quiet,
        )

    def _encode(self, files: WindowFiles) -> None:
        finished = len(files.numbers())
        if finished:
            say(f"resuming: checking {finished} finished window(s)", self.config.quiet)
        # The bar counts bytes where they are known: the number of documents is known at the end only.
        total = self.collection.total_bytes
        unit = "B" if total else self.collection.unit
        with progress("encode", unit, total or None, self.config.quiet) as bar:
            work = EncodingBar(bar, self.collection)
            if isinstance(self.executor, ThisProcess):
                self.executor.on_share = partial(self._advance, work)
            missing = self._windows(files, work)
            # A window that decides for later ones is encoded alone.
            for _, step in groupby(missing, self._step_of):
                # One window more is read to find the end of a step, so they get what was decided when the next begins.
                windows_to_encode = (self._with_decisions(window, files) for window in step)
                for result in self.executor.encode(windows_to_encode):
                    self._commit(files, result, work)
        # Window files beyond the last window are of a collection that was longer.
        expected = list(range(self.shard, self.windows, self.shards))
        if not expected:
            raise UsageError(
                f"`shard` {self.config.shard}: the collection has only {self.windows} window(s); "
                f"use at most {self.windows} shards, or a smaller `window`"
            )
        if files.numbers() != expected:
            raise files.changed(self.collection.source, "it is shorter now")
        # Frees the memory of the encoders for building the index.
        self.executor.close()

    def _advance(self, bar: EncodingBar, number: int, share: float) -> None:
        """A ``share`` of a window is encoded, 0 to 1."""
        bar.advance(number, share)
        if self.meaning is not None:
            finished = self.encoded + self.resumed
            self.meaning.at(finished + share * len(self.at_work[number].documents))

    def _step_of(self, window: Window) -> int:
        """The number of the step in which a window is encoded."""
        if not window.decides:
            return self.steps
        # A number of its own, between those of the windows before and after it.
        self.steps += 2
        return self.steps - 1

    def _windows(self, files: WindowFiles, bar: EncodingBar) -> Iterator[Window]:
        """The windows to encode: neither finished nor another machine's.

        The first decides on the scale, and one with the first text in a language on the factor of its vectors. Every
        shard encodes these, so that all of them decide alike.
        """
        known = {self.encoder.settings.language, *files.factors}
        for number, documents in enumerate(self.batches):
            self.windows = number + 1
            bar.read(number, len(documents))
            window = Window(number, documents, documents_digest(documents))
            mine = number % self.shards == self.shard
            keep = mine and not files.has(window, self.collection.source, self.encoder.digest)
            calibrates = number == 0 and self.encoder.terms is not None and files.scale is None
            languages = None
            new_languages: set[str] = set()
            if self.recognises and (keep or not mine):
                languages = document_languages(documents, self.encoder.settings.language)
                new_languages = set(languages) - known
                known |= new_languages
            if keep or calibrates or new_languages:
                decides = number == 0 or bool(new_languages)
                yield dataclasses.replace(window, keep=keep, languages=languages, decides=decides)
            if not keep:
                if mine:
                    self.resumed += len(documents)
                bar.skip(number)

    def _with_decisions(self, window: Window, files: WindowFiles) -> Window:
        """A window with the scale and the factors that earlier windows decided on."""
        self.at_work[window.number] = dataclasses.replace(
            window,
            scale=files.scale,
            factors=files.factors,
            usual_weight=files.reading.weight if files.reading else 1.0,
        )
        return self.at_work[window.number]

    def _commit(self, files: WindowFiles, result: WindowResult, bar: EncodingBar) -> None:
        """Write what a worker returned; from here on the window is finished."""
        window = self.at_work.pop(result.number)
        # The scale is saved before the window that was quantised with it: a resumed run must use the same one.
        if result.scale is not None and files.scale is None:
            files.set_scale(result.scale, result.reading)
            if result.reading and result.reading.weight < 1:
                say(f"note: {reading_note(result.reading)}", self.config.quiet)
        if result.factors:
            files.add_factors(result.factors)
            note = factors_note(result.factors)
            say(note, self.config.quiet or not note)
        if result.contents is None:
            return
        files.save(window, result.contents)
        self.encoded += len(window.documents)
        self.by_worker[result.worker] = self.by_worker.get(result.worker, 0) + len(window.documents)
        counts = [f"{self.encoded + self.resumed:,} {self.collection.unit}"]
        if len(self.by_worker) > 1:
            for name, count in sorted(self.by_worker.items()):
                counts.append(f"{name} {count:,}")
        bar.finish(window.number, ", ".join(counts))
        if self.meaning is not None:
            self.meaning.at(self.encoded + self.resumed)
        if window.number == 0 and self.encoder.settings.ot == "lexical" and self.encoder.dim:
            self._hint_at_words_only(result.seconds)

    def _hint_at_words_only(self, seconds: float) -> None:
        """Print :data:`WORDS_ONLY_HINT` if the first window, which took ``seconds``, says that encoding is slow."""
        # If the size is not known, this is the number of bytes that were read, and no hint is given.
        share = self.collection.bytes_read / (self.collection.total_bytes or 1)
        if seconds > SLOW_ENCODING_SECONDS * share > 0:
            say(f"note: {WORDS_ONLY_HINT}", self.config.quiet)

    def _describe(self, job: EncodeJob, files: WindowFiles) -> dict[str, object]:
        """The part of ``meta.json`` that says how the index was made."""
        description: dict[str, object] = {
            "made_by": f"dupmae-ir {job.command}",
            "version": __version__,
            "encoder": encoder_record(
                self.encoder,
                self.separator,
                files.reading,
                files.factors if self.recognises else None,
                excerpt_record() if self.config.excerpts else None,
            ),
            "scale_source": files.scale.source if files.scale else None,
            "inputs": [dataclasses.asdict(file) for file in self.collection.inputs],
        }
        report = self.collection.report
        if report:
            description["sources"] = report
        description["settings"] = job.settings
        description["running"] = self.encoder.running
        description["shard"] = None
        if self.shards > 1:
            description["shard"] = {
                "number": self.shard,
                "of": self.shards,
                "windows": self.windows,
            }
        description["config"] = to_dict(self.config)
        return description


class _WordsFirst(_Run):
    """The run that makes an index of words which waits for its vectors."""

    def _describe(self, job: EncodeJob, files: WindowFiles) -> dict[str, object]:
        return {**super()._describe(job, files), **UNREAD}


def reading_note(reading: Reading) -> str:
    """What the weight of the dense score follows from."""
    return (
        f"the model knows little of this language: its vectors find {reading.found:.0%} of {reading.passages} passages "
        f"by their other halves (English: {READS_WELL:.0%}), so their weight in the sum is {reading.weight:g}; search "
        f"--dense-weight changes it. {_all_languages()}"
    )


def languages_note(languages: Sequence[str]) -> str:
    """The languages of documents; empty if all are English."""
    counts = Counter(languages)
    if set(counts) <= {ENGLISH}:
        return ""
    if len(counts) == 1:
        (language,) = counts
        return f"language: {LANGUAGES[language]}; --language CODE chooses another"
    shares = {language: count / len(languages) for language, count in counts.most_common()}
    return (
        f"languages: {described(shares)}; the words of a document are analysed in its own; --language CODE chooses one "
        "for all"
    )


def factors_note(factors: Mapping[str, float]) -> str:
    """For which languages vectors count little; empty if there are none."""
    little = [LANGUAGES[code] for code, factor in factors.items() if factor < _LITTLE]
    if not little:
        return ""
    return f"note: the model knows little of {', '.join(little)}: words decide there. {_all_languages()}"


def truncation_note(counts: Mapping[str, Any], settings: EncoderSettings, unit: str) -> str:
    """A note that counts the documents longer than the model reads; empty if there are none.

    ``counts`` has ``truncated`` and ``documents``, as a manifest does.
    """
    count = counts["truncated"]
    if not count:
        return ""
    scope = "; words count to the end" if settings.ot == "lexical" else ""
    # Files of a folder are split already, as well as a model without a readable tokenizer allows.
    advice = "" if unit == DocumentCollection.unit else ". dupmae-ir encode.passages splits them"
    return (
        f"note: {count:,} of {counts['documents']:,} {unit} are longer than the {settings.document_length} word pieces "
        f"that are read of each, so vectors are of their beginnings{scope}{advice}"
    )


def _all_languages() -> str:
    """How to have vectors for all languages."""
    install = "" if is_installed(MULTILINGUAL) else "pip install 'dupmae-ir[multilingual]', then "
    return f"For meaning in all languages: {install}encode with --model {MULTILINGUAL}"


def encoder_record(
    encoder: Encoder | EncoderFacts,
    separator: str,
    reading: Reading | None = None,
    factors: Mapping[str, float] | None = None,
    excerpts: ExcerptRecord | None = None,
) -> dict[str, object]:
    """The settings of the encoder that queries must share, as the meta records them.

    ``factors``: of the vectors of each language but that of the index; None if languages were not recognised.
    ``excerpts``: None if documents have none.
    """
    settings = encoder.settings
    dense, impact = settings.part_weights
    if reading:
        dense *= reading.weight
    record: dict[str, object] = {
        "name": encoder.name,
        "digest": encoder.digest,
        "document_length": settings.document_length,
        "query_length": settings.query_length,
        "top_k": settings.top_k,
        "activation": settings.activation,
        "dtype": settings.dtype,
        "title_separator": separator,
        "normalize": settings.normalize,
    }
    # What has its usual value is left out.
    if settings.dimensions:
        record["dimensions"] = settings.dimensions
    if settings.fold_terms:
        record["fold_terms"] = settings.fold_terms
    record["ot"] = settings.ot
    if settings.head_scale:
        record["head_scale"] = settings.head_scale
    if settings.ot == "lexical":
        record["language"] = settings.language
    if factors is not None:
        record["languages"] = dict(factors)
    if excerpts is not None:
        record["excerpts"] = excerpts
    if (dense, impact) != (1.0, 1.0):
        record["part_weights"] = {"dense": dense, "impact": impact}
    if reading:
        record["reading"] = dataclasses.asdict(reading)
    record["vocabulary"] = vocabulary_record(encoder.terms)
    return record


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
    devices = config.device_names()
    if devices:
        return DevicePool(choice, devices, config.quiet)
    return ThisProcess(choice, config.device)
