"""Names of files: which are left out, their endings, and the ids of their passages."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

from dupmae_ir.types import PASSAGE_DELIMITER

_SKIPPED_FOLDERS = frozenset({"CVS", "_darcs", "node_modules", "__pycache__", "__MACOSX"})
_UNSAFE = re.compile(rf"[\s%{PASSAGE_DELIMITER}\x00-\x1f\x7f\ud800-\udfff]")


def is_skipped_folder(name: str) -> bool:
    """Whether a folder's name is that of a hidden folder, of version control, or of a cache."""
    return name.startswith(".") or name in _SKIPPED_FOLDERS


def is_hidden_or_temporary(name: str) -> bool:
    """Whether a file's name is that of a hidden file, or of one that a program keeps while a document is open."""
    return name.startswith((".", "~$")) or name.endswith("~")


def is_at(name: str, paths: Collection[str]) -> bool:
    """Whether a name is one of some names of files and folders, or below one."""
    return any(name == path or name.startswith(f"{path}/") for path in paths)


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
