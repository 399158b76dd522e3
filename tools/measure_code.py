"""Measure the code: density, docstrings, type hints, imports. Read from the source; nothing is imported.

    python tools/measure_code.py [PATH ...]          # default: dupmae_ir, beside projects that people like to read
    python tools/measure_code.py --json dupmae_ir
    python tools/measure_code.py --details           # the places behind the counts
    python tools/measure_code.py --check             # exit 1 when a rule of the structure is broken

Only the structure is checked: imports point one way, no public class name has two meanings, and no ``dict[str, Any]``
crosses a seam. Sizes and densities are printed so that one sees where one stands; they are no goals. (Words against
the glossary are found by tests/test_glossary.py.)

Counting rules: a line of code is one that is neither blank nor only a comment nor part of a docstring. Densities are
counts per 1,000 lines of code:

- parallel assignments: ``a, b = x, y``
- conditional expressions: ``x if c else y``
- assignment expressions: ``:=``
- nested comprehensions: two loops in one comprehension, or a comprehension inside another
- long lines: lines of code above 100 characters
- comments: lines with a comment

A function's lines run from ``def`` to its last line, docstring included. Public means that neither the name nor a
class around it starts with an underscore. ``Any`` counts where it is the complete annotation. A seam is a public
function, or a method of a public class, that another package imports; not those of ``config`` and ``io``, which read
JSON and TOML into types. Upward imports are imports that the order in tests/test_architecture.py does not allow.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import statistics
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RULES = ("upward_imports", "public_classes_twice", "untyped_seams")
"""Metrics that must be 0."""
LONG_LINE = 100
"""Characters of a line of code; the formatter breaks lines there where it can."""
DENSITIES = (
    "parallel assignments",
    "conditional expressions",
    "assignment expressions",
    "nested comprehensions",
    "long lines",
    "comments",
)
ANCHORS = {
    "httpx": (0.7, 14, 0, 0.2, 0, 78),
    "ir_measures": (1.2, 4, 0, 0.8, 59, 40),
    "sentence-transformers": (0.6, 11, 1.3, 2.1, 51, 69),
    "accelerate": (1.1, 9, 0, 0.5, 60, 118),
}
"""The same densities of projects that people like to read, measured on 26 November 2026."""
JSON_READERS = {"config", "io"}
"""Packages that turn JSON and TOML into typed values."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@dataclass
class Metrics:
    """Counts over a set of Python files; fractions are of 1, densities per 1,000 lines of code."""

    files: int = 0
    lines: int = 0
    code_lines: int = 0
    densities: dict[str, float] = field(default_factory=dict)
    function_lines_median: float = 0
    function_lines_90: float = 0
    function_lines_longest: int = 0
    public: int = 0
    public_with_docstring: float = 0
    return_hints: float = 0
    argument_hints: float = 0
    any_arguments: int = 0
    any_returns: int = 0
    own_imports_in_functions: int = 0
    public_classes_twice: int = 0
    untyped_seams: int = 0
    upward_imports: int = 0
    details: list[str] = field(default_factory=list)


class SourceFile(NamedTuple):
    """A Python file, read once."""

    path: Path
    text: str
    tree: ast.Module


class FunctionAt(NamedTuple):
    """A function or method and the file that defines it."""

    path: Path
    node: Function


def measure(
    paths: list[Path], package: str = "dupmae_ir", order: dict[str, int] | None = None
) -> Metrics:
    """The metrics of all Python files in ``paths``; ``order``: rank of each room, for upward imports."""
    sources = read_sources(paths)
    functions = []
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, Function):
                functions.append(FunctionAt(source.path, node))

    m = Metrics(files=len(sources))
    _measure_density(m, sources)
    _measure_classes(m, sources)
    _measure_seams(m, sources, package)
    _measure_sizes(m, functions)
    _measure_hints(m, functions)
    _measure_docstrings(m, sources)
    _measure_inner_imports(m, functions, package)
    _measure_upward_imports(m, sources, package, order or {})
    return m


def read_sources(paths: list[Path]) -> list[SourceFile]:
    """The Python files under ``paths``, sorted, each once."""
    files: set[Path] = set()
    for path in paths:
        if path.is_dir():
            files.update(path.rglob("*.py"))
        else:
            files.add(path)

    sources = []
    for path in sorted(files):
        text = path.read_text(encoding="utf-8")
        sources.append(SourceFile(path, text, ast.parse(text, str(path))))
    return sources


