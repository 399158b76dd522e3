"""Models in the layouts of sentence-transformers, OpenSearch and model2vec, read without torch.

Of sentence-transformers folders ``modules.json``, the modules' own settings and the prompts are read. Honoured are

* dense: a Transformer; pooling by [CLS], the last token, or a mean of all tokens, plain or weighted by position; Dense
  layers with the activations of :data:`ACTIVATIONS`; Normalize, or cosine as similarity;
* sparse: a masked LM with SpladePooling, for documents alone if a Router gives queries a SparseStaticEmbedding;
* static: a StaticEmbedding, and Normalize; also a folder of model2vec without modules;

with the lengths, and the prompts that ``encode_query`` and ``encode_document`` use. A masked LM with ``idf.json`` and
without modules is OpenSearch's layout. Everything else is refused, since the vectors would not be those that the
model's authors evaluated. A folder with ``dupmae_config.json`` is a model of this toolkit, whose settings are in that
file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dupmae_ir.console import one_line
from dupmae_ir.errors import CheckpointError
from dupmae_ir.models.checkpoints.layout import CONFIG, IDF, MODULES, SIDES, module_chains
from dupmae_ir.models.checkpoints.model_config import OT_POOLINGS, POOLINGS, ModelConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU")
"""Activations of Dense layers, by the names of torch's modules."""
TABLE = "model.safetensors"
"""The weights of a SparseStaticEmbedding or StaticEmbedding in the folder of the module."""
_LEGACY = "pooling_mode_"
_MODES = {
    "cls_token": "cls",
    "mean_tokens": "mean",
    "weightedmean_tokens": "weighted-mean",
    "weightedmean": "weighted-mean",
    "lasttoken": "last",
}
_DENSE = re.compile("Transformer Pooling( Dense)*( Normalize)?")
_SPARSE = re.compile("(MLM)?Transformer SpladePooling")
_STATIC = re.compile("StaticEmbedding( Normalize)?")
_TABLE = "SparseStaticEmbedding"
_TOKENIZING = ("model", "normalizer", "pre_tokenizer", "added_tokens")
_SPLADE_ACTIVATIONS = {"relu": "log1p", "log1p_relu": "log1p-log1p"}
"""SpladePooling takes the logarithm of one plus its activation."""


@dataclass(frozen=True)
class DenseModule:
    """The folder of a Dense module and its activation, one of :data:`ACTIVATIONS`."""

    folder: Path
    activation: str


