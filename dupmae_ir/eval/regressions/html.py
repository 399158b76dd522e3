"""The results as one HTML page: an overview, tables of values, and the commands of every case that was run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dupmae_ir.eval.regressions.report import (
    NOT_HERE,
    SIDE_HEADS,
    CaseRow,
    MeanRow,
    environment_line,
    side_counts,
    summarize,
)
from dupmae_ir.eval.regressions.verdict import Status
from dupmae_ir.eval.reports.page import render

COLOURS = {Status.OK: "c2", Status.OKISH: "c2", Status.BETTER: "c0", Status.STALE: "c4", Status.FAIL: "c1"}
LEGEND = (
    "OK: equal to the accepted value, or to the digits printed in the paper",
    "OKISH: within the tolerance: two training seeds, or the 95 % bootstrap interval over queries",
    "BETTER: higher by more than that; does not pass until accepted",
    "FAIL: lower by more than that, other inputs than the accepted ones, or an index or a run that fails its checks",
    "STALE: the result on disk is of other code, settings or libraries",
    "SKIP: not run here, or not available here, with the reason",
)


class MovedQueries(NamedTuple):
    """The queries of a case whose values differ most from the accepted ones."""

    rows: list[list[str]]  #: id, text if the topics are at hand, difference
    command: str  #: shows them side by side; empty for a case that is not hybrid


@dataclass(frozen=True)
class RegressionRows:
    """The cases of one regression."""

    title: str
    rows: Sequence[CaseRow]

    @property
    def name(self) -> str:
        """The regression's name."""
        return self.rows[0].case.regression

    @property
    def printed(self) -> int:
        """How many numbers of papers it has."""
        return sum(len(row.case.paper) for row in self.rows)

    @property
    def measured(self) -> bool:
        """Whether any case has a result or an accepted value."""
        return any(row.result or row.accepted for row in self.rows)

    @property
    def statuses(self) -> dict[Status, int]:
        """Cases by status, most urgent first."""
        counts = Counter(row.status for row in self.rows)
        return {status: counts[status] for status in Status if counts[status]}

    @property
    def sources(self) -> list[str]:
        """Where the numbers are printed."""
        return list(dict.fromkeys(row.case.source for row in self.rows if row.case.source))


def as_html(groups: Sequence[RegressionRows], means: Sequence[MeanRow], moved: Mapping[str, MovedQueries]) -> str:
    """The page. ``moved``: case id -> the queries that changed most."""
    every = [row for group in groups for row in group.rows]
    sides = ", ".join(f"{head}: {words}" for head, words in zip(SIDE_HEADS, side_counts(every).values(), strict=True))
    return render(
        "regressions.html",
        title="Regressions of dupmae_ir",
        summary=f"{summarize(every, means)}; {sides}",
        legend=LEGEND,
        groups=groups,
        means=means,
        moved=moved,
        heads=list(SIDE_HEADS),
        colours=COLOURS,
        not_here=NOT_HERE,
        environment_line=environment_line,
    )
