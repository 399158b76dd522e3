"""``train``: pre-training from a Python program or a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from dupmae_ir.command import load
from dupmae_ir.console import one_line
from dupmae_ir.errors import UsageError
from dupmae_ir.pretrain.config import PretrainConfig
from dupmae_ir.training.trained import LOG, Trained, config_of, files_of, output_folder, read_log

if TYPE_CHECKING:
    from transformers import TrainerCallback

Row: TypeAlias = str | Mapping[str, object]
"""A text, or an object as in a file of JSON lines: ``text``, ``title``, ``queries``, ``next``."""


def train(
    texts: str | Path | Iterable[Row | Path],
    method: str = "dupmae",
    model: str | Path = "minilm",
    output: str | Path | None = None,
    *,
    callbacks: Sequence[TrainerCallback] = (),
    **settings: object,
) -> Trained:
    """Pre-train ``model`` on ``texts`` and return the result; the same as ``dupmae-ir pretrain``.

    Called again with the same arguments, it continues an interrupted run or returns the finished one.

    Args:
        texts: a file or folder, several :class:`~pathlib.Path` objects, or a list of texts or dictionaries, which are
            written to ``OUTPUT.texts.jsonl``.
        method: the objective, for example ``dupmae`` or ``retromae``.
        model: the model to start from: ``minilm``, a folder, or a name in the Hugging Face cache.
        output: folder of the trained model; a temporary one if not given.
        callbacks: of Hugging Face's Trainer, called after our own.
        settings: options of ``dupmae-ir pretrain`` with underscores, for example ``steps=100, anchor="minilm"``.

    Raises:
        DupmaeError: an argument or the data cannot be used; the message says what to do.
    """
    folder = output_folder(output)
    corpus = files_of(texts, folder.with_name(f"{folder.name}.texts.jsonl"), _record)
    given = {"corpus": corpus, "method": method, "model": model, "output": folder, **settings}
    result = load("dupmae_ir.pretrain.run:run")(config_of(PretrainConfig, given), callbacks)
    return Trained(folder, result or {}, read_log(folder / "pretraining" / LOG))


def _record(row: object) -> Mapping[str, object]:
    if isinstance(row, str):
        return {"text": row}
    if isinstance(row, Mapping):
        return row
    raise UsageError(f"train: {one_line(row, 100)} is not a text; give texts or dictionaries")
