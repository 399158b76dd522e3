"""Rows of a corpus as ``dupmae-ir pretrain.augment`` reads and writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dupmae_ir.errors import InputError
from dupmae_ir.io.collections import read_collection
from dupmae_ir.io.lines import numbered_lines
from dupmae_ir.pretrain.augment.config import FIELDS
from dupmae_ir.pretrain.corpus import JSON_ENDINGS, list_sources

IDS = ("id", "_id", "docid")

Row = dict[str, Any]
"""``id``, ``title`` and ``text`` (a string or a list of passages), and optionally ``queries`` and ``next``."""


def read_rows(source: str | Path) -> Iterator[Row]:
    """The texts of a corpus as rows.

    A text without an id gets its line number, prefixed by the file's name in a folder of files. Raises
    :class:`InputError` that names file and line.
    """
    paths = list_sources(source)
    for path in paths:
        prefix = f"{path.name}:" if len(paths) > 1 else ""
        name = path.name.lower().removesuffix(".gz")
        if path.is_dir():
            raise InputError(f"{path} is a saved Hugging Face dataset; convert it with dataset.to_json(FILE)")
        if name.endswith(".tsv"):
            yield from ({"id": d.docid, "title": d.title, "text": d.text} for d in read_collection(path))
            continue
        for number, line in numbered_lines(path):
            if name.endswith(JSON_ENDINGS):
                yield _row(line, f"{path}:{number}", f"{prefix}{number}")
            else:
                yield {"id": f"{prefix}{number}", "title": "", "text": line.strip()}


def prompt(row: Row) -> str:
    """The model's input for a row: title, a space, text; "" if both are empty."""
    passages = [row["text"]] if isinstance(row["text"], str) else row["text"]
    return " ".join(piece.strip() for piece in (row["title"], *passages) if piece.strip())


def needs_texts(row: Row, field: str) -> bool:
    """Whether texts are generated for a row: ``field`` is missing or empty, and the row has text."""
    return not row.get(field) and bool(prompt(row))


def to_line(row: Mapping[str, Any]) -> bytes:
    """One line of JSON in UTF-8."""
    return (json.dumps(row, ensure_ascii=False) + "\n").encode()


def _row(line: str, where: str, number: str) -> Row:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as e:
        raise InputError(f"{where}: broken JSON: {e}") from None
    if not isinstance(data, dict) or not {"text", "contents"} & data.keys():
        raise InputError(f'{where}: expected one JSON object per line with "text" or "contents"')
    name = "text" if "text" in data else "contents"
    texts = _strings(data, name, where)
    row: Row = {
        "id": str(next((data[key] for key in IDS if key in data), number)),
        "title": " ".join(_strings(data, "title", where)),
        "text": texts if isinstance(data[name], list) else "".join(texts),
    }
    return row | {field: texts for field in FIELDS.values() if (texts := _strings(data, field, where))}


def _strings(data: Row, name: str, where: str) -> list[str]:
    value = data.get(name)
    strings = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(s, str) for s in strings):
        raise InputError(f'{where}: "{name}" must be a string or a list of strings')
    # JSON can contain half of a surrogate pair, which cannot be written as UTF-8.
    return [s.encode("utf-8", "replace").decode() for s in strings]
