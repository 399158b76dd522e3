"""Fine-tuning: contrastive, with mined negatives, by distillation. :func:`train` is the function for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from dupmae_ir.command import load
from dupmae_ir.console import one_line
from dupmae_ir.errors import UsageError
from dupmae_ir.finetune.config import FinetuneConfig
from dupmae_ir.training.trained import LOG, Trained, config_of, files_of, output_folder, read_log

if TYPE_CHECKING:
    from transformers import TrainerCallback

__all__ = ["Trained", "train"]

PairRow: TypeAlias = tuple[str, str] | Mapping[str, object]
"""(query, passage), or an object as in a file of pairs: ``query``, ``positive``, ``negatives``, ``kind``."""
Pairs: TypeAlias = str | Path | Iterable[PairRow | Path]


def train(
    pairs: Pairs,
    model: str | Path = "minilm",
    output: str | Path | None = None,
    *,
    dev: Pairs = (),
    callbacks: Sequence[TrainerCallback] = (),
    **settings: object,
) -> Trained:
    """Fine-tune ``model`` on ``pairs`` and return the result; the same as ``dupmae-ir finetune``.

    Called again with the same arguments, it continues an interrupted run or returns the finished one.

    Args:
        pairs: a file, several :class:`~pathlib.Path` objects, or rows: (query, passage), or dictionaries as in a file
            of pairs. Rows are written to ``OUTPUT.pairs.jsonl``.
        model: the model to start from: ``minilm``, ``default``, a folder, or a name in the Hugging Face cache.
        output: folder of the trained model; a temporary one if not given.
        dev: pairs whose MRR@10 is reported during training, in the same forms.
        callbacks: of Hugging Face's Trainer, called after our own.
        settings: options of ``dupmae-ir finetune`` with underscores, for example ``steps=100, dtype="bfloat16"``.

    Raises:
        DupmaeError: an argument or the data cannot be used; the message says what to do.
    """
    folder = output_folder(output)
    data = files_of(pairs, folder.with_name(f"{folder.name}.pairs.jsonl"), _record)
    held = files_of(dev, folder.with_name(f"{folder.name}.dev.jsonl"), _record) if dev else []
    given = {"pairs": data, "dev": held, "model": model, "output": folder, **settings}
    result = load("dupmae_ir.finetune.run:run")(config_of(FinetuneConfig, given), callbacks)
    return Trained(folder, result or {}, read_log(folder / "training" / LOG))


def _record(row: object) -> Mapping[str, object]:
    if isinstance(row, Mapping):
        return row
    if isinstance(row, tuple | list) and len(row) == 2:
        return {"query": row[0], "positive": row[1]}
    raise UsageError(f"train: {one_line(row, 100)} is not a pair; give (query, passage) or a dictionary")