def _measure_density(m: Metrics, sources: list[SourceFile]) -> None:
    counts: Counter[str] = Counter()
    for source in sources:
        tokens = list(tokenize.generate_tokens(io.StringIO(source.text).readline))
        lines = source.text.splitlines()
        code = _code_lines(tokens, source.tree)
        m.lines += len(lines)
        m.code_lines += len(code)
        counts["comments"] += sum(token.type == tokenize.COMMENT for token in tokens)
        for number in code:
            if len(lines[number - 1]) > LONG_LINE:
                counts["long lines"] += 1
                m.details.append(f"{source.path}:{number}: long line")
        for node in ast.walk(source.tree):
            kind = _dense_construct(node)
            if kind:
                counts[kind] += 1
                m.details.append(f"{source.path}:{node.lineno}: {kind.removesuffix('s')}")
    thousands = max(m.code_lines, 1) / 1000
    m.densities = {name: counts[name] / thousands for name in DENSITIES}


def _code_lines(tokens: list[tokenize.TokenInfo], tree: ast.Module) -> set[int]:
    """Numbers of the lines with code, the first line being 1."""
    lines: set[int] = set()
    for token in tokens:
        if token.type not in NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function) and ast.get_docstring(node):
            docstring = node.body[0]
            lines.difference_update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return lines


def _dense_construct(node: ast.AST) -> str:
    """The name under which ``node`` is counted; empty if it is not."""
    if isinstance(node, ast.Assign):
        both_are_tuples = isinstance(node.targets[0], ast.Tuple) and isinstance(
            node.value, ast.Tuple
        )
        return "parallel assignments" if both_are_tuples else ""
    if isinstance(node, ast.IfExp):
        return "conditional expressions"
    if isinstance(node, ast.NamedExpr):
        return "assignment expressions"
    if isinstance(node, Comprehension):
        inner = any(isinstance(n, Comprehension) for n in ast.walk(node) if n is not node)
        if inner or len(node.generators) > 1:
            return "nested comprehensions"
    return ""


def _measure_classes(m: Metrics, sources: list[SourceFile]) -> None:
    """Names of public classes at the top level of modules."""
    places: dict[str, list[str]] = {}
    for source in sources:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(f"{source.path}:{node.lineno}")
    for name, definitions in places.items():
        if len(definitions) > 1:
            m.public_classes_twice += 1
            m.details.append(f"class {name} is defined at {', '.join(definitions)}")


def _measure_seams(m: Metrics, sources: list[SourceFile], package: str) -> None:
    """``dict[str, Any]`` in signatures of functions and classes that other packages import."""
    crossing = _names_imported_across_rooms(sources, package)
    for source in sources:
        if _room_of(source.path, package) in JSON_READERS:
            continue
        for node in source.tree.body:
            if isinstance(node, Function | ast.ClassDef) and node.name in crossing:
                for function in _public([node]):
                    if isinstance(function, Function) and _has_untyped_dict(function):
                        m.untyped_seams += 1
                        place = f"{source.path}:{function.lineno}"
                        m.details.append(
                            f"{place}: {function.name} has dict[str, Any] in its signature"
                        )


def _names_imported_across_rooms(sources: list[SourceFile], package: str) -> set[str]:
    names: set[str] = set()
    for source in sources:
        for node in ast.walk(source.tree):
            if not _is_own_import(node, package):
                continue
            if _room(node.module or "", package) != _room_of(source.path, package):
                names.update(alias.name for alias in node.names)
    return names


def _has_untyped_dict(function: Function) -> bool:
    annotations = [argument.annotation for argument in _arguments(function)]
    annotations.append(function.returns)
    for annotation in annotations:
        if annotation is not None and "dict[str, Any]" in ast.unparse(annotation):
            return True
    return False


def _measure_sizes(m: Metrics, functions: list[FunctionAt]) -> None:
    sizes = []
    for function in functions:
        end = function.node.end_lineno or function.node.lineno
        sizes.append(end - function.node.lineno + 1)
    sizes.sort()
    if sizes:
        m.function_lines_median = statistics.median(sizes)
        m.function_lines_90 = sizes[int(0.9 * (len(sizes) - 1))]
        m.function_lines_longest = sizes[-1]


