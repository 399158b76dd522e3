"""Loss curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from matplotlib.figure import Figure


def plot_log(rows: Iterable[Mapping[str, float]], path: str | Path, title: str) -> None:
    """Write an image with one small plot per loss over the updates: training in grey, held-out data in blue.

    Writes nothing where ``rows`` (of :func:`~dupmae_ir.training.callbacks.read_log`) have no losses.
    """
    rows = list(rows)
    names = list(dict.fromkeys(k for row in rows for k in row if k == "loss" or k.startswith("loss_")))
    if not names:
        return
    wide = min(3, len(names))
    tall = math.ceil(len(names) / wide)
    figure = Figure(figsize=(4 * wide, 2.6 * tall), layout="constrained")
    axes = figure.subplots(tall, wide, squeeze=False)
    for axis, name in zip(axes.flat, names, strict=False):
        for key, colour, label in ((name, "0.6", "training"), (f"eval_{name}", "tab:blue", "held out")):
            points = [(row["step"], row[key]) for row in rows if key in row]
            if points:
                axis.plot(*zip(*points, strict=True), color=colour, label=label, marker="." if key[0] == "e" else "")
        axis.set_title("sum" if name == "loss" else name.removeprefix("loss_"), fontsize=10)
        axis.grid(alpha=0.3)
    for axis in list(axes.flat)[len(names) :]:
        axis.axis("off")
    axes[0][0].legend(fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel("updates")
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=110)
