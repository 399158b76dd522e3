"""Sheets of Excel and LibreOffice, read by python-calamine: values as they are shown, no formulas and no macros."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from typing import Any

from dupmae_ir.io.documents.readers.archive import OLE_MAGIC, refuse_encrypted
from dupmae_ir.io.documents.readers.extracted import Builder, Extracted, Unreadable
from dupmae_ir.io.documents.readers.html import read_html
from dupmae_ir.io.documents.readers.table import is_header, read_table, row_text

MAX_CELLS = 5_000_000
"""Cells of the used area of a sheet above which it is refused: the library keeps each in memory, 24 bytes or more."""
_SIGNIFICANT_DIGITS = 15
"""Digits of a number that spreadsheet programs show; the next ones are those of its binary form."""


def read_sheets(data: bytes) -> Extracted:
    """All sheets of a file: each row as ``name: value; ...`` with the names of its columns."""
    import python_calamine

    # Exports of web pages have the ending of a sheet, and are HTML or text.
    if not data.startswith((b"PK", OLE_MAGIC)):
        return read_html(data) if data.lstrip()[:1] == b"<" else read_table(data)
    refuse_encrypted(data)
    try:
        workbook = python_calamine.load_workbook(io.BytesIO(data))
    except python_calamine.PasswordError:
        raise Unreadable("encrypted with a password") from None
    builder = Builder()
    problems = []
    for name in workbook.sheet_names:
        try:
            sheet = workbook.get_sheet_by_name(name)
        except python_calamine.CalamineError as e:  # a chart, or a damaged sheet among others
            problems.append(f"sheet {name}: {e}")
            continue
        if sheet.width * sheet.height > MAX_CELLS:
            problems.append(f"sheet {name}: more than {MAX_CELLS:,} cells")
            continue
        first_row = sheet.start[0] + 1 if sheet.start else 1
        _write_sheet(name, _filled_rows(sheet.iter_rows(), first_row), builder)
    # The name of the first sheet is no title.
    return replace(builder.done(lines=True, problems=problems), title="")


def _filled_rows(rows: Iterable[list[Any]], first: int) -> Iterator[tuple[int, list[str]]]:
    """The number and the cells of each row that has any, as a person reads them."""
    for number, row in enumerate(rows, first):
        cells = [_cell_text(cell) for cell in row]
        if any(cells):
            yield number, cells


def _write_sheet(name: str, rows: Iterable[tuple[int, list[str]]], builder: Builder) -> None:
    """Append a sheet: its name, and its rows with their places."""
    numbered = list(rows)
    if not numbered:
        return
    builder.gap("\n\n")
    builder.place({"sheet": name, "row": numbered[0][0]})
    builder.heading(1, name)
    header_at, header = _header(numbered)
    for number, cells in numbered:
        if number == header_at:
            continue
        builder.gap("\n")
        builder.place({"sheet": name, "row": number})
        # Rows above the header, such as the title of the table, are not under it.
        builder.write(row_text(cells, header if number > header_at else []))
    builder.gap("\n\n")


def _header(rows: Sequence[tuple[int, list[str]]]) -> tuple[int, list[str]]:
    """The number and the cells of the header; 0 and none if the first row with several cells is none, or is the last
    of the sheet."""
    for number, cells in rows:
        filled = [cell for cell in cells if cell]
        if len(filled) > 1:
            if is_header(filled) and number != rows[-1][0]:
                return number, cells
            break
    return 0, []


def _cell_text(value: Any) -> str:
    """The value of a cell as text."""
    if isinstance(value, float):
        return f"{value:.{_SIGNIFICANT_DIGITS}g}"
    if isinstance(value, datetime):
        is_day = value.time() == time()
        return value.date().isoformat() if is_day else value.isoformat(" ", "minutes")
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return str(value)
    text = " ".join(str(value).split())
    return "" if text.startswith("#") and text.endswith(("!", "?", "/A")) else text
