"""The modules that a sentence-transformers folder lists, without torch."""

from __future__ import annotations

import json
from pathlib import Path

from dupmae_ir.console import one_line
from dupmae_ir.errors import CheckpointError
from dupmae_ir.models.checkpoints.layout import CONFIG, MODULES


def module_folders(folder: Path) -> list[Path]:
    """The existing subfolders of a sentence-transformers folder's modules; none for any other folder."""
    try:
        listed = listed_modules(folder)
    except CheckpointError:
        return []  # reported when the model is loaded
    return [folder / path for _, path in listed if path and (folder / path).is_dir()]


def listed_modules(folder: Path) -> list[tuple[str, str]]:
    """Class name and subfolder of each module; empty for anything but a model of sentence-transformers.

    Raises :class:`CheckpointError` for a file of another form.
    """
    path = folder / MODULES
    if not path.is_file() or (folder / CONFIG).is_file():
        return []
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
        listed = [(str(m["type"]).rpartition(".")[2], str(m["path"])) for m in modules]
    except (ValueError, KeyError, TypeError) as e:
        raise CheckpointError(f"{path}: not a list of modules: {one_line(e, 300)}") from None
    return listed
