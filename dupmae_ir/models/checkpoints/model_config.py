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
WHOLE_WORDS, WITH_PARTS = "anserini-english", "anserini-english, parts of identifiers"
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
    prior_documents: int = (
        1000  #: documents of the model's own text added to those of the collection
    )
    document_scale: int = 255  #: the impact scale, unless there is a head
    head_scale: float = 0.0  #: learned factor of the masked-LM head's weights (Eq. 6-7), which are added; 0 = no head


def lexical_settings(values: Mapping[str, Any], source: object) -> LexicalSettings:
    """The settings from JSON. Raises :class:`CheckpointError`, naming ``source``, for any that cannot be used."""
    known = {f.name: f.default for f in fields(LexicalSettings)}
    for key, value in values.items():
        if key not in known:
            raise CheckpointError(f"{source}: unknown setting lexical.{key}.{suggest(key, known)}")
        if isinstance(known[key], str):
            if value not in _CHOICES[key]:
                choices = " or ".join(map(repr, _CHOICES[key]))
                raise CheckpointError(
                    f"{source}: lexical.{key} is {value!r}; this version reads {choices}"
                )
        elif isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise CheckpointError(
                f"{source}: lexical.{key} must be a number of at least 0, got {value!r}"
            )
        elif isinstance(known[key], int) and (not isinstance(value, int) or value < 1):
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
    include_sep: bool = (
        False  #: include [SEP] in pooling, as the released DupMAE code does; the paper excludes it
    )
    include_cls: bool = False  #: include [CLS] in pooling, as SPLADE does
    normalize: float = False  #: length of [CLS] vectors; true is 1, as SimLM was trained, false leaves them as they are
    pooling: str = (
        "cls"  #: the dense vector: the state of [CLS] or the last token, or a mean of all
    )
    query_prompt: str = ""  #: put before every query
    document_prompt: str = ""  #: put before every document, and before its title
    sparse_encoder: bool = False
    """The model is a SparseEncoder of sentence-transformers: special tokens are pooled and are terms, and there is no
    dense part."""
    ot_head: str = "mlm"
    """The layer that gives the OT logits: the masked-LM head, a separate ``linear`` map (W^O of Eq. 6), or the word
    embeddings only (``tied``, Eq. 4 of CoT-MoTE)."""
    ot_pooling: str = "max"  #: over the tokens of a text, one of :data:`OT_POOLINGS`
    query_top_k: int | None = (
        None  #: largest OT weights kept of a query; None = all, up to Lucene's limit
    )
    query_table: str = (
        ""  #: file with the weights of query tokens, which then need no model; no dense part
    )
    ot: str = "mlm"  #: form of the OT part, one of :data:`OT_FORMS`
    lexical: LexicalSettings | None = None  #: constants of a lexical OT part
    embedded_lexicon: bool = False  #: use the embedded model's lexicon instead of a file of its own
    dense_weight: float = (
        1.0  #: of the dense score in the sum of both, unless a search says otherwise
    )
    impact_weight: float = 1.0  #: the same of the impact score

    @property
    def has_head(self) -> bool:
        """Whether a layer of the model computes weights of the OT part."""
        return self.lexical is None or self.lexical.head_scale > 0

    @property
    def needs_lm_head(self) -> bool:
        """Whether this layer is the masked-LM head."""
        return self.has_head and self.ot != "token_weight"

    @property
    def has_dense(self) -> bool:
        """Whether the model has a dense part."""
        return not self.sparse_encoder and not self.query_table

    def record(self) -> dict[str, object]:
        """Contents of the file; settings of other kinds of models are left out."""
        values = asdict(self)
        parts = (
            "pooling",
            "ot_head",
            "ot_pooling",
            "query_top_k",
            "query_table",
            "embedded_lexicon",
            "dense_weight",
            "impact_weight",
        )
        for name in (*parts, "query_prompt", "document_prompt", "sparse_encoder"):
            if values[name] == getattr(ModelConfig, name):
                del values[name]
        if self.ot == "mlm":
            del values["ot"]
        if not values["lexical"]:
            del values["lexical"]
        elif not values["lexical"]["head_scale"]:
            del values["lexical"]["head_scale"]
        return values if self.ot == "mlm" else {**values, "format": 2}


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


def read_config(folder: str | Path) -> ModelConfig:
    """The folder's ``dupmae_config.json``; if it has none, :data:`BGE_M3` for a folder with a linear layer for token
    weights, and the defaults for plain BERT retrievers for any other.

    Raises :class:`CheckpointError` for invalid JSON, an unknown setting or a newer format.
    """
    path = Path(folder) / CONFIG
    if not path.is_file():
        is_bge = any((path.parent / name).is_file() for name in (SPARSE_LINEAR, COLBERT_LINEAR))
        return BGE_M3 if is_bge else ModelConfig(method="plain")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as e:
        raise CheckpointError(f"{path}: not valid JSON: {e}") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: expected a JSON object of settings")
    settings = {f.name for f in fields(ModelConfig)}
    for key in data:
        if key not in settings:
            raise CheckpointError(f"{path}: unknown setting {key!r}.{suggest(key, settings)}")
    newest = max(_FORMATS)
    if data.get("format", 1) not in _FORMATS:
        raise CheckpointError(
            f"{path}: format {data['format']} is newer than this version reads ({newest}); upgrade dupmae_ir"
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
    for name, known in (("pooling", POOLINGS), ("ot_pooling", OT_POOLINGS), ("ot_head", OT_HEADS)):
        if getattr(config, name) not in known:
            raise CheckpointError(
                f"{path}: {name} must be one of {', '.join(known)}, got {getattr(config, name)!r}"
            )
    for name in ("dense_weight", "impact_weight"):
        weight = getattr(config, name)
        if type(weight) not in (int, float) or not 0 < weight < math.inf:
            raise CheckpointError(f"{path}: {name} must be a positive number, got {weight!r}")
    if type(config.normalize) not in (bool, int, float) or not 0 <= config.normalize < math.inf:
        raise CheckpointError(
            f"{path}: normalize must be true, false or a length, got {config.normalize!r}"
        )
    return config
