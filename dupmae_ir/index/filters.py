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
from dupmae_ir.index.conditions import COMPARISONS, PARTS, Condition, Joined, Node, Not, Test
from dupmae_ir.index.format.joined import JoinedTexts
from dupmae_ir.index.format.row_set import row_set
from dupmae_ir.index.format.texts import StoredDocument, TextStore
from dupmae_ir.index.index import Index
from dupmae_ir.registry import suggest
from dupmae_ir.types import MetadataScalar, MetadataValue

LONGEST = 100_000
"""Most characters of a condition."""
DEEPEST = 100
"""Most parentheses and ``not`` around a condition."""
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
WORDS = frozenset(("and", "or", "not", "in", *PARTS, "is", "missing", "true", "false"))
_VALUE = 'a value ("text", a number, true or false)'


Store = TextStore | JoinedTexts


class _Token(NamedTuple):
    kind: str  #: string, number, quoted, word, sign or end
    text: str
    column: int  #: from 1

    def is_(self, *texts: str) -> bool:
        return (
            self.kind in ("word", "sign")
            and (self.text.lower() if self.kind == "word" else self.text) in texts
        )

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else repr(self.text)


@dataclass(frozen=True)
class Filter:
    """A parsed condition. ``names``: each column that it uses, and where, from 1; ``tree``: what it means;
    ``comparisons``: their number, each of which looks at every distinct value of a column."""

    text: str
    names: Mapping[str, int]
    tree: Node
    comparisons: int

    @classmethod
    def parse(cls, text: str) -> Filter:
        """Parse ``text``. Raises :class:`UsageError`, with the place, for anything that is no condition."""
        if len(text) > LONGEST:
            raise UsageError(
                f"`filter`: {len(text):,} characters; a condition has at most {LONGEST:,}"
            )
        parser = _ConditionParser(text)
        return cls(text, parser.names, parser.whole(), parser.comparisons)

    def check(self, known: Sequence[str]) -> None:
        """Raise :class:`UsageError` for a column that is not one of the ``known`` ones."""
        for name, column in self.names.items():
            if name not in known:
                listed = (
                    f"known: {', '.join(known)}.{suggest(name, known)}"
                    if known
                    else "it has no metadata at all"
                )
                raise _error(column, f"the index has no metadata {name!r}; {listed}")

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
            return np.fromiter(map(test, column.values), np.bool_, len(column.values))[column.codes]

        return self.tree.evaluate(rows)


