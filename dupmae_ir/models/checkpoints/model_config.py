"""``dupmae_config.json``: the settings a model was trained with."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

from dupmae_ir.errors import CheckpointError
from dupmae_ir.models.checkpoints.layout import CONFIG
from dupmae_ir.registry import suggest


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
    config = ModelConfig(**data)
    if config.format != 1:
        raise CheckpointError(f"{path}: format {config.format} is newer than this version reads (1); upgrade dupmae_ir")
    return config
