"""Write the table of docs/reproduction.md from eval/*.toml. With --check, exit 1 when it is out of date."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).with_name("reproduction.md")
MARK = "<!-- the table below is made by `make docs` -->\n"


def page() -> str:
    """The page with the table generated again; the text above the mark is written by hand."""
    arguments = ["report", "--tier", "full", "--format", "reproduction", "--output", "nowhere"]
    done = subprocess.run(
        [sys.executable, "-m", "dupmae_ir.eval.regressions", *arguments], check=True, capture_output=True, text=True
    )
    return PAGE.read_text(encoding="utf-8").partition(MARK)[0] + MARK + "\n" + done.stdout


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text(encoding="utf-8") == text else "docs/reproduction.md is old: make docs")
    PAGE.write_text(text, encoding="utf-8")
