"""Source code, read by the grammar of its language. The text is unchanged, so offsets are places in the file."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from dupmae_ir.io.documents.readers.code import read_code
from dupmae_ir.io.documents.readers.encodings import decoded
from dupmae_ir.io.documents.readers.extracted import Border, Extracted, Heading
from dupmae_ir.io.documents.readers.grammars import GRAMMARS

if TYPE_CHECKING:
    from tree_sitter import Node, Parser, Point, Tree

_DEEPEST = 100
"""Depth of a node at most in its borders, so that a text of nested brackets takes time in proportion to its length."""
_LARGEST = 8 << 20
"""Bytes above which a file is not source that a person wrote; its tree would take a hundred times as many."""
_SECONDS = 20
"""Time for a tree; 8 MB of usual source take 2 to 4 seconds."""
_READ_AT_ONCE = 1 << 16
_LONGEST_NAME = 100
"""Characters of a name at most."""
_FUNCTION_VALUES = frozenset(
    ["arrow_function", "function_expression", "generator_function", "class"]
)
"""Values that make an assignment a definition."""
_INTRODUCTIONS = frozenset(["attribute_item", "annotation", "decorator", "pod"])
"""Nodes that belong to the one after them, as comments do."""
_BODIES = frozenset(["function_body"])
"""Function bodies that are siblings of the function's head in the tree, not children of it."""
_WRAPPERS = frozenset(
    [
        "decorated_definition",
        "export_statement",
        "ambient_declaration",
        "template_declaration",
        "method_signature",
        "implementation_definition",
    ]
)
"""Nodes around one definition, which begins where they begin."""
_NEED_BODY = frozenset(["struct_specifier", "class_specifier", "union_specifier", "enum_specifier"])
"""Nodes that only mention a type if they have no body."""

_SEPARATORS = frozenset(["\n", ";"])
"""Nodes between statements."""
_TOP = 2
"""Depth of an assignment that is in nothing but a statement, which may be exported."""
_NEVER = -9
"""The row of no comment."""
_POD_HEADING = re.compile(r"=(?:head\d|item) +(\S.*)")


def read_source(data: bytes, language: str) -> Extracted:
    """Source code: definitions are headings, with the names of the classes around them, as in ``Server.listen``.

    Passages may end between statements. Comments, decorators and attributes above a definition belong to it, also with
    a blank line between them. :func:`read_code` reads a file that is too large for a tree, and one that the grammar
    does not understand, if that finds more definitions.
    """
    if len(data) > _LARGEST:
        return read_code(data)
    text, guess = decoded(data, declared=True)
    try:
        outline = _Outline(text, language)
    except TimeoutError:
        return read_code(data)
    if outline.has_error:
        by_lines = read_code(data)
        if len(by_lines.headings) > len(outline.definitions):
            return by_lines
    return Extracted(
        text, "", outline.headings(), lines=True, borders=outline.borders(), guess=guess
    )


def statement_borders(text: str, language: str) -> list[Border]:
    """Where a text in a language with a grammar may be cut; nowhere if reading it takes too long."""
    try:
        return _Outline(text, language).borders()
    except TimeoutError:
        return []


def syntax_tree(source: bytes, language: str) -> Tree:
    """The tree of a text in UTF-8, with errors where the grammar does not understand it.

    Raises :class:`TimeoutError` for one that takes a hundred times as long as others: some grammars try all ways to
    understand a nested text.
    """
    parser = _parser(language)
    deadline = time.monotonic() + _SECONDS

    def read(start: int, _position: Point) -> bytes:
        return source[start : start + _READ_AT_ONCE]

    def is_late(_place: int, _has_error: bool) -> bool:
        return time.monotonic() > deadline

    try:
        return parser.parse(read, progress_callback=is_late)
    except ValueError:
        # It would go on with this text otherwise.
        parser.reset()
        raise TimeoutError from None


@cache
def _parser(language: str) -> Parser:
    from tree_sitter import Language, Parser

    grammar = GRAMMARS[language]
    with warnings.catch_warnings():
        # Some packages return their grammar as a number, which tree-sitter deprecates.
        warnings.simplefilter("ignore", DeprecationWarning)
        return Parser(Language(getattr(import_module(grammar.package), grammar.function)()))


