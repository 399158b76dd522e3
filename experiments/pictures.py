"""Plots of the records: losses, differences from no pre-training, effectiveness against tokens and bytes, and [CLS]
against OT by query."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from records import Record, apart, by_row, chosen, interval, of_shared_seeds

MEASURE = "nDCG@10"
COLOURS = {"dense": "tab:blue", "impact": "tab:orange", "hybrid": "tab:green", "bm25": "0.3"}


def draw(records: list[Record], folder: Path) -> list[Path]:
    """Draw the plots that the records have data for. Returns the paths of the files."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, make in PICTURES.items():
        figure = make(records, pyplot)
        if figure is None:
            continue
        figure.savefig(folder / f"{name}.png", dpi=110)
        pyplot.close(figure)
        written.append(folder / f"{name}.png")
    return written


def _panels(pyplot: Any, count: int) -> tuple[Any, list[Any]]:
    wide = 2 if count == 4 else min(3, count)
    tall = math.ceil(count / wide)
    figure, axes = pyplot.subplots(
        tall, wide, figsize=(4 * wide, 3 * tall), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[count:]:
        axis.axis("off")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    return figure, list(axes.flat)


def _losses(records: list[Record], pyplot: Any) -> Any:
    """Losses on held-out text during pre-training, one panel per method; each method sums different losses."""
    shown = [
        r[0]
        for r in by_row(records).values()
        if r[0]["table"] == "systems" and r[0]["losses"]["pretrain"]
    ]
    if not shown:
        return None
    figure, axes = _panels(pyplot, len(shown))
    for record, axis in zip(shown, axes, strict=False):
        rows = [r for r in record["losses"]["pretrain"] if "eval_loss" in r]
        terms = [k for k in rows[0] if k.startswith("eval_loss")] if rows else []
        # A single task's loss is the sum.
        for name in [t for t in terms if t != "eval_loss"] or terms:
            axis.plot(
                [r["step"] for r in rows],
                [r[name] for r in rows],
                marker=".",
                label=name.removeprefix("eval_loss_"),
            )
        axis.set_title(record["title"], fontsize=10)
        axis.set_xlabel("updates")
        if terms:
            axis.legend(fontsize=7)
    figure.suptitle("pre-training: losses on held-out text", fontsize=11)
    return figure


def _differences(records: list[Record], pyplot: Any) -> Any:
    """What each system has more than the control, hybrid, with the intervals of tables.py differences."""
    rows = by_row(r for r in records if r["table"] == "systems")
    control = rows.pop("none", None)
    if not control or not rows:
        return None
    sets = list(control[0]["sets"])
    titles = [found[0]["title"] for found in rows.values()]
    figure, axes = _panels(pyplot, len(sets))
    for name, axis in zip(sets, axes, strict=False):
        axis.axvline(0, color="0.3", linewidth=1)
        for place, found in enumerate(rows.values()):
            more = apart(found, control, name, "hybrid", MEASURE)
            mean, (low, high) = more.mean(), interval(more)
            axis.errorbar(
                mean,
                place,
                xerr=[[mean - low], [high - mean]],
                fmt="o",
                color="tab:blue",
                capsize=3,
            )
        axis.set_yticks(
            range(len(titles)), titles if axis.get_subplotspec().is_first_col() else [], fontsize=8
        )
        axis.locator_params(axis="x", nbins=5)
        axis.invert_yaxis()
        axis.set_title(name, fontsize=10)
        axis.set_xlabel(f"{MEASURE} above no pre-training")
    figure.suptitle("hybrid, with 95 % intervals over the queries", fontsize=11)
    return figure


def _tokens(records: list[Record], pyplot: Any) -> Any:
    """Hybrid effectiveness against the tokens of pre-training: DupMAE's budgets as a line, the systems as points. All
    of the same seeds: a line through different ones would show these."""
    rows = {
        name: r
        for name, r in by_row(records).items()
        if "hybrid" in _modes(r[0]) and "tokens" in r[0] and r[0]["table"] in ("systems", "tokens")
    }
    if not rows:
        return None
    rows = dict(zip(rows, of_shared_seeds(rows.values()), strict=True))
    sets = list(next(iter(rows.values()))[0]["sets"])
    figure, axes = _panels(pyplot, len(sets))
    for name, axis in zip(sets, axes, strict=False):
        line = []
        titles = []
        for row, found in rows.items():
            if name not in found[0]["sets"]:
                continue
            values = [r["sets"][name]["scores"]["hybrid"][MEASURE] for r in found]
            point = found[0]["tokens"] / 1e6, math.fsum(values) / len(values)
            if row in ("none", "dupmae-quarter", "dupmae-half", "dupmae"):
                line.append(point)
            axis.plot(*point, "o", color="tab:blue" if row.startswith("dupmae") else "0.5")
            if found[0]["table"] == "systems":
                titles.append((*point, found[0]["title"]))
        axis.plot(*zip(*sorted(line), strict=True), color="tab:blue") if line else None
        axis.set_title(name, fontsize=10)
        axis.margins(y=0.1)
        most = max((x for x, _, _ in titles), default=0)
        axis.set_xlim(-0.1 * most, 1.5 * most or 1)
        axis.set_xlabel("million tokens of pre-training")
        axis.set_ylabel(MEASURE)
        label(axis, titles)
    seeds = ", ".join(str(r["seed"]) for r in next(iter(rows.values())))
    figure.suptitle(f"hybrid, seed {seeds}", fontsize=11)
    return figure


def label(axis: Any, titles: list[tuple[float, float, str]]) -> None:
    """Write each (x, y, title) beside its point, moved up where titles would overlap."""
    low, high = axis.get_ylim()
    least = -math.inf
    for x, y, title in sorted(titles, key=lambda point: point[1]):
        least = max(y, least + (high - low) / 18)
        axis.annotate(
            title,
            (x, y),
            xytext=(x + 0.04 * axis.get_xlim()[1], least),
            fontsize=6,
            va="center",
            arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": "0.6"},
        )


def _bytes(records: list[Record], pyplot: Any) -> Any:
    """Effectiveness against the bytes of the index, one panel per set."""
    from matplotlib import ticker

    # Rows near zero would compress all others.
    rows = [r[0] for r in by_row(records).values() if r[0]["table"] != "scratch"]
    sets = list(dict.fromkeys(name for r in rows for name in r["sets"]))
    figure, axes = _panels(pyplot, len(sets))
    for name, axis in zip(sets, axes, strict=False):
        for mode, colour in COLOURS.items():
            points = [
                (
                    r["sets"][name]["index_bytes"][mode] / 1e6,
                    r["sets"][name]["scores"][mode][MEASURE],
                )
                for r in rows
                if name in r["sets"] and mode in r["sets"][name]["scores"]
            ]
            if points:
                axis.plot(*zip(*points, strict=True), "o", color=colour, label=mode, markersize=4)
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter(ticker.NullFormatter())
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("MB of index")
        axis.set_ylabel(MEASURE)
    axes[0].legend(fontsize=7)
    return figure


def _halves(records: list[Record], pyplot: Any) -> Any:
    """[CLS] alone against OT alone for each query of the chosen model, or of the embedded one if none was trained."""
    embedded = next((r for r in records if r["row"] == "embedded"), None)
    trained = any(r.get("model") for r in records)
    record = chosen(records) if trained or embedded is None else embedded
    figure, axes = _panels(pyplot, len(record["sets"]))
    for (name, found), axis in zip(record["sets"].items(), axes, strict=False):
        dense = found["per_query"]["dense"][MEASURE]
        impact = found["per_query"]["impact"][MEASURE]
        axis.plot([0, 1], [0, 1], color="0.7", linewidth=1)
        axis.plot(dense, impact, "o", markersize=3, alpha=0.4)
        dense_better = sum(a > b for a, b in zip(dense, impact, strict=True))
        impact_better = sum(a < b for a, b in zip(dense, impact, strict=True))
        axis.set_title(
            f"{name}: CLS better {dense_better}, OT better {impact_better} of {len(dense)}",
            fontsize=9,
        )
        axis.set_xlabel(f"CLS alone, {MEASURE}")
        axis.set_ylabel(f"OT alone, {MEASURE}")
    figure.suptitle(record["title"], fontsize=11)
    return figure


PICTURES = {
    "losses": _losses,
    "differences": _differences,
    "tokens": _tokens,
    "bytes": _bytes,
    "complementarity": _halves,
}


def _modes(record: Record) -> set[str]:
    modes: set[str] = set()
    for found in record["sets"].values():
        modes.update(found["scores"])
    return modes
