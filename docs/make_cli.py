"""Write docs/cli.md from the commands' own --help. With --check, exit 1 when the page is out of date."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from dupmae_ir.__main__ import VERBS

PAGE = Path(__file__).with_name("cli.md")
INTRODUCTION = """\
# Commands

Generated from `--help` by `make docs`; do not edit.

`dupmae-ir COMMAND` and `python -m dupmae_ir.COMMAND` are the same. Every option can also be set in a TOML file
(`--recipe FILE`); a flag on the command line overrides it.
"""


def page() -> str:
    """The help pages of all commands, 100 columns wide."""
    parts = [INTRODUCTION]
    for command in commands():
        parts.append(f"## dupmae-ir {command}\n\n```text\n{help_page(command)}```\n")
    return "\n".join(parts)


def commands() -> list[str]:
    """Every command in the order of ``dupmae-ir --help``; a command with subcommands is replaced by these."""
    found = []
    for command in VERBS:
        subcommands = _listed(help_page(command))
        found += [f"{command} {name}" for name in subcommands] or [command]
    return found


def help_page(command: str) -> str:
    """What ``dupmae-ir COMMAND --help`` prints; the front page for an empty ``command``."""
    # argparse takes the width from COLUMNS, so the page does not depend on the terminal.
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "PYTHON_COLORS": "0"}
    arguments = [sys.executable, "-m", "dupmae_ir", *command.split(), "--help"]
    return subprocess.run(arguments, check=True, capture_output=True, text=True, env=environment).stdout


def _listed(text: str) -> list[str]:
    """Names in the section ``commands:`` of a help page."""
    section = re.search(r"^commands:\n((?:  \S.*\n)+)", text, re.M)
    return re.findall(r"^  (\S+)", section[1], re.M) if section else []


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text else "docs/cli.md is old: make docs")
    PAGE.write_text(text, encoding="utf-8")
