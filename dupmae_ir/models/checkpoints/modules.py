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
_MODE_FLAG_PREFIX = "pooling_mode_"
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
_QUERY_TABLE = "SparseStaticEmbedding"
_TOKENIZER_ENTRIES = ("model", "normalizer", "pre_tokenizer", "added_tokens")
"""Entries of tokenizer.json that determine the ids of a text, apart from truncation and special tokens."""
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
            # Queries are only tokenised, so the length that the model was trained with does not limit them.
            config = replace(config, query_length=longest)
        if not config.has_dense:
            # max_active_dims applies to queries and documents alike.
            config = replace(config, top_k=config.query_top_k or terms)
        return config

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
        return _read_without_modules(folder)
    names = {side: " ".join(module.kind for module in chain) for side, chain in chains.items()}
    document = chains["document"]
    query_names = names["query"]
    document_names = names["document"]

    options = read_json(folder / "config_sentence_transformers.json")
    # sentence-transformers has empty prompts of these two names by default, so its encode_query and encode_document
    # never use the default prompt of the folder there, nor prompts named passage or corpus.
    prompts = options.get("prompts")
    if not isinstance(prompts, dict):
        prompts = {}
    settings: dict[str, object] = {f"{side}_prompt": str(prompts.get(side) or "") for side in SIDES}

    similarity = options.get("similarity_fn_name")
    if similarity not in (None, "cosine", "dot"):
        raise CheckpointError(
            f"{folder}: similarity {similarity} is not an inner product, which search computes"
        )
    # Inner products of unit vectors are cosines.
    normalize = "Normalize" in document_names or similarity == "cosine"
    encoder = folder / document[0].path

    if _STATIC.fullmatch(document_names) and query_names == document_names:
        settings["normalize"] = normalize
        return Modules(folder, encoder, settings, static=True)

    transformer = read_json(encoder / "sentence_bert_config.json")
    length = transformer.get("max_seq_length")
    lower_case = bool(transformer.get("do_lower_case"))
    if _SPARSE.fullmatch(document_names) and query_names in (document_names, _QUERY_TABLE):
        needs_head = document[0].kind == "Transformer"
        if needs_head and transformer.get("transformer_task") != "fill-mask":
            raise CheckpointError(
                f"{folder / MODULES}: SpladePooling after a Transformer without a masked-LM head"
            )
        query_table = ""
        if query_names == _QUERY_TABLE:
            query_table = _query_table_file(folder, chains["query"][0].path, encoder)
        settings |= _splade_settings(folder / document[1].path / "config.json", options)
        settings["query_table"] = query_table
        return Modules(folder, encoder, settings, length, lower_case)

    if not _DENSE.fullmatch(document_names) or chains["query"] != document:
        raise CheckpointError(_unsupported(folder, names))
    settings["pooling"] = _read_pooling(folder / document[1].path / "config.json")
    settings["normalize"] = normalize
    dense = tuple(
        _read_dense(folder / module.path) for module in document if module.kind == "Dense"
    )
    return Modules(folder, encoder, settings, length, lower_case, dense)


def _read_without_modules(folder: Path) -> Modules | None:
    """The settings of a folder of OpenSearch (a masked LM and ``idf.json``) or model2vec; None for any other."""
    if (folder / CONFIG).is_file() or not (folder / "config.json").is_file():
        return None
    if (folder / IDF).is_file():
        # All tokens are pooled; special tokens are not terms.
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
    query, document = (", ".join(names[side].split()) for side in SIDES)
    listed = document
    if query != document:
        listed = f"{query} of queries and {document} of documents"
    return (
        f"{folder / MODULES}: modules {listed} are not supported; expected Transformer, Pooling, optionally Dense "
        "layers and Normalize; a Transformer with masked-LM head and SpladePooling, with SparseStaticEmbedding for "
        "queries or without; or StaticEmbedding (in place of an export of dupmae-ir, use the model it was made from)"
    )


