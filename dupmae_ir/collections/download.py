"""The source files of a collection: downloaded and unpacked on demand, shared between collections where possible."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dupmae_ir.collections.catalogue import Cache, CollectionCatalogue, TestCollection
from dupmae_ir.collections.prepared import find_in_cache
from dupmae_ir.errors import InputError, Licensed
from dupmae_ir.io.archives import unpack
from dupmae_ir.io.transfer import download

UNPACKED = ".unpacked"  #: folder for archive members, inside the work folder


@dataclass(frozen=True)
class SourceFiles:
    """The files of a collection by reference, "ROLE" or "ROLE:MEMBER"; downloaded and unpacked on first use."""

    collection: TestCollection
    catalogue: CollectionCatalogue
    cache: Cache
    mirror: str | None
    quiet: bool

    @property
    def work(self) -> Path:
        """The folder in which the collection is prepared."""
        return self.cache.work(self.collection)

    def path(self, reference: str) -> Path:
        """The file of a reference: a download, a member of a downloaded archive, or a licensed file.

        Raises :class:`EnvironmentProblem` if it cannot be downloaded, :class:`Licensed` if the user has to obtain it,
        and :class:`InputError` for an archive without the member.
        """
        role, _, member = reference.partition(":")
        if self.collection.licensed:
            return self._licensed_file(member)
        source = self.collection.sources[role]
        file = download(source, self.cache.download(source), mirror=self.mirror, quiet=self.quiet)
        return self._unpacked(file, role) / member if member else file

    def shared_corpus(self) -> Path | None:
        """The same corpus, already prepared for another collection (DPR's collections share one)."""
        mine = (self.collection.corpus, _corpus_url(self.collection))
        others = (c for c in self.catalogue.collections.values() if c.name != self.collection.name and mine[1])
        prepared = (find_in_cache(c, self.cache) for c in others if (c.corpus, _corpus_url(c)) == mine)
        return next((other.corpus for other in prepared if other), None)

    def _unpacked(self, archive: Path, role: str) -> Path:
        folder = self.work / UNPACKED / role
        if not folder.exists():
            tests = self.collection.tests.values()
            references = (self.collection.corpus, *(r for t in tests for r in (t.topics, t.qrels)))
            members = {r.partition(":")[2] for r in references if r.partition(":")[0] == role}
            unpack(archive, folder, members.__contains__, quiet=self.quiet)
            if missing := sorted(member for member in members if not (folder / member).is_file()):
                raise InputError(f"{archive}: no {missing[0]} in it; this is not the archive of {self.collection.name}")
        return folder

    def _licensed_file(self, name: str) -> Path:
        folder = self.cache.licensed(self.collection)
        if not folder.is_dir():
            raise Licensed(licence_message(self.collection, self.cache))
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
        raise Licensed(f"{folder / name}: no such file; the folder must have BEIR's layout")


def discard_download(collection: TestCollection, catalogue: CollectionCatalogue, cache: Cache) -> None:
    """Remove the download of the corpus, unless another collection still has to be prepared from it."""
    url = _corpus_url(collection)
    waiting = (
        _corpus_url(other) == url and other.corpus != collection.corpus and not find_in_cache(other, cache)
        for other in catalogue.collections.values()
    )
    if url is not None and not any(waiting):
        target = cache.download(collection.sources[collection.corpus.partition(":")[0]])
        for path in (target, target.with_name(f".{target.name}.json")):
            path.unlink(missing_ok=True)


def licence_message(collection: TestCollection, cache: Cache) -> str:
    """One line with how to obtain a licensed collection and where to put it."""
    return (
        f"{collection.name} cannot be downloaded: {collection.licensed}; then put corpus.jsonl, queries.jsonl and "
        f"qrels/test.tsv (BEIR's layout) into {cache.licensed(collection)}"
    )


def _corpus_url(collection: TestCollection) -> str | None:
    """The URL from which the corpus is downloaded."""
    source = collection.sources.get(collection.corpus.partition(":")[0])
    return source.url if source else None
