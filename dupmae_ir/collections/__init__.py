"""Test collections by name: download, verification, conversion to BEIR's layout, and means over groups."""

from dupmae_ir.collections.benchmark_groups import GROUPS, expand, mean_over
from dupmae_ir.collections.catalogue import Cache, CollectionCatalogue, Test, TestCollection, find, load, names
from dupmae_ir.collections.download import licence_message
from dupmae_ir.collections.prepare import find_prepared, get, state
from dupmae_ir.collections.prepared import (
    PreparedCollection,
    PreparedManifest,
    find_problems,
    qrels_digest,
    topics_digest,
)
from dupmae_ir.errors import Licensed, WrongCollection

__all__ = [
    "Cache",
    "CollectionCatalogue",
    "GROUPS",
    "Licensed",
    "PreparedManifest",
    "PreparedCollection",
    "Test",
    "TestCollection",
    "WrongCollection",
    "expand",
    "find",
    "find_prepared",
    "find_problems",
    "get",
    "licence_message",
    "load",
    "mean_over",
    "names",
    "qrels_digest",
    "state",
    "topics_digest",
]
