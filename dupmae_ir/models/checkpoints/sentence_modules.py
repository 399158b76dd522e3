"""Reading sentence-transformers folders: ``modules.json``, the modules' own settings, and the prompts.

Honoured in the dense part are a Transformer in the folder itself, pooling by [CLS] or by a mean of all tokens, plain or
weighted by position, a Dense layer without activation, which is W_cls, Normalize, one length for queries and documents,
and the prompts that ``encode_query`` and ``encode_document`` use. Of a SparseEncoder, the OT part is its masked LM with
SpladePooling: strategy, activation and ``max_active_dims``. Everything else is refused, since the vectors would not be
those that the model's authors evaluated. A folder with ``dupmae_config.json`` is a model of this toolkit, whose
settings are in that file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dupmae_ir.console import one_line
from dupmae_ir.errors import CheckpointError
from dupmae_ir.models.checkpoints.layout import MODULES, SIDES, listed_modules
from dupmae_ir.models.checkpoints.model_config import OT_POOLINGS, POOLINGS, ModelConfig
from dupmae_ir.models.checkpoints.released import linear, read_tensors

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_LEGACY = "pooling_mode_"
_MODES = {
    "cls_token": "cls",
    "mean_tokens": "mean",
    "weightedmean_tokens": "weighted-mean",
    "weightedmean": "weighted-mean",
}
_ORDER = ["Transformer", "Pooling", "Dense", "Normalize"]
_SPARSE = {"MLMTransformer", "SpladePooling", "SparseAutoEncoder", "SparseStaticEmbedding"}
_SPARSE_ORDERS = (["Transformer", "SpladePooling"], ["MLMTransformer", "SpladePooling"])
_SPLADE_ACTIVATIONS = {"relu": "log1p", "log1p_relu": "log1p-log1p"}
"""SpladePooling takes the logarithm of one plus its activation."""


@dataclass(frozen=True)
class Modules:
    """The modules of a folder."""

    folder: Path
    settings: Mapping[str, Any]  #: the fields of :class:`ModelConfig` that they determine
    length: int | None  #: word pieces per text; None = as many as tokenizer and model allow
    lower_case: bool  #: texts are lower-cased before they are tokenised
    dense: Path | None = None  #: folder of the Dense module

    def applied(self, config: ModelConfig, longest: int, terms: int) -> ModelConfig:
        """``config`` with the modules' settings, cut to the model's limits of word pieces and terms."""
        length = min(self.length or longest, longest)
        config = replace(config, document_length=length, query_length=length, **self.settings)
        return replace(config, top_k=config.query_top_k or terms) if config.sparse_encoder else config

    def projection(self, hidden: int) -> torch.nn.Linear | None:
        """The Dense module for states of width ``hidden``, or None. Raises :class:`CheckpointError` if damaged."""
        if self.dense is None:
            return None
        path = self.dense / "model.safetensors"
        state = {name.removeprefix("linear."): value for name, value in read_tensors(path).items()}
        return linear(state, hidden, str(path))

    def check_case(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raise :class:`CheckpointError` if texts are to be lower-cased and the tokenizer does not do it."""
        if self.lower_case and tokenizer.tokenize("Text A") != tokenizer.tokenize("text a"):
            raise CheckpointError(f"{self.folder}: do_lower_case with a tokenizer that keeps case is not supported")


