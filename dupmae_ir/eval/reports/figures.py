"""Figures as inline SVG, coloured by the page's style sheet for light and dark.

Every function returns one ``<svg>`` element 360 units wide, about the width of a phone, so that labels stay readable
there. ``title`` and ``description`` are for screen readers; series differ in shape or dash as well as colour.
"""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dupmae_ir.console import visible

WIDTH, HEIGHT = 360, 250
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 36
COLOURS = 6  #: series colours of the style sheet: c0 to c5
MOST_BARS = 300  #: of more queries, this many quantiles are drawn

_SHAPES = ("circle", "triangle", "square", "cross")


@dataclass(frozen=True)
class Axis:
    """One axis. ``log`` requires positive values."""

    name: str
    low: float
    high: float
    ticks: Sequence[float]
    log: bool = False

    def place(self, value: float, start: float, end: float) -> float:
        """The coordinate of ``value`` between ``start`` and ``end``."""
        low, high, at = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return start + (end - start) * ((at - low) / (high - low) if high > low else 0.5)


def linear(name: str, low: float, high: float, about: int = 5) -> Axis:
    """An axis whose ends are ticks, at steps of 1, 2 or 5 times a power of ten."""
    if high <= low:
        low, high = low - 0.5, high + 0.5
    raw = (high - low) / about
    power = 10 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return Axis(name, first * step, last * step, [n * step for n in range(first, last + 1)])


def ranks_axis(name: str, last: int) -> Axis:
    """1 to ``last`` on a logarithmic scale."""
    ticks = [t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if t <= last]
    # On a long axis there is room for powers of ten only.
    if last > 100:
        ticks = [t for t in ticks if t in (1, 10, 100, 1000)]
    return Axis(name, 1, max(last, 2), ticks, log=True)


def difference_bars(differences: Sequence[tuple[str, float]], mean: float, title: str) -> str:
    """(query id, run minus baseline) pairs as bars, from the largest gain to the largest loss; ``mean`` is dashed.

    Up to ``MOST_BARS`` bars, each with its query in a tooltip; of more queries, evenly spaced quantiles are drawn.
    """
    ordered = sorted(differences, key=lambda pair: (-pair[1], pair[0]))
    shown = ordered if len(ordered) <= MOST_BARS else _quantiles(ordered, MOST_BARS)
    y = linear("difference", min(0.0, ordered[-1][1]), max(0.0, ordered[0][1]))
    x = Axis("queries, from gain to loss", 0, len(ordered), [0, len(ordered)])
    width, zero = (WIDTH - LEFT - RIGHT) / len(shown), _y(y, 0)
    parts = []
    for number, (qid, value) in enumerate(shown):
        if value:
            top, kind = _y(y, value), "gain" if value > 0 else "loss"
            parts.append(
                f'<rect class="{kind}" x="{LEFT + number * width:.2f}" y="{min(top, zero):.2f}" '
                f'width="{width * (0.85 if len(shown) <= 60 else 1):.2f}" height="{abs(top - zero):.2f}">'
                f"<title>{_esc(qid)}: {value:+.4f}</title></rect>"
            )
    lines = [_line(LEFT, at, WIDTH - RIGHT, at, kind) for at, kind in ((zero, "axis"), (_y(y, mean), "mean"))]
    gains, losses = (sum(sign * v > 0 for _, v in ordered) for sign in (1, -1))
    description = f"{gains} queries gain, {losses} lose, of {len(ordered)}; the mean difference is {mean:+.4f}."
    return _svg(title, description, [*_grid(x, y), *parts, *lines])


