"""Two textual experts on one attention (CoT-MoTE section 3.1): Q-FFN for queries, P-FFN for passages.

Both encoders are ordinary Hugging Face models that hold the same embedding, attention and head modules; only the
feed-forward part of every block is each one's own. What is trained through one is trained in the other, and each can
be saved as a plain BERT that any tool opens.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from dupmae_ir.errors import CheckpointError
from dupmae_ir.models.checkpoints.layout import UNTIED
from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.checkpoints.model_config import ModelConfig
from dupmae_ir.models.checkpoints.saving import save_model
from dupmae_ir.models.masked_lm import encoder_of
from dupmae_ir.models.retriever import Retriever, UntiedRetriever
from dupmae_ir.models.special_tokens import excluded_ids

TextType = Literal["query", "passage"]
FOLDERS: dict[TextType, str] = {"query": UNTIED["query"], "passage": UNTIED["document"]}

# The feed-forward part of a block, by family: its modules, and the LayerNorm that ends it.
_FEED_FORWARD = {
    "BertLayer": ("intermediate", "output"),
    "RobertaLayer": ("intermediate", "output"),
    "TransformerBlock": ("ffn", "output_layer_norm"),
}
_NORM = {"BertLayer": "output.LayerNorm", "RobertaLayer": "output.LayerNorm", "TransformerBlock": "output_layer_norm"}


class Experts(nn.Module):
    """``passage`` and ``query``: two masked language models that share everything but the feed-forward experts."""

    def __init__(self, passage: nn.Module, query: nn.Module) -> None:
        super().__init__()
        self.passage, self.query = passage, query

    def of(self, text_type: TextType) -> nn.Module:
        """The model that reads texts of a declared type; there is no default and nothing is guessed."""
        if text_type not in get_args(TextType):
            raise ValueError(f"text type {text_type!r} is not known; declare {' or '.join(get_args(TextType))}")
        return self.query if text_type == "query" else self.passage

    def encode(self, ids: Tensor, mask: Tensor, text_type: TextType) -> Tensor:
        """(B, L) ids and mask -> (B, L, d) last hidden states, Eq. 7 and 8 or 9 in every block."""
        return encoder_of(self.of(text_type))(input_ids=ids, attention_mask=mask).last_hidden_state


def siamese(lm: Any) -> Experts:
    """One encoder for both kinds of text: the first row of CoT-MoTE's Table 3."""
    return Experts(lm, lm)


def separate(lm: Any) -> Experts:
    """Two whole encoders that start from the same weights and share nothing: the second row of Table 3."""
    return Experts(lm, copy.deepcopy(lm))


def with_experts(lm: Any, shared_norm: bool = False) -> Experts:
    """Split ``lm`` into two experts; both start from its own feed-forward weights. ``lm`` becomes the passage side.

    ``shared_norm``: Eq. 8 and 9 do not say whether LN is one or two; one if True.
    """
    query = _twin(lm)
    path = _path_to_blocks(lm)
    owner = query
    for name in path:
        owner._modules[name] = _twin(owner._modules[name])
        owner = owner._modules[name]
    for number, block in list(owner._modules.items()):
        owner._modules[number] = _expert(block, shared_norm)
    return Experts(lm, query)


def _twin(module: Any) -> Any:
    """Another module object that holds the very same parts."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    return twin


def _path_to_blocks(lm: Any) -> list[str]:
    """Names from the model down to its list of blocks."""
    for name, module in lm.named_modules():
        if isinstance(module, nn.ModuleList) and type(module[0]).__name__ in _FEED_FORWARD:
            return name.split(".")
    raise CheckpointError(f"{type(lm).__name__}: experts need BERT, RoBERTa or DistilBERT blocks")


def _expert(block: Any, shared_norm: bool) -> Any:
    expert = _twin(block)
    kind = type(block).__name__
    for name in _FEED_FORWARD[kind]:
        expert._modules[name] = copy.deepcopy(block._modules[name])
    if shared_norm:
        *owner, last = _NORM[kind].split(".")
        expert.get_submodule(".".join(owner))._modules[last] = block.get_submodule(_NORM[kind])
    return expert


def save_experts(folder: str | Path, experts: Experts, tokenizer: Any, config: ModelConfig) -> Path:
    """``query_model/`` and ``passage_model/``, each a plain model folder, whole or not at all."""
    excluded = excluded_ids(tokenizer, config.include_sep, config.include_cls)
    query, passage = (Retriever(experts.of(t), None, *excluded, config.activation) for t in get_args(TextType))
    config = replace(config, method="cot-mote")
    return save_model(folder, UntiedRetriever(query, passage), tokenizer, config)


def load_experts(folder: str | Path, shared_norm: bool = False) -> tuple[Experts, Any, ModelConfig]:
    """(Experts that share their modules again, tokenizer, config) of what :func:`save_experts` wrote.

    Raises :class:`CheckpointError` where the two sides differ in more than their feed-forward parts.
    """
    model, tokenizer, config = load_model(folder)
    if not isinstance(model, UntiedRetriever):
        raise CheckpointError(f"{folder}: holds one encoder; experts are two, in {' and '.join(FOLDERS.values())}")
    return join_experts(model.document.lm, model.query.lm, str(folder), shared_norm), tokenizer, config


def join_experts(passage: Any, query: Any, name: str, shared_norm: bool = False) -> Experts:
    """Two masked LMs that differ in their feed-forward parts alone, sharing the rest from now on; ``name`` is said in
    the :class:`CheckpointError` where they differ elsewhere."""
    experts = with_experts(passage, shared_norm)
    own = set(_own_names(experts))
    kept, given = experts.query.state_dict(), query.state_dict()
    # A weight that only one of them has is a difference too: a layer more, another family.
    for key in {**kept, **given}:
        if not _fits(kept.get(key), given.get(key), key in own):
            raise CheckpointError(
                f"{name}: {key} differs between {FOLDERS['query']} and {FOLDERS['passage']}; experts share all "
                "but their feed-forward parts; use the two as an untied model instead"
            )
    for key in own:
        kept[key].copy_(given[key])
    return experts


def _fits(kept: Tensor | None, given: Tensor | None, own: bool) -> bool:
    if kept is None or given is None or kept.shape != given.shape:
        return False
    return own or torch.equal(kept, given)


def _own_names(experts: Experts) -> Iterator[str]:
    """State names of the query side that are not the passage side's own tensors."""
    shared = {id(v) for v in (*experts.passage.parameters(), *experts.passage.buffers())}
    named = (*experts.query.named_parameters(), *experts.query.named_buffers())
    return (name for name, value in named if id(value) not in shared)
