"""Conditions on metadata as Qdrant's filters over the payload, in the JSON of its REST API.

A payload index would not change what they mean: a field condition holds if one element of a list satisfies it. Order
of strings and parts of strings have no exact counterpart and raise :class:`Untranslatable`; the ids of the documents
are then sent instead.
"""

from __future__ import annotations

import re

from dupmae_ir.index.conditions import Condition, Joined, Node, Not
from dupmae_ir.servers.protocol import Untranslatable
from dupmae_ir.types import MetadataScalar

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_BOUNDS = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}
Json = dict[str, object]
_EXACT = 2**53
"""Integers above are not floats, as which Qdrant compares numbers."""


def condition_filter(node: Node) -> Json:
    """The filter that selects the same documents. Raises :class:`Untranslatable`."""
    if isinstance(node, Not):
        return {"must_not": [condition_filter(node.node)]}
    if isinstance(node, Joined):
        return {"must" if node.every else "should": [condition_filter(one) for one in node.nodes]}
    return _condition(node)


def _condition(node: Condition) -> Json:
    if not _NAME.fullmatch(node.name):
        raise Untranslatable("the name would be read as a path")
    # Names of a document's values: is_empty also holds for an empty list, which is a value.
    present: Json = {"key": "names", "match": {"value": node.name}}
    if node.operation == "missing":
        return {"must" if node.inverted else "must_not": [present]}
    if node.operation == "contains":
        raise Untranslatable("parts of strings")
    tests: Json = {"should": [_test(node.name, node.operation, value) for value in node.values]}
    return {"must": [present], "must_not": [tests]} if node.inverted else tests


def _test(name: str, operation: str, value: MetadataScalar) -> Json:
    key = f"metadata.{name}"
    if isinstance(value, bool | str):
        if operation in _BOUNDS:
            raise Untranslatable("the order of strings")
        return {"key": key, "match": {"value": value}}
    if abs(value) > _EXACT:
        raise Untranslatable("large numbers")
    bounds = [_BOUNDS[operation]] if operation in _BOUNDS else ["gte", "lte"]
    return {"key": key, "range": {bound: float(value) for bound in bounds}}
