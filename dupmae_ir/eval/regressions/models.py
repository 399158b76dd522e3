"""The models that cases use: part of the package, downloaded, or trained by a recipe.

Each entry of ``models.toml`` has exactly one of these keys:

* ``embedded = true``: the default model of the package;
* ``tiny = true``: the synthetic model of :mod:`dupmae_ir.eval.regressions.tiny`;
* ``files = [...]`` with ``url``: a released checkpoint, downloaded file by file;
* ``recipe`` with ``step`` and optionally ``set``: trained by ``recipes/RECIPE.toml`` up to that step. Inputs of a
  recipe may be ``model:NAME``, ``file:NAME/PATH`` (a download listed in ``[files.NAME]``), ``collection:NAME/corpus``
  or ``tiny:FILE``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dupmae_ir.errors import InputError
from dupmae_ir.eval.regressions.cases import MODELS, RECIPES
from dupmae_ir.registry import lookup

DOWNLOADS = "files"
_KEYS = {"title", "note", "embedded", "tiny", "url", "files", "sha256", "recipe", "step", "set", "query_prefix"}
_KINDS = ("embedded", "tiny", "files", "recipe")


@dataclass(frozen=True)
class Model:
    """One entry of models.toml."""

    name: str
    title: str
    note: str = ""
    embedded: bool = False
    tiny: bool = False
    url: str = ""  #: of the folder that contains ``files``
    files: tuple[str, ...] = ()
    sha256: Mapping[str, str] = field(default_factory=dict)  #: file -> digest, where one is published
    recipe: str = ""
    step: str = ""
    set: Mapping[str, Any] = field(default_factory=dict)  #: overrides of the recipe's inputs

    @property
    def fixed(self) -> bool:
        """True if the weights are the same bytes on every machine, False if they are trained or generated."""
        return self.embedded or bool(self.files)

    @property
    def origin(self) -> str:
        """A description for reports."""
        if self.embedded:
            return "the embedded default model"
        if self.tiny:
            return "synthetic, for tests"
        if self.files:
            return "released checkpoint"
        changes = ", ".join(f"{k} = {v}" for k, v in self.set.items())
        return f"trained here by recipes/{self.recipe}.toml up to {self.step}{f' ({changes})' if changes else ''}"


def read_models(data: Mapping[str, Any], folder: Path) -> dict[str, Model]:
    """Parse the content of ``folder``'s models.toml; the result maps names to models.

    Raises :class:`InputError` naming the entry.
    """
    models = {}
    for name, table in data.items():
        if name == DOWNLOADS:
            continue
        where = f"{folder / MODELS}: {name}"
        if unknown := sorted(table.keys() - _KEYS):
            raise InputError(f"{where}: no key named {unknown[0]!r}")
        kinds = [k for k in _KINDS if table.get(k)]
        if len(kinds) != 1:
            raise InputError(f"{where}: exactly one of {', '.join(_KINDS)} is required")
        if "recipe" in kinds and not (folder / RECIPES / f"{table['recipe']}.toml").is_file():
            raise InputError(f"{where}: there is no {RECIPES}/{table['recipe']}.toml")
        settings = {**table, "files": tuple(table.get("files", ()))}
        models[name] = Model(name=name, title=settings.pop("title", name), **settings)
    return models


def dependencies(name: str, models: Mapping[str, Model], references: Mapping[str, Sequence[str]]) -> list[str]:
    """The models to prepare for ``name``, in order: those its training reads, then ``name`` itself.

    ``references`` maps trained models to the models that their steps read.
    """
    lookup("model", name, models)
    before: list[str] = []
    for reference in references.get(name, ()):
        before += [n for n in dependencies(reference, models, references) if n not in before]
    return [*before, name]
