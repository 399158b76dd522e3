"""Collections by name: where they are from, whether they are the right ones, how they are measured, how to get them."""

from dupmae_ir.collections.catalogue import Catalogue, Collection, Test, find, load, names
from dupmae_ir.collections.check import problems
from dupmae_ir.collections.digests import qrels_digest, topics_digest
from dupmae_ir.collections.download import licence_message
from dupmae_ir.collections.groups import GROUPS, expand, mean_over
from dupmae_ir.collections.paths import Place
from dupmae_ir.collections.prepare import get, ready, state
from dupmae_ir.collections.prepared import Manifest, Ready
from dupmae_ir.errors import Licensed, WrongCollection

__all__ = [
    "Catalogue",
    "Collection",
    "GROUPS",
    "Licensed",
    "Manifest",
    "Place",
    "Ready",
    "Test",
    "WrongCollection",
    "expand",
    "find",
    "get",
    "licence_message",
    "load",
    "mean_over",
    "names",
    "problems",
    "qrels_digest",
    "ready",
    "state",
    "topics_digest",
]
