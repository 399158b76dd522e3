"""The workspace of a run: its collections, models and training outputs, and how missing ones are obtained.

Also what the values depend on as well: the code, the libraries and the processor.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

from dupmae_ir import collections
from dupmae_ir.config import read_toml
from dupmae_ir.device import processor
from dupmae_ir.errors import EnvironmentProblem, InputError
from dupmae_ir.eval.regressions import tiny
from dupmae_ir.eval.regressions.cases import (
    DIGESTS,
    DOWNLOADS,
    MODELS,
    RECIPES,
    Model,
    dependencies,
    read_models,
)
from dupmae_ir.finetune.config import FinetuneConfig
from dupmae_ir.finetune.stages import STATE, Step, in_processes, plan, recipe_inputs, run_stages
from dupmae_ir.index.format.manifest import versions
from dupmae_ir.io.archives import unpack
from dupmae_ir.io.lines import json_records
from dupmae_ir.io.publishing import read_json_object, sha256_file, write_json
from dupmae_ir.io.transfer import RemoteFile, download
from dupmae_ir.io.transfer import cache_folder as default_cache
from dupmae_ir.models.checkpoints.layout import folder_digest
from dupmae_ir.registry import lookup

TRAINING_CODE = ("finetune", "models", "pretrain", "training")
"""Packages whose code determines trained weights."""
TRAINING_LIBRARIES = ("python", "torch", "transformers", "numpy")
"""Libraries whose versions determine trained weights, by their arithmetic or by the order of their random numbers."""
SIDECAR = "made-by.json"
"""Suffix of the file next to a folder that records what the folder was made from."""
TINY = "tiny"
LOCAL = "folder:"
"""Prefix of a collection in BEIR's layout below the folder ``--collections``."""
_BEIR = "beir-"
_MODEL = "model:"
"""Prefix of a reference to a model in a recipe."""
PACKAGE = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class CollectionFiles:
    """The files of a collection, and its properties that affect the commands."""

    name: str
    corpus: Path
    queries: Path
    qrels: Callable[[str], Path]  #: test name -> judgements
    documents: int | None = None  #: the catalogue's count
    query_length: int | None = None
    document_length: int | None = None
    title_separator: str | None = None
    remove_query: bool = False
    answers: Path | None = None
    catalogued: collections.TestCollection | None = None  #: the catalogue's counts and digests
    stand_in: bool = False  #: a synthetic stand-in, whose values are not comparable with anything


