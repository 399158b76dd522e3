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
POOLINGS = ("cls", "mean")


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
    pooling: str = "cls"  #: the dense vector: the state of [CLS], or ``mean``: the mean of the states of all tokens
    ot: str = "mlm"  #: form of the OT part, one of :data:`OT_FORMS`
    lexical: LexicalSettings | None = None  #: constants of a lexical OT part

    def record(self) -> dict[str, Any]:
        """Contents of the file. Models with the papers' parts keep format 1 and its keys, which older versions read."""
        values = asdict(self)
        if self.pooling == "cls":
            del values["pooling"]
        if self.ot == "mlm":
            del values["ot"], values["lexical"]
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
    known = {f.name for f in fields(ModelConfig)}
    for key in data:
        if key not in known:
            raise CheckpointError(f"{path}: unknown setting {key!r}.{suggest(key, known)}")
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
    if config.pooling not in POOLINGS:
        raise CheckpointError(f"{path}: pooling must be one of {', '.join(POOLINGS)}, got {config.pooling!r}")
    return config
