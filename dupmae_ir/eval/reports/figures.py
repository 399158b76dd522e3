"""Figures of a page as inline SVG: drawn by matplotlib, coloured by the page's style sheet for light and dark.

``title`` and a description of the content are for screen readers; series differ in dash as well as colour.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from dupmae_ir.console import visible

SIZE = (5.0, 3.5)
"""Inches of 72 units, about the width of a phone, so that labels stay readable there."""
MAX_BARS = 300
"""Of more queries, this many quantiles are drawn."""
INK = "#1a1d21"
SOFT = "#555c66"
RULE = "#d5d9e0"
SERIES = ("#0b62a4", "#c2410c", "#04704f", "#7e22ce", "#8a5a00", "#be185d")
VARIABLES = {INK: "ink", SOFT: "soft", RULE: "rule"}
VARIABLES |= {colour: f"c{number}" for number, colour in enumerate(SERIES)}
"""Colour as drawn -> the variable of page.css that replaces it."""
STYLE = {
    # Text stays text instead of outlines, in the browser's fonts.
    "svg.fonttype": "none",
    # A name with two dollar signs is no formula.
    "text.parse_math": False,
    "text.color": INK,
    "font.size": 9,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "legend.frameon": False,
}
MAX_LABEL = 48
"""Characters of a name in the legend; of a longer one, its beginning and end are shown."""
_TIP = "tip:"
"""Prefix of the ids of bars, which become tooltips."""
_DASHES = ("-", "--", ":", "-.")


def difference_bars(differences: Sequence[tuple[str, float]], mean: float, title: str) -> Markup:
    """(query id, run minus baseline) pairs as bars, from the largest gain to the largest loss; ``mean`` is dashed.

    Up to ``MAX_BARS`` bars, each with its query in a tooltip; of more queries, evenly spaced quantiles are drawn.
    """
    ordered = sorted(differences, key=lambda pair: (-pair[1], pair[0]))
    bars = ordered
    if len(ordered) > MAX_BARS:
        # Evenly spaced positions from the first query to the last, both included.
        step_count = MAX_BARS - 1
        last = len(ordered) - 1
        bars = [ordered[round(n * last / step_count)] for n in range(MAX_BARS)]
    gains = sum(value > 0 for _, value in ordered)
    losses = sum(value < 0 for _, value in ordered)
    description = f"{gains} queries gain, {losses} lose, of {len(ordered)}; the mean difference is {mean:+.4f}."

    def draw(axes: Any) -> None:
        values = [value for _, value in bars]
        colours = [SERIES[0] if value > 0 else SERIES[1] for value in values]
        patches = axes.bar(range(len(bars)), values, color=colours)
        for (qid, value), patch in zip(bars, patches, strict=True):
            # The group's id becomes the tooltip, in _svg.
            patch.set_gid(f"{_TIP}{visible(qid)}: {value:+.4f}")
        axes.axhline(0, color=INK, linewidth=1)
        axes.axhline(mean, color=SOFT, linewidth=1, linestyle="--")
        axes.grid(axis="x", visible=False)
        query_axis = f"{len(ordered):,} queries, from gain to loss"
        axes.set(xlabel=query_axis, ylabel="difference", xticks=[])

    return _svg(draw, title, description)


def curves(series: Mapping[str, Sequence[float]], x_name: str, y_name: str, title: str) -> Markup:
    """Name -> values at 1, 2, 3, ..., as one line each over a logarithmic axis, with a legend."""
    ends = []
    for name, values in series.items():
        ends.append(f"{name} reaches {values[-1]:.4f} at {len(values)}")
    description = f"{y_name} over {x_name}: {'; '.join(ends)}."

    def draw(axes: Any) -> None:
        for number, (name, values) in enumerate(series.items()):
            axes.plot(
                range(1, len(values) + 1),
                values,
                label=_label(name),
                color=SERIES[number % len(SERIES)],
                linestyle=_DASHES[number % len(_DASHES)],
            )
        axes.set(xlabel=x_name, ylabel=y_name, xscale="log", ylim=(0, None))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")

    return _svg(draw, title, description)


def _svg(draw: Callable[[Any], None], title: str, description: str) -> Markup:
    """What ``draw`` draws on a matplotlib Axes, as one ``<svg>`` element.

    Numbered ids, the style sheet and namespaces are removed, because several figures share one HTML page.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    out = io.StringIO()
    # Without a date, and with ids that depend on the title alone, the same figure is the same bytes.
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({**STYLE, "svg.hashsalt": title}), warnings.catch_warnings():
        # Glyphs that matplotlib's font lacks; the browser's font has them.
        warnings.simplefilter("ignore")
        figure = Figure(figsize=SIZE, layout="constrained")
        axes = figure.subplots()
        draw(axes)
        _, labels = axes.get_legend_handles_labels()
        if labels:
            figure.legend(loc="outside lower left")
        figure.savefig(out, format="svg", transparent=True, metadata=no_metadata)
    drawing = out.getvalue()
    view_box = re.search(r'viewBox="[^"]*"', drawing)

    # Everything before the first <defs> is the XML declaration and matplotlib's own <svg> tag.
    _, _, body = drawing.partition(">\n <defs>")
    body = re.sub(r"<style.*?</style>", "", body, flags=re.S)
    body = re.sub(rf'<g id="{_TIP}([^"]*)">', r"<g><title>\1</title>", body)
    # An id may be on a page only once, and matplotlib numbers those of groups, texts and paths in each figure from 1.
    body = re.sub(r'(<g|<text|<path) id="[^"]*_\d+"', r"\1", body)
    body = body.replace("xlink:href=", "href=")
    for colour, variable in VARIABLES.items():
        body = body.replace(colour, f"var(--{variable})")

    head = Markup('<svg {} role="img" aria-label="{}"><title>{}</title><defs>')
    size = Markup(view_box[0] if view_box else "")
    label = visible(f"{title}. {description}")
    return head.format(size, label, visible(title)) + Markup(body)


def _label(name: str) -> str:
    """A name as the legend shows it."""
    name = visible(name, breaks=True)
    if name.startswith("_"):
        # A legend omits names that start with an underscore.
        name = f" {name}"
    if len(name) > MAX_LABEL:
        name = f"{name[:22]} ... {name[-21:]}"
    return name
