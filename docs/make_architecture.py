"""Draw the packages in the order of their imports and write the densities of the code into docs/architecture.md.

The order is the one that tests/test_architecture.py enforces. With --check, exit 1 when the drawing is out of date; the
densities change with every line of code and are not checked.
"""

from __future__ import annotations

import math
import sys
from html import escape
from itertools import groupby
from pathlib import Path

from pages import ROOT, regenerate

sys.path.insert(0, str(ROOT / "tools"))
from measure_code import Metrics, density_table, project, rooms

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
# Pixels of the drawing.
BOX_WIDTH = 176
BOX_HEIGHT = 46
GAP = 10
LEFT = 150

COLUMNS = 4
MAX_TITLE_LETTERS = 18
"""Letters of a line in the title of a layer, to the left of the boxes."""
COLOURS = ("#eceff1", "#e0f2f1", "#e3f2fd", "#ede7f6", "#fff3e0", "#fce4ec")


def drawing() -> str:
    """SVG: a box for every package, the first of the order at the bottom."""
    parts: list[str] = []
    top = 20
    layers = layered(list(rooms()))
    for number, (title, names) in reversed(list(enumerate(layers))):
        lines = math.ceil(len(names) / COLUMNS)
        height = lines * (BOX_HEIGHT + GAP) + GAP
        width = COLUMNS * (BOX_WIDTH + GAP) + GAP
        colour = COLOURS[number % len(COLOURS)]
        parts.append(
            f'<rect x="{LEFT}" y="{top}" width="{width}" height="{height}" rx="8" fill="{colour}"/>'
        )
        parts += _layer_title(title, LEFT - 12, top + height / 2)
        for index, name in enumerate(names):
            # The order runs upwards, so the first packages of a layer are in its lowest line.
            x = LEFT + GAP + index % COLUMNS * (BOX_WIDTH + GAP)
            y = top + GAP + (lines - 1 - index // COLUMNS) * (BOX_HEIGHT + GAP)
            parts += _box(name, x, y)
        top += height + GAP
    width = LEFT + COLUMNS * (BOX_WIDTH + GAP) + GAP + 20
    caption = "A package imports only from packages to its left in the same layer, and from the layers below."
    parts.append(f'<text x="{LEFT}" y="{top + 14}" class="note">{caption}</text>')
    return _svg(width, top + 30, parts)


def layered(order: list[str]) -> list[tuple[str, list[str]]]:
    """The order cut into layers: (title, packages)."""
    titles = list(LAYERS)
    layer_of = {}
    current = 0
    for name in order:
        for layer, members in enumerate(LAYERS.values()):
            if name in members:
                current = max(current, layer)
        layer_of[name] = current
    return [(titles[i], list(names)) for i, names in groupby(order, key=layer_of.__getitem__)]


def _box(name: str, x: float, y: float) -> list[str]:
    middle = x + BOX_WIDTH / 2
    return [
        f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="5" class="box"/>',
        f'<text x="{middle}" y="{y + 19}" class="name">{escape(name)}</text>',
        f'<text x="{middle}" y="{y + 36}" class="purpose">{escape(PURPOSES.get(name, ""))}</text>',
    ]


def _layer_title(title: str, x: float, y: float) -> list[str]:
    """The title in lines of at most MAX_TITLE_LETTERS, centred on ``y``."""
    lines = [""]
    for word in title.split():
        if len(lines[-1]) + len(word) < MAX_TITLE_LETTERS:
            lines[-1] = f"{lines[-1]} {word}".strip()
        else:
            lines.append(word)
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
    """Markdown: density of the code next to projects that people like to read."""
    header, *rows = density_table(m)
    return tables.markdown(header, rows)


if __name__ == "__main__":
    current = drawing()
    if "--check" in sys.argv:
        old = DRAWING.read_text(encoding="utf-8") if DRAWING.is_file() else ""
        if old != current:
            sys.exit(f"{DRAWING.relative_to(ROOT)} is older than the order of imports: make docs")
        sys.exit(0)
    DRAWING.write_text(current, encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    parts = {"metrics": lambda: metrics_table(project())}
    PAGE.write_text(regenerate(text, parts), encoding="utf-8")
