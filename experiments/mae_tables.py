"""Tables and decision of mae_from_scratch.py, from its records: ``python experiments/mae_tables.py RECORDS``."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mae_from_scratch import read_settings
from scipy import stats

from dupmae_ir.console import guarded
from dupmae_ir.errors import InputError
from dupmae_ir.eval.significance import Interval, bootstrap_intervals, holm, t_test

Record = dict[str, Any]
Key = tuple[str, int]
"""A method and a number of pairs; 0 pairs for a pre-trained model."""
CONTROL = "mlm"
OTHERS = ("none", "mlm-time", CONTROL)
"""Rows that are not auto-encoders."""
TABLE_6 = "retromae-third"
"""RetroMAE as the other rows of its Table 6 are trained; they are compared with it before any fine-tuning."""
CHOSEN = "nDCG@10"
STAGES = {
    "small.ot": "OT alone",
    "small.stage1": "stage 1",
    "small.stage2": "stage 2",
    "small.stage3": "stage 3",
    "dupmae-small": "stage 2, stored in 8 bits",
}
CLS_ALONE = "readout.stage2.dupmae.4000.seed0.0.json"
PARTS = {"cls": "[CLS]", "ot": "OT", "sum": "sum"}
PART = "cls"
"""The part that stage 2 trains; the read-outs of OT and of the sum are of weights that it left as they were."""


@dataclass(frozen=True)
class Comparison:
    """A method against its control, over the queries of all sets."""

    method: str
    size: int
    mean: float  #: difference in nDCG@10 of [CLS]
    interval: Interval
    p: float | None  #: of the paired t-test, with Holm's correction over methods and sizes


def read_records(folder: Path, seed: int = 0) -> dict[Key, list[Record]]:
    """The read-outs of the branches of one seed of stage 0. Raises :class:`InputError` if there are none."""
    records: dict[Key, list[Record]] = {}
    for path in sorted(folder.glob("readout.stage*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        settings = record["settings"]
        if settings["seed"] == seed:
            records.setdefault((settings["method"], settings["size"]), []).append(record)
    if not records:
        raise InputError(f"{folder}: no read-outs; run experiments/mae_from_scratch.py first")
    return records


def per_query(
    records: Sequence[Record], part: str, measure: str, sets: Iterable[str]
) -> np.ndarray:
    """(queries of all sets,) float64: means over the fine-tuning seeds."""
    means = []
    for name in sets:
        of_seeds = [record["sets"][name]["per_query"][part][measure] for record in records]
        means.append(np.mean(of_seeds, 0))
    return np.concatenate(means)


def compare(
    records: Mapping[Key, list[Record]],
    methods: Sequence[str],
    sizes: Sequence[int],
    control: str = CONTROL,
) -> list[Comparison]:
    """Each method with each size against the control with that size, for those with records of the same seeds."""
    differences: dict[Key, np.ndarray] = {}
    for key in itertools.product(methods, sizes):
        ours, theirs = shared(records.get(key, []), records.get((control, key[1]), []))
        if ours:
            sets = list(ours[0]["sets"])
            differences[key] = per_query(ours, PART, CHOSEN, sets) - per_query(
                theirs, PART, CHOSEN, sets
            )
    tests = holm([t_test(d) for d in differences.values()])
    compared = []
    for ((method, size), d), p in zip(differences.items(), tests, strict=True):
        (interval,) = bootstrap_intervals(d[:, None])
        if interval is None:
            raise InputError("one query has no interval; use larger collections")
        compared.append(Comparison(method, size, float(d.mean()), interval, p))
    return compared


def shared(ours: list[Record], theirs: list[Record]) -> tuple[list[Record], list[Record]]:
    """The records of both with the fine-tuning seeds that both have."""
    seeds = {r["settings"]["again"] for r in ours} & {r["settings"]["again"] for r in theirs}
    first = [record for record in ours if record["settings"]["again"] in seeds]
    second = [record for record in theirs if record["settings"]["again"] in seeds]
    return first, second


@dataclass(frozen=True)
class SeedComparison:
    """A method against its control for one number of pairs, with one difference for each seed of pre-training."""

    size: int
    differences: tuple[float, ...]  #: in nDCG@10 of [CLS], over the queries of all sets
    p: float | None  #: paired t-test over seeds, with Holm's correction over the numbers of pairs

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return float(np.mean(self.differences))

    @property
    def interval(self) -> Interval | None:
        """95 % interval of the mean over seeds, by Student's t; None for one seed."""
        count = len(self.differences)
        if count < 2:
            return None
        error = np.std(self.differences, ddof=1) / np.sqrt(count)
        half = float(error * stats.t.ppf(0.975, count - 1))
        return Interval(self.mean - half, self.mean + half)


