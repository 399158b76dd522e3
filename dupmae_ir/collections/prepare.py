"""Preparation of a collection in the cache: download, unpack, convert, verify, publish.

Work happens in a hidden folder next to the target, which replaces the target when it is complete. After a kill, the
next run recovers the target, removes the work folder and resumes the download. A collection has no settings: the
catalogue determines its content, and overlays have a separate folder. A second process waits for the first.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from dupmae_ir.collections.catalogue import Cache, TestCollection, find, load
from dupmae_ir.collections.convert import UNPACKED, SourceFiles, convert, discard_download
from dupmae_ir.collections.prepared import (
    MANIFEST,
    PreparedCollection,
    PreparedManifest,
    collect_facts,
    differences,
    find_in_cache,
    manifest_of,
    open_folder,
)
from dupmae_ir.collections.stdlib import write_beir
from dupmae_ir.console import say
from dupmae_ir.errors import WrongCollection
from dupmae_ir.io.locks import exclusive, lock_path
from dupmae_ir.io.publishing import move_into_place, recover, sweep


def find_prepared(
    name: str, *, cache: str | Path | None = None, catalogue: str | Path | None = None
) -> PreparedCollection | None:
    """The collection in the cache, or None if it is not prepared; never uses the network.

    Sizes and the manifest are compared, not every byte.
    """
    return find_in_cache(find(name, catalogue), Cache.of(load(catalogue), cache))


def get(
    name: str,
    *,
    cache: str | Path | None = None,
    mirror: str | None = None,
    catalogue: str | Path | None = None,
    quiet: bool = False,
) -> PreparedCollection:
    """The prepared collection; downloads, converts and verifies it first if necessary.

    Args:
        name: a collection of the catalogue.
        cache: cache folder (default: $DUPMAE_IR_CACHE, else ~/.cache/dupmae_ir).
        mirror: base URL that replaces the hosts of all addresses: MIRROR/host/path.
        catalogue: overlay of the built-in catalogue.
        quiet: print no progress.

    Raises:
        UnknownName: no such collection.
        Licensed: the collection cannot be downloaded; the message has how to obtain it.
        EnvironmentProblem: a download failed; the message names the file to place by hand.
        WrongCollection: counts or digests differ from the catalogue's.
    """
    collection = find(name, catalogue)
    collections = load(catalogue)
    folders = Cache.of(collections, cache)
    prepared = find_in_cache(collection, folders)
    if prepared:
        return prepared

    target = folders.folder(collection)
    with exclusive(lock_path(target), f"preparing {name}", wait=True, quiet=quiet):
        recover(target)
        sweep(target)
        # Another process may have prepared it while this one waited.
        prepared = find_in_cache(collection, folders)
        if prepared:
            return prepared
        return _prepare(SourceFiles(collection, collections, folders, mirror, quiet))


def state(collection: TestCollection, cache: Cache) -> str:
    """``ready``, ``part`` (some of its files are on disk), ``missing``, or ``licensed`` (to be obtained by hand)."""
    if find_in_cache(collection, cache):
        return "ready"
    if collection.licensed and not cache.licensed(collection).is_dir():
        return "licensed"
    paths = [cache.folder(collection), cache.work(collection), cache.licensed(collection)]
    for source in collection.sources.values():
        target = cache.download(source)
        paths.append(target)
        paths.append(target.with_name(f"{target.name}.part"))
    return "part" if any(path.exists() for path in paths) else "missing"


def _prepare(sources: SourceFiles) -> PreparedCollection:
    collection = sources.collection
    work = sources.work
    target = sources.cache.folder(collection)
    shutil.rmtree(work, ignore_errors=True)  # left by a killed run
    work.mkdir(parents=True)
    try:
        manifest = _write_files(sources)
        move_into_place(work, target)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    # Only now: until the collection is in place, a second run needs the download.
    discard_download(collection, sources.catalogue, sources.cache)
    return open_folder(collection, target, manifest)


def _write_files(sources: SourceFiles) -> PreparedManifest:
    """Write all files into the work folder, verify them, and write the manifest last."""
    collection = sources.collection
    work = sources.work
    if collection.family == "demo":
        write_beir(work)
        corpus = work / "corpus.jsonl"
    else:
        corpus = convert(sources)
    shutil.rmtree(work / UNPACKED, ignore_errors=True)
    facts = collect_facts(collection, work, corpus, sources.quiet)
    mismatches = differences(collection, facts)
    if mismatches:
        advice = _advice(collection, sources.cache)
        raise WrongCollection(
            f"{collection.name} does not match the catalogue: {'; '.join(mismatches)}. {advice}"
        )
    for name, test in facts.tests.items():
        dangling = test["dangling"]
        expected = collection.tests[name].dangling
        if dangling and dangling != expected:
            expectation = "none" if expected is None else expected
            say(
                f"{collection.name}: {dangling} relevant document(s) of {name} not in the corpus; "
                f"{expectation} expected",
                sources.quiet,
            )
    manifest = manifest_of(collection, sources.catalogue, facts, corpus.name)
    manifest.write(work / MANIFEST)
    return manifest


def _advice(collection: TestCollection, cache: Cache) -> str:
    if collection.licensed:
        return f"Correct {cache.licensed(collection)}, or describe your files in a catalogue (`catalogue`)"
    if not collection.sources:
        return "Describe your files in a catalogue (`catalogue`)"
    downloads = [cache.download(source) for source in collection.sources.values()]
    files = ", ".join(str(path) for path in downloads if path.exists())
    return f"Remove {files} to download again, or describe your files in a catalogue (`catalogue`)"
