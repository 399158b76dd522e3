"""The text to pre-train on, as a stream of documents.

A source is a plain text file (one passage per line), JSON lines, tab-separated lines, a BEIR folder, a Hugging Face
dataset saved to disk, or a folder of such files; files may be gzipped (``.gz``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dupmae_ir.errors import EnvironmentProblem, InputError
from dupmae_ir.io.collections import natural_key, read_collection
from dupmae_ir.io.lines import numbered_lines
from dupmae_ir.io.publishing import sha256_file

JSON_ENDINGS = (".jsonl", ".json", ".ndjson")
ENDINGS = (*JSON_ENDINGS, ".tsv", ".txt", ".md")
DATASET_FILES = ("dataset_info.json", "state.json", "dataset_dict.json")
DOCUMENTS = ("line", "blank", "file")


@dataclass(frozen=True)
class Text:
    """A document: its passages in order, and the texts that a model generated for it."""

    passages: list[str]
    queries: tuple[str, ...] = ()  #: generated queries (doc2query)
    following: tuple[str, ...] = ()  #: generated continuations (GPT-2)


def read_texts(source: str | Path, documents: str = "line", separator: str = " ") -> Iterator[Text]:
    """Stream the documents of ``source``; empty ones are skipped.

    In plain text a document is a line (``documents="line"``), a paragraph between blank lines (``blank``) or a file
    (``file``). JSON rows are ``{"text": str or list of passages}`` (or ``contents``), optionally with ``title``,
    ``queries`` and ``next``; ``separator`` joins title and text. Raises :class:`InputError` that names file and line.
    """
    for path in list_sources(source):
        if path.is_dir():
            yield from _from_dataset(path, separator)
        elif _plain_name(path).endswith(JSON_ENDINGS):
            yield from _from_json_lines(path, separator)
        elif _plain_name(path).endswith(".tsv"):
            yield from (Text([d.joined(separator)]) for d in read_collection(path) if d.joined().strip())
        else:
            yield from _from_lines(path, documents)


def list_sources(source: str | Path) -> list[Path]:
    """The files (or dataset folders) of a source, in reading order. Raises :class:`InputError` if there are none."""
    path = Path(source)
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    if path.is_file() or _is_dataset(path):
        return [path]
    beir = [p for p in (path / "corpus.jsonl", path / "corpus.jsonl.gz") if p.is_file()]
    found = beir[:1] or sorted(filter(_is_text, path.iterdir()), key=lambda p: natural_key(p.name))
    if not found:
        raise InputError(f"{path}: no corpus in this folder (no {', '.join(ENDINGS)} file, no saved dataset)")
    return found


def digest(source: str | Path) -> str:
    """sha256 over the bytes of all files of a source, in reading order."""
    whole = hashlib.sha256()
    for path in list_sources(source):
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in files:
            whole.update(sha256_file(file).encode())
    return whole.hexdigest()


def _plain_name(path: Path) -> str:
    return path.name.lower().removesuffix(".gz")


def _is_text(path: Path) -> bool:
    # X.meta.json is the record of the file X.
    record = path.name.endswith(".meta.json")
    return path.is_file() and _plain_name(path).endswith(ENDINGS) and path.name[0] != "." and not record


def _is_dataset(path: Path) -> bool:
    return any((path / name).is_file() for name in DATASET_FILES)


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


def _from_json_lines(path: Path, separator: str) -> Iterator[Text]:
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as e:
            raise InputError(f"{where}: broken JSON: {e}") from None
        text = _from_row(row, where, separator)
        if text is not None:
            yield text


def _from_row(row: object, where: str, separator: str) -> Text | None:
    """The document of one row, or None where it has no text."""
    if not isinstance(row, dict):
        raise InputError(f'{where}: expected one JSON object per line with "text" or "contents"')
    value = row.get("text", row.get("contents"))
    if value is None:
        found = ", ".join(sorted(row)[:8])
        raise InputError(f'{where}: no text: expected "text" or "contents", found {found}')
    passages = [p.strip() for p in _strings(value, "text", where) if p.strip()]
    title = row.get("title")
    if isinstance(title, str) and title.strip():
        passages = [f"{title.strip()}{separator}{passages[0]}", *passages[1:]] if passages else [title.strip()]
    if not passages:
        return None
    queries, following = (
        tuple(s.strip() for s in _strings(row.get(key) or [], key, where) if s.strip()) for key in ("queries", "next")
    )
    return Text(passages, queries, following)


def _strings(value: object, key: str, where: str) -> list[str]:
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(s, str) for s in strings):
        raise InputError(f'{where}: "{key}" must be a string or a list of strings')
    return strings


def _from_dataset(path: Path, separator: str) -> Iterator[Text]:
    try:
        import datasets
    except ImportError:
        raise EnvironmentProblem(
            f"{path} is a Hugging Face dataset, which needs a package: pip install datasets"
        ) from None
    try:
        loaded = datasets.load_from_disk(str(path))
    except Exception as e:
        raise InputError(f"{path}: cannot load the dataset: {' '.join(str(e).split())[:200]}") from None
    parts = loaded.values() if isinstance(loaded, datasets.DatasetDict) else [loaded]
    for part in parts:
        for number, row in enumerate(part):
            text = _from_row(row, f"{path}: row {number}", separator)
            if text is not None:
                yield text
