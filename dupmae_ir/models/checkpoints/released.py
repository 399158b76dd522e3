"""Layouts of other people's checkpoints, read without conversion.

* Tevatron and RetroMAE's trainer: ``pooler.pt`` (``linear_q``, ``linear_p``) and ``pooler_config.json``; with two
  encoders, the folders ``query_model`` and ``passage_model``. Ours with two encoders are of the same layout.
* DPR, MASTER's fine-tuning: one pickled file ``{model_dict, optimizer_dict, ...}`` with the keys ``question_model.*``
  and ``ctx_model.*``; config.json and the tokenizer, which it lacks, lie beside it.

What else is released (RetroMAE, CoT-MAE, bowdpr, SimLM, SPLADE, MASTER's archives) is a Hugging Face folder whose extra
files and keys (``c_head.*``, ``model.pt``, ``args.pt``) belong to pre-training and are left alone. Pickles are read by
torch's ``weights_only`` reader, which makes tensors and plain containers and runs no code.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dupmae_ir.errors import CheckpointError

if TYPE_CHECKING:
    import torch

SIDES = ("query", "document")
UNTIED = {"query": "query_model", "document": "passage_model"}
POOLER = "pooler.pt"
_DPR = {"query": "question_model.", "document": "ctx_model."}
_IDLE = ("pooler.", "embeddings.position_ids")  #: DPR's vectors are hidden states of [CLS], never BERT's pooler


def untied_folders(folder: Path) -> dict[str, Path] | None:
    """The model folder of each side, or None for a model with one encoder."""
    there = {side: folder / name for side, name in UNTIED.items() if (folder / name).is_dir()}
    if len(there) == 1:
        raise CheckpointError(f"{folder}: has only one of {' and '.join(UNTIED.values())}; an untied model needs both")
    return there or None


def read_pooler(folder: Path, hidden: int) -> dict[str, torch.nn.Linear] | None:
    """The projection of each side from ``pooler.pt``, with or without bias; one object if equal, None without the file.

    ``hidden`` is the width d of the encoder. Raises :class:`CheckpointError` for any other content.
    """
    path = folder / POOLER
    if not path.is_file():
        return None
    state = read_tensors(path)
    if unknown := sorted(k for k in state if not re.fullmatch(r"linear_[qp]\.(weight|bias)", k)):
        raise CheckpointError(f"{path}: wants linear_q.* and linear_p.* alone, found {unknown[0]}")
    query, document = (linear(_under(state, f"linear_{s}."), hidden, f"{path}: linear_{s}") for s in "qp")
    if query.out_features != document.out_features:
        raise CheckpointError(f"{path}: linear_q makes {query.out_features} numbers, linear_p {document.out_features}")
    _check_pooler_config(folder / "pooler_config.json", hidden, query.out_features)
    return {"query": query, "document": query if _equal(query.state_dict(), document.state_dict()) else document}


def _check_pooler_config(path: Path, width: int, dim: int) -> None:
    if not path.is_file():
        return
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        then = (said.get("input_dim", width), said.get("output_dim", dim))
    except (ValueError, AttributeError) as e:
        raise CheckpointError(f"{path}: not a JSON object: {e}") from None
    if then != (width, dim):
        raise CheckpointError(f"{path}: says {then[0]} to {then[1]} dimensions but {POOLER} has {width} to {dim}")


def linear(state: dict[str, Any], hidden: int, where: str) -> torch.nn.Linear:
    """A float32 ``Linear`` of {weight (d', d), optionally bias (d',)}. ``where`` begins the error."""
    import torch

    weight, bias = state.get("weight"), state.get("bias")
    if weight is None or weight.ndim != 2 or weight.shape[1] != hidden:
        raise CheckpointError(
            f"{where}: wants a weight of shape (d', {hidden}), got {None if weight is None else tuple(weight.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise CheckpointError(f"{where}: wants a bias of shape ({weight.shape[0]},), got {tuple(bias.shape)}")
    made = torch.nn.Linear(hidden, weight.shape[0], bias=bias is not None)
    made.load_state_dict({k: v.float() for k, v in state.items()})
    return made


def read_dpr(path: Path) -> dict[str, Any]:
    """The encoder of each side of a DPR checkpoint file, on config.json beside it; one object if both are equal.

    Raises :class:`CheckpointError` for a file that holds more than tensors and plain containers, or other keys.
    """
    checkpoint = read_tensors(path, nested="model_dict")
    both = {side: _under(checkpoint, prefix) for side, prefix in _DPR.items()}
    if not all(both.values()) or sum(map(len, both.values())) != len(checkpoint):
        other = next((k for k in checkpoint if not k.startswith(tuple(_DPR.values()))), "one of them alone")
        raise CheckpointError(f"{path}: wants question_model.* and ctx_model.* in model_dict, found {other}")
    query = _encoder(path, both["query"])
    tied = _equal(*both.values())
    return {"query": query, "document": query if tied else _encoder(path, both["document"])}


def _encoder(path: Path, state: dict[str, Any]) -> Any:
    from transformers import AutoConfig, AutoModel

    if not (path.parent / "config.json").is_file():
        raise CheckpointError(
            f"{path}: config.json and the tokenizer are not beside it; copy those of the model it was trained from "
            "(MASTER's archive, or bert-base-uncased) there"
        )
    try:
        model = AutoModel.from_config(AutoConfig.from_pretrained(path.parent, local_files_only=True))
        found = model.load_state_dict(state, strict=False)
    except Exception as e:
        raise CheckpointError(f"{path}: does not fit the config.json beside it: {one_line(e)}") from None
    odd = [k for k in (*found.missing_keys, *found.unexpected_keys) if not k.startswith(_IDLE)]
    if odd:
        raise CheckpointError(f"{path}: does not fit the config.json beside it ({len(odd)} keys, first: {odd[0]})")
    return model


def read_tensors(path: Path, nested: str | None = None) -> dict[str, Any]:
    """The tensors of a file that ``torch.save`` wrote, by name; ``nested`` names the entry that holds them.

    Raises :class:`CheckpointError` when the file is none, or when reading it whole would have to run code.
    """
    import torch

    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as e:
        if found := re.search(r"(?:GLOBAL|class|function) ([\w.]+)", str(e)):
            raise CheckpointError(
                f"{path}: holds more than tensors ({found[1]}), and unpickling that could run code, so nothing was "
                "loaded; save its tensors alone"
            ) from None
        raise CheckpointError(f"{path}: not readable as a file of torch.save: {one_line(e)}") from None
    if nested is not None:
        state = state.get(nested) if isinstance(state, dict) else None
        if state is None:
            raise CheckpointError(f"{path}: has no {nested}; a file is read as a DPR checkpoint, a model is a folder")
    if not isinstance(state, dict) or not all(isinstance(v, torch.Tensor) for v in state.values()):
        raise CheckpointError(f"{path}: wants names and tensors alone")
    return state


def one_line(error: Exception) -> str:
    """The start of an error's text without line breaks."""
    return " ".join(str(error).split())[:300]


def _under(state: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def _equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(a[k].shape == b[k].shape and bool((a[k] == b[k]).all()) for k in a)
