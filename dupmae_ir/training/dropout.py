"""The dropout rate of a model in training."""

from __future__ import annotations

from torch import nn

RATES = ("dropout", "inner_dropout", "dropout_prob", "attention_dropout")
"""Attributes in which modules keep a rate as a number: the decoders here, and attention layers of transformers."""


def set_dropout(model: nn.Module, rate: float) -> None:
    """Set the rate of every dropout layer of ``model``, decoders included. Its configuration keeps its own rates."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = rate
        for name in RATES:
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, rate)
