"""What the campaign found, one record per trial: kept in a file of JSON lines, counted in Markdown tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]


class Records:
    """The records of one part, those of earlier runs in ``path`` included; new ones are appended at once.

    Without ``path`` they are kept in memory only.
    """

    def __init__(self, part: str, path: Path | None) -> None:
        self.part = part
        self.path = path
        self.all = [row for row in read(path) if row["part"] == part] if path else []

    def add(self, **values: Any) -> None:
        """Keep a record."""
        row = {"part": self.part, **values}
        self.all.append(row)
        if self.path:
            with open(self.path, "a", encoding="utf-8") as f:
                f.write(json.dumps(row) + "\n")


def read(path: Path | None) -> list[Record]:
    """The records of a file; none where it does not exist."""
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def markdown(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table whose first column is text and whose others are numbers."""
    lines = [[str(cell) if isinstance(cell, str) else f"{cell:,}" for cell in row] for row in rows]
    return "\n".join(
        f"| {' | '.join(line)} |" for line in (heads, ["--", *["--:"] * (len(heads) - 1)], *lines)
    )


def counted(
    records: Sequence[Record],
    key: str,
    counts: dict[str, Callable[[Sequence[Record]], int]],
    name: str,
) -> str:
    """A table with a row for each value of ``key`` and one for all; ``counts``: heading -> number."""
    values = sorted({row[key] for row in records})
    groups: Iterator[tuple[str, Sequence[Record]]] = (
        (v, [r for r in records if r[key] == v]) for v in values
    )
    rows = [[v, *(count(group) for count in counts.values())] for v, group in groups]
    return markdown(
        [name, *counts], [*rows, ["**all**", *(count(records) for count in counts.values())]]
    )


def number_of(key: str, value: Any) -> Callable[[Sequence[Record]], int]:
    """Counts the records whose ``key`` is ``value``."""
    return lambda records: sum(row[key] == value for row in records)


def sum_of(key: str) -> Callable[[Sequence[Record]], int]:
    """Adds up ``key``."""
    return lambda records: sum(row[key] for row in records)
