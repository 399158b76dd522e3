"""Converting a model to sentence-transformers' format, with its own modules only and equal vectors.

Dense ([CLS] part): Transformer, Pooling(cls), Dense for W_cls if there is one, Normalize if the model uses it.

Sparse (OT part): MLMTransformer, WordWeights, pooling. sentence-transformers pools every token and keeps every
vocabulary entry; three settings make it equal to DupMAE Eq. 6-7:

* WordWeights multiplies the logits of the tokens left out of pooling ([CLS] and [SEP]) by 0;
* the head's bias is -10,000 at excluded terms (special and unused ids), which removes them after the ReLU;
* ``log1p`` is SpladePooling. ``relu`` is Pooling(max): the maximum includes the zeros of [CLS], and max(0, logits) is
  the ReLU.

A model with two encoders becomes a Router, used by ``encode_query`` and ``encode_document``. Writing these files does
not require sentence-transformers; opening them requires version 5.0 or later.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import torch
from safetensors.torch import save_file
from torch import Tensor

from dupmae_ir.errors import UsageError
from dupmae_ir.io.publishing import write_json
from dupmae_ir.models.checkpoints.layout import SIDES
from dupmae_ir.models.checkpoints.loading import load_model, quiet_transformers
from dupmae_ir.models.checkpoints.model_config import ModelConfig, read_config
from dupmae_ir.models.checkpoints.saving import make_readable, save_tokenizer
from dupmae_ir.models.heads.masked_lm import encoder_of, excluded_ids, head_of
from dupmae_ir.models.inference.term_encoder import vocabulary
from dupmae_ir.models.retriever import Retriever, dense_layers

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

EXCLUDED_BIAS = -1e4
"""Far below any logit, and within the range of float16."""

_MODEL_CLASSES = {"cls": "SentenceTransformer", "ot": "SparseEncoder"}
# The names used by version 5, which later versions still accept.
_CLASS_PATHS = {
    "MLMTransformer": "sentence_transformers.sparse_encoder.models.MLMTransformer",
    "SpladePooling": "sentence_transformers.sparse_encoder.models.SpladePooling",
}

Write = Callable[[Path], None]
"""Writes a module's folder."""


class Module(NamedTuple):
    """A module to be written."""

    kind: str  #: class name
    write: Write


class ExportedModules(TypedDict):
    """What was written for sentence-transformers."""

    kind: str  #: the class that opens it
    modules: list[str]  #: names of the modules
    routed: bool  #: queries and documents have different modules


def write_sentence_transformers(model: str | Path, folder: Path, part: str) -> ExportedModules:
    """Write the ``cls`` or the ``ot`` part of a model folder to the new ``folder``, in float32.

    Raises :class:`CheckpointError` for a model that does not load or lacks the part, and :class:`UsageError` for one
    without an equivalent in sentence-transformers.
    """
    form = "mlm"
    if Path(model).is_dir():
        form = read_config(Path(model)).ot
    if part == "ot" and form != "mlm":
        raise UsageError(
            f"{model}: its OT part is {form}, without an equivalent in sentence-transformers; use `part` cls"
        )
    retriever, tokenizer, config = load_model(model, need_ot=part == "ot", published=True)
    if config.sparse_encoder:
        raise UsageError(
            f"{model}: is a SparseEncoder, which sentence-transformers opens without an export"
        )
    # A retriever reads single segments, and DistilBERT does not accept token type ids.
    input_names = ["input_ids", "attention_mask"]
    tokenizer.model_input_names = input_names
    tokenizer.init_kwargs["model_input_names"] = input_names  # what save_pretrained writes

    lengths = {"query": config.query_length, "document": config.document_length}
    chains: dict[str, list[Module]] = {}
    for side in SIDES:
        encoder = retriever.side(side)
        max_length = int(getattr(encoder.lm.config, "max_position_embeddings", 512))
        length = min(lengths[side], max_length)
        if part == "cls":
            chains[side] = _dense_modules(encoder, tokenizer, length)
        else:
            chains[side] = _sparse_modules(encoder, tokenizer, config, length)

    folder.mkdir(parents=True)
    tied = retriever.side("query") is retriever.side("document")
    if tied:
        names = _write_chain(folder, chains["document"])
    else:
        names = _write_router(folder, chains)

    prompts = {"query": config.query_prompt, "document": config.document_prompt}
    settings: dict[str, object] = {
        "model_type": _MODEL_CLASSES[part],
        "prompts": {side: prompt for side, prompt in prompts.items() if prompt},
        "default_prompt_name": None,
        "similarity_fn_name": "dot",
    }
    if part == "ot":
        settings["max_active_dims"] = config.top_k
    write_json(folder / "config_sentence_transformers.json", settings)
    (folder / "README.md").write_text(_card(part, config, tied), encoding="utf-8")
    make_readable(folder)
    return {"kind": _MODEL_CLASSES[part], "modules": names, "routed": not tied}


