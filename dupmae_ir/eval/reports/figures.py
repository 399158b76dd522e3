"""Figures of a page as inline SVG: drawn by matplotlib, coloured by the page's style sheet for light and dark.

``title`` and a description of the content are for screen readers; series differ in dash as well as colour.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from dupmae_ir.console import visible

SIZE = (
    5.0,
    3.5,
)  #: inches of 72 units, about the width of a phone, so that labels stay readable there
MOST_BARS = 300  #: of more queries, this many quantiles are drawn
INK, SOFT, RULE = "#1a1d21", "#555c66", "#d5d9e0"
SERIES = ("#0b62a4", "#c2410c", "#04704f", "#7e22ce", "#8a5a00", "#be185d")
VARIABLES = {INK: "ink", SOFT: "soft", RULE: "rule"} | {
    colour: f"c{n}" for n, colour in enumerate(SERIES)
}
"""Colour as drawn -> the variable of page.css that replaces it."""
STYLE = {
    "svg.fonttype": "none",
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
_TIP = "tip:"
_DASHES = ("-", "--", ":", "-.")


def difference_bars(differences: Sequence[tuple[str, float]], mean: float, title: str) -> Markup:
    """(query id, run minus baseline) pairs as bars, from the largest gain to the largest loss; ``mean`` is dashed.

    Up to ``MOST_BARS`` bars, each with its query in a tooltip; of more queries, evenly spaced quantiles are drawn.
    """
    ordered = sorted(differences, key=lambda pair: (-pair[1], pair[0]))
    last = len(ordered) - 1
    bars = (
        ordered
        if last < MOST_BARS
        else [ordered[round(n * last / (MOST_BARS - 1))] for n in range(MOST_BARS)]
    )
    gains, losses = (sum(sign * v > 0 for _, v in ordered) for sign in (1, -1))
    description = f"{gains} queries gain, {losses} lose, of {len(ordered)}; the mean difference is {mean:+.4f}."

    def draw(axes: Any) -> None:
        values = [value for _, value in bars]
        colours = [SERIES[0] if value > 0 else SERIES[1] for value in values]
        for (qid, value), patch in zip(
            bars, axes.bar(range(len(bars)), values, color=colours), strict=True
        ):
            patch.set_gid(f"{_TIP}{visible(qid)}: {value:+.4f}")
        axes.axhline(0, color=INK, linewidth=1)
        axes.axhline(mean, color=SOFT, linewidth=1, linestyle="--")
        axes.grid(axis="x", visible=False)
        axes.set(
            xlabel=f"{len(ordered):,} queries, from gain to loss", ylabel="difference", xticks=[]
        )

    return _svg(draw, title, description)


def curves(series: Mapping[str, Sequence[float]], x_name: str, y_name: str, title: str) -> Markup:
    """Name -> values at 1, 2, 3, ..., as one line each over a logarithmic axis, with a legend."""
    ends = "; ".join(
        f"{name} reaches {values[-1]:.4f} at {len(values)}" for name, values in series.items()
    )

    def draw(axes: Any) -> None:
        for number, (name, values) in enumerate(series.items()):
            style = {
                "color": SERIES[number % len(SERIES)],
                "linestyle": _DASHES[number % len(_DASHES)],
            }
            axes.plot(range(1, len(values) + 1), values, label=_label(name), **style)
        axes.set(xlabel=x_name, ylabel=y_name, xscale="log", ylim=(0, None))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")

    return _svg(draw, title, f"{y_name} over {x_name}: {ends}.")


def _svg(draw: Any, title: str, description: str) -> Markup:
    """What ``draw`` draws on a matplotlib Axes, as one ``<svg>`` element without ids and namespaces of its own."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    out, nothing = io.StringIO(), dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({**STYLE, "svg.hashsalt": title}), warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # glyphs that matplotlib's font lacks; the browser's has them
        figure = Figure(figsize=SIZE, layout="constrained")
        axes = figure.subplots()
        draw(axes)
        if axes.get_legend_handles_labels()[0]:
            figure.legend(loc="outside lower left")
        figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    box = re.search(r'viewBox="[^"]*"', out.getvalue())
    body = re.sub(r"<style.*?</style>", "", out.getvalue().partition(">\n <defs>")[2], flags=re.S)
    body = re.sub(rf'<g id="{_TIP}([^"]*)">', r"<g><title>\1</title>", body)
    body = re.sub(r'(<g|<text|<path) id="[^"]*_\d+"', r"\1", body).replace("xlink:href=", "href=")
    for colour, variable in VARIABLES.items():
        body = body.replace(colour, f"var(--{variable})")
    head = Markup('<svg {} role="img" aria-label="{}"><title>{}</title><defs>')
    return head.format(
        Markup(box[0] if box else ""), visible(f"{title}. {description}"), visible(title)
    ) + Markup(body)


def _label(name: str) -> str:
    """A name as the legend shows it, which omits names that start with an underscore."""
    name = visible(name, breaks=True)
    name = f" {name}" if name.startswith("_") else name
    return name if len(name) <= 48 else f"{name[:22]} ... {name[-21:]}"
