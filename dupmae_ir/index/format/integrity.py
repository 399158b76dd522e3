"""Sizes and digests of the files of a segment, and the id that ties its parts together.

The manifest (``meta.json``) records the size and sha256 of every file. The id of a segment is the digest of its
contents, so the parts of two segments with the same id are interchangeable; ``part.json`` in ``cls``, ``ot`` and
``forward``, and the records of postings and rotated codes, carry it. Three levels of checks read more and more:

* opening an index compares sizes and ids (:func:`part_problem`), a few calls of ``stat``;
* the first use of a part compares the sha256 of its files (:class:`FileChecks`), for the smallest files that have
  :data:`READ_AT_MOST` bytes in all;
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
EXCERPTS = "excerpts"
"""The folder of the vectors of excerpts, if the index has them."""
BLOCKWISE = ("texts/blocks.bin",)
"""Files whose blocks have checksums, compared when a block is read: the sha256 of the file is only for ``verify``."""
DIGESTS = "digests.bin"
"""The file with a digest of each document, by row."""
DIGEST_BYTES = 16
"""The size of one of these digests."""
PARTS: dict[str, tuple[str, ...]] = {"cls": ("cls",), "ot": ("ot", "forward")}
"""A part as ``meta.json`` names it -> its folders."""
READ_AT_MOST = 1 << 28
"""Bytes of a segment whose sha256 is compared on first use: about 0.15 s with the SHA extensions of a CPU."""
AGAIN = "encode the collection again (a record: push it again), or restore the index from a backup"


class FileRecord(NamedTuple):
    """Size in bytes and sha256 of a file."""

    bytes: int
    sha256: str


Files = Mapping[str, FileRecord]
"""Path inside the segment -> its record."""


def part_of(name: str) -> str:
    """The part that a file belongs to: ``ids``, ``cls``, ``ot``, ``forward``, ``excerpts``, ``texts``,
    ``postings``, or ``cls/rotated``."""
    folder, _, file = name.partition("/")
    if not file:
        return "ids"
    stem, _, suffix = file.rpartition(".")
    # Codes are in the folder of the vectors but are a part by themselves: they are made, and made again, later.
    if folder == "cls" and suffix in ("bin", "json") and file != MARK:
        return f"cls/{stem}"
    return folder


def mark_parts(folder: Path, parts: Iterable[str], segment_id: str) -> None:
    """Write ``part.json`` into every folder of ``parts``."""
    for name in _folders(folder, parts):
        with atomic_write(folder / name / MARK) as f:
            f.write(json.dumps({"part": name, "index": segment_id}) + "\n")


def describe_parts(folder: Path, parts: Iterable[str]) -> dict[str, FileRecord]:
    """Size and sha256 of the ids, terms, excerpts, texts and every file of ``parts``, by name; other optional parts are
    not included."""
    names = ["docid", "terms.txt", DIGESTS]
    for part in _folders(folder, parts):
        if part == "cls":  # the folder may contain the codes as well
            names += ["cls/index", "cls/docid", f"cls/{MARK}"]
        else:
            names += _files_in(folder, part)
    return describe(folder, [name for name in names if (folder / name).is_file()])


def describe(folder: Path, names: Iterable[str]) -> dict[str, FileRecord]:
    """Size and sha256 of files of a segment, by name."""
    records = {}
    for name in names:
        path = folder / name
        records[name] = FileRecord(path.stat().st_size, sha256_file(path))
    return records


def names_of(folder: Path, part: str) -> list[str]:
    """The files of an optional part: ``postings`` or ``cls/rotated``, relative to the segment."""
    if part == "postings":
        return _files_in(folder, part)
    names = (f"{part}.bin", f"{part}.json")
    return [name for name in names if (folder / name).is_file()]


def part_problem(folder: Path, files: Files, part: str, segment_id: str) -> str | None:
    """Why ``part`` is not the recorded one, by ids and sizes; None if they agree."""
    names = [name for name in files if part_of(name) == part]
    if f"{part}/{MARK}" in names:
        problem = _mark_problem(folder / part / MARK, segment_id)
        if problem:
            return problem
    if part == "ot":
        # Lucene opens the newest commit that it sees, not the recorded one.
        for path in (folder / part).glob("segments_*"):
            if f"{part}/{path.name}" not in files:
                return f"{path} is not a file of this index"
    for name in names:
        problem = size_problem(folder / name, files[name].bytes)
        if problem:
            return problem
    return None


def content_problem(path: Path, digest: str) -> str | None:
    """Why a file is not the recorded one, by its sha256; None if it is."""
    try:
        if sha256_file(path) == digest:
            return None
    except OSError as e:
        return f"{path} cannot be read: {e.strerror}"
    return f"{path} is damaged: its sha256 is not the one that meta.json records"


class FileChecks:
    """Compares the sha256 of the files of a segment, each once, when the part it belongs to is first used."""

    def __init__(self, folder: Path, files: Files) -> None:
        self.folder = folder
        self.files = files
        self._undamaged: set[str] = set()  # files that were compared
        self._read_on_use: set[str] = set()  # files that are compared without `everything`
        names = [name for name in files if name not in BLOCKWISE]
        # Texts last: no score depends on them.
        names.sort(key=lambda name: (part_of(name) == TEXTS, files[name].bytes))
        budget = READ_AT_MOST
        for name in names:
            budget -= files[name].bytes
            if budget < 0:
                break
            self._read_on_use.add(name)

    @property
    def unread(self) -> int:
        """Bytes of the files that are too large to be compared on first use; texts do not count, since no score
        depends on them."""
        read = self._read_on_use | self._undamaged
        total = 0
        for name, record in self.files.items():
            if name not in read and part_of(name) != TEXTS:
                total += record.bytes
        return total

    def require(self, part: str, fix: str = AGAIN, everything: bool = False) -> None:
        """Raise :class:`IndexMismatch`, ending with ``fix``, for a damaged file of ``part``.

        ``everything`` also reads the files above :data:`READ_AT_MOST`, for commands that make something of the part.
        """
        for name, record in self.files.items():
            if part_of(name) != part or name in self._undamaged:
                continue
            if everything or name in self._read_on_use:
                problem = content_problem(self.folder / name, record.sha256)
                if problem:
                    raise IndexMismatch(f"{problem}; {fix}")
                self._undamaged.add(name)


def _folders(folder: Path, parts: Iterable[str]) -> list[str]:
    """The folders of ``parts``, and those of excerpts and texts if they are stored."""
    names: list[str] = []
    for part in parts:
        names.extend(PARTS[part])
    names += [name for name in (EXCERPTS, TEXTS) if (folder / name).is_dir()]
    return names


def _files_in(folder: Path, part: str) -> list[str]:
    """The files of a part's folder, relative to the segment, without hidden ones and Lucene's lock."""
    names = sorted(path.name for path in (folder / part).iterdir() if path.is_file())
    return [f"{part}/{name}" for name in names if not name.startswith(".") and name != "write.lock"]


def _mark_problem(path: Path, segment_id: str) -> str | None:
    try:
        mark = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"{path} is missing"
    except (OSError, ValueError) as e:
        return f"{path} cannot be read: {e}"
    marked_id = mark.get("index") if isinstance(mark, dict) else None
    if marked_id == segment_id and mark.get("part") == path.parent.name:
        return None
    return f"{path.parent} belongs to another index (id {str(marked_id)[:12]}, expected {segment_id[:12]})"


def size_problem(path: Path, expected: int) -> str | None:
    """Why a file does not have the recorded size; None if it has."""
    if not path.is_file():
        return f"{path} is missing"
    size = path.stat().st_size
    if size == expected:
        return None
    problem = "truncated" if size < expected else "too long"
    return f"{path} is {problem}: {size:,} bytes, expected {expected:,}"
