"""What training leaves for Python programs: its log and :class:`Trained`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dupmae_ir.models import load_encoder

if TYPE_CHECKING:
    from dupmae_ir.types import Encoder

LOG = "log.jsonl"
"""One JSON object per log entry: ``step``, losses by name, learning rate, evaluation results as ``eval_*``."""
TENSORBOARD = "tensorboard"
"""Folder with the same entries as TensorBoard scalars."""


@dataclass(frozen=True)
class Trained:
    """A trained model."""

    path: Path  #: its folder
    result: Mapping[str, object]  #: what the command reports: counts, losses, scores
    log: list[dict[str, float]]  #: one row per log entry: ``step``, ``loss``, ``eval_*``

    @cached_property
    def retriever(self) -> Encoder:
        """The model, loaded: ``encode_documents`` and ``encode_queries``."""
        return load_encoder(self.path)


def read_log(path: str | Path) -> list[dict[str, float]]:
    """The rows of a ``log.jsonl``; an incomplete last line, left by a kill, is skipped."""
    rows = []
    if Path(path).is_file():
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue
    return rows
