"""Records of finished rows. systems.py writes them; tables, plots and the choice of a model read nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dupmae_ir.errors import InputError
from dupmae_ir.eval.significance import Interval, bootstrap_intervals

Record = dict[str, Any]
DEV = "dev"
CHOSEN_BY = "nDCG@10"
"""The set and the measure that models are chosen by; no other is used."""
TITLES = {("cores", "embedded"): "the embedded model of 2026-11-21 at 128 pieces"}
"""(budget, row) -> the title to show where the record has other numbers elsewhere: a label has one set of numbers."""


def read_records(folder: Path) -> list[Record]:
    """Every ``*.json`` of ``folder``, by name. Raises :class:`InputError` if there is none or one is not valid JSON."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            raise InputError(f"{path}: not a record") from None
        title = TITLES.get((record.get("budget"), record.get("row")))
        found.append({**record, "title": title} if title else record)
    if not found:
        raise InputError(f"{folder}: no records; run experiments/systems.py first")
    return found


def by_row(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Row -> its records, the first seed first; rows in the order of systems.toml."""
    rows: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda r: (r["place"], r["seed"])):
        rows.setdefault(record["row"], []).append(record)
    return rows


def of_shared_seeds(rows: Iterable[list[Record]]) -> list[list[Record]]:
    """The records of each row with the seeds that all rows have; all of its records if no seed is shared."""
    groups = list(rows)
    if not groups:
        return []
    seeds = [{record["seed"] for record in group} for group in groups]
    shared_seeds = set.intersection(*seeds)
    of_shared = []
    for group in groups:
        kept = [record for record in group if record["seed"] in shared_seeds]
        of_shared.append(kept or group)
    return of_shared


def dev_score(record: Record) -> float | None:
    """Hybrid nDCG@10 on the dev pairs; None for a row without a hybrid mode (one half, a reference)."""
    scores = record["sets"].get(DEV, {}).get("scores", {})
    return scores["hybrid"][CHOSEN_BY] if "hybrid" in scores else None


def per_query(records: Iterable[Record], collection: str, mode: str, measure: str) -> np.ndarray:
    """(queries,) float64, means over the seeds."""
    return np.mean([r["sets"][collection]["per_query"][mode][measure] for r in records], axis=0)


def facing(control: Record, collection: str, mode: str) -> str | None:
    """The control's mode to compare ``mode`` with: the same, or the only one that it has; else None."""
    there = list(control["sets"][collection]["scores"])
    return mode if mode in there else there[0] if len(there) == 1 else None


def apart(
    records: list[Record],
    control: list[Record],
    collection: str,
    mode: str,
    measure: str,
    other: str | None = None,
) -> np.ndarray:
    """(queries,) differences of a row from the control, means over the seeds that both have, if there are any.
    ``other``: the control's mode if it is not ``mode``. Raises :class:`InputError` if the queries differ."""
    if records[0]["sets"][collection]["queries"] != control[0]["sets"][collection]["queries"]:
        raise InputError(
            f"{records[0]['row']} and {control[0]['row']} have different queries on {collection}"
        )
    ours, theirs = of_shared_seeds([records, control])
    return per_query(ours, collection, mode, measure) - per_query(
        theirs, collection, other or mode, measure
    )


def interval(differences: np.ndarray) -> Interval:
    """95 % bootstrap interval of the mean over queries (Efron). Raises :class:`InputError` for a single query."""
    (found,) = bootstrap_intervals(differences[:, None])
    if found is None:
        raise InputError("one query has no interval")
    return found


def dev_means(records: Iterable[Record], tables: Sequence[str] = ("systems",)) -> dict[str, float]:
    """Row of ``tables`` -> hybrid nDCG@10 on the dev pairs, a mean over the seeds that all of them have, if there are
    any, because a seed may raise or lower all rows."""
    rows = by_row(r for r in records if r["table"] in tables and dev_score(r) is not None)
    means = {}
    for name, group in zip(rows, of_shared_seeds(rows.values()), strict=True):
        scores = [dev_score(record) or 0.0 for record in group]
        means[name] = math.fsum(scores) / len(scores)
    return means


def ranked(records: Iterable[Record], tables: Sequence[str] = ("systems",)) -> list[str]:
    """Rows of ``tables`` from the best on the dev pairs to the worst, ties by name."""
    means = dev_means(records, tables)
    return sorted(means, key=lambda name: (-means[name], name))


def chosen(
    records: Iterable[Record],
    tables: Sequence[str] = ("systems", "stage3", "ablations"),
    most_bytes: float = math.inf,
) -> Record:
    """The record to publish: the best row on the dev pairs whose model has at most ``most_bytes`` in float16, with its
    best seed on the dev pairs. Variants of another row's model are not candidates."""
    fit = [
        r
        for r in records
        if r.get("model") and not r.get("of") and r["model"]["half_bytes"] <= most_bytes
    ]
    order = ranked(fit, tables)
    if not order:
        raise InputError("no finished row has a hybrid score on the dev pairs")
    return max(by_row(fit)[order[0]], key=lambda r: (dev_score(r), -r["seed"]))
