"""Digests that identify a model by its contents."""

from __future__ import annotations

import hashlib
from pathlib import Path

from dupmae_ir.errors import CheckpointError
from dupmae_ir.io.publishing import sha256_file
from dupmae_ir.models.checkpoints.layout import POOLER, UNTIED, untied_folders
from dupmae_ir.models.checkpoints.module_list import module_folders

_SUFFIXES = {".safetensors", ".bin", ".json", ".txt", ".model"}
_RECORDS = {"training.json", "made.json"}  #: records of how a model was made, which do not affect its output


def folder_digest(folder: str | Path) -> str:
    """SHA-256 over the names and contents of all files that affect a model's representations.

    These are weights, tokenizer and configuration; of both sides for an untied model; and for a DPR checkpoint file,
    the file itself with the configuration and tokenizer beside it.

    Raises :class:`CheckpointError` for a missing folder.
    """
    path = Path(folder)
    if not path.exists():
        raise CheckpointError(f"{path}: no such model folder (nothing is downloaded, but by dupmae-ir models get)")
    whole = hashlib.sha256()
    if path.is_file():
        beside = (p for p in _relevant_files(path.parent) if p.suffix not in {".safetensors", ".bin", ".pt"})
        named = [(p.name, p) for p in dict.fromkeys([path, *beside])]
    else:
        named = [(p.name, p) for p in _relevant_files(path)]
        named += [(f"{part.name}/{p.name}", p) for part in module_folders(path) for p in _relevant_files(part)]
        sides = untied_folders(path) or {}
        named += [(f"{UNTIED[side]}/{p.name}", p) for side, part in sides.items() for p in _relevant_files(part)]
    for name, file in named:
        whole.update(f"{name} {sha256_file(file)}\n".encode())
    return whole.hexdigest()


def _relevant_files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if (p.suffix in _SUFFIXES and p.name not in _RECORDS) or p.name == POOLER)
