"""A masked language model taken apart: encoder, head transform, head projection.

Hugging Face spells these differently for each family; this is the only place that knows how. Supported are
BERT, DistilBERT and RoBERTa layouts (RetroMAE, MASTER, CoT-MAE and SPLADE checkpoints are BERT or DistilBERT).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from dupmae_ir.errors import CheckpointError


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
        raise CheckpointError(f"{type(model).__name__} has no masked-LM head, which the OT part needs")
    return head


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
