"""What makes a folder a plain BERT model, and its tokenizer: read with the library ``tokenizers`` alone, without torch.

:mod:`dupmae_ir.models.checkpoints.loading` reads the weights of such a folder for torch,
:mod:`dupmae_ir.models.inference.query_model` for numpy. Everything else is left to transformers, which reports what is
wrong with it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Encoding, Tokenizer

from dupmae_ir.console import one_line
from dupmae_ir.errors import CheckpointError
from dupmae_ir.models.checkpoints.layout import IDF, MODULES, POOLER, untied_folders

_SPECIAL = ("unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_EXPECTED = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "tie_word_embeddings": True,
    "is_decoder": False,
    "add_cross_attention": False,
}
"""Entries of config.json that a plain BERT has, or lacks."""
BERT = "BertTokenizer"
BERT_CLASSES = (BERT, "BertTokenizerFast", "DistilBertTokenizer", "DistilBertTokenizerFast")
_GENERIC_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes that take everything from tokenizer.json."""
_TOKENIZER_CLASSES = (*BERT_CLASSES, *_GENERIC_CLASSES)
PADDING = 128
"""Word embeddings are padded to a multiple of this many rows at most."""
_UNUSUAL_TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
_UNUSUAL_SETTINGS = (
    "add_prefix_space",
    "additional_special_tokens",
    "extra_special_tokens",
    "model_specific_special_tokens",
    "never_split",
    "split_special_tokens",
)


@dataclass(frozen=True)
class BertShape:
    """The entries of a BERT model's ``config.json`` that inference needs."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int
    layer_norm_eps: float
    hidden_act: str = "gelu"
    position_embedding_type: str = "absolute"
    pad_token_id: int = 0
    model_type: str = "bert"


class PlainFiles(NamedTuple):
    """The sizes and the tokenizer of a plain BERT folder."""

    shape: BertShape
    tokenizer: PlainTokenizer


ENCODERS = ("BertModel", "BertForMaskedLM")
CROSS_ENCODERS = ("BertForSequenceClassification",)


def read_plain_files(folder: Path, architectures: Collection[str] = ENCODERS) -> PlainFiles | None:
    """The files of a folder with one BERT model; None for anything irregular, or with files of other projects."""
    try:
        if not folder.is_dir() or untied_folders(folder):
            return None
        if any((folder / name).exists() for name in (MODULES, IDF, POOLER)):
            return None
        shape = read_shape(folder, architectures)
        tokenizer = PlainTokenizer.read(folder)
    except (CheckpointError, OSError, ValueError, TypeError, KeyError, AttributeError):
        return None  # transformers reports what is wrong
    if shape is None or tokenizer is None:
        return None
    return PlainFiles(shape, tokenizer)


def weight_shapes(bert: BertShape) -> dict[str, tuple[int, ...]]:
    """The shape of each weight of the encoder, by its name in a checkpoint without the prefix ``bert.``."""
    width = bert.hidden_size
    inner = bert.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (bert.vocab_size, width),
        "embeddings.position_embeddings.weight": (bert.max_position_embeddings, width),
        "embeddings.token_type_embeddings.weight": (bert.type_vocab_size, width),
    }
    layers: dict[str, tuple[int, ...]] = {"embeddings.LayerNorm": (width,)}
    for number in range(bert.num_hidden_layers):
        name = f"encoder.layer.{number}"
        layers |= {
            f"{name}.attention.self.query": (width, width),
            f"{name}.attention.self.key": (width, width),
            f"{name}.attention.self.value": (width, width),
            f"{name}.attention.output.dense": (width, width),
            f"{name}.attention.output.LayerNorm": (width,),
            f"{name}.intermediate.dense": (inner, width),
            f"{name}.output.dense": (width, inner),
            f"{name}.output.LayerNorm": (width,),
        }
    return shapes | with_biases(layers)


def with_biases(layers: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The shapes of the weight and the bias of each layer."""
    weights = {f"{name}.weight": shape for name, shape in layers.items()}
    biases = {f"{name}.bias": shape[:1] for name, shape in layers.items()}
    return weights | biases


