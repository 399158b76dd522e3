"""Verification of prepared collections: every byte and every line is read again."""

from __future__ import annotations

from dupmae_ir.collections.cache import Cache
from dupmae_ir.collections.catalogue import Collection
from dupmae_ir.collections.prepared import MANIFEST, Layout, collect_facts, differences, read_manifest
from dupmae_ir.errors import InputError


def find_problems(collection: Collection, cache: Cache, quiet: bool = False) -> list[str]:
    """Differences from the manifest and from the catalogue, one phrase each; empty if there are none."""
    folder = cache.folder(collection)
    manifest = read_manifest(folder / MANIFEST)
    if manifest is None:
        return [f"{folder / MANIFEST} is missing or unreadable"]
    if missing := [name for name in manifest.files if not (folder / name).is_file()]:
        return [f"{folder / name} is missing" for name in missing]
    try:
        facts = collect_facts(Layout.of(folder, folder / manifest.corpus, collection), collection.name, quiet)
    except InputError as e:
        return [str(e)]
    changed = [
        f"{folder / name} has changed (sha256 {facts.files.get(name, {}).get('sha256')}, was {entry['sha256']})"
        for name, entry in manifest.files.items()
        if facts.files.get(name) != entry
    ]
    return changed + differences(collection, facts)
