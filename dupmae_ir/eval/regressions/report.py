"""Results: terminal lines, JSON, and one HTML page."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dupmae_ir.collections import mean_over
from dupmae_ir.console import table
from dupmae_ir.eval.regressions.cases import Case, Mean, Regression
from dupmae_ir.eval.regressions.execute import Result
from dupmae_ir.eval.regressions.verdict import (
    ACCEPTED,
    PAPER,
    SIDES,
    CaseVerdict,
    Status,
    compare_means,
    compare_printed,
    overall,
)
from dupmae_ir.eval.regressions.workspace import describe
from dupmae_ir.eval.reports.html import render

NOT_HERE = "not run here"
SIDE_HEADS = ("against the paper", "against accepted")
FAILED, PAPER_FAILED = 1, 3
"""Exit statuses: an accepted value, a check or a requirement failed; only comparisons with papers failed."""
COLOURS = {
    Status.OK: "c2",
    Status.OKISH: "c2",
    Status.BETTER: "c0",
    Status.STALE: "c4",
    Status.FAIL: "c1",
}
LEGEND = (
    "OK: equal to the accepted value, or to the digits printed in the paper",
    "OKISH: within the tolerance: two training seeds, or the 95 % bootstrap interval over queries",
    "BETTER: higher by more than that; does not pass until accepted",
    "FAIL: lower by more than that, other inputs than the accepted ones, or an index or a run that fails its checks",
    "STALE: the result on disk is of other code, settings or libraries",
    "SKIP: not run here, or not available here, with the reason",
)


@dataclass(frozen=True)
class JudgedRow:
    """What was measured with its verdicts."""

    verdicts: Sequence[CaseVerdict]

    @property
    def status(self) -> Status:
        """The most urgent of its verdicts."""
        return overall(self.verdicts) or Status.SKIP

    @property
    def failures(self) -> list[CaseVerdict]:
        """The verdicts that fail, which somebody must look at."""
        return [v for v in self.verdicts if not v.status.passes and not self.is_settled(v)]

    @property
    def passes(self) -> bool:
        """Whether no verdict fails."""
        return not self.failures

    def is_settled(self, verdict: CaseVerdict) -> bool:
        """Whether a verdict that does not pass fails nothing."""
        raise NotImplementedError

    def reasons(self, measure: str) -> str:
        """Why the measure has its statuses."""
        return "; ".join(
            dict.fromkeys(
                v.reason for v in self.verdicts if v.measure in ("", measure) and v.reason
            )
        )


@dataclass(frozen=True)
class CaseRow(JudgedRow):
    """A case with its result and verdicts."""

    case: Case
    result: Result | None
    accepted: Mapping[str, Any]
    commands: Callable[[], list[str]]  #: its commands as lines to type
    origin: str  #: the model and where it comes from

    @property
    def id(self) -> str:
        """``REGRESSION/CASE``."""
        return self.case.id

    def is_settled(self, verdict: CaseVerdict) -> bool:
        """A value above the paper's passes once it is accepted."""
        accepted = {
            v.measure
            for v in self.verdicts
            if v.against == ACCEPTED and v.measure and v.status.passes
        }
        return (
            verdict.against == PAPER
            and verdict.status is Status.BETTER
            and verdict.measure in accepted
        )

    def verdict(self, measure: str, against: str) -> CaseVerdict | None:
        """The verdict on a measure against the paper or the accepted value; None if the two are not compared."""
        found = (v for v in self.verdicts if v.measure == measure and v.against == against)
        compared = (
            measure in self.case.paper and self.case.compare
            if against == PAPER
            else bool(self.accepted)
        )
        of_case = (v for v in self.verdicts if not v.measure and v.against in ("", against))
        return next(found, None) or next(
            (v for v in of_case if compared or not v.status.passes), None
        )

    def reasons(self, measure: str) -> str:
        """Why the measure has its statuses."""
        other = bool(self.case.paper.get(measure)) and not self.case.compare
        note = "the paper's number belongs to other weights" if other else ""
        return "; ".join(filter(None, [super().reasons(measure), note]))

    def measured(self, measure: str) -> float | None:
        """The value of the result; None without one, and for a stand-in."""
        return self.result.values.get(measure) if self.result and not self.result.stand_in else None

    @property
    def counts(self) -> bool:
        """Whether its values may enter a mean: of the row's own model, current, and every check passed."""
        sound = all(v.measure or v.status.passes for v in self.verdicts)
        return sound and self.result is not None and not self.result.given


