"""Names of files: which are left out, their endings, and the ids of their passages."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

from dupmae_ir.types import PASSAGE_DELIMITER

_SKIPPED_FOLDERS = frozenset({"CVS", "_darcs", "node_modules", "__pycache__", "__MACOSX"})
_UNSAFE = re.compile(rf"[\s%{PASSAGE_DELIMITER}\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_NO_BYTES = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""Halves of surrogates that stand for no byte of a name."""


def is_skipped_folder(name: str) -> bool:
    """Whether a folder's name is that of a hidden folder, of version control, or of a cache."""
    return name.startswith(".") or name in _SKIPPED_FOLDERS


def is_hidden_or_temporary(name: str) -> bool:
    """Whether a file's name is that of a hidden file, or of one that a program keeps while a document is open."""
    return name.startswith((".", "~$")) or name.endswith("~")


def is_at(name: str, paths: Collection[str]) -> bool:
    """Whether a name is one of some names of files and folders, or below one."""
    return any(name == path or name.startswith(f"{path}/") for path in paths)


class UniqueNames:
    """Names of the files inside a file, which need not be unique there."""

    def __init__(self) -> None:
        #: name -> how many have it, with a number added or not
        self._counts: dict[str, int] = {}

    def add(self, name: str) -> str:
        """The name, with a number before its ending if another one has it: ``notes-2.txt``."""
        folder, slash, own_name = name.rpartition("/")
        stem, dot, ending = own_name.rpartition(".")
        if not dot:
            stem = own_name
        unique = name
        while unique in self._counts:
            self._counts[name] += 1
            unique = f"{folder}{slash}{stem}-{self._counts[name]}{dot}{ending if dot else ''}"
        self._counts[unique] = 1
        return unique


def member_name(name: str) -> str:
    """The name of a file inside a file, as a path below that file.

    Empty folders, ``.`` and ``..`` are left out: a name such as ``../../x`` leads out of no folder, also in the URL of
    its passage.
    """
    parts = _NO_BYTES.sub("?", name).split("/")
    return "/".join(part for part in parts if part not in ("", ".", "..")) or "file"


def ending_of(name: str) -> str:
    """The ending of a name for counts: ``.png``, or ``no ending``."""
    return Path(name).suffix.lower() or "no ending"


def shown_name(name: str) -> str:
    """A path as text, with ``?`` for undecodable bytes."""
    return os.fsencode(name).decode("utf-8", "replace")


def path_id(name: str) -> str:
    """The id of a file: its path, with ``%XX`` for white space, ``%``, ``#``, control characters and bytes that are not
    UTF-8."""
    return _UNSAFE.sub(_percent_encoded, name)


def _percent_encoded(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in os.fsencode(match.group()))
