"""Print tables and draw plots from the records.

    python experiments/tables.py systems   --records experiments/records/gpu
    python experiments/tables.py differences ablations caps costs choice --records ...
    python experiments/tables.py pictures  --records ... [--pictures docs/pictures/experiments]

A cell is the mean over the seeds and, with two or more, their standard deviation. `*`: p < 0.05 in the paired t-test
over queries (means over the seeds) against --control in the same mode, after Holm's correction over the whole table.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pictures import draw
from records import (
    CHOSEN_BY,
    DEV,
    Record,
    apart,
    by_row,
    chosen,
    dev_means,
    facing,
    interval,
    ranked,
    read_records,
)

from dupmae_ir.console import guarded
from dupmae_ir.errors import InputError
from dupmae_ir.eval.significance import holm, t_test

TABLES = {
    "systems": (("references", "systems", "stage3", "scratch"), "none"),
    "ablations": (("ablations", "tokens"), "dupmae"),
    "caps": (("caps", "levels"), "dupmae"),
}
"""Table -> (tables of its rows in systems.toml, default control)."""
ALPHA = 0.05
MEASURES = ("nDCG@10", "MRR@10", "R@100")


@dataclass(frozen=True)
class Cell:
    """Score of one row in one mode on one set."""

    mean: float
    deviation: float | None  #: over the seeds; None for a single seed
    p: float | None = None  #: Holm-corrected, against the control; None without a control

    def __str__(self) -> str:
        spread = "" if self.deviation is None else f" ± {self.deviation:.4f}"
        return f"{self.mean:.4f}{spread}{'*' if self.p is not None and self.p < ALPHA else ''}"


def cells(
    rows: dict[str, list[Record]], control: list[Record] | None, measure: str
) -> dict[tuple[str, str, str], Cell]:
    """(row, mode, set) -> cell, with p corrected over all of them."""
    raw: dict[tuple[str, str, str], tuple[float, float | None, float | None]] = {}
    for name, records in rows.items():
        for collection, mode in _columns(records[0]):
            values = [r["sets"][collection]["scores"][mode][measure] for r in records]
            spread = statistics.stdev(values) if len(values) > 1 else None
            mean = math.fsum(values) / len(values)
            raw[name, mode, collection] = (
                mean,
                spread,
                _p(records, control, collection, mode, measure),
            )
    tested = [key for key, (_, _, p) in raw.items() if p is not None]
    corrected = dict(zip(tested, holm([raw[key][2] for key in tested]), strict=True))
    return {key: Cell(mean, spread, corrected.get(key)) for key, (mean, spread, _) in raw.items()}


def _columns(record: Record) -> list[tuple[str, str]]:
    columns = []
    for name, found in record["sets"].items():
        columns += [(name, mode) for mode in found["scores"]]
    return columns


def _p(
    records: list[Record], control: list[Record] | None, collection: str, mode: str, measure: str
) -> float | None:
    """Uncorrected p of a row against the control, in the same mode or the only one that the control has."""
    if (
        not control
        or control[0]["row"] == records[0]["row"]
        or collection not in control[0]["sets"]
    ):
        return None
    other = facing(control[0], collection, mode)
    several = len(control[0]["sets"][collection]["scores"]) > 1
    if other is None or (several and records[0]["table"] == "references"):
        return None
    return t_test(apart(records, control, collection, mode, measure, other))


def score_table(
    records: list[Record], tables: Sequence[str], control: str | None, measure: str
) -> str:
    """Markdown: a line per row and mode, a column per set, the best of each column in bold."""
    grouped = by_row(records)
    rows = {
        name: found
        for name, found in grouped.items()
        if found[0]["table"] in tables or name == control
    }
    if not rows.keys() - {control}:
        raise InputError(f"no record of the tables {', '.join(tables)}")
    if control in rows:
        # Only the control's seeds that other rows have: a capped model is compared with itself.
        seeds = {r["seed"] for name, found in rows.items() if name != control for r in found}
        rows[control] = [r for r in rows[control] if r["seed"] in seeds] or rows[control]
    order = sorted(rows, key=lambda name: (name != control, _place(rows[name][0], tables)))
    found = cells(rows, rows.get(control or ""), measure)
    sets = list(dict.fromkeys(c for _, _, c in found))
    best = {c: max(cell.mean for (_, _, col), cell in found.items() if col == c) for c in sets}
    lines = [f"| {measure} | | " + " | ".join(sets) + " |", "|:--|:--|" + "--:|" * len(sets)]
    for name in order:
        for mode in dict.fromkeys(m for n, m, _ in found if n == name):
            shown = [found.get((name, mode, c)) for c in sets]
            values = [
                "-" if cell is None else f"**{cell}**" if cell.mean == best[c] else str(cell)
                for cell, c in zip(shown, sets, strict=True)
            ]
            lines.append(f"| {rows[name][0]['title']} | {mode} | " + " | ".join(values) + " |")
    return "\n".join(lines)


def score_tables(
    records: list[Record], what: str, control: str | None = None, measures: Sequence[str] = MEASURES
) -> list[str]:
    """The table ``what`` of :data:`TABLES`, once per measure, against ``control`` or its default."""
    tables, usual = TABLES[what]
    return [score_table(records, tables, control or usual, m) for m in measures]


def difference_table(
    records: list[Record], control: str | None = None, mode: str = "hybrid"
) -> str:
    """Markdown: difference of each method from ``control`` in nDCG@10 with its interval, bold if that excludes 0.

    A line per method, a column per set."""
    tables, usual = TABLES["systems"]
    rows = by_row(records)
    against = rows.get(control or usual)
    sets = [c for c in against[0]["sets"] if facing(against[0], c, mode)] if against else []
    if not against or not sets:
        raise InputError(f"no {mode} record of {control or usual} to compare the others with")
    head = f"| {CHOSEN_BY}: {mode} above {against[0]['title']} | seeds | "
    lines = [head + " | ".join(sets) + " |", "|:--|--:|" + "--:|" * len(sets)]
    for found in sorted(rows.values(), key=lambda found: _place(found[0], tables)):
        if found[0]["table"] not in tables or found is against or not _has(found[0], mode):
            continue
        values = [_apart(found, against, collection, mode) for collection in sets]
        lines.append(f"| {found[0]['title']} | {len(found)} | " + " | ".join(values) + " |")
    return "\n".join(lines)


def pooled_table(
    records: list[Record], row: str, controls: Sequence[str], mode: str = "hybrid"
) -> str:
    """Markdown: difference of ``row`` from each control in nDCG@10 over the queries of several sets together.

    With its interval, and p of the paired t-test after Holm's correction over the table."""
    rows = by_row(records)
    for name in (row, *controls):
        if name not in rows:
            raise InputError(f"no record of {name}")
    sets = list(rows[row][0]["sets"])
    groups = {"all": sets, f"without {DEV}": [s for s in sets if s != DEV]}
    found = []
    for control, names in itertools.product(controls, groups.values()):
        records_of_control = rows[control]
        differences = []
        for name in names:
            control_mode = facing(records_of_control[0], name, mode)
            differences.append(
                apart(rows[row], records_of_control, name, mode, CHOSEN_BY, control_mode)
            )
        found.append(np.concatenate(differences))
    values = [
        f"{more.mean():+.4f} ({low:+.4f} to {high:+.4f}), p = {'-' if p is None else f'{p:.1g}'}"
        for more, (low, high), p in zip(
            found, map(interval, found), holm([t_test(m) for m in found]), strict=True
        )
    ]
    counts = [f"{name} ({len(found[i]):,} queries)" for i, name in enumerate(groups)]
    lines = [
        f"| {CHOSEN_BY}: {mode} above | {' | '.join(counts)} |",
        "|:--|" + "--:|" * len(groups),
    ]
    for i, name in enumerate(controls):
        cells = values[i * len(groups) : (i + 1) * len(groups)]
        lines.append(f"| {rows[name][0]['title']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _has(record: Record, mode: str) -> bool:
    return all(mode in found["scores"] for found in record["sets"].values())


def _apart(records: list[Record], control: list[Record], collection: str, mode: str) -> str:
    if collection not in records[0]["sets"]:
        return "-"
    more = apart(
        records, control, collection, mode, CHOSEN_BY, facing(control[0], collection, mode)
    )
    low, high = interval(more)
    text = f"{more.mean():+.3f} ({low:+.3f} to {high:+.3f})"
    return f"**{text}**" if low > 0 or high < 0 else text


def _place(record: Record, tables: Sequence[str]) -> int:
    return tables.index(record["table"]) if record["table"] in tables else -1


def cost_table(records: list[Record]) -> str:
    """Markdown: tokens, updates, seconds and bytes of each row except the query caps. Tokens and seconds are means over
    the seeds."""
    heads = [
        "",
        "seeds",
        "tokens",
        "updates",
        "pre-training s",
        "fine-tuning s",
        "dense MB",
        "impact MB",
        "hybrid MB",
        "float16 MB",
    ]
    lines = [f"| {' | '.join(heads)} |", "|:--|" + "--:|" * (len(heads) - 1)]
    for found in by_row(r for r in records if r["table"] != "caps").values():
        first = found[0]
        sizes = [
            f"{_bytes(first, mode) / 1e6:,.1f}" if _bytes(first, mode) else "-"
            for mode in ("dense", "impact", "hybrid")
        ]
        if "tokens" not in first:
            lines.append(
                f"| {first['title']} | {len(found)} | | | | | " + " | ".join(sizes) + " | |"
            )
            continue
        before = _mean(r["seconds"]["pretrain"] for r in found)
        after = _mean(sum(r["seconds"].values()) - r["seconds"]["pretrain"] for r in found)
        lines.append(
            f"| {first['title']} | {len(found)} | {_mean(r['tokens'] for r in found):,.0f} | {first['updates']:,} | "
            f"{before:,.0f} | {after:,.0f} | "
            + " | ".join(sizes)
            + f" | {first['model']['half_bytes'] / 1e6:.1f} |"
        )
    devices = sorted({r["machine"]["device"] for r in records if "tokens" in r})
    note = (
        f"Index bytes are sums over {', '.join(_sets(records))}. Trained on: {'; '.join(devices)}."
    )
    return "\n".join([*lines, "", note])


def _bytes(record: Record, mode: str) -> int:
    return sum(found["index_bytes"].get(mode, 0) for found in record["sets"].values())


def _sets(records: list[Record]) -> list[str]:
    names: dict[str, None] = {}
    for record in records:
        names.update(dict.fromkeys(record["sets"]))
    return list(names)


def _mean(values: Any) -> float:
    found = list(values)
    return math.fsum(found) / len(found)


def choice(records: list[Record]) -> str:
    """Markdown: the rows ranked on the dev pairs, the methods over the seeds that all of them have (which decides where
    stage 3 is run), and the chosen row."""
    tables = ("systems", "stage3", "ablations")
    best = chosen(records)
    grouped = by_row(records)
    lines = [
        f"| hybrid nDCG@10 on {DEV} | all rows | the systems over their seeds |",
        "|:--|--:|--:|",
    ]
    means = dev_means(records, tables)
    systems = dev_means(records)
    for name in ranked(records, tables):
        of_seeds = f"{systems[name]:.4f}" if name in systems else "-"
        lines.append(f"| {grouped[name][0]['title']} | {means[name]:.4f} | {of_seeds} |")
    return "\n".join(
        [*lines, "", f"Chosen: {best['title']}, seed {best['seed']} ({best['model']['folder']})."]
    )


def main(argv: list[str] | None = None) -> int:
    """Parse the flags and run. Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what", nargs="+", choices=(*TABLES, "differences", "costs", "choice", "pictures")
    )
    parser.add_argument(
        "--records", type=Path, required=True, help="folder of records that systems.py wrote"
    )
    parser.add_argument("--measures", nargs="+", default=list(MEASURES))
    parser.add_argument(
        "--control", help="row to test against, for example bm25 (default: the table's default)"
    )
    parser.add_argument("--pictures", type=Path, default=Path("docs/pictures/experiments"))
    args = parser.parse_args(argv)
    return guarded(lambda: run(args), "tables.py")


def run(args: argparse.Namespace) -> None:
    """Print the tables that were asked for, or the paths of the plots."""
    records = read_records(args.records)
    parts: list[str] = []
    for what in args.what:
        parts += _made(what, records, args)
    print("\n\n".join(parts))


def _made(what: str, records: list[Record], args: argparse.Namespace) -> list[str]:
    if what == "pictures":
        return [str(path) for path in draw(records, args.pictures)]
    plain: dict[str, Callable[[list[Record]], str]] = {"costs": cost_table, "choice": choice}
    if what in plain:
        return [plain[what](records)]
    if what == "differences":
        return [difference_table(records, args.control)]
    return score_tables(records, what, args.control, args.measures)


if __name__ == "__main__":
    sys.exit(main())
