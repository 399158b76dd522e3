"""Weights stored in 8 bits: ``model.compact.safetensors``, about half the size of float16.

Every matrix ``NAME`` (r, c) is stored as int8 codes of the same name and shape, and one float32 factor per row,
``NAME.scale`` (r,). Its weights are ``codes * scale``; each differs from the original by at most half its row's factor,
which is the row's largest absolute weight divided by 127. A matrix of zeros has no codes: ``NAME`` is (0, c). Vectors
and integer tensors are stored as they are. The metadata contain ``dupmae_ir.compact``, the version of the format.

The name differs from ``model.safetensors`` because a program that does not know the format would load the codes as
weights; this way it finds no weights at all.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from dupmae_ir.console import one_line
from dupmae_ir.errors import CheckpointError
from dupmae_ir.models.checkpoints.layout import COMPACT, WEIGHTS, untied_folders
from dupmae_ir.models.checkpoints.released import read_tensors
from dupmae_ir.models.checkpoints.sentence_modules import module_folders

VERSION = "1"
METADATA = "dupmae_ir.compact"  #: key of the version in the file's metadata
SCALE = ".scale"
LEVELS = 127
_RECORDS = ("training.json", "made.json")


def write_compact(model: str | Path, folder: Path) -> dict[str, int]:
    """Write a copy of the model folder ``model`` with 8-bit weights to the new ``folder``.

    Only the encoder's and the head's weights change; configuration, tokenizer, W_cls and other small files of the model
    are copied. Records of its training are left out. Returns ``matrices`` (stored in 8 bits) and ``bytes`` (of all
    files). Raises :class:`CheckpointError` for a folder without readable weights or already in this format.
    """
    path = Path(model)
    if not path.is_dir():
        raise CheckpointError(f"{path}: not a model folder; only folders are stored in 8 bits")
    sides = untied_folders(path) or {}
    folder.mkdir(parents=True)
    homes = [(path, folder)] if not sides else [(part, folder / part.name) for part in sides.values()]
    matrices = 0
    for source, target in homes:
        state = read_weights(source)
        target.mkdir(exist_ok=True)
        _copy_files(source, target)
        matrices += save_compact(state, target / COMPACT, str(source))
    if sides:
        _copy_files(path, folder)
    for part in module_folders(path):
        shutil.copytree(part, folder / part.name)
    return {"matrices": matrices, "bytes": sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())}


def _copy_files(source: Path, target: Path) -> None:
    """Copy the files of a model folder other than its weights, the records of its training, and hidden files."""
    shards = set()
    for index in WEIGHTS:
        if index.endswith(".index.json") and (source / index).is_file():
            shards |= _shards(source / index)
    for path in source.iterdir():
        skipped = path.name in (*WEIGHTS, *_RECORDS) or path.name in shards or path.name.startswith(".")
        if path.is_file() and not skipped:
            shutil.copyfile(path, target / path.name)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors of a Hugging Face folder, in one file or in several, by name.

    Pickles are read with ``weights_only``. Raises :class:`CheckpointError` if there are none or they cannot be read.
    """
    name = next((n for n in WEIGHTS if n != COMPACT and (folder / n).is_file()), None)
    if (folder / COMPACT).is_file():
        raise CheckpointError(f"{folder}: its weights are already stored in 8 bits ({COMPACT})")
    if name is None:
        raise CheckpointError(f"{folder}: no weights (looked for {', '.join(n for n in WEIGHTS if n != COMPACT)})")
    files = sorted(_shards(folder / name)) if name.endswith(".index.json") else [name]
    state: dict[str, Tensor] = {}
    for file in files:
        state |= _read(folder / file)
    return state


def _shards(index: Path) -> set[str]:
    try:
        return set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError) as e:
        raise CheckpointError(f"{index}: not an index of weights: {one_line(e, 300)}") from None


def _read(path: Path) -> dict[str, Tensor]:
    if path.suffix != ".safetensors":
        return read_tensors(path)
    try:
        return load_file(path)
    except Exception as e:
        raise CheckpointError(f"{path}: not readable as safetensors: {one_line(e, 300)}") from None


