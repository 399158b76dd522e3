"""Conditions on metadata as SQL over a ``jsonb`` column.

A value is compared by a lax SQL/JSON path ``$."name"[*]``, which takes a scalar as a list of one. As in
:mod:`dupmae_ir.search.query.filters`, values of different kinds never compare, strings compare by code points, and a
list satisfies a test if one of its elements does.
"""

from __future__ import annotations

import json

from dupmae_ir.index.conditions import Condition, Joined, Node, Not
from dupmae_ir.servers.protocol import Untranslatable

_SIGNS = {"=": "==", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


def condition_sql(node: Node) -> tuple[str, list[object]]:
    """A boolean SQL expression, never null, and its values."""
    if isinstance(node, Not):
        inner, values = condition_sql(node.node)
        return f"NOT ({inner})", values
    if isinstance(node, Joined):
        pairs = [condition_sql(one) for one in node.nodes]
        joined = (" AND " if node.every else " OR ").join(f"({sql})" for sql, _ in pairs)
        return joined, [value for _, values in pairs for value in values]
    return _condition(node)


def _condition(node: Condition) -> tuple[str, list[object]]:
    if "\0" in node.name or any(isinstance(value, str) and "\0" in value for value in node.values):
        raise Untranslatable("PostgreSQL has no NUL character")
    present: tuple[str, list[object]] = ("jsonb_exists(metadata, %s)", [node.name])
    if node.operation == "missing":
        return present if node.inverted else (f"NOT {present[0]}", present[1])
    sql, values = _contains(node) if node.operation == "contains" else _path(node, _SIGNS.get(node.operation, "=="))
    if node.inverted:
        return f"{present[0]} AND NOT ({sql})", [*present[1], *values]
    return sql, values


def _path(node: Condition, sign: str) -> tuple[str, list[object]]:
    """Whether a scalar, or an element of a list, compares with one of the values."""
    tests = " || ".join(f"@ {sign} $v{number}" for number in range(len(node.values)))
    path = f"$.{json.dumps(node.name)}[*] ? ({tests})"
    variables = {f"v{number}": value for number, value in enumerate(node.values)}
    return "jsonb_path_exists(metadata, %s::jsonpath, %s::jsonb, true)", [path, json.dumps(variables)]


def _contains(node: Condition) -> tuple[str, list[object]]:
    """An element of a list, or a part of a string."""
    (part,) = node.values
    element, values = _path(node, "==")
    sql = f"jsonb_typeof(metadata -> %s) = 'array' AND {element}"
    if not isinstance(part, str):
        return f"coalesce({sql}, false)", [node.name, *values]
    inside = "jsonb_typeof(metadata -> %s) = 'string' AND strpos(metadata ->> %s, %s) > 0"
    return f"coalesce(({sql}) OR ({inside}), false)", [node.name, *values, node.name, node.name, part]