def curves(series: Mapping[str, Sequence[float]], x_name: str, y_name: str, title: str) -> str:
    """Name -> values at 1, 2, 3, ..., as one line each over a logarithmic axis, with a legend."""
    longest = max(map(len, series.values()))
    x, y = ranks_axis(x_name, longest), linear(y_name, 0, max(max(v) for v in series.values()) or 1)
    parts = []
    for number, values in enumerate(series.values()):
        points = [(_x(x, rank), _y(y, values[rank - 1])) for rank in _worth_drawing(len(values))]
        path = " ".join(f"{'L' if n else 'M'}{px:.1f} {py:.1f}" for n, (px, py) in enumerate(points))
        parts.append(f'<path class="line {_colour(number)} d{number % 4}" d="{path}"/>')
    ends = "; ".join(f"{name} reaches {values[-1]:.4f} at {len(values)}" for name, values in series.items())
    keys = [
        (name, lambda px, py, n=n: f'<path class="line {_colour(n)} d{n % 4}" d="M{px} {py}h18"/>')
        for n, name in enumerate(series)
    ]
    return _svg(title, f"{y_name} over {x_name}: {ends}.", [*_grid(x, y), *parts], keys)


def scatter(
    groups: Mapping[str, Iterable[tuple[float, float]]],
    x: Axis,
    y: Axis,
    title: str,
    diagonal: bool = False,
    lines: Sequence[Iterable[tuple[tuple[float, float], tuple[float, float]]]] = (),
) -> str:
    """Group -> points, with one shape and colour per group; coinciding points make a larger mark.

    ``lines``: per group, segments in its colour, such as contours of its density.
    """
    counted = {name: Counter((round(a, 3), round(b, 3)) for a, b in points) for name, points in groups.items()}
    low, high = max(x.low, y.low), min(x.high, y.high)
    x, y = _with_room(x), _with_room(y)
    parts = [_line(_x(x, low), _y(y, low), _x(x, high), _y(y, high), "mean")] if diagonal else []
    for number, segments in enumerate(lines):
        path = "".join(f"M{_x(x, a):.1f} {_y(y, b):.1f}L{_x(x, c):.1f} {_y(y, d):.1f}" for (a, b), (c, d) in segments)
        parts.append(f'<path class="line {_colour(number)}" d="{path}"/>')
    for number, (name, points) in enumerate(counted.items()):
        for (a, b), count in sorted(points.items()):
            mark = _mark(number, _x(x, a), _y(y, b), min(2.4 * math.sqrt(count), 11))
            words = f"{_esc(name)}: {a:g}, {b:g}" + (f" ({count} points)" if count > 1 else "")
            parts.append(mark.replace("/>", f"><title>{words}</title></{mark[1:].split()[0]}>"))
    sizes = ", ".join(f"{sum(points.values())} {name}" for name, points in counted.items())
    keys = [(name, lambda px, py, n=n: _mark(n, px + 9, py, 3.5)) for n, name in enumerate(counted)]
    return _svg(title, f"{y.name} over {x.name}: {sizes}.", [*_grid(x, y), *parts], keys)


def bars(
    values: Mapping[str, tuple[float, float]], y_name: str, title: str, marks: Sequence[tuple[int, int, str]] = ()
) -> str:
    """Name -> (mean, standard deviation) as bars with error bars; ``marks``: brackets with a text between two bars.

    Values below 0.01 are shown in units of a power of ten.
    """
    highest = max(mean + deviation for mean, deviation in values.values())
    if 0 < highest < 0.01:  # labels such as 0.00005 would not fit
        unit = 10.0 ** math.floor(math.log10(highest))
        values = {name: (mean / unit, deviation / unit) for name, (mean, deviation) in values.items()}
        highest, y_name = highest / unit, f"{y_name}, units of {unit:.0e}"
    top = 1.05 + 0.13 * len(marks)
    steps = linear("", 0, highest)
    scale = replace(steps, high=top * highest, ticks=[t for t in steps.ticks if t <= highest])
    wide = (WIDTH - LEFT - RIGHT) / len(values)
    middles = [LEFT + (n + 0.5) * wide for n in range(len(values))]
    floor, parts = _y(scale, 0), []
    for number, (at, (name, (mean, deviation))) in enumerate(zip(middles, values.items(), strict=True)):
        high = _y(scale, mean)
        parts.append(
            f'<rect class="mark {_colour(number)}" x="{at - 0.3 * wide:.1f}" y="{high:.1f}" width="{0.6 * wide:.1f}" '
            f'height="{floor - high:.1f}"><title>{_esc(name)}: {mean:.4g} +- {deviation:.2g}</title></rect>'
        )
        parts.append(_line(at, _y(scale, mean + deviation), at, _y(scale, max(0.0, mean - deviation)), "axis"))
        shown = name if len(name) <= 70 // len(values) else f"{name[: 70 // len(values) - 3]}..."
        parts.append(f'<text x="{at:.1f}" y="{floor + 14:.1f}" text-anchor="middle">{_esc(shown)}</text>')
    for number, (first, second, text) in enumerate(marks):
        high = _y(scale, highest * (1.08 + 0.13 * number))
        parts.append(_line(middles[first], high, middles[second], high, "axis"))
        middle = (middles[first] + middles[second]) / 2
        parts.append(f'<text x="{middle:.1f}" y="{high - 2:.1f}" text-anchor="middle">{_esc(text)}</text>')
    x = Axis(y_name, 0, 1, ())
    description = "; ".join(f"{name} {mean:.4g}" for name, (mean, _) in values.items())
    return _svg(title, f"{y_name}: {description}.", [*_grid(x, scale), *parts])


