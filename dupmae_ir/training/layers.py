"""Layers of a model in training: rates of dropout, and activation checkpointing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from dupmae_ir.training.cpu_functions import recomputing

if TYPE_CHECKING:
    from transformers import PreTrainedModel

RATES = ("dropout", "inner_dropout", "dropout_prob", "attention_dropout")
"""Attributes in which modules keep a rate as a number: the decoders here, and attention layers of transformers."""


def set_dropout(model: nn.Module, rate: float) -> None:
    """Set the rate of every dropout layer of ``model``, decoders included. The model's configuration is not changed."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = rate
        for name in RATES:
            # Some modules use these names for a layer, whose own rate was set above.
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, rate)


def recompute_activations(model: PreTrainedModel) -> None:
    """Turn on activation checkpointing: the layers keep their inputs only and are computed again for the gradient."""
    # Transformers 5 renamed gradient_checkpointing_enable.
    enable = (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )
    enable({"use_reentrant": False, "context_fn": recomputing})
