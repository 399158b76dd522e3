"""Comparison of runs with a baseline, per measure and per query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
        return sum(c.difference > TIE for c in self.changes)

    @property
    def losses(self) -> int:
        """Queries with a lower value than the baseline's."""
        return sum(c.difference < -TIE for c in self.changes)

    @property
    def ties(self) -> int:
        """Queries with the same value, up to rounding."""
        return len(self.changes) - self.wins - self.losses

    def moved(self, most: int) -> list[QueryChange]:
        """The queries with the largest differences in either direction, without ties; equal ones by id."""
        changed = [c for c in self.changes if abs(c.difference) > TIE]
        return sorted(changed, key=lambda c: (-round(abs(c.difference), 12), c.qid))[:most]


@dataclass(frozen=True)
class Comparison:
    """All other runs compared with the baseline."""

    baseline: str
    settings: ComparisonOptions
    runs: dict[str, dict[str, Difference]]  #: run -> measure -> difference

    @property
    def measures(self) -> list[str]:
        """The compared measures, in the order of the table."""
        return list(next(iter(self.runs.values())))

    def rows(self) -> list[tuple[str, ...]]:
        """Run, measure, mean difference from the baseline with its marks, and the corrected p of each test."""
        found = [
            (run, measure, change)
            for run, row in self.runs.items()
            for measure, change in row.items()
        ]
        return [
            (
                run,
                measure,
                f"{change.mean:+.4f}{self.marks(run, measure)}",
                *map(_p_text, change.corrected.values()),
            )
            for run, measure, change in found
        ]

    def __repr__(self) -> str:
        found = ", ".join(f"{run} {measure} {change}" for run, measure, change, *_ in self.rows())
        return f"Comparison(with {self.baseline}: {found})"

    def _repr_html_(self) -> str:
        return tables.html(
            ("run", "measure", f"from {self.baseline}", *(f"p ({t})" for t in self.settings.tests)),
            self.rows(),
        )

    def marks(self, run: str, measure: str) -> str:
        """† and ‡ for the tests that find a significant difference from the baseline in this measure."""
        found = self.runs.get(run, {}).get(measure)
        if found is None:
            return ""
        significant = (
            t for t, p in found.corrected.items() if p is not None and p < self.settings.alpha
        )
        return "".join(MARKS[test] for test in significant)


def _p_text(p: float | None) -> str:
    return "-" if p is None else f"{p:.4g}"


def compare(
    evaluations: Mapping[str, Evaluation], baseline: str, settings: ComparisonOptions | None = None
) -> Comparison:
    """Compare every other run with ``baseline`` in each measure that is a mean (totals are not compared).

    Holm's correction is over the compared runs, within a measure and a test. Raises :class:`UsageError` if there is no
    other run or no common query.
    """
    settings = settings or ComparisonOptions()
    others = [name for name in evaluations if name != baseline]
    if not others:
        raise UsageError(f"there is no run to compare with {baseline}; name another run")
    measures = [str(m) for m in evaluations[baseline].measures if not m.total]
    found = {name: _apart(evaluations, baseline, name, measures, settings) for name in others}
    for measure in measures:
        for test in settings.tests:
            corrected = holm([found[name][measure].p[test] for name in others])
            for name, p in zip(others, corrected, strict=True):
                found[name][measure].corrected[test] = p
    return Comparison(baseline, settings, found)


def mean_intervals(
    evaluation: Evaluation, settings: ComparisonOptions
) -> dict[str, Interval | None]:
    """Measure -> bootstrap interval of its mean over the evaluated queries."""
    measures = [str(m) for m in evaluation.measures if not m.total]
    values = _values(evaluation, sorted(evaluation.per_query), measures)
    return dict(
        zip(
            measures,
            bootstrap_intervals(values, settings.level, BOOTSTRAPS, settings.seed),
            strict=True,
        )
    )


def _apart(
    evaluations: Mapping[str, Evaluation],
    baseline: str,
    name: str,
    measures: list[str],
    settings: ComparisonOptions,
) -> dict[str, Difference]:
    """Measure -> difference, not yet corrected. Queries are sorted by id, so the order of files has no effect."""
    base, run = evaluations[baseline], evaluations[name]
    qids = sorted(base.per_query.keys() & run.per_query.keys())
    if not qids:
        raise UsageError(
            f"{baseline} and {name} have no query in common; evaluate with complete=True"
        )
    if not measures:
        return {}
    before, after = _values(base, qids, measures), _values(run, qids, measures)
    differences = np.where(np.abs(after - before) <= TIE, 0.0, after - before)
    intervals = bootstrap_intervals(differences, settings.level, BOOTSTRAPS, settings.seed)
    permutations: list[Permutation | None] = [None] * len(measures)
    if "permutation" in settings.tests:
        permutations = [*permutation_tests(differences, settings.resamples, settings.seed)]
    found = {}
    for column, measure in enumerate(measures):
        permutation = permutations[column]
        p = {
            "t": t_test(differences[:, column]) if "t" in settings.tests else None,
            "permutation": permutation.p if permutation else None,
        }
        rows = zip(qids, before[:, column].tolist(), after[:, column].tolist(), strict=True)
        found[measure] = Difference(
            changes=tuple(QueryChange(*row) for row in rows),
            mean=float(differences[:, column].mean()),
            interval=intervals[column],
            p={test: p[test] for test in settings.tests},
            corrected={},
            permutation=permutation,
        )
    return found


def _values(evaluation: Evaluation, qids: Sequence[str], measures: Sequence[str]) -> np.ndarray:
    """(queries, measures) float64."""
    per_query = evaluation.per_query
    return np.array([[per_query[q][m] for m in measures] for q in qids], np.float64).reshape(
        len(qids), len(measures)
    )
