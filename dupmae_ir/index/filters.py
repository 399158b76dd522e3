"""Conditions on metadata: ``year >= 2020 and lang = "en"``.

    condition  = NAME COMPARISON VALUE | NAME [not] in (VALUE, ...) | NAME is [not] missing
               | NAME [not] contains VALUE | NAME [not] like "PATTERN" | NAME [not] under "FOLDER"
    COMPARISON = '=' | '!=' | '<' | '<=' | '>' | '>='
    VALUE      = "text" | 'text' | a number | true | false

joined by ``and``, ``or``, ``not`` and parentheses; ``not`` binds strongest, ``or`` weakest. A name with other
characters than letters, digits and ``_ . -``, or one that is a word of the language, is written between backquotes. In
strings, ``\\`` protects a quote or itself.

* Numbers compare with numbers, strings with strings (by code points), true and false with themselves by ``=`` and
  ``!=`` alone. A value of another kind satisfies no comparison.
* A list satisfies a condition if one of its elements does; ``contains`` looks for an element of a list, or for a part
  of a string.
* ``like`` compares a text with a pattern of the shell: ``*`` is any characters, also ``/``, ``?`` one, ``[ab]`` one of
  these. ``under`` holds for the path of a folder or file and for those below it.
* ``!=``, ``not in`` and ``not contains`` hold for documents that have a value but do not satisfy ``=``, ``in`` or
  ``contains``. A document without a value satisfies only ``is missing``, or a condition after ``not``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dupmae_ir.errors import UsageError
from dupmae_ir.index.conditions import (
    COMPARISONS,
    TEXT_OPERATIONS,
    Condition,
    Joined,
    Node,
    Not,
    Test,
)
from dupmae_ir.index.format.joined import JoinedTexts
from dupmae_ir.index.format.row_set import row_set
from dupmae_ir.index.format.texts import StoredDocument, TextStore
from dupmae_ir.index.index import Index
from dupmae_ir.registry import suggest
from dupmae_ir.types import MetadataScalar, MetadataValue

MAX_LENGTH = 100_000
"""Most characters of a condition."""
MAX_DEPTH = 100
"""Most parentheses and ``not`` around a condition. The parser calls itself for each, and Python limits such calls."""
_TOKENS = re.compile(
    r"""\s*(?:
        (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<number>-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
      | (?P<quoted>`[^`]+`)
      | (?P<word>[^\W\d][\w.-]*)
      | (?P<sign><=|>=|!=|==|[=<>(),])
      | (?P<end>$)
    )""",
    re.VERBOSE,
)
WORDS = frozenset(("and", "or", "not", "in", *TEXT_OPERATIONS, "is", "missing", "true", "false"))
"""Words of the language, which are names of columns only between backquotes."""
_VALUE = 'a value ("text", a number, true or false)'


Store = TextStore | JoinedTexts


class _Token(NamedTuple):
    kind: str  #: string, number, quoted, word, sign or end
    text: str
    column: int  #: from 1

    def is_(self, *texts: str) -> bool:
        """Whether this is one of these words or signs; the case of words does not matter."""
        if self.kind == "word":
            return self.text.lower() in texts
        return self.kind == "sign" and self.text in texts

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else repr(self.text)


@dataclass(frozen=True)
class Filter:
    """A parsed condition."""

    text: str
    names: Mapping[str, int]  #: each metadata column that it uses -> where in the text, from 1
    tree: Node

    @classmethod
    def parse(cls, text: str, most: int | None = None) -> Filter:
        """Parse ``text``. Raises :class:`UsageError`, with the position, for anything that is not a condition, and for
        more than ``most`` comparisons, each of which looks at every distinct value of a column."""
        if len(text) > MAX_LENGTH:
            raise UsageError(
                f"`filter`: {len(text):,} characters; a condition has at most {MAX_LENGTH:,}"
            )
        parser = _ConditionParser(text, most)
        tree = parser.parse()
        return cls(text, parser.names, tree)

    def check(self, columns: Sequence[str]) -> None:
        """Raise :class:`UsageError` for a name that is not one of the metadata ``columns`` of an index."""
        for name, position in self.names.items():
            if name in columns:
                continue
            hint = "it has no metadata at all"
            if columns:
                hint = f"known: {', '.join(columns)}.{suggest(name, columns)}"
            raise _error(position, f"the index has no metadata {name!r}; {hint}")

    def holds(self, metadata: Mapping[str, MetadataValue]) -> bool:
        """Whether a document with this metadata satisfies the condition."""
        return bool(self.tree.evaluate(lambda name, test: np.array([test(metadata.get(name))]))[0])

    def mask(self, store: Store) -> np.ndarray:
        """(n,) bool: the documents of a store that satisfy the condition; a test runs once per distinct value."""
        columns = set(store.columns)

        def rows(name: str, test: Test) -> np.ndarray:
            if name not in columns:
                return np.full(len(store), test(None))
            column = store.column(name)
            results = np.fromiter(map(test, column.values), np.bool_, len(column.values))
            return results[column.codes]

        return self.tree.evaluate(rows)


class _ConditionParser:
    """Recursive descent over the tokens of a condition: a method for each level of precedence, the weakest first."""

    def __init__(self, text: str, most: int | None) -> None:
        # One after another: the rest of a text that is refused is not read.
        self._tokens = _tokens(text)
        self._next = next(self._tokens)
        self._depth = 0
        self._most = most
        self._comparisons = 0
        self.names: dict[str, int] = {}

    def parse(self) -> Node:
        """The tree of the complete text."""
        if self._next.kind == "end":
            raise _error(1, 'expected a condition, such as year >= 2020 and lang = "en"')
        node = self._disjunction()
        if self._next.kind != "end":
            raise _error(self._next.column, f"expected and, or, or the end, got {self._next}")
        return node

    def _take(self) -> _Token:
        """The next token, consumed; the end can be taken again and again."""
        token = self._next
        if token.kind != "end":
            self._next = next(self._tokens)
        return token

    def _take_if(self, *texts: str) -> bool:
        """Consume the next token if it is one of these words or signs; returns whether it was."""
        matches = self._next.is_(*texts)
        if matches:
            self._take()
        return matches

    def _disjunction(self) -> Node:
        nodes = [self._conjunction()]
        while self._take_if("or"):
            nodes.append(self._conjunction())
        if len(nodes) == 1:
            return nodes[0]
        return Joined(nodes, every=False)

    def _conjunction(self) -> Node:
        nodes = [self._term()]
        while self._take_if("and"):
            nodes.append(self._term())
        if len(nodes) == 1:
            return nodes[0]
        return Joined(nodes, every=True)

    def _term(self) -> Node:
        """A condition, a negation, or an expression in parentheses."""
        start = self._next
        if not self._take_if("not", "("):
            return self._condition()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _error(
                start.column, f"more than {MAX_DEPTH} parentheses and 'not' inside each other"
            )
        node: Node
        if start.is_("not"):
            node = Not(self._term())
        else:
            node = self._disjunction()
            if not self._take_if(")"):
                problem = f"expected ) to close column {start.column}, got {self._next}"
                raise _error(self._next.column, problem)
        self._depth -= 1
        return node

    def _condition(self) -> Condition:
        name = self._name()
        operation = self._take()
        if operation.kind == "sign" and operation.text in (*COMPARISONS, "!=", "=="):
            return self._comparison(name, operation.text)
        if operation.is_("is"):
            inverted = self._take_if("not")
            if not self._take_if("missing"):
                raise _error(self._next.column, f"expected missing, got {self._next}")
            return Condition(name, "missing", inverted=inverted)
        inverted = operation.is_("not")
        if inverted:
            operation = self._take()
        if operation.is_("in"):
            return Condition(name, "in", tuple(self._values()), inverted)
        if operation.is_(*TEXT_OPERATIONS):
            token = self._next
            value = self._value()
            if not operation.is_("contains") and not isinstance(value, str):
                raise _error(token.column, f"expected a text after {operation.text}, got {token}")
            return Condition(name, operation.text.lower(), (value,), inverted)
        expected = f"=, !=, <, <=, >, >=, in, {', '.join(TEXT_OPERATIONS)} or is missing"
        if inverted:
            expected = f"in, {', '.join(TEXT_OPERATIONS[:-1])} or {TEXT_OPERATIONS[-1]}"
        raise _error(operation.column, f"expected {expected} after {name!r}, got {operation}")

    def _name(self) -> str:
        token = self._take()
        if token.kind == "quoted":
            name = token.text[1:-1]
        elif token.kind == "word" and token.text.lower() not in WORDS:
            name = token.text
        else:
            raise _error(token.column, f"expected the name of a metadata column, got {token}")
        self.names.setdefault(name, token.column)
        self._comparisons += 1
        if self._most is not None and self._comparisons > self._most:
            problem = f"more than {self._most} comparisons; `in` takes a list of values"
            raise _error(token.column, problem)
        return name

    def _comparison(self, name: str, sign: str) -> Condition:
        token = self._next
        value = self._value()
        if isinstance(value, bool) and sign not in ("=", "==", "!="):
            raise _error(token.column, f"{token.text} has no order; use = or !=")
        if sign == "!=":
            return Condition(name, "=", (value,), inverted=True)
        if sign == "==":
            sign = "="
        return Condition(name, sign, (value,))

    def _values(self) -> list[MetadataScalar]:
        if not self._take_if("("):
            raise _error(self._next.column, f"expected ( after in, got {self._next}")
        values = [self._value()]
        while self._take_if(","):
            values.append(self._value())
        if not self._take_if(")"):
            raise _error(
                self._next.column, f"expected , or ) in a list of values, got {self._next}"
            )
        return values

    def _value(self) -> MetadataScalar:
        token = self._take()
        if token.kind == "string":
            return re.sub(r"\\(.)", r"\1", token.text[1:-1], flags=re.DOTALL)
        if token.kind == "number":
            # Python refuses to read integers of more than 4,300 digits.
            if re.fullmatch(r"-?\d{1,4000}", token.text):
                return int(token.text)
            return float(token.text)
        if token.is_("true", "false"):
            return token.is_("true")
        hint = ""
        if token.kind == "word":
            hint = f'; write text between quotes: "{token.text}"'
        raise _error(token.column, f"expected {_VALUE}, got {token}{hint}")


def _tokens(text: str) -> Iterator[_Token]:
    end = 0
    while True:
        match = _TOKENS.match(text, end)
        if match is None:
            raise _unknown_token(text, end)
        kind = str(match.lastgroup)
        yield _Token(kind, match[kind], match.start(kind) + 1)
        if kind == "end":
            return
        end = match.end()


def _unknown_token(text: str, end: int) -> UsageError:
    """The error for what follows the last token, which ends at ``end``."""
    rest = text[end:].lstrip()
    start = len(text) - len(rest)
    if rest[0] in "\"'":
        problem = "a string without its closing quote"
    else:
        problem = f"{rest[:12]!r} is no part of a condition"
    # What people type who expect a pattern of the shell.
    if rest[0] in "/*?[.~\\":
        problem += '; files of a folder: path under "notes", files by a pattern: path like "*.md"'
    return _error(start + 1, problem)


def _error(column: int, problem: str) -> UsageError:
    return UsageError(f"`filter`, column {column}: {problem}")


DocumentFilter = str | np.ndarray | Callable[[StoredDocument], bool]
"""A condition on metadata, a mask (n,) bool by row, or a function of a document."""


def satisfying(index: Index, condition: DocumentFilter, among: np.ndarray) -> np.ndarray:
    """(n,) bool: the rows of ``index`` that satisfy a condition; a function is called only for the rows of ``among``.

    Raises :class:`UsageError` for a condition that is malformed, that names metadata which no document has, or that
    needs metadata of an index without any.
    """
    if isinstance(condition, np.ndarray):
        row_set(condition, len(among))  # raises for another shape or type
        return condition
    # Parsed first: a malformed condition is reported even if the index has no metadata.
    parsed = Filter.parse(condition) if isinstance(condition, str) else None
    texts = index.texts
    if texts is None:
        raise UsageError(
            f"{index.path} stores no metadata to filter by; encode the collection again, with `store_texts`"
        )
    if parsed is not None:
        parsed.check(texts.columns)
        return parsed.mask(texts)
    assert callable(condition)
    satisfies = (bool(wanted and condition(texts.get(row))) for row, wanted in enumerate(among))
    return np.fromiter(satisfies, np.bool_)