def read_shape(folder: Path, architectures: Collection[str] = ENCODERS) -> BertShape | None:
    """The sizes in ``config.json``; None unless it describes a plain BERT model of one of these architectures."""
    config = dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    if "model_type" not in config:
        return None
    for name, value in _EXPECTED.items():
        if config.get(name, value) != value:
            return None
    for architecture in config.get("architectures") or []:
        if str(architecture) not in architectures:
            return None
    sizes = {field.name: config[field.name] for field in fields(BertShape) if field.name in config}
    return BertShape(**sizes)


def vocabulary_gap(ids: Collection[int], rows: int) -> str | None:
    """Why a tokenizer with these ids is not the one of a model with ``rows`` word embeddings; None if it can be.

    Models pad their embeddings at the end, to a multiple of at most 128 rows. An id that is missing before the highest,
    or more rows than that after it, are tokens that the tokenizer has lost.
    """
    id_count = len(set(ids))
    missing_count = max(ids, default=-1) + 1 - id_count
    if missing_count:
        return f"the tokenizer lacks {missing_count:,} of the ids up to its highest, {max(ids):,}"
    if rows - id_count >= PADDING:
        return f"the tokenizer has {id_count:,} entries but the model {rows:,}, more than padding explains"
    return None


class PlainEncodings(dict[str, list[list[int]]]):
    """``input_ids`` of texts, and their encodings by the library ``tokenizers``, as transformers' BatchEncoding has
    them."""

    def __init__(self, encodings: list[Encoding]) -> None:
        super().__init__(input_ids=[encoding.ids for encoding in encodings])
        self.encodings = encodings


class PlainTokenizer:
    """A tokenizer from ``tokenizer.json``, with the members of a transformers tokenizer that encoding uses.

    ``special``: ids by the names of :data:`_SPECIAL`.
    """

    def __init__(self, tokenizer: Tokenizer, special: Mapping[str, int | None]) -> None:
        self._tokenizer = tokenizer
        self._truncated: dict[int, Tokenizer] = {}
        self._lock = threading.Lock()
        self.all_special_ids = [number for number in special.values() if number is not None]
        (
            self.unk_token_id,
            self.sep_token_id,
            self.pad_token_id,
            self.cls_token_id,
            self.mask_token_id,
        ) = special.values()

    @classmethod
    def read(cls, folder: Path) -> PlainTokenizer | None:
        """The tokenizer in ``folder``; None unless its two files describe the same tokenizer."""
        settings = _read_object(folder / "tokenizer_config.json")
        if settings.get("tokenizer_class") not in _TOKENIZER_CLASSES:
            return None
        if settings.get("truncation_side", "right") != "right":
            return None
        path = folder / "tokenizer.json"
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception:  # tokenizers raises Exception; transformers reports what is wrong
            return None
        if not _describe_one_tokenizer(settings, tokenizer, path):
            return None
        tokenizer.no_padding()
        special: dict[str, int | None] = {}
        for name in _SPECIAL:
            special[name] = tokenizer.token_to_id(settings[name])
            if special[name] is None:
                return None
        return cls(tokenizer, special)

    @classmethod
    def read_any(cls, folder: Path) -> PlainTokenizer:
        """The tokenizer of any ``tokenizer.json``. Raises :class:`CheckpointError` for a missing or damaged file."""
        path = folder / "tokenizer.json"
        try:
            tokenizer = Tokenizer.from_file(str(path))
            model = json.loads(tokenizer.to_str())["model"]
        except Exception as e:  # tokenizers raises Exception
            raise CheckpointError(f"{path}: not a readable tokenizer: {one_line(e, 200)}") from None
        tokenizer.no_padding()
        # Unigram models name the id of the unknown token, WordPiece models the token.
        unknown = model.get("unk_id")
        if unknown is None and model.get("unk_token") is not None:
            unknown = tokenizer.token_to_id(model["unk_token"])
        return cls(tokenizer, {**dict.fromkeys(_SPECIAL), "unk_token": unknown})

    def __call__(
        self, texts: Sequence[str], max_length: int, add_special_tokens: bool = True, **_: bool
    ) -> PlainEncodings:
        """``input_ids`` of each text, cut to ``max_length`` with special tokens. Safe for several threads."""
        # Truncation is a state of the tokenizer, so each length has its own copy; most processes use one length, which
        # the original serves. A lock, because two threads may ask for a new length at once.
        with self._lock:
            if max_length not in self._truncated:
                tokenizer = self._tokenizer
                if self._truncated:
                    tokenizer = Tokenizer.from_str(self._tokenizer.to_str())
                tokenizer.enable_truncation(max_length)
                self._truncated[max_length] = tokenizer
        encodings = self._truncated[max_length].encode_batch(
            list(texts), add_special_tokens=add_special_tokens
        )
        return PlainEncodings(encodings)

    def pairs(self, first: str, others: Sequence[str], max_length: int) -> list[list[int]]:
        """The ids of ``first`` with each of ``others``, special tokens included. What exceeds ``max_length`` is cut off
        the longer text. Not safe for several threads."""
        self._tokenizer.enable_truncation(max_length, strategy="longest_first")
        encodings = self._tokenizer.encode_batch([(first, other) for other in others])
        return [encoding.ids for encoding in encodings]

    @property
    def backend_tokenizer(self) -> Tokenizer:
        """The tokenizer of the library ``tokenizers``, as transformers names it."""
        return self._tokenizer

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def get_vocab(self) -> dict[str, int]:
        """Token -> id."""
        return self._tokenizer.get_vocab(with_added_tokens=True)


