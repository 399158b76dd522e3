"""Scripts outside the package: what they import from it exists, also where the import is in a function."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("benchmarks", "docs", "examples", "experiments", "tools")
SCRIPTS = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


@cache
def defined(module: str) -> set[str]:
    """Names that a module binds outside of functions and classes. The module is not run: it may need other packages."""
    spec = importlib.util.find_spec(module)
    assert spec is not None, f"no module {module}"
    assert spec.origin is not None, f"{module} is not a file"
    names = set[str]()
    waiting: list[ast.AST] = [ast.parse(Path(spec.origin).read_text(encoding="utf-8"))]
    for node in waiting:
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                names.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names.update(alias.asname or alias.name for alias in aliases)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case _:
                waiting += ast.iter_child_nodes(node)
    return names


def is_there(module: str, name: str) -> bool:
    """Whether ``from module import name`` finds something."""
    names = defined(module)
    if "__getattr__" in names:  # names that are imported when they are asked for
        return hasattr(importlib.import_module(module), name)
    try:
        return name in names or importlib.util.find_spec(f"{module}.{name}") is not None
    except ModuleNotFoundError:  # the module is no package
        return False


def test_a_name_that_is_not_there_is_found_out() -> None:
    assert is_there("dupmae_ir", "Searcher")
    assert is_there("dupmae_ir.index.format", "lines")
    assert not is_there("dupmae_ir", "Nothing")
    assert not is_there("dupmae_ir.index.format.lines", "nothing")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_script_imports_is_there(script: Path) -> None:
    missing = []
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dupmae_ir"):
            assert node.module
            for alias in node.names:
                if not is_there(node.module, alias.name):
                    missing.append(f"{node.module}.{alias.name}")
    assert not missing
