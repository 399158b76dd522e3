"""Where things lie: one cache for all, and another corner of it for all that is made with a catalogue of one's own."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from dupmae_ir.collections.catalogue import Catalogue, Collection
from dupmae_ir.io.downloads import Source, cache_folder


@dataclass(frozen=True)
class Place:
    """The folders of one catalogue.

    ROOT is the cache folder, or its ``stand-ins/DIGEST`` where a catalogue is laid over the built-in one, so that
    look-alikes can never be mistaken for the real thing, neither as downloads nor when they are ready.
    """

    root: Path

    @classmethod
    def of(cls, catalogue: Catalogue, cache: str | Path | None = None) -> Place:
        """The place of ``catalogue`` in ``cache`` (default: $DUPMAE_IR_CACHE, else ~/.cache/dupmae_ir)."""
        root = Path(cache).expanduser().absolute() if cache else cache_folder()
        return cls(root / "stand-ins" / catalogue.sha256[:12] if catalogue.stand_in else root)

    def folder(self, collection: Collection) -> Path:
        """Of a collection that is ready."""
        # The demonstration's texts are the running interpreter's.
        suffix = f"-python-{platform.python_version()}" if collection.family == "demo" else ""
        return self.root / "collections" / f"{collection.name}{suffix}"

    def making(self, collection: Collection) -> Path:
        """Where it is put together, beside where it is going to be."""
        folder = self.folder(collection)
        return folder.with_name(f".{folder.name}.making")

    def lock(self, collection: Collection) -> Path:
        """Held while it is put together."""
        folder = self.folder(collection)
        return folder.with_name(f".{folder.name}.lock")

    def download(self, source: Source) -> Path:
        """Of a source, under its host and path, so that two of one name never meet."""
        parts = urlsplit(source.url)
        return self.root.joinpath("downloads", parts.netloc.replace(":", "_"), *unquote(parts.path).split("/")[1:])

    def licensed(self, collection: Collection) -> Path:
        """Where a person puts the BEIR folder of a collection that cannot be downloaded."""
        return self.root / "licensed" / collection.name
