"""Draw the packages in the order of their imports and write the table of code metrics into docs/architecture.md.

The order is the one that tests/test_architecture.py enforces. With --check, exit 1 when the drawing is out of date; the
metrics change with every line of code and are not checked.
"""

from __future__ import annotations

import sys
from html import escape
from itertools import groupby
from pathlib import Path

from pages import ROOT, regenerate

sys.path.insert(0, str(ROOT / "tools"))
from measure_code import Metrics, project, rooms

from dupmae_ir import tables

PAGE = Path(__file__).with_name("architecture.md")
DRAWING = Path(__file__).with_name("pictures") / "architecture" / "packages.svg"

LAYERS = {
    "values and settings": (
        "types",
        "errors",
        "registry",
        "config",
        "console",
        "command",
        "device",
        "testing",
    ),
    "files and libraries": ("pyserini", "io", "measures"),
    "models and indexes": ("models", "index"),
    "shared by training commands, collections": ("training", "collections"),
    "what users run": ("encode", "search", "finetune", "pretrain", "eval"),
    "built from the commands": (
        "regressions",
        "backends",
        "scale",
        "serve",
        "integrations",
        "demo",
        "doctor",
    ),
}
"""Layer -> packages that belong to it; a package that is not listed is drawn with the one before it."""

PURPOSES = {
    "types": "Document, Query, Hit, Run",
    "errors": "DupmaeError",
    "registry": "did you mean ...?",
    "config": "options and their rules",
    "console": "help, progress, tables",
    "command": "flags in, result out",
    "device": "CPU, GPU, dtype, threads",
    "testing": "an encoder without weights",
    "pyserini": "JVM, Pyserini versions",
    "io": "readers, writers, jobs, locks",
    "measures": "names of measures",
    "models": "encoder, pooling, objectives",
    "index": "faiss, Lucene, postings",
    "training": "arguments, callbacks",
    "collections": "public collections by name",
    "encode": "corpus to index",
    "search": "topics to certified runs",
    "finetune": "pairs to retriever",
    "pretrain": "text to checkpoint",
    "eval": "runs to measures, reports",
    "regressions": "papers' numbers",
    "servers": "databases and search engines",
    "scale": "clusters",
    "serve": "API and page",
    "integrations": "other frameworks",
    "demo": "all of it, embedded",
    "doctor": "what the machine lacks",
    "export": "to sentence-transformers",
    "__main__": "dupmae-ir VERB",
}
BOX, GAP, LEFT, COLUMNS = (176, 46), 10, 150, 4
COLOURS = ("#eceff1", "#e0f2f1", "#e3f2fd", "#ede7f6", "#fff3e0", "#fce4ec")

# Measured at commit 71fd119 by a reader of these projects: functions are median / 90 % / longest lines.
ANCHORS = {
    "before (71fd119)": (
        "26,270 / 158",
        "7 / 18 / 44",
        "82 %",
        "100 / 97 %",
        "273 / 95",
        "263",
        "3",
        "2,634",
    ),
    "ir_measures": ("3,576 / 46", "6 / 22 / 116", "24 %", "25 / 37 %", "", "", "", "639"),
    "pyterrier_dr": ("11,060 / 45", "8 / 37 / 209", "30 %", "29 / 44 %", "", "", "", "1,480"),
    "nanochat": ("3,414 / 14", "13 / 47 / 100", "49 %", "7 / 12 %", "", "", "", "2,411"),
    "httpx": ("8,827 / 23", "9 / 34 / 133", "48 %", "100 / 100 %", "", "", "", "548"),
    "pylate": ("12,738 / 83", "13 / 60 / 310", "36 %", "34 / 46 %", "", "", "", "1,685"),
}
ROWS = (
    "lines / files",
    "lines of a function: median / 90 % / longest",
    "public functions and classes with docstrings",
    "return / argument hints",
    "plain `Any`: arguments / returns",
    "own imports inside functions",
    "upward imports",
    "README words",
)


