"""Sizes and digests of the files of a segment, and the id that ties its parts together.

The manifest (``meta.json``) records the size and sha256 of every file. The id of a segment is the digest of its
contents, so the parts of two segments with the same id are interchangeable; ``part.json`` in ``cls``, ``ot`` and
``forward``, and the records of postings and rotated codes, carry it. Three levels of checks read more and more:

* opening an index compares sizes and ids (:func:`part_problem`), a few calls of ``stat``;
* the first use of a part compares the sha256 of its files (:class:`FileChecks`), smallest files first, up to
  :data:`READ_AT_MOST` bytes of an index;
* :mod:`dupmae_ir.index.format.verification` reads everything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from dupmae_ir.errors import IndexMismatch
from dupmae_ir.io.publishing import atomic_write, sha256_file

MARK = "part.json"
TEXTS = "texts"
"""The folder of the text store, an optional part that :mod:`dupmae_ir.index.changes.builder` writes."""
BLOCKWISE = ("texts/blocks.bin",)
"""Files whose blocks carry their own checksums, compared when a block is read: no digest of the whole is needed."""
DIGESTS, DIGEST_BYTES = "digests.bin", 16
"""The file with a digest of each document, by row, and the size of one."""
PARTS: dict[str, tuple[str, ...]] = {"cls": ("cls",), "ot": ("ot", "forward")}
"""A part as ``meta.json`` names it -> its folders."""
READ_AT_MOST = 1 << 28
"""Bytes of a segment whose sha256 is compared without being asked: about 0.15 s with the SHA extensions of a CPU."""
AGAIN = "encode the collection again (a record: push it again), or restore the index from a backup"


class FileRecord(NamedTuple):
    """Size in bytes and sha256 of a file."""

    bytes: int
    sha256: str


Files = Mapping[str, FileRecord]
"""Path inside the segment -> its record."""


def part_of(name: str) -> str:
    """The part that a file belongs to: ``ids``, ``cls``, ``ot``, ``forward``, ``texts``, ``postings``, or
    ``cls/rotated``."""
    folder, _, file = name.partition("/")
    if not file:
        return "ids"
    kind, _, suffix = file.rpartition(".")
    return (
        f"cls/{kind}" if folder == "cls" and suffix in ("bin", "json") and file != MARK else folder
    )


def mark_parts(folder: Path, parts: Iterable[str], segment_id: str) -> None:
    """Write ``part.json`` into every folder of ``parts``."""
    for name in _folders(folder, parts):
        with atomic_write(folder / name / MARK) as f:
            f.write(json.dumps({"part": name, "index": segment_id}) + "\n")


def describe_parts(folder: Path, parts: Iterable[str]) -> dict[str, FileRecord]:
    """Size and sha256 of the ids, terms, texts and every file of ``parts``, by name; other optional parts are not
    included."""
    names = ["docid", "terms.txt", DIGESTS]
    for part in _folders(folder, parts):
        names += (
            [f"cls/{name}" for name in ("index", "docid", MARK)]
            if part == "cls"
            else _listed(folder, part)
        )
    return describe(folder, [name for name in names if (folder / name).is_file()])


def describe(folder: Path, names: Iterable[str]) -> dict[str, FileRecord]:
    """Size and sha256 of some files of a segment."""
    return {
        name: FileRecord((folder / name).stat().st_size, sha256_file(folder / name))
        for name in names
    }


def names_of(folder: Path, part: str) -> list[str]:
    """The files of an optional part: ``postings`` or ``cls/rotated``, relative to the segment."""
    if part == "postings":
        return _listed(folder, part)
    return [name for name in (f"{part}.bin", f"{part}.json") if (folder / name).is_file()]


def part_problem(folder: Path, files: Files, part: str, segment_id: str) -> str | None:
    """Why ``part`` is not the recorded one, by ids and sizes; None where they agree."""
    names = [name for name in files if part_of(name) == part]
    if f"{part}/{MARK}" in names and (problem := _mark_problem(folder / part / MARK, segment_id)):
        return problem
    if part == "ot":
        unknown = [
            path
            for path in (folder / part).glob("segments_*")
            if f"{part}/{path.name}" not in files
        ]
        if unknown:
            return f"{unknown[0]} is not a file of this index"
    return next(
        (problem for name in names if (problem := size_problem(folder / name, files[name].bytes))),
        None,
    )


def content_problem(path: Path, digest: str) -> str | None:
    """Why a file is not the recorded one, by its sha256; None where it is."""
    try:
        if sha256_file(path) == digest:
            return None
    except OSError as e:
        return f"{path} cannot be read: {e.strerror}"
    return f"{path} is damaged: its sha256 is not the one that meta.json records"


class FileChecks:
    """Compares the sha256 of the files of a segment, each once, when the part it belongs to is first used."""

    def __init__(self, folder: Path, files: Files) -> None:
        self.folder, self.files = folder, files
        self._undamaged: set[str] = set()  # by comparison
        left, self._chosen = READ_AT_MOST, set[str]()
        names = [name for name in files if name not in BLOCKWISE]
        for name in sorted(names, key=lambda name: (part_of(name) == TEXTS, files[name].bytes)):
            if (left := left - files[name].bytes) < 0:
                break
            self._chosen.add(name)

    @property
    def unread(self) -> int:
        """Bytes of the files that are too large to be compared without being asked; texts do not count, since no
        score depends on them."""
        read = self._chosen | self._undamaged
        return sum(
            f.bytes for name, f in self.files.items() if name not in read and part_of(name) != TEXTS
        )

    def require(self, part: str, fix: str = AGAIN, everything: bool = False) -> None:
        """Raise :class:`IndexMismatch`, ending with ``fix``, for a damaged file of ``part``.

        ``everything`` also reads the files above :data:`READ_AT_MOST`, for commands that make something of the part.
        """
        for name, recorded in self.files.items():
            asked = part_of(name) == part and (everything or name in self._chosen)
            if asked and name not in self._undamaged:
                if problem := content_problem(self.folder / name, recorded.sha256):
                    raise IndexMismatch(f"{problem}; {fix}")
                self._undamaged.add(name)


def _folders(folder: Path, parts: Iterable[str]) -> list[str]:
    """The folders of ``parts``, and of the texts where they are stored."""
    return [
        *(name for part in parts for name in PARTS[part]),
        *([TEXTS] if (folder / TEXTS).is_dir() else ()),
    ]


def _listed(folder: Path, part: str) -> list[str]:
    names = sorted(path.name for path in (folder / part).iterdir() if path.is_file())
    return [f"{part}/{name}" for name in names if not name.startswith(".") and name != "write.lock"]


def _mark_problem(path: Path, segment_id: str) -> str | None:
    try:
        mark = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"{path} is missing"
    except (OSError, ValueError) as e:
        return f"{path} cannot be read: {e}"
    marked = mark.get("index") if isinstance(mark, dict) else None
    if marked == segment_id and mark.get("part") == path.parent.name:
        return None
    return f"{path.parent} belongs to another index (id {str(marked)[:12]}, expected {segment_id[:12]})"


def size_problem(path: Path, expected: int) -> str | None:
    """Why a file has not the recorded size; None where it has."""
    if not path.is_file():
        return f"{path} is missing"
    size = path.stat().st_size
    if size == expected:
        return None
    return f"{path} is {'truncated' if size < expected else 'too long'}: {size:,} bytes, expected {expected:,}"
