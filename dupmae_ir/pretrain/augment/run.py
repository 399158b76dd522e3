"""Add generated texts to a corpus: queries for MASTER and CoT-MoTE, continuations for MASTER.

The corpus is copied to JSON lines with one more field: ``queries``, from an encoder-decoder such as doc2query-T5 that
reads title and text, or ``next``, from a causal model such as GPT-2 that is prompted with the text. Applied to its own
output, the command adds the other field and keeps the first.

The generated texts depend only on the text, the model and the seed (see
:mod:`~dupmae_ir.pretrain.augment.generator`), so neither a resumption nor another order changes them.
"""

from __future__ import annotations

import gzip
import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

from dupmae_ir.console import progress, say
from dupmae_ir.device import pick_device, pick_dtype, with_torch_threads
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.io.jobs import Job
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.io.resumable_jsonl import ResumableJsonl
from dupmae_ir.pretrain.augment.config import FIELDS, AugmentConfig
from dupmae_ir.pretrain.augment.generator import Generator, model_digest
from dupmae_ir.pretrain.augment.rows import needs_texts, prompt, read_rows, to_line


@with_torch_threads
def run(config: AugmentConfig) -> dict[str, Any]:
    """Write ``config.output`` and its record, and return the counts: texts, and texts that were augmented.

    A row that already has generated texts keeps them; an empty text gets an empty list. See :mod:`dupmae_ir.io.jobs`
    for what a second run returns.
    """
    if Path(config.output).is_dir():
        raise UsageError(f"{config.output} is a folder; name a file to write")
    corpus = _survey(config.corpus, FIELDS[config.task])

    def inputs() -> dict[str, str]:
        return {"corpus": corpus.digest, "model": model_digest(config)}

    with Job(
        config.output,
        "pretrain.augment",
        _settings(config),
        inputs,
        overwrite=config.overwrite,
        restart=config.restart,
        quiet=config.quiet,
    ) as job:
        if result := job.finished():
            return result
        started = time.monotonic()
        # Loaded first, because a downloaded model has its digest only afterwards.
        generator = Generator.load(config)
        work = job.begin()
        lines = _generate(config, generator, corpus, work / "lines.jsonl")
        made = work / f"augmented{Path(config.output).suffix}"
        _merge(config, corpus, lines, made)
        seconds = round(time.monotonic() - started, 1)
        return job.publish(made, {"texts": corpus.texts, "augmented": corpus.pending}) | {"seconds": seconds}


class _Corpus(NamedTuple):
    """Counts and digest of the corpus, from a first pass that also finds errors before the model is loaded."""

    texts: int
    pending: int  #: texts to generate for
    digest: str  #: sha256 of all rows


def _survey(source: str, field: str) -> _Corpus:
    texts = pending = 0
    sha256 = hashlib.sha256()
    for row in read_rows(source):
        texts += 1
        pending += needs_texts(row, field)
        sha256.update(to_line(row))
    if not texts:
        raise InputError(f"{source}: contains no texts")
    return _Corpus(texts, pending, sha256.hexdigest())


def _settings(config: AugmentConfig) -> dict[str, Any]:
    """The settings that decide what is generated; batch size and device affect it by rounding only."""
    names = ("task", "top_k", "top_p", "temperature", "max_new_tokens", "max_input", "seed", "window")
    dtype, _ = pick_dtype(config.dtype, pick_device(config.device)[0])
    return {
        **{name: getattr(config, name) for name in names},
        "per_text": config.copies,
        "dtype": str(dtype).removeprefix("torch."),
    }


def _generate(config: AugmentConfig, generator: Generator, corpus: _Corpus, path: Path) -> ResumableJsonl:
    """Generate the missing texts window by window: one line ``{"texts": [...]}`` per row, in reading order."""
    lines = ResumableJsonl(path, corpus.pending, config.window)
    if lines.done:
        say(f"resuming after {lines.done:,} of {corpus.pending:,} texts", config.quiet)
    field = FIELDS[config.task]
    prompts = (prompt(row) for row in read_rows(config.corpus) if needs_texts(row, field))
    todo = islice(prompts, lines.done, None)
    with progress(config.task, "texts", corpus.pending, config.quiet, initial=lines.done) as bar:
        while window := list(islice(todo, config.window)):
            lines.append([{"texts": texts} for texts in generator(window, bar.update)])
    return lines


def _merge(config: AugmentConfig, corpus: _Corpus, lines: ResumableJsonl, path: Path) -> None:
    """Write every row of the corpus with its generated texts."""
    field = FIELDS[config.task]
    sha256 = hashlib.sha256()
    with _open(path) as out:
        generated = lines.rows()
        for row in read_rows(config.corpus):
            sha256.update(to_line(row))
            texts = next(generated, {"texts": []})["texts"] if needs_texts(row, field) else row.get(field, [])
            out.write(to_line({**row, field: texts}))
        if sha256.hexdigest() != corpus.digest:
            raise InputError(
                f"{config.corpus}: changed while texts were generated for it; restore it, or add `restart`"
            )


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    """Atomic writing; a name that ends in .gz is gzipped without time or name, so that equal texts are equal bytes."""
    with atomic_write(path, "wb") as raw:
        if path.suffix == ".gz":
            with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as zipped:
                yield zipped  # type: ignore[misc]
        else:
            yield raw
