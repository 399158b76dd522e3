"""The catalogue of collections, read from ``catalogue.toml``.

An overlay (``--catalogue FILE`` or ``$DUPMAE_IR_CATALOGUE``) has the same format; its keys replace those of the
built-in catalogue. With an overlay the same commands can use other archives, for example synthetic stand-ins in tests.
Collections made with one are marked as stand-ins and kept in a separate folder.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from dupmae_ir.config import from_mapping
from dupmae_ir.errors import InputError
from dupmae_ir.io.downloads import Source
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.registry import lookup, suggest

VARIABLE = "DUPMAE_IR_CATALOGUE"
LOCAL = "local:"
FAMILIES = ("msmarco", "dpr", "beir", "local", "demo")

_TEMPLATES = {"url", "corpus", "topics", "qrels"}  #: keys whose text may contain {set} and {ADDRESS}
T = TypeVar("T")


@dataclass(frozen=True)
class Test:
    """A set of topics and judgements of a collection. Unknown values are None."""

    __test__ = False  #: not a test class of pytest

    name: str
    queries: int | None = None  #: number of judged queries
    judgements: int | None = None  #: including grade 0; 0 if answer strings are used instead
    measures: tuple[str, ...] = ()  #: in the notation of :mod:`dupmae_ir.measures`
    topics_digest: str | None = None
    qrels_digest: str | None = None
    dangling: int | None = None  #: relevant documents missing from the collection, if known
    topics: str = ""  #: "ROLE" or "ROLE:MEMBER"
    qrels: str = ""  #: like ``topics``
    answers: bool = False  #: DPR's format: answer strings instead of judgements


@dataclass(frozen=True)
class Collection:
    """A collection: its sources, the counts and digests that identify it, and how it is evaluated."""

    name: str
    title: str
    family: str  #: one of FAMILIES
    documents: int | None = None
    tests: Mapping[str, Test] = field(default_factory=dict)
    sources: Mapping[str, Source] = field(default_factory=dict)  #: by role
    corpus: str = ""  #: "ROLE" or "ROLE:MEMBER"
    quoted: bool = False  #: the tsv's texts are quoted as in csv files; they are rewritten as JSON lines
    licensed: str = ""  #: how to obtain a collection that cannot be downloaded
    query_length: int | None = None  #: word pieces kept in the papers' evaluations; None: the model's default
    document_length: int | None = None  #: like ``query_length``
    title_separator: str = "space"  #: between title and text: "space" or "sep"
    remove_query: bool = False  #: exclude the document with the query's own id
    note: str = ""


@dataclass(frozen=True)
class Catalogue:
    """All collections by name; ``overlay``: the file merged into the built-in catalogue, if any."""

    collections: Mapping[str, Collection]
    overlay: Path | None
    sha256: str  #: of the overlay, or of the built-in file

    @property
    def stand_in(self) -> bool:
        """True with an overlay: collections may not be the real ones."""
        return self.overlay is not None


def load(path: str | Path | None = None) -> Catalogue:
    """The built-in catalogue, merged with the overlay ``path`` (default: $DUPMAE_IR_CATALOGUE).

    Raises :class:`InputError` for an overlay that is not valid or has an unknown collection.
    """
    overlay = path or os.environ.get(VARIABLE) or None
    return _load(Path(overlay).absolute() if overlay else None)


def find(name: str, catalogue: str | Path | None = None) -> Collection:
    """The collection ``name``, or the one of ``local:FOLDER``. Raises :class:`UnknownName`, suggesting a name."""
    if name.startswith(LOCAL):
        return _local(name)
    return lookup("collection", name, load(catalogue).collections)


def names() -> tuple[str, ...]:
    """The names of all built-in collections, in the catalogue's order."""
    return tuple(_load(None).collections)


def _load(overlay: Path | None) -> Catalogue:
    built_in = resources.files("dupmae_ir.collections").joinpath("catalogue.toml").read_bytes()
    if overlay is None:
        return _built_in(built_in)
    try:
        text = overlay.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{overlay}: no such catalogue (set by `catalogue` or {VARIABLE})") from None
    except OSError as e:
        raise InputError(f"{overlay}: cannot be read: {e.strerror or e}") from None
    return _overlaid(built_in, text, overlay)


@functools.cache
def _built_in(text: bytes) -> Catalogue:
    return Catalogue(_collections(_parsed(text, "catalogue.toml"), "catalogue.toml"), None, _sha256(text))


@functools.lru_cache(maxsize=8)
def _overlaid(built_in: bytes, text: bytes, path: Path) -> Catalogue:
    base, over = _parsed(built_in, "catalogue.toml"), _parsed(text, str(path))
    for kind, known, given in (("table", base, over), ("shared table", base["shared"], over.get("shared", {}))):
        for name in given:
            if name not in known:
                raise InputError(f"{path}: no {kind} named {name!r} in the built-in catalogue.{suggest(name, known)}")
    return Catalogue(_collections(_merged(base, over), str(path)), path, _sha256(text))


def _parsed(text: bytes, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise InputError(f"{where}: not valid TOML: {e}") from None


def _sha256(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` updated with ``over``; nested tables are merged."""
    result = dict(base)
    for key, value in over.items():
        inner = result.get(key)
        result[key] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return result


def _collections(tables: dict[str, Any], where: str) -> dict[str, Collection]:
    addresses, shared = tables.pop("addresses"), tables.pop("shared")
    return {
        name: _collection(name, _merged(shared[table["like"]], table) if "like" in table else table, addresses, where)
        for name, table in tables.items()
    }


def _collection(name: str, table: dict[str, Any], addresses: dict[str, str], where: str) -> Collection:
    fillings = {**addresses, "set": table.get("set", "")}
    own = {key: value for key, value in table.items() if key not in ("like", "set", "sources", "tests")}
    where = f"{where}: {name}"
    sources = {
        role: _entry(Source, given, fillings, f"{where}.sources.{role}")
        for role, given in table.get("sources", {}).items()
    }
    tests = {
        test: _entry(Test, {**given, "name": test}, fillings, f"{where}.tests.{test}")
        for test, given in table["tests"].items()
    }
    collection = _entry(Collection, {**own, "name": name}, fillings, where)
    return dataclasses.replace(collection, sources=sources, tests=tests)


def _entry(kind: type[T], values: Mapping[str, Any], fillings: Mapping[str, str], where: str) -> T:
    """Build one entry and fill in its templates. An empty string in an overlay means "unknown"."""
    values = {key: value for key, value in values.items() if value != ""}
    for key in _TEMPLATES & values.keys():
        values[key] = str(values[key]).format_map(fillings)
    return from_mapping(kind, values, where)


def _local(name: str) -> Collection:
    """The collection of a folder in BEIR's layout; its tests are the files in ``qrels``."""
    folder = Path(name.removeprefix(LOCAL)).expanduser()
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; {LOCAL} requires one in BEIR's layout")
    tests = {}
    for path in sorted((folder / "qrels").glob("*.tsv")):
        qrels = read_qrels(path)
        tests[path.stem] = Test(path.stem, len(qrels), sum(map(len, qrels.values())), ("nDCG@10", "R@100"))
    if not tests:
        raise InputError(
            f"{folder}: no qrels/*.tsv here; BEIR's layout has corpus.jsonl, queries.jsonl and qrels/test.tsv"
        )
    return Collection(name, folder.absolute().name, "local", None, tests)
