"""Names of a training run's log files, and reading them."""

from __future__ import annotations

import json
from pathlib import Path

LOG = "log.jsonl"
"""One JSON object per log entry: ``step``, losses by name, learning rate, evaluation results as ``eval_*``."""
TENSORBOARD = "tensorboard"
"""Folder with the same entries as TensorBoard scalars."""


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
