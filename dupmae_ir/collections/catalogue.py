"""The catalogue of collections (``catalogue.toml``) and the groups that are averaged together (``groups.toml``).

An overlay (``--catalogue FILE`` or ``$DUPMAE_IR_CATALOGUE``) has the same format; its keys replace those of the
built-in catalogue. With an overlay the same commands can use other archives, for example synthetic stand-ins in tests.
Collections made with one are marked as stand-ins and kept in a separate folder of the cache.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from dupmae_ir.config import from_mapping, read_toml
from dupmae_ir.console import one_line
from dupmae_ir.errors import InputError
from dupmae_ir.io.jobs import work_folder
from dupmae_ir.io.publishing import sha256_file
from dupmae_ir.io.transfer import RemoteFile, cache_folder
from dupmae_ir.registry import lookup, suggest

VARIABLE = "DUPMAE_IR_CATALOGUE"
FAMILIES = ("msmarco", "dpr", "beir", "demo")

_TEMPLATES = {"url", "corpus", "topics", "qrels"}
"""Keys whose text may contain {set} and {ADDRESS}."""
BUILT_IN = Path(__file__).with_name("catalogue.toml")
GROUPS: Mapping[str, tuple[str, ...]] = {
    name: tuple(members) for name, members in read_toml(BUILT_IN.with_name("groups.toml")).items()
}
"""Group -> members, in the papers' order."""
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
class TestCollection:
    """A collection with topics and judgements: its sources, counts and digests, and how it is evaluated."""

    __test__ = False

    name: str
    title: str
    family: str  #: one of FAMILIES
    documents: int | None = None
    tests: Mapping[str, Test] = field(default_factory=dict)
    sources: Mapping[str, RemoteFile] = field(default_factory=dict)  #: by role
    corpus: str = ""  #: "ROLE" or "ROLE:MEMBER"
    #: The tsv's texts are quoted as in csv files; they are rewritten as JSON lines.
    quoted: bool = False
    licensed: str = ""  #: how to obtain a collection that cannot be downloaded
    #: Word pieces kept in the papers' evaluations; None: the model's default.
    query_length: int | None = None
    document_length: int | None = None  #: like ``query_length``
    title_separator: str = "space"  #: between title and text: "space" or "sep"
    remove_query: bool = False  #: exclude the document with the query's own id
    note: str = ""


@dataclass(frozen=True)
class CollectionCatalogue:
    """All collections by name; ``overlay``: the file merged into the built-in catalogue, if any."""

    collections: Mapping[str, TestCollection]
    overlay: Path | None
    sha256: str  #: of the overlay, or of the built-in file

    @property
    def stand_in(self) -> bool:
        """True with an overlay: collections may not be the real ones."""
        return self.overlay is not None


@dataclass(frozen=True)
class Cache:
    """The folders for the collections of one catalogue.

    ``root`` is the cache folder, or ``stand-ins/DIGEST`` in it for a catalogue with an overlay, so that stand-ins are
    never mistaken for the real collections.
    """

    root: Path

    @classmethod
    def of(cls, catalogue: CollectionCatalogue, cache: str | Path | None = None) -> Cache:
        """The folders of ``catalogue`` in ``cache`` (default: $DUPMAE_IR_CACHE, else ~/.cache/dupmae_ir)."""
        root = Path(cache).expanduser().absolute() if cache else cache_folder()
        if catalogue.stand_in:
            root = root / "stand-ins" / catalogue.sha256[:12]
        return cls(root)

    def folder(self, collection: TestCollection) -> Path:
        """The folder of the prepared collection."""
        name = collection.name
        if collection.family == "demo":
            # The embedded collection is the documentation of the running interpreter.
            name += f"-python-{platform.python_version()}"
        return self.root / "collections" / name

    def work(self, collection: TestCollection) -> Path:
        """The hidden folder in which the collection is prepared."""
        return work_folder(self.folder(collection))

    def download(self, source: RemoteFile) -> Path:
        """The downloaded file of a source, by host and path, so that equal names do not collide."""
        parts = urlsplit(source.url)
        host = parts.netloc.replace(":", "_")  # Windows has no colons in names
        # The path starts with a slash, so its first part is empty.
        path = unquote(parts.path).split("/")[1:]
        return self.root.joinpath("downloads", host, *path)

    def licensed(self, collection: TestCollection) -> Path:
        """The folder in which the user places a collection that cannot be downloaded."""
        return self.root / "licensed" / collection.name


def load(path: str | Path | None = None) -> CollectionCatalogue:
    """The built-in catalogue, merged with the overlay ``path`` (default: $DUPMAE_IR_CATALOGUE).

    Raises :class:`InputError` for an overlay that is not valid or has an unknown collection.
    """
    overlay = path or os.environ.get(VARIABLE)
    if not overlay:
        return _load(None)
    overlay = Path(overlay).absolute()
    try:
        return _load(overlay, overlay.stat().st_mtime_ns)
    except FileNotFoundError:
        raise InputError(
            f"{overlay}: no such catalogue (set by `catalogue` or {VARIABLE})"
        ) from None
    except OSError as e:
        raise InputError(f"{overlay}: cannot be read: {e.strerror or e}") from None
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        problem = f"a value of another kind than in the built-in catalogue, or a name that it lacks: {one_line(e)}"
        raise InputError(f"{overlay}: {problem}") from None


