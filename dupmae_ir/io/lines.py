"""Numbered lines of a text file, plain or gzipped, and JSON lines written to one.

Every defect of a file is an :class:`InputError` of one line. ``jsonlines`` is not used here: it cannot report the
column of an error, and it refuses half of a surrogate pair, which JSON permits and collections contain.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dupmae_ir.errors import InputError
from dupmae_ir.io.publishing import atomic_write

_GZIP_MAGIC = b"\x1f\x8b"
_COLUMN = re.compile(r"[^ \t\n\r\f\v]+")


def columns(line: str) -> list[str]:
    """The columns of a line, split at C's ``isspace`` as in trec_eval: a no-break space is part of an id."""
    return line.split() if line.isascii() else _COLUMN.findall(line)


def numbered_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield ``(line number from 1, line without its newline)`` of the non-blank lines of a UTF-8 file.

    Gzip is recognised by its first bytes, not by the name; a byte-order mark is dropped. Raises
    :class:`InputError` for a file that is missing, a folder, not UTF-8 text, cut short, or empty.
    """
    path = Path(path)
    number = 0
    seen = False
    try:
        with open(path, "rb") as raw:
            zipped = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            for number, line in enumerate(gzip.GzipFile(fileobj=raw) if zipped else raw, 1):
                text = _decoded(line, path, number)
                if text.strip():
                    seen = True
                    yield number, text
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder; name a file in it") from None
    except PermissionError:
        raise InputError(f"{path}: not readable; check its permissions") from None
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise InputError(f"{path}: damaged gzip file after line {number}; download or write it again") from None
    if not seen:
        raise InputError(f"{path} is empty")


def _decoded(line: bytes, path: Path, number: int) -> str:
    if number == 1:
        line = line.removeprefix(b"\xef\xbb\xbf")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path}:{number}: not UTF-8 text") from None
    if "\0" in text:
        raise InputError(f"{path}:{number}: a binary file, not text")
    return text.rstrip("\r\n")


def usable(text: str) -> str:
    """``text`` with ``?`` for halves of surrogate pairs, which JSON can contain and UTF-8 cannot encode."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


@contextmanager
def json_lines(path: str | Path) -> Iterator[Callable[[Mapping[str, Any]], object]]:
    """Yields a function that writes a JSON line to ``path``, gzipped if its name ends in ``.gz``.

    The file appears whole or not at all.
    """
    with atomic_write(path, "wb") as raw:
        if Path(path).suffix != ".gz":
            yield lambda row: raw.write(_encoded(row))
            return
        # No name and no time in the header: the same input gives the same bytes.
        with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as zipped:
            yield lambda row: zipped.write(_encoded(row))


def _encoded(row: Mapping[str, Any]) -> bytes:
    # JSON can contain half of a surrogate pair, which UTF-8 cannot encode.
    return (json.dumps(row, ensure_ascii=False) + "\n").encode("utf-8", "replace")
