"""Reading the dense part of a sentence-transformers folder: ``modules.json``, ``1_Pooling``, ``2_Dense``, Normalize.

Honoured are a Transformer in the folder itself, pooling by [CLS] or by the mean of all tokens, a Dense layer without
activation, which is W_cls, and Normalize, with one length for queries and documents. Everything else is refused, since
the vectors would not be those that the model's authors evaluated. A folder with ``dupmae_config.json`` is a model of
this toolkit, whose settings are in that file; a SparseEncoder folder is read as a masked LM.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file

from dupmae_ir.console import one_line
from dupmae_ir.errors import CheckpointError
from dupmae_ir.models.checkpoints.layout import CONFIG, MODULES
from dupmae_ir.models.checkpoints.model_config import POOLINGS, ModelConfig
from dupmae_ir.models.checkpoints.released import linear

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_LEGACY = "pooling_mode_"
_MODES = {"cls_token": "cls", "mean_tokens": "mean"}
_ORDER = ["Transformer", "Pooling", "Dense", "Normalize"]


@dataclass(frozen=True)
class SentenceModules:
    """What the modules of a folder say."""

    folder: Path
    pooling: str
    dense: Path | None  #: folder of the Dense module
    normalize: bool
    length: int | None  #: word pieces per text
    lower_case: bool  #: texts are lower-cased before they are tokenised

    def applied(self, config: ModelConfig) -> ModelConfig:
        """``config`` with the modules' settings."""
        config = replace(config, pooling=self.pooling, normalize=self.normalize)
        return replace(config, document_length=self.length, query_length=self.length) if self.length else config

    def projection(self, hidden: int) -> torch.nn.Linear | None:
        """The Dense module for states of width ``hidden``, or None. Raises :class:`CheckpointError` if damaged."""
        if self.dense is None:
            return None
        path = self.dense / "model.safetensors"
        try:
            state = load_file(path)
        except Exception as e:
            raise CheckpointError(f"{path}: not readable as safetensors: {one_line(e, 300)}") from None
        return linear({name.removeprefix("linear."): value for name, value in state.items()}, hidden, str(path))

    def check_case(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raise :class:`CheckpointError` if texts are to be lower-cased and the tokenizer does not do it."""
        if self.lower_case and tokenizer.tokenize("Text A") != tokenizer.tokenize("text a"):
            raise CheckpointError(f"{self.folder}: do_lower_case with a tokenizer that keeps case is not supported")


def module_folders(folder: Path) -> list[Path]:
    """The existing subfolders of a dense sentence-transformers folder's modules; none for any other folder."""
    try:
        listed = _listed(folder)
    except CheckpointError:
        return []  # reported when the model is loaded
    return [folder / path for _, path in listed if path and (folder / path).is_dir()]


def read_modules(folder: Path) -> SentenceModules | None:
    """The modules of a dense sentence-transformers folder; None for any other folder.

    Raises :class:`CheckpointError` for modules that cannot be honoured.
    """
    listed = _listed(folder)
    if not listed:
        return None
    names = [name for name, _ in listed]
    if names[0] != "Transformer" or names.count("Pooling") != 1 or names != [n for n in _ORDER if n in names]:
        raise CheckpointError(
            f"{folder / MODULES}: modules {', '.join(names)} are not supported; expected {', '.join(_ORDER[:2])}, "
            "optionally Dense and Normalize"
        )
    paths = dict(listed)
    if paths["Transformer"]:
        raise CheckpointError(f"{folder / MODULES}: the Transformer must be in the folder itself, not in a subfolder")
    _refuse_prompts(folder / "config_sentence_transformers.json")
    transformer = _read(folder / "sentence_bert_config.json")
    dense = folder / paths["Dense"] if "Dense" in paths else None
    if dense is not None:
        _check_dense(dense / "config.json")
    return SentenceModules(
        folder=folder,
        pooling=_pooling(folder / paths["Pooling"] / "config.json"),
        dense=dense,
        normalize="Normalize" in names,
        length=transformer.get("max_seq_length"),
        lower_case=bool(transformer.get("do_lower_case")),
    )


def _listed(folder: Path) -> list[tuple[str, str]]:
    """Class name and subfolder of each module; empty for anything but a dense model of sentence-transformers."""
    path = folder / MODULES
    if not path.is_file() or (folder / CONFIG).is_file():
        return []
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
        listed = [(str(m["type"]).rpartition(".")[2], str(m["path"])) for m in modules]
    except (ValueError, KeyError, TypeError) as e:
        raise CheckpointError(f"{path}: not a list of modules: {one_line(e, 300)}") from None
    sparse = {"MLMTransformer", "SpladePooling"} & {name for name, _ in listed}
    return [] if sparse else listed


def _pooling(path: Path) -> str:
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file, so the pooling is unknown")
    config = _read(path)
    mode = config.get("pooling_mode")
    if mode is None:
        active = [key.removeprefix(_LEGACY) for key, on in config.items() if key.startswith(_LEGACY) and on]
        mode = [_MODES.get(name, name) for name in active] or "mean"
    modes = [mode] if isinstance(mode, str) else list(mode)
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise CheckpointError(
            f"{path}: pooling {' and '.join(map(str, modes))} is not supported; use {' or '.join(POOLINGS)}"
        )
    return str(modes[0])


def _check_dense(path: Path) -> None:
    activation = str(_read(path).get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    if activation != "Identity":
        raise CheckpointError(f"{path}: a Dense module with {activation} is not supported, only one without activation")


def _refuse_prompts(path: Path) -> None:
    prompts = _read(path).get("prompts") or {}
    if used := sorted(name for name, text in prompts.items() if text):
        raise CheckpointError(
            f"{path}: prompts ({', '.join(used)}) are not supported; add them to the texts and remove them"
        )


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as e:
        raise CheckpointError(f"{path}: not valid JSON: {one_line(e, 300)}") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: expected a JSON object")
    return data
