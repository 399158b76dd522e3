"""The regressions as written down: ``eval/*.toml`` to :class:`Case`, checked key by key."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from dupmae_ir.config import from_mapping, read_toml
from dupmae_ir.errors import InputError, UnknownName
from dupmae_ir.measures import parse_measures
from dupmae_ir.registry import lookup, suggest

TIERS = ("tiny", "small", "full")
MODES = ("bm25", "dense", "impact", "hybrid")
MODELS = "models.toml"
RECIPES = "recipes"
ACCEPTED = "accepted"
SHARED = (
    "model",
    "collection",
    "mode",
    "test",
    "source",
    "tolerance",
    "compare",
    "measures",
    "note",
    "encode",
    "search",
)
"""Keys that a file says for all of its cases, and a case for itself."""
ACCURACY = "Acc@"
"""DPR's answer accuracy, which needs passages and answers and not judgements."""


@dataclass(frozen=True)
class Case:
    """One run file and what is measured on it."""

    regression: str  #: stem of the TOML file
    name: str
    tier: str
    title: str
    model: str  #: of models.toml; empty for BM25
    collection: str
    mode: str
    test: str
    encode: Mapping[str, Any]  #: settings of the encode command (of ``index bm25`` for BM25)
    search: Mapping[str, Any]  #: settings of the search command
    measures: tuple[str, ...]
    paper: Mapping[str, str]  #: measure -> the number as printed
    source: str  #: where it is printed
    tolerance: float | None  #: of a comparison with the paper; None: from the queries' own spread
    compare: bool  #: False: the printed numbers are context, made by other weights than these
    exact: bool  #: True: any other value in the same environment is a failure
    note: str

    @property
    def id(self) -> str:
        return f"{self.regression}/{self.name}"

    @property
    def all_measures(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self.measures, *self.paper]))

    @cached_property
    def configuration(self) -> str:
        """sha256 of what decides the numbers, except weights, data and code."""
        told = {k: getattr(self, k) for k in ("model", "collection", "mode", "test", "encode", "search")}
        return hashlib.sha256(json.dumps(told, sort_keys=True, default=list).encode()).hexdigest()


@dataclass(frozen=True)
class Mean:
    """A mean over collections that a paper prints."""

    name: str
    group: str  #: of dupmae_ir.collections
    paper: Mapping[str, str]
    source: str


@dataclass(frozen=True)
class Regression:
    """One TOML file."""

    name: str
    path: Path
    title: str
    tier: str
    cases: tuple[Case, ...]
    means: tuple[Mean, ...]
    accepted: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  #: case name -> what was accepted

    @cached_property
    def accepted_queries(self) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
        """Case name -> measure -> query id -> value when it was accepted."""
        path = self.path.parent / ACCEPTED / f"{self.name}.json"
        return read_json(path) if path.is_file() else {}


def find_folder(folder: str | None = None) -> Path:
    """The folder of the regressions: the one told, the checkout's ``eval``, or the installed copy of it."""
    if folder is not None:
        if not (Path(folder) / MODELS).is_file():
            raise InputError(f"{folder}: holds no {MODELS}; --recipes wants a folder like the checkout's eval")
        return Path(folder)
    places = [Path(__file__).resolve().parents[3] / "eval", Path(sys.prefix) / "share" / "dupmae_ir" / "eval"]
    for place in places:
        if (place / MODELS).is_file():
            return place
    raise InputError(f"no regressions at {' or '.join(map(str, places))}; name their folder with --recipes")


def load(folder: Path) -> dict[str, Regression]:
    """Every regression of ``folder`` by name. Raises :class:`InputError` naming the file and the key."""
    models = read_toml(folder / MODELS)
    files = sorted(p for p in folder.glob("*.toml") if p.name != MODELS)
    return {p.stem: read_regression(p, models) for p in files}


def select(known: Mapping[str, Regression], names: Sequence[str], tier: str | None) -> list[Case]:
    """The cases that ``names`` (``REGRESSION`` or ``REGRESSION/CASE``) and ``tier`` mean; all without either."""
    chosen: list[Case] = []
    for name in names:
        stem, _, case = name.partition("/")
        cases = {c.name: c for c in lookup("regression", stem, known).cases}
        chosen += [lookup(f"case of {stem}", case, cases)] if case else cases.values()
    if not names:
        chosen = [c for r in known.values() for c in r.cases]
    return [c for c in {c.id: c for c in chosen}.values() if tier in (None, c.tier)]


