"""Tables as text, Markdown, LaTeX and CSV: one writer for reports, model cards, documentation and benchmarks.

Control characters and line breaks in cells are made visible, so that no cell ends a row.
"""

from __future__ import annotations

import csv
import importlib
import io
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from dupmae_ir.console import table, visible
from dupmae_ir.errors import EnvironmentProblem

if TYPE_CHECKING:
    import pandas

_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?")
_SPECIAL = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "[": "{[}",  # at the beginning of a row it would be an argument of the \\ before
    "<": "$<$",
    ">": "$>$",
    "†": r"$^{\dagger}$",
    "‡": r"$^{\ddagger}$",
}


def render(header: Sequence[str], rows: Iterable[Sequence[str]], format: str, left: int = 1) -> str:
    """A table as ``text`` (aligned, for a terminal) or ``markdown``."""
    if format == "text":
        return table([list(row) for row in rows], list(header))
    return markdown(header, rows, left)


def markdown(header: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1) -> str:
    """A Markdown table; the first ``left`` columns are left-aligned, the others right-aligned."""
    rule = "|".join([":--"] * left + ["--:"] * (len(header) - left))
    head = _markdown_row(header)
    lines = [_markdown_row(row) for row in rows]
    return "\n".join([head, f"|{rule}|", *lines])


def _markdown_row(row: Sequence[object]) -> str:
    return "| " + " | ".join(map(_cell, row)) + " |"


def html(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """An HTML table, for notebooks."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    lines = [f"<tr>{head}</tr>"]
    for row in rows:
        cells = "".join(f"<td>{escape(visible(cell))}</td>" for cell in row)
        lines.append(f"<tr>{cells}</tr>")
    return f"<table>{''.join(lines)}</table>"


def data_frame(rows: Sequence[Sequence[object]], columns: Sequence[str]) -> pandas.DataFrame:
    """A DataFrame of pandas. Raises :class:`EnvironmentProblem` without pandas."""
    try:
        library = importlib.import_module("pandas")
    except ImportError:
        raise EnvironmentProblem("a DataFrame needs pandas: pip install pandas") from None
    frame: pandas.DataFrame = library.DataFrame(list(rows), columns=list(columns))
    return frame


def _cell(cell: object) -> str:
    # A bar would end the cell. Backslashes before it are doubled, or they would escape the one that is added.
    return re.sub(r"(\\*)\|", r"\1\1\\|", visible(cell, breaks=True))


def latex(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A booktabs tabular. Cells are TeX: text needs :func:`tex` first."""
    lines = [" & ".join(row) + r" \\" for row in (header, *rows)]
    rules = [r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"]
    return "\n".join(
        [rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}", *rules, r"\end{tabular}"]
    )


def tex(text: str) -> str:
    """``text`` with TeX's special characters escaped."""
    return "".join(_SPECIAL.get(c, c) for c in visible(text, breaks=True))


def csv_text(rows: Iterable[Iterable[Any]], delimiter: str = ",") -> str:
    """Delimiter-separated lines. A text that a spreadsheet would take for a formula gets an apostrophe in front."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    for row in rows:
        writer.writerow(map(_csv_cell, row))
    return text.getvalue().rstrip("\n")


def _csv_cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = visible(value, breaks=True)
    # A negative number starts as a formula does.
    if value.startswith(("=", "+", "-", "@", "\t", "\r")) and not _NUMBER.fullmatch(value):
        return "'" + text
    return text
