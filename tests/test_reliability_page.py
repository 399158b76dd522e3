"""docs/reliability.md names a test for each of the 18 weaknesses, and each of them exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (\d+) \| [^|]+ \| ([^|]+) \|$", PAGE, re.MULTILINE)


def test_every_weakness_has_a_test() -> None:
    assert [int(number) for number, _ in ROWS] == list(range(1, 19))
    for number, tests in ROWS:
        named = re.findall(r"`(tests/\S+?\.py)::(\w+)`", tests)
        assert named, f"row {number} names no test"
        for path, name in named:
            tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
            assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{path}::{name}"