def _dense_modules(
    model: Retriever, tokenizer: PreTrainedTokenizerBase, length: int
) -> list[Module]:
    width = int(model.lm.config.hidden_size)
    pooling = {
        "word_embedding_dimension": width,
        "pooling_mode_cls_token": model.pooling == "cls",
        "pooling_mode_mean_tokens": model.pooling == "mean",
        "pooling_mode_weightedmean_tokens": model.pooling == "weighted-mean",
        "pooling_mode_lasttoken": model.pooling == "last",
    }
    modules = [
        Module("Transformer", _transformer_writer(encoder_of(model.lm), tokenizer, length)),
        Module("Pooling", _settings_writer(pooling)),
    ]
    for layer, activation in dense_layers(model.projection):
        settings = {
            "in_features": layer.in_features,
            "out_features": layer.out_features,
            "bias": layer.bias is not None,
            "activation_function": f"{type(activation).__module__}.{type(activation).__name__}",
        }
        state = {f"linear.{name}": value for name, value in layer.state_dict().items()}
        modules.append(Module("Dense", _settings_writer(settings, state)))
    if model.normalize:
        # Normalize has no settings; its folder is empty.
        modules.append(Module("Normalize", lambda folder: folder.mkdir()))
    return modules


def _sparse_modules(
    model: Retriever, tokenizer: PreTrainedTokenizerBase, config: ModelConfig, length: int
) -> list[Module]:
    excluded = excluded_ids(tokenizer, config.include_sep, config.include_cls)
    # Pooling(max) stands for a ReLU only because each text has a token with logits of 0: a [CLS] or [SEP] that is left
    # out of pooling.
    has_zeros = (
        tokenizer.cls_token_id in excluded.tokens or tokenizer.sep_token_id in excluded.tokens
    )
    if config.activation != "log1p" and not has_zeros:
        raise UsageError(
            f"activation {config.activation!r} with include_cls and include_sep has no equivalent in "
            "sentence-transformers; log1p has one"
        )
    if config.ot_head != "mlm":
        raise UsageError(f"ot_head {config.ot_head!r} has no equivalent in sentence-transformers")
    lm = copy.deepcopy(model.lm)
    bias = head_of(lm).bias
    assert bias is not None  # all supported families have one
    with torch.no_grad():
        # Removes these terms: their logits are never positive.
        bias[excluded.terms] = EXCLUDED_BIAS
    width = int(model.lm.config.vocab_size)
    terms = vocabulary(tokenizer, width)
    weights = torch.ones(width, 1)
    weights[excluded.tokens] = 0.0
    word_weights = {
        "vocab": terms,
        "word_weights": {terms[id_]: 0.0 for id_ in excluded.tokens},
        "unknown_word_weight": 1.0,
    }
    if config.activation == "log1p":
        splade_pooling = {
            "pooling_strategy": "max",
            "activation_function": "relu",
            "word_embedding_dimension": width,
        }
        pooling = Module("SpladePooling", _settings_writer(splade_pooling))
    else:
        max_pooling = {
            "word_embedding_dimension": width,
            "pooling_mode_max_tokens": True,
            "pooling_mode_mean_tokens": False,
        }
        pooling = Module("Pooling", _settings_writer(max_pooling))
    return [
        Module("MLMTransformer", _transformer_writer(lm, tokenizer, length)),
        Module("WordWeights", _settings_writer(word_weights, {"emb_layer.weight": weights})),
        pooling,
    ]


