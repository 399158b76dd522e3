"""Jupyter notebooks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from dupmae_ir.io.documents.readers.encodings import decoded
from dupmae_ir.io.documents.readers.extracted import Builder, Extracted, Unreadable, reason
from dupmae_ir.io.documents.readers.markdown import read_markdown


def read_notebook(data: bytes) -> Extracted:
    """A Jupyter notebook: Markdown and code cells, without outputs; format 3, of IPython, too."""
    try:
        sources = [_typed_source(cell) for cell in _cells(json.loads(decoded(data).text))]
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise Unreadable(f"not a notebook: {reason(e)}") from None

    builder = Builder()
    for cell_type, source in sources:
        if cell_type == "markdown":
            _write_markdown(source, builder)
        else:
            builder.write(source.strip("\n"))
        builder.gap("\n\n")
    return builder.done()


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
