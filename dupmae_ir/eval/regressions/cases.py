"""Reads ``eval/*.toml`` into :class:`Case` objects and ``models.toml`` into :class:`Model` objects; checks every key.

A model is part of the package, downloaded, or trained by a recipe. Each entry of ``models.toml`` has exactly one of
these keys:

* ``embedded = true``: the default model of the package;
* ``tiny = true``: the synthetic model of :mod:`dupmae_ir.eval.regressions.tiny`;
* ``files = [...]`` with ``url``: a released checkpoint, downloaded file by file;
* ``recipe`` with ``step`` and optionally ``set``: trained by ``recipes/RECIPE.toml`` up to that step. Inputs of a
  recipe may be ``model:NAME``, ``file:NAME/PATH`` (a download listed in ``[files.NAME]``), ``collection:NAME/corpus``
  or ``tiny:FILE``.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dupmae_ir.config import checked_values, from_mapping, read_toml
from dupmae_ir.encode.config import EncodeConfig
from dupmae_ir.errors import InputError, UnknownName
from dupmae_ir.eval.regressions.config import TIERS
from dupmae_ir.index.config import Bm25Config
from dupmae_ir.io.lines import json_record
from dupmae_ir.io.publishing import read_json_object
from dupmae_ir.measures import parse_measures
from dupmae_ir.registry import lookup, suggest
from dupmae_ir.search.config import RUN_HITS, SearchConfig

SEARCH_MODES = ("bm25", "dense", "impact", "hybrid")
MODELS = "models.toml"
HYPERPARAMETERS = "hyperparameters.toml"
RECIPES = "recipes"
DOWNLOADS = "files"
DIGESTS = "sha256.json"
"""Record of the digests of a downloaded model, behind its name."""
RIVALS = "printed_rivals.json"
"""Case -> measure -> the nearest other number of the table, made by tools/power.py."""
_MODEL_KINDS = ("embedded", "tiny", "files", "recipe")
ACCEPTED = "accepted"
MEAN_TOLERANCE = 0.005
"""Default tolerance of a mean over collections: about the noise of one collection (0.02) over the root of 14."""
ACCURACY = "Acc@"
"""Prefix of DPR's answer accuracy, which is computed from passages and answer strings instead of judgements."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run file and the measures computed on it."""

    regression: str  #: stem of the TOML file
    name: str
    tier: str
    title: str
    model: str = ""  #: name in models.toml; empty for BM25
    collection: str
    mode: str
    test: str = "test"
    #: settings of the encode command (or ``index bm25``)
    encode: Mapping[str, Any] = field(default_factory=dict)
    search: Mapping[str, Any] = field(default_factory=dict)  #: settings of the search command
    measures: tuple[str, ...] = ()
    paper: Mapping[str, str] = field(default_factory=dict)  #: measure -> the number as printed
    source: str = ""  #: table or section of the paper
    #: of a comparison with the paper; None: two seeds, or a bootstrap over queries
    tolerance: float | None = None
    #: measure -> standard deviation over seeds, if it was measured
    seed_deviation: Mapping[str, float] = field(default_factory=dict)
    #: allowed difference of fixed weights on another processor; None: none
    drift: float | None = None
    #: False: the printed numbers are context only; they belong to other weights
    compare: bool = True
    exact: bool = False  #: True: a different value in the same environment is a failure
    note: str = ""
    #: REGRESSION/CASE (in the file, also CASE of the same one): differences to it are compared with the paper's
    control: str = ""
    #: measure -> [name, number, table] of the nearest number of another system in the tables of ``source``
    rivals: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """``REGRESSION/CASE``."""
        return f"{self.regression}/{self.name}"

    @property
    def all_measures(self) -> tuple[str, ...]:
        """The measures to compute: the case's measures and the paper's, without duplicates."""
        return tuple(dict.fromkeys([*self.measures, *self.paper]))

    @cached_property
    def configuration(self) -> str:
        """sha256 of the settings that determine the values; weights, data and code are not included."""
        names = ("model", "collection", "mode", "test", "encode", "search")
        settings = {name: getattr(self, name) for name in names}
        # Sorted, so that the order of keys in the TOML file does not matter.
        text = json.dumps(settings, sort_keys=True, default=list)
        return hashlib.sha256(text.encode()).hexdigest()


