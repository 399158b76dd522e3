"""Conditions on metadata as OpenSearch's and Elasticsearch's query DSL.

Values are stored by kind (``num.NAME``, ``str.NAME``, ``bool.NAME``), so kinds never compare; keywords are ordered by
UTF-8, which is the order of code points. ``names`` lists the names that have a value.
"""

from __future__ import annotations

import re

from dupmae_ir.index.conditions import Condition, Joined, Node, Not
from dupmae_ir.servers.experimental.rest import Json
from dupmae_ir.servers.protocol import Untranslatable
from dupmae_ir.types import MetadataScalar

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_BOUNDS = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}
_EXACT = 2**53
"""Integers above are not doubles."""


def condition_query(node: Node) -> Json:
    """The query that selects the same documents. Raises :class:`Untranslatable`."""
    if isinstance(node, Not):
        return {"bool": {"must_not": [condition_query(node.node)]}}
    if isinstance(node, Joined):
        queries = [condition_query(one) for one in node.nodes]
        return {"bool": {"filter": queries}} if node.every else _any(queries)
    return _condition(node)


def _any(queries: list[Json]) -> Json:
    return {"bool": {"should": queries, "minimum_should_match": 1}}


def _condition(node: Condition) -> Json:
    if not NAME.fullmatch(node.name) or node.operation == "contains":
        raise Untranslatable("names with signs, parts of strings")
    present: Json = {"term": {"names": node.name}}
    if node.operation == "missing":
        return present if node.inverted else {"bool": {"must_not": [present]}}
    tests = _any([_test(node.name, node.operation, value) for value in node.values])
    return {"bool": {"filter": [present], "must_not": [tests]}} if node.inverted else tests


def _test(name: str, operation: str, value: MetadataScalar) -> Json:
    kind = "bool" if isinstance(value, bool) else "str" if isinstance(value, str) else "num"
    if kind == "num" and abs(float(value)) > _EXACT:
        raise Untranslatable("large numbers")
    if operation in _BOUNDS:
        return {"range": {f"{kind}.{name}": {_BOUNDS[operation]: value}}}
    return {"term": {f"{kind}.{name}": value}}
