"""Saving model folders, with the weights as they are or in 8 bits (:mod:`~dupmae_ir.models.checkpoints.stored`)."""

from __future__ import annotations

import copy
import json
import math
import shutil
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file
from torch import Tensor

from dupmae_ir.errors import CheckpointError
from dupmae_ir.io.publishing import bytes_of, move_into_place, write_json
from dupmae_ir.models.checkpoints.layout import (
    COLBERT_LINEAR,
    COMPACT,
    CONFIG,
    LEXICON,
    OT_PROJECTION,
    PROJECTION,
    RECORDS,
    SIDES,
    SPARSE_LINEAR,
    UNTIED,
    WEIGHTS,
    module_folders,
    untied_folders,
)
from dupmae_ir.models.checkpoints.loading import quiet_transformers
from dupmae_ir.models.checkpoints.model_config import ModelConfig
from dupmae_ir.models.checkpoints.released import read_weights, shard_names
from dupmae_ir.models.checkpoints.stored import DIAGONAL, GROUP, METADATA, SCALE, VERSION

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from dupmae_ir.models.retriever import Retriever, UntiedRetriever


def save_model(
    folder: str | Path,
    model: Retriever | UntiedRetriever,
    tokenizer: PreTrainedTokenizerBase,
    config: ModelConfig,
    half: bool = False,
    card: str | None = None,
    lexicon: Path | None = None,
) -> Path:
    """Write a model folder atomically and return its path.

    An :class:`~dupmae_ir.models.retriever.UntiedRetriever` is written as two model folders, ``query_model`` and
    ``passage_model``.

    Args:
        folder: the folder to create or replace.
        model: the retriever.
        tokenizer: its tokenizer.
        config: written as ``dupmae_config.json``.
        half: store the weights in float16.
        card: contents of README.md.
        lexicon: the ``lexicon.safetensors`` to copy, for a configuration with a lexical OT part.
    """
    if (config.ot == "lexical") != (lexicon is not None):
        raise ValueError("a lexicon belongs to a lexical OT part, and only to that")
    folder = Path(folder)
    # Written in full under another name in the same file system, then moved: a reader never sees half a model. An
    # interrupted attempt leaves the folder behind.
    partial = folder.with_name(f".{folder.name}.writing")
    if partial.exists():
        shutil.rmtree(partial)
    query, document = (model.side(side) for side in SIDES)
    if query is document:
        _write_side(partial, document, tokenizer, config, half)
    else:
        for side, name in UNTIED.items():
            _write_side(partial / name, model.side(side), tokenizer, config, half)
        # Tevatron looks for the tokenizer here.
        save_tokenizer(tokenizer, partial)
        write_json(partial / CONFIG, config.to_record())
    if lexicon is not None:
        shutil.copyfile(lexicon, partial / LEXICON)
    if card is not None:
        (partial / "README.md").write_text(card, encoding="utf-8")
    make_readable(partial)
    move_into_place(partial, folder)
    return folder


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write the files of ``tokenizer``, without the truncation and padding of its last call.

    A fast tokenizer keeps both and would write them to ``tokenizer.json``: the file would depend on what was
    tokenized last, and so on whether a training run was resumed.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.no_truncation()
        backend.no_padding()
    tokenizer.save_pretrained(folder)


