"""The result of ``dupmae-ir eval.space``, as text and as a picture."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from dupmae_ir.console import table
from dupmae_ir.eval.reports import figures, page
from dupmae_ir.eval.significance import t_test
from dupmae_ir.eval.space.config import SpaceConfig
from dupmae_ir.eval.space.density import contours, density_divergence
from dupmae_ir.eval.space.divergence import Divergence

NAMES = {"kl": "KL (Eq. 17)", "js": "JS (Eq. 19)"}
MARKS = {1e-4: "****", 1e-3: "***", 0.01: "**", 0.05: "*"}
"""Largest p -> mark, as in CoT-MoTE's Figure 4."""
_MARGIN = 0.06  #: of the range, around the points


class PairTest(NamedTuple):
    """A paired two-tailed t-test over the draws. ``p`` is None for one draw, or if all differences are equal."""

    first: str
    second: str
    divergence: str  #: kl or js
    p: float | None

    @property
    def mark(self) -> str:
        """``*`` to ``****``; ``ns`` for no significant difference, empty for an undefined test."""
        if self.p is None:
            return ""
        return next((mark for level, mark in MARKS.items() if self.p <= level), "ns")


@dataclass(frozen=True)
class Space:
    """The measured divergences. ``points``: (2 pairs, 2) t-SNE coordinates, queries first; None without a picture."""

    model: str
    available: int  #: pairs in the data
    pairs: int  #: pairs per draw
    draws: tuple[Divergence, ...]
    points: np.ndarray | None

    @cached_property
    def density(self) -> Divergence | None:
        """Divergence of the kernel densities in the t-SNE plane of the first draw; None without a picture."""
        if self.points is None:
            return None
        return density_divergence(self.points[: self.pairs], self.points[self.pairs :])

    def summary(self) -> dict[str, Any]:
        """Averages and standard deviations (None for one draw) as plain values."""
        counts = {"pairs": self.pairs, "of": self.available, "draws": len(self.draws)}
        found: dict[str, Any] = {"model": self.model, **counts}
        for name in Divergence._fields:
            values = [getattr(d, name) for d in self.draws]
            found[name] = statistics.fmean(values)
            found[f"{name}_deviation"] = statistics.stdev(values) if len(values) > 1 else None
        if self.density:
            found |= {f"density_{name}": value for name, value in self.density._asdict().items()}
        return found


@dataclass(frozen=True)
class Comparison:
    """One or more models, measured on the same draws. ``disjoint``: whether no pair is in two draws."""

    spaces: tuple[Space, ...]
    disjoint: bool

    def tests(self) -> list[PairTest]:
        """Every two models, for KL and JS; p is not corrected for the number of tests."""
        return [
            PairTest(a.model, b.model, name, _p(a, b, name))
            for name in Divergence._fields
            for a, b in itertools.combinations(self.spaces, 2)
        ]

    def text(self) -> str:
        """The averages as a table; of several models, also the tests."""
        first = self.spaces[0]
        if len(self.spaces) == 1:
            header = ["divergence", "average", "deviation"]
            return "\n".join([f"{first.model}: {_pairs(first)}", "", table(_rows(first), header)])
        tests = table(_test_rows(self), ["p of two models", *NAMES.values()])
        return "\n".join([_pairs(first), "", table(*_averages(self)), "", tests, _caveat(self)])

    def summary(self) -> dict[str, Any]:
        """Of one model its own summary; of several, theirs and the tests."""
        if len(self.spaces) == 1:
            return self.spaces[0].summary()
        models = [space.summary() for space in self.spaces]
        tests = [{**test._asdict(), "mark": test.mark} for test in self.tests()]
        return {"models": models, "disjoint": self.disjoint, "tests": tests}


def _p(a: Space, b: Space, name: str) -> float | None:
    differences = [getattr(x, name) - getattr(y, name) for x, y in zip(a.draws, b.draws, strict=True)]
    return t_test(np.asarray(differences)) if len(differences) > 1 else None


