"""Add generated texts to a corpus: queries for MASTER and CoT-MoTE, continuations for MASTER.

The corpus is copied to JSON lines with one more field: ``queries``, from an encoder-decoder such as doc2query-T5 that
reads title and text, or ``next``, from a causal model such as GPT-2 that is prompted with the text. Applied to its own
output, the command adds the other field and keeps the first.

The generated texts depend only on the text, the model and the seed (see
:mod:`~dupmae_ir.pretrain.augment.generator`), so neither a resumption nor another order changes them.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

from dupmae_ir.console import progress, say
from dupmae_ir.device import pick_device, pick_dtype, with_torch_threads
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.io.collections import JSON_ENDINGS, has_ending, read_collection
from dupmae_ir.io.jobs import Job
from dupmae_ir.io.lines import ResumableJsonl, json_lines, json_records, numbered_lines, usable
from dupmae_ir.pretrain.augment.config import FIELDS, AugmentConfig, AugmentResult
from dupmae_ir.pretrain.augment.generator import Generator, model_digest
from dupmae_ir.pretrain.corpus import strings, text_field, text_files


@with_torch_threads
def run(config: AugmentConfig) -> AugmentResult:
    """Write ``config.output`` and its record, and return the counts: texts, and texts that were augmented.

    A row that already has generated texts keeps them; an empty text gets an empty list. See :mod:`dupmae_ir.io.jobs`
    for what a second run returns.
    """
    if Path(config.output).is_dir():
        raise UsageError(f"{config.output} is a folder; name a file to write")
    corpus = _survey(config.corpus, FIELDS[config.task])

    with Job(
        config.output,
        "pretrain.augment",
        _settings(config),
        lambda: {"corpus": corpus.digest, "model": model_digest(config)},
        overwrite=config.overwrite,
        restart=config.restart,
        quiet=config.quiet,
    ) as job:
        if result := job.finished():
            return cast("AugmentResult", result)
        started = time.monotonic()
        # Loaded first, because a downloaded model has its digest only afterwards.
        generator = Generator.load(config)
        work = job.begin()
        lines = _generate(config, generator, corpus, work / "lines.jsonl")
        made = work / f"augmented{Path(config.output).suffix}"
        _merge(config, corpus, lines, made)
        seconds = round(time.monotonic() - started, 1)
        published = job.publish(made, {"texts": corpus.texts, "augmented": corpus.pending})
        return cast("AugmentResult", published | {"seconds": seconds})


Row = dict[str, Any]
"""``id``, ``title`` and ``text`` (a string or a list of passages), and optionally ``queries`` and ``next``."""


def read_rows(source: str | Path) -> Iterator[Row]:
    """The texts of a corpus as rows.

    A text without an id gets its line number, prefixed by the file's name in a folder of files. Raises
    :class:`InputError` that names file and line.
    """
    paths = text_files(source)
    for path in paths:
        prefix = f"{path.name}:" if len(paths) > 1 else ""
        if path.is_dir():
            raise InputError(f"{path} is a saved Hugging Face dataset; convert it with dataset.to_json(FILE)")
        if has_ending(path.name, (".tsv",)):
            yield from ({"id": d.docid, "title": d.title, "text": d.text} for d in read_collection(path))
        elif has_ending(path.name, JSON_ENDINGS):
            yield from (_row(data, where, f"{prefix}{where.rpartition(':')[2]}") for where, data in json_records(path))
        else:
            yield from (
                {"id": f"{prefix}{number}", "title": "", "text": line.strip()} for number, line in numbered_lines(path)
            )


def _row(data: Row, where: str, number: str) -> Row:
    name = text_field(data, where)
    fields = {field: list(map(usable, strings(data, field, where))) for field in (name, "title", *FIELDS.values())}
    texts = fields[name]
    row: Row = {
        "id": str(next((data[key] for key in ("id", "_id", "docid") if key in data), number)),
        "title": " ".join(fields["title"]),
        "text": texts if isinstance(data[name], list) else "".join(texts),
    }
    return row | {field: fields[field] for field in FIELDS.values() if fields[field]}


def _prompt(row: Row) -> str:
    """The model's input for a row: title, a space, text; "" if both are empty."""
    passages = [row["text"]] if isinstance(row["text"], str) else row["text"]
    return " ".join(piece.strip() for piece in (row["title"], *passages) if piece.strip())


def _needs_texts(row: Row, field: str) -> bool:
    """Whether texts are generated for a row: ``field`` is missing or empty, and the row has text."""
    return not row.get(field) and bool(_prompt(row))


class _Survey(NamedTuple):
    """Counts and digest of the corpus, from a first pass that also finds errors before the model is loaded."""

    texts: int
    pending: int  #: texts to generate for
    digest: str  #: sha256 of all rows


def _survey(source: str, field: str) -> _Survey:
    texts = pending = 0
    sha256 = hashlib.sha256()
    for row in read_rows(source):
        texts += 1
        pending += _needs_texts(row, field)
        sha256.update(json.dumps(row).encode())
    if not texts:
        raise InputError(f"{source}: contains no texts")
    return _Survey(texts, pending, sha256.hexdigest())


def _settings(config: AugmentConfig) -> dict[str, object]:
    """The settings that decide what is generated; batch size and device affect it by rounding only."""
    names = ("task", "top_k", "top_p", "temperature", "max_new_tokens", "max_input", "seed", "window")
    dtype, _ = pick_dtype(config.dtype, pick_device(config.device)[0])
    return {
        **{name: getattr(config, name) for name in names},
        "per_text": config.copies,
        "dtype": str(dtype).removeprefix("torch."),
    }


def _generate(config: AugmentConfig, generator: Generator, corpus: _Survey, path: Path) -> ResumableJsonl:
    """Generate the missing texts window by window: one line ``{"texts": [...]}`` per row, in reading order."""
    lines = ResumableJsonl(path, corpus.pending, config.window)
    if lines.done:
        say(f"resuming after {lines.done:,} of {corpus.pending:,} texts", config.quiet)
    field = FIELDS[config.task]
    prompts = (_prompt(row) for row in read_rows(config.corpus) if _needs_texts(row, field))
    todo = islice(prompts, lines.done, None)
    with progress(config.task, "texts", corpus.pending, config.quiet, initial=lines.done) as bar:
        while window := list(islice(todo, config.window)):
            lines.append([{"texts": texts} for texts in generator(window, bar.update)])
    return lines


def _merge(config: AugmentConfig, corpus: _Survey, lines: ResumableJsonl, path: Path) -> None:
    """Write every row of the corpus with its generated texts."""
    field = FIELDS[config.task]
    sha256 = hashlib.sha256()
    with json_lines(path) as write:
        generated = lines.rows()
        for row in read_rows(config.corpus):
            sha256.update(json.dumps(row).encode())
            texts = next(generated, {"texts": []})["texts"] if _needs_texts(row, field) else row.get(field, [])
            write({**row, field: texts})
        if sha256.hexdigest() != corpus.digest:
            raise InputError(
                f"{config.corpus}: changed while texts were generated for it; restore it, or add `restart`"
            )