def _query_table_file(folder: Path, module_path: str, encoder: Path) -> str:
    """The file with the weights of a SparseStaticEmbedding, relative to ``folder``."""
    module = folder / module_path
    query_tokenizer = read_json(module / "tokenizer.json")
    document_tokenizer = read_json(encoder / "tokenizer.json")
    # A module without this file uses the tokenizer of the model.
    if query_tokenizer:
        for entry in _TOKENIZER_ENTRIES:
            if query_tokenizer.get(entry) != document_tokenizer.get(entry):
                raise CheckpointError(
                    f"{module}: queries have another tokenizer than documents, which is not supported"
                )
    table = read_json(module / "config.json").get("path")
    if table is None:
        return str(Path(module_path) / TABLE)
    if not isinstance(table, str) or Path(table).is_absolute() or ".." in Path(table).parts:
        raise CheckpointError(
            f"{module}/config.json: path must name a file of the model, got {table!r}"
        )
    # The path is relative to the model's folder or to the module's.
    if (folder / table).is_file():
        return table
    return str(Path(module_path) / table)


def _read_dense(folder: Path) -> DenseModule:
    path = folder / "config.json"
    config = read_json(path)
    class_path = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    activation = class_path.rpartition(".")[2]
    if activation not in ACTIVATIONS or not class_path.startswith("torch.nn."):
        raise CheckpointError(
            f"{path}: a Dense module with {class_path} is not supported; expected {', '.join(ACTIVATIONS)}"
        )
    input_name = config.get("module_input_name", "sentence_embedding")
    of_sentence = input_name == "sentence_embedding" and config.get("module_output_name") in (
        None,
        "sentence_embedding",
    )
    if not of_sentence or config.get("use_residual"):
        raise CheckpointError(
            f"{path}: a Dense module of token embeddings or with a residual is not supported"
        )
    return DenseModule(folder, activation)


def _splade_settings(path: Path, options: Mapping[str, Any]) -> dict[str, object]:
    """The settings of a SpladePooling module."""
    max_terms = options.get("max_active_dims")
    # isinstance would accept true, since bool is a subclass of int.
    if max_terms is not None and (type(max_terms) is not int or max_terms < 1):
        raise CheckpointError(
            f"{path.parents[1]}: max_active_dims must be a positive number, got {max_terms!r}"
        )
    config = read_json(path)
    activation = config.get("activation_function", "relu")
    strategy = config.get("pooling_strategy", "max")
    if activation not in _SPLADE_ACTIVATIONS or strategy not in OT_POOLINGS:
        raise CheckpointError(
            f"{path}: SpladePooling with activation {activation} and strategy {strategy} is not supported; expected "
            f"{' or '.join(_SPLADE_ACTIVATIONS)}, and {' or '.join(OT_POOLINGS)}"
        )
    return {
        "sparse_encoder": True,
        "activation": _SPLADE_ACTIVATIONS[activation],
        "ot_pooling": strategy,
        "query_top_k": max_terms,
    }


def _read_pooling(path: Path) -> str:
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file, so the pooling is unknown")
    config = read_json(path)
    if config.get("include_prompt") is False:
        raise CheckpointError(
            f"{path}: pooling without the tokens of the prompt (include_prompt) is not supported"
        )
    names = config.get("pooling_mode")
    if names is None:
        # The older form is a flag for each mode; with several, their vectors are concatenated.
        names = []
        for key, enabled in config.items():
            if key.startswith(_MODE_FLAG_PREFIX) and enabled:
                names.append(key.removeprefix(_MODE_FLAG_PREFIX))
        names = names or ["mean"]
    elif isinstance(names, str):
        names = [names]
    modes = [_MODES.get(name, name) for name in names]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        choices = f"{', '.join(POOLINGS[:-1])} or {POOLINGS[-1]}"
        raise CheckpointError(
            f"{path}: pooling {' and '.join(map(str, modes))} is not supported; use {choices}"
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
