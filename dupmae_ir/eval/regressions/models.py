"""Where a regression's model comes from: the package, a download, or a recipe that trains it first.

``models.toml`` names them. One key says which kind a model is:

* ``embedded = true``: the default model of the package;
* ``tiny = true``: made by :mod:`dupmae_ir.eval.regressions.tiny`;
* ``files = [...]`` at ``url``: a released checkpoint, downloaded file by file;
* ``recipe``, ``step`` and perhaps ``set``: trained by ``recipes/RECIPE.toml`` as far as that step. A recipe's inputs
  may be ``model:NAME``, ``file:NAME/PATH`` (a download of ``[files.NAME]``), ``collection:NAME/corpus`` or
  ``tiny:FILE``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dupmae_ir.errors import InputError
from dupmae_ir.eval.regressions.cases import MODELS, RECIPES
from dupmae_ir.registry import lookup

DOWNLOADS = "files"
_KEYS = {"title", "note", "embedded", "tiny", "url", "files", "sha256", "recipe", "step", "set", "query_prefix"}


@dataclass(frozen=True)
class Model:
    """One entry of models.toml."""

    name: str
    title: str
    note: str = ""
    embedded: bool = False
    tiny: bool = False
    url: str = ""  #: of the folder that holds ``files``
    files: tuple[str, ...] = ()
    sha256: Mapping[str, str] = field(default_factory=dict)  #: file -> digest, where one is known
    recipe: str = ""
    step: str = ""
    set: Mapping[str, Any] = field(default_factory=dict)  #: inputs of the recipe that this model changes

    @property
    def fixed(self) -> bool:
        """The same bytes on every machine."""
        return self.embedded or bool(self.files)

    @property
    def origin(self) -> str:
        """In words, for reports."""
        if self.embedded:
            return "the embedded default model"
        if self.tiny:
            return "made up, for tests"
        if self.files:
            return "released checkpoint"
        changes = ", ".join(f"{k} = {v}" for k, v in self.set.items())
        return f"trained here: recipes/{self.recipe}.toml as far as {self.step}{f' ({changes})' if changes else ''}"


def read_models(data: Mapping[str, Any], folder: Path) -> dict[str, Model]:
    """Name -> model of ``models.toml``'s content, which is read from ``folder``."""
    models = {}
    for name, table in data.items():
        if name == DOWNLOADS:
            continue
        where = f"{folder / MODELS}: {name}"
        if strangers := sorted(table.keys() - _KEYS):
            raise InputError(f"{where}: no key named {strangers[0]!r}")
        kinds = [k for k in ("embedded", "tiny", "files", "recipe") if table.get(k)]
        if len(kinds) != 1:
            raise InputError(f"{where}: wants one of embedded, tiny, files and recipe")
        if "recipe" in kinds and not (folder / RECIPES / f"{table['recipe']}.toml").is_file():
            raise InputError(f"{where}: there is no {RECIPES}/{table['recipe']}.toml")
        told = {**table, "files": tuple(table.get("files", ()))}
        models[name] = Model(name=name, title=told.pop("title", name), **told)
    return models


def chain(name: str, models: Mapping[str, Model], inputs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """``name`` and, before it, every model that its recipe starts from. ``inputs``: recipe -> its inputs."""
    model = lookup("model", name, models)
    before: list[str] = []
    for value in {**inputs.get(model.recipe, {}), **model.set}.values():
        if isinstance(value, str) and value.startswith("model:"):
            before += [n for n in chain(value.removeprefix("model:"), models, inputs) if n not in before]
    return [*before, name]
