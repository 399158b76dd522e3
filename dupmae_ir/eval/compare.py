"""Comparison of runs with a baseline, per measure and per query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dupmae_ir import tables
from dupmae_ir.errors import UsageError
from dupmae_ir.eval.config import ComparisonOptions
from dupmae_ir.eval.evaluate import Evaluation
from dupmae_ir.eval.significance import (
    BOOTSTRAPS,
    Interval,
    Permutation,
    bootstrap_intervals,
    holm,
    permutation_tests,
    t_test,
)
from dupmae_ir.registry import lookup

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

MARKS = {"t": "†", "permutation": "‡"}
TEST_NAMES = {"t": "paired t-test", "permutation": "paired permutation test"}
TIE = 1e-12  #: smaller differences are rounding errors


@dataclass(frozen=True)
class QueryChange:
    """One query's values by the baseline and by the run."""

    qid: str
    baseline: float
    run: float

    @property
    def difference(self) -> float:
        """Run minus baseline."""
        return self.run - self.baseline


@dataclass(frozen=True)
class Difference:
    """One run compared with the baseline in one measure, over the queries evaluated for both."""

    changes: tuple[QueryChange, ...]  #: every query, by id
    mean: float
    interval: Interval | None  #: of the mean difference
    p: dict[str, float | None]  #: test -> p; None if undefined
    corrected: dict[str, float | None]  #: the same after Holm's correction over the compared runs
    permutation: Permutation | None  #: details of the permutation test, if requested

    @property
    def wins(self) -> int:
        """Queries with a higher value than the baseline's."""
        return sum(change.difference > TIE for change in self.changes)

    @property
    def losses(self) -> int:
        """Queries with a lower value than the baseline's."""
        return sum(change.difference < -TIE for change in self.changes)

    @property
    def ties(self) -> int:
        """Queries with the same value, up to rounding."""
        return len(self.changes) - self.wins - self.losses

    def moved(self, limit: int) -> list[QueryChange]:
        """The queries with the largest differences in either direction, without ties; equal ones by id."""
        changed = [change for change in self.changes if abs(change.difference) > TIE]
        # Rounded, so that rounding errors do not order equal differences.
        changed.sort(key=lambda change: (-round(abs(change.difference), 12), change.qid))
        return changed[:limit]


@dataclass(frozen=True)
class Comparison:
    """Every run but the baseline, compared with the baseline."""

    baseline: str
    settings: ComparisonOptions
    runs: dict[str, dict[str, Difference]]  #: run -> measure -> difference

    @property
    def measures(self) -> list[str]:
        """The compared measures, in the order of the table."""
        return list(next(iter(self.runs.values())))

    def rows(self) -> list[tuple[str, ...]]:
        """Run, measure, mean difference from the baseline with its marks, and the corrected p of each test."""
        rows = []
        for run, differences in self.runs.items():
            for measure, difference in differences.items():
                mean = f"{difference.mean:+.4f}{self.marks(run, measure)}"
                p_values = map(_p_text, difference.corrected.values())
                rows.append((run, measure, mean, *p_values))
        return rows

    def __repr__(self) -> str:
        differences = []
        for run, measure, mean, *_ in self.rows():
            differences.append(f"{run} {measure} {mean}")
        return f"Comparison(with {self.baseline}: {', '.join(differences)})"

    def _repr_html_(self) -> str:
        tests = [f"p ({test})" for test in self.settings.tests]
        return tables.html(("run", "measure", f"from {self.baseline}", *tests), self.rows())

    def to_frame(self) -> pandas.DataFrame:
        """A row for each run, measure and query, with the values of the baseline and of the run, and the difference."""
        rows = []
        for run, differences in self.runs.items():
            for measure, difference in differences.items():
                for change in difference.changes:
                    values = (change.baseline, change.run, change.difference)
                    rows.append((run, measure, change.qid, *values))
        columns = ("run", "measure", "qid", "baseline", "value", "difference")
        return tables.data_frame(rows, columns)

    def plot(self, run: str | None = None, measure: str | None = None) -> Figure:
        """A figure of matplotlib: each query by the baseline and by the run, and a histogram of the differences.

        Args:
            run: name of the run; by default the first one that is not the baseline.
            measure: name of the measure; by default the first one.

        Raises:
            UnknownName: there is no such run or measure.
            EnvironmentProblem: matplotlib is not installed.
        """
        from dupmae_ir.eval.reports.plots import comparison_figure

        if run is None:
            run = next(iter(self.runs))
        differences = lookup("run", run, self.runs)
        if measure is None:
            measure = self.measures[0]
        changes = lookup("measure", measure, differences).changes
        before = [change.baseline for change in changes]
        after = [change.run for change in changes]
        return comparison_figure(before, after, (self.baseline, run), measure)

    def marks(self, run: str, measure: str) -> str:
        """† and ‡ for the tests that find a significant difference from the baseline in this measure."""
        difference = self.runs.get(run, {}).get(measure)
        if difference is None:
            return ""
        marks = ""
        for test, p in difference.corrected.items():
            if p is not None and p < self.settings.alpha:
                marks += MARKS[test]
        return marks


