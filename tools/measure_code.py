"""Measure the code: sizes of functions, docstrings, type hints, imports. Read from the source; nothing is imported.

    python tools/measure_code.py [PATH ...]          # default: dupmae_ir
    python tools/measure_code.py --json dupmae_ir
    python tools/measure_code.py --details           # the functions, imports and names behind the counts
    python tools/measure_code.py --check             # exit 1 when a goal is missed

Counting rules: a line of code is one that is neither blank nor only a comment nor part of a docstring. A function's
lines run from ``def`` to its last line, docstring included. Public means that neither the name nor a class around it
starts with an underscore. ``Any`` counts where it is the complete annotation; an untyped dict is a ``dict[str, Any]``
in a signature. A public class counts as defined twice if another public class has its name. Words of pages are those
of README.md and docs/, without the generated pages of commands; hand-written ones are those outside generated parts.
Upward imports are imports that the order in tests/test_architecture.py does not allow.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import operator
import re
import statistics
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GOALS = {
    "code_lines": ("<=", 34_000),
    "files": ("<=", 280),
    "function_lines_longest": ("<=", 60),
    "public_classes_twice": ("<=", 0),
    "untyped_dicts": ("<=", 60),
    "own_imports_in_functions": ("<", 60),
    "any_arguments": ("<", 80),
    "upward_imports": ("<=", 0),
    "readme_words": ("<=", 800),
    "page_words": ("<=", 50_000),
    "hand_written_words": ("<=", 35_000),
}
"""Metric -> comparison and limit."""
LONGEST = int(GOALS["function_lines_longest"][1])
GENERATED = re.compile(r"<!-- (.+?): made by .*?<!-- end of \1 -->", re.DOTALL)
"""Parts of pages that ``make docs`` writes."""
COMMAND_PAGES, GENERATED_PAGES = "commands", "reproduction"
"""Folders of generated pages: those of the commands, whose words do not count, and those of the papers' tables."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Metrics:
    """Counts over a set of Python files; fractions are of 1."""

    files: int = 0
    lines: int = 0
    code_lines: int = 0
    public_classes_twice: int = 0
    untyped_dicts: int = 0
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
    upward_imports: int = 0
    readme_words: int = 0
    page_words: int = 0
    hand_written_words: int = 0
    details: list[str] = field(default_factory=list)


def measure(
    paths: list[Path], package: str = "dupmae_ir", order: dict[str, int] | None = None
) -> Metrics:
    """The metrics of all Python files in ``paths``; ``order``: rank of each room, for upward imports."""
    files = sorted({f for p in paths for f in (p.rglob("*.py") if p.is_dir() else [p])})
    trees = {f: ast.parse(f.read_text(encoding="utf-8"), str(f)) for f in files}
    m = Metrics(
        files=len(files), lines=sum(len(f.read_text(encoding="utf-8").splitlines()) for f in files)
    )
    functions = [
        (f, n) for f, tree in trees.items() for n in ast.walk(tree) if isinstance(n, Function)
    ]
    m.code_lines = sum(
        _code_lines(f.read_text(encoding="utf-8"), tree) for f, tree in trees.items()
    )
    _measure_names(m, trees)
    _measure_sizes(m, functions)
    _measure_hints(m, functions)
    _measure_docstrings(m, trees)
    _measure_imports(m, trees, functions, package, order or {})
    return m


