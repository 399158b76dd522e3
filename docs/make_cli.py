"""Write docs/cli.md from the commands' own --help, or with --check say whether it is up to date."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).with_name("cli.md")
COMMANDS = (
    "demo",
    "collections list",
    "collections show",
    "collections get",
    "collections check",
    "encode",
    "encode.merge",
    "encode.queries",
    "encode.segment",
    "search",
    "search.fusion",
    "eval",
    "eval.case",
    "eval.space",
    "eval.answers",
    "eval.regressions run",
    "eval.regressions list",
    "eval.regressions report",
    "eval.regressions accept",
    "index bm25",
    "index dense",
    "index postings",
    "index show",
    "doctor",
    "pretrain",
    "pretrain.augment",
    "finetune",
    "finetune.convert",
    "finetune.mine",
    "finetune.cross_encoder",
    "finetune.score",
    "export",
)


def page() -> str:
    """Every command's help page, 100 columns wide."""
    parts = ["# Commands\n\nGenerated from the commands' own `--help` by `make docs`; do not edit.\n"]
    for command in COMMANDS:
        parts.append(f"## dupmae-ir {command}\n\n```text\n{_help(command)}```\n")
    return "\n".join(parts)


def _help(command: str) -> str:
    module, *verb = command.split()
    words = [sys.executable, "-m", f"dupmae_ir.{module}", *verb, "--help"]
    # argparse takes the width from here; the terminal of whoever runs this must not show in the page.
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "PYTHON_COLORS": "0"}
    return subprocess.run(words, check=True, capture_output=True, text=True, env=environment).stdout


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text else "docs/cli.md is old: make docs")
    PAGE.write_text(text, encoding="utf-8")