def drawing() -> str:
    """SVG: a box for every package, the first of the order at the bottom."""
    parts, top = [], 20
    layers = layered(list(rooms()))
    for number, (title, names) in reversed(list(enumerate(layers))):
        lines = -(-len(names) // COLUMNS)
        height = lines * (BOX[1] + GAP) + GAP
        width = COLUMNS * (BOX[0] + GAP) + GAP
        colour = COLOURS[number % len(COLOURS)]
        parts.append(
            f'<rect x="{LEFT}" y="{top}" width="{width}" height="{height}" rx="8" fill="{colour}"/>'
        )
        parts += _words(title, LEFT - 12, top + height / 2)
        for place, name in enumerate(names):
            # The order runs upwards, so the first packages of a layer are in its lowest line.
            x = LEFT + GAP + place % COLUMNS * (BOX[0] + GAP)
            y = top + GAP + (lines - 1 - place // COLUMNS) * (BOX[1] + GAP)
            parts += _box(name, x, y)
        top += height + GAP
    width = LEFT + COLUMNS * (BOX[0] + GAP) + GAP + 20
    caption = "A package imports only from packages to its left in the same layer, and from the layers below."
    parts.append(f'<text x="{LEFT}" y="{top + 14}" class="note">{caption}</text>')
    return _svg(width, top + 30, parts)


def layered(order: list[str]) -> list[tuple[str, list[str]]]:
    """The order cut into layers: (title, packages)."""
    titles, current = list(LAYERS), 0
    place = {}
    for name in order:
        known = [i for i, members in enumerate(LAYERS.values()) if name in members]
        current = max([current, *known])
        place[name] = current
    return [(titles[i], list(names)) for i, names in groupby(order, key=place.__getitem__)]


def _box(name: str, x: float, y: float) -> list[str]:
    middle = x + BOX[0] / 2
    return [
        f'<rect x="{x}" y="{y}" width="{BOX[0]}" height="{BOX[1]}" rx="5" class="box"/>',
        f'<text x="{middle}" y="{y + 19}" class="name">{escape(name)}</text>',
        f'<text x="{middle}" y="{y + 36}" class="purpose">{escape(PURPOSES.get(name, ""))}</text>',
    ]


def _words(title: str, x: float, y: float) -> list[str]:
    lines = [""]
    for word in title.split():
        lines = (
            [*lines[:-1], f"{lines[-1]} {word}".strip()]
            if len(lines[-1]) + len(word) < 18
            else [*lines, word]
        )
    first = y - 8 * (len(lines) - 1) + 4
    return [
        f'<text x="{x}" y="{first + 16 * i}" class="layer">{escape(line)}</text>'
        for i, line in enumerate(lines)
    ]


def _svg(width: float, height: float, parts: list[str]) -> str:
    style = (
        "text{font-family:sans-serif;fill:#263238}.name{font:bold 14px monospace;text-anchor:middle}"
        ".purpose{font-size:11px;text-anchor:middle;fill:#546e7a}.layer{font-size:12px;text-anchor:end}"
        ".note{font-size:12px;fill:#546e7a}.box{fill:#fff;stroke:#90a4ae}"
    )
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">\n'
        f"<style>{style}</style>\n"
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n{body}\n</svg>\n'
    )


def metrics_table(m: Metrics) -> str:
    """Markdown: our numbers, those before, and those of projects that we measure ourselves against."""
    ours = (
        f"{m.lines:,} / {m.files}",
        f"{m.function_lines_median:g} / {m.function_lines_90:g} / {m.function_lines_longest}",
        f"{m.public_with_docstring:.0%}".replace("%", " %"),
        f"{m.return_hints:.0%} / {m.argument_hints:.0%}".replace("%", "", 1).replace("%", " %"),
        f"{m.any_arguments} / {m.any_returns}",
        str(m.own_imports_in_functions),
        str(m.upward_imports),
        f"{m.readme_words:,}",
    )
    columns = {"dupmae_ir": ours, **ANCHORS}
    rows = ([row, *(values[n] or "-" for values in columns.values())] for n, row in enumerate(ROWS))
    return tables.markdown(["", *columns], rows)


if __name__ == "__main__":
    current = drawing()
    if "--check" in sys.argv:
        old = DRAWING.read_text(encoding="utf-8") if DRAWING.is_file() else ""
        sys.exit(
            0
            if old == current
            else f"{DRAWING.relative_to(ROOT)} is older than the order of imports: make docs"
        )
    DRAWING.write_text(current, encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(
        regenerate(text, {"metrics": lambda: metrics_table(project())}), encoding="utf-8"
    )