def _code_lines(source: str, tree: ast.Module) -> int:
    docstrings = [
        n.body[0]
        for n in ast.walk(tree)
        if isinstance(n, ast.Module | ast.ClassDef | Function)
        and ast.get_docstring(n, clean=False) is not None
    ]
    skipped = {line for d in docstrings for line in range(d.lineno, (d.end_lineno or d.lineno) + 1)}
    blank = (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {
        line for t in tokens if t.type not in blank for line in range(t.start[0], t.end[0] + 1)
    }
    return len(lines - skipped)


def _measure_names(m: Metrics, trees: dict[Path, ast.Module]) -> None:
    """Names of public classes at the top level of modules, and ``dict[str, Any]`` in signatures."""
    places: dict[str, list[str]] = {}
    for file, tree in trees.items():
        for n in tree.body:
            if isinstance(n, ast.ClassDef) and not n.name.startswith("_"):
                places.setdefault(n.name, []).append(f"{file}:{n.lineno}")
        for n in ast.walk(tree):
            if isinstance(n, Function):
                signature = [*(a.annotation for a in _arguments(n)), n.returns]
                count = sum(ast.unparse(a).count("dict[str, Any]") for a in signature if a)
                m.untyped_dicts += count
                m.details += [
                    f"{file}:{n.lineno}: {n.name} has dict[str, Any] in its signature"
                ] * count
    twice = {name: where for name, where in places.items() if len(where) > 1}
    m.public_classes_twice = len(twice)
    m.details += [f"class {name} is defined at {', '.join(where)}" for name, where in twice.items()]


def _measure_sizes(m: Metrics, functions: list[tuple[Path, Function]]) -> None:
    sizes = sorted((n.end_lineno or n.lineno) - n.lineno + 1 for _, n in functions)
    if sizes:
        m.function_lines_median = statistics.median(sizes)
        m.function_lines_90 = sizes[int(0.9 * (len(sizes) - 1))]
        m.function_lines_longest = sizes[-1]
    for file, n in functions:
        if (lines := (n.end_lineno or n.lineno) - n.lineno + 1) > LONGEST:
            m.details.append(f"{file}:{n.lineno}: {n.name} has {lines} lines")


def _measure_hints(m: Metrics, functions: list[tuple[Path, Function]]) -> None:
    arguments = [a for _, n in functions for a in _arguments(n)]
    m.return_hints = _share(n.returns is not None for _, n in functions)
    m.argument_hints = _share(a.annotation is not None for a in arguments)
    m.any_arguments = sum(_is_any(a.annotation) for a in arguments)
    m.any_returns = sum(_is_any(n.returns) for _, n in functions)


def _arguments(n: Function) -> Iterator[ast.arg]:
    yield from (
        a
        for a in (*n.args.posonlyargs, *n.args.args, *n.args.kwonlyargs)
        if a.arg not in ("self", "cls")
    )


def _is_any(annotation: ast.expr | None) -> bool:
    return isinstance(annotation, ast.Name) and annotation.id == "Any"


def _measure_docstrings(m: Metrics, trees: dict[Path, ast.Module]) -> None:
    public = [(f, n) for f, tree in trees.items() for n in _public(tree.body)]
    m.public = len(public)
    m.public_with_docstring = _share(ast.get_docstring(n) is not None for _, n in public)
    m.details += [
        f"{f}:{n.lineno}: {n.name} has no docstring"
        for f, n in public
        if ast.get_docstring(n) is None
    ]


def _public(body: list[ast.stmt]) -> Iterator[Function | ast.ClassDef]:
    for n in body:
        if isinstance(n, Function | ast.ClassDef) and not n.name.startswith("_"):
            yield n
            if isinstance(n, ast.ClassDef):
                yield from _public(n.body)


def _measure_imports(
    m: Metrics,
    trees: dict[Path, ast.Module],
    functions: list[tuple[Path, Function]],
    package: str,
    order: dict[str, int],
) -> None:
    inner = {id(i): (f, i) for f, n in functions for i in ast.walk(n) if _is_own(i, package)}
    m.own_imports_in_functions = len(inner)
    m.details += [f"{f}:{i.lineno}: own import inside a function" for f, i in inner.values()]
    for file, tree in trees.items():
        room = _room(".".join(file.with_suffix("").parts), package)
        for node in ast.walk(tree):
            target = _room(node.module or "", package) if _is_own(node, package) else ""
            if target != room and order.get(target, -1) > order.get(room, len(order)):
                m.upward_imports += 1
                m.details.append(f"{file}:{node.lineno}: {room} imports {target}")


def _is_own(node: ast.AST, package: str) -> bool:
    return isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == package


def _room(module: str, package: str) -> str:
    """``dupmae_ir.io.runs`` -> ``io``; the package itself is ``""``."""
    parts = module.split(".")
    return parts[parts.index(package) + 1] if package in parts[:-1] else ""


def _share(values: Iterator[bool]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0


def rooms() -> dict[str, int]:
    """Rank of every room, from the list that tests/test_architecture.py enforces."""
    source = (ROOT / "tests" / "test_architecture.py").read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ORDER":
            return {name: rank for rank, name in enumerate(ast.literal_eval(node.value))}
    raise SystemExit("tests/test_architecture.py has no list ORDER")


def project() -> Metrics:
    """The metrics of this project, README included."""
    m = measure([Path("dupmae_ir")], order=rooms())
    pages = [
        ROOT / "README.md",
        *(p for p in (ROOT / "docs").rglob("*.md") if COMMAND_PAGES not in p.parts),
    ]
    texts = {p: p.read_text(encoding="utf-8") for p in pages}
    m.readme_words = len(texts[ROOT / "README.md"].split())
    m.page_words = sum(len(text.split()) for text in texts.values())
    written = {p: text for p, text in texts.items() if GENERATED_PAGES not in p.parts}
    m.hand_written_words = sum(len(GENERATED.sub("", text).split()) for text in written.values())
    return m


def missed(m: Metrics) -> list[str]:
    """The goals that the metrics miss, one line each."""
    holds = {"<": operator.lt, "<=": operator.le, ">=": operator.ge}
    return [
        f"{name} is {round(getattr(m, name), 3)}, the goal is {sign} {limit}"
        for name, (sign, limit) in GOALS.items()
        if not holds[sign](getattr(m, name), limit)
    ]


def main() -> None:
    """Print the metrics of the given paths."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--check", action="store_true", help="exit 1 when a goal is missed")
    parser.add_argument("--details", action="store_true", help="list what is behind the counts")
    args = parser.parse_args()
    m = measure(args.paths, order=rooms()) if args.paths else project()
    details = m.details
    values = {k: v for k, v in asdict(m).items() if k != "details"}
    print(
        json.dumps(values)
        if args.json
        else "\n".join(f"{k:26} {round(v, 3)}" for k, v in values.items())
    )
    if args.details:
        print("\n".join(details))
    if args.check and (problems := missed(m)):
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    sys.exit(main())
