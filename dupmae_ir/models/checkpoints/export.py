"""Model folders as sentence-transformers reads them: its own modules only, no code of ours, equal vectors.

Dense ([CLS] part): Transformer, Pooling(cls), Dense for W_cls if there is one, Normalize if the model was trained so.

Sparse (OT part): MLMTransformer, WordWeights, pooling. sentence-transformers lets every token speak and every
vocabulary entry be heard; three things bring it to DupMAE Eq. 6-7:

* WordWeights multiplies the logits of [CLS] and [SEP] by 0, so that they say nothing;
* the head's bias is -10,000 at special and unused ids, so that they are never heard;
* ``log1p`` is SpladePooling. ``relu`` is Pooling(max): the maximum runs over the zeros of [CLS] too, and
  max(0, logits) is the ReLU.

A model with two encoders becomes a Router, which ``encode_query`` and ``encode_document`` find their way through.
The files are written here, so exporting needs no sentence-transformers; opening one needs 5.0 or later.
"""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dupmae_ir.errors import UsageError
from dupmae_ir.io.publishing import move_into_place, write_json
from dupmae_ir.models.checkpoints.folder import ModelConfig, load_model, silent_ids
from dupmae_ir.models.checkpoints.released import SIDES

if TYPE_CHECKING:
    from dupmae_ir.models.retriever import Retriever

UNHEARD = -1e4  #: far below any logit, and still a float16
PARTS = ("cls", "ot")
_KIND = {"cls": "SentenceTransformer", "ot": "SparseEncoder"}
# The names of version 5, which later versions still understand.
_TYPES = {
    "MLMTransformer": "sentence_transformers.sparse_encoder.models.MLMTransformer",
    "SpladePooling": "sentence_transformers.sparse_encoder.models.SpladePooling",
}

Module = tuple[str, Callable[[Path], None]]
"""(class name, what writes its folder)."""


def export_sentence_transformers(
    model: str | Path, output: str | Path, part: str = "cls", overwrite: bool = False
) -> dict[str, Any]:
    """Write the ``cls`` or the ``ot`` part of a model folder for sentence-transformers; returns what was written.

    The folder appears whole or not at all, in float32. Raises :class:`CheckpointError` for a model that does not load
    or lacks the part, :class:`UsageError` for one that cannot be expressed or an ``output`` that is in the way.
    """
    if part not in PARTS:
        raise UsageError(f"part must be one of {', '.join(PARTS)}, got {part!r}")
    output = Path(output)
    check_output(output, overwrite)
    retriever, tokenizer, config = load_model(model, need_ot=part == "ot")
    # One segment is all a retriever reads, and DistilBERT refuses to be told which.
    tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = ["input_ids", "attention_mask"]
    sides = {side: _modules(retriever.side(side), tokenizer, config, part, side) for side in SIDES}
    aside = output.with_name(f".{output.name}.writing")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    tied = retriever.side("query") is retriever.side("document")
    names = _write_chain(aside, sides["document"]) if tied else _write_router(aside, sides)
    settings: dict[str, Any] = {"model_type": _KIND[part], "prompts": {}, "default_prompt_name": None}
    settings["similarity_fn_name"] = "dot"
    if part == "ot":
        settings["max_active_dims"] = config.top_k
    write_json(aside / "config_sentence_transformers.json", settings)
    (aside / "README.md").write_text(_card(part, config, tied), encoding="utf-8")
    for path in aside.rglob("*"):
        if path.is_file():
            path.chmod(0o644)
    move_into_place(aside, output)
    return {"output": str(output), "kind": _KIND[part], "modules": names, "routed": not tied}


def check_output(output: Path, overwrite: bool) -> None:
    """Refuse to replace anything but an older export, and that only when told to."""
    if not output.exists():
        return
    if not (output / "modules.json").is_file():
        raise UsageError(f"{output}: exists and is no sentence-transformers folder; name another --output")
    if not overwrite:
        raise UsageError(f"{output}: exists already; add --overwrite to replace it")


def _modules(model: Retriever, tokenizer: Any, config: ModelConfig, part: str, side: str) -> list[Module]:
    longest = int(getattr(model.lm.config, "max_position_embeddings", 512))
    length = min(config.query_length if side == "query" else config.document_length, longest)
    return _dense(model, tokenizer, length) if part == "cls" else _sparse(model, tokenizer, config, length)