@dataclass(frozen=True)
class Modules:
    """The modules of a folder."""

    folder: Path
    encoder: Path  #: folder of the Transformer or the StaticEmbedding
    settings: Mapping[str, Any]  #: the fields of :class:`ModelConfig` that they determine
    length: int | None = None  #: word pieces per text; None = as many as tokenizer and model allow
    lower_case: bool = False  #: texts are lower-cased before they are tokenised
    dense: tuple[DenseModule, ...] = ()
    static: bool = False  #: vectors are means of token embeddings

    def applied(self, config: ModelConfig, longest: int, terms: int) -> ModelConfig:
        """``config`` with the modules' settings, cut to the model's limits of word pieces and terms."""
        length = min(self.length or longest, longest)
        config = replace(config, document_length=length, query_length=length, **self.settings)
        if config.query_table:
            config = replace(
                config, query_length=longest
            )  # a query is tokenised, and no model reads it
        return config if config.has_dense else replace(config, top_k=config.query_top_k or terms)

    def check_case(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raise :class:`CheckpointError` if texts are to be lower-cased and the tokenizer does not do it."""
        if self.lower_case and tokenizer.tokenize("Text A") != tokenizer.tokenize("text a"):
            raise CheckpointError(
                f"{self.folder}: do_lower_case with a tokenizer that keeps case is not supported"
            )


def read_modules(folder: Path) -> Modules | None:
    """The modules of a folder; None for a folder of another layout.

    Raises :class:`CheckpointError` for modules that cannot be honoured.
    """
    chains = module_chains(folder)
    if not chains:
        return _without_modules(folder)
    names = {part: " ".join(name for name, _ in chain) for part, chain in chains.items()}
    document = chains["document"]
    options = read_json(folder / "config_sentence_transformers.json")
    # sentence-transformers has empty prompts of these two names by default, so its encode_query and encode_document
    # never use the default prompt of the folder there, nor prompts named passage or corpus.
    prompts = options.get("prompts")
    named = prompts if isinstance(prompts, dict) else {}
    settings: dict[str, object] = {f"{side}_prompt": str(named.get(side) or "") for side in SIDES}
    similarity = options.get("similarity_fn_name")
    if similarity not in (None, "cosine", "dot"):
        raise CheckpointError(
            f"{folder}: similarity {similarity} is not an inner product, which search computes"
        )
    encoder, normalize = (
        folder / document[0][1],
        "Normalize" in names["document"] or similarity == "cosine",
    )
    if _STATIC.fullmatch(names["document"]) and names["query"] == names["document"]:
        return Modules(folder, encoder, settings | {"normalize": normalize}, static=True)
    transformer = read_json(encoder / "sentence_bert_config.json")
    length, lower_case = transformer.get("max_seq_length"), bool(transformer.get("do_lower_case"))
    if _SPARSE.fullmatch(names["document"]) and names["query"] in (names["document"], _TABLE):
        if document[0][0] == "Transformer" and transformer.get("transformer_task") != "fill-mask":
            raise CheckpointError(
                f"{folder / MODULES}: SpladePooling after a Transformer without a masked-LM head"
            )
        table = (
            _query_table(folder, chains["query"][0][1], encoder) if names["query"] == _TABLE else ""
        )
        settings |= _splade(folder / document[1][1] / "config.json", options) | {
            "query_table": table
        }
        return Modules(folder, encoder, settings, length, lower_case)
    if not _DENSE.fullmatch(names["document"]) or chains["query"] != document:
        raise CheckpointError(_unsupported(folder, names))
    settings |= {
        "pooling": _pooling(folder / document[1][1] / "config.json"),
        "normalize": normalize,
    }
    dense = tuple(_dense(folder / path) for name, path in document if name == "Dense")
    return Modules(folder, encoder, settings, length, lower_case, dense)


def _without_modules(folder: Path) -> Modules | None:
    """OpenSearch's layout, a masked LM and ``idf.json``; or model2vec's."""
    if (folder / CONFIG).is_file() or not (folder / "config.json").is_file():
        return None
    if (folder / IDF).is_file():
        # All tokens are pooled; special tokens are no terms.
        settings = {
            "include_cls": True,
            "include_sep": True,
            "activation": "log1p",
            "query_table": IDF,
        }
        return Modules(folder, folder, settings)
    try:
        config = read_json(folder / "config.json")
    except CheckpointError:
        return None  # reported when the model is loaded
    if config.get("model_type") != "model2vec":
        return None
    return Modules(folder, folder, {"normalize": bool(config.get("normalize"))}, static=True)


def _unsupported(folder: Path, names: Mapping[str, str]) -> str:
    query, document = (", ".join(names[part].split()) for part in SIDES)
    listed = document if query == document else f"{query} of queries and {document} of documents"
    return (
        f"{folder / MODULES}: modules {listed} are not supported; expected Transformer, Pooling, optionally Dense "
        "layers and Normalize; a Transformer with masked-LM head and SpladePooling, with SparseStaticEmbedding for "
        "queries or without; or StaticEmbedding (in place of an export of dupmae-ir, use the model it was made from)"
    )


def _query_table(folder: Path, path: str, encoder: Path) -> str:
    """The file with the weights of a SparseStaticEmbedding, relative to ``folder``."""
    query, document = (read_json(home / "tokenizer.json") for home in (folder / path, encoder))
    if any(query.get(part) != document.get(part) for part in _TOKENIZING if query):
        raise CheckpointError(
            f"{folder / path}: queries have another tokenizer than documents, which is not supported"
        )
    named = read_json(folder / path / "config.json").get("path")
    if named is None:
        return str(Path(path) / TABLE)
    if not isinstance(named, str) or Path(named).is_absolute() or ".." in Path(named).parts:
        raise CheckpointError(
            f"{folder / path}/config.json: path must name a file of the model, got {named!r}"
        )
    return named if (folder / named).is_file() else str(Path(path) / named)


def _dense(folder: Path) -> DenseModule:
    path = folder / "config.json"
    config = read_json(path)
    named = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    activation = named.rpartition(".")[2]
    if activation not in ACTIVATIONS or not named.startswith("torch.nn."):
        raise CheckpointError(
            f"{path}: a Dense module with {named} is not supported; expected {', '.join(ACTIVATIONS)}"
        )
    other = config.get("module_input_name", "sentence_embedding") != "sentence_embedding"
    if (
        other
        or config.get("use_residual")
        or config.get("module_output_name") not in (None, "sentence_embedding")
    ):
        raise CheckpointError(
            f"{path}: a Dense module of token embeddings or with a residual is not supported"
        )
    return DenseModule(folder, activation)


def _splade(path: Path, options: Mapping[str, Any]) -> dict[str, object]:
    """The settings of a SpladePooling module."""
    kept = options.get("max_active_dims")
    if kept is not None and (type(kept) is not int or kept < 1):
        raise CheckpointError(
            f"{path.parents[1]}: max_active_dims must be a positive number, got {kept!r}"
        )
    config = read_json(path)
    activation, strategy = (
        config.get("activation_function", "relu"),
        config.get("pooling_strategy", "max"),
    )
    if activation not in _SPLADE_ACTIVATIONS or strategy not in OT_POOLINGS:
        raise CheckpointError(
            f"{path}: SpladePooling with activation {activation} and strategy {strategy} is not supported; expected "
            f"{' or '.join(_SPLADE_ACTIVATIONS)}, and {' or '.join(OT_POOLINGS)}"
        )
    activation = _SPLADE_ACTIVATIONS[activation]
    return {
        "sparse_encoder": True,
        "activation": activation,
        "ot_pooling": strategy,
        "query_top_k": kept,
    }


def _pooling(path: Path) -> str:
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file, so the pooling is unknown")
    config = read_json(path)
    if config.get("include_prompt") is False:
        raise CheckpointError(
            f"{path}: pooling without the tokens of the prompt (include_prompt) is not supported"
        )
    mode = config.get("pooling_mode")
    if mode is None:
        active = [
            key.removeprefix(_LEGACY)
            for key, on in config.items()
            if key.startswith(_LEGACY) and on
        ]
        mode = [_MODES.get(name, name) for name in active] or "mean"
    modes = [_MODES.get(name, name) for name in ([mode] if isinstance(mode, str) else mode)]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        known = f"{', '.join(POOLINGS[:-1])} or {POOLINGS[-1]}"
        raise CheckpointError(
            f"{path}: pooling {' and '.join(map(str, modes))} is not supported; use {known}"
        )
    return str(modes[0])


def read_json(path: Path) -> Mapping[str, Any]:
    """A JSON object; empty if there is no such file. Raises :class:`CheckpointError` for anything else."""
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as e:
        raise CheckpointError(f"{path}: not valid JSON: {one_line(e, 300)}") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: expected a JSON object")
    return data