def over_seeds(
    folder: Path, method: str, sizes: Sequence[int], control: str = CONTROL
) -> list[SeedComparison]:
    """A method against its control over the seeds of stage 0 that both have."""
    by_size: dict[int, list[float]] = {size: [] for size in sizes}
    for seed in read_settings()["stage0"]["seeds"]:
        try:
            records = read_records(folder, seed)
        except InputError:
            continue
        for size in sizes:
            ours, theirs = shared(records.get((method, size), []), records.get((control, size), []))
            if ours:
                sets = list(ours[0]["sets"])
                gain = per_query(ours, PART, CHOSEN, sets) - per_query(theirs, PART, CHOSEN, sets)
                by_size[size].append(float(gain.mean()))
    tests = []
    for differences in by_size.values():
        tests.append(t_test(np.array(differences)) if len(differences) > 1 else None)
    compared = []
    for (size, differences), p in zip(by_size.items(), holm(tests), strict=True):
        if differences:
            compared.append(SeedComparison(size, tuple(differences), p))
    return compared


def gap(record: Record) -> float | None:
    """Nats that the held-out loss of the [CLS] decoder rises by if the vectors are shuffled; None without a decoder."""
    last = record["held_out"][-1]
    gaps = [
        value
        for name, value in last.items()
        if name.startswith("eval_gap_") and name != "eval_gap_bow"
    ]
    return float(max(gaps)) if gaps else None


def decide(
    compared: Sequence[Comparison], gaps: Mapping[str, float | None], rule: Mapping[str, Any]
) -> str:
    """``shown``, ``refuted at this scale`` or ``undecided``, with the reason, by the registered rule."""
    shown = [
        c
        for c in compared
        if c.size in rule["sizes"]
        and c.mean >= rule["margin"]
        and c.p is not None
        and c.p < rule["level"]
    ]
    if shown:
        best = max(shown, key=lambda c: c.mean)
        return f"shown: {best.method} with {best.size:,} pairs is {best.mean:+.3f} above masked LM, p = {best.p:.2g}"
    decoders = {method: nats for method, nats in gaps.items() if nats is not None}
    tested = {(c.method, c.size): c for c in compared}
    needed = list(itertools.product(decoders, rule["sizes"]))
    all_read = all(nats > rule["gap"] for nats in decoders.values())
    if (
        needed
        and all_read
        and all(k in tested and tested[k].interval.high < rule["margin"] for k in needed)
    ):
        return f"refuted at this scale: the intervals of {', '.join(decoders)} lie below {rule['margin']:+}"
    return "undecided: stage 1 is repeated once with twice the tokens"


# ---- Tables