@dataclass(frozen=True)
class Workspace:
    """Folders and options of one run."""

    recipes: Path  #: folder of the TOML files
    folder: Path  #: models, indexes, runs and results are written here
    data: Path | None = None  #: folder of collections in BEIR's layout, searched before downloading
    cache: Path | None = None
    mirror: str | None = None
    catalogue: Path | None = None
    given: Mapping[str, Path] = field(default_factory=dict)  #: model -> folder given with --model
    preset: str | None = None  #: of the recipes; None = each recipe's own
    threads: int = 1
    processes: int = 1  #: of each training
    fresh: bool = False  #: do not reuse earlier work
    quiet: bool = False

    @cached_property
    def models(self) -> dict[str, Model]:
        """The models of models.toml by name."""
        return read_models(self.toml, self.recipes)

    @cached_property
    def toml(self) -> Mapping[str, Any]:
        """The content of models.toml."""
        return read_toml(self.recipes / MODELS)

    @cached_property
    def cache_folder(self) -> Path:
        """The folder for downloads; synthetic stand-ins have a separate one."""
        root = self.cache or default_cache()
        if self.catalogue:
            return root / "stand-ins"
        return root

    @cached_property
    def references(self) -> dict[str, list[str]]:
        """The models that the training of each trained model reads, by model name; a given model is not trained."""
        references: dict[str, list[str]] = {}
        for model in self.models.values():
            if not model.recipe or model.name in self.given:
                continue
            # Inputs stay unresolved here: a resolved reference is a path, which does not name its model.
            values = {**self._preset(model), **model.set}
            steps, _ = plan(self._recipe(model), "", values, last=model.step)
            names: list[str] = []
            for step in steps:
                for value in _setting_values(step):
                    if isinstance(value, str) and value.startswith(_MODEL):
                        names.append(value.removeprefix(_MODEL))
            references[model.name] = list(dict.fromkeys(names))
        return references

    def steps(self, model: Model) -> list[Step]:
        """The commands that train ``model``, with the paths they use here."""
        steps, _ = plan(*self.training(model, fetch=False), last=model.step)
        return [self.adjusted(step) for step in steps]

    def adjusted(self, step: Step) -> Step:
        """The step as this workspace runs it: as the recipe has it, shared by ``processes``."""
        return in_processes(step, self.processes)

    def _recipe(self, model: Model) -> Path:
        return self.recipes / RECIPES / f"{model.recipe}.toml"

    def _preset(self, model: Model) -> Mapping[str, str]:
        """The preset as an input of the model's recipe, if one is chosen and the recipe has presets."""
        if self.preset and read_toml(self._recipe(model)).get("presets"):
            return {"preset": self.preset}
        return {}

    # Collections

    def collection_folder(self, name: str) -> Path:
        """The folder of a collection, whether or not it exists yet."""
        if name == TINY:
            return self.folder / "collections" / TINY
        local = self._local(name)
        if local:
            return local
        if name.startswith(LOCAL):
            return Path("COLLECTIONS") / name.removeprefix(LOCAL)
        return self.cache_folder / "collections" / name

    def planned_collection(self, name: str) -> CollectionFiles:
        """The collection's files at :meth:`collection_folder`; nothing is downloaded or checked."""
        home = self.collection_folder(name)
        files = CollectionFiles(
            name,
            home / "corpus.jsonl",
            home / "queries.jsonl",
            lambda test: home / "qrels" / f"{test}.tsv",
        )
        if name == TINY:
            return replace(files, remove_query=True)
        if name.startswith(LOCAL):
            return files
        entry = collections.find(name, self.catalogue)
        return replace(
            files,
            documents=entry.documents,
            query_length=entry.query_length,
            document_length=entry.document_length,
            title_separator=entry.title_separator,
            remove_query=entry.remove_query,
            catalogued=entry,
            answers=home / "answers.jsonl" if entry.family == "dpr" else None,
        )

    def collection(self, name: str) -> CollectionFiles:
        """The collection's files, generated or downloaded if missing.

        Raises :class:`EnvironmentProblem` if it cannot be obtained here, with what to do.
        """
        planned = self.planned_collection(name)
        if name == TINY:
            if self.fresh or not planned.qrels("test").is_file():
                tiny.write_collection(self.collection_folder(TINY))
            return planned
        if self._local(name):
            return planned
        if name.startswith(LOCAL):
            where = self.data or "`collections` was not given"
            raise EnvironmentProblem(
                f"{name.removeprefix(LOCAL)} not found ({where}); name the folder that contains it, in BEIR's layout, "
                "with `collections`"
            )
        prepared = collections.get(
            name, cache=self.cache, mirror=self.mirror, catalogue=self.catalogue, quiet=self.quiet
        )
        return replace(
            planned,
            corpus=prepared.corpus,
            queries=prepared.queries,
            qrels=prepared.qrels,
            answers=prepared.answers,
            stand_in=prepared.manifest.stand_in or self.catalogue is not None,
        )

    def _local(self, name: str) -> Path | None:
        """The collection's folder below ``data``, if there is one."""
        if self.data is None:
            return None
        home = self.data / name.removeprefix(LOCAL).removeprefix(_BEIR)
        if (home / "corpus.jsonl").is_file():
            return home
        return None

    # Models

    def model_folder(self, name: str) -> Path | None:
        """The model's folder, whether or not it exists yet; None for the embedded model."""
        model = lookup("model", name, self.models)
        if name in self.given:
            return self.given[name]
        if model.embedded:
            return None
        if model.recipe:
            return self._training_folder(model) / model.step
        home = self.folder if model.tiny else self.cache_folder
        return home / "models" / name

    def model(self, name: str) -> Path | None:
        """The model's folder, generated, downloaded or trained if missing; None for the embedded model."""
        for required in self.prepared(name):
            model = self.models[required]
            folder = self.model_folder(required)
            if folder is None or required in self.given:
                continue
            if model.tiny:
                tiny.write_model(folder)
            elif model.files:
                self.download_model(model)
            else:
                self._train(model)
        return self.model_folder(name)

    def download_model(self, model: Model) -> None:
        """Download the files of a released checkpoint. The first download records their digests, later ones must match.

        The record is outside the folder: it survives if the files are deleted and downloaded again.
        """
        home = self.cache_folder / "models" / model.name
        record = home.with_name(f"{model.name}.{DIGESTS}")
        # Synthetic stand-ins have other digests, and are not recorded.
        digests: dict[str, str] = {}
        if not self.catalogue:
            digests = {**read_json_object(record), **model.pinned}
        for name, url in model.addresses.items():
            source = RemoteFile(url, sha256=digests.get(url))
            file = download(source, home / name, mirror=self.mirror, quiet=self.quiet)
            if not self.catalogue and url not in digests:
                digests[url] = sha256_file(file)
                # After each file, so that an interrupted download keeps the digests of the files before it.
                write_json(record, digests)

    def _training_folder(self, model: Model) -> Path:
        settings = {**model.set, **self._preset(model)}
        name = model.recipe
        if settings:
            # A training with other settings than the recipe's has a separate folder.
            changes = json.dumps(settings, sort_keys=True)
            name += f"-{hashlib.sha256(changes.encode()).hexdigest()[:8]}"
        return self.folder / "training" / name

    def training(self, model: Model, fetch: bool) -> tuple[Path, Path, dict[str, object]]:
        """(recipe, output folder, inputs) of a model's training; with ``fetch``, missing inputs are obtained."""
        recipe = self._recipe(model)
        values = recipe_inputs(read_toml(recipe), {**self._preset(model), **model.set}, str(recipe))
        inputs = {name: self._resolve(value, fetch) for name, value in values.items()}
        return recipe, self._training_folder(model), inputs

    def _train(self, model: Model) -> None:
        recipe, output, inputs = self.training(model, fetch=True)
        # Weeks of training survive a change of code, as STALE. The seconds of tier tiny are trained again.
        small = any(self.models[name].tiny for name in self.prepared(model.name))
        if self.fresh or (small and any(self._training_changes(model))):
            shutil.rmtree(output, ignore_errors=True)
        output.parent.mkdir(parents=True, exist_ok=True)
        state_before = read_json_object(output / STATE)
        try:
            run_stages(
                str(recipe), str(output), inputs, self.quiet, last=model.step, adjust=self.adjusted
            )
        finally:
            # Also after an error: the steps that finished before it are not trained again, so what they were trained
            # with is recorded now. A step that finished earlier keeps its record.
            state = read_json_object(output / STATE)
            record = self._training_record(model)
            for name, step in state.items():
                if state_before.get(name) != step:
                    record[name] = {**self._training_key(), "weights": _weights(output / name)}
            write_json(self._sidecar(model), record)

    def prepared(self, name: str) -> list[str]:
        """The models that are prepared for ``name``, in order, and ``name`` itself; a given one has none before it."""
        return dependencies(name, self.models, self.references)

    def _sidecar(self, model: Model) -> Path:
        output = self._training_folder(model)
        return output.with_name(f"{output.name}.{SIDECAR}")

    def _training_record(self, model: Model) -> dict[str, Mapping[str, Any]]:
        """Step -> code and environment in which it was trained here; empty for a model that was not."""
        if not model.recipe:
            return {}
        return read_json_object(self._sidecar(model))

    def _training_key(self) -> Mapping[str, Any]:
        return {"code": code_digest(*TRAINING_CODE), "environment": fingerprint(self.threads)}

    def _training_changes(self, model: Model) -> Iterator[str]:
        """Each step of a model's training here that had other code or libraries than today's, or whose model was edited
        since, with the differences."""
        if not model.recipe:
            return
        now = _versions(self._training_key())
        record = self._training_record(model)
        output = self._training_folder(model)
        for step in read_json_object(output / STATE):
            if step not in record:
                yield f"{step} of {model.name} was trained with unrecorded code and libraries"
            else:
                changes = []
                for name, version in _versions(record[step]).items():
                    if version != now[name]:
                        changes.append(f"{name} {version}, now {now[name]}")
                if changes:
                    yield f"{step} of {model.name} was trained with {'; '.join(changes)}"
                trained = record[step].get("weights")
                current = _weights(output / step)
                if trained != current:
                    yield (
                        f"{step} of {model.name} was edited after its training: its files have sha256 "
                        f"{short_digest(current)}, {short_digest(trained)} when it was trained"
                    )
            if step == model.step:
                # Later steps train other models.
                return

    def training_changes(self, name: str, given: Mapping[str, str]) -> list[str]:
        """:meth:`_training_changes` of the model ``name`` and of every model that it is trained from."""
        changes: list[str] = []
        for required in self.prepared(name):
            if required not in given:
                changes.extend(self._training_changes(self.models[required]))
        return changes

    def origin(self, name: str, given: Mapping[str, str]) -> str:
        """Where the weights of a model come from. ``given``: models used from a folder of the caller -> folder."""
        model = self.models[name]
        if given:
            folders = ", ".join(f"{model_name} = {folder}" for model_name, folder in given.items())
            return f"given: {folders}; not made by this row's recipe"
        record = self._training_record(model).get(model.step)
        if record is None:
            return model.origin
        return f"{model.origin}: code {record['code'][:12]}, {describe(record['environment'])}"

    def training_queries(self, name: str) -> set[str]:
        """The queries that the model ``name`` and those before it were trained on, in lower case; of steps run here."""
        files: set[str] = set()
        for required in self.prepared(name):
            model = self.models[required]
            if required in self.given or not model.recipe:
                continue
            for step in self.steps(model):
                if isinstance(step.config, FinetuneConfig):
                    files.update(step.config.pairs)
                    if step.config.mined:
                        files.add(step.config.mined)
        queries = set()
        for file in sorted(files):
            for _, row in json_records(file):
                queries.add(normal(str(row["query"])))
        return queries

    def _resolve(self, value: object, fetch: bool) -> object:
        """``value`` with references replaced by paths: ``model:``, ``collection:``, ``file:`` and ``tiny:``."""
        if isinstance(value, list):
            return [self._resolve(item, fetch) for item in value]
        kind, colon, rest = str(value).partition(":")
        if not colon or kind not in ("model", "collection", "file", TINY):
            return value
        if kind == "model":
            return str(self.model_folder(rest))
        if kind == TINY:
            if fetch:
                folder = self.collection(TINY).corpus.parent
            else:
                folder = self.collection_folder(TINY)
            return str(folder / rest)
        name, _, part = rest.partition("/")
        if kind == "file":
            return str(self.file(name, part, fetch))
        files = self.collection(name) if fetch else self.planned_collection(name)
        # Corpus and queries may have other names than in BEIR's layout; other parts are named by their files.
        if part == "corpus":
            return str(files.corpus)
        if part == "queries":
            return str(files.queries)
        return str(files.corpus.parent / part)

    def file(self, name: str, part: str, fetch: bool) -> Path:
        """The download ``[files.NAME]``, or the file ``part`` in it if it is an archive."""
        entry = lookup("file", name, self.toml.get(DOWNLOADS, {}))
        # Synthetic stand-ins have other checksums; everything made with them is marked.
        digests = {}
        if not self.catalogue:
            digests = {algorithm: entry.get(algorithm) for algorithm in ("md5", "sha256")}
        source = RemoteFile(entry["url"], **digests)
        home = self.cache_folder / "files" / name
        target = home / source.name
        content = home / "content"
        unpacked = part and content.is_dir()
        if fetch and not unpacked:
            download(source, target, mirror=self.mirror, quiet=self.quiet)
        if not part:
            return target
        if fetch and not unpacked:
            unpack(target, content, quiet=self.quiet)
        if fetch and not (content / part).is_file():
            raise InputError(f"{target}: the archive has no {part}")
        return content / part


