"""From sources to a collection that is ready: download, unpack, convert, verify, publish. Run again, it goes on.

All work is done in a hidden folder beside the target and takes its place as a whole; a killed run leaves that folder
and half a download, of which the next run clears the one and continues the other.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dupmae_ir.collections.catalogue import LOCAL, Catalogue, Collection, find, load
from dupmae_ir.collections.convert import convert
from dupmae_ir.collections.download import UNPACKED, Sources, discard
from dupmae_ir.collections.paths import Place
from dupmae_ir.collections.prepared import (
    MANIFEST,
    Facts,
    Layout,
    Manifest,
    Ready,
    differences,
    manifest_of,
    measure,
    on_disk,
    opened,
    read_manifest,
)
from dupmae_ir.console import say
from dupmae_ir.errors import InputError, UsageError, WrongCollection
from dupmae_ir.io.locks import exclusive
from dupmae_ir.io.publishing import move_into_place


def ready(name: str, *, cache: str | Path | None = None, catalogue: str | Path | None = None) -> Ready | None:
    """The collection as it lies in the cache, or None; never touches the network.

    Sizes and what the manifest says are looked at, not every byte (``check`` does that). A ``local:`` folder is read
    once and then only when its files have changed.
    """
    collection, known = find(name, catalogue), load(catalogue)
    if name.startswith(LOCAL):
        return _local(collection, known, Place.of(known, cache), quiet=True)
    return on_disk(collection, Place.of(known, cache))


def get(
    name: str,
    *,
    cache: str | Path | None = None,
    mirror: str | None = None,
    catalogue: str | Path | None = None,
    quiet: bool = False,
) -> Ready:
    """The collection, ready: what is missing is downloaded, converted and verified first.

    ``mirror`` replaces the hosts of all addresses: MIRROR/host/path. Raises :class:`UnknownName`; :class:`Licensed`
    for what nobody may hand out; :class:`EnvironmentProblem` without a network, naming the file to put somewhere;
    :class:`WrongCollection` when counts or digests are not those of the catalogue.
    """
    collection, known = find(name, catalogue), load(catalogue)
    place = Place.of(known, cache)
    if name.startswith(LOCAL):
        return _local(collection, known, place, quiet)
    if found := on_disk(collection, place):
        return found
    with _alone(place.lock(collection), f"preparing {name}", quiet):
        # Whoever held the lock before may have done it.
        return on_disk(collection, place) or _prepare(collection, known, place, mirror, quiet)


def state(collection: Collection, place: Place) -> str:
    """ready, part (something of it is on disk), missing, or licensed (and nothing was put there)."""
    if on_disk(collection, place):
        return "ready"
    if collection.licensed and not place.licensed(collection).is_dir():
        return "licensed"
    there = [place.folder(collection), place.making(collection), place.licensed(collection)]
    targets = [place.download(source) for source in collection.sources.values()]
    there += [*targets, *(target.with_name(f"{target.name}.part") for target in targets)]
    return "part" if any(path.exists() for path in there) else "missing"


def _local(collection: Collection, catalogue: Catalogue, place: Place, quiet: bool) -> Ready:
    """A folder of somebody's own: nothing is written there, what was measured is remembered in the cache."""
    folder = Path(collection.name.removeprefix(LOCAL)).expanduser().absolute()
    corpora = [folder / f"corpus{ending}" for ending in (".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz")]
    corpus = next((path for path in corpora if path.is_file()), corpora[0])
    layout = Layout.of(folder, corpus, collection)
    if lacking := [path for path in layout.files() if not path.is_file()]:
        raise InputError(f"{lacking[0]}: no such file; {LOCAL} wants a folder in BEIR's layout")
    states = {str(p.relative_to(folder)): [p.stat().st_size, p.stat().st_mtime_ns] for p in layout.files()}
    remembered = place.root / "local" / f"{folder.name}-{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}.json"
    manifest = read_manifest(remembered)
    if manifest is None or manifest.states != states:
        facts = measure(layout, collection.name, quiet)
        manifest = dataclasses.replace(manifest_of(collection, catalogue, layout, facts), states=states)
        manifest.write(remembered)
    return opened(collection, folder, manifest)


def _prepare(collection: Collection, catalogue: Catalogue, place: Place, mirror: str | None, quiet: bool) -> Ready:
    folder, making = place.folder(collection), place.making(collection)
    shutil.rmtree(making, ignore_errors=True)  # of a run that was killed
    making.mkdir(parents=True)
    try:
        manifest = _made(Sources(collection, catalogue, place, mirror, quiet))
        move_into_place(making, folder)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
    discard(collection, catalogue, place)
    return opened(collection, folder, manifest)


def _made(sources: Sources) -> Manifest:
    """All files of a collection in the folder in the making, verified, the manifest last."""
    collection, making = sources.collection, sources.place.making(sources.collection)
    if collection.family == "demo":
        from dupmae_ir.collections.stdlib.documentation import write_beir

        write_beir(making)
        corpus = making / "corpus.jsonl"
    else:
        corpus = convert(sources)
    shutil.rmtree(making / UNPACKED, ignore_errors=True)
    layout = Layout.of(making, corpus, collection)
    facts = measure(layout, collection.name, sources.quiet)
    if found := differences(collection, facts):
        advice = _advice(collection, sources.place)
        raise WrongCollection(f"{collection.name} is not what the catalogue describes: {'; '.join(found)}. {advice}")
    _remark_dangling(collection, facts, sources.quiet)
    manifest = manifest_of(collection, sources.catalogue, layout, facts)
    manifest.write(making / MANIFEST)
    return manifest


def _remark_dangling(collection: Collection, facts: Facts, quiet: bool) -> None:
    for name, test in facts.tests.items():
        known = collection.tests[name].dangling
        if test["dangling"] and test["dangling"] != known:
            said = f"{known} are known" if known is not None else "none were known"
            say(f"{collection.name}: {test['dangling']} relevant document(s) of {name} are not in it; {said}", quiet)


def _advice(collection: Collection, place: Place) -> str:
    if collection.licensed:
        return f"Correct {place.licensed(collection)}, or describe yours in a catalogue (--catalogue)"
    if not collection.sources:
        return "Describe yours in a catalogue (--catalogue)"
    files = ", ".join(str(p) for s in collection.sources.values() if (p := place.download(s)).exists())
    return f"Remove {files} to download again, or describe yours in a catalogue (--catalogue)"


@contextmanager
def _alone(lock: Path, what: str, quiet: bool) -> Iterator[None]:
    """Hold the lock; stand in line, and say so, where another process has it."""
    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive(lock, what))
        except UsageError as e:
            say(f"{e.args[0].partition(';')[0]}; waiting for it", quiet)
            stack.enter_context(exclusive(lock, what, wait=True))
        yield
