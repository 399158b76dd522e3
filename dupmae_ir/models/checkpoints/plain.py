"""Loading the weights of a plain BERT folder without transformers.

Importing transformers takes longer than everything else in the first answer of a search. A folder that is in every
respect an ordinary BERT checkpoint is read here instead, into modules of the same names. :func:`read_plain` returns
None for anything else, and for any irregularity, which :func:`~dupmae_ir.models.checkpoints.loading.load_model` then
reads, or reports, with transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dupmae_ir.errors import CheckpointError
from dupmae_ir.models.checkpoints.layout import COMPACT, WEIGHTS, is_compact
from dupmae_ir.models.checkpoints.plain_files import (
    BertShape,
    PlainTokenizer,
    read_plain_files,
    weight_shapes,
    with_biases,
)
from dupmae_ir.models.checkpoints.released import read_tensors

_TRANSFORM, _DECODER = "cls.predictions.transform", "cls.predictions.decoder"


class PlainBert(nn.Module):
    """The weights of a BERT encoder, and of its masked-LM head if it has one, in modules named as in a checkpoint.

    It has no forward pass: :class:`~dupmae_ir.models.inference.packed.PackedRetriever` computes on these modules, and
    on transformers' own, which have the same names.

    Args:
        config: the sizes.
        state: the weights by name; ``bert.`` is the prefix of the encoder's if there is a head.
    """

    def __init__(self, config: BertShape, state: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.config = config
        for path in dict.fromkeys(name.rpartition(".")[0] for name in state):
            owner, (*containers, last) = self, path.split(".")
            modules: Any = owner._modules
            for name in containers:
                if name not in modules:
                    modules[name] = {"layer": nn.ModuleList, "transform": _Transform}.get(name, nn.Module)()
                modules = modules[name]._modules
            weight, bias = state[f"{path}.weight"], state.get(f"{path}.bias")
            if bias is None:
                modules[last] = nn.Embedding(weight.shape[0], weight.shape[1], _weight=weight)
                continue
            layer = nn.LayerNorm(len(weight), eps=config.layer_norm_eps) if last == "LayerNorm" else nn.Module()
            layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
            modules[last] = layer
        if "cls" in self._modules:
            model: Any = self
            model.cls.predictions.decoder.weight = model.bert.embeddings.word_embeddings.weight


class _Transform(nn.Module):
    """The head's transform."""

    def forward(self, hidden: Tensor) -> Tensor:
        layers: Any = self
        return layers.LayerNorm(F.gelu(F.linear(hidden, layers.dense.weight, layers.dense.bias)))


class Plain(NamedTuple):
    """A model and its tokenizer."""

    lm: PlainBert
    tokenizer: PlainTokenizer


def read_plain(folder: Path, need_ot: bool) -> Plain | None:
    """The model in ``folder``; None if it is not a plain BERT folder. ``need_ot``: it must have a masked-LM head."""
    if (files := read_plain_files(folder)) is None:
        return None
    try:
        names = [COMPACT] if is_compact(folder) else [name for name in WEIGHTS if (folder / name).is_file()]
        if names not in ([COMPACT], ["model.safetensors"]):
            return None
        lm = _build(files.shape, read_tensors(folder / names[0]), need_ot)
        return None if lm is None else Plain(lm, files.tokenizer)
    except (CheckpointError, OSError, ValueError, KeyError):
        return None  # reported by the reader that follows


def _build(bert: BertShape, state: Mapping[str, Tensor], need_ot: bool) -> PlainBert | None:
    """A model with the weights of ``state`` in float32; None unless every weight is there, once, in its shape."""
    state = {name if name.startswith(("bert.", "cls.")) else f"bert.{name}": value for name, value in state.items()}
    shapes, width = weight_shapes(bert), bert.hidden_size
    if f"{_TRANSFORM}.dense.weight" in state:
        words = state["bert.embeddings.word_embeddings.weight"]
        bias = "cls.predictions.bias" if "cls.predictions.bias" in state else f"{_DECODER}.bias"
        tied = {f"{_DECODER}.weight": words, f"{_DECODER}.bias": state[bias]}
        if not all(torch.equal(state.get(name, value), value) for name, value in tied.items()):
            return None
        state |= tied
        head = {f"{_TRANSFORM}.dense": (width, width), f"{_TRANSFORM}.LayerNorm": (width,), _DECODER: words.shape}
        shapes = {f"bert.{name}": shape for name, shape in shapes.items()} | with_biases(head)
    elif need_ot:
        return None
    else:
        state = {name.removeprefix("bert."): value for name, value in state.items()}
    for name, shape in shapes.items():
        if state[name].shape != shape or not state[name].is_floating_point():
            return None
    return PlainBert(bert, {name: state[name].float() for name in shapes}).eval()