def _setting_values(step: Step) -> Iterator[object]:
    """Every value of a step's settings; a tuple is read value by value."""
    for setting in fields(step.config):
        value = getattr(step.config, setting.name)
        if isinstance(value, tuple):
            yield from value
        else:
            yield value


@cache
def code_digest(*packages: str) -> str:
    """sha256 of the Python sources of ``packages``, or of all, in order of their paths."""
    digest = hashlib.sha256()
    paths: list[Path] = []
    for name in packages or (".",):
        paths.extend((PACKAGE / name).rglob("*.py"))
    # Sorted, because the order of rglob depends on the file system.
    for path in sorted(paths):
        digest.update(f"{path.relative_to(PACKAGE).as_posix()}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def fingerprint(threads: int) -> Mapping[str, Any]:
    """Everything that can change the last digits: versions, processor, threads. Equal fingerprints, equal bits."""
    libraries = versions()
    return {
        **{name: libraries[name] for name in libraries if name not in ("java", "dupmae_ir")},
        "numpy": _version("numpy"),
        "scipy": _version("scipy"),
        "pytrec_eval": _version("pytrec_eval-terrier"),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "threads": threads,
    }


def _versions(key: Mapping[str, Any]) -> Mapping[str, str]:
    """What of a training's key is compared: digest of the code, and versions of libraries."""
    compared = {"code": key["code"][:12]}
    for name in TRAINING_LIBRARIES:
        compared[name] = str(key["environment"].get(name))
    return compared


def _weights(folder: Path) -> str | None:
    """The digest of the model that a step of a training made; None for a step that makes something else."""
    if not (folder / "config.json").is_file():
        return None
    # Reports have hundreds of rows of the same models.
    files = [path for path in folder.rglob("*") if path.is_file()]
    states = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(files)]
    return _digest(folder, tuple(states))


@cache
def _digest(folder: Path, _states: tuple[tuple[str, int, int], ...]) -> str:
    """The digest of a model folder, computed once for each state of its files."""
    return folder_digest(folder)


def short_digest(digest: str | None) -> str:
    """The beginning of a digest, for messages."""
    if not digest:
        return "none"
    return digest[:12]


def normal(query: str) -> str:
    """A query without differences of case and white space, to compare the queries of training and test."""
    return " ".join(query.lower().split())


def describe(environment: Mapping[str, Any]) -> str:
    """A fingerprint in one line, for reports."""
    names = ("python", "torch", "transformers", "faiss", "pyserini")
    libraries = ", ".join(f"{name} {environment[name]}" for name in names if environment.get(name))
    return f"{libraries}; {environment.get('processor')}, {environment.get('threads')} thread(s)"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