def lines(series: Mapping[str, Sequence[tuple[float, float, float]]], x_name: str, y_name: str, title: str) -> str:
    """Name -> (x, mean, standard deviation), in the order of x: a line with a mark and an error bar at each x."""
    points = [point for listed in series.values() for point in listed]
    x = linear(x_name, min(p[0] for p in points), max(p[0] for p in points), about=4)
    y = linear(y_name, min(p[1] - p[2] for p in points), max(p[1] + p[2] for p in points))
    parts = []
    for number, listed in enumerate(series.values()):
        places = [(_x(x, at), _y(y, mean)) for at, mean, _ in listed]
        path = " ".join(f"{'L' if n else 'M'}{px:.1f} {py:.1f}" for n, (px, py) in enumerate(places))
        parts.append(f'<path class="line {_colour(number)} d{number % 4}" d="{path}"/>')
        for (px, py), (at, mean, deviation) in zip(places, listed, strict=True):
            if deviation:
                parts.append(_line(px, _y(y, mean - deviation), px, _y(y, mean + deviation), "axis"))
            mark, words = _mark(number, px, py, 3.5), f"{at:,g}: {mean:.4f}"
            parts.append(mark.replace("/>", f"><title>{words}</title></{mark[1:].split()[0]}>"))
    keys = [(name, lambda px, py, n=n: _mark(n, px + 9, py, 3.5)) for n, name in enumerate(series)]
    ends = "; ".join(f"{name}: {listed[-1][1]:.4f} at {listed[-1][0]:,g}" for name, listed in series.items())
    return _svg(title, f"{y_name} over {x_name}: {ends}.", [*_grid(x, y), *parts], keys)


def side_by_side(svgs: Sequence[str]) -> str:
    """Several figures as one, in a row."""
    inner = (svg.split(">", 1)[1].removesuffix("</svg>") for svg in svgs)
    parts = (f'<g transform="translate({n * WIDTH} 0)">{part}</g>' for n, part in enumerate(inner))
    height = max(float(svg.split('viewBox="', 1)[1].split('"', 1)[0].split()[3]) for svg in svgs)
    return f'<svg viewBox="0 0 {len(svgs) * WIDTH} {height:g}" role="img">{"".join(parts)}</svg>'


def standalone(svg: str, style: str) -> str:
    """``svg`` as a file of its own, with the namespace and style sheet that a page otherwise provides."""
    head, rest = svg.split(">", 1)
    return f'{head} xmlns="http://www.w3.org/2000/svg"><style>{style}</style>{rest}\n'


