"""No regular expression of the package takes more than linear time: each meets growing hostile texts."""

from __future__ import annotations

import ast
import builtins
import importlib
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
CALLS = ("compile", "search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer")
SHORT = 2_000
LONG = 8_000
QUICK = 0.005
"""Seconds in which a linear pattern reads the long text; a quadratic one takes several times as long (18 ms on a fast
machine)."""
SUBQUADRATIC = 9.0
"""Ratio of the times for four times the text: 4 for a linear pattern, 16 for a quadratic one."""
TRUSTED = {
    "eval/reports/figures.py": "reads what matplotlib drew",
    "serve/page/__init__.py:_LINE_BREAKS": "reads the templates of the package",
}
PUNCTUATION = "\t-,:;!?'\"`~=#*@/&<>([{"


def expressions() -> Iterator[tuple[str, str | bytes, int, bool]]:
    """(place, pattern, flags, whether it is looked for anywhere in a text) of every call of ``re``."""
    package = {
        path: path.read_text(encoding="utf-8")
        for path in sorted((ROOT / "dupmae_ir").rglob("*.py"))
    }
    used: dict[str, set[str]] = {}
    for name, attribute in re.findall(r"\b(\w+)(?=\.(\w+))", "\n".join(package.values())):
        used.setdefault(name, set()).add(attribute)
    for path, text in package.items():
        if not re.search(r"\bre\.\w+\(", text):
            continue
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        module = importlib.import_module(name)
        tree = ast.parse(text)
        names = {
            id(node.value): node.targets[0].id
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _is_expression(node):
                name = names.get(id(node), "")
                place = f"{path.relative_to(ROOT / 'dupmae_ir')}:{name or node.lineno}"
                uses = used.get(name, set()) if name else {node.func.attr}  # type: ignore[attr-defined]
                yield (
                    place,
                    *_evaluated(node, dict(vars(module)), place),
                    not uses <= {"match", "fullmatch"},
                )


def _is_expression(node: ast.Call) -> bool:
    function = node.func
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id == "re"
        and function.attr in CALLS
    )


LOCAL: dict[str, Any] = {"pattern": "/api/.+/[^/]+", "target": Path("a")}
"""Values of local names in patterns; of others, a letter."""


class Locals(dict[str, Any]):
    """Names that a module does not have, with their values in a pattern."""

    def __missing__(self, name: str) -> Any:
        if name in self["names"] or hasattr(builtins, name):
            raise KeyError(name)
        return LOCAL.get(name, "a")


def _evaluated(node: ast.Call, names: dict[str, Any], place: str) -> tuple[str | bytes, int]:
    def value(expression: ast.expr) -> Any:
        code = compile(ast.Expression(expression), place, "eval")
        return eval(code, names, Locals(names=names))  # noqa: S307 (an expression of this package)

    flags = [value(k.value) for k in node.keywords if k.arg == "flags"]
    arguments = {"compile": 1, "search": 2, "match": 2, "fullmatch": 2, "findall": 2, "finditer": 2}
    position = arguments.get(node.func.attr)  # type: ignore[attr-defined]
    if position is not None and len(node.args) > position:
        flags.append(value(node.args[position]))
    return value(node.args[0]), int(flags[0]) if flags else 0


def pumps(pattern: str) -> list[tuple[str, str, str]]:
    """(before, repeated, after): texts that the parts of a pattern match again and again, and that then fail."""
    plain = re.sub(r"\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\[a-zA-Z]", "", pattern)
    letters = [*dict.fromkeys([*" \n_a1.A", *sorted({c for c in plain if c in PUNCTUATION})[:16]])]
    words = re.findall(r"[A-Za-z]{4,}", plain)[:4]
    repeated = [
        *letters,
        "](",
        "//",
        "<!",
        "--",
        *(a + b for a in letters[:10] for b in " a." if a != b),
        *words,
    ]
    return [(b, r, "\x00b") for b in ("", "# a", *(f"{word}=" for word in words)) for r in repeated]


def seconds(expression: re.Pattern[Any], text: Any, anywhere: bool) -> float:
    """CPU time of one way to apply an expression."""
    started = time.process_time()
    for _ in expression.finditer(text) if anywhere else ():
        pass
    expression.match(text)
    expression.fullmatch(text)
    return time.process_time() - started


def growth(expression: re.Pattern[Any], pump: tuple[str, str, str], anywhere: bool) -> float:
    """How many times as long four times the text takes; 0 if it is quick in any case."""

    def text(size: int) -> Any:
        made = pump[0] + pump[1] * (size // len(pump[1])) + pump[2]
        return made.encode() if isinstance(expression.pattern, bytes) else made

    def shortest(size: int, tries: int) -> float:
        return min(seconds(expression, text(size), anywhere) for _ in range(tries))

    if shortest(LONG, 2) < QUICK:
        return 0.0
    # Each with its own shortest time: one slow moment must not decide either way.
    return shortest(LONG, 3) / max(1e-9, shortest(SHORT, 3))


def slow_texts(pattern: str | bytes, flags: int, anywhere: bool = True) -> list[str]:
    expression = re.compile(pattern, flags)
    shown = pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern
    found: list[str] = []
    for pump in pumps(shown):
        if not found and (ratio := growth(expression, pump, anywhere)) > SUBQUADRATIC:
            found.append(f"{shown!r} takes {ratio:.0f} times as long for 4 times {pump}")
    return found


def test_a_quadratic_expression_is_noticed() -> None:
    assert slow_texts(r"_*a", 0)
    assert slow_texts(r"\d*\.?\d+", 0, anywhere=False)
    assert not slow_texts(r"(?<!_)_*a", 0)
    assert not slow_texts(r"_*a", 0, anywhere=False)


@pytest.mark.parametrize(
    ("place", "pattern", "flags", "anywhere"),
    list(expressions()),
    ids=lambda value: str(value)[:40],
)
def test_time_is_linear(place: str, pattern: str | bytes, flags: int, anywhere: bool) -> None:
    if (trusted := TRUSTED.get(place) or TRUSTED.get(place.partition(":")[0])) is not None:
        pytest.skip(trusted)
    assert slow_texts(pattern, flags, anywhere) == []
