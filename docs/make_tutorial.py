"""Run docs/tutorial.md and the sections of docs/by-example.md and write what their commands print. With --check, exit 1
when that differs; with the name of a page (`tutorial`), only that one.

Blocks with a title are files and are written first. ``console`` blocks hold commands after ``$``; what follows is their
output. ``python`` blocks without a title are run; a ``text`` block after one is its output. Everything happens in an
empty folder: one for the tutorial, one for each section of the other page.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PAGES = [Path(__file__).with_name(name) for name in ("tutorial.md", "by-example.md")]
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```\n', re.M | re.S)
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][-+]?\d+)?")
SPEED = re.compile(r"[\d,.]+(?= (?:documents|passages)/s| s\b)|\([\d,.]+/s\)")
"""Parts of the output that depend on the machine's speed."""
TOLERANCE = 1e-2
"""Relative; processors add floating-point numbers in different orders, and three digits are printed."""


def run_page(text: str, folder: Path) -> str:
    """``text`` with the output of every command and program replaced by what it prints in ``folder``."""
    last_output = None

    def replace(block: re.Match[str]) -> str:
        nonlocal last_output
        language, title, body = block.groups()
        # Only the block right after a program can be its output.
        program_output = last_output
        last_output = None
        if title:
            path = folder / title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(body, encoding="utf-8")
        elif language == "console":
            body = "\n".join(f"$ {command}\n{_run(command, folder)}" for command in commands(body))
        elif language == "python":
            last_output = _run([sys.executable, "-c", body], folder)
        elif language == "text" and program_output is not None:
            body = program_output
        attributes = f' title="{title}"' if title else ""
        return f"```{language}{attributes}\n{body}```\n"

    return BLOCK.sub(replace, text)


def commands(body: str) -> list[str]:
    """Command lines of a console block, continuation lines included."""
    return [match[1] for match in re.finditer(r"^\$ ((?:.*\\\n)*.*)$", body, re.M)]


def environment() -> dict[str, str]:
    """Variables of the commands: no colours, lines of 100 characters."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {
        **os.environ,
        "NO_COLOR": "1",
        "COLUMNS": "100",
        "PYTHONWARNINGS": "ignore",
        "PATH": path,
    }


def shell(command: str) -> list[str]:
    """The words that run a command line, with this clone's package for ``dupmae-ir``."""
    module = command.replace("\\\n", " ").replace(
        "dupmae-ir ", f"{sys.executable} -m dupmae_ir ", 1
    )
    return ["bash", "-c", module]


def _run(command: str | list[str], folder: Path) -> str:
    if isinstance(command, str):
        command = shell(command)
    # A page shows what commands write to standard error, but not the progress that libraries show there in a program.
    stderr = subprocess.PIPE if command[0] == sys.executable else subprocess.STDOUT
    completed = subprocess.run(
        command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=stderr, text=True
    )
    if completed.returncode:
        output = completed.stdout + (completed.stderr or "")
        sys.exit(f"{command} ended with {completed.returncode}:\n{output}")
    return completed.stdout


def same(old: str, new: str) -> bool:
    """Equal text, numbers within :data:`TOLERANCE`, speeds ignored."""
    old = SPEED.sub("#", old)
    new = SPEED.sub("#", new)
    if NUMBER.sub("0", old) != NUMBER.sub("0", new):
        return False
    for before, after in zip(_numbers(old), _numbers(new), strict=True):
        if not math.isclose(before, after, rel_tol=TOLERANCE):
            return False
    return True


def _numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in NUMBER.findall(text)]


def sections(page: Path) -> list[str]:
    """The parts of a page that are run in one folder each."""
    text = page.read_text(encoding="utf-8")
    if page == PAGES[0]:
        return [text]
    return re.split(r"^(?=## )", text, flags=re.M)


def run_section(text: str) -> str:
    """:func:`run_page` in a new folder."""
    with tempfile.TemporaryDirectory() as folder:
        return run_page(text, Path(folder))


if __name__ == "__main__":
    named_pages = [page for page in PAGES if page.stem in sys.argv[1:]]
    for page in named_pages or PAGES:
        current = "".join(map(run_section, sections(page)))
        if "--check" not in sys.argv:
            page.write_text(current, encoding="utf-8")
        elif not same("".join(sections(page)), current):
            sys.exit(f"docs/{page.name} does not show what its commands print: make docs")
