"""Pages of which a part is made from data: what stands between two marks is written anew, all else by hand.

<!-- NAME: made by `make docs` --> ... <!-- end of NAME -->
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def anew(text: str, made: Mapping[str, Callable[[], str]]) -> str:
    """``text`` with what stands between the marks named in ``made`` made anew; other marks are left alone."""

    def again(match: re.Match[str]) -> str:
        name = match[1]
        if name not in made:
            return match[0]
        return f"<!-- {name}: made by `make docs` -->\n\n{made[name]()}\n\n<!-- end of {name} -->"

    return re.sub(r"<!-- (\w+): made by `make docs` -->\n.*?<!-- end of \1 -->", again, text, flags=re.S)


def write_or_check(pages: Sequence[Path], made: Mapping[str, Callable[[], str]], source: str) -> None:
    """Write the pages; with --check only say which is older than its ``source``, and exit 1."""
    for path in pages:
        old = path.read_text(encoding="utf-8")
        new = anew(old, made)
        if "--check" not in sys.argv:
            path.write_text(new, encoding="utf-8")
        elif old != new:
            sys.exit(f"{path.relative_to(ROOT)} is older than {source}: make docs")
