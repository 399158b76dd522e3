"""Texts that a model writes about a corpus: queries for MASTER and CoT-MoTE, continuations for MASTER.

``python -m dupmae_ir.pretrain.augment`` reads a corpus and writes it as JSON lines with one field more: ``queries``
(an encoder-decoder such as doc2query-T5, fed with title and text) or ``next`` (a causal model such as GPT-2, the
text being its prompt). Applied to its own output it adds the other field and keeps the first.

What is written about a text depends on the text, the model and the seed alone (see
:mod:`~dupmae_ir.pretrain.augment.writer`), so neither a resume nor another order changes it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NamedTuple

from dupmae_ir.config import option, parse
from dupmae_ir.console import Parser, guarded, progress, say
from dupmae_ir.errors import InputError, UsageError
from dupmae_ir.io.collections import read_collection
from dupmae_ir.io.lines import numbered_lines
from dupmae_ir.io.locks import exclusive
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.pretrain.augment.writer import Writer, WriterConfig
from dupmae_ir.pretrain.corpus import JSON_ENDINGS, list_sources

PURPOSE = """
Add texts that a model writes to a corpus: queries (any Hugging Face encoder-decoder, such as doc2query-T5) or
continuations (any causal model, such as GPT-2), for --method master and cot-mote of dupmae-ir pretrain.
Interrupted, the same command resumes to the same texts.
"""
EXAMPLE = """
dupmae-ir pretrain.augment --task queries --model doc2query-t5/ --corpus passages.txt.gz --output queries.jsonl.gz
dupmae-ir pretrain.augment --task continuation --model gpt2/ --corpus queries.jsonl.gz --output both.jsonl.gz
"""
FIELDS = {"queries": "queries", "continuation": "next"}
IDS = ("id", "_id", "docid")

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class AugmentConfig(WriterConfig):
    """Everything that ``python -m dupmae_ir.pretrain.augment`` can be told."""

    corpus: str = option(
        help="text file (a passage a line), JSON lines, TSV, BEIR folder, or a folder of such files; .gz of any",
        group="input",
        metavar="TEXT",
    )
    output: str = option(help="JSON lines to write; gzipped if the name ends in .gz", group="output", metavar="FILE")
    window: int = option(256, "texts read between two saves, and sorted by length together", group="machine")
    overwrite: bool = option(False, "replace an older output, once the new one is complete", group="output")
    restart: bool = option(False, "throw away the unfinished work of an earlier run", group="output")
    quiet: bool = option(False, "no progress, only errors", group="output")
    json: bool = option(False, "print the summary as JSON on standard output", group="output")


def run(config: AugmentConfig) -> dict[str, Any]:
    """Write ``config.output`` and return the summary: file, texts in it, those written about now, seconds.

    Finished windows lie in ``.OUTPUT.augment`` beside the output until it is whole; a run that was killed goes on
    from there, and refuses to with another model, corpus or setting. A text that has the field already keeps it, and
    an empty text gets an empty list.
    """
    if config.window < 1:
        raise UsageError(f"--window must be 1 or more, got {config.window}")
    output, field = _output(config), FIELDS[config.task]
    started = time.monotonic()
    with exclusive(output.with_name(f".{output.name}.lock"), f"writing {output}"):
        corpus = _survey(config.corpus, field)
        writer = Writer.load(config)
        work = output.with_name(f".{output.name}.augment")
        with _resumed(work, _decisive(config, corpus, writer), config.restart) as file:
            _write(config, field, writer, corpus.asked, file)
        _join(config.corpus, field, corpus, work, output)
        work.unlink()
    return {
        "output": str(output),
        "texts": corpus.rows,
        "written_about": corpus.asked,
        "seconds": round(time.monotonic() - started, 1),
    }


def read_rows(source: str | Path) -> Iterator[Row]:
    """The texts of a corpus as ``{"id", "title", "text"}``, with ``queries`` and ``next`` where a row has them.

    Without an id of its own a text has its line number, in a folder of files behind the file's name. ``text`` stays a
    list where it was one. Raises :class:`InputError` with file and line.
    """
    paths = list_sources(source)
    for path in paths:
        prefix = f"{path.name}:" if len(paths) > 1 else ""
        name = path.name.lower().removesuffix(".gz")
        if path.is_dir():
            raise InputError(f"{path} is a saved Hugging Face dataset; make JSON lines of it: dataset.to_json(FILE)")
        if name.endswith(".tsv"):
            yield from ({"id": d.docid, "title": d.title, "text": d.text} for d in read_collection(path))
            continue
        for number, line in numbered_lines(path):
            if name.endswith(JSON_ENDINGS):
                yield _row(line, f"{path}:{number}", f"{prefix}{number}")
            else:
                yield {"id": f"{prefix}{number}", "title": "", "text": line.strip()}


def prompt(row: Row) -> str:
    """What the model reads of a row: title, a blank, text; "" where both are empty."""
    passages = [row["text"]] if isinstance(row["text"], str) else row["text"]
    return " ".join(piece.strip() for piece in (row["title"], *passages) if piece.strip())


class _Corpus(NamedTuple):
    """What a first reading finds, so that a mistake in the last line shows before the work begins."""

    rows: int
    asked: int  #: rows to write about
    digest: str  #: sha256 of all rows


def _survey(source: str, field: str) -> _Corpus:
    rows = asked = 0
    sha256 = hashlib.sha256()
    for row in read_rows(source):
        rows += 1
        asked += _wants(row, field)
        sha256.update(_line(row))
    if not rows:
        raise InputError(f"{source}: no texts in it")
    return _Corpus(rows, asked, sha256.hexdigest())


def _output(config: AugmentConfig) -> Path:
    output = Path(config.output).absolute()
    if output.is_dir():
        raise UsageError(f"{output} is a folder; name a file in it")
    if output.exists() and not config.overwrite:
        raise UsageError(f"{output}: already there; add --overwrite to replace it, or name another --output")
    return output


def _wants(row: Row, field: str) -> bool:
    return not row.get(field) and bool(prompt(row))


def _write(config: AugmentConfig, field: str, writer: Writer, asked: int, file: IO[bytes]) -> None:
    """Append the windows that the work file lacks; each is one line, on the disk before the next begins."""
    done = sum(1 for _ in file) * config.window
    todo = islice((prompt(row) for row in read_rows(config.corpus) if _wants(row, field)), done, None)
    with progress(config.task, "texts", asked, config.quiet, initial=min(done, asked)) as bar:
        while window := list(islice(todo, config.window)):
            file.write(_line(writer(window, bar.update)))
            file.flush()
            os.fsync(file.fileno())


def _join(source: str, field: str, corpus: _Corpus, work: Path, output: Path) -> None:
    """The output: every row with what was written about it."""
    sha256 = hashlib.sha256()
    with work.open("rb") as file, _opened(output) as out:
        next(file)
        written = chain.from_iterable(map(json.loads, file))
        for row in read_rows(source):
            sha256.update(_line(row))
            texts = next(written, []) if _wants(row, field) else row.get(field, [])
            out.write(_line({**row, field: texts}))
        if sha256.hexdigest() != corpus.digest:
            raise InputError(f"{source}: changed while its texts were written; put it back, or add --restart")


def _decisive(config: AugmentConfig, corpus: _Corpus, writer: Writer) -> dict[str, Any]:
    """Whatever decides what is written, by flag; batch size and device do so by rounding only."""
    names = ("task", "top_k", "top_p", "temperature", "max_new_tokens", "max_input", "seed", "window")
    return {
        "corpus": corpus.digest,
        "model": writer.digest,
        "dtype": writer.dtype,
        "per_text": config.copies,
        **{n: getattr(config, n) for n in names},
    }


@contextmanager
def _resumed(work: Path, settings: Mapping[str, Any], restart: bool) -> Iterator[IO[bytes]]:
    """The work file, to read its finished windows from and then append to. The first line says its settings."""
    if restart:
        work.unlink(missing_ok=True)
    with work.open("a+b") as file:
        file.seek(0)
        whole = sum(len(line) for line in file if line.endswith(b"\n"))
        # A kill in the middle of a line leaves its beginning.
        file.truncate(whole)
        file.seek(0)
        if not whole:
            file.write(_line(settings))
        elif changed := _changes(json.loads(file.readline()), settings):
            raise UsageError(
                f"{work}: unfinished work was begun otherwise ({changed}); run the first command again "
                "to finish it, or add --restart to throw it away"
            )
        yield file


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    names = [n for n in now if before.get(n) != now[n]]
    return "; ".join(f"--{n.replace('_', '-')} was {str(before.get(n))[:12]}, is {str(now[n])[:12]}" for n in names)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Atomic; gzipped by the name, without time or name inside so that equal texts are equal bytes."""
    with atomic_write(path, "wb") as raw:
        if path.suffix == ".gz":
            with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as zipped:
                yield zipped
        else:
            yield raw


