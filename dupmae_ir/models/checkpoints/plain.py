"""Loading a plain BERT folder and its tokenizer with safetensors and tokenizers alone.

Importing transformers takes longer than everything else in the first answer of a search. A folder that is in every
respect an ordinary BERT checkpoint is read here instead: the same weights in modules of the same names, and the
tokenizer that ``tokenizer.json`` describes. :func:`read_plain` returns None for anything else, and for any
irregularity, which :func:`~dupmae_ir.models.checkpoints.loading.load_model` then reads, or reports, with transformers.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from dupmae_ir.errors import CheckpointError
from dupmae_ir.models.checkpoints.compact import is_compact, read_compact
from dupmae_ir.models.checkpoints.layout import COMPACT, MODULES, POOLER, WEIGHTS, untied_folders
from dupmae_ir.models.plain_bert import BertShape, PlainBert, PlainEncoder

M = TypeVar("M", PlainBert, PlainEncoder)

_SPECIAL = ("unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_WORDS, _BIAS = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
_DECODER = "cls.predictions.decoder"
_EXPECTED = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "tie_word_embeddings": True,
    "is_decoder": False,
    "add_cross_attention": False,
}
"""Entries of config.json that a plain BERT has, or lacks."""
_TOKENIZER = {"tokenizer_class": ("BertTokenizer", "BertTokenizerFast"), "truncation_side": ("right",)}
_UNUSUAL = ("additional_special_tokens", "extra_special_tokens", "never_split")


class Plain(NamedTuple):
    """A model and its tokenizer."""

    lm: PlainBert | PlainEncoder
    tokenizer: PlainTokenizer


def read_plain(folder: Path, need_ot: bool) -> Plain | None:
    """The model in ``folder``; None if it is not a plain BERT folder. ``need_ot``: it must have a masked-LM head."""
    try:
        if not folder.is_dir() or (folder / MODULES).exists() or (folder / POOLER).exists() or untied_folders(folder):
            return None
        shape = _shape(_json(folder / "config.json"))
        tokenizer = PlainTokenizer.read(folder)
        if shape is None or tokenizer is None or (state := _weights(folder)) is None:
            return None
        lm = _filled(shape, state, need_ot)
        return None if lm is None else Plain(lm, tokenizer)
    except (CheckpointError, OSError, ValueError, TypeError, KeyError, AttributeError):
        return None  # reported by the reader that follows


def _json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _shape(config: Mapping[str, Any]) -> BertShape | None:
    if any(config.get(name, value) != value for name, value in _EXPECTED.items()) or "model_type" not in config:
        return None
    if any(str(name) not in ("BertModel", "BertForMaskedLM") for name in config.get("architectures") or []):
        return None
    return BertShape(**{field.name: config[field.name] for field in fields(BertShape) if field.name in config})


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


class PlainTokenizer:
    """BERT's tokenizer from ``tokenizer.json``: those of a transformers tokenizer's members that encoding uses."""

    def __init__(self, tokenizer: Tokenizer, special: Mapping[str, int]) -> None:
        self._tokenizer = tokenizer
        self._vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
        self._truncated: dict[int, Tokenizer] = {}
        self._lock = threading.Lock()
        self.all_special_ids = list(special.values())
        self.unk_token_id, self.sep_token_id, self.pad_token_id, self.cls_token_id, self.mask_token_id = (
            special.values()
        )

    @classmethod
    def read(cls, folder: Path) -> PlainTokenizer | None:
        """The tokenizer in ``folder``; None unless its two files describe the same BERT tokenizer."""
        settings, described = _json(folder / "tokenizer_config.json"), _json(folder / "tokenizer.json")
        if any(settings.get(name, values[0]) not in values for name, values in _TOKENIZER.items()):
            return None
        if "tokenizer_class" not in settings or not _ordinary(settings, described):
            return None
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_padding()
        found = {name: tokenizer.token_to_id(settings[name]) for name in _SPECIAL}
        special = {name: number for name, number in found.items() if number is not None}
        return cls(tokenizer, special) if special.keys() == found.keys() else None

    def __call__(self, texts: Sequence[str], max_length: int, **_: bool) -> dict[str, list[list[int]]]:
        """``input_ids`` of each text, special tokens included, cut to ``max_length``. Safe for several threads."""
        with self._lock:
            if max_length not in self._truncated:
                tokenizer = Tokenizer.from_str(self._tokenizer.to_str()) if self._truncated else self._tokenizer
                tokenizer.enable_truncation(max_length)
                self._truncated[max_length] = tokenizer
        encoded = self._truncated[max_length].encode_batch(list(texts))
        return {"input_ids": [one.ids for one in encoded]}

    @property
    def backend_tokenizer(self) -> Tokenizer:
        """The tokenizer of the library ``tokenizers``, as transformers names it."""
        return self._tokenizer

    def __len__(self) -> int:
        return len(self._vocabulary)

    def get_vocab(self) -> dict[str, int]:
        """Token -> id."""
        return dict(self._vocabulary)


def _ordinary(settings: Mapping[str, Any], described: Mapping[str, Any]) -> bool:
    """Whether ``tokenizer.json`` is what transformers would make of ``tokenizer_config.json``."""
    special = [str(settings.get(name)) for name in _SPECIAL]
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": settings.get("tokenize_chinese_chars", True),
        "strip_accents": settings.get("strip_accents"),
        "lowercase": settings.get("do_lower_case", True),
    }
    model = {
        "type": "WordPiece",
        "unk_token": settings.get("unk_token"),
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
    }
    template = [settings.get("cls_token"), "A", settings.get("sep_token")]
    added = described["added_tokens"]
    return (
        described.get("normalizer") == normalizer
        and described.get("pre_tokenizer") == {"type": "BertPreTokenizer"}
        and _template(described.get("post_processor") or {}) == template
        and sorted(token["content"] for token in added) == sorted(special)
        and all(token["special"] and not _odd(token) for token in added)
        and not any(settings.get(name) for name in _UNUSUAL)
        and {name: value for name, value in described["model"].items() if name != "vocab"} == model
    )


def _odd(token: Mapping[str, Any]) -> bool:
    return any(token.get(name) for name in ("single_word", "lstrip", "rstrip", "normalized"))


def _template(processor: Mapping[str, Any]) -> list[str] | None:
    """The sequence of a template for single texts."""
    if processor.get("type") != "TemplateProcessing":
        return None
    return [next(iter(part.values()))["id"] for part in processor.get("single", [])]
