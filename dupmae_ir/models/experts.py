"""Two textual experts with shared attention (CoT-MoTE section 3.1): Q-FFN for queries and P-FFN for passages.

Both encoders are ordinary Hugging Face models that contain the same embedding, attention and head modules. Only the
feed-forward part of each block is separate. Training one encoder therefore trains the shared part of the other, and
each can be saved as a plain BERT that any tool opens.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from dupmae_ir.errors import CheckpointError
from dupmae_ir.models.checkpoints.layout import UNTIED
from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.checkpoints.model_config import ModelConfig
from dupmae_ir.models.checkpoints.saving import save_model
from dupmae_ir.models.heads.masked_lm import encoder_of, excluded_ids
from dupmae_ir.models.retriever import Retriever, UntiedRetriever

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

TextType = Literal["query", "passage"]
FOLDERS: dict[TextType, str] = {"query": UNTIED["query"], "passage": UNTIED["document"]}

M = TypeVar("M", bound=nn.Module)

# The modules of a block's feed-forward part, and the path of its LayerNorm (the last of the block; ModernBERT's comes
# first), by class of block.
_BERT_LAYERS = ("BertLayer", "RobertaLayer", "XLMRobertaLayer", "CamembertLayer", "MPNetLayer")
_FEED_FORWARD = {
    **dict.fromkeys(_BERT_LAYERS, ("intermediate", "output")),
    "TransformerBlock": ("ffn", "output_layer_norm"),
    "ModernBertEncoderLayer": ("mlp_norm", "mlp"),
}
_NORM = {
    **dict.fromkeys(_BERT_LAYERS, "output.LayerNorm"),
    "TransformerBlock": "output_layer_norm",
    "ModernBertEncoderLayer": "mlp_norm",
}


class Experts(nn.Module):
    """Two masked language models, ``passage`` and ``query``, that share everything but their feed-forward parts."""

    def __init__(self, passage: PreTrainedModel, query: PreTrainedModel) -> None:
        super().__init__()
        self.passage = passage
        self.query = query

    def of(self, text_type: TextType) -> PreTrainedModel:
        """The model for texts of this type. There is no default; raises :class:`ValueError` for any other name."""
        if text_type not in get_args(TextType):
            raise ValueError(
                f"text type {text_type!r} is not known; declare {' or '.join(get_args(TextType))}"
            )
        return self.query if text_type == "query" else self.passage

    def encode(self, ids: Tensor, mask: Tensor, text_type: TextType) -> Tensor:
        """Last hidden states: (B, L) ids and attention mask -> (B, L, d); Eq. 7 and Eq. 8 or 9 in each block."""
        return encoder_of(self.of(text_type))(input_ids=ids, attention_mask=mask).last_hidden_state


def siamese(lm: PreTrainedModel) -> Experts:
    """One encoder for both text types (first row of CoT-MoTE's Table 3)."""
    return Experts(lm, lm)


def separate(lm: PreTrainedModel) -> Experts:
    """Two complete encoders with the same initial weights that share nothing (second row of Table 3)."""
    return Experts(lm, copy.deepcopy(lm))


def with_experts(lm: PreTrainedModel, shared_norm: bool = False) -> Experts:
    """Split ``lm`` into two experts that start from its feed-forward weights. ``lm`` itself becomes the passage side.

    ``shared_norm``: use one LayerNorm for both experts. Eq. 8 and 9 leave open whether LN is shared.
    """
    query = _shallow_copy(lm)
    # Copy the containers that lead to the blocks too: lm contains the same objects, which must keep its blocks.
    blocks: nn.Module = query
    for name in _path_to_blocks(lm):
        container = _shallow_copy(blocks.get_submodule(name))
        blocks._modules[name] = container
        blocks = container
    for number in list(blocks._modules):
        block = blocks.get_submodule(number)
        block_type = type(block).__name__
        expert = _shallow_copy(block)
        for name in _FEED_FORWARD[block_type]:
            expert._modules[name] = copy.deepcopy(block._modules[name])
        if shared_norm:
            *path, last = _NORM[block_type].split(".")
            norm_owner = expert.get_submodule(".".join(path))
            norm_owner._modules[last] = block.get_submodule(_NORM[block_type])
        blocks._modules[number] = expert
    return Experts(lm, query)


def _shallow_copy(module: M) -> M:
    """A new module object that contains the same submodules."""
    twin = copy.copy(module)
    # copy.copy shares the dictionary of submodules with the original.
    twin._modules = dict(module._modules)
    return twin


def _path_to_blocks(lm: PreTrainedModel) -> list[str]:
    """Attribute names that lead from the model to its list of blocks."""
    for name, module in lm.named_modules():
        if isinstance(module, nn.ModuleList) and type(module[0]).__name__ in _FEED_FORWARD:
            return name.split(".")
    raise CheckpointError(
        f"{type(lm).__name__}: experts need the layers of a BERT, RoBERTa, MPNet, "
        "DistilBERT or ModernBERT"
    )


def save_experts(
    folder: str | Path, experts: Experts, tokenizer: PreTrainedTokenizerBase, config: ModelConfig
) -> Path:
    """Write ``query_model/`` and ``passage_model/``, each a plain model folder, atomically. Returns the folder."""
    excluded = excluded_ids(tokenizer, config.include_sep, config.include_cls)
    query = Retriever(experts.query, None, *excluded, config.activation)
    passage = Retriever(experts.passage, None, *excluded, config.activation)
    config = replace(config, method="cot-mote")
    return save_model(folder, UntiedRetriever(query, passage), tokenizer, config)


def load_experts(
    folder: str | Path, shared_norm: bool = False
) -> tuple[Experts, PreTrainedTokenizerBase, ModelConfig]:
    """(experts with shared modules, tokenizer, config) of a folder that :func:`save_experts` wrote.

    Raises :class:`CheckpointError` if the two sides differ in more than their feed-forward parts.
    """
    model, tokenizer, config = load_model(folder)
    if not isinstance(model, UntiedRetriever):
        raise CheckpointError(
            f"{folder}: contains one encoder; experts are two, in {' and '.join(FOLDERS.values())}"
        )
    experts = join_experts(model.document.lm, model.query.lm, str(folder), shared_norm)
    return experts, tokenizer, config


def join_experts(
    passage: PreTrainedModel, query: PreTrainedModel, name: str, shared_norm: bool = False
) -> Experts:
    """Experts from two masked LMs that differ only in their feed-forward parts; the rest is shared from now on.

    Raises :class:`CheckpointError`, which starts with ``name``, if they differ elsewhere.
    """
    experts = with_experts(passage, shared_norm)
    passage_tensors = {id(value) for value in _tensors(experts.passage).values()}
    query_only = {
        key for key, value in _tensors(experts.query).items() if id(value) not in passage_tensors
    }
    # So far, the query expert has the passage's weights.
    passage_state = experts.query.state_dict()
    query_state = query.state_dict()
    for key in {**passage_state, **query_state}:
        if not _may_join(passage_state.get(key), query_state.get(key), key in query_only):
            raise CheckpointError(
                f"{name}: {key} differs between {FOLDERS['query']} and {FOLDERS['passage']}, but experts may differ "
                "only in their feed-forward parts; use the two as an untied model instead"
            )
    for key in query_only:
        passage_state[key].copy_(query_state[key])
    return experts


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of a module, by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _may_join(passage: Tensor | None, query: Tensor | None, may_differ: bool) -> bool:
    """Whether a weight of the query encoder fits into experts whose shared weights are the passage's."""
    if passage is None or query is None or passage.shape != query.shape:
        # A weight that only one of them has (an extra layer, another family) is a difference too.
        return False
    return may_differ or torch.equal(passage, query)
