"""Where a regression's things lie: collections and models, found, downloaded or made."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from dupmae_ir.config import read_toml
from dupmae_ir.console import say
from dupmae_ir.errors import EnvironmentProblem, InputError
from dupmae_ir.eval.regressions import tiny
from dupmae_ir.eval.regressions.cases import MODELS, RECIPES, read_json
from dupmae_ir.eval.regressions.environment import code_digest, fingerprint
from dupmae_ir.eval.regressions.models import DOWNLOADS, Model, chain, read_models
from dupmae_ir.io.publishing import write_json
from dupmae_ir.registry import lookup

KEY = "made-by.json"
"""Ending of the files that say what made the folder beside them."""
TINY = "tiny"
LOCAL = "folder:"
_BEIR = "beir-"


@dataclass(frozen=True)
class Data:
    """A collection that is ready to be encoded and searched."""

    name: str
    corpus: Path
    queries: Path
    qrels: Callable[[str], Path]  #: by test
    documents: int | None = None  #: as the registry knows it
    query_length: int | None = None
    document_length: int | None = None
    title_separator: str | None = None
    remove_query: bool = False
    answers: Path | None = None
    stand_in: bool = False  #: a look-alike: whatever is measured on it means nothing


@dataclass(frozen=True)
class Place:
    """Folders and switches of one call."""

    recipes: Path  #: the folder of the TOML files
    folder: Path  #: what is made goes here
    data: Path | None = None  #: folder of collections in BEIR layout, looked at before anything is downloaded
    cache: Path | None = None
    mirror: str | None = None
    catalogue: Path | None = None
    given: Mapping[str, Path] = field(default_factory=dict)  #: model -> a folder to use instead
    threads: int = 1
    fresh: bool = False  #: use nothing that was made before
    quiet: bool = False

    @cached_property
    def models(self) -> dict[str, Model]:
        return read_models(self._models_file, self.recipes)

    @cached_property
    def _models_file(self) -> dict[str, Any]:
        return read_toml(self.recipes / MODELS)

    @cached_property
    def _cache(self) -> Path:
        from dupmae_ir.io.downloads import cache_folder

        home = self.cache or cache_folder()
        return home / "stand-ins" if self.catalogue else home

    @cached_property
    def inputs(self) -> dict[str, dict[str, Any]]:
        """Recipe -> its inputs."""
        names = {m.recipe for m in self.models.values() if m.recipe}
        return {n: read_toml(self.recipes / RECIPES / f"{n}.toml").get("inputs", {}) for n in names}

    # Collections

    def collection_folder(self, name: str) -> Path:
        """Where the collection lies or would lie."""
        if name == TINY:
            return self.folder / "collections" / TINY
        if local := self._local(name):
            return local
        if name.startswith(LOCAL):
            return Path("COLLECTIONS") / name.removeprefix(LOCAL)
        return self._cache / "collections" / name

    def collection_facts(self, name: str) -> dict[str, Any]:
        """What the registry knows of a collection that decides the commands; nothing of a local one."""
        from dupmae_ir import collections

        if name == TINY:
            return {"remove_query": True}
        if name.startswith(LOCAL):
            return {}
        known = collections.find(name, self.catalogue)
        told = ("documents", "query_length", "document_length", "title_separator", "remove_query")
        facts = {key: getattr(known, key) for key in told}
        if known.family == "dpr":
            facts["answers"] = self.collection_folder(name) / "answers.jsonl"
        return facts

    def collection(self, name: str) -> Data:
        """The collection, made or downloaded where it is not there.

        Raises :class:`EnvironmentProblem` where it cannot be had here, with what to do.
        """
        if name == TINY:
            home = tiny.write_collection(self.collection_folder(TINY))
            return in_beir_layout(name, home, **self.collection_facts(name))
        if name.startswith(LOCAL):
            return self._told_folder(name)
        from dupmae_ir import collections

        facts = self.collection_facts(name)
        if local := self._local(name):
            return in_beir_layout(name, local, **facts)
        ready = collections.get(name, cache=self.cache, mirror=self.mirror, catalogue=self.catalogue, quiet=self.quiet)
        return Data(
            name,
            ready.corpus,
            ready.queries,
            ready.qrels,
            stand_in=ready.manifest.stand_in or self.catalogue is not None,
            **{**facts, "answers": ready.answers},
        )

    def _told_folder(self, name: str) -> Data:
        home = self._local(name)
        if home is None:
            where = self.data or "no folder was given"
            raise EnvironmentProblem(
                f"{name.removeprefix(LOCAL)} is not here ({where}); name the folder that holds it, in BEIR's layout, "
                "with --collections"
            )
        return in_beir_layout(name, home)

    def _local(self, name: str) -> Path | None:
        if self.data is None:
            return None
        home = self.data / name.removeprefix(LOCAL).removeprefix(_BEIR)
        return home if (home / "corpus.jsonl").is_file() else None

    # Models

    def model_folder(self, name: str) -> Path | None:
        """Where the model lies or would lie; None is the embedded one."""
        model = lookup("model", name, self.models)
        if name in self.given:
            return self.given[name]
        if model.embedded:
            return None
        if model.recipe:
            return self._training(model) / model.step
        home = self.folder if model.tiny else self._cache
        return home / "models" / name

    def model(self, name: str) -> Path | None:
        """The model's folder, made, downloaded or trained where it is not there; None is the embedded one."""
        for needed in chain(name, self.models, self.inputs):
            self._make(self.models[needed])
        return self.model_folder(name)

    def _make(self, model: Model) -> None:
        folder = self.model_folder(model.name)
        if folder is None or model.name in self.given:
            return
        if model.tiny:
            tiny.write_model(folder)
        elif model.files:
            self._download(model, folder)
        else:
            self._train(model)

    def _download(self, model: Model, folder: Path) -> None:
        from dupmae_ir.io.downloads import Source, download

        for name in model.files:
            source = Source(f"{model.url}/{name}", sha256=None if self.catalogue else model.sha256.get(name))
            download(source, folder / name, mirror=self.mirror, quiet=self.quiet)

    def _training(self, model: Model) -> Path:
        changes = json.dumps(model.set, sort_keys=True)
        mark = f"-{hashlib.sha256(changes.encode()).hexdigest()[:8]}" if model.set else ""
        return self.folder / "training" / f"{model.recipe}{mark}"

    def training(self, model: Model, fetch: bool) -> tuple[Path, Path, dict[str, Any]]:
        """(recipe, output folder, inputs) of a model's training; with ``fetch`` the inputs are there."""
        recipe = self.recipes / RECIPES / f"{model.recipe}.toml"
        told = {**self.inputs[model.recipe], **model.set}
        return recipe, self._training(model), {k: self._input(v, fetch) for k, v in told.items()}

    def _train(self, model: Model) -> None:
        from dupmae_ir.finetune.stages import run_stages

        recipe, output, inputs = self.training(model, fetch=True)
        key = {"code": code_digest(), "environment": fingerprint(self.threads)}
        sidecar = output.with_name(f"{output.name}.{KEY}")
        before = read_json(sidecar) if sidecar.is_file() else key
        # Weeks of training are kept when a line of code changes; seconds of it are what tier tiny guards.
        small = any(self.models[n].tiny for n in chain(model.name, self.models, self.inputs))
        if self.fresh or (small and before != key):
            shutil.rmtree(output, ignore_errors=True)
        elif before != key:
            say(f"  {output}: trained by other code or libraries; --fresh trains again", self.quiet)
        output.parent.mkdir(parents=True, exist_ok=True)
        if not output.exists():
            write_json(sidecar, key)
        run_stages(str(recipe), str(output), inputs, self.quiet, last=model.step)

    def _input(self, value: Any, fetch: bool) -> Any:
        """``model:NAME``, ``collection:NAME/PART``, ``file:NAME/PATH`` and ``tiny:FILE`` as paths; others unchanged."""
        if isinstance(value, list):
            return [self._input(v, fetch) for v in value]
        kind, colon, rest = str(value).partition(":")
        if not colon or kind not in ("model", "collection", "file", TINY):
            return value
        if kind == "model":
            return str(self.model_folder(rest))
        if kind == TINY:
            folder = self.collection(TINY).corpus.parent if fetch else self.collection_folder(TINY)
            return str(folder / rest)
        name, _, part = rest.partition("/")
        if kind == "file":
            return str(self._file(name, part, fetch))
        if not fetch:
            return str(self.collection_folder(name) / (f"{part}.jsonl" if part in ("corpus", "queries") else part))
        data = self.collection(name)
        return str({"corpus": data.corpus, "queries": data.queries}.get(part, data.corpus.parent / part))

    def _file(self, name: str, part: str, fetch: bool) -> Path:
        """A download of ``[files.NAME]``; ``part`` is a path in it where it is an archive."""
        from dupmae_ir.io.archives import unpack
        from dupmae_ir.io.downloads import Source, download

        told = lookup("file", name, self._models_file.get(DOWNLOADS, {}))
        # A look-alike has another checksum; whatever is made with it is marked as one.
        known = {} if self.catalogue else {k: told.get(k) for k in ("md5", "sha256")}
        source = Source(told["url"], **known)
        home = self._cache / "files" / name
        target = home / source.name
        if not part:
            return download(source, target, mirror=self.mirror, quiet=self.quiet) if fetch else target
        if fetch and not (home / "content").is_dir():
            unpack(download(source, target, mirror=self.mirror, quiet=self.quiet), home / "content", quiet=self.quiet)
        if fetch and not (home / "content" / part).is_file():
            raise InputError(f"{target}: holds no {part}")
        return home / "content" / part


def in_beir_layout(name: str, home: Path, **facts: Any) -> Data:
    def qrels(test: str) -> Path:
        return home / "qrels" / f"{test}.tsv"

    return Data(name, home / "corpus.jsonl", home / "queries.jsonl", qrels, **facts)
