"""The parts of a masked language model: embeddings, encoder, head transform, head projection.

Hugging Face models name them differently for each family; this module is the only one that depends on these names.
Supported are BERT, DistilBERT, RoBERTa (also XLM-R and CamemBERT), MPNet and ModernBERT. RetroMAE, MASTER, CoT-MAE and
SPLADE checkpoints are BERT or DistilBERT. ModernBERT has rotary positions instead of position embeddings, and so have
the decoders of its pre-training (:class:`Shape`). Decoders (Qwen3, Gemma3) have a dense part only; whether attention is
causal is in their ``config.json``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from dupmae_ir.errors import CheckpointError, HeadMissing
from dupmae_ir.models.checkpoints.model_config import first_position

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Head:
    """The masked-LM head: logits = transform(h) @ weight.T + bias, h (…, d), weight (V, d), bias (V,).

    ``dense`` and ``norm``: the linear layer at the beginning of the transform, and the LayerNorm at its end.
    """

    transform: Callable[[Tensor], Tensor]
    weight: Tensor
    bias: Tensor | None
    dense: nn.Linear | None = None
    norm: nn.Module | None = None

    def spread(self) -> float:
        """Standard deviation of a token's logits for an uncorrelated state, from the weights alone."""
        norm: Any = self.norm
        # After the LayerNorm, a state has unit variance times the gain in each dimension.
        gain = 1.0 if norm is None else norm.weight.detach()
        return float((self.weight.detach() * gain).square().sum(1).mean().sqrt())

    @torch.no_grad()
    def divide(self, factor: float) -> None:
        """Divide all logits by ``factor``, in place; the word embeddings, which may be shared, stay."""
        norm: Any = self.norm
        for parameter in (norm.weight, norm.bias, self.bias):
            if parameter is not None:
                parameter.div_(factor)


class _MaskedLMParts(NamedTuple):
    encoder: nn.Module
    head: Head | None


def encoder_of(model: nn.Module) -> nn.Module:
    """The encoder of a masked LM, or the model itself if it is a bare encoder."""
    return _parts(model).encoder


def head_of(model: nn.Module) -> Head:
    """The masked-LM head of ``model``. Raises :class:`HeadMissing` for a bare encoder."""
    head = _parts(model).head
    if head is None:
        raise HeadMissing(f"{type(model).__name__} has no masked-LM head, which the OT part needs")
    return head


def has_head(model: nn.Module) -> bool:
    """Whether ``model`` is a masked LM of a supported family."""
    try:
        return _parts(model).head is not None
    except CheckpointError:
        return False


def is_decoder(model: nn.Module) -> bool:
    """Whether ``model`` is a bare decoder (Qwen3, Gemma3)."""
    return hasattr(model, "embed_tokens")


def embed(model: nn.Module, ids: Tensor | None = None, vectors: Tensor | None = None) -> Tensor:
    """(B, L, d) input embeddings of (B, L) ids or (B, L, d) word vectors: + position + type, LayerNorm, dropout."""
    embeddings: Any = encoder_of(model).embeddings
    if vectors is None:
        return embeddings(ids)
    if hasattr(model, "distilbert"):
        # The name of DistilBERT's keyword differs between versions of transformers, its position does not.
        return embeddings(None, vectors)
    return embeddings(inputs_embeds=vectors)


def position_rows(model: nn.Module, length: int) -> Tensor:
    """(length, d) position embeddings of the first ``length`` positions; zeros for a model with rotary positions."""
    first = _first_position(model)
    embeddings: Any = encoder_of(model).embeddings
    if not hasattr(embeddings, "position_embeddings"):
        return torch.zeros_like(embeddings.tok_embeddings.weight[:1]).expand(length, -1)
    return embeddings.position_embeddings.weight[first : first + length]


def max_input_length(model: nn.Module) -> int:
    """Maximum number of tokens of a text, special tokens included."""
    config: Any = model.config
    return int(getattr(config, "max_position_embeddings", 512)) - _first_position(model)


def _first_position(model: nn.Module) -> int:
    config: Any = model.config
    return first_position(config.model_type, config.pad_token_id)


@dataclass(frozen=True)
class Shape:
    """Sizes that a decoder block inherits from its encoder, under names common to all families."""

    width: int
    heads: int
    inner: int
    dropout: float
    attention_dropout: float
    epsilon: float
    initial_std: float
    rotary_base: float | None = None
    """Base of the rotary positions in layers with full attention; None for a model with position embeddings."""