def pretraining_table(records: Mapping[Key, list[Record]], titles: Mapping[str, str]) -> str:
    """Tokens, held-out losses, gaps, probe and zero-shot [CLS] of the pre-trained models."""
    rows = {m: records[m, 0][0] for m in titles if (m, 0) in records}
    if not rows:
        return ""
    sets = list(next(iter(rows.values()))["sets"])
    lines = [["", "tokens", "MLM loss", "decoder loss", "gap", "bag gap", "words found", *sets]]
    for method, record in rows.items():
        last = record["held_out"][-1]
        decoder = next((v for k, v in last.items() if k in _decoders(last)), None)
        lines.append(
            [
                titles[method],
                f"{record['tokens'] / 1e6:.1f} M",
                f"{last['eval_loss_mlm']:.3f}",
                _number(decoder),
                _number(gap(record)),
                _number(last.get("eval_gap_bow")),
                f"{record['probe']['words']:.3f}",
                *(f"{record['sets'][s]['scores']['cls'][CHOSEN]:.4f}" for s in sets),
            ]
        )
    return table(lines)


def _decoders(last: Mapping[str, float]) -> list[str]:
    """The names of the held-out losses of [CLS] decoders."""
    gaps = [k for k in last if k.startswith("eval_gap_") and k != "eval_gap_bow"]
    return [k.replace("gap", "loss") for k in gaps]


def scores_table(
    records: Mapping[Key, list[Record]], titles: Mapping[str, str], size: int, measure: str
) -> str:
    """Means of [CLS] over the seeds on each set, after fine-tuning on ``size`` pairs."""
    rows = {m: records[m, size] for m in titles if (m, size) in records}
    if not rows:
        return ""
    sets = list(next(iter(rows.values()))[0]["sets"])
    lines = [[f"[CLS], {measure}, {size:,} pairs", "seeds", *sets]]
    for method, seeds in rows.items():
        cells = [titles[method], str(len(seeds))]
        for name in sets:
            scores = [record["sets"][name]["scores"][PART][measure] for record in seeds]
            cells.append(f"{np.mean(scores):.4f}")
        lines.append(cells)
    return table(lines)


def comparison_table(compared: Sequence[Comparison], titles: Mapping[str, str]) -> str:
    """Differences from masked LM with intervals and corrected p values."""
    lines = [["[CLS], nDCG@10, all queries", "pairs", "difference", "95 % interval", "p (Holm)"]]
    for c in compared:
        p = "-" if c.p is None else f"{c.p:.3g}"
        span = f"{c.interval.low:+.4f} to {c.interval.high:+.4f}"
        lines.append([titles[c.method], f"{c.size:,}", f"{c.mean:+.4f}", span, p])
    return table(lines) if compared else ""


def seeds_table(folder: Path) -> str:
    """RetroMAE against masked LM, and against masked LM of its time, over seeds of pre-training, as Markdown."""
    settings, titles, _ = _settings()
    lines = [
        ["[CLS], nDCG@10, over seeds", "pairs", "by seed", "mean", "95 % interval", "p (Holm)"]
    ]
    for control in (CONTROL, "mlm-time"):
        for result in over_seeds(folder, "retromae", settings["decision"]["sizes"], control):
            span = ""
            if result.interval:
                span = f"{result.interval.low:+.4f} to {result.interval.high:+.4f}"
            p = "-" if result.p is None else f"{result.p:.3g}"
            by_seed = ", ".join(f"{value:+.4f}" for value in result.differences)
            name = f"RetroMAE minus {titles[control]}"
            lines.append([name, f"{result.size:,}", by_seed, f"{result.mean:+.4f}", span, p])
    return table(lines)


def stage_scores(folder: Path, name: str, measure: str = CHOSEN) -> dict[str, dict[str, float]]:
    """Step -> part -> mean on the set ``name``, of the models with both parts: steps ``small``, and the stored one."""
    found = {}
    for path in sorted(folder.glob(f"readout.*small*.{name}.json")):
        scores = json.loads(path.read_text(encoding="utf-8"))["sets"][name]["scores"]
        step = path.name.removeprefix("readout.").removesuffix(f".{name}.json")
        found[step] = {part: values[measure] for part, values in scores.items()}
    return found


