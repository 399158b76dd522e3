"""The models that can be named: those in this installation and those in the Hugging Face cache; fetching another.

Downloads are those of ``huggingface_hub``: they resume, are checked against the hub's sizes and digests, and appear in
the cache whole or not at all. The cache is shared with transformers and sentence-transformers (``HF_HOME``).
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from dupmae_ir.console import one_line
from dupmae_ir.errors import EnvironmentProblem, UsageError
from dupmae_ir.models.checkpoints.names import DEFAULT, PACKAGED, cached_folder, default_model_path, model_folder
from dupmae_ir.models.config import GetConfig, ListConfig

FILES = ("*.json", "*.txt", "*.model", "*.md", "pooler.pt")
"""What is fetched beside the weights."""
SAFETENSORS, PICKLED = "*.safetensors", "*.bin"
_ELSEWHERE = ("onnx/*", "openvino/*", "coreml/*", "flax*", "tf_*", "rust_*")
"""The same weights for other runtimes."""


def list_models(_: ListConfig) -> list[dict[str, Any]]:
    """Name, source, bytes and folder of every model that a command accepts by name."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    found = [_described(DEFAULT, "this package", default_model_path())]
    for name, package in PACKAGED.items():
        if importlib.util.find_spec(package):
            found.append(_described(name, f"the package {package.replace('_', '-')}", model_folder(name)))
    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        repos = frozenset()
    for repo in sorted(repos, key=lambda repo: repo.repo_id):
        folder = cached_folder(repo.repo_id) if repo.repo_type == "model" else None
        if folder is not None:
            found.append(_described(repo.repo_id, "the Hugging Face cache", folder))
    return found


def _described(name: str, source: str, folder: Path) -> dict[str, Any]:
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {"name": name, "source": source, "bytes": size, "folder": str(folder)}


def get_model(config: GetConfig) -> dict[str, Any]:
    """Download a model of the hub into the cache and describe it. Weights are pickled ones only if no others exist.

    Raises :class:`UsageError` for a name that the hub does not have, and :class:`EnvironmentProblem` without a network.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    def fetch(weights: str) -> Path:
        patterns = [*FILES, weights]
        return Path(
            snapshot_download(
                config.name, revision=config.revision, allow_patterns=patterns, ignore_patterns=list(_ELSEWHERE)
            )
        )

    try:
        folder = fetch(SAFETENSORS)
        if not any(folder.rglob(SAFETENSORS)):
            folder = fetch(PICKLED)
    except (RepositoryNotFoundError, HFValidationError) as e:
        raise UsageError(f"{config.name}: the hub has no such model, or it needs a token: {one_line(e, 200)}") from None
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as e:
        raise EnvironmentProblem(
            f"{config.name} could not be fetched ({one_line(e, 200)}); check the network and run the same command "
            "again, or copy the model's folder here and give its path"
        ) from None
    return _described(config.name, "the Hugging Face cache", folder)