def shape_of(config: PretrainedConfig) -> Shape:
    """The :class:`Shape` of a BERT, RoBERTa, MPNet, DistilBERT or ModernBERT configuration."""
    if hasattr(config, "hidden_dim"):
        # DistilBERT, whose code has a fixed epsilon.
        return Shape(
            width=config.dim,
            heads=config.n_heads,
            inner=config.hidden_dim,
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
            epsilon=1e-12,
            initial_std=config.initializer_range,
        )
    if config.model_type == "modernbert":
        return Shape(
            width=config.hidden_size,
            heads=config.num_attention_heads,
            inner=config.intermediate_size,
            dropout=config.mlp_dropout,
            attention_dropout=config.attention_dropout,
            epsilon=config.norm_eps,
            initial_std=config.initializer_range,
            rotary_base=_rotary_base(config),
        )
    return Shape(
        width=config.hidden_size,
        heads=config.num_attention_heads,
        inner=config.intermediate_size,
        dropout=config.hidden_dropout_prob,
        attention_dropout=config.attention_probs_dropout_prob,
        epsilon=config.layer_norm_eps,
        initial_std=config.initializer_range,
    )


def _rotary_base(config: Any) -> float:
    """The base of ModernBERT's rotary positions in layers that attend to the whole text."""
    # transformers 5 has the parameters of each kind of layer in a dictionary.
    parameters = getattr(config, "rope_parameters", None)
    if parameters:
        return float(parameters["full_attention"]["rope_theta"])
    return float(config.global_rope_theta)


def _parts(module: nn.Module) -> _MaskedLMParts:
    """The encoder and the head of a model. Raises :class:`CheckpointError` for an unsupported family."""
    model: Any = module  # attributes of each family
    # BERT
    if hasattr(model, "bert") and hasattr(model, "cls"):
        predictions = model.cls.predictions
        transform = predictions.transform
        decoder = predictions.decoder
        head = Head(transform, decoder.weight, decoder.bias, transform.dense, transform.LayerNorm)
        return _MaskedLMParts(model.bert, head)
    # DistilBERT
    if hasattr(model, "distilbert") and hasattr(model, "vocab_projector"):
        return _MaskedLMParts(model.distilbert, _distilbert_head(model))
    for name in ("roberta", "mpnet"):
        if hasattr(model, name) and hasattr(model, "lm_head"):
            return _MaskedLMParts(getattr(model, name), _roberta_head(model.lm_head))
    # ModernBERT
    if hasattr(model, "model") and hasattr(model, "head") and hasattr(model, "decoder"):
        decoder = model.decoder
        head = Head(model.head, decoder.weight, decoder.bias, model.head.dense, model.head.norm)
        return _MaskedLMParts(model.model, head)
    # Bare encoders and decoders
    if hasattr(model, "embeddings") or hasattr(model, "transformer") or is_decoder(model):
        return _MaskedLMParts(model, None)
    raise CheckpointError(
        f"{type(model).__name__} is not a BERT, DistilBERT, RoBERTa, MPNet or ModernBERT model, nor a decoder such "
        "as Qwen3 or Gemma3; use a checkpoint of one of these families"
    )


def _distilbert_head(model: Any) -> Head:
    def transform(x: Tensor) -> Tensor:
        return model.vocab_layer_norm(model.activation(model.vocab_transform(x)))

    projector = model.vocab_projector
    return Head(
        transform, projector.weight, projector.bias, model.vocab_transform, model.vocab_layer_norm
    )


def _roberta_head(head: Any) -> Head:
    def transform(x: Tensor) -> Tensor:
        return head.layer_norm(nn.functional.gelu(head.dense(x)))

    return Head(transform, head.decoder.weight, head.decoder.bias, head.dense, head.layer_norm)


class ExcludedIds(NamedTuple):
    """Sorted vocabulary ids."""

    terms: list[int]  #: ids that never have an OT weight
    tokens: list[int]  #: ids of the tokens that are left out of pooling


def excluded_ids(
    tokenizer: PreTrainedTokenizerBase, include_sep: bool = False, include_cls: bool = False
) -> ExcludedIds:
    """The ids excluded from the OT part of a model with this tokenizer.

    Excluded as terms are the special tokens and, in BERT vocabularies, ``[unusedN]``. Excluded from pooling are the
    special tokens except [UNK] and [MASK] (a masked word is an ordinary token); ``include_sep`` and ``include_cls``
    pool [SEP] and [CLS] as well.
    """
    special = set(tokenizer.all_special_ids)
    unused = {id_ for token, id_ in tokenizer.get_vocab().items() if token.startswith("[unused")}
    pooled = {tokenizer.mask_token_id, tokenizer.unk_token_id}
    if include_sep:
        pooled.add(tokenizer.sep_token_id)
    if include_cls:
        pooled.add(tokenizer.cls_token_id)
    return ExcludedIds(terms=sorted(special | unused), tokens=sorted(special - pooled))


def unweighted_ids(tokenizer: PreTrainedTokenizerBase) -> ExcludedIds:
    """The ids without a token weight, as FlagEmbedding leaves them out: start, end, padding and unknown token."""
    names = ("cls_token_id", "sep_token_id", "eos_token_id", "pad_token_id", "unk_token_id")
    ids: set[int] = set()
    for name in names:
        id_ = getattr(tokenizer, name, None)
        if id_ is not None:
            ids.add(id_)
    return ExcludedIds(terms=sorted(ids), tokens=sorted(ids))