class _Branch(NamedTuple):
    """A node whose children are to be read.

    ``scope`` is the name of the definition around them: empty at the top, None inside a function. ``begin`` is the row
    where the node begins, with what introduces it. ``is_list``: it is nothing but its children, so the first has a
    border as the others have.
    """

    node: Node
    depth: int
    scope: str | None
    begin: int
    is_list: bool

    def begins_with(self, row: int) -> bool:
        """Whether a child on ``row`` begins where the node does."""
        if self.is_list:
            return False
        return self.node.type in _WRAPPERS or self.node.start_point.row == row


class _Outline:
    """The definitions and borders of a syntax tree. Rows count from 0; only nodes that begin a line count."""

    def __init__(self, text: str, language: str) -> None:
        # Half of a surrogate pair is no UTF-8.
        source = text.encode("utf-8", "replace")
        self.definitions: dict[int, str] = {}  #: row -> qualified name
        self._scopes: dict[int, str] = {}  # row of any other statement -> the definition around it
        self._depths: dict[int, int] = {}  # row -> depth of its border
        self._grammar = GRAMMARS[language]
        self._indents = [_indent(line) for line in source.split(b"\n")]
        self._lines = text.split("\n")
        self._starts = [0, *accumulate(len(line) + 1 for line in self._lines)]
        root = syntax_tree(source, language).root_node
        self.has_error = root.has_error
        self._read(root)

    def _read(self, root: Node) -> None:
        # A loop, not a recursion: some texts are nested a thousand times.
        # A file does not begin with its first definition.
        branches = [_Branch(root, 0, "", 0, is_list=True)]
        while branches:
            inner = list(self._inside(branches.pop()))
            branches += reversed(inner)

    def headings(self) -> list[Heading]:
        """The definitions, and what follows them: a statement of a class has the class's name again."""
        names = self._scopes | self.definitions
        headings: list[Heading] = []
        for row in sorted(names):
            # The equations of a function, say, are one definition.
            before = headings[-1].text if headings else ""
            if names[row] != before:
                headings.append(Heading(self._starts[row], 1, names[row]))
        return headings

    def borders(self) -> list[Border]:
        """Where passages may end."""
        return [Border(self._starts[row], self._depths[row]) for row in sorted(self._depths)]

    def _inside(self, branch: _Branch) -> Iterator[_Branch]:
        """Note the children of a node; those that may have something inside them are yielded."""
        introduced_by = _Introduction()
        for child in branch.node.children:
            row = child.start_point.row
            last = _last_row(child)
            begins_line = child.start_point.column == self._indents[row]
            if not child.is_named:
                # A closing bracket, say, is not of the part above it if the two are too long.
                if begins_line:
                    self._depths.setdefault(row, _depth(branch) + 1)
                continue
            if "comment" in child.type or child.type in _INTRODUCTIONS:
                if begins_line:
                    self._border(introduced_by.add(row, last), branch)
                if child.type == "pod":
                    self._add_pod(row, last)
                continue
            begin = introduced_by.taken(row)
            is_list = False
            if branch.begins_with(row):
                begin = branch.begin
                begins_line = True
            elif begins_line and begin == row and _is_list(child):
                is_list = True
            elif begins_line and begin == row:
                self._border(row, branch)
            elif begins_line:
                # A part that is too long with its comments is cut below them first.
                self._depths.setdefault(row, _depth(branch) + 1)
            scope = branch.scope
            # A definition in the middle of a line has no place of its own.
            if begins_line and scope is not None:
                is_at_top = not scope and branch.depth <= _TOP
                scope = self._scope_inside(child, scope, begin, is_at_top)
            if last > row or child.type in _WRAPPERS:
                yield _Branch(child, branch.depth + 1, scope, begin, is_list)

    def _add_pod(self, first: int, last: int) -> None:
        """Note the headings of Perl's documentation between two rows."""
        for row in range(first, last + 1):
            heading = _POD_HEADING.match(self._lines[row])
            if heading:
                self._depths.setdefault(row, 0)
                self.definitions.setdefault(row, heading[1][:_LONGEST_NAME])

    def _border(self, row: int, branch: _Branch) -> None:
        self._depths.setdefault(row, _depth(branch))
        if branch.scope is not None and branch.node.type not in _WRAPPERS:
            self._scopes.setdefault(row, branch.scope)

    def _scope_inside(self, node: Node, scope: str, begin: int, is_at_top: bool) -> str | None:
        """The scope of a node's children. A definition is noted at the row ``begin``."""
        is_class = node.type in self._grammar.classes
        is_function = node.type in self._grammar.functions
        name = ""
        if is_class or is_function:
            if node.type in _NEED_BODY and node.child_by_field_name("body") is None:
                return scope
            name = _name(node)
        elif node.type in self._grammar.assigned:
            name = _assigned_name(node, *self._grammar.assigned[node.type], is_at_top)
            is_function = bool(name)
        elif node.type in _BODIES:
            return None
        if not name:
            return scope
        qualified = f"{scope}.{name}" if scope else name
        self.definitions.setdefault(begin, qualified)
        return None if is_function else qualified


