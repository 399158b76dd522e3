"""The parts of a masked language model: embeddings, encoder, head transform, head projection.

Hugging Face models name them differently for each family; this module is the only one that depends on these names.
Supported are BERT, DistilBERT, RoBERTa (also XLM-R and CamemBERT), MPNet and ModernBERT. RetroMAE, MASTER, CoT-MAE and
SPLADE checkpoints are BERT or DistilBERT. ModernBERT has rotary positions, so the decoders of pre-training, which read
position embeddings, do not fit it; it can be fine-tuned and encoded. Decoders (Qwen3, Gemma3) have a dense part only;
whether attention is causal is in their ``config.json``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from dupmae_ir.errors import CheckpointError, HeadMissing

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase


_POSITIONS_AFTER_PADDING = ("roberta", "xlm-roberta", "camembert", "mpnet")


@dataclass(frozen=True)
class Head:
    """The masked-LM head: logits = transform(h) @ weight.T + bias, h (…, d), weight (V, d), bias (V,).

    ``norm``: the LayerNorm at the end of the transform.
    """

    transform: Callable[[Tensor], Tensor]
    weight: Tensor
    bias: Tensor | None
    norm: nn.Module | None = None

    def spread(self) -> float:
        """Standard deviation of a token's logits for an uncorrelated state, from the weights alone."""
        norm: Any = self.norm
        gain = 1.0 if norm is None else norm.weight.detach()
        return float((self.weight.detach() * gain).square().sum(1).mean().sqrt())

    @torch.no_grad()
    def divide(self, factor: float) -> None:
        """Divide all logits by ``factor``, in place; the word embeddings, which may be shared, stay."""
        norm: Any = self.norm
        for parameter in (norm.weight, norm.bias, self.bias):
            if parameter is not None:
                parameter.div_(factor)


def encoder_of(model: nn.Module) -> nn.Module:
    """The encoder of a masked LM, or the model itself if it is a bare encoder."""
    return _layout(model)[0]


def head_of(model: nn.Module) -> Head:
    """The masked-LM head of ``model``. Raises :class:`HeadMissing` for a bare encoder."""
    head = _layout(model)[1]
    if head is None:
        raise HeadMissing(f"{type(model).__name__} has no masked-LM head, which the OT part needs")
    return head


def has_head(model: nn.Module) -> bool:
    """Whether ``model`` is a masked LM of a supported family."""
    try:
        return _layout(model)[1] is not None
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
    # The name of DistilBERT's keyword differs between versions of transformers, its position does not.
    return (
        embeddings(None, vectors)
        if hasattr(model, "distilbert")
        else embeddings(inputs_embeds=vectors)
    )


def position_rows(model: nn.Module, length: int) -> Tensor:
    """(length, d) position embeddings of the first ``length`` positions."""
    first = _first_position(model)
    embeddings: Any = encoder_of(model).embeddings
    if not hasattr(embeddings, "position_embeddings"):
        raise CheckpointError(
            f"{type(model).__name__} has no position embeddings, which the decoders of pre-training read; use a BERT, "
            "DistilBERT, RoBERTa or MPNet model"
        )
    return embeddings.position_embeddings.weight[first : first + length]


def longest(model: nn.Module) -> int:
    """The longest input in tokens, special tokens included."""
    config: Any = model.config
    return int(getattr(config, "max_position_embeddings", 512)) - _first_position(model)


def _first_position(model: nn.Module) -> int:
    # RoBERTa and MPNet count positions from the padding id.
    config: Any = model.config
    return int(config.pad_token_id) + 1 if config.model_type in _POSITIONS_AFTER_PADDING else 0


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


def shape_of(config: PretrainedConfig) -> Shape:
    """The :class:`Shape` of a BERT, RoBERTa or DistilBERT configuration."""
    if hasattr(config, "hidden_dim"):
        return Shape(
            config.dim,
            config.n_heads,
            config.hidden_dim,
            config.dropout,
            config.attention_dropout,
            1e-12,
            config.initializer_range,
        )
    return Shape(
        config.hidden_size,
        config.num_attention_heads,
        config.intermediate_size,
        config.hidden_dropout_prob,
        config.attention_probs_dropout_prob,
        config.layer_norm_eps,
        config.initializer_range,
    )


def _layout(module: nn.Module) -> tuple[nn.Module, Head | None]:
    """The encoder and the head of a model. Raises :class:`CheckpointError` for an unsupported family."""
    model: Any = module  # attributes of each family
    if hasattr(model, "bert") and hasattr(model, "cls"):
        p = model.cls.predictions
        return model.bert, Head(
            p.transform, p.decoder.weight, p.decoder.bias, p.transform.LayerNorm
        )
    if hasattr(model, "distilbert") and hasattr(model, "vocab_projector"):

        def distil(h: Tensor) -> Tensor:
            return model.vocab_layer_norm(model.activation(model.vocab_transform(h)))

        projector = model.vocab_projector
        return model.distilbert, Head(
            distil, projector.weight, projector.bias, model.vocab_layer_norm
        )
    for name in ("roberta", "mpnet"):
        if hasattr(model, name) and hasattr(model, "lm_head"):
            return getattr(model, name), _roberta_head(model.lm_head)
    if (
        hasattr(model, "model") and hasattr(model, "head") and hasattr(model, "decoder")
    ):  # ModernBERT
        return model.model, Head(
            model.head, model.decoder.weight, model.decoder.bias, model.head.norm
        )
    if hasattr(model, "embeddings") or hasattr(model, "transformer") or is_decoder(model):
        return model, None
    raise CheckpointError(
        f"{type(model).__name__} is not a BERT, DistilBERT, RoBERTa, MPNet or ModernBERT model, nor a decoder such "
        "as Qwen3 or Gemma3; use a checkpoint of one of these families"
    )


def _roberta_head(head: Any) -> Head:
    def transform(x: Tensor) -> Tensor:
        return head.layer_norm(nn.functional.gelu(head.dense(x)))

    return Head(transform, head.decoder.weight, head.decoder.bias, head.layer_norm)


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
    unused = {i for token, i in tokenizer.get_vocab().items() if token.startswith("[unused")}
    pooled = {tokenizer.mask_token_id, tokenizer.unk_token_id}
    pooled |= {tokenizer.sep_token_id} if include_sep else set()
    pooled |= {tokenizer.cls_token_id} if include_cls else set()
    return ExcludedIds(sorted(special | unused), sorted(special - pooled))


def unweighted_ids(tokenizer: PreTrainedTokenizerBase) -> ExcludedIds:
    """The ids without a token weight, as FlagEmbedding leaves them out: start, end, padding and unknown token."""
    names = ("cls_token_id", "sep_token_id", "eos_token_id", "pad_token_id", "unk_token_id")
    ids = sorted({i for name in names if (i := getattr(tokenizer, name, None)) is not None})
    return ExcludedIds(ids, ids)