def read_modules(folder: Path) -> Modules | None:
    """The modules of a sentence-transformers folder; None for any other folder.

    Raises :class:`CheckpointError` for modules that cannot be honoured.
    """
    listed = listed_modules(folder)
    if not listed:
        return None
    sparse = not _SPARSE.isdisjoint(name for name, _ in listed)
    _check_order(folder / MODULES, [name for name, _ in listed], sparse)
    if listed[0][1]:
        raise CheckpointError(f"{folder / MODULES}: the Transformer must be in the folder itself, not in a subfolder")
    options, transformer = (
        _read(folder / "config_sentence_transformers.json"),
        _read(folder / "sentence_bert_config.json"),
    )
    # sentence-transformers has empty prompts of these two names by default, so its encode_query and encode_document
    # never use the default prompt of the folder there, nor prompts named passage or corpus.
    prompts = options.get("prompts")
    named = prompts if isinstance(prompts, dict) else {}
    settings: dict[str, object] = {f"{side}_prompt": str(named.get(side) or "") for side in SIDES}
    paths = {name: folder / path for name, path in listed}
    if sparse:
        if "Transformer" in paths and transformer.get("transformer_task") != "fill-mask":
            raise CheckpointError(f"{folder / MODULES}: SpladePooling after a Transformer without a masked-LM head")
        kept = options.get("max_active_dims")
        if kept is not None and (type(kept) is not int or kept < 1):
            raise CheckpointError(f"{folder}: max_active_dims must be a positive number, got {kept!r}")
        activation, strategy = _splade(paths["SpladePooling"] / "config.json")
        settings |= {"sparse_encoder": True, "activation": activation, "ot_pooling": strategy, "query_top_k": kept}
    else:
        pooling = _pooling(paths["Pooling"] / "config.json")
        settings |= {"pooling": pooling, "normalize": "Normalize" in paths}
    length, lower_case = transformer.get("max_seq_length"), bool(transformer.get("do_lower_case"))
    dense = paths.get("Dense")
    if dense is not None:
        path = dense / "config.json"
        activation = str(_read(path).get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
        if activation != "Identity":
            raise CheckpointError(
                f"{path}: a Dense module with {activation} is not supported, only one without activation"
            )
    return Modules(folder, settings, length, lower_case, dense)


def _check_order(path: Path, names: list[str], sparse: bool) -> None:
    if sparse and names not in _SPARSE_ORDERS:
        raise CheckpointError(
            f"{path}: modules {', '.join(names)} are not supported; expected a Transformer with masked-LM head and "
            "SpladePooling (in place of an export of dupmae-ir, use the model it was made from)"
        )
    dense = names[0] == "Transformer" and names.count("Pooling") == 1 and names == [n for n in _ORDER if n in names]
    if not sparse and not dense:
        raise CheckpointError(
            f"{path}: modules {', '.join(names)} are not supported; expected {', '.join(_ORDER[:2])}, optionally Dense "
            "and Normalize"
        )


def _splade(path: Path) -> tuple[str, str]:
    """Activation and strategy of a SpladePooling module, by the names of this toolkit."""
    config = _read(path)
    activation, strategy = config.get("activation_function", "relu"), config.get("pooling_strategy", "max")
    if activation not in _SPLADE_ACTIVATIONS or strategy not in OT_POOLINGS:
        raise CheckpointError(
            f"{path}: SpladePooling with activation {activation} and strategy {strategy} is not supported; expected "
            f"{' or '.join(_SPLADE_ACTIVATIONS)}, and {' or '.join(OT_POOLINGS)}"
        )
    return _SPLADE_ACTIVATIONS[activation], strategy


def _pooling(path: Path) -> str:
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file, so the pooling is unknown")
    config = _read(path)
    if config.get("include_prompt") is False:
        raise CheckpointError(f"{path}: pooling without the tokens of the prompt (include_prompt) is not supported")
    mode = config.get("pooling_mode")
    if mode is None:
        active = [key.removeprefix(_LEGACY) for key, on in config.items() if key.startswith(_LEGACY) and on]
        mode = [_MODES.get(name, name) for name in active] or "mean"
    modes = [_MODES.get(name, name) for name in ([mode] if isinstance(mode, str) else mode)]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        known = f"{', '.join(POOLINGS[:-1])} or {POOLINGS[-1]}"
        raise CheckpointError(f"{path}: pooling {' and '.join(map(str, modes))} is not supported; use {known}")
    return str(modes[0])


def _read(path: Path) -> Mapping[str, Any]:
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
