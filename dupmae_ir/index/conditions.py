"""Conditions on metadata as a tree of values: evaluated on an index's columns, or translated for another engine.

:mod:`dupmae_ir.index.filters` parses the text of a condition and documents what it means.
"""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dupmae_ir.types import MetadataScalar, MetadataValue

COMPARISONS: dict[str, Callable[[MetadataScalar, MetadataScalar], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
PARTS = ("contains", "like", "under")
"""Operations that look at a part of a text: a part, a pattern (``*.md``), a folder."""
Test = Callable[[MetadataValue | None], bool]
Rows = Callable[[str, Test], np.ndarray]
"""The documents whose value of a column satisfies a test: (n,) bool."""


@dataclass(frozen=True)
class Condition:
    """A test of one column.

    ``operation``: a key of :data:`COMPARISONS`, ``in``, or one of :data:`PARTS`, with ``values``; or ``missing``.
    ``inverted``: the document has a value that does not satisfy it (``!=``); for ``missing``, it has a value.
    """

    name: str
    operation: str
    values: tuple[MetadataScalar, ...] = ()
    inverted: bool = False

    @cached_property
    def test(self) -> Test:
        """Whether a value, or None for no value, satisfies the condition."""
        if self.operation == "missing":
            return lambda value: (value is None) != self.inverted
        tests = {"in": _one_of, "contains": _containing, "like": _like, "under": _under}
        test = tests.get(
            self.operation, lambda values: _compared(COMPARISONS[self.operation], values[0])
        )(self.values)
        return lambda value: value is not None and test(value) != self.inverted

    def evaluate(self, rows: Rows) -> np.ndarray:
        """The documents that satisfy the condition."""
        return rows(self.name, self.test)


@dataclass(frozen=True)
class Not:
    """The documents that do not satisfy ``node``."""

    node: Node

    def evaluate(self, rows: Rows) -> np.ndarray:
        """The documents that satisfy the negation."""
        return ~self.node.evaluate(rows)


@dataclass(frozen=True)
class Joined:
    """The documents that satisfy every node, or any."""

    nodes: Sequence[Node]
    every: bool

    def evaluate(self, rows: Rows) -> np.ndarray:
        """The documents that satisfy the conjunction or disjunction."""
        found = [node.evaluate(rows) for node in self.nodes]
        return np.logical_and.reduce(found) if self.every else np.logical_or.reduce(found)


Node = Condition | Not | Joined


def kind(value: MetadataScalar) -> type:
    """The kind of a value: only values of one kind compare. Integers and floats are one, true and false another."""
    return type(value) if isinstance(value, bool | str) else float


def _compared(
    compare: Callable[[MetadataScalar, MetadataScalar], bool], wanted: MetadataScalar
) -> Callable[..., bool]:
    def test(value: MetadataValue) -> bool:
        if isinstance(value, list):
            return any(map(test, value))
        return kind(value) is kind(wanted) and compare(value, wanted)

    return test


def _one_of(wanted: Sequence[MetadataScalar]) -> Callable[[MetadataValue], bool]:
    known = {(kind(value), value) for value in wanted}

    def test(value: MetadataValue) -> bool:
        return any(map(test, value)) if isinstance(value, list) else (kind(value), value) in known

    return test


def _containing(wanted: Sequence[MetadataScalar]) -> Callable[[MetadataValue], bool]:
    (part,) = wanted
    equal = _compared(operator.eq, part)

    def test(value: MetadataValue) -> bool:
        if isinstance(value, list):
            return equal(value)
        return isinstance(value, str) and isinstance(part, str) and part in value

    return test


def _like(wanted: Sequence[MetadataScalar]) -> Callable[[MetadataValue], bool]:
    matches = re.compile(fnmatch.translate(str(wanted[0]))).match
    return _any_text(lambda text: matches(text) is not None)


def _under(wanted: Sequence[MetadataScalar]) -> Callable[[MetadataValue], bool]:
    folder = str(wanted[0]).removeprefix("./").rstrip("/")
    return _any_text(lambda text: text == folder or text.startswith(f"{folder}/") or not folder)


def _any_text(holds: Callable[[str], bool]) -> Callable[[MetadataValue], bool]:
    """Whether a text, or one of a list, passes a test."""

    def test(value: MetadataValue) -> bool:
        return (
            any(map(test, value))
            if isinstance(value, list)
            else isinstance(value, str) and holds(value)
        )

    return test
