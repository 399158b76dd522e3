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

from dupmae_ir.console import guarded, megabytes
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


def moves(records: Mapping[str, Record], setting: str) -> tuple[int, int]:
    """How many questions of the new collections have their passage in the first place with a setting and not today, and
    the other way round. Each has one relevant passage, so nDCG@10 is 1 in the first place only."""
    to_first = 0
    from_first = 0
    for name in NEW:
        is_first = per_query(records[name], setting) == 1
        was_first = per_query(records[name], TODAY) == 1
        to_first += int((is_first & ~was_first).sum())
        from_first += int((was_first & ~is_first).sum())
    return to_first, from_first


def decision(folder: Path) -> str:
    """What the rule says of each arm, and the scores of the chosen settings."""
    records = read_records(folder)
    lines = [
        "| arm | setting | gain on the new collections | p (Holm) | to the first place, away | largest loss | |",
        "|:--|:--|--:|--:|--:|--:|:--|",
    ]
    settings = [TODAY]
    for result in results(records):
        settings.append(result.setting)
        to_first, from_first = moves(records, result.setting)
        lines.append(
            f"| {result.arm} | {result.setting} | {result.gain:+.4f} | {result.p:.2g} | {to_first}, {from_first} | "
            f"{result.loss:.4f} ({result.worst}) | {result.answer} |"
        )
    return "\n".join(lines) + "\n\n" + scores_table(records, settings, "hybrid")


def all_scores(folder: Path) -> str:
    """The scores of all settings, of hybrid search and of vectors alone."""
    records = read_records(folder)
    settings = records[DEMO]["settings"]
    with_vectors = [name for name in settings if "meaning" in settings[name]]
    tables = [
        scores_table(records, list(settings), "hybrid"),
        scores_table(records, with_vectors, "meaning"),
    ]
    return "\n\n".join(tables)


def costs_table(folder: Path) -> str:
    """What excerpts cost and find in the product, by excerpt_costs.py."""
    record = json.loads((folder / "costs.json").read_text(encoding="utf-8"))
    lines = [
        "| | passages | hybrid, nDCG@10 | processor seconds | bytes of vectors | milliseconds of a question |",
        "|:--|--:|--:|--:|--:|--:|",
    ]
    for name, found in record.items():
        today = found["today"]
        excerpts = found["excerpts"]
        cells = [
            f"{today['documents']:,}",
            f"{np.mean(today['scores']):.4f} → {np.mean(excerpts['scores']):.4f}",
            f"{today['seconds']:.0f} → {excerpts['seconds']:.0f} ({excerpts['seconds'] / today['seconds']:.2f}x)",
            f"{megabytes(today['bytes'])} → {megabytes(excerpts['bytes'])} ({excerpts['bytes'] / today['bytes']:.2f}x)",
            f"{today['milliseconds']:g} → {excerpts['milliseconds']:g}",
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """Print the decision and all scores of a folder of records. Returns the exit status."""
    if len(argv) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(argv[0])
    return guarded(
        lambda: print(f"{decision(folder)}\n\n{all_scores(folder)}"), "sentences_tables.py"
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