def save_compact(state: Mapping[str, Tensor], path: Path, where: str = "") -> int:
    """Write ``state`` to ``path`` and return the number of matrices stored in 8 bits.

    ``where`` is the start of error messages. Raises :class:`CheckpointError` for a weight that is not finite.
    """
    stored: dict[str, Tensor] = {}
    matrices = 0
    for name, value in state.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise CheckpointError(f"{where or path}: {name} contains a weight that is not finite")
        if value.is_floating_point() and value.ndim == 2:
            stored[name], stored[name + SCALE] = quantise_rows(value)
            matrices += 1
        else:
            stored[name] = value.contiguous()
    save_file(stored, path, metadata={"format": "pt", METADATA: VERSION})
    path.chmod(0o644)  # safetensors creates files that only the owner can read
    return matrices


def quantise_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """(r, c) weights -> int8 codes (r, c), or (0, c) if all weights are zero, and float32 factors (r,)."""
    wide = matrix.float()
    scale = wide.abs().amax(1) / LEVELS if wide.shape[1] else wide.new_zeros(len(wide))
    if not bool(scale.any()):
        return torch.empty(0, wide.shape[1], dtype=torch.int8), torch.zeros(len(wide))
    codes = (wide / scale.where(scale > 0, 1.0).unsqueeze(1)).round().clamp(-LEVELS, LEVELS)
    return codes.to(torch.int8).contiguous(), scale.contiguous()


def dequantise_rows(codes: Tensor, scale: Tensor) -> Tensor:
    """Codes and factors of :func:`quantise_rows` -> float32 weights (r, c)."""
    if len(codes) == 0:
        return torch.zeros(len(scale), codes.shape[1])
    return codes.float() * scale.unsqueeze(1)


def is_compact(folder: Path) -> bool:
    """Whether the weights in ``folder`` are stored in 8 bits.

    Raises :class:`CheckpointError` if it also contains weights of another format.
    """
    if not (folder / COMPACT).is_file():
        return False
    if others := [n for n in WEIGHTS if n != COMPACT and (folder / n).is_file()]:
        raise CheckpointError(f"{folder}: has both {COMPACT} and {others[0]}; remove the wrong one")
    return True


def read_compact(path: Path) -> dict[str, Tensor]:
    """The weights in a file of :func:`save_compact`, floating-point ones as float32, by name.

    Raises :class:`CheckpointError` for a file that is damaged or of another format or version.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, Any] = file.metadata() or {}
        stored = load_file(path)
    except Exception as e:
        raise CheckpointError(f"{path}: not readable as safetensors: {one_line(e, 300)}") from None
    version = metadata.get(METADATA)
    if version is None:
        raise CheckpointError(f"{path}: not a file of 8-bit weights: its metadata have no {METADATA}")
    if version != VERSION:
        raise CheckpointError(
            f"{path}: format {version} is not the one that this version reads ({VERSION}); upgrade dupmae_ir"
        )
    scales = {name for name in stored if name.endswith(SCALE) and name.removesuffix(SCALE) in stored}
    if orphan := next((name for name in stored if name.endswith(SCALE) and name not in scales), None):
        raise CheckpointError(f"{path}: has {orphan} but no {orphan.removesuffix(SCALE)}; the file is damaged")
    return {name: _weights(path, name, value, stored) for name, value in stored.items() if name not in scales}


def _weights(path: Path, name: str, value: Tensor, stored: Mapping[str, Tensor]) -> Tensor:
    """One tensor, checked against its factors."""
    scale = stored.get(name + SCALE)
    if value.dtype != torch.int8 and scale is None:
        return value.float() if value.is_floating_point() else value
    if value.dtype != torch.int8 or value.ndim != 2:
        raise CheckpointError(
            f"{path}: {name} must be a matrix of int8, got {value.ndim} dimensions of {value.dtype}; it is damaged"
        )
    if scale is None:
        raise CheckpointError(f"{path}: {name} has no {name}{SCALE}; the file is damaged")
    rows = len(value) or len(scale)
    if scale.dtype != torch.float32 or scale.shape != (rows,) or not bool(torch.isfinite(scale).all()):
        raise CheckpointError(f"{path}: {name}{SCALE} must be {rows} finite numbers in float32; the file is damaged")
    return dequantise_rows(value, scale)
