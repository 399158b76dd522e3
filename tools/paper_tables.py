"""Look up the numbers of cases and means in the cells of the tables that they cite.

The tables are parsed from the papers' texts; tools/paper_tables.toml says where each one is and which cell a case
quotes. A number stands in its cell if it equals the cell at the cell's digits, as a fraction or as a percentage, and
one of the cited cells has all digits of the number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

from dupmae_ir.config import read_toml
from dupmae_ir.eval.regressions.cases import Case, Mean

LAYOUT = Path(__file__).with_suffix(".toml")
_MARKUP = re.compile(r"</?\w+>|\s*\^?\[?\^?[↑↓]\]?|\*+$|\^$|\s*\(.*\)$")
"""Around a number: tags, arrows, marks of significance, and differences or variances in brackets."""
_VALUE = re.compile(r"\d*\.?\d+")
_GREEK = str.maketrans("СоТМЕт", "CoTMEt")
"""Cyrillic letters that the text of a scanned table has for Latin ones."""


@dataclass(frozen=True)
class Cell:
    """A printed number and where it stands."""

    source: str
    row: str
    column: str
    text: str

    @property
    def where(self) -> str:
        """Table, row and column."""
        return f"{self.source}, {self.row}, {self.column}"

    @property
    def value(self) -> Decimal:
        """The number as a fraction of 1: percentages are printed above 1."""
        number = Decimal(self.text)
        return number.scaleb(-2) if number > 1 else number

    def holds(self, printed: str) -> bool:
        """Whether ``printed``, rounded to the cell's digits, is the cell. Papers round halves either way."""
        digits = Decimal(1).scaleb(self.exponent)
        return self.value in {
            Decimal(printed).quantize(digits, mode) for mode in (ROUND_HALF_UP, ROUND_HALF_EVEN)
        }

    @property
    def exponent(self) -> int:
        """Of the last printed digit of the fraction: -4 for 0.4102 and for 41.02."""
        return int(self.value.as_tuple().exponent)


@dataclass(frozen=True)
class PaperTable:
    """One printed table."""

    source: str
    columns: Sequence[str]
    cells: Mapping[str, str]
    lines: Sequence[str]
    misprints: Mapping[str, str]

    @cached_property
    def rows(self) -> Mapping[str, Sequence[str]]:
        """Name -> texts of the cells; the n-th row of a name is ``NAME #n`` as well."""
        rows: dict[str, Sequence[str]] = {}
        counts: dict[str, int] = {}
        for line in self.lines:
            cells = [
                cell.strip()
                for cell in line.strip("|").split("|" if line.startswith("|") else "\t")
            ]
            while cells and not cells[-1]:
                cells.pop()
            names = cells[: -len(self.columns)]
            values = [_MARKUP.sub("", c) for c in cells[-len(self.columns) :]]
            if not any(map(_VALUE.fullmatch, values)):
                continue
            for name in {name.translate(_GREEK) for name in names if name}:
                counts[name] = counts.get(name, 0) + 1
                rows.setdefault(name, values)
                rows[f"{name} #{counts[name]}"] = values
        return rows

    def address(self, name: str, item: Case | Mean) -> str:
        """The row, or row and column, of a case or mean: by its title, its name or its regression; empty for none."""
        keys = (getattr(item, "title", ""), name, name.partition("/")[0])
        return next((self.cells[key] for key in keys if key in self.cells), "")

    def cell(self, address: str) -> Cell | None:
        """The cell at ``ROW | COLUMN``; None if the table has no such column, or prints no number there.

        Raises :class:`KeyError` for a row that the table does not have.
        """
        row, _, column = address.partition(" | ")
        text = self.rows[row][self.columns.index(column)] if column in self.columns else ""
        return Cell(self.source, row, column, text) if _VALUE.fullmatch(text) else None


