"""``dupmae_config.json``: the settings a model was trained with."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from dupmae_ir.errors import CheckpointError
from dupmae_ir.models.checkpoints.layout import COLBERT_LINEAR, CONFIG, SPARSE_LINEAR
from dupmae_ir.registry import suggest

_FORMATS = (1, 2)  # 2 is written only for an OT part that is not the masked-LM head's
OT_FORMS = ("mlm", "token_weight", "lexical")
"""Forms of the OT part: pooled logits of the masked-LM head (the papers'), one weight for each token of the text
(BGE-M3), or word weights in closed form."""
ACTIVATIONS = ("relu", "log1p", "log1p-log1p", "none")
OT_HEADS = ("mlm", "linear", "tied")
POOLINGS = ("cls", "mean", "weighted-mean", "last")
OT_POOLINGS = ("max", "sum")


HASH = "blake2b-8 little-endian of the UTF-8 stem"
WHOLE_WORDS = "anserini-english"
WITH_PARTS = "anserini-english, parts of identifiers"
_CHOICES = {"hash": (HASH,), "analyzer": (WHOLE_WORDS, WITH_PARTS)}


@dataclass(frozen=True)
class LexicalSettings:
    """Constants of the weights; see :mod:`dupmae_ir.models.heads.lexical` for the formulas."""

    buckets: int = 1 << 17  #: dimensions of stems; a stem's is its hash modulo this number
    hash: str = HASH
    analyzer: str = WITH_PARTS  #: stems of words, or also those of the parts of identifiers
    k1: float = 0.9  #: saturation of term frequencies
    b: float = 0.2  #: how much the length of a document counts
    average_stems: int = 60  #: a document's length in stems at which b has no effect
    title_times: int = 2  #: how often a word of the title counts
    query_power: float = 0.5  #: a query's weights are divided by their sum to this power
    prior_documents: int = 1000
    """Documents of the text that the model was made from, added to those of the collection."""
    document_scale: int = 255  #: the impact scale, unless there is a head
    head_scale: float = 0.0  #: learned factor of the masked-LM head's weights (Eq. 6-7), which are added; 0 = no head


def lexical_settings(values: Mapping[str, Any], source: object) -> LexicalSettings:
    """The settings from JSON. Raises :class:`CheckpointError`, naming ``source``, for any that cannot be used."""
    defaults = {field.name: field.default for field in fields(LexicalSettings)}
    for key, value in values.items():
        if key not in defaults:
            raise CheckpointError(
                f"{source}: unknown setting lexical.{key}.{suggest(key, defaults)}"
            )
        default = defaults[key]
        if isinstance(default, str):
            if value not in _CHOICES[key]:
                choices = " or ".join(map(repr, _CHOICES[key]))
                raise CheckpointError(
                    f"{source}: lexical.{key} is {value!r}; this version reads {choices}"
                )
            continue
        # JSON's true and false are bool, which is a subclass of int.
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise CheckpointError(
                f"{source}: lexical.{key} must be a number of at least 0, got {value!r}"
            )
        if isinstance(default, int) and (not isinstance(value, int) or value < 1):
            raise CheckpointError(
                f"{source}: lexical.{key} must be a positive whole number, got {value!r}"
            )
    return LexicalSettings(**values)


@dataclass(frozen=True)
class ModelConfig:
    """Settings that reproduce a model's representations."""

    format: int = 1
    method: str = "dupmae"
    activation: str = "relu"
    document_length: int = 256
    query_length: int = 64
    top_k: int = 384
    title_separator: str = " "
    impact_scale: float | None = None
    include_sep: bool = False
    """Include [SEP] in pooling, as the released DupMAE code does; the paper excludes it."""
    include_cls: bool = False  #: include [CLS] in pooling, as SPLADE does
    normalize: float = False
    """Length that [CLS] vectors are scaled to: true is 1, as SimLM was trained, and false leaves them unscaled."""
    pooling: str = "cls"
    """The dense vector, one of :data:`POOLINGS`: the state of [CLS] or of the last token, or a mean over all."""
    query_prompt: str = ""  #: put before every query
    document_prompt: str = ""  #: put before every document, and before its title
    sparse_encoder: bool = False
    """The model is a SparseEncoder of sentence-transformers: special tokens are pooled and are terms, and there is no
    dense part."""
    ot_head: str = "mlm"
    """The layer that gives the OT logits: the masked-LM head, a separate ``linear`` map (W^O of Eq. 6), or the word
    embeddings only (``tied``, Eq. 4 of CoT-MoTE)."""
    ot_pooling: str = "max"  #: over the tokens of a text, one of :data:`OT_POOLINGS`
    query_top_k: int | None = None
    """How many of a query's OT weights are kept, the largest; None = all, up to Lucene's limit."""
    query_table: str = ""
    """File with the weights of query tokens, so that queries need no model; there is no dense part then."""
    ot: str = "mlm"  #: form of the OT part, one of :data:`OT_FORMS`
    lexical: LexicalSettings | None = None  #: constants of a lexical OT part
    embedded_lexicon: bool = False  #: use the embedded model's lexicon; the folder contains none
    dense_weight: float = 1.0
    """Factor of the dense score in the sum of both, unless a search sets another."""
    impact_weight: float = 1.0
    """Factor of the impact score, likewise."""
    multilingual: bool = False
    """The dense part reads all languages, so its weight is not measured for each (:mod:`dupmae_ir.encode.reading`)."""

    @property
    def has_head(self) -> bool:
        """Whether a layer of the model computes weights of the OT part."""
        return self.lexical is None or self.lexical.head_scale > 0

    @property
    def needs_lm_head(self) -> bool:
        """Whether the weights of the OT part come from the masked-LM head."""
        return self.has_head and self.ot != "token_weight"

    @property
    def has_dense(self) -> bool:
        """Whether the model has a dense part."""
        return not self.sparse_encoder and not self.query_table

    def to_record(self) -> dict[str, object]:
        """The contents of the model's file. Settings that earlier versions did not have are left out if they have their
        default values, and those of a lexical part if the model has none."""
        values = asdict(self)
        # The file of a model that does without these settings stays readable by earlier versions, which refuse unknown
        # ones, and its digest stays the same.
        for name in _WRITTEN_IF_SET:
            if values[name] == getattr(ModelConfig, name):
                del values[name]
        if not values["lexical"]:
            del values["lexical"]
        elif not values["lexical"]["head_scale"]:
            del values["lexical"]["head_scale"]
        if self.ot == "mlm":
            del values["ot"]
        else:
            # Versions that know only word weights of a masked-LM head refuse this file, by its number.
            values["format"] = 2
        return values


_WRITTEN_IF_SET = (
    "pooling",
    "ot_head",
    "ot_pooling",
    "query_top_k",
    "query_table",
    "embedded_lexicon",
    "dense_weight",
    "impact_weight",
    "query_prompt",
    "document_prompt",
    "sparse_encoder",
    "multilingual",
)
"""Settings that are left out of the file if they have their default values."""


BGE_M3 = ModelConfig(
    method="bge-m3",
    ot="token_weight",
    normalize=True,
    document_length=8192,
    query_length=8192,
    top_k=8192,
    impact_weight=0.3,
)
"""FlagEmbedding's settings for a folder with ``sparse_linear.pt``: every word of a text has its weight."""


_POSITIONS_AFTER_PADDING = ("roberta", "xlm-roberta", "camembert", "mpnet")


def first_position(model_type: str, padding_id: int | None) -> int:
    """The position of the first token of a text."""
    # RoBERTa and MPNet count positions from the padding id.
    if model_type in _POSITIONS_AFTER_PADDING and padding_id is not None:
        return padding_id + 1
    return 0


def read_config(folder: str | Path) -> ModelConfig:
    """The folder's ``dupmae_config.json``; if it has none, :data:`BGE_M3` for a folder with a linear layer for token
    weights, and the defaults for plain BERT retrievers for any other.

    Raises :class:`CheckpointError` for invalid JSON, an unknown setting or a newer format.
    """
    path = Path(folder) / CONFIG
    if not path.is_file():
        if any((path.parent / name).is_file() for name in (SPARSE_LINEAR, COLBERT_LINEAR)):
            return BGE_M3
        return ModelConfig(method="plain")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as e:
        raise CheckpointError(f"{path}: not valid JSON: {e}") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: expected a JSON object of settings")
    settings = {field.name for field in fields(ModelConfig)}
    for key in data:
        if key not in settings:
            raise CheckpointError(f"{path}: unknown setting {key!r}.{suggest(key, settings)}")
    if data.get("format", 1) not in _FORMATS:
        raise CheckpointError(
            f"{path}: format {data['format']} is newer than this version reads ({max(_FORMATS)}); upgrade dupmae_ir"
        )
    if data.get("ot", "mlm") not in OT_FORMS:
        raise CheckpointError(
            f"{path}: ot must be one of {', '.join(OT_FORMS)}, got {data['ot']!r}"
        )
    if data.get("ot") == "lexical":
        data["lexical"] = lexical_settings(data.get("lexical") or {}, path)
    elif data.get("lexical"):
        raise CheckpointError(f"{path}: has lexical settings, but ot is {data.get('ot', 'mlm')!r}")
    config = ModelConfig(**data)
    choices = {"pooling": POOLINGS, "ot_pooling": OT_POOLINGS, "ot_head": OT_HEADS}
    for name, allowed in choices.items():
        if getattr(config, name) not in allowed:
            raise CheckpointError(
                f"{path}: {name} must be one of {', '.join(allowed)}, got {getattr(config, name)!r}"
            )
    # Types are compared exactly: isinstance would accept true as the number 1.
    for name in ("dense_weight", "impact_weight"):
        weight = getattr(config, name)
        if type(weight) not in (int, float) or not 0 < weight < math.inf:
            raise CheckpointError(f"{path}: {name} must be a positive number, got {weight!r}")
    if type(config.normalize) not in (bool, int, float) or not 0 <= config.normalize < math.inf:
        raise CheckpointError(
            f"{path}: normalize must be true, false or a length, got {config.normalize!r}"
        )
    return config
