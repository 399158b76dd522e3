"""Jupyter notebooks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from dupmae_ir.io.documents.readers.encodings import decoded
from dupmae_ir.io.documents.readers.extracted import Border, Builder, Extracted, Unreadable, reason
from dupmae_ir.io.documents.readers.grammars import GRAMMARS
from dupmae_ir.io.documents.readers.markdown import read_markdown
from dupmae_ir.io.documents.readers.source import statement_borders


def read_notebook(data: bytes) -> Extracted:
    """A Jupyter notebook: Markdown and code cells, without outputs; format 3, of IPython, too.

    Passages may end between cells, and then between the statements of a cell if its language has a grammar.
    """
    try:
        notebook = json.loads(decoded(data).text)
        sources = [_typed_source(cell) for cell in _cells(notebook)]
        language = _language(notebook)
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise Unreadable(f"not a notebook: {reason(e)}") from None

    builder = Builder()
    borders: list[Border] = []
    for cell_type, source in sources:
        start = builder.next_start
        borders.append(Border(start, 0))
        if cell_type == "markdown":
            _write_markdown(source, builder)
        else:
            code = source.strip("\n")
            builder.write(code)
            if cell_type == "code" and language in GRAMMARS:
                borders += _inside(code, language, start)
        builder.gap("\n\n")
    return replace(builder.done(), borders=borders)


def _inside(code: str, language: str, start: int) -> Iterator[Border]:
    """The borders between the statements of a cell that begins at ``start``."""
    for border in statement_borders(code, language):
        # The first statement begins with the cell.
        if border.start:
            yield Border(start + border.start, border.depth + 1)


def _language(notebook: Any) -> str:
    """The language of the code cells, Python if the notebook does not say it."""
    info = notebook.get("metadata", {}).get("language_info", {})
    return str(info.get("name", "python")).lower()


def _cells(notebook: Any) -> Iterator[Any]:
    """The cells; those of format 3 are in worksheets."""
    if "worksheets" in notebook:
        for worksheet in notebook["worksheets"]:
            yield from worksheet["cells"]
    else:
        yield from notebook["cells"]


def _typed_source(cell: Any) -> tuple[str, str]:
    """The type of a cell and its source. Code of format 3 is its input, and a heading has a type of its own."""
    source = "".join(cell["source"] if "source" in cell else cell["input"])
    if cell["cell_type"] == "heading":
        return "markdown", f"{'#' * int(cell.get('level', 1))} {source}"
    return cell["cell_type"], source


def _write_markdown(source: str, builder: Builder) -> None:
    """Append a cell, with its headings moved to where they are in the notebook's text."""
    cell = read_markdown(source.encode("utf-8", "replace"))
    cell_start = builder.next_start
    builder.write(cell.text)
    for heading in cell.headings:
        builder.headings.append(heading._replace(start=heading.start + cell_start))
