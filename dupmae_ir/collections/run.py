"""The work of ``dupmae-ir collections list``, ``show``, ``get`` and ``check``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from dupmae_ir.collections.catalogue import (
    GROUPS,
    Cache,
    CollectionCatalogue,
    Test,
    TestCollection,
    expand,
    find,
    load,
)
from dupmae_ir.collections.convert import licence_message
from dupmae_ir.collections.prepare import get, state
from dupmae_ir.collections.prepared import PreparedManifest
from dupmae_ir.config import OutputOptions, input_option, option
from dupmae_ir.console import megabytes, say
from dupmae_ir.errors import Licensed, UnknownName, UsageError
from dupmae_ir.io.jobs import COMPLETE
from dupmae_ir.measures import parse_measures

folder_option = partial(option, group="folders")


@dataclass(frozen=True, kw_only=True)
class CacheOptions(OutputOptions):
    """The cache and the catalogue; shared by all three commands."""

    cache: str | None = folder_option(
        None, "cache folder (default: $DUPMAE_IR_CACHE, else ~/.cache/dupmae_ir)", metavar="FOLDER"
    )
    catalogue: str | None = folder_option(
        None,
        "TOML file overriding entries of the built-in catalogue (default: $DUPMAE_IR_CATALOGUE); collections made "
        "with it are marked as stand-ins and kept in a separate folder",
        metavar="FILE",
    )


@dataclass(frozen=True, kw_only=True)
class ListCollectionsConfig(CacheOptions):
    """List all collections with their documents, tests and state in the cache.

    Examples:
        dupmae-ir collections list --json
    """


@dataclass(frozen=True, kw_only=True)
class ShowCollectionConfig(CacheOptions):
    """Show everything known about a collection: addresses, checksums, measures, and where its files belong.

    Examples:
        dupmae-ir collections show beir-arguana
    """

    name: str = input_option(help="a collection", metavar="NAME", positional=True)


@dataclass(frozen=True, kw_only=True)
class GetCollectionsConfig(CacheOptions):
    """Prepare collections in the cache, in BEIR's layout. Missing files are downloaded, unpacked, converted and
    verified: published checksums, numbers of documents, queries and judgements, and digests of topics and judgements.
    An interrupted download is resumed by the same command. A group stands for its members; licensed members, which
    cannot be downloaded, are skipped unless their files have been placed in the cache.

    Examples:
        dupmae-ir collections get beir-scifact msmarco-passage-titled
        dupmae-ir collections get beir-14 --cache /data/collections
    """

    names: tuple[str, ...] = input_option(
        help=f"collections or groups ({', '.join(GROUPS)})", metavar="NAME", positional=True
    )
    mirror: str | None = folder_option(
        None,
        "base URL of a mirror that serves every address as MIRROR/host/path (default: $DUPMAE_IR_MIRROR)",
        metavar="URL",
    )


@dataclass(frozen=True)
class CollectionRow:
    """A collection in the list."""

    name: str
    title: str
    documents: int | None
    tests: list[str]
    state: str
    folder: str


def list_collections(config: ListCollectionsConfig) -> list[CollectionRow]:
    """One row per collection of the catalogue."""
    catalogue, cache = _open(config)
    return [_row(collection, cache) for collection in catalogue.collections.values()]


def describe_cache(config: ListCollectionsConfig) -> list[str]:
    """Notes for below the list: groups with their sizes, and the cache folder."""
    catalogue, cache = _open(config)
    groups = "; ".join(f"{name} ({len(expand(name, config.catalogue))})" for name in GROUPS)
    overlay = f"stand-ins of {catalogue.overlay} " if catalogue.stand_in else ""
    return [f"groups: {groups}", f"{overlay}in {cache.root}"]


def show_collection(config: ShowCollectionConfig) -> Mapping[str, object]:
    """Everything known about one collection. Raises :class:`UsageError` for a group."""
    if config.name in GROUPS:
        raise UsageError(
            f"{config.name} is a group of {', '.join(GROUPS[config.name])}; show one of them"
        )
    collection = find(config.name, config.catalogue)
    _, cache = _open(config)
    row = vars(_row(collection, cache))
    downloads = {role: str(cache.download(source)) for role, source in collection.sources.items()}
    return {**row, **dataclasses.asdict(collection), "downloads": downloads}


def get_collections(config: GetCollectionsConfig) -> list[dict[str, object]]:
    """Prepare collections in order, and return their manifests with folder and status.

    Licensed members of a group are skipped; any other failure ends the command.
    """
    _, cache = _open(config)
    skipped = []
    manifests = []
    for name, only_in_group in _expand_all(config.names, config.catalogue):
        was_ready = _row(find(name, config.catalogue), cache).state == "ready"
        try:
            prepared = get(
                name,
                cache=config.cache,
                mirror=config.mirror,
                catalogue=config.catalogue,
                quiet=config.quiet,
            )
        except Licensed as e:
            if not only_in_group:
                raise
            skipped.append(name)
            say(f"SKIP: {e}", config.quiet)
            continue
        status = COMPLETE if was_ready else "complete"
        say(f"{name}: {status}", config.quiet)
        manifests.append(
            {
                "folder": str(prepared.folder),
                "status": status,
                "summary": summarize(prepared.manifest),
                **dataclasses.asdict(prepared.manifest),
            }
        )
    if skipped:
        say(f"skipped because they are licensed: {', '.join(skipped)}", config.quiet)
    return manifests


def describe(config: ShowCollectionConfig) -> Iterator[tuple[str, str]]:
    """(label, text) of everything known about a collection; the label is empty on continuation lines."""
    collection = find(config.name, config.catalogue)
    _, cache = _open(config)
    row = _row(collection, cache)
    yield "state", row.state
    yield "folder", row.folder
    if collection.documents is not None:
        yield "documents", f"{collection.documents:,}"
    for test in collection.tests.values():
        yield f"test {test.name}", _describe_test(test)
        for measure in test.measures:
            yield "", _describe_measure(measure)
    lengths = []
    if collection.document_length:
        lengths.append(f"documents {collection.document_length}")
    if collection.query_length:
        lengths.append(f"queries {collection.query_length}")
    if lengths:
        yield "word pieces kept", f"{', '.join(lengths)} (--document-length, --query-length)"
    if collection.title_separator != "space":
        yield "titles", f"joined with --title-separator {collection.title_separator}"
    if collection.remove_query:
        yield "self-retrieval", "the document with the query's own id is excluded (--remove-query)"
    if collection.note:
        yield "note", collection.note
    if collection.licensed:
        yield "licensed", licence_message(collection, cache)
    for role, source in collection.sources.items():
        yield role, source.url
        if source.size:
            yield "", megabytes(source.size)
        for kind, digest in source.digests.items():
            yield "", f"{kind} {digest}"
        if not source.digests:
            yield "", "no checksum is published"
    if collection.sources:
        downloads = cache.root / "downloads"
        first = cache.download(next(iter(collection.sources.values())))
        yield "by hand", f"put each file below {downloads} by host and path, the first at {first}"


def _describe_test(test: Test) -> str:
    """``300 queries, 339 judgements``."""
    parts = []
    if test.queries is not None:
        parts.append(f"{test.queries:,} queries")
    if test.answers:
        parts.append("answer strings instead of judgements")
    elif test.judgements is None:
        parts.append("? judgements")
    else:
        parts.append(f"{test.judgements:,} judgements")
    if test.dangling:
        parts.append(f"{test.dangling} of them for documents not in the collection")
    return ", ".join(parts)


def _describe_measure(measure: str) -> str:
    """A measure with trec_eval's flags for it, if trec_eval has it."""
    flags = None
    with suppress(UnknownName):  # DPR's answer accuracy is not trec_eval's
        flags = parse_measures([measure])[0].trec_flags()
    return f"{measure} = trec_eval {flags}" if flags else measure


