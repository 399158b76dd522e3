"""The record of a training run, ``training.json`` inside the model folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from dupmae_ir.config import to_dict
from dupmae_ir.device import pick_dtype
from dupmae_ir.errors import CheckpointError, InputError
from dupmae_ir.io.publishing import combined_digest, sha256_file
from dupmae_ir.models.checkpoints.layout import folder_digest
from dupmae_ir.training.arguments import training_device
from dupmae_ir.training.config import RunOptions

RECORD = "training.json"


def deciding_settings(options: RunOptions, processes: int, paths: tuple[str, ...] = ()) -> dict[str, Any]:
    """The settings that decide the weights, for a :class:`~dupmae_ir.io.jobs.Job`; those not given are left out.

    Args:
        options: the command's options.
        processes: number of processes; each has its own batches.
        paths: fields with files and folders, recorded by their last name, as the record travels with the model.
    """
    skipped = {f.name for f in fields(options) if f.metadata["group"] in ("output", "compute")} - {"dtype"}
    settings = {name: value for name, value in to_dict(options).items() if name not in skipped}
    for name in paths:
        value = settings[name]
        settings[name] = [Path(p).name for p in value] if isinstance(value, list) else value and Path(value).name
    dtype, _ = pick_dtype(options.dtype, training_device(options.device))
    settings |= {"dtype": str(dtype).removeprefix("torch."), "processes": processes}
    return {name: value for name, value in settings.items() if value is not None}


def input_digests(
    files: Mapping[str, str | tuple[str, ...] | None], folders: Mapping[str, str | Path | None]
) -> dict[str, str]:
    """One sha256 per field over the files that it names, or over the model folder; fields without a value are left out.

    Raises :class:`InputError` for a missing file, :class:`CheckpointError` for a missing folder.
    """
    digests = {
        name: _files_digest((value,) if isinstance(value, str) else value) for name, value in files.items() if value
    }
    for name, folder in folders.items():
        if folder and not Path(folder).is_dir():
            raise CheckpointError(f"{folder}: no such model folder; nothing is downloaded")
        if folder:
            digests[name] = folder_digest(folder)
    return digests


def _files_digest(value: str | tuple[str, ...]) -> str:
    paths = (value,) if isinstance(value, str) else value
    for path in paths:
        if not Path(path).is_file():
            raise InputError(f"{path}: no such file")
    return combined_digest(map(sha256_file, paths))
