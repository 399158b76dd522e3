"""Reading the checkpoint formats of other projects without conversion.

* Tevatron and RetroMAE's trainer: ``pooler.pt`` (``linear_q``, ``linear_p``) and ``pooler_config.json``; models with
  two encoders have the folders ``query_model`` and ``passage_model``, the layout that this toolkit uses too.
* DPR and MASTER's fine-tuning: one pickled file ``{model_dict, optimizer_dict, ...}`` with the keys
  ``question_model.*`` and ``ctx_model.*``; config.json and the tokenizer must be copied into the same folder.

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


_DPR_PREFIXES = {"query": "question_model.", "document": "ctx_model."}
_UNUSED = ("pooler.", "embeddings.position_ids")
"""Weights that may be missing or superfluous: DPR's vectors are hidden states of [CLS], not BERT's pooler output."""


def read_pooler(folder: Path, hidden: int) -> dict[str, torch.nn.Linear] | None:
    """The projection of each side from ``pooler.pt``, with or without bias; None if there is no such file.

    Equal projections are one object. ``hidden`` is the width d of the encoder. Raises :class:`CheckpointError` for any
    other content.
    """
    path = folder / POOLER
    if not path.is_file():
        return None
    state = read_tensors(path)
    for name in sorted(state):
        if not re.fullmatch(r"linear_[qp]\.(weight|bias)", name):
            raise CheckpointError(f"{path}: expected only linear_q.* and linear_p.*, found {name}")
    query = linear(_without_prefix(state, "linear_q."), hidden, f"{path}: linear_q")
    document = linear(_without_prefix(state, "linear_p."), hidden, f"{path}: linear_p")
    if query.out_features != document.out_features:
        raise CheckpointError(
            f"{path}: linear_q has {query.out_features} outputs, linear_p {document.out_features}"
        )
    _check_pooler_config(folder / "pooler_config.json", hidden, query.out_features)
    if _equal(query.state_dict(), document.state_dict()):
        document = query
    return {"query": query, "document": document}


def _check_pooler_config(path: Path, width: int, dim: int) -> None:
    if not path.is_file():
        return
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        input_dim = config.get("input_dim", width)
        output_dim = config.get("output_dim", dim)
    except (ValueError, AttributeError) as e:
        raise CheckpointError(f"{path}: not a JSON object: {e}") from None
    if input_dim != width or output_dim != dim:
        raise CheckpointError(
            f"{path}: declares {input_dim} to {output_dim} dimensions but {POOLER} has {width} to {dim}"
        )


def linear(state: Mapping[str, Tensor], hidden: int, where: str) -> torch.nn.Linear:
    """A float32 ``Linear`` from {weight (d', d), optionally bias (d',)}. ``where`` is the start of error messages."""
    weight = state.get("weight")
    bias = state.get("bias")
    if weight is None:
        raise CheckpointError(f"{where}: expected a weight of shape (d', {hidden}), got None")
    if weight.ndim != 2 or weight.shape[1] != hidden:
        raise CheckpointError(
            f"{where}: expected a weight of shape (d', {hidden}), got {tuple(weight.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise CheckpointError(
            f"{where}: expected a bias of shape ({weight.shape[0]},), got {tuple(bias.shape)}"
        )
    layer = torch.nn.Linear(hidden, weight.shape[0], bias=bias is not None)
    layer.load_state_dict({name: value.float() for name, value in state.items()})
    return layer


def read_dpr(path: Path) -> dict[str, PreTrainedModel]:
    """The encoder of each side of a DPR checkpoint file with a config.json next to it; one object if both are equal.

    Raises :class:`CheckpointError` for a file with other keys or with more than tensors and plain containers.
    """
    checkpoint = read_tensors(path, nested="model_dict")
    for key in checkpoint:
        if not key.startswith(tuple(_DPR_PREFIXES.values())):
            raise CheckpointError(
                f"{path}: expected question_model.* and ctx_model.* in model_dict, found {key}"
            )
    query_state = _without_prefix(checkpoint, _DPR_PREFIXES["query"])
    document_state = _without_prefix(checkpoint, _DPR_PREFIXES["document"])
    if not query_state or not document_state:
        raise CheckpointError(
            f"{path}: expected question_model.* and ctx_model.* in model_dict, found only one of them"
        )
    query = _build_encoder(path, query_state)
    document = query
    if not _equal(query_state, document_state):
        document = _build_encoder(path, document_state)
    return {"query": query, "document": document}


def _build_encoder(path: Path, state: Mapping[str, Tensor]) -> PreTrainedModel:
    if not (path.parent / "config.json").is_file():
        raise CheckpointError(
            f"{path}: config.json and the tokenizer are not beside it; copy those of the model it was trained from "
            "(MASTER's archive, or bert-base-uncased) there"
        )
    from transformers import AutoConfig, AutoModel  # only here: importing it takes seconds

    try:
        config = AutoConfig.from_pretrained(path.parent, local_files_only=True)
        model = AutoModel.from_config(config)
        # Not strict, because the pooler may be missing; all other keys are checked below.
        mismatch = model.load_state_dict(state, strict=False)
    except Exception as e:
        raise CheckpointError(
            f"{path}: does not match the config.json beside it: {one_line(e, 300)}"
        ) from None
    keys = [
        key
        for key in (*mismatch.missing_keys, *mismatch.unexpected_keys)
        if not key.startswith(_UNUSED)
    ]
    if keys:
        raise CheckpointError(
            f"{path}: does not match the config.json beside it ({len(keys)} keys, first: {keys[0]})"
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
        # torch's message names the class or function that it refused to import.
        refused = re.search(r"(?:GLOBAL|class|function) ([\w.]+)", str(e))
        if refused is not None:
            raise CheckpointError(
                f"{path}: contains more than tensors ({refused[1]}); unpickling it could run code, so nothing was "
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
    if (folder / COMPACT).is_file():
        raise CheckpointError(f"{folder}: its weights are already stored in 8 bits ({COMPACT})")
    candidates = [name for name in WEIGHTS if name != COMPACT]
    name = next((name for name in candidates if (folder / name).is_file()), None)
    if name is None:
        raise CheckpointError(f"{folder}: no weights (looked for {', '.join(candidates)})")
    files = [name]
    if name.endswith(".index.json"):
        files = sorted(shard_names(folder / name))
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


def _without_prefix(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The entries under ``prefix``, named without it."""
    return {
        name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)
    }


def _equal(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Whether two states have the same names, shapes and values."""
    if a.keys() != b.keys():
        return False
    for name in a:
        if a[name].shape != b[name].shape or not bool((a[name] == b[name]).all()):
            return False
    return True
