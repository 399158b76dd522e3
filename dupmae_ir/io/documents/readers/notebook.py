"""Jupyter notebooks."""

from __future__ import annotations

import json

from dupmae_ir.io.documents.readers.encodings import decoded
from dupmae_ir.io.documents.readers.extracted import Builder, Extracted, Unreadable, reason
from dupmae_ir.io.documents.readers.format import Format
from dupmae_ir.io.documents.readers.markup import read_markdown


def read_notebook(data: bytes) -> Extracted:
    """A Jupyter notebook: Markdown and code cells, without outputs."""
    try:
        cells = json.loads(decoded(data).text)["cells"]
        sources = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
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


def _write_markdown(source: str, builder: Builder) -> None:
    """Append a cell, with its headings moved to where they are in the notebook's text."""
    cell = read_markdown(source.encode("utf-8", "replace"))
    cell_start = builder.next_start
    builder.write(cell.text)
    for heading in cell.headings:
        builder.headings.append(heading._replace(start=heading.start + cell_start))


FORMATS = (Format("ipynb", ("ipynb",), read_notebook),)