_UNSHARED = ("regression", "name", "tier", "title", "paper", "exact", "rivals")
SHARED = tuple(setting.name for setting in fields(Case) if setting.name not in _UNSHARED)
"""Keys that a file may set for all of its cases; a case overrides them."""
_NUMBER = re.compile(r"-?(?:\d+(?:\.\d+)?|\.\d+)")
_TABLES = ("encode", "search", "paper", "seed_deviation")
"""Keys whose values are tables."""


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A mean over collections, as printed in a paper."""

    name: str
    group: str  #: a group of dupmae_ir.collections
    paper: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    #: largest difference from the printed mean that is within noise
    tolerance: float = MEAN_TOLERANCE


@dataclass(frozen=True)
class Regression:
    """One TOML file."""

    name: str
    path: Path
    title: str
    tier: str
    cases: tuple[Case, ...]
    means: tuple[Mean, ...]
    #: case name -> accepted block
    accepted: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @cached_property
    def accepted_queries(self) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
        """Accepted values per query: case name -> measure -> query id -> value."""
        path = self.path.parent / ACCEPTED / f"{self.name}.json"
        if not path.is_file():
            return {}
        return json_record(path.read_text(encoding="utf-8"), str(path))


def find_folder(folder: str | None = None) -> Path:
    """The folder of the TOML files: ``folder``, the checkout's ``eval``, or the installed copy.

    Raises :class:`InputError` if it has no models.toml.
    """
    if folder is not None:
        if not (Path(folder) / MODELS).is_file():
            raise InputError(
                f"{folder}: no {MODELS} here; `recipes` must name a folder like eval in the checkout"
            )
        return Path(folder)
    candidates = [
        Path(__file__).resolve().parents[3] / "eval",
        Path(sys.prefix) / "share" / "dupmae_ir" / "eval",
    ]
    for candidate in candidates:
        if (candidate / MODELS).is_file():
            return candidate
    raise InputError(
        f"no regressions in {' or '.join(map(str, candidates))}; name their folder with `recipes`"
    )


def load(folder: Path) -> dict[str, Regression]:
    """Read every regression in ``folder``; the result maps names to regressions.

    Raises :class:`InputError` naming the file and the key.
    """
    models = read_toml(folder / MODELS)
    rivals = read_json_object(folder / RIVALS)
    regressions = {}
    for path in sorted(folder.glob("*.toml")):
        if path.name not in (MODELS, HYPERPARAMETERS):
            regressions[path.stem] = read_regression(path, models, rivals)
    return regressions


def select(
    regressions: Mapping[str, Regression], names: Sequence[str], tier: str | None
) -> list[Case]:
    """The cases selected by ``names`` (``REGRESSION`` or ``REGRESSION/CASE``; empty: all) and ``tier`` (None: any).

    Raises :class:`UnknownName` for a name that does not exist.
    """
    selection: list[Case] = []
    for name in names or regressions:
        stem, _, case_name = name.partition("/")
        cases = {case.name: case for case in lookup("regression", stem, regressions).cases}
        if case_name:
            selection.append(lookup(f"case of {stem}", case_name, cases))
        else:
            selection += cases.values()
    # A case may be named twice, by itself and with its regression.
    unique = {case.id: case for case in selection}
    return [case for case in unique.values() if tier in (None, case.tier)]


def read_regression(
    path: Path, models: Mapping[str, Any], rivals: Mapping[str, Any] | None = None
) -> Regression:
    """Read one TOML file.

    Args:
        path: the file.
        models: the entries of models.toml, by name; cases may use these models.
        rivals: case id -> the rivals of the case.

    Raises:
        InputError: the file cannot be used; the message names the file and the key.
    """
    data = read_toml(path)
    keys = ("title", "tier", "exact", "case", "mean", "accepted", "environment", *SHARED)
    _check_keys(data, keys, str(path))
    tier = data.get("tier")
    if tier not in TIERS:
        raise InputError(f"{path}: tier is {tier!r}; use one of {', '.join(TIERS)}")
    if not isinstance(data.get("title"), str):
        raise InputError(f"{path}: title must be a string")

    shared = {key: data[key] for key in SHARED if key in data}
    rivals = rivals or {}
    cases = []
    for table in data.get("case", []):
        case = _case(path, data, shared, table, models)
        cases.append(replace(case, rivals=rivals.get(case.id, {})))
    names = {case.name for case in cases}
    if not cases or len(names) < len(cases):
        raise InputError(
            f"{path}: at least one [[case]] is required, and case names must be unique"
        )
    means = tuple(_mean(path, data, table) for table in data.get("mean", []))

    unknown = sorted(data.get("accepted", {}).keys() - names)
    if unknown:
        raise InputError(f"{path}: accepted values for {', '.join(unknown)}, but no such case")
    # Accepted blocks name their environment; several have the same.
    environments = data.get("environment", {})
    accepted = {}
    for name, block in data.get("accepted", {}).items():
        environment = environments.get(block.get("environment"), {})
        accepted[name] = {**block, "environment": environment}
    return Regression(path.stem, path, data["title"], tier, tuple(cases), means, accepted)


def _case(
    path: Path,
    data: Mapping[str, Any],
    shared: Mapping[str, Any],
    table: Mapping[str, Any],
    models: Mapping[str, Any],
) -> Case:
    where = f"{path}: case {table.get('name')!r}"
    _check_keys(table, ("name", "title", "paper", *SHARED), where)
    settings = {"title": table.get("name"), **shared, **table}
    missing = []
    for key in ("name", "collection", "mode"):
        if not isinstance(settings.get(key), str):
            missing.append(key)
    if missing:
        raise InputError(f"{where}: missing {', '.join(missing)}")
    if settings["mode"] not in SEARCH_MODES:
        raise InputError(
            f"{where}: mode is {settings['mode']!r}; use one of {', '.join(SEARCH_MODES)}"
        )
    model = settings.get("model", "")
    # True for bm25 with a model, and for another mode without one.
    if (settings["mode"] == "bm25") == bool(model):
        raise InputError(f"{where}: mode bm25 takes no model; every other mode requires one")
    if model and model not in models:
        raise InputError(f"{where}: no model {model!r} in {MODELS}.{suggest(model, models)}")
    plain = {key: value for key, value in settings.items() if key not in _TABLES}
    control = settings.get("control")
    if isinstance(control, str) and control and "/" not in control:
        plain["control"] = f"{path.stem}/{control}"
    of_file = {"regression": path.stem, "tier": data["tier"], "exact": data.get("exact", False)}
    case = from_mapping(Case, {**plain, **of_file}, where)

    # A case's settings of encode and search add to the file's; its seed_deviation replaces the file's.
    seed_deviation = {}
    for measure, deviation in settings.get("seed_deviation", {}).items():
        seed_deviation[canonical(measure, where)] = deviation
    case = replace(
        case,
        encode={**shared.get("encode", {}), **table.get("encode", {})},
        search={**shared.get("search", {}), **table.get("search", {})},
        measures=tuple(canonical(measure, where) for measure in case.measures),
        paper=_printed_numbers(table, where),
        seed_deviation=seed_deviation,
    )

    hits = case.search.get("hits") or RUN_HITS
    for measure in case.all_measures:
        _, _, depth = measure.partition("@")
        if depth.isdecimal() and int(depth) > hits:
            raise InputError(
                f"{where}: {measure} needs {depth} hits per query, but the search stops at {hits}"
            )
    if not case.all_measures:
        raise InputError(f"{where}: nothing to measure; set measures or paper")
    # Settings that the commands do not have are refused.
    index_config = Bm25Config if case.mode == "bm25" else EncodeConfig
    checked_values(index_config, case.encode, where)
    checked_values(SearchConfig, case.search, where)
    return case


def _mean(path: Path, data: Mapping[str, Any], table: Mapping[str, Any]) -> Mean:
    where = f"{path}: mean {table.get('name')!r}"
    shared = {key: data[key] for key in ("source", "tolerance") if key in data}
    plain = {key: value for key, value in table.items() if key != "paper"}
    mean = from_mapping(Mean, {**shared, **plain}, where)
    if "paper" not in table:
        raise InputError(f"{where}: missing paper")
    return replace(mean, paper=_printed_numbers(table, where))


def _printed_numbers(table: Mapping[str, Any], where: str) -> Mapping[str, str]:
    """Measure -> printed number, a string: "0.410" has three significant digits, 0.41 has two."""
    numbers = table.get("paper", {})
    for value in numbers.values():
        if not isinstance(value, str) or not _NUMBER.fullmatch(value):
            raise InputError(
                f'{where}: the paper\'s numbers must be strings such as "0.410", to keep their digits'
            )
    return {canonical(measure, where): value for measure, value in numbers.items()}


def canonical(measure: str, where: str) -> str:
    """The measure's name as the results spell it."""
    if measure.startswith(ACCURACY) and measure[len(ACCURACY) :].isdecimal():
        return measure
    try:
        return str(parse_measures([measure])[0])
    except UnknownName as e:
        raise InputError(f"{where}: {e}") from None