class _ConditionParser:
    """Recursive descent over the tokens of a condition."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = self._depth = self.comparisons = 0
        self.names: dict[str, int] = {}

    def whole(self) -> Node:
        """The tree of the whole text."""
        if self._next.kind == "end":
            raise _error(1, 'expected a condition, such as year >= 2020 and lang = "en"')
        node = self._any()
        if self._next.kind != "end":
            raise _error(self._next.column, f"expected and, or, or the end, got {self._next}")
        return node

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self._next
        self._at += token.kind != "end"
        return token

    def _took(self, *texts: str) -> bool:
        found = self._next.is_(*texts)
        self._at += found
        return found

    def _any(self) -> Node:
        nodes = [self._every()]
        while self._took("or"):
            nodes.append(self._every())
        return nodes[0] if len(nodes) == 1 else Joined(nodes, every=False)

    def _every(self) -> Node:
        nodes = [self._one()]
        while self._took("and"):
            nodes.append(self._one())
        return nodes[0] if len(nodes) == 1 else Joined(nodes, every=True)

    def _one(self) -> Node:
        start = self._next
        if not self._took("not", "("):
            return self._condition()
        self._depth += 1
        if self._depth > DEEPEST:
            raise _error(
                start.column, f"more than {DEEPEST} parentheses and 'not' inside each other"
            )
        node: Node = Not(self._one()) if start.is_("not") else self._any()
        if start.is_("(") and not self._took(")"):
            raise _error(
                self._next.column, f"expected ) to close column {start.column}, got {self._next}"
            )
        self._depth -= 1
        return node

    def _condition(self) -> Condition:
        name = self._name()
        operation = self._take()
        if operation.kind == "sign" and operation.text in (*COMPARISONS, "!=", "=="):
            return self._comparison(name, operation.text)
        if operation.is_("is"):
            present = self._took("not")
            if not self._took("missing"):
                raise _error(self._next.column, f"expected missing, got {self._next}")
            return Condition(name, "missing", inverted=present)
        inverted = operation.is_("not")
        operation = self._take() if inverted else operation
        if operation.is_("in"):
            return Condition(name, "in", tuple(self._values()), inverted)
        if operation.is_(*PARTS):
            token, value = self._next, self._value()
            if not operation.is_("contains") and not isinstance(value, str):
                raise _error(token.column, f"expected a text after {operation.text}, got {token}")
            return Condition(name, operation.text.lower(), (value,), inverted)
        expected = f"in, {', '.join(PARTS[:-1])} or {PARTS[-1]}"
        if not inverted:
            expected = f"=, !=, <, <=, >, >=, in, {', '.join(PARTS)} or is missing"
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
        self.comparisons += 1
        return name

    def _comparison(self, name: str, sign: str) -> Condition:
        token, value = self._next, self._value()
        sign = "=" if sign == "==" else sign
        if isinstance(value, bool) and sign not in ("=", "!="):
            raise _error(token.column, f"{token.text} has no order; use = or !=")
        return Condition(name, "=" if sign == "!=" else sign, (value,), sign == "!=")

    def _values(self) -> list[MetadataScalar]:
        if not self._took("("):
            raise _error(self._next.column, f"expected ( after in, got {self._next}")
        values = [self._value()]
        while self._took(","):
            values.append(self._value())
        if not self._took(")"):
            raise _error(
                self._next.column, f"expected , or ) in a list of values, got {self._next}"
            )
        return values

    def _value(self) -> MetadataScalar:
        token = self._take()
        if token.kind == "string":
            return re.sub(r"\\(.)", r"\1", token.text[1:-1], flags=re.DOTALL)
        if token.kind == "number":
            return (
                int(token.text) if re.fullmatch(r"-?\d{1,4000}", token.text) else float(token.text)
            )
        if token.is_("true", "false"):
            return token.is_("true")
        hint = f'; write text between quotes: "{token.text}"' if token.kind == "word" else ""
        raise _error(token.column, f"expected {_VALUE}, got {token}{hint}")


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while True:
        match = _TOKENS.match(text, at)
        if match is None:
            start = at + len(text[at:]) - len(text[at:].lstrip())
            unclosed = {
                '"': "a string without its closing quote",
                "'": "a string without its closing quote",
            }
            problem = unclosed.get(
                text[start], f"{text[start : start + 12]!r} is no part of a condition"
            )
            if text[start] in "/*?[.~\\":
                problem += (
                    '; files of a folder: path under "notes", files by a pattern: path like "*.md"'
                )
            raise _error(start + 1, problem)
        kind = str(match.lastgroup)
        yield _Token(kind, match[kind], match.start(kind) + 1)
        if kind == "end":
            return
        at = match.end()


def _error(column: int, problem: str) -> UsageError:
    return UsageError(f"`filter`, column {column}: {problem}")


DocumentFilter = str | np.ndarray | Callable[[StoredDocument], bool]
"""A condition on metadata, a mask (n,) bool by row, or a function of a document."""


def satisfying(index: Index, condition: DocumentFilter, among: np.ndarray) -> np.ndarray:
    """(n,) bool: the rows of ``index`` that satisfy a condition; a function is called only for the rows of ``among``.

    Raises :class:`UsageError` for a condition that is malformed, that names metadata which no document has, or that
    needs metadata where the index stores none.
    """
    if isinstance(condition, np.ndarray):
        row_set(condition, len(among))  # the one-line refusal of another shape or type
        return condition
    parsed, texts = Filter.parse(condition) if isinstance(condition, str) else None, index.texts
    if texts is None:
        raise UsageError(
            f"{index.path} stores no metadata to filter by; encode the collection again, with `store_texts`"
        )
    if parsed is not None:
        parsed.check(texts.columns)
        return parsed.mask(texts)
    assert callable(condition)
    return np.fromiter(
        (bool(here and condition(texts.get(row))) for row, here in enumerate(among)), np.bool_
    )
