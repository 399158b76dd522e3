"""The files that a collection is made of: fetched and unpacked when they are asked for, shared where they can be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dupmae_ir.collections.catalogue import Catalogue, Collection
from dupmae_ir.collections.paths import Place
from dupmae_ir.collections.prepared import on_disk
from dupmae_ir.errors import InputError, Licensed
from dupmae_ir.io.archives import unpack
from dupmae_ir.io.downloads import download

UNPACKED = ".unpacked"  #: in the folder in the making


@dataclass(frozen=True)
class Sources:
    """Files of a collection by "ROLE" or "ROLE:MEMBER", fetched and unpacked when they are asked for."""

    collection: Collection
    catalogue: Catalogue
    place: Place
    mirror: str | None
    quiet: bool

    def path(self, reference: str) -> Path:
        role, _, member = reference.partition(":")
        if self.collection.licensed:
            return self._put(member)
        file = self._fetched(role)
        return self._unpacked(file, role) / member if member else file

    def borrowed(self) -> Path | None:
        """The corpus of another collection that is ready and has the very same one (both of DPR)."""
        same = [c for c in self.catalogue.collections.values() if _same_corpus(c, self.collection)]
        there = (on_disk(collection, self.place) for collection in same)
        return next((other.corpus for other in there if other), None)

    def _fetched(self, role: str) -> Path:
        source = self.collection.sources[role]
        return download(source, self.place.download(source), mirror=self.mirror, quiet=self.quiet)

    def _unpacked(self, archive: Path, role: str) -> Path:
        folder = self.place.making(self.collection) / UNPACKED / role
        if not folder.exists():
            wanted = {m for r, m in map(_split, _references(self.collection)) if r == role}
            unpack(archive, folder, wanted.__contains__, quiet=self.quiet)
            if lacking := sorted(member for member in wanted if not (folder / member).is_file()):
                raise InputError(f"{archive}: no {lacking[0]} in it; this is not the archive of {self.collection.name}")
        return folder

    def _put(self, member: str) -> Path:
        folder = self.place.licensed(self.collection)
        if not folder.is_dir():
            raise Licensed(licence_message(self.collection, self.place))
        names = (member, f"{member}.gz")
        found = next((folder / name for name in names if (folder / name).is_file()), None)
        if found is None:
            raise Licensed(f"{folder / member}: no such file; the folder wants BEIR's layout")
        return found


def _split(reference: str) -> tuple[str, str]:
    role, _, member = reference.partition(":")
    return role, member


def _references(collection: Collection) -> list[str]:
    references = [collection.corpus, *(r for t in collection.tests.values() for r in (t.topics, t.qrels))]
    return [reference for reference in references if reference]


def _same_corpus(one: Collection, other: Collection) -> bool:
    origin = _origin(one)
    return one.name != other.name and origin is not None and (one.corpus, origin) == (other.corpus, _origin(other))


def _origin(collection: Collection) -> str | None:
    """Where the corpus is downloaded from."""
    source = collection.sources.get(collection.corpus.partition(":")[0])
    return source.url if source else None


def discard(collection: Collection, catalogue: Catalogue, place: Place) -> None:
    """Remove the download the corpus came from, unless another collection still has to be made of it."""
    origin = _origin(collection)
    waiting = (
        _origin(other) == origin and other.corpus != collection.corpus and not on_disk(other, place)
        for other in catalogue.collections.values()
    )
    if origin is not None and not any(waiting):
        target = place.download(collection.sources[collection.corpus.partition(":")[0]])
        for path in (target, target.with_name(f".{target.name}.json")):
            path.unlink(missing_ok=True)


def licence_message(collection: Collection, place: Place) -> str:
    """One line: how to obtain it and where to put it."""
    return (
        f"{collection.name} cannot be downloaded: {collection.licensed}; then put corpus.jsonl, queries.jsonl and "
        f"qrels/test.tsv (BEIR's layout) into {place.licensed(collection)}"
    )
