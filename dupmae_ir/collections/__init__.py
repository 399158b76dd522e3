"""Test collections by name: download, verification, conversion to BEIR's layout, and means over groups."""

from dupmae_ir.collections.benchmark_groups import GROUPS, expand, mean_over
from dupmae_ir.collections.cache import Cache
from dupmae_ir.collections.catalogue import Catalogue, Collection, Test, find, load, names
from dupmae_ir.collections.check import find_problems
from dupmae_ir.collections.digests import qrels_digest, topics_digest
from dupmae_ir.collections.download import licence_message
from dupmae_ir.collections.prepare import find_prepared, get, state
from dupmae_ir.collections.prepared import Manifest, PreparedCollection
from dupmae_ir.errors import Licensed, WrongCollection

__all__ = [
    "Cache",
    "Catalogue",
    "Collection",
    "GROUPS",
    "Licensed",
    "Manifest",
    "PreparedCollection",
    "Test",
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
