"""All formats. To add one, write a module with ``FORMATS`` and name it in ``_READERS``."""

from __future__ import annotations

from collections.abc import Iterator

from dupmae_ir.io.documents.readers import (
    books,
    code,
    latex,
    lightweight,
    mail,
    manual,
    markup,
    notebook,
    office,
    opendocument,
    packed,
    pdf,
    rtf,
    sheets,
    table,
    text,
    xml,
)
from dupmae_ir.io.documents.readers.format import Format

# The order is also the order in which an error message counts the files that need a package.
_READERS = (
    text,
    markup,
    lightweight,
    table,
    notebook,
    code,
    mail,
    manual,
    packed,
    xml,
    books,
    latex,
    office,
    opendocument,
    rtf,
    sheets,
    pdf,
)


def _all_formats() -> Iterator[Format]:
    for reader in _READERS:
        yield from reader.FORMATS


def _kinds_by_ending() -> dict[str, str]:
    kinds = {}
    for entry in _all_formats():
        for ending in entry.endings:
            kinds[ending] = entry.kind
    return kinds


def _kinds_by_package() -> dict[str, list[str]]:
    kinds: dict[str, list[str]] = {}
    for entry in _all_formats():
        for package in entry.packages:
            kinds.setdefault(package, []).append(entry.kind)
    return kinds


FORMATS = {entry.kind: entry for entry in _all_formats()}
"""Kind of a file -> its format."""

KINDS = _kinds_by_ending()
"""Ending of a name -> kind. Any other file is text if its beginning is."""

PACKAGES = _kinds_by_package()
"""Package of the extra -> the kinds of files that need it."""
