"""A masked language model taken apart: embeddings, encoder, head transform, head projection.

Hugging Face spells these differently for each family; this is the only place that knows how. Supported are
BERT, DistilBERT and RoBERTa layouts (RetroMAE, MASTER, CoT-MAE and SPLADE checkpoints are BERT or DistilBERT).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from dupmae_ir.errors import CheckpointError, HeadMissing


@dataclass(frozen=True)
class Head:
    """The masked-LM head: logits = transform(h) @ weight.T + bias, h (…, d), weight (V, d), bias (V,)."""

    transform: Callable[[Tensor], Tensor]
    weight: Tensor
    bias: Tensor | None


def encoder_of(model: nn.Module) -> nn.Module:
    """The bare encoder inside a masked LM (or the model itself when it is one already)."""
    return _layout(model)[0]


def head_of(model: nn.Module) -> Head:
    """The masked-LM head of ``model``."""
    head = _layout(model)[1]
    if head is None:
        raise HeadMissing(f"{type(model).__name__} has no masked-LM head, which the OT part needs")
    return head


def has_head(model: nn.Module) -> bool:
    """Whether ``model`` is a masked LM of a family whose head is known here."""
    try:
        return _layout(model)[1] is not None
    except CheckpointError:
        return False


def embed(model: nn.Module, ids: Tensor | None = None, vectors: Tensor | None = None) -> Tensor:
    """Word (or the given vectors) + position + type, LayerNorm and dropout: (B, L) or (B, L, d) -> (B, L, d)."""
    embeddings: Any = encoder_of(model).embeddings
    if vectors is None:
        return embeddings(ids)
    # DistilBERT's keyword has had two spellings; its place has not changed.
    return embeddings(None, vectors) if hasattr(model, "distilbert") else embeddings(inputs_embeds=vectors)


def position_rows(model: nn.Module, length: int) -> Tensor:
    """(length, d) position embeddings of the first ``length`` places."""
    first = _first_position(model)
    embeddings: Any = encoder_of(model).embeddings
    return embeddings.position_embeddings.weight[first : first + length]


def longest(model: nn.Module) -> int:
    """Tokens that the position embeddings allow, specials included."""
    config: Any = model.config
    return int(config.max_position_embeddings) - _first_position(model)


def _first_position(model: Any) -> int:
    # RoBERTa counts places from the padding id on.
    return int(model.config.pad_token_id) + 1 if hasattr(model, "roberta") else 0


@dataclass(frozen=True)
class Shape:
    """What a decoder block takes over from its encoder, whatever the family calls it."""

    width: int
    heads: int
    inner: int
    dropout: float
    attention_dropout: float
    epsilon: float
    initial_std: float


def shape_of(config: Any) -> Shape:
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


def _layout(model: Any) -> tuple[nn.Module, Head | None]:
    if hasattr(model, "bert") and hasattr(model, "cls"):
        p = model.cls.predictions
        return model.bert, Head(p.transform, p.decoder.weight, p.decoder.bias)
    if hasattr(model, "distilbert") and hasattr(model, "vocab_projector"):

        def distil(h: Tensor) -> Tensor:
            return model.vocab_layer_norm(model.activation(model.vocab_transform(h)))

        return model.distilbert, Head(distil, model.vocab_projector.weight, model.vocab_projector.bias)
    if hasattr(model, "roberta") and hasattr(model, "lm_head"):
        h = model.lm_head

        def roberta(x: Tensor) -> Tensor:
            return h.layer_norm(nn.functional.gelu(h.dense(x)))

        return model.roberta, Head(roberta, h.decoder.weight, h.decoder.bias)
    if hasattr(model, "embeddings") or hasattr(model, "transformer"):
        return model, None
    raise CheckpointError(
        f"{type(model).__name__} is not a BERT, DistilBERT or RoBERTa model; use a checkpoint of one of these families"
    )