class PaperTables:
    """The tables of the papers' texts in a folder."""

    def __init__(self, papers: Path, layout: Path = LAYOUT) -> None:
        data = read_toml(layout)
        self.names: Mapping[str, Sequence[str]] = data["rows"]
        self.tables = {entry["source"]: _read(entry, papers) for entry in data["table"]}

    def cited(self, sources: str) -> list[str]:
        """The tables that a source names, with or without a remark behind a comma."""
        names = [source.partition(", ")[0] for source in sources.split("; ")]
        return [name for name in names if name in self.tables]

    def problems(self, name: str, item: Case | Mean) -> Iterator[str]:
        """What is wrong with the printed numbers of a case or mean, by the cells of the tables that it cites."""
        cited = self.cited(item.source)
        for source in cited:
            table = self.tables[source]
            if not table.address(name, item):
                yield f"{name}: {source} has no row of it in {LAYOUT.name}"
        for measure, value in item.paper.items():
            cells: list[Cell] = []
            for source in cited:
                cells += self._cells(self.tables[source], name, item, measure)
            wrong = [cell for cell in cells if not cell.holds(value)]
            for cell in wrong:
                yield f"{name}: {measure} {value}, but {cell.text} in {cell.where}"
            if cited and not cells:
                yield f"{name}: {measure} {value} has no cell in {item.source}"
            elif (
                cells
                and not wrong
                and min(c.exponent for c in cells) > int(Decimal(value).as_tuple().exponent)
            ):
                yield f"{name}: {measure} {value} has more digits than {cells[0].text} in {cells[0].where}"
        for source in cited:
            yield from self._unquoted(self.tables[source], name, item)

    def rivals(self, name: str, case: Case, measure: str) -> Iterator[tuple[str, str, str]]:
        """(system, number as a fraction, table) of the same measure in the tables that a case cites.

        Tables have a row for each system, or a column. Rows that are equal in every cell are the same system.
        """
        for source in self.cited(case.source):
            table = self.tables[source]
            for cell in self._cells(table, name, case, measure):
                row = cell.row
                column = cell.column
                address = table.address(name, case)
                own = table.rows[row]
                others = []
                if not address.startswith("* "):  # rows are systems, or stages of them
                    names = [
                        n for n, values in table.rows.items() if "#" not in n[1:] and values != own
                    ]
                    others += [(n, table.cell(f"{n} | {column}")) for n in names]
                if " | " in address:  # and columns too, of the same measure where they have several
                    kind = column.rpartition(" ")[2] if column.endswith(f" {measure}") else ""
                    others += [
                        (c, table.cell(f"{row} | {c}"))
                        for c in table.columns
                        if c != column and c.endswith(kind)
                    ]
                yield from (
                    (n.removesuffix(f" {measure}"), str(o.value), source) for n, o in others if o
                )

    def _cells(self, table: PaperTable, name: str, item: Case | Mean, measure: str) -> list[Cell]:
        """The cell of a table that a number quotes: none or one."""
        address = table.address(name, item)
        if not address or name in table.misprints:
            return []
        test = getattr(item, "test", "")
        row, _, column = address.partition(" | ")
        if row == "*":
            key = item.collection if isinstance(item, Case) else item.name
            row = next((n for n in self.names.get(key, ()) if n in table.rows), key)
        column = column.format(measure=measure, test=test) if column else f"{test} {measure}"
        try:
            cell = table.cell(f"{row} | {column}")
        except KeyError:
            raise SystemExit(f"{LAYOUT.name}: {table.source} has no row {row!r}") from None
        return [cell] if cell else []

    def _unquoted(self, table: PaperTable, name: str, item: Case | Mean) -> Iterator[str]:
        """Numbers that the table prints in the columns of a case and that the case leaves out."""
        address = table.address(name, item)
        if isinstance(item, Case) and address and " | " not in address:
            for column in table.columns:
                test, measure = column.split(" ")
                if test != item.test or measure in item.paper:
                    continue
                cell = table.cell(f"{address} | {column}")
                if cell:
                    yield f"{name}: {cell.text} in {cell.where} is not quoted"


def _read(entry: Mapping[str, Any], papers: Path) -> PaperTable:
    """Find a table in the text of its paper. Raises SystemExit if it is not there."""
    lines = (papers / entry["file"]).read_text(encoding="utf-8").splitlines()
    at = next((n for n, line in enumerate(lines) if line.startswith(entry["anchor"])), None)
    if at is None:
        raise SystemExit(f"{papers / entry['file']}: no line begins with {entry['anchor']!r}")
    if entry["lines"] == "at":
        block = _block(lines[at:], "|")
    else:
        block = _block(lines[:at][::-1] if entry["lines"] == "above" else lines[at + 1 :])
        block = block[::-1] if entry["lines"] == "above" else block
    misprints = entry.get("misprints", {})
    return PaperTable(entry["source"], entry["columns"], entry["cells"], block, misprints)


def _block(lines: Sequence[str], prefix: str = "") -> list[str]:
    """The first lines that are not empty, up to an empty one or one without the prefix."""
    first = next((n for n, line in enumerate(lines) if line.strip()), len(lines))
    end = next(
        (
            n
            for n, line in enumerate(lines)
            if n >= first and not (line.strip() and line.startswith(prefix))
        ),
        None,
    )
    return list(lines[first:end])
