"""Test collections by name: download, verification, conversion to BEIR's layout, and means over groups."""

from dupmae_ir.collections.catalogue import (
    GROUPS,
    Cache,
    Test,
    TestCollection,
    expand,
    find,
    load,
    mean_over,
    names,
)
from dupmae_ir.collections.prepare import find_prepared, get, state
from dupmae_ir.collections.prepared import PreparedCollection, qrels_digest, topics_digest

__all__ = [
    "Cache",
    "GROUPS",
    "PreparedCollection",
    "Test",
    "TestCollection",
    "expand",
    "find",
    "find_prepared",
    "get",
    "load",
    "mean_over",
    "names",
    "qrels_digest",
    "state",
    "topics_digest",
]
