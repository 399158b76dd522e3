"""Means and variances over repeated trainings, and curves over pre-training steps (MASTER, Table 6 and Figure 2).

python eval/studies/repeats.py --qrels scifact -m MRR@10 DupMAE=seed1.trec DupMAE=seed2.trec BERT=bert1.trec
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from study import check_picture, figure, save, study

from dupmae_ir import tables
from dupmae_ir.config import OutputOptions, option
from dupmae_ir.console import say
from dupmae_ir.errors import UsageError
from dupmae_ir.eval.evaluate import evaluate
from dupmae_ir.io.qrels import read_qrels
from dupmae_ir.io.runs import read_run
from dupmae_ir.measures import parse_measures


@dataclass(frozen=True, kw_only=True)
class RepeatsConfig(OutputOptions):
    r"""Means, standard deviations and variances of a measure over repeated trainings (other seeds), as in MASTER's
    Table 6, and the measure by pre-training steps, as in its Figure 2. Deviation and variance are those of the sample
    (n - 1). MASTER prints percent with the variance of percent in parentheses; the last column has this form.

    Examples:
        python eval/studies/repeats.py --qrels msmarco-passage --split dev -m MRR@10 \
            MASTER=full-1.trec MASTER=full-2.trec MASTER=full-3.trec "w/o CPR=cpr-1.trec" "w/o CPR=cpr-2.trec"
        python eval/studies/repeats.py --qrels msmarco-passage --split dev --output figure2.svg \
            Retriever2@10000=r2-10k.trec Retriever2@40000=r2-40k.trec Retriever2@120000=r2-120k.trec
    """

    runs: tuple[str, ...] = option(
        help="run files as SYSTEM=FILE, or SYSTEM@STEP=FILE for a curve; runs of the same system and step are repeats",
        group="input",
        metavar="SYSTEM[@STEP]=FILE",
        positional=True,
    )
    qrels: str = option(
        help="judgements (TREC, BEIR, or a BEIR folder)", group="input", metavar="PATH"
    )
    split: str = option(
        "test", "which qrels/SPLIT.tsv of a BEIR folder", group="input", metavar="SPLIT"
    )
    measure: str = option("MRR@10", "the measure", group="evaluation", metavar="NAME", flag="-m")
    rel_level: int = option(
        1, "smallest grade of a relevant document", group="evaluation", at_least=1
    )
    format: str = option("text", "output format", group="output", choices=("text", "markdown"))
    output: str | None = option(
        None,
        "picture of the measure over the steps: .svg, .png or .pdf",
        group="output",
        metavar="FILE",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_picture(self.output)


@dataclass(frozen=True)
class Repeats:
    """The runs of one system at one step. ``values``: the mean over queries of each run."""

    system: str
    step: int | None
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over the runs."""
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation over the runs; None for one run."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def points(self) -> str:
        """MASTER's notation: mean and variance of the measure in percent, ``38.3 (0.016)``."""
        variance = "" if self.deviation is None else f" ({(100 * self.deviation) ** 2:.3f})"
        return f"{100 * self.mean:.1f}{variance}"


@dataclass(frozen=True)
class RepeatTable:
    """All systems and steps of one measure, in the order of the command line; steps in ascending order."""

    measure: str
    rows: tuple[Repeats, ...]

    def text(self, format: str) -> str:
        """A table; ``text`` or ``markdown``."""
        header = ["system", "step", "runs", self.measure, "deviation", "percent (variance)"]
        rows = [
            [
                row.system,
                "-" if row.step is None else f"{row.step:,}",
                str(len(row.values)),
                f"{row.mean:.4f}",
                "-" if row.deviation is None else f"{row.deviation:.4f}",
                row.points,
            ]
            for row in self.rows
        ]
        return tables.render(header, rows, format)

    def to_dict(self) -> dict[str, Any]:
        """Plain values in full precision."""
        rows = [
            {
                "system": r.system,
                "step": r.step,
                "values": list(r.values),
                "mean": r.mean,
                "deviation": r.deviation,
            }
            for r in self.rows
        ]
        return {"measure": self.measure, "rows": rows}

    def draw(self, output: str) -> None:
        """The measure over the steps, one line per system; error bars are one standard deviation."""
        made, (axes,) = figure(1)
        for number, system in enumerate(
            dict.fromkeys(row.system for row in self.rows if row.step is not None)
        ):
            rows = [row for row in self.rows if row.system == system and row.step is not None]
            steps, means = [row.step for row in rows], [row.mean for row in rows]
            deviations = [row.deviation or 0.0 for row in rows]
            axes.errorbar(
                steps, means, deviations, label=system, marker="o^sX"[number % 4], capsize=3
            )
        axes.set(xlabel="pre-training steps", ylabel=self.measure)
        axes.legend()
        save(made, output)


def run(config: RepeatsConfig) -> RepeatTable:
    """Evaluate the runs, and draw the curve if requested."""
    files = files_by_system(config.runs)
    if config.output and all(step is None for _, step in files):
        raise UsageError(
            "`output` draws the measure over the steps; name the runs SYSTEM@STEP=FILE"
        )
    (measure,) = parse_measures([config.measure], config.rel_level)
    qrels = read_qrels(config.qrels, config.split)

    def value(path: str) -> float:
        hits = read_run(path, warn=lambda message: say(message, config.quiet))
        return evaluate(qrels, hits, [measure]).mean[str(measure)]

    table = RepeatTable(
        str(measure), tuple(Repeats(*key, tuple(map(value, paths))) for key, paths in files.items())
    )
    if config.output:
        table.draw(config.output)
    return table


def files_by_system(runs: Sequence[str]) -> dict[tuple[str, int | None], list[str]]:
    """(system, step) -> run files; systems in the given order, steps ascending."""
    files: dict[tuple[str, int | None], list[str]] = {}
    for entry in runs:
        name, equals, path = entry.partition("=")
        system, at, step = name.rpartition("@") if "@" in name else (name, "", "")
        if not (equals and path and system) or (at and not step.isdecimal()):
            raise UsageError(
                f"{entry}: must be SYSTEM=FILE, or SYSTEM@STEP=FILE with a whole number of steps"
            )
        repeats = files.setdefault((system, int(step) if at else None), [])
        if path in repeats:
            raise UsageError(f"{entry}: given twice; repeats are different runs")
        repeats.append(path)
    order = list(dict.fromkeys(system for system, _ in files))
    return dict(sorted(files.items(), key=lambda item: (order.index(item[0][0]), item[0][1] or 0)))


main = study(
    "repeats", RepeatsConfig, run, lambda config, t: t.text(config.format), lambda t: t.to_dict()
)

if __name__ == "__main__":
    sys.exit(main())
