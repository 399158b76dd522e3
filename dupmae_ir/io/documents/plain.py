"""Formats that are text: plain text, Markdown, reStructuredText, source code, notebooks, CSV and JSON.

The text of the first four is that of the file, so offsets are places in it.
"""

from __future__ import annotations

import csv
import io
import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from dupmae_ir.io.documents.extracted import Builder, Extracted, Heading, Unreadable, decoded

_ATX = re.compile(r"^ {0,3}(#{1,6})[ \t]+(\S.*?)[ \t]*#*[ \t]*$", re.MULTILINE)
_FENCE = re.compile(r"^ {0,3}(```|~~~)", re.MULTILINE)
_UNDERLINE = re.compile(r"^(?=([=\-~^\"'`*+#.:_]))\1{3,}[ \t]*$", re.MULTILINE)
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?\n)(?:---|\.\.\.)[ \t]*\n", re.DOTALL)
_TITLE_LINE = re.compile(r"^title:[ \t]*[\"']?(.*?)[\"']?[ \t]*$", re.MULTILINE)
_DEFINITION = re.compile(
    r"^(?:export |default |public |private |static |pub(?:\([a-z]+\))? |async |abstract |final )*"
    r"(?:class|def|fn|func|function|interface|struct|enum|trait|impl|module|sub|type)[ \t]+([A-Za-z_][\w.:]*)",
    re.MULTILINE,
)
_LONGEST_HEADING = 200


def text(data: bytes) -> Extracted:
    """Plain text and reStructuredText: underlined lines are headings."""
    found = decoded(data)
    headings = list(_underlined(found, set()))
    return Extracted(found, headings[0].text if headings and not found[: headings[0].start].strip() else "", headings)


def markdown(data: bytes) -> Extracted:
    """Markdown: ``#`` and underlined headings outside of code; the title of the front matter."""
    found = decoded(data)
    front = _FRONT_MATTER.match(found)
    named = _TITLE_LINE.search(front.group(1)) if front else None
    body = found if front is None else _blank(found[: front.end()]) + found[front.end() :]
    fenced = _fenced(body)
    headings = [
        Heading(m.start(), len(m.group(1)), m.group(2)[:_LONGEST_HEADING])
        for m in _ATX.finditer(body)
        if not _inside(m.start(), fenced)
    ]
    levels = {h.start for h in headings}
    headings += [h for h in _underlined(body, levels) if not _inside(h.start, fenced)]
    headings.sort()
    return Extracted(body, named.group(1) if named else headings[0].text if headings else "", headings)


def code(data: bytes) -> Extracted:
    """Source code: definitions at the left margin are headings; split at line ends."""
    found = decoded(data)
    headings = [Heading(m.start(), 1, m.group(1)) for m in _DEFINITION.finditer(found)]
    return Extracted(found, "", headings, lines=True)


def notebook(data: bytes) -> Extracted:
    """A Jupyter notebook: Markdown and code cells, without outputs."""
    try:
        cells = json.loads(decoded(data))["cells"]
        sources = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise Unreadable(f"not a notebook: {_reason(e)}") from None
    made = Builder()
    for kind, source in sources:
        if kind != "markdown":
            made.write(source.strip("\n"))
        else:
            inner = markdown(source.encode("utf-8", "replace"))
            start = made.next_start
            made.write(inner.text)
            made.headings += [heading._replace(start=heading.start + start) for heading in inner.headings]
        made.gap("\n\n")
    return made.done()


def table(data: bytes) -> Extracted:
    """CSV or tab-separated: each row as ``name: value; ...``; split at rows."""
    found = decoded(data)
    first = found.lstrip("\n").partition("\n")[0]
    delimiter = max(",;\t|", key=first.count)
    csv.field_size_limit(1 << 30)
    try:
        rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(found), delimiter=delimiter)]
    except csv.Error as e:
        raise Unreadable(f"not a table: {e}") from None
    rows = [row for row in rows if any(row)]
    header = rows.pop(0) if len(rows) > 1 and _is_header(rows[0]) else []
    names = [f"{name}: " if name else "" for name in header]
    lines = (
        "; ".join(f"{names[i] if i < len(names) else ''}{' '.join(cell.split())}" for i, cell in enumerate(row) if cell)
        for row in rows
    )
    return Extracted("\n".join(lines), "", (), lines=True)


def json_values(data: bytes) -> Extracted:
    """JSON, or JSON lines: each value as ``path: value`` on a line of its own."""
    found = decoded(data)
    try:
        values = [json.loads(found)]
    except (ValueError, RecursionError) as whole:
        try:
            values = [json.loads(line) for line in found.split("\n") if line.strip()]
        except (ValueError, RecursionError):
            raise Unreadable(f"not JSON: {_reason(whole)}") from None
    return Extracted("\n".join(line for value in values for line in _flat(value)), "", (), lines=True)


def _blank(front: str) -> str:
    """Front matter as white space of the same length, so that offsets stay those of the file."""
    return re.sub(r"[^\n]", " ", front)


def _flat(root: Any) -> Iterator[str]:
    """``path: value`` lines in the order of the file, without recursion."""
    waiting: list[tuple[str, Any]] = [("", root)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(f"{path}.{key}" if path else str(key), inner) for key, inner in reversed(value.items())]
        elif isinstance(value, list):
            waiting += [(path, inner) for inner in reversed(value)]
        elif value is not None and value != "":
            shown = " ".join(value.split()) if isinstance(value, str) else json.dumps(value)
            yield f"{path}: {shown}" if path else shown


def _is_header(row: list[str]) -> bool:
    """Distinct names that are no numbers."""
    return len(set(row)) == len(row) and not any(re.fullmatch(r"[-+]?[\d.,]+%?", cell) for cell in row)


def _underlined(found: str, taken: set[int]) -> Iterator[Heading]:
    """Lines that the next one underlines; the level is the place of the underline's character among those met."""
    characters: list[str] = []
    for m in _UNDERLINE.finditer(found):
        end = m.start() - 1
        if end <= 0:
            continue
        start = found.rfind("\n", max(0, end - _LONGEST_HEADING), end) + 1
        title = found[start:end].strip()
        too_short = len(m.group().rstrip()) < min(len(title), 12)
        if not title or too_short or start in taken or not title[0].isalnum() or end - start > _LONGEST_HEADING:
            continue
        if (character := m.group(1)) not in characters:
            characters.append(character)
        yield Heading(start, characters.index(character) + 1, title)


def _fenced(found: str) -> list[int]:
    """Where fenced code begins and ends, in turns."""
    places: list[int] = []
    opened = ""
    for m in _FENCE.finditer(found):
        if not opened or m.group(1) == opened:
            places.append(m.start())
            opened = "" if opened else m.group(1)
    return places


def _inside(place: int, borders: list[int]) -> bool:
    return bisect_right(borders, place) % 2 == 1


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__