def summarize(manifest: PreparedManifest) -> str:
    """One line on a prepared collection: documents, and queries and judgements of each test."""
    tests = []
    for name, test in manifest.tests.items():
        if test["qrels_digest"] is None:
            judgements = "answer strings"
        else:
            judgements = f"{test['judgements']:,} judgements"
        tests.append(f"{name}: {test['queries']:,} queries, {judgements}")
    mark = "STAND-IN, " if manifest.stand_in else ""
    return f"{mark}{manifest.documents:,} documents; {'; '.join(tests)}"


class _NamedCollection(NamedTuple):
    name: str
    only_in_group: bool  #: it was named only through a group


def _expand_all(names: tuple[str, ...], catalogue: str | None) -> list[_NamedCollection]:
    """The collections of all names, each once. Raises :class:`UnknownName` before any of them is prepared."""
    only_in_group: dict[str, bool] = {}
    for name in names:
        for member in expand(name, catalogue):
            only_in_group[member] = only_in_group.get(member, True) and name in GROUPS
    return [_NamedCollection(name, in_group) for name, in_group in only_in_group.items()]


def _open(config: CacheOptions) -> tuple[CollectionCatalogue, Cache]:
    catalogue = load(config.catalogue)
    return catalogue, Cache.of(catalogue, config.cache)


def _row(collection: TestCollection, cache: Cache) -> CollectionRow:
    return CollectionRow(
        collection.name,
        collection.title,
        collection.documents,
        list(collection.tests),
        state(collection, cache),
        str(cache.folder(collection)),
    )
