"""Loading a plain BERT folder and its tokenizer with safetensors and tokenizers alone.

Importing transformers takes longer than everything else in the first answer of a search. A folder that is in every
respect an ordinary BERT checkpoint is read here instead: the same weights in modules of the same names, and the
tokenizer that ``tokenizer.json`` describes. :func:`read_plain` returns None for anything else, and for any
irregularity, which :func:`~dupmae_ir.models.checkpoints.loading.load_model` then reads, or reports, with transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from safetensors.torch import load_file
from torch import Tensor

from dupmae_ir.errors import CheckpointError
from dupmae_ir.models.checkpoints.compact import read_compact
from dupmae_ir.models.checkpoints.layout import COMPACT, WEIGHTS, is_compact
from dupmae_ir.models.checkpoints.plain_files import BertShape, PlainTokenizer, is_plain, read_shape
from dupmae_ir.models.plain_bert import PlainBert, PlainEncoder

M = TypeVar("M", PlainBert, PlainEncoder)

_WORDS, _BIAS = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
_DECODER = "cls.predictions.decoder"


class Plain(NamedTuple):
    """A model and its tokenizer."""

    lm: PlainBert | PlainEncoder
    tokenizer: PlainTokenizer


def read_plain(folder: Path, need_ot: bool) -> Plain | None:
    """The model in ``folder``; None if it is not a plain BERT folder. ``need_ot``: it must have a masked-LM head."""
    try:
        if not is_plain(folder):
            return None
        shape, tokenizer = read_shape(folder), PlainTokenizer.read(folder)
        if shape is None or tokenizer is None or (state := _weights(folder)) is None:
            return None
        lm = _filled(shape, state, need_ot)
        return None if lm is None else Plain(lm, tokenizer)
    except (CheckpointError, OSError, ValueError, TypeError, KeyError, AttributeError):
        return None  # reported by the reader that follows


def _weights(folder: Path) -> dict[str, Tensor] | None:
    if is_compact(folder):
        return read_compact(folder / COMPACT)
    if [name for name in WEIGHTS if (folder / name).is_file()] != ["model.safetensors"]:
        return None
    try:
        return load_file(folder / "model.safetensors")
    except Exception:  # whatever safetensors raises for a damaged file
        return None


def _filled(shape: BertShape, state: Mapping[str, Tensor], need_ot: bool) -> PlainBert | PlainEncoder | None:
    """A model with the weights of ``state`` in float32; None unless every weight is there, once, in its shape."""
    state = {name if name.startswith(("bert.", "cls.")) else f"bert.{name}": value for name, value in state.items()}
    if "cls.predictions.transform.dense.weight" not in state:
        bare = {name.removeprefix("bert."): value for name, value in state.items() if name.startswith("bert.")}
        return None if need_ot else _load(PlainEncoder(shape), bare)
    words, bias = state[_WORDS], state.get(_BIAS, state.get(_DECODER + ".bias"))
    if bias is None or not torch.equal(state.get(_DECODER + ".weight", words), words):
        return None
    if not torch.equal(bias, state.get(_DECODER + ".bias", bias)):
        return None
    model = _load(PlainBert(shape), state | {_DECODER + ".weight": words, _DECODER + ".bias": bias})
    if model is not None:
        model.tie()  # loading has given the head its own copy
    return model


def _load(model: M, state: Mapping[str, Tensor]) -> M | None:
    wanted = dict(model.state_dict())
    if any(name not in state or state[name].shape != value.shape for name, value in wanted.items()):
        return None
    if not all(state[name].is_floating_point() for name in wanted):
        return None
    model.load_state_dict({name: state[name].float() for name in wanted}, assign=True)
    return model.eval()
