"""Record a terminal session on the tutorial's notes as docs/pictures/session.svg: a folder, an index, answers.

The commands are run and their output is shown as it was; only the time between the lines is shortened. A viewer without
animation shows the complete session.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from html import escape
from pathlib import Path
from typing import NamedTuple

from make_tutorial import BLOCK, PAGES, environment, shell
from pages import ROOT

PICTURE = ROOT / "docs" / "pictures" / "session.svg"
COMMANDS = (
    "dupmae-ir encode --corpus notes --index my-index",
    'dupmae-ir search --index my-index --query "the drive is almost full" --hits 1',
    "dupmae-ir search --index my-index --query \"when are old log files removed?\" --explain 'logs.md#0'",
)
COLOURS = {"prompt": "#3fb950", "command": "#f0f6fc", "output": "#adbac7"}

# The size of the terminal: characters of a line, then pixels.
COLUMNS = 100
LINE_HEIGHT = 20
CHARACTER_WIDTH = 8.43
TOP = 52

# Seconds of the animation.
SECONDS_PER_CHARACTER = 0.02
PAUSE_BEFORE_OUTPUT = 0.5
PAUSE_AFTER_OUTPUT = 2.5


class Step(NamedTuple):
    """A command and the lines that it printed."""

    command: str
    output: list[str]


def session(folder: Path) -> list[Step]:
    """Every command with the lines that it printed in ``folder``, without progress bars."""
    for _, title, body in BLOCK.findall(PAGES[0].read_text(encoding="utf-8")):
        if title.startswith("notes/"):
            (folder / title).parent.mkdir(exist_ok=True)
            (folder / title).write_text(body, encoding="utf-8")

    steps = []
    for command in COMMANDS:
        completed = subprocess.run(
            shell(command),
            cwd=folder,
            env=environment(),
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines = [re.sub(r"\s+$", "", line) for line in completed.stdout.splitlines()]
        steps.append(Step(command, lines))
    return steps


def drawing(steps: list[Step]) -> str:
    """SVG of a terminal in which the lines appear one after the other."""
    rows: list[str] = []
    seconds = 0.0
    y = TOP

    def add(text: str, kind: str, delay: float) -> None:
        nonlocal y
        line = escape(text[: COLUMNS + 10])
        if kind == "command":
            line = f'<tspan fill="{COLOURS["prompt"]}">$</tspan> {line}'
        style = f"animation-delay:{delay:.2f}s"
        rows.append(f'<text x="20" y="{y}" fill="{COLOURS[kind]}" style="{style}">{line}</text>')
        y += LINE_HEIGHT

    for step in steps:
        add(step.command, "command", seconds)
        seconds += SECONDS_PER_CHARACTER * len(step.command) + PAUSE_BEFORE_OUTPUT
        for line in step.output:
            add(line, "output", seconds)
        seconds += PAUSE_AFTER_OUTPUT
        y += LINE_HEIGHT // 2

    width = round(40 + CHARACTER_WIDTH * (COLUMNS + 2))
    style = (
        "text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre;"
        "animation:show .01s both}@keyframes show{from{opacity:0}}"
        "@media (prefers-reduced-motion:reduce){text{animation:none}}"
    )
    dots = "".join(
        f'<circle cx="{24 + 20 * i}" cy="20" r="6" fill="{c}"/>'
        for i, c in enumerate(("#f85149", "#d29922", "#3fb950"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" role="img">\n'
        "<title>A folder becomes an index, and a question finds its note</title>\n"
        f'<style>{style}</style>\n<rect width="{width}" height="{y}" rx="10" fill="#161b22"/>\n{dots}\n'
        + "\n".join(rows)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        PICTURE.write_text(drawing(session(Path(name))), encoding="utf-8")
