"""The result of ``dupmae-ir eval.space``, as text and as a picture."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np

from dupmae_ir.console import table
from dupmae_ir.eval.reports import figures, page
from dupmae_ir.eval.space.config import SpaceConfig
from dupmae_ir.eval.space.divergence import Divergence


@dataclass(frozen=True)
class Space:
    """The measured divergences. ``points``: (2 pairs, 2) t-SNE coordinates, queries first; None without a picture."""

    model: str
    available: int  #: pairs in the data
    pairs: int  #: pairs per draw
    draws: tuple[Divergence, ...]
    points: np.ndarray | None

    def summary(self) -> dict[str, Any]:
        """Averages and standard deviations (None for one draw) as plain values."""
        counts = {"pairs": self.pairs, "of": self.available, "draws": len(self.draws)}
        found: dict[str, Any] = {"model": self.model, **counts}
        for name in Divergence._fields:
            values = [getattr(d, name) for d in self.draws]
            found[name] = statistics.fmean(values)
            found[f"{name}_deviation"] = statistics.stdev(values) if len(values) > 1 else None
        return found


def as_text(space: Space) -> str:
    """The averages as a table."""
    header = ["divergence", "average", "deviation"]
    return "\n".join([f"{space.model}: {_pairs(space)}", "", table(_rows(space), header)])


def as_page(space: Space, config: SpaceConfig) -> str:
    """The picture and the averages as an HTML page."""
    caption = f"t-SNE of {space.pairs} queries and {space.pairs} passages, cosine distance, seed {config.seed}"
    header = ["divergence", "average", "deviation"]
    about = f"{space.model}: {_pairs(space)} of {config.queries} and {config.passages}"
    below = "CoT-MoTE Eq. 14-19, in nats; average and standard deviation of the draws"
    body = [
        f"<p>{page.esc(about)}</p>",
        page.figures([page.figure(picture(space), caption)]),
        page.table(below, header, _rows(space)),
    ]
    return page.page("Queries and passages in one space", body) + "\n"


def as_svg(space: Space) -> str:
    """The picture as a file of its own."""
    return figures.standalone(picture(space), page.COLOURS + page.FIGURES)


def picture(space: Space) -> str:
    """The t-SNE coordinates as SVG: queries are circles, passages triangles. The axes have no unit."""
    assert space.points is not None
    groups = {"queries": space.points[: space.pairs].tolist(), "passages": space.points[space.pairs :].tolist()}
    low, high = space.points.min(axis=0), space.points.max(axis=0)
    x, y = (figures.Axis(f"t-SNE, dimension {n + 1}", float(low[n]), float(high[n]), ()) for n in range(2))
    return figures.scatter(groups, x, y, f"[CLS] vectors by {space.model}")


def _pairs(space: Space) -> str:
    draws = len(space.draws)
    how = "all" if space.pairs == space.available else f"{draws} random draw{'s' if draws > 1 else ''} from the"
    return f"{space.pairs:,} pairs, {how} {space.available:,}"


def _rows(space: Space) -> list[list[str]]:
    found = space.summary()
    names = {"kl": "KL (Eq. 17)", "js": "JS (Eq. 19)"}
    deviations = {k: "-" if found[f"{k}_deviation"] is None else f"{found[f'{k}_deviation']:.2e}" for k in names}
    return [[name, f"{found[key]:.4e}", deviations[key]] for key, name in names.items()]
