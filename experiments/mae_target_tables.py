"""Tables and answers of mae_targets.py, from its records: ``python experiments/mae_target_tables.py RECORDS``."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from mae_from_scratch import read_settings
from mae_tables import CHOSEN, PART, print_report, table
from mae_targets import GENERAL, NONE

from dupmae_ir.errors import InputError
from dupmae_ir.eval.significance import Interval, bootstrap_intervals, holm, t_test

Record = dict[str, Any]
TITLES = {NONE: "no further pre-training", GENERAL: "general text"}
DEV = "dev"


@dataclass(frozen=True)
class TargetResult:
    """Pre-training on a collection against as much general text, on that collection."""

    collection: str
    size: int  #: pairs of fine-tuning; 0 = none
    mean: float  #: difference in nDCG@10 of [CLS]
    interval: Interval
    by_seed: tuple[float, ...]  #: the same for each seed of pre-training
    p: float | None = (
        None  #: paired t-test over queries, with Holm's correction over collections and sizes
    )


def read_arms(folder: Path) -> list[Record]:
    """The read-outs of all arms. Raises :class:`InputError` if there are none."""
    records = []
    for path in sorted(folder.glob("readout.target.*.json")):
        records.append(json.loads(path.read_text(encoding="utf-8")))
    if not records:
        raise InputError(f"{folder}: no read-outs; run experiments/mae_targets.py first")
    return records


def collections_of(records: Sequence[Record]) -> list[str]:
    """The collections that some arm was trained on."""
    arms = {record["settings"]["arm"] for record in records}
    return sorted(arms - {NONE, GENERAL})


def query_values(
    records: Sequence[Record], arm: str, size: int, collection: str, seed: int
) -> np.ndarray | None:
    """(queries,) nDCG@10 of [CLS], the mean over fine-tuning seeds; None without records."""
    values = []
    for record in records:
        settings = record["settings"]
        if (settings["arm"], settings["size"], settings["seed"]) == (arm, size, seed):
            values.append(record["sets"][collection]["per_query"][PART][CHOSEN])
    return np.mean(values, 0) if values else None


def differences(records: Sequence[Record], size: int, collection: str) -> dict[int, np.ndarray]:
    """Seed of pre-training -> (queries,) difference between the collection's arm and general text."""
    found = {}
    for seed in sorted({record["settings"]["seed"] for record in records}):
        target = query_values(records, collection, size, collection, seed)
        general = query_values(records, GENERAL, size, collection, seed)
        if target is not None and general is not None:
            found[seed] = target - general
    return found


def results(records: Sequence[Record], sizes: Sequence[int]) -> list[TargetResult]:
    """The differences of all collections and numbers of pairs; p values for those with fine-tuning."""
    found = []
    tests = []
    for collection, size in itertools.product(collections_of(records), sizes):
        by_seed = differences(records, size, collection)
        if not by_seed:
            continue
        values = np.mean(list(by_seed.values()), 0)
        (interval,) = bootstrap_intervals(values[:, None])
        if interval is None:
            raise InputError(f"{collection}: one query has no interval; use a larger collection")
        means = tuple(float(difference.mean()) for difference in by_seed.values())
        found.append(TargetResult(collection, size, float(values.mean()), interval, means))
        tests.append(t_test(values) if size else None)
    tested = [number for number, result in enumerate(found) if result.size]
    corrected = holm([tests[number] for number in tested])
    for number, p in zip(tested, corrected, strict=True):
        found[number] = replace(found[number], p=p)
    return found


def answer(found: Sequence[TargetResult], collection: str, rule: Mapping[str, Any]) -> str:
    """``worth it``, ``not worth it`` or ``undecided`` on a collection, by the registered rule."""
    tested = [result for result in found if result.collection == collection and result.size]
    for result in tested:
        is_significant = result.p is not None and result.p < rule["level"]
        agrees = all(mean > 0 for mean in result.by_seed)
        if result.mean >= rule["margin"] and is_significant and agrees:
            return "worth it"
    if tested and all(result.interval.high < rule["margin"] for result in tested):
        return "not worth it"
    return "undecided"


# ---- Tables


def scores_table(records: Sequence[Record], sizes: Sequence[int]) -> str:
    """nDCG@10 of [CLS] of each arm on each collection and on dev, means over all seeds."""
    collections = collections_of(records)
    head = ["[CLS], nDCG@10", "pairs", *collections, DEV]
    lines = [head]
    for arm, size in itertools.product((NONE, GENERAL, *collections), sizes):
        cells = [TITLES.get(arm, f"text of {arm}"), f"{size:,}"]
        for collection in (*collections, DEV):
            scores = []
            for record in records:
                settings = record["settings"]
                if (settings["arm"], settings["size"]) == (arm, size):
                    scores.append(record["sets"][collection]["scores"][PART][CHOSEN])
            cells.append(f"{np.mean(scores):.4f}" if scores else "")
        lines.append(cells)
    return table(lines)


def results_table(found: Sequence[TargetResult]) -> str:
    """The differences from general text, with intervals and p values."""
    lines = [["minus general text", "pairs", "difference", "95 % interval", "by seed", "p (Holm)"]]
    for result in found:
        interval = f"{result.interval.low:+.4f} to {result.interval.high:+.4f}"
        by_seed = ", ".join(f"{mean:+.4f}" for mean in result.by_seed)
        p = "" if result.p is None else f"{result.p:.3g}"
        lines.append(
            [result.collection, f"{result.size:,}", f"{result.mean:+.4f}", interval, by_seed, p]
        )
    return table(lines)


def report(folder: Path) -> str:
    """Both tables and the answers, as Markdown."""
    settings = read_settings()
    records = read_arms(folder)
    sizes = [0, *(int(size) for size in settings["targets"]["sizes"])]
    found = results(records, sizes)
    answers = []
    for collection in collections_of(records):
        answers.append(f"{collection}: {answer(found, collection, settings['decision'])}")
    return "\n\n".join(
        [
            scores_table(records, sizes),
            results_table(found),
            f"Answer by the rule: {'; '.join(answers)}.",
        ]
    )


def main(argv: list[str]) -> int:
    """Print the report. Returns the exit status."""
    return print_report(report, argv, str(__doc__), "mae_target_tables.py")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