def _p_text(p: float | None) -> str:
    if p is None:
        return "-"
    return f"{p:.4g}"


def compare(
    evaluations: Mapping[str, Evaluation], baseline: str, settings: ComparisonOptions | None = None
) -> Comparison:
    """Compare every other run with ``baseline`` in each measure that is a mean (totals are not compared).

    Holm's correction is over the compared runs, within a measure and a test. Raises :class:`UsageError` if there is no
    other run or no common query.
    """
    settings = settings or ComparisonOptions()
    run_names = [name for name in evaluations if name != baseline]
    if not run_names:
        raise UsageError(f"there is no run to compare with {baseline}; name another run")
    measures = [str(measure) for measure in evaluations[baseline].measures if not measure.total]
    runs = {}
    for name in run_names:
        runs[name] = _differences(evaluations, baseline, name, measures, settings)
    for measure in measures:
        for test in settings.tests:
            corrected = holm([runs[name][measure].p[test] for name in run_names])
            for name, p in zip(run_names, corrected, strict=True):
                runs[name][measure].corrected[test] = p
    return Comparison(baseline, settings, runs)


def mean_intervals(
    evaluation: Evaluation, settings: ComparisonOptions
) -> dict[str, Interval | None]:
    """Measure -> bootstrap interval of its mean over the evaluated queries."""
    measures = [str(measure) for measure in evaluation.measures if not measure.total]
    values = _values(evaluation, sorted(evaluation.per_query), measures)
    intervals = bootstrap_intervals(values, settings.level, BOOTSTRAPS, settings.seed)
    return dict(zip(measures, intervals, strict=True))


def _differences(
    evaluations: Mapping[str, Evaluation],
    baseline: str,
    name: str,
    measures: list[str],
    settings: ComparisonOptions,
) -> dict[str, Difference]:
    """Measure -> difference of the run ``name`` from the baseline, not yet corrected."""
    base = evaluations[baseline]
    run = evaluations[name]
    # Sorted, because resamples depend on the order of the queries, which the files must not determine.
    qids = sorted(base.per_query.keys() & run.per_query.keys())
    if not qids:
        raise UsageError(
            f"{baseline} and {name} have no query in common; evaluate with complete=True"
        )
    if not measures:
        return {}
    before = _values(base, qids, measures)
    after = _values(run, qids, measures)
    # Rounding errors are ties: the tests must not count them as differences.
    differences = np.where(np.abs(after - before) <= TIE, 0.0, after - before)
    intervals = bootstrap_intervals(differences, settings.level, BOOTSTRAPS, settings.seed)
    permutations: list[Permutation | None] = [None] * len(measures)
    if "permutation" in settings.tests:
        permutations = [*permutation_tests(differences, settings.resamples, settings.seed)]

    by_measure = {}
    for column, measure in enumerate(measures):
        permutation = permutations[column]
        p: dict[str, float | None] = {}
        for test in settings.tests:
            if test == "t":
                p[test] = t_test(differences[:, column])
            else:
                p[test] = permutation.p if permutation else None
        rows = zip(qids, before[:, column].tolist(), after[:, column].tolist(), strict=True)
        by_measure[measure] = Difference(
            changes=tuple(QueryChange(*row) for row in rows),
            mean=float(differences[:, column].mean()),
            interval=intervals[column],
            p=p,
            corrected={},
            permutation=permutation,
        )
    return by_measure


def _values(evaluation: Evaluation, qids: Sequence[str], measures: Sequence[str]) -> np.ndarray:
    """(queries, measures) float64."""
    rows = []
    for qid in qids:
        query_values = evaluation.per_query[qid]
        rows.append([query_values[measure] for measure in measures])
    # Without queries, the array would have one axis.
    return np.array(rows, np.float64).reshape(len(qids), len(measures))