def _read_object(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _describe_one_tokenizer(settings: Mapping[str, Any], tokenizer: Tokenizer, path: Path) -> bool:
    """Whether ``tokenizer.json`` (at ``path``, read as ``tokenizer``) is what transformers would make of
    ``tokenizer_config.json``."""
    truncation = tokenizer.truncation or {}
    if truncation.get("direction") == "left":
        return False
    if any(settings.get(name) for name in _UNUSUAL_SETTINGS):
        return False
    if settings["tokenizer_class"] in _GENERIC_CLASSES:
        # transformers would add the tokens that only the settings name.
        named = set()
        for name, token in settings.items():
            if name.endswith("_token") and token is not None:
                named.add(str(token))
        for token in (settings.get("added_tokens_decoder") or {}).values():
            named.add(str(token["content"]))
        added_tokens = tokenizer.get_added_tokens_decoder().values()
        return named <= {token.content for token in added_tokens if token.special}
    # Parsed once more in Python, which takes a third as long as reading it.
    return _is_bert_definition(settings, _read_object(path))


def _is_bert_definition(settings: Mapping[str, Any], definition: Mapping[str, Any]) -> bool:
    """Whether ``tokenizer.json`` is that of a BERT tokenizer with these settings."""
    added_tokens = definition["added_tokens"]
    for token in added_tokens:
        if not token["special"] or any(token.get(flag) for flag in _UNUSUAL_TOKEN_FLAGS):
            return False
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
    processor = definition.get("post_processor") or {}
    if processor.get("type") != "TemplateProcessing":
        return False
    # [CLS] text [SEP]; "A" is the first text of a pair.
    template = [settings.get("cls_token"), "A", settings.get("sep_token")]
    template_parts = [next(iter(part.values())) for part in processor.get("single", [])]
    return (
        definition.get("normalizer") == normalizer
        and definition.get("pre_tokenizer") == {"type": "BertPreTokenizer"}
        and [part["id"] for part in template_parts] == template
        and sorted(token["content"] for token in added_tokens) == sorted(special)
        and {key: value for key, value in definition["model"].items() if key != "vocab"} == model
    )
