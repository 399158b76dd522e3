"""The work of ``dupmae-ir eval.repeats``: evaluate all runs, average those of the same system and step."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dupmae_ir.console import say, table
from dupmae_ir.errors import UsageError
from dupmae_ir.eval.evaluate import evaluate
from dupmae_ir.eval.repeats.config import RepeatsConfig
from dupmae_ir.eval.reports import figures, page
from dupmae_ir.io.publishing import atomic_write
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.runs import read_run
from dupmae_ir.measures import parse_measures


@dataclass(frozen=True)
class Repeats:
    """The runs of one system at one step. ``values``: the mean over queries of each run."""

    system: str
    step: int | None
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over the runs."""
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation over the runs; None for one run."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def points(self) -> str:
        """MASTER's notation: mean and variance of the measure in percent, ``38.3 (0.016)``."""
        variance = "" if self.deviation is None else f" ({(100 * self.deviation) ** 2:.3f})"
        return f"{100 * self.mean:.1f}{variance}"


@dataclass(frozen=True)
class Table:
    """All systems and steps of one measure, in the order of the command line; steps in ascending order."""

    measure: str
    rows: tuple[Repeats, ...]

    @property
    def curves(self) -> Mapping[str, Sequence[Repeats]]:
        """System -> its rows that have a step."""
        systems = dict.fromkeys(row.system for row in self.rows if row.step is not None)
        return {s: [row for row in self.rows if row.system == s and row.step is not None] for s in systems}

    def text(self, format: str) -> str:
        """A table; ``text`` or ``markdown``."""
        header = ["system", "step", "runs", self.measure, "deviation", "percent (variance)"]
        rows = [
            [
                row.system,
                "-" if row.step is None else f"{row.step:,}",
                str(len(row.values)),
                f"{row.mean:.4f}",
                "-" if row.deviation is None else f"{row.deviation:.4f}",
                row.points,
            ]
            for row in self.rows
        ]
        if format == "text":
            return table(rows, header)
        lines = [header, [":--", *["--:"] * (len(header) - 1)], *rows]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain values in full precision."""
        rows = [
            {"system": r.system, "step": r.step, "values": list(r.values), "mean": r.mean, "deviation": r.deviation}
            for r in self.rows
        ]
        return {"measure": self.measure, "rows": rows}

    def picture(self) -> str:
        """The measure over the steps as SVG, one line per system."""
        series = {s: [(r.step or 0, r.mean, r.deviation or 0.0) for r in rows] for s, rows in self.curves.items()}
        return figures.lines(series, "pre-training steps", self.measure, f"{self.measure} by pre-training steps")


def run(config: RepeatsConfig) -> Table:
    """Evaluate the runs, and draw the curve if requested. Raises :class:`DupmaeError` subclasses."""
    files = _files(config.runs)
    (measure,) = parse_measures([config.measure], config.rel_level)
    qrels = read_qrels(config.qrels, config.split)

    def value(path: str) -> float:
        found = read_run(path, warn=lambda message: say(message, config.quiet))
        return evaluate(qrels, found, [measure]).mean[str(measure)]

    made = Table(str(measure), tuple(Repeats(*key, tuple(map(value, paths))) for key, paths in files.items()))
    if config.output:
        if not made.curves:
            raise UsageError("--output draws the measure over the steps; name the runs SYSTEM@STEP=FILE")
        caption = "Mean over the runs of a system and step; vertical lines: one standard deviation"
        svg = made.picture()
        with atomic_write(config.output) as file:
            if config.output.lower().endswith(".svg"):
                file.write(figures.standalone(svg, page.COLOURS + page.FIGURES))
            else:
                body = [page.figures([page.figure(svg, caption)])]
                file.write(page.page(f"{made.measure} by pre-training steps", body) + "\n")
    return made


def _files(runs: Sequence[str]) -> dict[tuple[str, int | None], list[str]]:
    """(system, step) -> run files; systems in the given order, steps ascending. Raises :class:`UsageError`."""
    found: dict[tuple[str, int | None], list[str]] = {}
    for entry in runs:
        name, equals, path = entry.partition("=")
        system, at, step = name.rpartition("@") if "@" in name else (name, "", "")
        if not (equals and path and system) or (at and not step.isdecimal()):
            raise UsageError(f"{entry}: must be SYSTEM=FILE, or SYSTEM@STEP=FILE with a whole number of steps")
        files = found.setdefault((system, int(step) if at else None), [])
        if path in files:
            raise UsageError(f"{entry}: given twice; repeats are different runs")
        files.append(path)
    order = list(dict.fromkeys(system for system, _ in found))
    return dict(sorted(found.items(), key=lambda item: (order.index(item[0][0]), item[0][1] or 0)))
