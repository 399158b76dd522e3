"""What is known of every collection: read from ``catalogue.toml``, which is meant to be read by people too.

A catalogue of one's own (``--catalogue FILE``, or the environment's DUPMAE_IR_CATALOGUE) has the same shape and is laid
over it: only the keys that it gives replace. It points the same recipes at other archives, look-alikes for a
rehearsal for instance; all that is made with it is marked a stand-in and kept apart from the real thing.
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

_TEMPLATES = {"url", "corpus", "topics", "qrels"}  #: keys whose text may name {set} and the addresses
T = TypeVar("T")


@dataclass(frozen=True)
class Test:
    """One set of topics and judgements of a collection. What is not known is None."""

    __test__ = False  #: pytest takes a class of this name for one of its own

    name: str
    queries: int | None = None  #: judged ones
    judgements: int | None = None  #: all, grade 0 included; 0 where answer strings decide
    measures: tuple[str, ...] = ()  #: as ``dupmae_ir.eval`` spells them
    topics_digest: str | None = None
    qrels_digest: str | None = None
    dangling: int | None = None  #: judged documents that the collection lacks, where that is publicly known
    topics: str = ""  #: "ROLE" or "ROLE:MEMBER"
    qrels: str = ""  #: the same
    answers: bool = False  #: topics are DPR's questions with answer strings, which stand for judgements


@dataclass(frozen=True)
class Collection:
    """One collection: where it is from, how to tell that it is the right one, how it is measured."""

    name: str
    title: str
    family: str  #: one of FAMILIES
    documents: int | None = None
    tests: Mapping[str, Test] = field(default_factory=dict)
    sources: Mapping[str, Source] = field(default_factory=dict)  #: by role
    corpus: str = ""  #: "ROLE" or "ROLE:MEMBER"
    quoted: bool = False  #: the tsv's texts are quoted as in csv files; rewritten as JSON lines
    licensed: str = ""  #: how to obtain what cannot be downloaded
    query_length: int | None = None  #: word pieces that the papers' evaluations keep; None is the model's own
    document_length: int | None = None  #: the same
    title_separator: str = "space"  #: or "sep": what stands between title and text
    remove_query: bool = False  #: a query's own document must not be found
    note: str = ""


@dataclass(frozen=True)
class Catalogue:
    """All collections by name; ``overlay`` is the file that was laid over the built-in ones, if any."""

    collections: Mapping[str, Collection]
    overlay: Path | None
    sha256: str  #: of the overlay, or of the built-in file

    @property
    def stand_in(self) -> bool:
        """Something of it may not be the real thing."""
        return self.overlay is not None


def load(path: str | Path | None = None) -> Catalogue:
    """The built-in catalogue, with ``path`` or DUPMAE_IR_CATALOGUE's file laid over it.

    Raises :class:`InputError` for a file that is no catalogue, :class:`UnknownName` for a collection it does not have.
    """
    overlay = path or os.environ.get(VARIABLE) or None
    return _load(Path(overlay).absolute() if overlay else None)


def find(name: str, catalogue: str | Path | None = None) -> Collection:
    """The collection of that name, ``local:FOLDER`` included. Raises :class:`UnknownName` with the nearest name."""
    if name.startswith(LOCAL):
        return _local(name)
    return lookup("collection", name, load(catalogue).collections)


def names() -> tuple[str, ...]:
    """Every built-in collection, in the catalogue's order."""
    return tuple(_load(None).collections)


def _load(overlay: Path | None) -> Catalogue:
    built_in = resources.files("dupmae_ir.collections").joinpath("catalogue.toml").read_bytes()
    if overlay is None:
        return _built_in(built_in)
    try:
        text = overlay.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{overlay}: no such catalogue (--catalogue or {VARIABLE} names it)") from None
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
    """``over``'s keys win; tables are merged."""
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
    words = {**addresses, "set": table.get("set", "")}
    own = {key: value for key, value in table.items() if key not in ("like", "set", "sources", "tests")}
    where = f"{where}: {name}"
    sources = {
        role: _made(Source, given, words, f"{where}.sources.{role}") for role, given in table.get("sources", {}).items()
    }
    tests = {
        test: _made(Test, {**given, "name": test}, words, f"{where}.tests.{test}")
        for test, given in table["tests"].items()
    }
    collection = _made(Collection, {**own, "name": name}, words, where)
    return dataclasses.replace(collection, sources=sources, tests=tests)


def _made(kind: type[T], values: Mapping[str, Any], words: Mapping[str, str], where: str) -> T:
    """One entry; in an overlay an empty string says "not known"."""
    values = {key: value for key, value in values.items() if value != ""}
    for key in _TEMPLATES & values.keys():
        values[key] = str(values[key]).format_map(words)
    return from_mapping(kind, values, where)


def _local(name: str) -> Collection:
    """A BEIR folder anywhere; its tests are what its ``qrels`` folder holds."""
    folder = Path(name.removeprefix(LOCAL)).expanduser()
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; {LOCAL} names one in BEIR's layout")
    tests = {}
    for path in sorted((folder / "qrels").glob("*.tsv")):
        qrels = read_qrels(path)
        tests[path.stem] = Test(path.stem, len(qrels), sum(map(len, qrels.values())), ("nDCG@10", "R@100"))
    if not tests:
        raise InputError(f"{folder}: no qrels/*.tsv in it; wants BEIR's corpus.jsonl, queries.jsonl, qrels/test.tsv")
    return Collection(name, folder.absolute().name, "local", None, tests)