@dataclass(frozen=True)
class MeanRow(JudgedRow):
    """A printed mean over collections, with the measured one; ``missing``: collections without a value."""

    regression: str
    mean: Mean
    values: Mapping[str, float | None]
    missing: Sequence[str]

    @property
    def id(self) -> str:
        """``REGRESSION/mean:NAME``."""
        return f"{self.regression}/mean:{self.mean.name}"

    def is_settled(self, verdict: CaseVerdict) -> bool:
        """BETTER is no failure: the collections behind the mean must be accepted, not the mean."""
        return verdict.status is Status.BETTER

    def verdict(self, measure: str, against: str = PAPER) -> CaseVerdict | None:
        """The verdict on a measure's mean against the paper or the accepted values; None if it is not compared."""
        return next(
            (v for v in self.verdicts if v.measure in ("", measure) and v.against in ("", against)),
            None,
        )


@dataclass(frozen=True)
class JudgedCases:
    """The selected cases and the means over collections, with their verdicts."""

    rows: Sequence[CaseRow]
    means: Sequence[MeanRow] = ()

    @property
    def exit_status(self) -> int:
        """0 if everything passes, :data:`PAPER_FAILED` if only comparisons with papers fail, else :data:`FAILED`."""
        failures = [v for row in (*self.rows, *self.means) for v in row.failures]
        if not failures:
            return 0
        return PAPER_FAILED if all(v.against == PAPER for v in failures) else FAILED

    @property
    def summary(self) -> str:
        """``12 cases: 9 OK, 3 SKIP; 2 means: 2 OK``."""
        parts = [_counted("case", [r.status for r in self.rows])]
        if self.means:
            parts.append(_counted("mean", [m.status for m in self.means]))
        return "; ".join(parts)

    def json(self) -> str:
        """Everything: ``summary``, ``passed``, ``cases``, ``means``."""
        cases = [
            {
                "case": case_dict(r.case),
                "result": asdict(r.result) if r.result else None,
                "accepted": r.accepted,
                "commands": r.commands(),
                **_judgement(r),
            }
            for r in self.rows
        ]
        averages = [
            {
                "regression": m.regression,
                **{k: v for k, v in asdict(m.mean).items() if k in ("name", "group", "paper")},
                "values": m.values,
                "missing": m.missing,
                "id": m.id,
                **_judgement(m),
            }
            for m in self.means
        ]
        counts = {f"against_{side}": words for side, words in side_counts(self.rows).items()}
        status = {"passed": self.exit_status == 0, "exit_status": self.exit_status}
        everything = {
            "summary": self.summary,
            **counts,
            **status,
            "cases": cases,
            "means": averages,
        }
        return json.dumps(everything, indent=2, ensure_ascii=False)


def _judgement(row: JudgedRow) -> Mapping[str, object]:
    sides = {f"against_{side}": overall(row.verdicts, side) for side in SIDES}
    return {
        "status": row.status,
        "passes": row.passes,
        **sides,
        "verdicts": [asdict(v) for v in row.verdicts],
    }


def means(regression: Regression, rows: Iterable[CaseRow]) -> list[MeanRow]:
    """The printed means beside those of this run, judged; None if a collection of the group has no sound value."""
    rows = list(rows)
    mean_rows = []
    for mean in regression.means:
        values: dict[str, float | None] = {}
        missing: Sequence[str] = ()
        for measure in mean.paper:
            known = {
                r.case.collection: v
                for r in rows
                if r.counts and (v := r.measured(measure)) is not None
            }
            values[measure], missing = mean_over(mean.group, known)
        names = ", ".join(missing[:3]) + (", ..." if missing[3:] else "")
        skipped = f"{len(missing)} collections without a value of this run and model: {names}"
        verdicts = [
            CaseVerdict(Status.SKIP, measure, against=PAPER, reason=skipped)
            if value is None
            else compare_printed(mean.paper[measure], value, mean.tolerance, measure)
            for measure, value in values.items()
        ]
        verdicts += _against_accepted(mean, values, rows)
        mean_rows.append(MeanRow(verdicts, regression.name, mean, values, missing))
    return mean_rows


def _against_accepted(
    mean: Mean, values: Mapping[str, float | None], rows: Sequence[CaseRow]
) -> Iterator[CaseVerdict]:
    """The mean beside that of the accepted values, if every collection has one.

    Its tolerance is the mean of the collections' tolerances, because one training changes all of them together.
    """
    for measure, value in values.items():
        verdicts = {r.case.collection: v for r in rows if (v := r.verdict(measure, ACCEPTED))}
        accepted = {name: v.expected for name, v in verdicts.items() if v.expected is not None}
        expected, _ = mean_over(mean.group, accepted)
        tolerance, _ = mean_over(
            mean.group, {name: verdicts[name].tolerance or 0.0 for name in accepted}
        )
        if value is not None and expected is not None and tolerance is not None:
            yield compare_means(value, expected, tolerance, measure)