def _dense(model: Retriever, tokenizer: Any, length: int) -> list[Module]:
    from dupmae_ir.models.masked_lm import encoder_of

    width = int(model.lm.config.hidden_size)
    modules = [
        ("Transformer", _transformer(encoder_of(model.lm), tokenizer, length)),
        (
            "Pooling",
            _settings(
                {"word_embedding_dimension": width, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
            ),
        ),
    ]
    if model.projection is not None:
        layer = model.projection
        settings = {
            "in_features": width,
            "out_features": layer.out_features,
            "bias": layer.bias is not None,
            "activation_function": "torch.nn.modules.linear.Identity",
        }
        state = {f"linear.{name}": value for name, value in layer.state_dict().items()}
        modules.append(("Dense", _settings(settings, state)))
    if model.normalize:
        modules.append(("Normalize", lambda folder: folder.mkdir()))
    return modules


def _sparse(model: Retriever, tokenizer: Any, config: ModelConfig, length: int) -> list[Module]:
    import torch

    from dupmae_ir.models.inference.encoder import vocabulary

    silent, quiet = silent_ids(tokenizer, config.include_sep, config.include_cls)
    if config.activation != "log1p" and not {tokenizer.cls_token_id, tokenizer.sep_token_id} & set(quiet):
        raise UsageError(
            f"activation {config.activation!r} with include_cls and include_sep has no counterpart in "
            "sentence-transformers; log1p has"
        )
    width = int(model.lm.config.vocab_size)
    terms = vocabulary(tokenizer, width)
    weights = torch.ones(width, 1)
    weights[quiet] = 0.0
    mute = {"vocab": terms, "word_weights": {terms[i]: 0.0 for i in quiet}, "unknown_word_weight": 1.0}
    pooling: Module = (
        "Pooling",
        _settings(
            {"word_embedding_dimension": width, "pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": False}
        ),
    )
    if config.activation == "log1p":
        pooling = (
            "SpladePooling",
            _settings({"pooling_strategy": "max", "activation_function": "relu", "word_embedding_dimension": width}),
        )
    return [
        ("MLMTransformer", _transformer(_unheard(model.lm, silent), tokenizer, length)),
        ("WordWeights", _settings(mute, {"emb_layer.weight": weights})),
        pooling,
    ]


def _unheard(lm: Any, silent: list[int]) -> Any:
    """``lm`` with a head whose ``silent`` words are out of reach; the caller's stays as it is."""
    import copy

    import torch

    from dupmae_ir.models.masked_lm import head_of

    lm = copy.deepcopy(lm)
    bias = head_of(lm).bias
    assert bias is not None  # every family that head_of knows has one
    with torch.no_grad():
        bias[silent] = UNHEARD
    return lm


def _transformer(model: Any, tokenizer: Any, length: int) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        from dupmae_ir.models.checkpoints.folder import quiet_transformers

        folder.mkdir(exist_ok=True)
        with quiet_transformers():
            model.save_pretrained(folder, safe_serialization=True)
            tokenizer.save_pretrained(folder)
        settings: dict[str, Any] = {"max_seq_length": length, "do_lower_case": False}
        if "add_pooling_layer" in inspect.signature(type(model)).parameters:
            # Else transformers reports at every loading that it has made up a pooler, which nothing uses.
            settings["model_args"] = {"add_pooling_layer": False}
        write_json(folder / "sentence_bert_config.json", settings)

    return write


def _settings(settings: dict[str, Any], state: dict[str, Any] | None = None) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        from safetensors.torch import save_file

        folder.mkdir()
        write_json(folder / "config.json", settings)
        if state is not None:
            tensors = {name: value.detach().contiguous() for name, value in state.items()}
            save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return write


def _write_chain(folder: Path, modules: list[Module]) -> list[str]:
    """The modules in order, the first in the folder itself, and modules.json."""
    listed = []
    for i, (name, write) in enumerate(modules):
        place = f"{i}_{name}" if i else ""
        write(folder / place)
        listed.append({"idx": i, "name": str(i), "path": place, "type": _type(name)})
    write_json(folder / "modules.json", listed)
    return [name for name, _ in modules]


def _write_router(folder: Path, sides: dict[str, list[Module]]) -> list[str]:
    """One module that holds a chain for each side."""
    types, structure = {}, {}
    for side, modules in sides.items():
        structure[side] = [f"{side}_{i}_{name}" for i, (name, _) in enumerate(modules)]
        for place, (name, write) in zip(structure[side], modules, strict=True):
            write(folder / place)
            types[place] = _type(name)
    parameters = {"default_route": "document", "allow_empty_key": True}
    write_json(folder / "router_config.json", {"types": types, "structure": structure, "parameters": parameters})
    write_json(folder / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": _type("Router")}])
    return [name for name, _ in sides["document"]]


def _type(name: str) -> str:
    return _TYPES.get(name, f"sentence_transformers.models.{name}")


def _card(part: str, config: ModelConfig, tied: bool) -> str:
    kind, query, document = _KIND[part], "", ""
    if part == "ot":
        query, document = ", max_active_dims=1024", f", max_active_dims={config.top_k}"
    said = [f"Titles go before texts, with {config.title_separator!r} between."]
    if part == "ot":
        said.append(f"Documents keep their {config.top_k} strongest terms; queries are not cut to as few.")
    if tied and config.query_length < config.document_length:
        said.append(
            f"Texts are cut at {config.document_length} word pieces; dupmae_ir cuts queries at {config.query_length}: "
            f"for long ones set model.max_seq_length = {config.query_length} before encode_query."
        )
    return f"""---
library_name: sentence-transformers
pipeline_tag: feature-extraction
---

The {"dense ([CLS])" if part == "cls" else "sparse (OT)"} part of a dupmae_ir model, for dot products.

```python
from sentence_transformers import {kind}

model = {kind}(FOLDER)
q = model.encode_query(queries{query})
d = model.encode_document(texts{document})
scores = model.similarity(q, d)
```

{chr(10).join(said)}
"""