def make_readable(folder: Path) -> None:
    """Give the files below ``folder`` the usual permissions; safetensors creates files that only the owner can read."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(0o644)


def _write_side(
    folder: Path,
    model: Retriever,
    tokenizer: PreTrainedTokenizerBase,
    config: ModelConfig,
    half: bool,
) -> None:
    folder.mkdir(parents=True)
    dtype = torch.float32
    lm = model.lm
    if half:
        dtype = torch.float16
        # half() works in place, and the caller's model stays in float32.
        lm = copy.deepcopy(lm).half()
    with quiet_transformers():
        lm.save_pretrained(folder, safe_serialization=True)
        save_tokenizer(tokenizer, folder)

    for layer, name in ((model.projection, PROJECTION), (model.ot_projection, OT_PROJECTION)):
        if layer is None:
            continue
        state = {
            key: value.detach().to(dtype).contiguous() for key, value in layer.state_dict().items()
        }
        save_file(state, folder / name)
    # FlagEmbedding's files and format, so that it opens the folder too.
    for layer, name in ((model.token_weight, SPARSE_LINEAR), (model.token_vectors, COLBERT_LINEAR)):
        if layer is None:
            continue
        state = {key: value.detach().to(dtype).clone() for key, value in layer.state_dict().items()}
        torch.save(state, folder / name)
    write_json(folder / CONFIG, config.to_record())


LEVELS = 127
"""The largest code: int8 without -128, so that codes are symmetric."""
_ADDED_TO_EVERY_TOKEN = ("position_embeddings", "token_type_embeddings")


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
    side_folders = untied_folders(path)
    folder.mkdir(parents=True)
    sources = list(side_folders.values()) if side_folders else [path]
    matrices = 0
    for source in sources:
        target = folder / source.name if side_folders else folder
        state = read_weights(source)
        target.mkdir(exist_ok=True)
        _copy_files(source, target)
        matrices += save_compact(state, target / COMPACT, str(source), keep)
    if side_folders:
        _copy_files(path, folder)
    for subfolder in module_folders(path):
        shutil.copytree(subfolder, folder / subfolder.name)
    return {"matrices": matrices, "bytes": bytes_of(folder)}


def _copy_files(source: Path, target: Path) -> None:
    """Copy the files of a model folder except its weights, the records of its training, and hidden files."""
    left_out = {*WEIGHTS, *RECORDS}
    for index in WEIGHTS:
        if index.endswith(".index.json") and (source / index).is_file():
            left_out |= shard_names(source / index)
    for path in source.iterdir():
        if path.is_file() and path.name not in left_out and not path.name.startswith("."):
            shutil.copyfile(path, target / path.name)


def save_compact(
    state: Mapping[str, Tensor], path: Path, where: str = "", keep: Sequence[str] = ()
) -> int:
    """Write ``state`` to ``path`` and return the number of matrices stored in 8 bits.

    Matrices whose name contains one of ``keep`` are stored in float16. ``where`` is the start of error messages. Raises
    :class:`CheckpointError` for a weight that is not finite and for a name in ``keep`` that no matrix contains.
    """
    where = where or str(path)
    matrix_names = [name for name, value in state.items() if value.ndim == 2]
    for part in keep:
        if not any(part in name for name in matrix_names):
            raise CheckpointError(f"{where}: no matrix has {part!r} in its name")

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
    _sort_metadata(path)
    path.chmod(0o644)  # safetensors creates files that only the owner can read
    return matrices


def _sort_metadata(path: Path) -> None:
    """Bring the metadata of a safetensors file into a fixed order, so that equal weights are equal files; the library
    writes them in a random one."""
    with open(path, "r+b") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        file.seek(8)
        # The format allows blanks at the end of the header.
        file.write(text.ljust(size))


def _is_diagonal(matrix: Tensor) -> bool:
    """Whether all entries off the diagonal are 0, and one on it is not; a matrix of zeros is stored without codes."""
    rows, columns = matrix.shape
    if rows != columns or rows == 1 or not matrix.any():
        return False
    return torch.equal(matrix, matrix.diagonal().diag())


def quantise(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """(r, c) weights -> int8 codes (r, c), or (0, c) if all weights are zero, and bfloat16 factors (r, groups)."""
    wide = matrix.float()
    rows, columns = wide.shape
    if not bool(wide.any()):
        groups = math.ceil(columns / GROUP)
        no_codes = torch.empty(0, columns, dtype=torch.int8)
        return no_codes, torch.zeros(rows, groups, dtype=torch.bfloat16)
    padded = torch.nn.functional.pad(wide, (0, -columns % GROUP)).view(rows, -1, GROUP)
    # bfloat16 is the upper half of a float32. Rounding the positive factors up to the next number whose lower half is 0
    # means that no code is clipped.
    bits = (padded.abs().amax(2) / LEVELS).contiguous().view(torch.int32)
    scale = ((bits + 0xFFFF) & ~0xFFFF).view(torch.float32).to(torch.bfloat16)
    # A group of zeros has the factor 0 and the codes 0.
    divisor = scale.float().where(scale > 0, 1.0).unsqueeze(2)
    codes = (padded / divisor).round().clamp(-LEVELS, LEVELS).to(torch.int8)
    codes = codes.view(rows, -1)[:, :columns]
    return codes.contiguous(), scale.contiguous()
