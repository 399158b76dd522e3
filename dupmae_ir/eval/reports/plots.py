"""Figures of a comparison for notebooks, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dupmae_ir.device import need_packages

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZE = (9.0, 4.0)
"""Inches of both panels together."""
BINS = 25
GAIN = "#0b62a4"
LOSS = "#c2410c"
TIE = "#777777"


def comparison_figure(
    before: Sequence[float], after: Sequence[float], names: tuple[str, str], measure: str
) -> Figure:
    """Two panels: each query's value by both runs, and a histogram of the differences.

    Args:
        before: the values of the baseline, one for each query.
        after: the values of the run, in the same order.
        names: of the baseline and of the run.
        measure: name of the measure, for the labels.

    Raises :class:`EnvironmentProblem` without matplotlib.
    """
    need_packages("a plot", ["matplotlib"], "charts")
    from matplotlib.figure import Figure

    differences = [new - old for old, new in zip(before, after, strict=True)]
    # Not through pyplot, which would keep the figure and choose a window system.
    figure = Figure(figsize=SIZE, layout="constrained")
    by_query, histogram = figure.subplots(1, 2)
    _draw_queries(by_query, before, after, differences)
    by_query.set(
        xlabel=f"{measure}, {names[0]}", ylabel=f"{measure}, {names[1]}", title="each query"
    )
    _draw_histogram(histogram, differences)
    histogram.set(
        xlabel=f"difference in {measure}", ylabel="queries", title=f"{names[1]} minus {names[0]}"
    )
    return figure


def _draw_queries(
    axes: Any, before: Sequence[float], after: Sequence[float], differences: Sequence[float]
) -> None:
    colours = []
    for difference in differences:
        if difference > 0:
            colours.append(GAIN)
        elif difference < 0:
            colours.append(LOSS)
        else:
            colours.append(TIE)
    # Transparent, because many queries have the same values, such as 0 and 1.
    axes.scatter(before, after, c=colours, alpha=0.5, linewidths=0)
    axes.axline((0, 0), slope=1, color=TIE, linewidth=1)


def _draw_histogram(axes: Any, differences: Sequence[float]) -> None:
    gains = sum(difference > 0 for difference in differences)
    losses = sum(difference < 0 for difference in differences)
    axes.hist(differences, bins=BINS, color=GAIN)
    mean = sum(differences) / len(differences)
    axes.axvline(mean, color=LOSS, linestyle="--", label=f"mean {mean:+.4f}")
    axes.plot([], [], " ", label=f"{gains} gain, {losses} lose")
    axes.legend(frameon=False)
