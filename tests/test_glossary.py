"""docs/glossary.md is kept: no public class name has two meanings, and words are not used against the glossary."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "dupmae_ir"
FOREIGN = {"backend_tokenizer"}
"""Names that other libraries give."""
TREES = {
    path.relative_to(ROOT): ast.parse(path.read_text(encoding="utf-8"))
    for path in PACKAGE.rglob("*.py")
}
CLASSES = [
    (node.name, path, node.lineno)
    for path, tree in TREES.items()
    for node in tree.body
    if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
]


def banned() -> dict[str, str]:
    """Word -> the word to use instead, from the table of the glossary."""
    rows = re.findall(
        r"^\| (.+?) \| .+? \| (`.*`) \|$",
        (ROOT / "docs" / "glossary.md").read_text("utf-8"),
        re.MULTILINE,
    )
    return {word: use for use, words in rows for word in re.findall(r"`(\w+)`", words)}


def words_of(name: str) -> set[str]:
    """``MostServers_of`` -> {most, servers, of}."""
    return set(re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()))


def public_names() -> Iterator[tuple[str, str]]:
    """(where, name) of every module, public function, method, class, parameter and setting."""
    for path, tree in TREES.items():
        yield str(path), path.stem
        stack: list[ast.AST] = [tree]
        while stack:
            for node in ast.iter_child_nodes(stack.pop()):
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    if node.name.startswith("_"):
                        continue
                    yield f"{path}:{node.lineno}", node.name
                    if isinstance(node, ast.ClassDef):
                        stack.append(node)
                    else:
                        arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                        yield from ((f"{path}:{a.lineno}", a.arg) for a in arguments)
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    yield f"{path}:{node.lineno}", node.target.id


def help_texts() -> Iterator[tuple[str, str]]:
    """(where, text) of the help of every option."""
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "option"
            ):
                for child in ast.walk(node):
                    if isinstance(child, ast.Constant) and isinstance(child.value, str):
                        yield f"{path}:{child.lineno}", child.value.replace("search engine", "")


def test_no_public_class_name_is_defined_twice():
    names: dict[str, list[str]] = {}
    for name, path, line in CLASSES:
        names.setdefault(name, []).append(f"{path}:{line}")
    assert {name: where for name, where in names.items() if len(where) > 1} == {}


def test_the_glossary_lists_words_to_avoid():
    assert banned().keys() >= {"backend", "engine", "places", "sealed"}


def test_no_public_name_uses_a_word_against_the_glossary():
    avoid = banned()
    wrong = [
        f"{where}: {name}: use {avoid[word]!r}, not {word!r}"
        for where, name in public_names()
        if not name.startswith("_") and name not in FOREIGN
        for word in words_of(name) & avoid.keys()
    ]
    assert wrong == []


def test_no_help_text_uses_a_word_against_the_glossary():
    avoid = banned()
    wrong = [
        f"{where}: {text!r}: use {avoid[word]!r}, not {word!r}"
        for where, text in help_texts()
        for word in words_of(text) & avoid.keys()
    ]
    assert wrong == []


def test_words_of_a_name():
    assert words_of("MostServers_of") == {"most", "servers", "of"}
