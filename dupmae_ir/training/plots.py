"""Loss curves, and the log kept beside a trained model."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from matplotlib.figure import Figure

from dupmae_ir.training.log import LOG, TENSORBOARD, read_log


def plot_log(rows: Iterable[Mapping[str, float]], path: str | Path, title: str) -> None:
    """Write an image with one small plot per loss over the updates: training in grey, held-out data in blue.

    Writes nothing where ``rows`` (of :func:`~dupmae_ir.training.log.read_log`) have no losses.
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


def keep_log(work: str | Path, folder: str | Path, title: str) -> None:
    """Copy the log and the TensorBoard files of ``work`` to ``folder``, with a plot of the losses, ``losses.png``."""
    work, folder = Path(work), Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if (work / LOG).is_file():
        shutil.copy(work / LOG, folder / LOG)
    if (work / TENSORBOARD).is_dir():
        shutil.copytree(work / TENSORBOARD, folder / TENSORBOARD, dirs_exist_ok=True)
    plot_log(read_log(work / LOG), folder / "losses.png", title)
