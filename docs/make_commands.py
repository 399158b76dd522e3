"""Write docs/commands/, a page for each command, from the commands' own --help. With --check, exit 1 if one is old."""

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
    texts = {verb: help_page(verb) for verb in VERBS}
    subcommands = [f"{verb} {name}" for verb, text in texts.items() for name in _listed(text)]
    texts |= {name: help_page(name) for name in subcommands}
    rows = [f"| [`{verb}`]({verb}.md) | {line} |" for verb, line in VERBS.items()]
    found = {"index.md": INTRODUCTION + "\n".join(["| command | |", "|:--|:--|", *rows]) + "\n"}
    for verb in VERBS:
        sections = [verb, *(name for name in subcommands if name.split()[0] == verb)]
        bodies = [f"```text\n{texts[name]}```\n" for name in sections]
        titles = [f"# dupmae-ir {verb}", *(f"## dupmae-ir {name}" for name in sections[1:])]
        found[f"{verb}.md"] = "\n".join(
            f"{title}\n\n{body}" for title, body in zip(titles, bodies, strict=True)
        )
    return found


def help_page(command: str) -> str:
    """What ``dupmae-ir COMMAND --help`` prints; the front page for an empty ``command``."""
    with redirect_stdout(io.StringIO()) as printed, suppress(SystemExit):
        main([*command.split(), "--help"])
    return printed.getvalue()


def _listed(text: str) -> list[str]:
    """Names in the section ``commands:`` of a help page."""
    section = re.search(r"^commands:\n((?:  \S.*\n)+)", text, re.M)
    return re.findall(r"^  (\S+)", section[1], re.M) if section else []


if __name__ == "__main__":
    texts = pages()
    old = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    if "--check" in sys.argv:
        sys.exit(0 if old == texts else "docs/commands is old: make docs")
    FOLDER.mkdir(exist_ok=True)
    for name in old.keys() - texts.keys():
        (FOLDER / name).unlink()
    for name, text in texts.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
