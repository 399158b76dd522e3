"""Everything of a collection on disk read again, byte by byte and line by line."""

from __future__ import annotations

from dupmae_ir.collections.catalogue import Collection
from dupmae_ir.collections.paths import Place
from dupmae_ir.collections.prepared import MANIFEST, Layout, differences, measure, read_manifest
from dupmae_ir.errors import InputError


def problems(collection: Collection, place: Place, quiet: bool = False) -> list[str]:
    """What is wrong with a collection that was made; one phrase each, none when it is as it was and should be."""
    folder = place.folder(collection)
    manifest = read_manifest(folder / MANIFEST)
    if manifest is None:
        return [f"{folder / MANIFEST} is missing or unreadable"]
    if lacking := [name for name in manifest.files if not (folder / name).is_file()]:
        return [f"{folder / name} is missing" for name in lacking]
    try:
        facts = measure(Layout.of(folder, folder / manifest.corpus, collection), collection.name, quiet)
    except InputError as e:
        return [str(e)]
    changed = [
        f"{folder / name} has changed (sha256 {facts.files.get(name, {}).get('sha256')}, was {entry['sha256']})"
        for name, entry in manifest.files.items()
        if facts.files.get(name) != entry
    ]
    return changed + differences(collection, facts)
