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
            yield from _articles(path)
        elif has_ending(path.name, (".tsv",)):
            for document in read_collection(path):
                if document.joined().strip():
                    yield Text([document.joined(separator)])
        elif path.is_dir() or has_ending(path.name, JSON_ENDINGS):
            for where, row in _json_rows(path):
                text = _from_row(row, where, separator)
                if text is not None:
                    yield text
        else:
            yield from _from_lines(path, documents)


def text_files(source: str | Path) -> list[Path]:
    """The files (or folders of saved datasets) of a source, in reading order."""
    return [Path(str(path)) for path in list_files(Path(source), TEXT_ENDINGS)]


def digest(source: str | Path) -> str:
    """sha256 over the bytes of all files of a source, in reading order."""
    files = []
    for path in text_files(source):
        if path.is_dir():
            files += sorted(file for file in path.rglob("*") if file.is_file())
        else:
            files.append(path)
    return combined_digest(map(sha256_file, files))


def _articles(path: Path) -> Iterator[Text]:
    """Consecutive passages of the same title, joined; a passage without a title is an article by itself."""
    for _, passages in groupby(
        read_collection(path), lambda passage: passage.title or passage.docid
    ):
        article = " ".join(filter(None, (passage.text.strip() for passage in passages)))
        if article:
            yield Text([article])


def _json_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(position for errors, row) of JSON lines or a saved dataset."""
    if not path.is_dir():
        yield from json_records(path)
        return
    for number, row in enumerate(dataset_rows(path)):
        yield f"{path}: row {number}", row


def _from_lines(path: Path, documents: str) -> Iterator[Text]:
    passages: list[str] = []
    previous = 0
    for number, line in numbered_lines(path):
        # numbered_lines skips blank lines, which leaves a gap in the numbers.
        after_blank = number > previous + 1
        starts_document = documents == "line" or (documents == "blank" and after_blank)
        if starts_document and passages:
            yield Text(passages)
            passages = []
        passages.append(line.strip())
        previous = number
    if passages:
        yield Text(passages)


def _from_row(row: Mapping[str, Any], where: str, separator: str) -> Text | None:
    """The document of one row; None if it has no text."""
    passages = _nonblank(strings(row, text_field(row, where), where))
    title = row.get("title")
    if isinstance(title, str) and title.strip():
        # The title belongs to the first passage only.
        first = passages[:1]
        passages[:1] = [separator.join([title.strip(), *first])]
    queries = _nonblank(strings(row, "queries", where))
    following = _nonblank(strings(row, "next", where))
    return Text(passages, tuple(queries), tuple(following)) if passages else None


def _nonblank(values: Iterable[str]) -> list[str]:
    """The values without surrounding white space, and without those that are blank."""
    stripped = [value.strip() for value in values]
    return [value for value in stripped if value]


def text_field(row: Mapping[str, Any], where: str) -> str:
    """``text`` or ``contents``, whichever a row has. Raises :class:`InputError` if it has neither."""
    for name in ("text", "contents"):
        if row.get(name) is not None:
            return name
    keys = ", ".join(sorted(row)[:8])
    raise InputError(f'{where}: no text: expected "text" or "contents", found {keys or "nothing"}')


def strings(row: Mapping[str, Any], name: str, where: str) -> list[str]:
    """The string or strings in a field; none if it is missing or null."""
    values = row.get(name)
    if values is None:
        return []
    if isinstance(values, str):
        return [values]
    if not isinstance(values, list) or not all(isinstance(s, str) for s in values):
        raise InputError(f'{where}: "{name}" must be a string or a list of strings')
    return values
