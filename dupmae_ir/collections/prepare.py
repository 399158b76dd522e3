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
    collection, known = find(name, catalogue), load(catalogue)
    folders = Cache.of(known, cache)
    if prepared := find_in_cache(collection, folders):
        return prepared
    target = folders.folder(collection)
    with exclusive(lock_path(target), f"preparing {name}", wait=True, quiet=quiet):
        recover(target)
        sweep(target)
        # Another process may have prepared it while this one waited.
        return find_in_cache(collection, folders) or _prepare(
            SourceFiles(collection, known, folders, mirror, quiet)
        )


def state(collection: TestCollection, cache: Cache) -> str:
    """``ready``, ``part`` (some of its files are on disk), ``missing``, or ``licensed`` (to be obtained by hand)."""
    if find_in_cache(collection, cache):
        return "ready"
    if collection.licensed and not cache.licensed(collection).is_dir():
        return "licensed"
    paths = [cache.folder(collection), cache.work(collection), cache.licensed(collection)]
    targets = [cache.download(source) for source in collection.sources.values()]
    paths += [*targets, *(target.with_name(f"{target.name}.part") for target in targets)]
    return "part" if any(path.exists() for path in paths) else "missing"


def _prepare(sources: SourceFiles) -> PreparedCollection:
    collection, work = sources.collection, sources.work
    target = sources.cache.folder(collection)
    shutil.rmtree(work, ignore_errors=True)  # left by a killed run
    work.mkdir(parents=True)
    try:
        manifest = _write_files(sources)
        move_into_place(work, target)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    discard_download(collection, sources.catalogue, sources.cache)
    return open_folder(collection, target, manifest)


def _write_files(sources: SourceFiles) -> PreparedManifest:
    """Write all files into the work folder, verify them, and write the manifest last."""
    collection, work = sources.collection, sources.work
    if collection.family == "demo":
        write_beir(work)
        corpus = work / "corpus.jsonl"
    else:
        corpus = convert(sources)
    shutil.rmtree(work / UNPACKED, ignore_errors=True)
    facts = collect_facts(collection, work, corpus, sources.quiet)
    if wrong := differences(collection, facts):
        advice = _advice(collection, sources.cache)
        raise WrongCollection(
            f"{collection.name} does not match the catalogue: {'; '.join(wrong)}. {advice}"
        )
    for name, test in facts.tests.items():
        expected = collection.tests[name].dangling
        if test["dangling"] and test["dangling"] != expected:
            known = f"{expected} expected" if expected is not None else "none expected"
            absent = f"{test['dangling']} relevant document(s) of {name} not in the corpus"
            say(f"{collection.name}: {absent}; {known}", sources.quiet)
    manifest = manifest_of(collection, sources.catalogue, facts, corpus.name)
    manifest.write(work / MANIFEST)
    return manifest


def _advice(collection: TestCollection, cache: Cache) -> str:
    if collection.licensed:
        return f"Correct {cache.licensed(collection)}, or describe your files in a catalogue (`catalogue`)"
    if not collection.sources:
        return "Describe your files in a catalogue (`catalogue`)"
    files = ", ".join(
        str(p) for s in collection.sources.values() if (p := cache.download(s)).exists()
    )
    return f"Remove {files} to download again, or describe your files in a catalogue (`catalogue`)"