def _transformer_writer(model: Any, tokenizer: PreTrainedTokenizerBase, length: int) -> Write:
    def write(folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        with quiet_transformers():
            model.save_pretrained(folder, state_dict=_with_pooler(model), safe_serialization=True)
            save_tokenizer(tokenizer, folder)
        settings = {"max_seq_length": length, "do_lower_case": False}
        write_json(folder / "sentence_bert_config.json", settings)

    return write


def _with_pooler(model: PreTrainedModel) -> dict[str, Tensor]:
    """The weights of ``model``, and zeros for the pooler that transformers adds to some encoders.

    No module reads the pooler's output. Without its weights transformers warns at every loading, and the argument that
    leaves it out (``add_pooling_layer``) is refused by the ONNX backend.
    """
    state = dict(model.state_dict())
    has_pooler = "add_pooling_layer" in inspect.signature(type(model)).parameters
    if has_pooler and "pooler.dense.weight" not in state:
        width = int(model.config.hidden_size)
        state |= {
            "pooler.dense.weight": torch.zeros(width, width),
            "pooler.dense.bias": torch.zeros(width),
        }
    return state


def _settings_writer(
    settings: Mapping[str, object], state: Mapping[str, Tensor] | None = None
) -> Write:
    def write(folder: Path) -> None:
        folder.mkdir()
        write_json(folder / "config.json", settings)
        if state is not None:
            tensors = {name: value.detach().contiguous() for name, value in state.items()}
            save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return write


def _write_chain(folder: Path, modules: list[Module]) -> list[str]:
    """Write the modules in order, the first into the folder itself, and modules.json. Returns their names."""
    entries = []
    for position, module in enumerate(modules):
        path = f"{position}_{module.kind}" if position else ""
        module.write(folder / path)
        entries.append(_module_entry(position, path, module.kind))
    write_json(folder / "modules.json", entries)
    return [module.kind for module in modules]


def _write_router(folder: Path, chains: dict[str, list[Module]]) -> list[str]:
    """Write one Router with a chain of modules for each side. Returns the names of the modules for documents."""
    types: dict[str, str] = {}
    structure: dict[str, list[str]] = {}
    for side, modules in chains.items():
        structure[side] = []
        for position, module in enumerate(modules):
            path = f"{side}_{position}_{module.kind}"
            module.write(folder / path)
            types[path] = _class_path(module.kind)
            structure[side].append(path)
    parameters = {"default_route": "document", "allow_empty_key": True}
    write_json(
        folder / "router_config.json",
        {"types": types, "structure": structure, "parameters": parameters},
    )
    write_json(folder / "modules.json", [_module_entry(0, "", "Router")])
    return [module.kind for module in chains["document"]]


def _module_entry(position: int, path: str, kind: str) -> dict[str, object]:
    """An entry of modules.json."""
    return {"idx": position, "name": str(position), "path": path, "type": _class_path(kind)}


def _class_path(kind: str) -> str:
    return _CLASS_PATHS.get(kind, f"sentence_transformers.models.{kind}")


def _card(part: str, config: ModelConfig, tied: bool) -> str:
    """The folder's README."""
    kind = _MODEL_CLASSES[part]
    part_name = "dense ([CLS])"
    query = ""
    document = ""
    if part == "ot":
        part_name = "sparse (OT)"
        # The folder's setting is the documents'; queries may have as many terms as Lucene accepts.
        query = ", max_active_dims=1024"
        document = f", max_active_dims={config.top_k}"
    notes = [f"Titles are prepended to texts, separated by {config.title_separator!r}."]
    if part == "ot":
        notes.append(
            f"Documents keep their {config.top_k} largest term weights; queries are not truncated."
        )
    if tied and config.query_length < config.document_length:
        notes.append(
            f"Texts are truncated to {config.document_length} word pieces; dupmae_ir truncates queries to "
            f"{config.query_length}. For long queries set model.max_seq_length = {config.query_length} before "
            "encode_query."
        )
    note_lines = "\n".join(notes)
    return f"""---
library_name: sentence-transformers
pipeline_tag: feature-extraction
---

The {part_name} part of a dupmae_ir model, for dot products.

```python
from sentence_transformers import {kind}

model = {kind}(FOLDER)
q = model.encode_query(queries{query})
d = model.encode_document(texts{document})
scores = model.similarity(q, d)
```

{note_lines}
"""