def _measure_hints(m: Metrics, functions: list[FunctionAt]) -> None:
    nodes = [function.node for function in functions]
    arguments: list[ast.arg] = []
    for node in nodes:
        arguments.extend(_arguments(node))
    m.return_hints = _share([node.returns is not None for node in nodes])
    m.argument_hints = _share([argument.annotation is not None for argument in arguments])
    m.any_arguments = sum(_is_any(argument.annotation) for argument in arguments)
    m.any_returns = sum(_is_any(node.returns) for node in nodes)


def _arguments(node: Function) -> Iterator[ast.arg]:
    for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
        if argument.arg not in ("self", "cls"):
            yield argument


def _is_any(annotation: ast.expr | None) -> bool:
    return isinstance(annotation, ast.Name) and annotation.id == "Any"


def _measure_docstrings(m: Metrics, sources: list[SourceFile]) -> None:
    documented = []
    for source in sources:
        for node in _public(source.tree.body):
            has_docstring = ast.get_docstring(node) is not None
            documented.append(has_docstring)
            if not has_docstring:
                m.details.append(f"{source.path}:{node.lineno}: {node.name} has no docstring")
    m.public = len(documented)
    m.public_with_docstring = _share(documented)


def _public(body: list[ast.stmt]) -> Iterator[Function | ast.ClassDef]:
    for node in body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from _public(node.body)


def _measure_inner_imports(m: Metrics, functions: list[FunctionAt], package: str) -> None:
    # An import in a nested function is met once for each function around it: a set counts it once.
    places = set()
    for function in functions:
        for node in ast.walk(function.node):
            if _is_own_import(node, package):
                places.add(f"{function.path}:{node.lineno}")
    m.own_imports_in_functions = len(places)
    m.details += [f"{place}: own import inside a function" for place in sorted(places)]


def _measure_upward_imports(
    m: Metrics, sources: list[SourceFile], package: str, order: dict[str, int]
) -> None:
    for source in sources:
        room = _room_of(source.path, package)
        rank = order.get(room, len(order))
        for node in ast.walk(source.tree):
            if not _is_own_import(node, package):
                continue
            target = _room(node.module or "", package)
            if target != room and order.get(target, -1) > rank:
                m.upward_imports += 1
                m.details.append(f"{source.path}:{node.lineno}: {room} imports {target}")


def _is_own_import(node: ast.AST, package: str) -> bool:
    return isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == package


def _room(module: str, package: str) -> str:
    """``dupmae_ir.io.runs`` -> ``io``; the package itself is ``""``."""
    parts = module.split(".")
    if package not in parts[:-1]:
        return ""
    return parts[parts.index(package) + 1]


def _room_of(path: Path, package: str) -> str:
    return _room(".".join(path.with_suffix("").parts), package)


def _share(values: list[bool]) -> float:
    return sum(values) / max(len(values), 1)


def rooms() -> dict[str, int]:
    """Rank of every room, from the list that tests/test_architecture.py enforces."""
    source = (ROOT / "tests" / "test_architecture.py").read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ORDER":
            return {name: rank for rank, name in enumerate(ast.literal_eval(node.value))}
    raise SystemExit("tests/test_architecture.py has no list ORDER")


def project() -> Metrics:
    """The metrics of this package."""
    return measure([ROOT / "dupmae_ir"], order=rooms())


def density_table(m: Metrics) -> list[list[str]]:
    """Rows of text: name of the density, ours, each anchor's; the first row is the header."""
    rows = [["per 1,000 lines of code", "here", *ANCHORS]]
    for column, name in enumerate(DENSITIES):
        anchors = [f"{values[column]:g}" for values in ANCHORS.values()]
        rows.append([name, f"{m.densities[name]:.1f}", *anchors])
    return rows


def broken_rules(m: Metrics) -> list[str]:
    """The rules of the structure that do not hold, one line each."""
    return [f"{name} is {getattr(m, name)}, not 0" for name in RULES if getattr(m, name)]


def main() -> None:
    """Print the metrics of the given paths."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--check", action="store_true", help="exit 1 when a rule is broken")
    parser.add_argument("--details", action="store_true", help="list what is behind the counts")
    args = parser.parse_args()

    m = measure(args.paths, order=rooms()) if args.paths else project()
    values = asdict(m)
    details = values.pop("details")
    if args.json:
        print(json.dumps(values))
    else:
        del values["densities"]
        for name, value in values.items():
            print(f"{name:26} {round(value, 3)}")
        print()
        for name, *columns in density_table(m):
            print(f"{name:26}" + "".join(f"{column:>23}" for column in columns))
    if args.details:
        print("\n".join(details))

    problems = broken_rules(m)
    if args.check and problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