def _svg(
    title: str, description: str, parts: list[str], keys: Sequence[tuple[str, Callable[[float, float], str]]] = ()
) -> str:
    """``keys``: (name, function that draws its sample at a position); each has a line below the figure."""
    lines = []
    for number, (name, sample) in enumerate(keys):
        at = HEIGHT + 8 + 16 * number
        shown = name if len(name) <= 48 else f"{name[:22]} ... {name[-21:]}"
        lines.append(f'{sample(LEFT, at)}<text x="{LEFT + 26}" y="{at + 4}">{_esc(shown)}</text>')
    height = HEIGHT + (16 * len(keys) + 4 if keys else 0)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{_esc(f"{title}. {description}")}">'
        f"<title>{_esc(title)}</title>{''.join(parts)}{''.join(lines)}</svg>"
    )


def _grid(x: Axis, y: Axis) -> list[str]:
    """Lines at the ticks, tick labels, and names of the axes."""
    bottom, middle = HEIGHT - BOTTOM, (TOP + HEIGHT - BOTTOM) / 2
    parts = []
    for tick in y.ticks:
        at = _y(y, tick)
        parts.append(_line(LEFT, at, WIDTH - RIGHT, at, "grid"))
        parts.append(f'<text class="tick" x="{LEFT - 5}" y="{at + 4:.1f}" text-anchor="end">{_number(tick, y)}</text>')
    for tick in x.ticks:
        at = _x(x, tick)
        parts.append(_line(at, TOP, at, bottom, "grid"))
        # A centred label at the right edge would be cut off.
        side = "end" if at > WIDTH - RIGHT - 8 else "middle"
        at = min(at, WIDTH - 2) if side == "end" else at
        parts.append(
            f'<text class="tick" x="{at:.1f}" y="{bottom + 14}" text-anchor="{side}">{_number(tick, x)}</text>'
        )
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{bottom + 29}" text-anchor="middle">{_esc(x.name)}</text>')
    parts.append(f'<text transform="translate(11 {middle}) rotate(-90)" text-anchor="middle">{_esc(y.name)}</text>')
    return parts


def _mark(number: int, x: float, y: float, r: float) -> str:
    css, shape = f'class="mark {_colour(number)}"', _SHAPES[number % len(_SHAPES)]
    if shape == "circle":
        return f'<circle {css} cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}"/>'
    if shape == "triangle":
        return f'<path {css} d="M{x:.1f} {y - r * 1.2:.1f}l{r * 1.1:.1f} {r * 2:.1f}h{-2.2 * r:.1f}z"/>'
    if shape == "square":
        return f'<rect {css} x="{x - r * 0.9:.1f}" y="{y - r * 0.9:.1f}" width="{r * 1.8:.1f}" height="{r * 1.8:.1f}"/>'
    arm = f"{2 * r:.1f}"
    return f'<path {css} d="M{x - r:.1f} {y - r:.1f}l{arm} {arm}m0 -{arm}l-{arm} {arm}"/>'


def _with_room(axis: Axis) -> Axis:
    """The axis with a margin at both ends, so that no mark covers a label."""
    room = 0.06 * (axis.high - axis.low)
    return replace(axis, low=axis.low - room, high=axis.high + room)


def _quantiles(ordered: Sequence[tuple[str, float]], count: int) -> list[tuple[str, float]]:
    last = len(ordered) - 1
    return [ordered[round(n * last / (count - 1))] for n in range(count)]


def _worth_drawing(length: int) -> list[int]:
    """Ranks that can be distinguished on a logarithmic axis."""
    return [*range(1, min(length, 100) + 1), *range(110, length, 10), *([length] if length > 100 else [])]


def _number(value: float, axis: Axis) -> str:
    span = axis.high - axis.low
    if axis.log or span >= 5:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 1 - math.floor(math.log10(span) + 0.31))}f}"


def _x(axis: Axis, value: float) -> float:
    return axis.place(value, LEFT, WIDTH - RIGHT)


def _y(axis: Axis, value: float) -> float:
    return axis.place(value, HEIGHT - BOTTOM, TOP)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _colour(number: int) -> str:
    return f"c{number % COLOURS}"


def _esc(text: str) -> str:
    return html.escape(visible(text))
