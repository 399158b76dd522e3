"""Reading the checkpoint formats of other projects without conversion.

* Tevatron and RetroMAE's trainer: ``pooler.pt`` (``linear_q``, ``linear_p``) and ``pooler_config.json``; models with
  two encoders have the folders ``query_model`` and ``passage_model``, the layout that this toolkit uses too.
* DPR and MASTER's fine-tuning: one pickled file ``{model_dict, optimizer_dict, ...}`` with the keys
  ``question_model.*`` and ``ctx_model.*``; config.json and the tokenizer must be copied beside it.

The other released checkpoints (RetroMAE, CoT-MAE, bowdpr, SimLM, SPLADE, MASTER's archives) are Hugging Face folders
whose extra files and keys (``c_head.*``, ``model.pt``, ``args.pt``) belong to pre-training and are ignored. Pickles are
read with torch's ``weights_only``, which creates tensors and plain containers and runs no code.

Folders of sentence-transformers, OpenSearch and model2vec: :mod:`dupmae_ir.models.checkpoints.modules`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file
from torch import Tensor

from dupmae_ir.console import one_line
from dupmae_ir.errors import CheckpointError
from dupmae_ir.models.checkpoints.layout import COMPACT, POOLER, WEIGHTS
from dupmae_ir.models.checkpoints.stored import StoredWeights

if TYPE_CHECKING:
    from transformers import PreTrainedModel


_DPR = {"query": "question_model.", "document": "ctx_model."}
_UNUSED = (
    "pooler.",
    "embeddings.position_ids",
)  #: DPR's vectors are hidden states of [CLS], not BERT's pooler output


def read_pooler(folder: Path, hidden: int) -> dict[str, torch.nn.Linear] | None:
    """The projection of each side from ``pooler.pt``, with or without bias; None if there is no such file.

    Equal projections are one object. ``hidden`` is the width d of the encoder. Raises :class:`CheckpointError` for any
    other content.
    """
    path = folder / POOLER
    if not path.is_file():
        return None
    state = read_tensors(path)
    if unknown := sorted(k for k in state if not re.fullmatch(r"linear_[qp]\.(weight|bias)", k)):
        raise CheckpointError(
            f"{path}: expected only linear_q.* and linear_p.*, found {unknown[0]}"
        )
    query, document = (
        linear(_under(state, f"linear_{s}."), hidden, f"{path}: linear_{s}") for s in "qp"
    )
    if query.out_features != document.out_features:
        raise CheckpointError(
            f"{path}: linear_q has {query.out_features} outputs, linear_p {document.out_features}"
        )
    _check_pooler_config(folder / "pooler_config.json", hidden, query.out_features)
    return {
        "query": query,
        "document": query if _equal(query.state_dict(), document.state_dict()) else document,
    }


def _check_pooler_config(path: Path, width: int, dim: int) -> None:
    if not path.is_file():
        return
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        declared = (config.get("input_dim", width), config.get("output_dim", dim))
    except (ValueError, AttributeError) as e:
        raise CheckpointError(f"{path}: not a JSON object: {e}") from None
    if declared != (width, dim):
        raise CheckpointError(
            f"{path}: declares {declared[0]} to {declared[1]} dimensions but {POOLER} has {width} to {dim}"
        )


def linear(state: Mapping[str, Tensor], hidden: int, where: str) -> torch.nn.Linear:
    """A float32 ``Linear`` from {weight (d', d), optionally bias (d',)}. ``where`` is the start of error messages."""
    weight, bias = state.get("weight"), state.get("bias")
    if weight is None or weight.ndim != 2 or weight.shape[1] != hidden:
        raise CheckpointError(
            f"{where}: expected a weight of shape (d', {hidden}), got {None if weight is None else tuple(weight.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise CheckpointError(
            f"{where}: expected a bias of shape ({weight.shape[0]},), got {tuple(bias.shape)}"
        )
    layer = torch.nn.Linear(hidden, weight.shape[0], bias=bias is not None)
    layer.load_state_dict({k: v.float() for k, v in state.items()})
    return layer


def read_dpr(path: Path) -> dict[str, PreTrainedModel]:
    """The encoder of each side of a DPR checkpoint file with a config.json beside it; one object if both are equal.

    Raises :class:`CheckpointError` for a file with other keys or with more than tensors and plain containers.
    """
    checkpoint = read_tensors(path, nested="model_dict")
    both = {side: _under(checkpoint, prefix) for side, prefix in _DPR.items()}
    if not all(both.values()) or sum(map(len, both.values())) != len(checkpoint):
        other = next(
            (k for k in checkpoint if not k.startswith(tuple(_DPR.values()))), "only one of them"
        )
        raise CheckpointError(
            f"{path}: expected question_model.* and ctx_model.* in model_dict, found {other}"
        )
    query = _encoder(path, both["query"])
    tied = _equal(*both.values())
    return {"query": query, "document": query if tied else _encoder(path, both["document"])}


def _encoder(path: Path, state: Mapping[str, Tensor]) -> PreTrainedModel:
    if not (path.parent / "config.json").is_file():
        raise CheckpointError(
            f"{path}: config.json and the tokenizer are not beside it; copy those of the model it was trained from "
            "(MASTER's archive, or bert-base-uncased) there"
        )
    from transformers import AutoConfig, AutoModel  # only here: importing it takes seconds

    try:
        model = AutoModel.from_config(
            AutoConfig.from_pretrained(path.parent, local_files_only=True)
        )
        found = model.load_state_dict(state, strict=False)
    except Exception as e:
        raise CheckpointError(
            f"{path}: does not match the config.json beside it: {one_line(e, 300)}"
        ) from None
    odd = [k for k in (*found.missing_keys, *found.unexpected_keys) if not k.startswith(_UNUSED)]
    if odd:
        raise CheckpointError(
            f"{path}: does not match the config.json beside it ({len(odd)} keys, first: {odd[0]})"
        )
    return model


def read_tensors(path: Path, nested: str | None = None) -> dict[str, Tensor]:
    """The tensors in a safetensors file, decoded if they are in 8 bits, or in one written by ``torch.save``, by name.

    ``nested`` is the key of the entry with the tensors. Raises :class:`CheckpointError` if the file has another format,
    or if unpickling it would run code.
    """
    if path.name == COMPACT:
        stored = StoredWeights(path, compact=True)
        return {name: torch.from_numpy(stored[name]) for name in stored}
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except Exception as e:
            raise CheckpointError(
                f"{path}: not readable as safetensors: {one_line(e, 300)}"
            ) from None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as e:
        if found := re.search(r"(?:GLOBAL|class|function) ([\w.]+)", str(e)):
            raise CheckpointError(
                f"{path}: contains more than tensors ({found[1]}); unpickling it could run code, so nothing was "
                "loaded; save only its tensors"
            ) from None
        raise CheckpointError(
            f"{path}: not readable as a file of torch.save: {one_line(e, 300)}"
        ) from None
    if nested is not None:
        state = state.get(nested) if isinstance(state, dict) else None
        if state is None:
            raise CheckpointError(
                f"{path}: has no {nested}; a file is read as a DPR checkpoint, a model is a folder"
            )
    if not isinstance(state, dict) or not all(isinstance(v, torch.Tensor) for v in state.values()):
        raise CheckpointError(f"{path}: expected only names and tensors")
    return state


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors of a Hugging Face folder, in one file or in several, by name.

    Pickles are read with ``weights_only``. Raises :class:`CheckpointError` if there are none or they cannot be read.
    """
    name = next((n for n in WEIGHTS if n != COMPACT and (folder / n).is_file()), None)
    if (folder / COMPACT).is_file():
        raise CheckpointError(f"{folder}: its weights are already stored in 8 bits ({COMPACT})")
    if name is None:
        raise CheckpointError(
            f"{folder}: no weights (looked for {', '.join(n for n in WEIGHTS if n != COMPACT)})"
        )
    files = sorted(shard_names(folder / name)) if name.endswith(".index.json") else [name]
    state: dict[str, Tensor] = {}
    for file in files:
        state |= read_tensors(folder / file)
    return state


def shard_names(index: Path) -> set[str]:
    """The files that an index of weights names."""
    try:
        return set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError) as e:
        raise CheckpointError(f"{index}: not an index of weights: {one_line(e, 300)}") from None


def _under(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def _equal(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(
        a[k].shape == b[k].shape and bool((a[k] == b[k]).all()) for k in a
    )
