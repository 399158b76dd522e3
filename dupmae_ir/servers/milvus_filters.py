"""Conditions on metadata as Milvus's boolean expressions over a JSON field.

Only what is the same in every version is translated: equality and, for numbers, order. Expressions about a missing key
are neither true nor false, so a negation first asks whether the key exists. Whatever else a condition needs raises
:class:`Untranslatable`, and the ids of the documents are sent instead.
"""

from __future__ import annotations

import json
import re

from dupmae_ir.index.conditions import Condition, Joined, Node
from dupmae_ir.servers.protocol import Untranslatable
from dupmae_ir.types import MetadataScalar

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TEXT = re.compile(r"[^\x00-\x1f\"\\]*")
_ORDER = ("<", "<=", ">", ">=")


def condition_expression(node: Node) -> str:
    """The expression that selects the same documents. Raises :class:`Untranslatable`."""
    if isinstance(node, Joined):
        return (" and " if node.every else " or ").join(f"({condition_expression(one)})" for one in node.nodes)
    if not isinstance(node, Condition):
        raise Untranslatable("a negation")
    return _condition(node)


def _condition(node: Condition) -> str:
    if not _NAME.fullmatch(node.name) or node.operation == "contains":
        raise Untranslatable("names with signs, parts of strings")
    key = f'metadata["{node.name}"]'
    if node.operation == "missing":
        return f"exists {key}" if node.inverted else f"not (exists {key})"
    if node.inverted:
        raise Untranslatable("a negation")
    return " or ".join(f"({_test(key, node.operation, value)})" for value in node.values)


def _test(key: str, operation: str, value: MetadataScalar) -> str:
    ordered = operation in _ORDER
    if isinstance(value, str):
        if ordered or not _TEXT.fullmatch(value):
            raise Untranslatable("the order of strings, strings with signs")
        return f'{key} == "{value}"'
    if isinstance(value, bool):
        raise Untranslatable("truth values, which some versions take for numbers")
    return f"{key} {operation if ordered else '=='} {json.dumps(value)}"