def as_page(found: Comparison, config: SpaceConfig) -> str:
    """The pictures and the averages as an HTML page."""
    first = found.spaces[0]
    caption = f"t-SNE of {first.pairs} queries and {first.pairs} passages, cosine distance, seed {config.seed}"
    lines = "lines: Gaussian kernel densities at 20, 50 and 80 % of their maximum"
    panels = [page.figure(picture(space), f"{space.model}: {caption}; {lines}") for space in found.spaces]
    below = "CoT-MoTE Eq. 14-19, in nats; average and standard deviation of the draws"
    about = f"{_pairs(first)} of {config.queries} and {config.passages}"
    body = [f"<p>{page.esc(about)}</p>", page.figures(panels)]
    if len(found.spaces) == 1:
        body.append(page.table(below, ["divergence", "average", "deviation"], _rows(first)))
    else:
        rows, header = _averages(found)
        body += [
            page.figures([page.figure(svg, f"{name}: average and standard deviation") for name, svg in _bars(found)]),
            page.table(below, header, [[page.esc(cell) for cell in row] for row in rows]),
            page.table(_caveat(found), ["p of two models", *NAMES.values()], _test_rows(found, page.esc)),
        ]
    density = "; ".join(
        f"{s.model}: KL {s.density.kl:.3f}, JS {s.density.js:.3f}" for s in found.spaces if s.density is not None
    )
    body.append(f"<p>Divergence of the two kernel densities over the drawn points: {page.esc(density)}.</p>")
    return page.page("Queries and passages in one space", body) + "\n"


def as_svg(found: Comparison) -> str:
    """The pictures as a file of their own: a panel per model, then bars if there are several."""
    panels = [picture(space) for space in found.spaces]
    bars = [svg for _, svg in _bars(found)] if len(found.spaces) > 1 else []
    whole = figures.side_by_side([*panels, *bars]) if bars else panels[0]
    return figures.standalone(whole, page.COLOURS + page.FIGURES)


def picture(space: Space) -> str:
    """The t-SNE coordinates as SVG: queries are circles, passages triangles, with the contours of their densities.

    The axes have no unit.
    """
    assert space.points is not None
    sides = {"queries": space.points[: space.pairs], "passages": space.points[space.pairs :]}
    low, high = space.points.min(axis=0), space.points.max(axis=0)
    names = (f"{space.model}: t-SNE, dimension 1", "dimension 2")
    x, y = (figures.Axis(name, float(low[n]), float(high[n]), ()) for n, name in enumerate(names))
    room = _MARGIN * (high - low)
    lines = [contours(points, low - room, high + room) for points in sides.values()]
    groups = {name: points.tolist() for name, points in sides.items()}
    return figures.scatter(groups, x, y, f"[CLS] vectors by {space.model}", lines=lines)


def _bars(found: Comparison) -> list[tuple[str, str]]:
    """(divergence, SVG): one bar per model, and the mark of each test."""
    order = {space.model: n for n, space in enumerate(found.spaces)}
    charts = []
    for key, name in NAMES.items():
        values = {s.model: (s.summary()[key], s.summary()[f"{key}_deviation"] or 0.0) for s in found.spaces}
        marks = [(order[t.first], order[t.second], t.mark) for t in found.tests() if t.divergence == key and t.mark]
        charts.append((name, figures.bars(values, name, f"{name} by model", marks)))
    return charts


def _averages(found: Comparison) -> tuple[list[list[str]], list[str]]:
    """Rows and header: a row per model, average and deviation of each divergence."""
    rows = [[space.model, *itertools.chain(*(row[1:] for row in _rows(space)))] for space in found.spaces]
    return rows, ["model", "KL (Eq. 17)", "deviation", "JS (Eq. 19)", "deviation"]


def _test_rows(found: Comparison, escape: Any = str) -> list[list[str]]:
    """A row per two models: p and mark of each divergence."""
    pairs = dict.fromkeys((t.first, t.second) for t in found.tests())
    tests = {(t.first, t.second, t.divergence): t for t in found.tests()}
    names = Divergence._fields
    return [[escape(f"{a} / {b}"), *(escape(_p_text(tests[a, b, name])) for name in names)] for a, b in pairs]


def _p_text(test: PairTest) -> str:
    return "-" if test.p is None else f"{test.p:.2g} {test.mark}"


def _caveat(found: Comparison) -> str:
    draws = len(found.spaces[0].draws)
    note = f"paired two-tailed t-tests over {draws} draws, not corrected; * p <= 0.05, ** 0.01, *** 0.001, **** 0.0001"
    if draws < 2:
        return "no test: it needs at least two draws"
    return note if found.disjoint else f"{note}; draws share pairs, so p is too small"


def _pairs(space: Space) -> str:
    draws = len(space.draws)
    how = "all" if space.pairs == space.available else f"{draws} random draw{'s' if draws > 1 else ''} from the"
    return f"{space.pairs:,} pairs, {how} {space.available:,}"


def _rows(space: Space) -> list[list[str]]:
    found = space.summary()
    deviations = {k: "-" if found[f"{k}_deviation"] is None else f"{found[f'{k}_deviation']:.2e}" for k in NAMES}
    return [[name, f"{found[key]:.4e}", deviations[key]] for key, name in NAMES.items()]
