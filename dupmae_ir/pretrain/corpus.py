"""The text to pre-train on, as a stream of documents.

A source is a plain text file (one passage per line), JSON lines, tab-separated lines, a BEIR folder, a Hugging Face
dataset saved to disk, or a folder of such files (:func:`~dupmae_ir.io.collections.list_files`); files may be gzipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from dupmae_ir.errors import InputError
from dupmae_ir.io.collections import ENDINGS, JSON_ENDINGS, has_ending, list_files, read_collection
from dupmae_ir.io.lines import json_records, numbered_lines
from dupmae_ir.io.publishing import combined_digest, sha256_file
from dupmae_ir.io.sources import dataset_rows

TEXT_ENDINGS = (*ENDINGS, ".txt", ".md")


@dataclass(frozen=True)
class Text:
    """A document: its passages in order, and the texts that a model generated for it."""

    passages: list[str]
    queries: tuple[str, ...] = ()  #: generated queries (doc2query)
    following: tuple[str, ...] = ()  #: generated continuations (GPT-2)


def read_texts(source: str | Path, documents: str = "line", separator: str = " ") -> Iterator[Text]:
    """Stream the documents of ``source``; empty ones are skipped.

    In plain text a document is a line (``documents="line"``), a paragraph between blank lines (``blank``) or a file
    (``file``). In a collection, ``title`` joins consecutive passages of the same title, without the title: an
    encyclopedia that was cut into passages becomes its articles again. JSON rows are ``{"text": str or list of
    passages}`` (or ``contents``), optionally with ``title``, ``queries`` and ``next``; ``separator`` joins title and
    text. Raises :class:`InputError` that names file and line.
    """
    for path in text_files(source):
        if documents == "title":
            for _, parts in groupby(read_collection(path), lambda d: d.title or d.docid):
                if article := " ".join(filter(None, (d.text.strip() for d in parts))):
                    yield Text([article])
        elif has_ending(path.name, (".tsv",)):
            yield from (
                Text([d.joined(separator)]) for d in read_collection(path) if d.joined().strip()
            )
        elif path.is_dir() or has_ending(path.name, JSON_ENDINGS):
            rows: Iterable[tuple[str, Mapping[str, Any]]] = json_records(path)
            if path.is_dir():
                rows = (
                    (f"{path}: row {number}", row) for number, row in enumerate(dataset_rows(path))
                )
            yield from (
                text
                for where, row in rows
                if (text := _from_row(row, where, separator)) is not None
            )
        else:
            yield from _from_lines(path, documents)


def text_files(source: str | Path) -> list[Path]:
    """The files (or folders of saved datasets) of a source, in reading order."""
    return [Path(str(path)) for path in list_files(Path(source), TEXT_ENDINGS)]


def digest(source: str | Path) -> str:
    """sha256 over the bytes of all files of a source, in reading order."""
    files = (
        sorted(f for f in p.rglob("*") if f.is_file()) if p.is_dir() else [p]
        for p in text_files(source)
    )
    return combined_digest(sha256_file(file) for several in files for file in several)


def _from_lines(path: Path, documents: str) -> Iterator[Text]:
    passages: list[str] = []
    before = 0
    for number, line in numbered_lines(path):
        # numbered_lines skips blank lines, which leaves a gap in the numbers.
        ends = documents == "line" or (documents == "blank" and number > before + 1)
        if ends and passages:
            yield Text(passages)
            passages = []
        passages.append(line.strip())
        before = number
    if passages:
        yield Text(passages)


def _from_row(row: Mapping[str, Any], where: str, separator: str) -> Text | None:
    """The document of one row; None if it has no text."""
    passages = [p.strip() for p in strings(row, text_field(row, where), where) if p.strip()]
    title = row.get("title")
    if isinstance(title, str) and title.strip():
        passages = (
            [f"{title.strip()}{separator}{passages[0]}", *passages[1:]]
            if passages
            else [title.strip()]
        )
    queries, following = (
        tuple(s.strip() for s in strings(row, key, where) if s.strip())
        for key in ("queries", "next")
    )
    return Text(passages, queries, following) if passages else None


def text_field(row: Mapping[str, Any], where: str) -> str:
    """``text`` or ``contents``, whichever a row has. Raises :class:`InputError` if it has neither."""
    for name in ("text", "contents"):
        if row.get(name) is not None:
            return name
    keys = ", ".join(sorted(row)[:8])
    raise InputError(f'{where}: no text: expected "text" or "contents", found {keys or "nothing"}')


def strings(row: Mapping[str, Any], name: str, where: str) -> list[str]:
    """The string or strings in a field; none if it is missing or null."""
    value = row.get(name)
    values = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(s, str) for s in values):
        raise InputError(f'{where}: "{name}" must be a string or a list of strings')
    return values