def row_lines(row: CaseRow) -> list[str]:
    """The lines printed when a case is done: its status, its values and the reasons."""
    head = f"{row.status:<6} {row.case.id}"
    if row.result and row.result.reused:
        head += f"  (measured {row.result.date}, nothing changed since)"
    lines = [head, *_verdict_lines(row.verdicts)]
    if row.result and row.case.paper and not row.case.compare:
        printed = ", ".join(f"{m} {v}" for m, v in row.case.paper.items())
        lines.append(f"       not compared with the paper ({printed}), which has other weights")
    return lines


def mean_lines(row: MeanRow) -> list[str]:
    """The lines printed for a mean: its status, its value and the reasons."""
    return [f"{row.status:<6} {row.id}", *_verdict_lines(row.verdicts)]


def _verdict_lines(verdicts: Iterable[CaseVerdict]) -> list[str]:
    lines = []
    for v in verdicts:
        value = f"{v.measure} {v.value:.4f}" if v.value is not None else ""
        expected = f"{v.against} {v.expected:.4f}" if v.expected is not None else ""
        tolerance = f"+-{v.tolerance:.4f}" if v.tolerance else ""
        words = "  ".join(
            w
            for w in (f"{v.status:<6}" if value else "", value, expected, tolerance, v.reason)
            if w
        )
        lines.append(f"       {words}")
    return lines


def _counted(noun: str, statuses: Sequence[Status]) -> str:
    counts = Counter(statuses)
    listed = ", ".join(f"{counts[s]} {s}" for s in reversed(Status) if counts[s])
    return f"{len(statuses)} {noun}{'s' if len(statuses) != 1 else ''}: {listed}"


def side_counts(rows: Sequence[CaseRow]) -> dict[str, str]:
    """``{"paper": "3 OK, 1 FAIL", "accepted": "4 OK"}``: comparisons of single measures by side and status."""
    sides = {}
    for side in SIDES:
        counts = Counter(
            v.status for r in rows for v in r.verdicts if v.against == side and v.measure
        )
        sides[side] = (
            ", ".join(f"{counts[s]} {s}" for s in reversed(Status) if counts[s])
            or "nothing compared"
        )
    return sides


def as_list(rows: Sequence[CaseRow]) -> str:
    """A table with one line per case: what it measures, the paper's number, the accepted value."""
    body = [
        [
            r.case.id,
            r.case.tier,
            r.case.collection,
            r.case.test,
            r.case.mode,
            _first(r.case.paper),
            _first({m: f"{v:.4f}" for m, v in r.accepted.get("values", {}).items()}) or NOT_HERE,
        ]
        for r in rows
    ]
    return table(body, ["case", "tier", "collection", "test", "mode", "paper", "measured"])


def as_text(judged: JudgedCases) -> str:
    """What a run prints: the lines of each case and mean, and the summary."""
    cases = (line for row in judged.rows for line in row_lines(row))
    return "\n".join(
        [*cases, *(line for row in judged.means for line in mean_lines(row)), judged.summary]
    )


def case_dict(case: Case) -> Mapping[str, Any]:
    """The case's fields, its id and the digest of its configuration."""
    return {**asdict(case), "id": case.id, "configuration": case.configuration}


def environment_line(row: CaseRow) -> str:
    """When and where the accepted values were measured; empty if there are none."""
    environment = row.accepted.get("environment")
    return f"{row.accepted['date']}: {describe(environment)}" if environment else ""


def _first(values: Mapping[str, str]) -> str:
    """The first measure with its value, and the number of further ones."""
    shown = [f"{m} {v}" for m, v in values.items()]
    return shown[0] + (f" +{len(shown) - 1}" if shown[1:] else "") if shown else ""


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
    def measured(self) -> bool:
        """Whether any case has a result or an accepted value."""
        return any(row.result or row.accepted for row in self.rows)

    @property
    def statuses(self) -> dict[Status, int]:
        """Cases by status, most urgent first."""
        counts = Counter(row.status for row in self.rows)
        return {status: counts[status] for status in Status if counts[status]}


def as_html(judged: JudgedCases, groups: Sequence[RegressionRows]) -> str:
    """The page."""
    counts = side_counts(judged.rows).values()
    sides = ", ".join(f"{head}: {words}" for head, words in zip(SIDE_HEADS, counts, strict=True))
    return render(
        "regressions.html",
        title="Regressions of dupmae_ir",
        summary=f"{judged.summary}; {sides}",
        legend=LEGEND,
        groups=groups,
        means=judged.means,
        heads=list(SIDE_HEADS),
        colours=COLOURS,
        not_here=NOT_HERE,
        environment_line=environment_line,
    )
