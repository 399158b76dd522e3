"""A self-contained HTML page: layout, style sheet, tables and figures.

It has no scripts and no external resources. Colours follow the browser's light or dark setting; figures are laid out in
as many columns as fit; a table wider than the screen scrolls. Text is escaped by :func:`esc`.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from dupmae_ir import __version__
from dupmae_ir.console import visible

COLOURS = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1a1d21; --soft: #555c66; --rule: #d5d9e0; --tint: #f3f5f8;
  --c0: #0b62a4; --c1: #c2410c; --c2: #04704f; --c3: #7e22ce; --c4: #8a5a00; --c5: #be185d; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --ink: #e6e8eb; --soft: #a5adb8; --rule: #3a414b;
  --tint: #1e2329; --c0: #6cb4ee; --c1: #ff9d5c; --c2: #5fd3a5; --c3: #c7a0ff; --c4: #e3c04f; --c5: #ff8fb8; } }
"""
FIGURES = """
svg { background: var(--paper); font: 11px system-ui, sans-serif; display: block; width: 100%; height: auto; }
svg text { fill: var(--ink); } svg .tick { fill: var(--soft); }
.grid { stroke: var(--rule); stroke-width: .6; } .axis { stroke: var(--ink); stroke-width: 1; }
.mean { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 4 3; }
.gain, .loss { shape-rendering: crispEdges; } .gain { fill: var(--c0); } .loss { fill: var(--c1); }
.line { fill: none; stroke-width: 1.8; } .mark { fill-opacity: .45; stroke-width: 1; }
.d1 { stroke-dasharray: 7 3; } .d2 { stroke-dasharray: 2 2; } .d3 { stroke-dasharray: 9 3 2 3; }
""" + "\n".join(
    f".c{n}.line, .c{n}.mark {{ stroke: var(--c{n}); }} .c{n}.mark {{ fill: var(--c{n}); }}" for n in range(6)
)
LAYOUT = """
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1400px; padding: 1rem clamp(.75rem, 3vw, 2.5rem) 3rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: clamp(1.3rem, 4vw, 1.9rem); line-height: 1.2; margin: .5rem 0; }
h2 { font-size: 1.25rem; margin: 2rem 0 .5rem; border-bottom: 1px solid var(--rule); }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
p, ul, details { max-width: 75ch; } p, ul { margin: .4rem 0; } ul { padding-left: 1.2rem; }
.note, figcaption, caption { color: var(--soft); font-size: .9rem; }
.scroll { overflow-x: auto; margin: .6rem 0; }
table { border-collapse: separate; border-spacing: 0; font-variant-numeric: tabular-nums; font-size: .95rem; }
caption { text-align: left; padding: .2rem 0; }
caption span { position: sticky; left: 0; display: inline-block; max-width: min(75ch, calc(100vw - 1.5rem)); }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap;
  overflow-wrap: break-word; }
th { font-weight: 600; } thead th { border-bottom: 2px solid var(--soft); vertical-align: bottom; }
th[scope=row] { position: sticky; left: 0; background: var(--paper); background-clip: padding-box;
  white-space: normal; max-width: 45vw; }
th:first-child, .words { text-align: left; } .words { white-space: normal; min-width: 12rem; }
tr.baseline, tr.baseline th { background: var(--tint); }
.figures { display: grid; gap: 1.2rem 2rem; margin: .6rem 0;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 340px), 1fr)); }
figure { margin: 0; max-width: 560px; } figcaption { margin-top: .2rem; }
mark { background: none; color: var(--c2); font-weight: 600; }
"""


def esc(text: object) -> str:
    """``text`` escaped for element content and quoted attributes."""
    return html.escape(visible(text))


def page(title: str, body: Iterable[str]) -> str:
    """The whole document. ``title`` is text, ``body`` HTML."""
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{esc(title)}</title>",
        f"<style>{COLOURS}{FIGURES}{LAYOUT}</style>",
        "</head>",
        "<body>",
        f"<h1>{esc(title)}</h1>",
        *body,
        f'<p class="note">dupmae_ir {esc(__version__)}</p>',
        "</body>",
        "</html>",
    ]
    return "\n".join(line.rstrip() for line in "\n".join(lines).splitlines())


def table(
    caption: str, header: Sequence[str], rows: Iterable[Sequence[str]], words: Sequence[int] = (), strong: str = ""
) -> str:
    """A table that scrolls sideways if it does not fit. ``caption`` and ``header`` are text, cells are HTML, and the
    first cell of a row is its heading. ``words``: columns of wrapped text; ``strong``: first cell of the tinted row."""

    def cell(column: int, content: str) -> str:
        if column == 0:
            return f'<th scope="row">{content}</th>'
        return f'<td class="words">{content}</td>' if column in words else f"<td>{content}</td>"

    heads = "".join(
        f'<th scope="col"{" class=words" if n in words else ""}>{esc(name)}</th>' for n, name in enumerate(header)
    )
    body = [
        f"<tr{' class=baseline' if strong and row[0] == strong else ''}>"
        f"{''.join(cell(n, content) for n, content in enumerate(row))}</tr>"
        for row in rows
    ]
    return "\n".join(
        [
            f'<div class="scroll" role="region" tabindex="0" aria-label="{esc(caption)}">',
            f"<table><caption><span>{esc(caption)}</span></caption>",
            f"<thead><tr>{heads}</tr></thead>",
            "<tbody>",
            *body,
            "</tbody></table></div>",
        ]
    )


def figure(svg: str, caption: str) -> str:
    """An SVG with its caption (text)."""
    return f"<figure>{svg}\n<figcaption>{esc(caption)}</figcaption></figure>"


def figures(found: Iterable[str]) -> str:
    """Figures in as many columns as fit."""
    return "\n".join(['<div class="figures">', *found, "</div>"])


def bullets(lines: Iterable[str]) -> str:
    """Lines of text as a list; empty for no lines."""
    items = [f"<li>{esc(line)}</li>" for line in lines]
    return "\n".join(["<ul>", *items, "</ul>"]) if items else ""