def read_regression(path: Path, models: Mapping[str, Any]) -> Regression:
    """One file. ``models`` are the names that its cases may ask for."""
    data = read_toml(path)
    known = ("title", "tier", "exact", "case", "mean", "accepted", "environment", *SHARED)
    _check_keys(data, known, str(path))
    tier = data.get("tier")
    if tier not in TIERS:
        raise InputError(f"{path}: tier is {tier!r}; use one of {', '.join(TIERS)}")
    if not isinstance(data.get("title"), str):
        raise InputError(f"{path}: wants a title")
    shared = {k: data[k] for k in SHARED if k in data}
    cases = tuple(_case(path, data, shared, table, models) for table in data.get("case", []))
    names = [c.name for c in cases]
    if not cases or len(set(names)) < len(names):
        raise InputError(f"{path}: wants one [[case]] or more, each with a name of its own")
    means = tuple(_mean(path, data, table) for table in data.get("mean", []))
    return Regression(path.stem, path, data["title"], tier, cases, means, _accepted(path, data, names))


def _accepted(path: Path, data: Mapping[str, Any], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The accepted block, every case's environment in its place."""
    accepted = data.get("accepted", {})
    if strangers := sorted(accepted.keys() - set(names)):
        raise InputError(f"{path}: accepted values of {', '.join(strangers)}, which is no case here")
    environments = data.get("environment", {})
    return {
        name: {**told, "environment": environments.get(told.get("environment"), {})} for name, told in accepted.items()
    }


def _case(
    path: Path, data: Mapping[str, Any], shared: Mapping[str, Any], table: Mapping[str, Any], models: Mapping[str, Any]
) -> Case:
    where = f"{path}: case {table.get('name')!r}"
    _check_keys(table, ("name", "title", "paper", *SHARED), where)
    told = {**shared, **table}
    for key in ("encode", "search"):
        told[key] = {**shared.get(key, {}), **table.get(key, {})}
    if missing := [k for k in ("name", "collection", "mode") if not isinstance(told.get(k), str)]:
        raise InputError(f"{where}: missing {', '.join(missing)}")
    if told["mode"] not in MODES:
        raise InputError(f"{where}: mode is {told['mode']!r}; use one of {', '.join(MODES)}")
    model = told.get("model", "")
    if (told["mode"] == "bm25") == bool(model):
        raise InputError(f"{where}: mode bm25 has no model, every other mode needs one")
    if model and model not in models:
        raise InputError(f"{where}: no model {model!r} in {MODELS}.{suggest(model, models)}")
    paper = {canonical(m, where): _printed(v, where) for m, v in told.get("paper", {}).items()}
    case = Case(
        regression=path.stem,
        name=told["name"],
        tier=data["tier"],
        title=told.get("title", told["name"]),
        model=model,
        collection=told["collection"],
        mode=told["mode"],
        test=told.get("test", "test"),
        encode=told["encode"],
        search=told["search"],
        measures=tuple(canonical(m, where) for m in told.get("measures", ())),
        paper=paper,
        source=told.get("source", ""),
        tolerance=told.get("tolerance"),
        compare=told.get("compare", True),
        exact=data.get("exact", False),
        note=told.get("note", ""),
    )
    _check_settings(case, where)
    return case


def _check_settings(case: Case, where: str) -> None:
    """The settings are ones that the commands have."""
    from dupmae_ir.encode.config import EncodeConfig
    from dupmae_ir.index.config import Bm25Config
    from dupmae_ir.search.run import SearchConfig

    if not case.all_measures:
        raise InputError(f"{where}: nothing to measure; give measures or the paper's numbers")
    for kind, settings in (
        (Bm25Config if case.mode == "bm25" else EncodeConfig, case.encode),
        (SearchConfig, case.search),
    ):
        required = {f.name: "" for f in fields(kind) if f.default is MISSING}
        from_mapping(kind, {**required, **settings}, where)


def _mean(path: Path, data: Mapping[str, Any], table: Mapping[str, Any]) -> Mean:
    where = f"{path}: mean {table.get('name')!r}"
    _check_keys(table, ("name", "group", "paper", "source"), where)
    if missing := [k for k in ("name", "group", "paper") if k not in table]:
        raise InputError(f"{where}: missing {', '.join(missing)}")
    paper = {canonical(m, where): _printed(v, where) for m, v in table["paper"].items()}
    return Mean(table["name"], table["group"], paper, table.get("source", data.get("source", "")))


def canonical(measure: str, where: str) -> str:
    """The measure as the results spell it. Answer accuracy is ours alone."""
    if measure.startswith(ACCURACY) and measure[len(ACCURACY) :].isdecimal():
        return measure
    try:
        return str(parse_measures([measure])[0])
    except UnknownName as e:
        raise InputError(f"{where}: {e}") from None


def _printed(value: Any, where: str) -> str:
    """Numbers stand as text, for "0.410" says that three digits are known."""
    try:
        float(value)
    except (TypeError, ValueError):
        value = None
    if not isinstance(value, str):
        raise InputError(f'{where}: the paper\'s numbers are text, as "0.410", so that their digits count')
    return value


def _check_keys(table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise InputError(f"{where}: no key named {key!r}.{suggest(key, known)}")


def read_json(path: Path) -> Any:
    """A JSON file, or one line that says what is wrong with it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise InputError(f"{path}: cannot be read: {e.strerror or e}") from None
    except ValueError as e:
        raise InputError(f"{path}: not valid JSON: {e}") from None
