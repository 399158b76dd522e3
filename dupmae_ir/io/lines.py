"""Numbered lines of a text file, plain or gzipped, and JSON lines written to one, at once or window by window.

Every defect of a file is an :class:`InputError` of one line. ``jsonlines`` is not used here: it cannot report the
column of an error, and it refuses half of a surrogate pair, which JSON permits and collections contain.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

from dupmae_ir.errors import InputError
from dupmae_ir.io.publishing import atomic_write

LONGEST_LINE = 64 << 20  #: bytes; a longer line means a binary file
_GZIP_MAGIC = b"\x1f\x8b"
_COLUMN = re.compile(r"[^ \t\n\r\f\v]+")


def columns(line: str) -> list[str]:
    """The columns of a line, split at C's ``isspace`` as in trec_eval: a no-break space is part of an id."""
    return line.split() if line.isascii() else _COLUMN.findall(line)


def open_text(path: str | Path, newline: str | None = None) -> IO[str]:
    """A UTF-8 file, gzipped or not, with its byte-order mark dropped; ``newline`` as in :func:`open`."""
    with open(path, "rb") as raw:
        zipped = raw.read(2) == _GZIP_MAGIC
    opener: Any = gzip.open if zipped else open
    file: IO[str] = opener(path, "rt", encoding="utf-8-sig", newline=newline)
    return file


def numbered_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield ``(line number from 1, line without its newline)`` of the non-blank lines of a UTF-8 file.

    Raises :class:`InputError` for a file that is missing, a folder or empty, and what :func:`lines_of` raises.
    """
    path = Path(path)
    try:
        raw = open(path, "rb", buffering=0)  # noqa: SIM115
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder; name a file in it") from None
    except PermissionError:
        raise InputError(f"{path}: not readable; check its permissions") from None
    number = 0
    with raw:
        for number, line in lines_of(raw, str(path)):
            yield number, line
    if not number:
        raise InputError(f"{path} is empty")


def lines_of(raw: io.RawIOBase, name: str) -> Iterator[tuple[int, str]]:
    """Yield ``(line number from 1, line without its newline)`` of the non-blank lines of a stream, and close it.

    Gzip is recognised by its first bytes; a byte-order mark is dropped. Raises :class:`InputError`, beginning with
    ``name``, for what is not UTF-8 text, cut short, or has a line of more than 64 MiB.
    """
    number = 0
    try:
        with io.BufferedReader(raw, 1 << 18) as buffered:
            zipped = buffered.peek(2)[:2] == _GZIP_MAGIC
            stream = gzip.GzipFile(fileobj=buffered) if zipped else buffered
            for number, line in enumerate(iter(partial(stream.readline, LONGEST_LINE + 1), b""), 1):
                if len(line) > LONGEST_LINE:
                    raise InputError(
                        f"{name}:{number}: a line of more than {LONGEST_LINE >> 20} MiB, so not a text file"
                    )
                if number == 1:
                    if line.startswith((b"\xff\xfe", b"\xfe\xff")):
                        raise InputError(f"{name}:1: UTF-16 text; save the file as UTF-8")
                    line = line.removeprefix(b"\xef\xbb\xbf")
                line = line.rstrip(b"\r\n")
                if line.strip():
                    yield number, _decoded(line, f"{name}:{number}")
    except EOFError:
        raise InputError(
            f"{name}: damaged gzip file: truncated after line {number}; write it again"
        ) from None
    except (gzip.BadGzipFile, zlib.error) as e:
        raise InputError(
            f"{name}: damaged gzip file after line {number} ({e}); write it again"
        ) from None
    except OSError as e:
        raise InputError(f"{name}: cannot be read: {e.strerror or e}") from None


def _decoded(line: bytes, where: str) -> str:
    if b"\0" in line:
        raise InputError(f"{where}: a binary file (it has a NUL byte), not UTF-8 text")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as e:
        raise InputError(
            f"{where}: not UTF-8 text: byte 0x{line[e.start]:02x} at position {e.start + 1}"
        ) from None


def json_record(line: str, where: str) -> dict[str, Any]:
    """The JSON object in a line. Raises :class:`InputError`, naming ``where``, for anything else."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as e:
        raise InputError(f"{where}: broken JSON: {e.msg} at column {e.colno}") from None
    except (RecursionError, ValueError) as e:
        raise InputError(f"{where}: broken JSON: {e}") from None
    if not isinstance(record, dict):
        kinds: dict[type, str] = {list: "an array", str: "a string"}
        raise InputError(
            f"{where}: {kinds.get(type(record), 'a single value')}; expected one JSON object per line"
        )
    return record


def json_records(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ``(FILE:LINE, the JSON object in that line)`` of a file of JSON lines."""
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        yield where, json_record(line, where)


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


class ResumableJsonl:
    """JSON lines appended in windows, each on the disk before the next begins.

    ``done`` of ``total_lines`` lines are in ``path``. A killed run leaves the complete windows it wrote: the next one
    drops a torn tail and continues at the start of a window, so rows that depend on others of their window come out as
    in an undisturbed run. ``window`` is the number of rows that are computed together; the caller holds the lock.
    """

    def __init__(self, path: str | Path, total_lines: int, window: int) -> None:
        """Cut the file back to its complete windows, or to all ``total_lines`` if it has them; make it if needed."""
        self.path = Path(path)
        line_ends = [0]  # in bytes; the first is the beginning of the file
        with open(self.path, "a+b") as f:
            f.seek(0)
            for line in f:
                # A crash of the machine may leave a run of zeros where a line should be.
                if not (line.startswith(b"{") and line.endswith(b"}\n")):
                    break
                line_ends.append(line_ends[-1] + len(line))
            complete_lines = len(line_ends) - 1
            self.done = complete_lines
            # The last window may be smaller, so it is complete only if nothing is left to do.
            if complete_lines != total_lines:
                self.done -= complete_lines % window
            f.truncate(line_ends[self.done])

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write one window of rows; they are on the disk when this returns."""
        with open(self.path, "ab") as f:
            f.writelines(json.dumps(row).encode() + b"\n" for row in rows)
            f.flush()
            os.fsync(f.fileno())
        self.done += len(rows)

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows so far."""
        with open(self.path, encoding="utf-8") as lines:
            yield from map(json.loads, lines)