def _depth(branch: _Branch) -> int:
    """The depth of the borders between a node's children; the odd ones are between them."""
    return 2 * min(branch.depth, _DEEPEST)


class _Introduction:
    """The rows of the comments above a node, and of what else belongs to it; a blank line may be between them."""

    def __init__(self) -> None:
        self._first = 0
        self._last = _NEVER

    def add(self, row: int, last: int) -> int:
        """A comment; returns the first row of the comments that it continues."""
        if row > self._last + 1:
            self._first = row
        self._last = last
        return self._first

    def taken(self, row: int) -> int:
        """Where a node on ``row`` begins, with the comments above it."""
        begin = self._first if row <= self._last + 2 else row
        self._last = _NEVER
        return begin


def _indent(line: bytes) -> int:
    return len(line) - len(line.lstrip(b" \t\f"))


def _is_list(node: Node) -> bool:
    """Whether a node is nothing but statements, as a block of Python is."""
    if node.named_child_count < 2:
        return False
    return all(child.is_named or child.type in _SEPARATORS for child in node.children)


def _last_row(node: Node) -> int:
    """The last row that a node has a character in."""
    end = node.end_point
    return end.row - 1 if end.column == 0 else end.row


def _name(node: Node) -> str:
    """The name of a definition; of a method of Go with that of its receiver's type."""
    named = node.child_by_field_name("name") or _declared(node) or node.child_by_field_name("type")
    if named is None:
        # Grammars without fields have the name as the first identifier.
        for child in node.named_children:
            if child.type.endswith("identifier"):
                named = child
                break
    if named is None:
        return ""
    name = _text(named).partition("<")[0] if named.type == "generic_type" else _text(named)
    receiver = node.child_by_field_name("receiver")
    words = _text(receiver).strip("()").split() if receiver is not None else []
    if words:
        owner = words[-1].lstrip("*").partition("[")[0]
        name = f"{owner}.{name}"
    return name[:_LONGEST_NAME]


def _declared(node: Node) -> Node | None:
    """The name in a declarator of C, ``*(f)(int)``; None for a node without one."""
    found = None
    inner = node.child_by_field_name("declarator")
    while inner is not None:
        found = inner
        inner = inner.child_by_field_name("declarator")
    if found is None or "declarator" in found.type:
        return None
    return found


def _assigned_name(node: Node, name_field: str, value_field: str, is_at_top: bool) -> str:
    """What a function is assigned to, or at the top of a file a value of several lines; empty for another value."""
    name = node.child_by_field_name(name_field)
    value = node.child_by_field_name(value_field)
    if name is None or value is None:
        return ""
    is_long = is_at_top and _last_row(value) > value.start_point.row
    if value.type not in _FUNCTION_VALUES and not is_long:
        return ""
    return _text(name).strip("'\"")[:_LONGEST_NAME]


def _text(node: Node) -> str:
    return " ".join((node.text or b"").decode("utf-8", "replace").split())
