"""Write docs/commands/, a page for each command, from the output of --help. With --check, exit 1 if one is old."""

from __future__ import annotations

import io
import os
import re
import sys
from contextlib import redirect_stdout, suppress
from pathlib import Path

from dupmae_ir.__main__ import VERBS, main

FOLDER = Path(__file__).with_name("commands")
INTRODUCTION = """\
# Commands

`dupmae-ir COMMAND` and `python -m dupmae_ir.COMMAND` are the same. Every option can also be set in a TOML file
(`--recipe FILE`); a flag on the command line overrides it. The pages are generated from `--help`.

"""


def pages() -> dict[str, str]:
    """File name -> text: one page for each command, with its subcommands, and the list of them."""
    # argparse takes the width from COLUMNS, so the pages do not depend on the terminal.
    os.environ.update({"COLUMNS": "100", "NO_COLOR": "1", "PYTHON_COLORS": "0"})
    files = {"index.md": _index_page()}
    for verb in VERBS:
        verb_help = help_page(verb)
        sections = [f"# dupmae-ir {verb}\n\n```text\n{verb_help}```\n"]
        for name in _subcommands(verb_help):
            command = f"{verb} {name}"
            sections.append(f"## dupmae-ir {command}\n\n```text\n{help_page(command)}```\n")
        files[f"{verb}.md"] = "\n".join(sections)
    return files


def _index_page() -> str:
    rows = [f"| [`{verb}`]({verb}.md) | {line} |" for verb, line in VERBS.items()]
    return INTRODUCTION + "\n".join(["| command | |", "|:--|:--|", *rows]) + "\n"


def help_page(command: str) -> str:
    """What ``dupmae-ir COMMAND --help`` prints; the front page for an empty ``command``."""
    with redirect_stdout(io.StringIO()) as printed, suppress(SystemExit):
        main([*command.split(), "--help"])
    return printed.getvalue()


def _subcommands(text: str) -> list[str]:
    """Names in the section ``commands:`` of a help page."""
    section = re.search(r"^commands:\n((?:  \S.*\n)+)", text, re.M)
    if not section:
        return []
    return re.findall(r"^  (\S+)", section[1], re.M)


if __name__ == "__main__":
    texts = pages()
    old = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    if "--check" in sys.argv:
        if old != texts:
            sys.exit("docs/commands is old: make docs")
        sys.exit(0)
    FOLDER.mkdir(exist_ok=True)
    for name in old.keys() - texts.keys():
        (FOLDER / name).unlink()
    for name, text in texts.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