def stages_table(folder: Path) -> str:
    """nDCG@10 of [CLS], OT and their sum on each set after each stage, as Markdown; a set not yet read out is empty.

    First the model of which [CLS] alone was trained, with the pairs and updates of stage 1.
    """
    settings = read_settings()
    sets = ["dev", *settings["collections"]]
    alone = json.loads((folder / CLS_ALONE).read_text(encoding="utf-8"))["sets"]
    lines = [["", "part", *sets]]
    lines.append(
        [
            "[CLS] alone",
            PARTS[PART],
            *(f"{alone[name]['scores'][PART][CHOSEN]:.4f}" for name in sets),
        ]
    )
    scores = {name: stage_scores(folder, name) for name in sets}
    for step, title in STAGES.items():
        for part in ("cls", "ot", "sum"):
            values = [scores[name].get(step, {}).get(part) for name in sets]
            if any(v is not None for v in values):
                lines.append(
                    [title, PARTS[part], *("" if v is None else f"{v:.4f}" for v in values)]
                )
    return table(lines, 2)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def table(lines: Sequence[Sequence[str]], words: int = 1) -> str:
    """A Markdown table; the first line is the head, the first ``words`` columns are text."""
    rows = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([rows[0], "|:--" * words + "|--:" * (len(lines[0]) - words) + "|", *rows[1:]])


def report(folder: Path, seed: int = 0) -> str:
    """All tables and the decision, as Markdown."""
    return "\n\n".join([conclusion(folder, seed), further_tables(folder, seed)])


def further_tables(folder: Path, seed: int = 0) -> str:
    """The tables of every measure and number of pairs that :func:`conclusion` leaves out, as Markdown."""
    settings, titles, sizes = _settings()
    records = read_records(folder, seed)
    tables = []
    for measure, size in itertools.product(settings["readouts"]["measures"], sizes):
        if (size, measure) != (sizes[0], CHOSEN):
            tables.append(scores_table(records, titles, size, measure))
    return "\n\n".join(filter(None, tables))


def conclusion(folder: Path, seed: int = 0) -> str:
    """Pre-training, differences, nDCG@10 with the fewest pairs and the decision, as Markdown."""
    settings, titles, sizes = _settings()
    records = read_records(folder, seed)
    methods = [m for m in titles if m not in OTHERS]
    compared = compare(records, methods, sizes)
    gaps = {m: gap(records[m, 0][0]) for m in methods if (m, 0) in records}
    parts = [pretraining_table(records, titles), comparison_table(compared, titles)]
    parts.append(scores_table(records, titles, sizes[0], CHOSEN))
    return "\n\n".join(
        [*filter(None, parts), f"Decision: {decide(compared, gaps, settings['decision'])}."]
    )


def table_6(folder: Path) -> str:
    """The rows of RetroMAE's Table 6 as pre-training leaves them, and their differences from its own settings."""
    methods = read_settings()["methods"]
    records = read_records(folder)
    titles = {name: m["title"] for name, m in methods.items() if not m.get("sizes", True)}
    compared = compare(records, [m for m in titles if m != TABLE_6], [0], TABLE_6)
    return "\n\n".join([pretraining_table(records, titles), comparison_table(compared, titles)])


def _settings() -> tuple[Mapping[str, Any], dict[str, str], list[int]]:
    """The registered settings, the titles of the methods that are fine-tuned, and the numbers of pairs."""
    settings = read_settings()
    titles = {name: m["title"] for name, m in settings["methods"].items() if m.get("sizes", True)}
    return settings, titles, [int(size) for size in settings["sizes"]]


def print_report(
    report: Callable[[Path], str], argv: Sequence[str], usage: str, script: str
) -> int:
    """Print the report of the folder of records that ``argv`` names. Returns the exit status."""
    if len(argv) != 1:
        print(usage, file=sys.stderr)
        return 2
    return guarded(lambda: print(report(Path(argv[0]))), script)


def main(argv: list[str]) -> int:
    """Print the report. Returns the exit status."""
    return print_report(report, argv, str(__doc__), "mae_tables.py")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
