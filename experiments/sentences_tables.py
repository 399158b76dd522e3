"""The tables and the decision of experiments/sentences-and-titles.md.

python experiments/sentences_tables.py runs/sentences-and-titles/records
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sentences_and_titles import CHOOSE_BY, DEMO, NEW

from dupmae_ir.console import guarded
from dupmae_ir.errors import InputError
from dupmae_ir.eval.significance import holm, t_test

TODAY = "today"
CHOSEN_BY = "nDCG@10"
ARMS = {
    "windows": "window ",
    "shorter passages": "shorter ",
    "no shared titles": "titles ",
    "by query": "half ",
}
"""The arms, and how the names of their settings begin."""
GAIN = 0.01
"""What an arm must gain on the mean of the new collections."""
HARM = 0.005
"""What it may lose on any collection."""
LEVEL = 0.01

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Result:
    """The chosen setting of an arm: ``gain`` on the mean of the new collections with its ``p`` (Holm), and the largest
    loss on any collection (``worst``)."""

    arm: str
    setting: str
    gain: float
    p: float
    worst: str
    loss: float

    @property
    def answer(self) -> str:
        """What the rule says, without the costs."""
        if self.gain < GAIN or self.p >= LEVEL:
            return "not shown"
        if self.loss > HARM:
            return f"gains, but loses on {self.worst}"
        return "met, if its costs are"


def read_records(folder: Path) -> dict[str, Record]:
    """The record of each collection. Raises :class:`InputError` if one is missing."""
    records = {}
    for name in (*CHOOSE_BY, *NEW, DEMO):
        path = folder / f"{name}.json"
        if not path.is_file():
            raise InputError(f"{path}: no such record; run sentences_and_titles.py to its end")
        records[name] = json.loads(path.read_text(encoding="utf-8"))
    return records


def per_query(record: Record, setting: str, part: str = "hybrid") -> np.ndarray:
    """(Q,) nDCG@10 of a setting."""
    return np.array(record["settings"][setting][part][CHOSEN_BY])


def choose(records: Mapping[str, Record], beginning: str) -> str:
    """The setting of an arm with the highest mean over the collections to choose by, each counted once."""
    names = [name for name in records[DEMO]["settings"] if name.startswith(beginning)]

    def mean(setting: str) -> float:
        return float(np.mean([per_query(records[name], setting).mean() for name in CHOOSE_BY]))

    return max(names, key=mean)


def differences(records: Mapping[str, Record], setting: str) -> np.ndarray:
    """The differences to today of all questions of the new collections, weighted so that each collection has the same
    sum of weights; their mean is the mean of the collections' differences."""
    parts = []
    total = sum(len(records[name]["queries"]) for name in NEW)
    for name in NEW:
        difference = per_query(records[name], setting) - per_query(records[name], TODAY)
        parts.append(difference * total / (len(NEW) * len(difference)))
    return np.concatenate(parts)


def results(records: Mapping[str, Record]) -> list[Result]:
    """The chosen setting of each arm, with Holm's correction over the arms."""
    settings = [choose(records, beginning) for beginning in ARMS.values()]
    gains = [differences(records, setting) for setting in settings]
    p_values = holm([t_test(gain) for gain in gains])
    found = []
    for arm, setting, gain, p in zip(ARMS, settings, gains, p_values, strict=True):
        losses = {}
        for name, record in records.items():
            losses[name] = float((per_query(record, TODAY) - per_query(record, setting)).mean())
        worst = max(losses, key=losses.__getitem__)
        # An undefined test, of equal differences everywhere, shows nothing.
        found.append(
            Result(arm, setting, float(gain.mean()), 1.0 if p is None else p, worst, losses[worst])
        )
    return found


def scores_table(records: Mapping[str, Record], settings: Sequence[str], part: str) -> str:
    """nDCG@10 of settings on all collections, in Markdown."""
    lines = [f"| {part}, nDCG@10 | {' | '.join(records)} |", f"|:--|{'--:|' * len(records)}"]
    for setting in settings:
        cells = []
        for record in records.values():
            cells.append(f"{per_query(record, setting, part).mean():.4f}")
        lines.append(f"| {setting} | {' | '.join(cells)} |")
    return "\n".join(lines)


def report(folder: Path) -> str:
    """All tables, and the decision about each arm."""
    records = read_records(folder)
    settings = records[DEMO]["settings"]
    with_vectors = [name for name in settings if "meaning" in settings[name]]
    found = results(records)
    lines = [
        "| arm | setting | gain on the new collections | p (Holm) | largest loss | |",
        "|:--|:--|--:|--:|--:|:--|",
    ]
    for result in found:
        lines.append(
            f"| {result.arm} | {result.setting} | {result.gain:+.4f} | {result.p:.3g} | {result.loss:+.4f} "
            f"({result.worst}) | {result.answer} |"
        )
    tables = [
        "\n".join(lines),
        scores_table(records, list(settings), "hybrid"),
        scores_table(records, with_vectors, "meaning"),
    ]
    return "\n\n".join(tables)


def main(argv: list[str]) -> int:
    """Print the report of a folder of records. Returns the exit status."""
    if len(argv) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    return guarded(lambda: print(report(Path(argv[0]))), "sentences_tables.py")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
