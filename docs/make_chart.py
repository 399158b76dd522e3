"""Draw docs/pictures/memory.svg, the chart of the README, from benchmarks/results/head.json.

With --check, exit 1 when it is old.
"""

from __future__ import annotations

import json
import sys
from html import escape

from pages import ROOT

PICTURE = ROOT / "docs" / "pictures" / "memory.svg"
RECORD = ROOT / "benchmarks" / "results" / "head.json"
NAMES = {
    "splade": "SPLADE's head, as usual",
    "released": "DupMAE's released code",
    "ours": "dupmae_ir",
}

# Pixels of the drawing.
WIDTH = 720
ROW_HEIGHT = 30
BAR_LEFT = 210
MAX_BAR_WIDTH = 410
MIN_BAR_WIDTH = 2  # so that the smallest bar is visible


def chart() -> str:
    """SVG: bars of peak memory and of speed, one line per implementation."""
    details = json.loads(RECORD.read_text(encoding="utf-8"))["details"]
    panels = (
        ("peak memory, MB (less is better)", details["megabytes"], "{:,.0f} MB"),
        (
            "passages a second, one thread (more is better)",
            details["texts_per_second"],
            "{:,.0f}/s",
        ),
    )
    lines = []
    y = 54
    for title, values, value_format in panels:
        lines.append(f'<text x="20" y="{y}" class="title">{escape(title)}</text>')
        largest = max(values[name] for name in NAMES)
        for name, label in NAMES.items():
            y += ROW_HEIGHT
            width = max(MIN_BAR_WIDTH, MAX_BAR_WIDTH * values[name] / largest)
            css_class = "ours" if name == "ours" else "other"
            bar = f'<rect x="{BAR_LEFT}" y="{y - 15}" width="{width:.1f}" height="20" rx="3"'
            value = value_format.format(values[name])
            lines += [
                f'<text x="{BAR_LEFT - 10}" y="{y}" text-anchor="end">{escape(label)}</text>',
                f'{bar} class="{css_class}"/>',
                f'<text x="{BAR_LEFT + width + 8:.1f}" y="{y}">{value}</text>',
            ]
        y += ROW_HEIGHT + 14
    head = (
        "The vocabulary head of BERT-base (30,522 words) on 32 passages, the longest of 180 tokens"
    )
    style = "text{font:14px system-ui,sans-serif;fill:#24292f}.title{font-weight:600}"
    style += ".ours{fill:#00897b}.other{fill:#9aa5b1}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y - 20}" role="img">\n'
        f"<title>{escape(head)}</title>\n"
        f"<style>{style}</style>\n"
        f'<rect width="{WIDTH}" height="{y - 20}" rx="8" fill="#ffffff" stroke="#d0d7de"/>\n'
        f'<text x="20" y="26">{escape(head)}</text>\n' + "\n".join(lines) + "\n</svg>\n"
    )


if __name__ == "__main__":
    svg = chart()
    if "--check" not in sys.argv:
        PICTURE.write_text(svg, encoding="utf-8")
    elif not PICTURE.is_file() or PICTURE.read_text(encoding="utf-8") != svg:
        sys.exit("docs/pictures/memory.svg is older than benchmarks/results/head.json: make docs")
