"""Sizes and digests of the files of an index, and the id that ties its parts together.

The manifest (``meta.json``) records the size and sha256 of every file under ``files``, and its own sha256 under
``manifest_sha256``. The index id is ``digest``, the digest of the contents, so two indexes with the same id have
interchangeable parts; ``part.json`` in ``cls``, ``ot`` and ``forward``, and the records of postings and dense kinds,
carry it. Three levels of checks read more and more:

* opening an index compares sizes and ids (:func:`part_problem`), a few calls of ``stat``;
* the first use of a part compares the sha256 of its files (:class:`FileChecks`), smallest files first, up to
  :data:`READ_AT_MOST` bytes of an index;
* :mod:`dupmae_ir.index.format.verification` reads everything.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

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
"""Bytes of an index whose sha256 is compared without being asked: about 0.15 s with the SHA extensions of a CPU."""
AGAIN = "encode the collection again, or restore the index from a backup"

Files = Mapping[str, Mapping[str, Any]]
"""Path inside the index -> ``{"bytes": size, "sha256": digest}``."""


def part_of(name: str) -> str:
    """The part that a file belongs to: ``ids``, ``cls``, ``ot``, ``forward``, ``texts``, ``postings``, or
    ``cls/KIND``."""
    folder, _, file = name.partition("/")
    if not file:
        return "ids"
    kind, _, suffix = file.rpartition(".")
    return f"cls/{kind}" if folder == "cls" and suffix in ("faiss", "json") and file != MARK else folder


def mark_parts(folder: Path, parts: Iterable[str], index_id: str, missing_only: bool = False) -> None:
    """Write ``part.json`` into every folder of ``parts``; with ``missing_only``, leave those that exist."""
    for name in _folders(parts) + _texts(folder):
        if not (missing_only and (folder / name / MARK).exists()):
            with atomic_write(folder / name / MARK) as f:
                f.write(_mark(name, index_id))


def describe_marks(parts: Iterable[str], index_id: str) -> dict[str, dict[str, Any]]:
    """Size and sha256 of what :func:`mark_parts` writes, by name."""
    made = {f"{name}/{MARK}": _mark(name, index_id).encode() for name in _folders(parts)}
    return {name: {"bytes": len(mark), "sha256": hashlib.sha256(mark).hexdigest()} for name, mark in made.items()}


def _mark(folder: str, index_id: str) -> str:
    return json.dumps({"part": folder, "index": index_id}) + "\n"


def has_marks(folder: Path) -> bool:
    """Whether any part carries an index id, as parts of a sealed index do."""
    return any((folder / name / MARK).exists() for name in _folders(PARTS))


def describe_parts(folder: Path, parts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Size and sha256 of the ids, terms, texts and every file of ``parts``, by name; other optional parts are not
    included."""
    names = ["docid", "terms.txt", DIGESTS]
    for part in _folders(parts) + _texts(folder):
        names += [f"cls/{name}" for name in ("index", "docid", MARK)] if part == "cls" else _listed(folder, part)
    return describe(folder, [name for name in names if (folder / name).is_file()])


def describe(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Size and sha256 of some files of an index."""
    return {name: {"bytes": (folder / name).stat().st_size, "sha256": sha256_file(folder / name)} for name in names}


def names_of(folder: Path, part: str) -> list[str]:
    """The files of an optional part: ``postings`` or ``cls/KIND``, relative to the index."""
    if part == "postings":
        return _listed(folder, part)
    return [name for name in (f"{part}.faiss", f"{part}.json") if (folder / name).is_file()]


def part_problem(folder: Path, files: Files, part: str, index_id: str) -> str | None:
    """Why ``part`` is not the recorded one, by ids and sizes; None where they agree."""
    names = [name for name in files if part_of(name) == part]
    if f"{part}/{MARK}" in names and (problem := _mark_problem(folder / part / MARK, index_id)):
        return problem
    if part == "ot" and files:
        unknown = [path for path in (folder / part).glob("segments_*") if f"{part}/{path.name}" not in files]
        if unknown:
            return f"{unknown[0]} is not a file of this index"
    return next((problem for name in names if (problem := size_problem(folder / name, files[name]["bytes"]))), None)


def content_problem(path: Path, recorded: Mapping[str, Any]) -> str | None:
    """Why a file is not the recorded one, by its sha256; None where it is."""
    try:
        if sha256_file(path) == recorded["sha256"]:
            return None
    except OSError as e:
        return f"{path} cannot be read: {e.strerror}"
    return f"{path} is damaged: its sha256 is not the one that meta.json records"


class FileChecks:
    """Compares the sha256 of the files of an index, each once, when the part it belongs to is first used."""

    def __init__(self, folder: Path, files: Files) -> None:
        self.folder, self.files = folder, files
        self._whole: set[str] = set()  # compared, and undamaged
        left, self._chosen = READ_AT_MOST, set[str]()
        whole = [name for name in files if name not in BLOCKWISE]
        for name in sorted(whole, key=lambda name: (part_of(name) == TEXTS, files[name]["bytes"])):
            if (left := left - files[name]["bytes"]) < 0:
                break
            self._chosen.add(name)

    @property
    def unread(self) -> int:
        """Bytes of the files that are too large to be compared without being asked; texts do not count, since no
        score depends on them."""
        read = self._chosen | self._whole
        return sum(f["bytes"] for name, f in self.files.items() if name not in read and part_of(name) != TEXTS)

    def require(self, part: str, fix: str = AGAIN, everything: bool = False) -> None:
        """Raise :class:`IndexMismatch`, ending with ``fix``, for a damaged file of ``part``.

        ``everything`` also reads the files above :data:`READ_AT_MOST`, for commands that make something of the part.
        """
        for name, recorded in self.files.items():
            wanted = part_of(name) == part and (everything or name in self._chosen)
            if wanted and name not in self._whole:
                if problem := content_problem(self.folder / name, recorded):
                    raise IndexMismatch(f"{problem}; {fix}")
                self._whole.add(name)


def _folders(parts: Iterable[str]) -> list[str]:
    return [name for part in parts for name in PARTS[part]]


def _texts(folder: Path) -> list[str]:
    return [TEXTS] if (folder / TEXTS).is_dir() else []


def _listed(folder: Path, part: str) -> list[str]:
    found = sorted(path.name for path in (folder / part).iterdir() if path.is_file())
    return [f"{part}/{name}" for name in found if not name.startswith(".") and name != "write.lock"]


def _mark_problem(path: Path, index_id: str) -> str | None:
    try:
        mark = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"{path} is missing"
    except (OSError, ValueError) as e:
        return f"{path} cannot be read: {e}"
    found = mark.get("index") if isinstance(mark, dict) else None
    if found == index_id and mark.get("part") == path.parent.name:
        return None
    return f"{path.parent} belongs to another index (id {str(found)[:12]}, expected {index_id[:12]})"


def size_problem(path: Path, expected: int) -> str | None:
    """Why a file has not the recorded size; None where it has."""
    if not path.is_file():
        return f"{path} is missing"
    size = path.stat().st_size
    if size == expected:
        return None
    return f"{path} is {'truncated' if size < expected else 'too long'}: {size:,} bytes, expected {expected:,}"
