"""The folders of the cache. Collections made with an overlay catalogue have a separate root."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from dupmae_ir.collections.catalogue import Catalogue, Collection
from dupmae_ir.io.downloads import Source, cache_folder
from dupmae_ir.io.jobs import work_folder


@dataclass(frozen=True)
class Cache:
    """The folders for the collections of one catalogue.

    ``root`` is the cache folder, or ``stand-ins/DIGEST`` in it for a catalogue with an overlay, so that stand-ins are
    never mistaken for the real collections.
    """

    root: Path

    @classmethod
    def of(cls, catalogue: Catalogue, cache: str | Path | None = None) -> Cache:
        """The folders of ``catalogue`` in ``cache`` (default: $DUPMAE_IR_CACHE, else ~/.cache/dupmae_ir)."""
        root = Path(cache).expanduser().absolute() if cache else cache_folder()
        return cls(root / "stand-ins" / catalogue.sha256[:12] if catalogue.stand_in else root)

    def folder(self, collection: Collection) -> Path:
        """The folder of the prepared collection."""
        # The embedded collection is the documentation of the running interpreter.
        suffix = f"-python-{platform.python_version()}" if collection.family == "demo" else ""
        return self.root / "collections" / f"{collection.name}{suffix}"

    def work(self, collection: Collection) -> Path:
        """The hidden folder in which the collection is prepared."""
        return work_folder(self.folder(collection))

    def download(self, source: Source) -> Path:
        """The downloaded file of a source, by host and path, so that equal names do not collide."""
        parts = urlsplit(source.url)
        return self.root.joinpath("downloads", parts.netloc.replace(":", "_"), *unquote(parts.path).split("/")[1:])

    def licensed(self, collection: Collection) -> Path:
        """The folder in which the user places a collection that cannot be downloaded."""
        return self.root / "licensed" / collection.name