def _check_keys(table: Mapping[str, Any], allowed: Iterable[str], where: str) -> None:
    for key in table:
        if key not in allowed:
            raise InputError(f"{where}: no key named {key!r}.{suggest(key, allowed)}")


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
    revision: str = "main"  #: commit of the model hub, for {revision} in ``url``; main can change
    sha256: Mapping[str, str] = field(default_factory=dict)  #: file -> digest, if it is known
    recipe: str = ""
    step: str = ""
    set: Mapping[str, Any] = field(default_factory=dict)  #: overrides of the recipe's inputs

    @property
    def addresses(self) -> Mapping[str, str]:
        """File -> URL."""
        return {name: f"{self.url.format(revision=self.revision)}/{name}" for name in self.files}

    @property
    def pinned(self) -> Mapping[str, str]:
        """URL -> sha256 that models.toml states."""
        return {self.addresses[name]: digest for name, digest in self.sha256.items()}

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
        origin = f"trained by recipes/{self.recipe}.toml up to {self.step}"
        if self.set:
            changes = ", ".join(f"{name} = {value}" for name, value in self.set.items())
            origin += f" ({changes})"
        return origin


def read_models(data: Mapping[str, Any], folder: Path) -> dict[str, Model]:
    """Parse the content of ``folder``'s models.toml; the result maps names to models.

    Raises :class:`InputError` naming the entry.
    """
    models = {}
    for name, table in data.items():
        if name == DOWNLOADS:
            continue
        where = f"{folder / MODELS}: {name}"
        kinds = [kind for kind in _MODEL_KINDS if table.get(kind)]
        if len(kinds) != 1:
            raise InputError(f"{where}: exactly one of {', '.join(_MODEL_KINDS)} is required")
        if "recipe" in kinds and not (folder / RECIPES / f"{table['recipe']}.toml").is_file():
            raise InputError(f"{where}: there is no {RECIPES}/{table['recipe']}.toml")
        plain = {key: value for key, value in table.items() if key not in ("sha256", "set")}
        model = from_mapping(Model, {"title": name, **plain, "name": name}, where)
        models[name] = replace(model, sha256=table.get("sha256", {}), set=table.get("set", {}))
    return models


def dependencies(
    name: str, models: Mapping[str, Model], references: Mapping[str, Sequence[str]]
) -> list[str]:
    """The models to prepare for ``name``, in order: those its training reads, then ``name`` itself.

    ``references`` maps trained models to the models that their steps read.
    """
    lookup("model", name, models)
    required: list[str] = []
    for reference in references.get(name, ()):
        for model in dependencies(reference, models, references):
            if model not in required:
                required.append(model)
    return [*required, name]
