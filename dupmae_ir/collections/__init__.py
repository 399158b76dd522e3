"""Test collections by name: download, verification, conversion to BEIR's layout, and means over groups."""

from dupmae_ir.collections.catalogue import (
    GROUPS,
    Cache,
    CollectionCatalogue,
    Test,
    TestCollection,
    expand,
    find,
    load,
    mean_over,
    names,
)
from dupmae_ir.collections.convert import licence_message
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
