"""Weights stored in 8 bits: ``model.compact.safetensors``, about half the size of float16.

Every matrix ``NAME`` (r, c) is stored as int8 codes of the same name and shape, and one bfloat16 factor for each 64
consecutive weights of a row, ``NAME.scale`` (r, c / 64 rounded up). A weight is its code times its factor, which is the
largest absolute weight of the group divided by 127, rounded up; it differs from the original by at most half of that.

Three kinds of matrices keep their weights: position and token type embeddings, which are added to every token; those
named by ``keep``, as float16; and diagonal ones, stored as the vector ``NAME.diagonal`` (r,) alone. A matrix of zeros
has no codes: ``NAME`` is (0, c). Vectors and integer tensors are stored as they are. The metadata contain
``dupmae_ir.compact``, the version of the format, which includes the size of a group.

The name differs from ``model.safetensors`` because a program that does not know the format would load the codes as
weights; this way it finds no weights at all.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from dupmae_ir.console import one_line
from dupmae_ir.errors import CheckpointError
from dupmae_ir.models.checkpoints.layout import COMPACT, WEIGHTS, module_folders, untied_folders
from dupmae_ir.models.checkpoints.released import read_tensors
from dupmae_ir.models.checkpoints.stored import DIAGONAL, GROUP, METADATA, SCALE, VERSION, StoredWeights

LEVELS = 127
_ADDED_TO_EVERY_TOKEN = ("position_embeddings", "token_type_embeddings")
_RECORDS = ("training.json", "made.json")


def write_compact(model: str | Path, folder: Path, keep: Sequence[str] = ()) -> dict[str, int]:
    """Write a copy of the model folder ``model`` with 8-bit weights to the new ``folder``.

    Only the encoder's and the head's weights change; configuration, tokenizer, W_cls and other small files of the model
    are copied. Records of its training are left out. Returns ``matrices`` (stored in 8 bits) and ``bytes`` (of all
    files). Raises :class:`CheckpointError` for a folder without readable weights or already in this format, and if no
    matrix contains one of the names in ``keep``.
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
        matrices += save_compact(state, target / COMPACT, str(source), keep)
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
        state |= read_tensors(folder / file)
    return state


def _shards(index: Path) -> set[str]:
    try:
        return set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError) as e:
        raise CheckpointError(f"{index}: not an index of weights: {one_line(e, 300)}") from None


def save_compact(state: Mapping[str, Tensor], path: Path, where: str = "", keep: Sequence[str] = ()) -> int:
    """Write ``state`` to ``path`` and return the number of matrices stored in 8 bits.

    Matrices whose name contains one of ``keep`` are stored in float16. ``where`` is the start of error messages. Raises
    :class:`CheckpointError` for a weight that is not finite and for a name in ``keep`` that no matrix contains.
    """
    where = where or str(path)
    if unknown := next((k for k in keep if not any(k in n and v.ndim == 2 for n, v in state.items())), None):
        raise CheckpointError(f"{where}: no matrix has {unknown!r} in its name")
    stored: dict[str, Tensor] = {}
    matrices = 0
    for name, value in state.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise CheckpointError(f"{where}: {name} contains a weight that is not finite")
        if not value.is_floating_point() or value.ndim != 2:
            stored[name] = value.contiguous()
        elif _is_diagonal(value):
            stored[name + DIAGONAL] = value.diagonal().contiguous()
        elif any(part in name for part in (*_ADDED_TO_EVERY_TOKEN, *keep)):
            stored[name] = value.half().contiguous()
        else:
            stored[name], stored[name + SCALE] = quantise(value)
            matrices += 1
    save_file(stored, path, metadata={"format": "pt", METADATA: VERSION})
    path.chmod(0o644)  # safetensors creates files that only the owner can read
    return matrices


def _is_diagonal(matrix: Tensor) -> bool:
    square = matrix.shape[0] == matrix.shape[1] > 1
    return square and bool(matrix.any()) and torch.equal(matrix, matrix.diagonal().diag())


def quantise(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """(r, c) weights -> int8 codes (r, c), or (0, c) if all weights are zero, and bfloat16 factors (r, groups)."""
    wide = matrix.float()
    rows, columns = wide.shape
    if not bool(wide.any()):
        return torch.empty(0, columns, dtype=torch.int8), torch.zeros(rows, -(-columns // GROUP), dtype=torch.bfloat16)
    padded = torch.nn.functional.pad(wide, (0, -columns % GROUP)).view(rows, -1, GROUP)
    # The smallest bfloat16 numbers that are not below the factors: no code is clipped.
    bits = (padded.abs().amax(2) / LEVELS).contiguous().view(torch.int32)
    scale = ((bits + 0xFFFF) & ~0xFFFF).view(torch.float32).to(torch.bfloat16)
    divisor = scale.float().where(scale > 0, 1.0).unsqueeze(2)
    codes = (padded / divisor).round().clamp(-LEVELS, LEVELS).to(torch.int8).view(rows, -1)[:, :columns]
    return codes.contiguous(), scale.contiguous()


def read_compact(path: Path) -> dict[str, Tensor]:
    """The weights in a file of :func:`save_compact`, floating-point ones as float32, by name.

    Raises :class:`CheckpointError` for a file that is damaged or of another format or version.
    """
    stored = StoredWeights(path, compact=True)
    return {name: torch.from_numpy(stored[name]) for name in stored}
