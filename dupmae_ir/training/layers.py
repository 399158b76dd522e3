"""Layers of a model in training: attention on a CPU in bfloat16, dropout, and activation checkpointing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from transformers import PreTrainedModel

RATES = ("dropout", "inner_dropout", "dropout_prob", "attention_dropout")
"""Attributes in which modules keep a rate as a number: the decoders here, and attention layers of transformers."""


class Float32Attention(TorchFunctionMode):
    """A context in which bfloat16 attention on a CPU is computed in float32; its result is rounded to bfloat16.

    torch's fused kernel takes 1.3 to 4 times as long in bfloat16 as in float32, most of it in the backward pass, for
    texts of 32 to 256 word pieces (benchmarks/finetune_step.py and pretraining_step.py with ``--torch-attention``).
    Other devices, dtypes and functions are left alone.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``func``, in float32 if it is attention on bfloat16 tensors of the CPU."""
        kwargs = kwargs or {}
        if func is not scaled_dot_product_attention or not _is_cpu_bfloat16(args[0]):
            return func(*args, **kwargs)
        # Autocast would round the inputs again.
        with torch.autocast("cpu", enabled=False):
            wide_args = [_as_float32(value) for value in args]
            wide_kwargs = {name: _as_float32(value) for name, value in kwargs.items()}
            return func(*wide_args, **wide_kwargs).to(args[0].dtype)


def training_attention(device: torch.device, bfloat16: bool) -> AbstractContextManager[object]:
    """The context in which training on ``device`` runs: :class:`Float32Attention` if it is faster."""
    if bfloat16 and device.type == "cpu":
        return Float32Attention()
    return nullcontext()


def _is_cpu_bfloat16(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_cpu and value.dtype == torch.bfloat16


def _as_float32(value: Any) -> Any:
    """A bfloat16 tensor on the CPU in float32; anything else as it is."""
    if _is_cpu_bfloat16(value):
        return value.float()
    return value


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
    enable({"use_reentrant": False})
