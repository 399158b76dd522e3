"""Records as lines of ``name: value``: tables in CSV or separated by tabs, and JSON."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from dupmae_ir.io.documents.readers.encodings import decoded
from dupmae_ir.io.documents.readers.extracted import Extracted, Unreadable, joined, reason

_NUMBER = re.compile(r"[-+]?[\d.,]+%?")


def read_table(data: bytes) -> Extracted:
    """CSV or tab-separated: each row as ``name: value; ...``; split at rows."""
    text, guess = decoded(data)
    first_line = text.lstrip("\n").partition("\n")[0]
    delimiter = max(",;\t|", key=first_line.count)
    # The module's limit is 128 KiB a cell; the size of the file is limited anyway.
    csv.field_size_limit(1 << 30)
    rows = csv.reader(io.StringIO(text), delimiter=delimiter)
    try:
        # Lines are made one by one, because a table of short cells takes ten times its text as lists.
        return Extracted(joined(_row_lines(rows)), lines=True, guess=guess)
    except csv.Error as e:
        raise Unreadable(f"not a table: {e}") from None


def _row_lines(rows: Iterable[list[str]]) -> Iterator[str]:
    """The rows as text, under the first one if it is a header; one without another row is no header."""
    filled = _filled_rows(rows)
    first = next(filled, None)
    second = next(filled, None)
    if first is None:
        return
    header: list[str] = []
    if second is not None and is_header(first):
        header = first
    else:
        yield row_text(first, [])
    if second is not None:
        yield row_text(second, header)
    for row in filled:
        yield row_text(row, header)


def _filled_rows(rows: Iterable[list[str]]) -> Iterator[list[str]]:
    for row in rows:
        cells = [cell.strip() for cell in row]
        if any(cells):
            yield cells


def is_header(row: list[str]) -> bool:
    """Whether all cells are different and none is a number."""
    if len(set(row)) < len(row):
        return False
    return not any(_NUMBER.fullmatch(cell) for cell in row)


def row_text(row: list[str], header: list[str]) -> str:
    """A row as ``name: value; ...``; empty cells are left out, and a cell without a name has none."""
    parts = []
    for column, cell in enumerate(row):
        if not cell:
            continue
        value = " ".join(cell.split())
        if column < len(header) and header[column]:
            value = f"{header[column]}: {value}"
        parts.append(value)
    return "; ".join(parts)


def read_json(data: bytes) -> Extracted:
    """JSON, or JSON lines: each value as ``path: value`` on its own line."""
    text, guess = decoded(data)
    try:
        roots = [json.loads(text)]
    except (ValueError, RecursionError) as whole_file:
        try:
            roots = [json.loads(line) for line in text.split("\n") if line.strip()]
        except (ValueError, RecursionError):
            # What is wrong with the file as one value says more than what is wrong with its first line.
            raise Unreadable(f"not JSON: {reason(whole_file)}") from None
    return Extracted(joined(_all_lines(roots)), lines=True, guess=guess)


def _all_lines(roots: list[Any]) -> Iterator[str]:
    for root in roots:
        yield from _value_lines(root)


def _value_lines(root: Any) -> Iterator[str]:
    """``path: value`` lines in the order of the file, without recursion."""
    # The last entry comes next, so what is inside a value is pushed in reverse.
    waiting: list[tuple[str, Any]] = [("", root)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict):
            for key, inner in reversed(value.items()):
                inner_path = f"{path}.{key}" if path else str(key)
                waiting.append((inner_path, inner))
        elif isinstance(value, list):
            waiting += [(path, inner) for inner in reversed(value)]
        elif value is not None and value != "":
            shown = " ".join(value.split()) if isinstance(value, str) else json.dumps(value)
            yield f"{path}: {shown}" if path else shown