def find(name: str, catalogue: str | Path | None = None) -> TestCollection:
    """The collection ``name``. Raises :class:`UnknownName`, suggesting a name."""
    return lookup("collection", name, load(catalogue).collections)


def names() -> tuple[str, ...]:
    """The names of all built-in collections, in the catalogue's order."""
    return tuple(_load(None).collections)


@functools.lru_cache(maxsize=8)
def _load(overlay: Path | None, modified: int = 0) -> CollectionCatalogue:  # noqa: ARG001 (distinguishes versions of the file)
    tables: Mapping[str, Any] = read_toml(BUILT_IN)
    if overlay is not None:
        overlay_tables = read_toml(overlay)
        _check_names("table", overlay_tables, tables, overlay)
        _check_names("shared table", overlay_tables.get("shared", {}), tables["shared"], overlay)
        tables = _merge(tables, overlay_tables)

    where = str(overlay or BUILT_IN.name)
    collections = {}
    for name, table in tables.items():
        if name in ("addresses", "shared"):
            continue
        if "like" in table:
            table = _merge(tables["shared"][table["like"]], table)
        collections[name] = _collection(name, table, tables["addresses"], where)
    return CollectionCatalogue(collections, overlay, sha256_file(overlay or BUILT_IN))


def _check_names(
    kind: str, names: Iterable[str], built_in: Mapping[str, object], overlay: Path
) -> None:
    """Refuse a name in an overlay that the built-in catalogue lacks: it is probably misspelt."""
    for name in names:
        if name not in built_in:
            raise InputError(
                f"{overlay}: no {kind} named {name!r} in the built-in catalogue.{suggest(name, built_in)}"
            )


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """``base`` updated with ``changes``; nested tables are merged."""
    result = dict(base)
    for key, value in changes.items():
        current = result.get(key)
        if isinstance(current, dict) and isinstance(value, dict):
            result[key] = _merge(current, value)
        else:
            result[key] = value
    return result


def _collection(
    name: str, table: Mapping[str, Any], addresses: Mapping[str, str], where: str
) -> TestCollection:
    values = {**addresses, "set": table.get("set", "")}
    where = f"{where}: {name}"
    sources = {}
    for role, source in table.get("sources", {}).items():
        sources[role] = _entry(RemoteFile, source, values, f"{where}.sources.{role}")
    tests = {}
    for test, test_settings in table["tests"].items():
        test_settings = {**test_settings, "name": test}
        tests[test] = _entry(Test, test_settings, values, f"{where}.tests.{test}")

    settings = {}
    for key, value in table.items():
        if key not in ("like", "set", "sources", "tests"):
            settings[key] = value
    collection = _entry(TestCollection, {**settings, "name": name}, values, where)
    return dataclasses.replace(collection, sources=sources, tests=tests)


def _entry(kind: type[T], settings: Mapping[str, Any], values: Mapping[str, str], where: str) -> T:
    """Build one entry, with ``values`` in its templates. An empty string in an overlay means "unknown"."""
    settings = {key: value for key, value in settings.items() if value != ""}
    templates = {key: str(settings[key]).format_map(values) for key in _TEMPLATES & settings.keys()}
    return from_mapping(kind, {**settings, **templates}, where)


def expand(name: str, catalogue: str | Path | None = None) -> tuple[str, ...]:
    """The collections of a group, with nested groups expanded, or the collection of that name itself.

    Raises :class:`UnknownName`, suggesting the nearest name.
    """
    if name in GROUPS:
        members: list[str] = []
        for member in GROUPS[name]:
            members += expand(member, catalogue)
        return tuple(members)
    lookup("collection or group", name, {**load(catalogue).collections, **GROUPS})
    return (name,)


def mean_over(group: str, values: Mapping[str, float]) -> tuple[float | None, tuple[str, ...]]:
    """(mean over a group, missing collections). The mean is None if a value is missing or not finite.

    ``values`` maps collections to values. CQADupStack counts once, as the mean of its twelve forums or as one value
    named ``beir-cqadupstack``; if none of the forums has a value, the group's name is reported as missing.
    """
    present = []
    missing: list[str] = []
    for member in lookup("group", group, GROUPS):
        value = values.get(member)
        if member in GROUPS and not _is_number(value):
            value, missing_forums = mean_over(member, values)
            if len(missing_forums) < len(GROUPS[member]):
                missing += missing_forums
            else:
                missing.append(member)
        elif not _is_number(value):
            missing.append(member)
        if value is not None:
            present.append(value)
    if missing:
        return None, tuple(missing)
    return math.fsum(present) / len(present), ()


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
