"""Saving model folders, with the weights as they are or in 8 bits (:mod:`~dupmae_ir.models.checkpoints.stored`)."""

from __future__ import annotations

import copy
import shutil
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
    aside = folder.with_name(f".{folder.name}.writing")
    if aside.exists():
        shutil.rmtree(aside)
    query, document = (model.side(side) for side in SIDES)
    if query is document:
        _write_side(aside, document, tokenizer, config, half)
    else:
        for side, name in UNTIED.items():
            _write_side(aside / name, model.side(side), tokenizer, config, half)
        save_tokenizer(tokenizer, aside)  # where Tevatron looks for it
        write_json(aside / CONFIG, config.record())
    if lexicon is not None:
        shutil.copyfile(lexicon, aside / LEXICON)
    if card is not None:
        (aside / "README.md").write_text(card, encoding="utf-8")
    make_readable(aside)
    move_into_place(aside, folder)
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
    lm = copy.deepcopy(model.lm).half() if half else model.lm
    with quiet_transformers():
        lm.save_pretrained(folder, safe_serialization=True)
        save_tokenizer(tokenizer, folder)
    dtype = torch.float16 if half else torch.float32
    for layer, name in ((model.projection, PROJECTION), (model.ot_projection, OT_PROJECTION)):
        if layer is not None:
            state = {k: v.detach().to(dtype).contiguous() for k, v in layer.state_dict().items()}
            save_file(state, folder / name)
    for layer, name in ((model.token_weight, SPARSE_LINEAR), (model.token_vectors, COLBERT_LINEAR)):
        if layer is not None:  # FlagEmbedding's files, which it opens too
            torch.save(
                {k: v.detach().to(dtype).clone() for k, v in layer.state_dict().items()},
                folder / name,
            )
    write_json(folder / CONFIG, config.record())


LEVELS = 127
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
    sides = untied_folders(path) or {}
    folder.mkdir(parents=True)
    homes = (
        [(path, folder)] if not sides else [(part, folder / part.name) for part in sides.values()]
    )
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
    return {"matrices": matrices, "bytes": bytes_of(folder)}


def _copy_files(source: Path, target: Path) -> None:
    """Copy the files of a model folder other than its weights, the records of its training, and hidden files."""
    shards = set()
    for index in WEIGHTS:
        if index.endswith(".index.json") and (source / index).is_file():
            shards |= shard_names(source / index)
    for path in source.iterdir():
        skipped = (
            path.name in (*WEIGHTS, *RECORDS) or path.name in shards or path.name.startswith(".")
        )
        if path.is_file() and not skipped:
            shutil.copyfile(path, target / path.name)


def save_compact(
    state: Mapping[str, Tensor], path: Path, where: str = "", keep: Sequence[str] = ()
) -> int:
    """Write ``state`` to ``path`` and return the number of matrices stored in 8 bits.

    Matrices whose name contains one of ``keep`` are stored in float16. ``where`` is the start of error messages. Raises
    :class:`CheckpointError` for a weight that is not finite and for a name in ``keep`` that no matrix contains.
    """
    where = where or str(path)
    if unknown := next(
        (k for k in keep if not any(k in n and v.ndim == 2 for n, v in state.items())), None
    ):
        raise CheckpointError(f"{where}: no matrix has {unknown!r} in its name")
    stored: dict[str, Tensor] = {}
    matrices = 0
    for name, value in state.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise CheckpointError(f"{where}: {name} contains a weight that is not finite")
        if not value.is_floating_point() or value.ndim != 2:
            stored[name] = value.contiguous()
        elif (
            value.shape[0] == value.shape[1] > 1
            and value.any()
            and torch.equal(value, value.diagonal().diag())
        ):
            stored[name + DIAGONAL] = value.diagonal().contiguous()
        elif any(part in name for part in (*_ADDED_TO_EVERY_TOKEN, *keep)):
            stored[name] = value.half().contiguous()
        else:
            stored[name], stored[name + SCALE] = quantise(value)
            matrices += 1
    save_file(stored, path, metadata={"format": "pt", METADATA: VERSION})
    path.chmod(0o644)  # safetensors creates files that only the owner can read
    return matrices


def quantise(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """(r, c) weights -> int8 codes (r, c), or (0, c) if all weights are zero, and bfloat16 factors (r, groups)."""
    wide = matrix.float()
    rows, columns = wide.shape
    if not bool(wide.any()):
        return torch.empty(0, columns, dtype=torch.int8), torch.zeros(
            rows, -(-columns // GROUP), dtype=torch.bfloat16
        )
    padded = torch.nn.functional.pad(wide, (0, -columns % GROUP)).view(rows, -1, GROUP)
    # The smallest bfloat16 numbers that are not below the factors: no code is clipped.
    bits = (padded.abs().amax(2) / LEVELS).contiguous().view(torch.int32)
    scale = ((bits + 0xFFFF) & ~0xFFFF).view(torch.float32).to(torch.bfloat16)
    divisor = scale.float().where(scale > 0, 1.0).unsqueeze(2)
    codes = (
        (padded / divisor).round().clamp(-LEVELS, LEVELS).to(torch.int8).view(rows, -1)[:, :columns]
    )
    return codes.contiguous(), scale.contiguous()
