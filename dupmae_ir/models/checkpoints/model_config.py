"""``dupmae_config.json``: the settings a model was trained with."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from dupmae_ir.errors import CheckpointError
from dupmae_ir.models.checkpoints.layout import CONFIG
from dupmae_ir.models.lexical.settings import LexicalSettings, lexical_settings
from dupmae_ir.registry import suggest

_FORMATS = (1, 2)  # 2 is written only for a lexical OT part
OT_FORMS = ("mlm", "lexical")
"""Forms of the OT part: pooled logits of the masked-LM head (the papers'), or word weights in closed form."""
POOLINGS = ("cls", "mean", "weighted-mean")
OT_POOLINGS = ("max", "sum")


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
    include_sep: bool = False  #: include [SEP] in pooling, as the released DupMAE code does; the paper excludes it
    include_cls: bool = False  #: include [CLS] in pooling, as SPLADE does
    normalize: bool = False  #: scale [CLS] vectors to unit length, as SimLM was trained
    pooling: str = "cls"  #: the dense vector: the state of [CLS], or a mean of the states of all tokens
    query_prompt: str = ""  #: put before every query
    document_prompt: str = ""  #: put before every document, and before its title
    sparse_encoder: bool = False
    """The model is a SparseEncoder of sentence-transformers: special tokens are pooled and are terms, and there is no
    dense part."""
    ot_pooling: str = "max"  #: over the tokens of a text, one of :data:`OT_POOLINGS`
    query_top_k: int | None = None  #: largest OT weights kept of a query; None = all, up to Lucene's limit
    ot: str = "mlm"  #: form of the OT part, one of :data:`OT_FORMS`
    lexical: LexicalSettings | None = None  #: constants of a lexical OT part

    @property
    def has_head(self) -> bool:
        """Whether the OT part needs the masked-LM head."""
        return self.lexical is None or self.lexical.head_scale > 0

    def record(self) -> dict[str, Any]:
        """Contents of the file. Models with the papers' parts keep format 1 and its keys, which older versions read."""
        values = asdict(self)
        optional = ("pooling", "query_prompt", "document_prompt", "sparse_encoder", "ot_pooling", "query_top_k")
        for name in optional:
            if values[name] == getattr(ModelConfig, name):
                del values[name]
        if self.ot == "mlm":
            del values["ot"], values["lexical"]
        elif not values["lexical"]["head_scale"]:
            del values["lexical"]["head_scale"]
        return values if self.ot == "mlm" else {**values, "format": 2}


def read_config(folder: str | Path) -> ModelConfig:
    """The folder's ``dupmae_config.json``, or the defaults for plain BERT retrievers if it has none.

    Raises :class:`CheckpointError` for invalid JSON, an unknown setting or a newer format.
    """
    path = Path(folder) / CONFIG
    if not path.is_file():
        return ModelConfig(method="plain")
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
        raise CheckpointError(f"{path}: ot must be one of {', '.join(OT_FORMS)}, got {data['ot']!r}")
    if data.get("ot") == "lexical":
        data["lexical"] = lexical_settings(data.get("lexical") or {}, path)
    elif data.get("lexical"):
        raise CheckpointError(f"{path}: has lexical settings, but ot is {data.get('ot', 'mlm')!r}")
    config = ModelConfig(**data)
    for name, known in (("pooling", POOLINGS), ("ot_pooling", OT_POOLINGS)):
        if getattr(config, name) not in known:
            raise CheckpointError(f"{path}: {name} must be one of {', '.join(known)}, got {getattr(config, name)!r}")
    return config
