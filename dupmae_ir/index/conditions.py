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
TEXT_OPERATIONS = ("contains", "like", "under")
"""Operations on texts: has a part, fits a pattern (``*.md``), is in a folder."""
Test = Callable[[MetadataValue | None], bool]
Rows = Callable[[str, Test], np.ndarray]
"""The documents whose value of a column satisfies a test: (n,) bool."""


@dataclass(frozen=True)
class Condition:
    """A test of one column.

    ``operation``: a key of :data:`COMPARISONS`, ``in``, or one of :data:`TEXT_OPERATIONS`, with ``values``; or
    ``missing``.
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
        if self.operation in COMPARISONS:
            test = _comparison(COMPARISONS[self.operation], self.values[0])
        else:
            makers = {"in": _one_of, "contains": _contains, "like": _like, "under": _under}
            test = makers[self.operation](self.values)
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
        masks = [node.evaluate(rows) for node in self.nodes]
        if self.every:
            return np.logical_and.reduce(masks)
        return np.logical_or.reduce(masks)


Node = Condition | Not | Joined


def kind(value: MetadataScalar) -> type:
    """The kind of a value: only values of one kind compare. Integers and floats are one, true and false another."""
    # bool is a subclass of int, so True would equal 1.
    if isinstance(value, bool | str):
        return type(value)
    return float


def _comparison(
    compare: Callable[[MetadataScalar, MetadataScalar], bool], operand: MetadataScalar
) -> Callable[..., bool]:
    def test(value: MetadataValue) -> bool:
        if isinstance(value, list):
            return any(map(test, value))
        return kind(value) is kind(operand) and compare(value, operand)

    return test


def _one_of(operands: Sequence[MetadataScalar]) -> Callable[[MetadataValue], bool]:
    accepted = {(kind(operand), operand) for operand in operands}

    def test(value: MetadataValue) -> bool:
        if isinstance(value, list):
            return any(map(test, value))
        return (kind(value), value) in accepted

    return test


def _contains(operands: Sequence[MetadataScalar]) -> Callable[[MetadataValue], bool]:
    (part,) = operands
    equal = _comparison(operator.eq, part)

    def test(value: MetadataValue) -> bool:
        if isinstance(value, list):
            return equal(value)
        return isinstance(value, str) and isinstance(part, str) and part in value

    return test


def _like(operands: Sequence[MetadataScalar]) -> Callable[[MetadataValue], bool]:
    # fnmatch.fnmatchcase would look the pattern up in its cache for every value.
    matches = re.compile(fnmatch.translate(str(operands[0]))).match
    return _any_text(lambda text: matches(text) is not None)


def _under(operands: Sequence[MetadataScalar]) -> Callable[[MetadataValue], bool]:
    folder = str(operands[0]).removeprefix("./").rstrip("/")
    # "./" and "/" stand for the folder of the collection: every path is in it.
    return _any_text(lambda text: text == folder or text.startswith(f"{folder}/") or not folder)


def _any_text(holds: Callable[[str], bool]) -> Callable[[MetadataValue], bool]:
    """A test of a text, or of the texts of a list, one of which must pass."""

    def test(value: MetadataValue) -> bool:
        if isinstance(value, list):
            return any(map(test, value))
        return isinstance(value, str) and holds(value)

    return test
