"""What training leaves for Python programs, its log and :class:`Trained`, and data given to it as lists."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dupmae_ir.config import from_mapping
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.models import load_encoder

if TYPE_CHECKING:
    from dupmae_ir.types import Encoder

C = TypeVar("C")
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


def output_folder(output: str | Path | None) -> Path:
    """``output``, or a new folder among the temporary files."""
    return Path(output) if output is not None else Path(tempfile.mkdtemp(prefix="dupmae-ir-")) / "model"


def config_of(kind: type[C], given: Mapping[str, object]) -> C:
    """The options ``kind`` with the values ``given``; raises :class:`InputError` for an unknown or mistyped one."""
    return from_mapping(kind, {name: str(v) if isinstance(v, Path) else v for name, v in given.items()}, "train")


def files_of(
    data: str | Path | Iterable[object], path: Path, record: Callable[[object], Mapping[str, object]]
) -> list[str]:
    """The files of training data: those named, or ``path``, to which rows are written as JSON lines.

    ``data`` is a path, several :class:`Path` objects, or rows, of which ``record`` makes the JSON objects.
    """
    if isinstance(data, str | Path):
        return [str(data)]
    items = list(data)
    rows = [item for item in items if not isinstance(item, Path)]
    if items and not rows:
        return [str(item) for item in items]
    with atomic_write(path) as f:
        f.writelines(json.dumps(record(row), ensure_ascii=False) + "\n" for row in rows)
    return [str(path)]
