"""Pages with generated parts. Text between two marks is generated; everything else is written by hand.

<!-- NAME: made by `make docs` --> ... <!-- end of NAME -->
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def regenerate(text: str, parts: Mapping[str, Callable[[], str]]) -> str:
    """``text`` with the parts named in ``parts`` generated again; other marks are left unchanged."""

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        if name not in parts:
            return match[0]
        return f"<!-- {name}: made by `make docs` -->\n\n{parts[name]()}\n\n<!-- end of {name} -->"

    return re.sub(
        r"<!-- (\w+): made by `make docs` -->\n.*?<!-- end of \1 -->", replace, text, flags=re.S
    )


def write_or_check(
    pages: Sequence[Path], parts: Mapping[str, Callable[[], str]], source: str
) -> None:
    """Write the pages. With --check, exit 1 and name the first page that is older than ``source``."""
    for path in pages:
        old = path.read_text(encoding="utf-8")
        new = regenerate(old, parts)
        if "--check" not in sys.argv:
            path.write_text(new, encoding="utf-8")
        elif old != new:
            sys.exit(f"{path.relative_to(ROOT)} is older than {source}: make docs")
