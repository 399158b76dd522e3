"""Conditions on metadata as Vespa's YQL.

The field ``facts`` has a digest of each value with its name and kind, of each name that has a value, and of the
document's id. So case, accents, tokens and signs cannot change what an equality selects. Numbers are also in
``numbers``, for their order. The order of strings and parts of strings raise :class:`Untranslatable`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from typing import cast

from dupmae_ir.index.conditions import Condition, Joined, Node, Not
from dupmae_ir.servers.protocol import Untranslatable
from dupmae_ir.types import Metadata, MetadataScalar

_ORDER = ("<", "<=", ">", ">=")
_EXACT = 2**53
"""Integers above are not doubles."""
_BYTES = 10  #: of a digest


def facts(docid: str, metadata: Metadata) -> list[str]:
    """The digests of a document: of its id, of the names that have a value, and of every value."""
    found = [docid_fact(docid), *(_digest("name", name) for name in metadata)]
    return sorted({*found, *(_value(name, one) for name, one in _scalars(metadata))})


def numbers(metadata: Metadata) -> list[dict[str, object]]:
    """The numbers of a document, with the digests of their names."""
    pairs = [(name, value) for name, value in _scalars(metadata) if _kind(value) == "num"]
    return [{"named": _digest("name", name), "number": float(cast(float, value))} for name, value in pairs]


def docid_fact(docid: str) -> str:
    """The digest by which a document is selected by its id."""
    return _digest("docid", docid)


def condition_yql(node: Node) -> str:
    """The expression that selects the same documents. Raises :class:`Untranslatable`."""
    if isinstance(node, Not):
        return f"(true and !({condition_yql(node.node)}))"
    if isinstance(node, Joined):
        return "(" + (" and " if node.every else " or ").join(condition_yql(one) for one in node.nodes) + ")"
    return _condition(node)


def _condition(node: Condition) -> str:
    if node.operation == "contains":
        raise Untranslatable("parts of strings")
    present = f'facts contains "{_digest("name", node.name)}"'
    if node.operation == "missing":
        return f"({present})" if node.inverted else f"(true and !({present}))"
    tests = " or ".join(_test(node.name, node.operation, value) for value in node.values)
    return f"({present} and !({tests}))" if node.inverted else f"({tests})"


def _test(name: str, operation: str, value: MetadataScalar) -> str:
    kind = _kind(value)
    if kind == "num" and not abs(float(value)) <= _EXACT:
        raise Untranslatable("large numbers")
    if operation not in _ORDER:
        return f'facts contains "{_value(name, value)}"'
    limit = format(float(value), ".20f").rstrip("0") + "0" if kind == "num" else ""
    if kind != "num" or float(limit) != float(value):
        raise Untranslatable("the order of strings and truth values, tiny numbers")
    return f'numbers contains sameElement(named contains "{_digest("name", name)}", number {operation} {limit})'


def _scalars(metadata: Metadata) -> Iterator[tuple[str, MetadataScalar]]:
    """The names and single values, without numbers that are infinite or none."""
    for name, value in metadata.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, str) or math.isfinite(one):
                yield name, one


def _kind(value: MetadataScalar) -> str:
    return "bool" if isinstance(value, bool) else "str" if isinstance(value, str) else "num"


def _value(name: str, value: MetadataScalar) -> str:
    kind = _kind(value)
    return _digest("value", name, kind, repr(float(value) + 0.0) if kind == "num" else str(value))


def _digest(*parts: str) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=_BYTES).hexdigest()