def _line(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=False) + "\n").encode()


def _row(line: str, where: str, number: str) -> Row:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as e:
        raise InputError(f"{where}: broken JSON: {e}") from None
    if not isinstance(data, dict) or not {"text", "contents"} & data.keys():
        raise InputError(f'{where}: wants one JSON object a line with "text" or "contents"')
    name = "text" if "text" in data else "contents"
    texts = _strings(data, name, where)
    row: Row = {
        "id": str(next((data[key] for key in IDS if key in data), number)),
        "title": " ".join(_strings(data, "title", where)),
        "text": texts if isinstance(data[name], list) else "".join(texts),
    }
    return row | {field: there for field in FIELDS.values() if (there := _strings(data, field, where))}


def _strings(data: Row, name: str, where: str) -> list[str]:
    value = data.get(name)
    strings = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(s, str) for s in strings):
        raise InputError(f'{where}: "{name}" is neither a text nor a list of texts')
    # JSON may hold half of a surrogate pair, which no UTF-8 file can.
    return [s.encode("utf-8", "replace").decode() for s in strings]


def main(argv: list[str] | None = None) -> int:
    return guarded(lambda: _main(argv), "dupmae-ir pretrain.augment")


def _main(argv: list[str] | None) -> int:
    config = parse(Parser("pretrain.augment", PURPOSE, EXAMPLE), AugmentConfig, argv)
    summary = run(config)
    if config.json:
        sys.stdout.write(json.dumps(summary) + "\n")
    told = f"{summary['texts']:,} texts, {summary['written_about']:,} written about now"
    say(f"{summary['output']}: {told}", config.quiet)
    return 0
