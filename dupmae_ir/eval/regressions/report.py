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
FAILED = 1
"""Exit status if an accepted value, a check or a requirement failed."""
PAPER_FAILED = 3
"""Exit status if only comparisons with papers failed."""
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
    """A measured case or mean with its verdicts."""

    verdicts: Sequence[CaseVerdict]

    @property
    def status(self) -> Status:
        """The most urgent of its verdicts."""
        return overall(self.verdicts) or Status.SKIP

    @property
    def failures(self) -> list[CaseVerdict]:
        """The verdicts that fail, which somebody must look at."""
        failures = []
        for verdict in self.verdicts:
            if not verdict.status.passes and not self.is_settled(verdict):
                failures.append(verdict)
        return failures

    @property
    def passes(self) -> bool:
        """Whether no verdict fails."""
        return not self.failures

    def is_settled(self, verdict: CaseVerdict) -> bool:
        """Whether a verdict that does not pass fails nothing."""
        raise NotImplementedError

    def reasons(self, measure: str) -> str:
        """Why the measure has its statuses."""
        reasons = []
        for verdict in self.verdicts:
            if verdict.measure in ("", measure) and verdict.reason:
                reasons.append(verdict.reason)
        # The two comparisons of a measure may have the same reason.
        return "; ".join(dict.fromkeys(reasons))


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
        if verdict.against != PAPER or verdict.status is not Status.BETTER:
            return False
        accepted_measures = set()
        for candidate in self.verdicts:
            if candidate.against == ACCEPTED and candidate.measure and candidate.status.passes:
                accepted_measures.add(candidate.measure)
        return verdict.measure in accepted_measures

    def verdict(self, measure: str, against: str) -> CaseVerdict | None:
        """The verdict on a measure against the paper or the accepted value; None if the two are not compared."""
        for verdict in self.verdicts:
            if verdict.measure == measure and verdict.against == against:
                return verdict
        if against == PAPER:
            compared = measure in self.case.paper and self.case.compare
        else:
            compared = bool(self.accepted)
        # Otherwise a verdict on the case is one on each of its compared measures; a failure is one on all measures.
        for verdict in self.verdicts:
            of_case = not verdict.measure and verdict.against in ("", against)
            if of_case and (compared or not verdict.status.passes):
                return verdict
        return None

    def reasons(self, measure: str) -> str:
        """Why the measure has its statuses."""
        reasons = super().reasons(measure)
        if self.case.compare or not self.case.paper.get(measure):
            return reasons
        note = "the paper's number belongs to other weights"
        return f"{reasons}; {note}" if reasons else note

    def measured(self, measure: str) -> float | None:
        """The value of the result; None without one, and for a stand-in."""
        if self.result is None or self.result.stand_in:
            return None
        return self.result.values.get(measure)

    @property
    def counts(self) -> bool:
        """Whether its values may enter a mean: they are current, every check passed, and no model was given."""
        sound = all(verdict.measure or verdict.status.passes for verdict in self.verdicts)
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
        for verdict in self.verdicts:
            if verdict.measure in ("", measure) and verdict.against in ("", against):
                return verdict
        return None


@dataclass(frozen=True)
class JudgedCases:
    """The selected cases and the means over collections, with their verdicts."""

    rows: Sequence[CaseRow]
    means: Sequence[MeanRow] = ()

    @property
    def exit_status(self) -> int:
        """0 if everything passes, :data:`PAPER_FAILED` if only comparisons with papers fail, else :data:`FAILED`."""
        failures: list[CaseVerdict] = []
        for row in (*self.rows, *self.means):
            failures += row.failures
        if not failures:
            return 0
        if all(verdict.against == PAPER for verdict in failures):
            return PAPER_FAILED
        return FAILED

    @property
    def summary(self) -> str:
        """``12 cases: 9 OK, 3 SKIP; 2 means: 2 OK``."""
        parts = [_count_statuses("case", self.rows)]
        if self.means:
            parts.append(_count_statuses("mean", self.means))
        return "; ".join(parts)

    def listing(self) -> str:
        """A table with one line per case: what it measures, the paper's number, the accepted value."""
        return as_list(self.rows)

    def cases_json(self) -> str:
        """The cases and their commands."""
        cases = [{**case_dict(row.case), "commands": row.commands()} for row in self.rows]
        return json.dumps({"cases": cases}, ensure_ascii=False)

    def json(self) -> str:
        """Everything: ``summary``, ``passed``, ``cases``, ``means``."""
        everything: dict[str, object] = {"summary": self.summary}
        for side, words in side_counts(self.rows).items():
            everything[f"against_{side}"] = words
        everything["passed"] = self.exit_status == 0
        everything["exit_status"] = self.exit_status
        everything["cases"] = [_case_json(row) for row in self.rows]
        everything["means"] = [_mean_json(row) for row in self.means]
        return json.dumps(everything, indent=2, ensure_ascii=False)


def _case_json(row: CaseRow) -> Mapping[str, object]:
    return {
        "case": case_dict(row.case),
        "result": asdict(row.result) if row.result else None,
        "accepted": row.accepted,
        "commands": row.commands(),
        **_judgement_json(row),
    }


def _mean_json(row: MeanRow) -> Mapping[str, object]:
    return {
        "regression": row.regression,
        "name": row.mean.name,
        "group": row.mean.group,
        "paper": row.mean.paper,
        "values": row.values,
        "missing": row.missing,
        "id": row.id,
        **_judgement_json(row),
    }


def _judgement_json(row: JudgedRow) -> Mapping[str, object]:
    judgement: dict[str, object] = {"status": row.status, "passes": row.passes}
    for side in SIDES:
        judgement[f"against_{side}"] = overall(row.verdicts, side)
    judgement["verdicts"] = [asdict(verdict) for verdict in row.verdicts]
    return judgement


def means(regression: Regression, rows: Iterable[CaseRow]) -> list[MeanRow]:
    """The printed means with those of this run, judged; None if a collection of the group has no sound value."""
    rows = list(rows)
    mean_rows = []
    for mean in regression.means:
        values: dict[str, float | None] = {}
        missing: Sequence[str] = ()
        for measure in mean.paper:
            by_collection: dict[str, float] = {}
            for row in rows:
                value = row.measured(measure)
                if row.counts and value is not None:
                    by_collection[row.case.collection] = value
            values[measure], missing = mean_over(mean.group, by_collection)

        verdicts = _against_paper(mean, values, missing)
        verdicts += _against_accepted(mean, values, rows)
        mean_rows.append(MeanRow(verdicts, regression.name, mean, values, missing))
    return mean_rows


def _against_paper(
    mean: Mean, values: Mapping[str, float | None], missing: Sequence[str]
) -> list[CaseVerdict]:
    """The verdicts on the measured ``values`` of a mean, by measure, against those that a paper prints for it.

    A value is None if some collections, ``missing``, have none.
    """
    names = ", ".join(missing[:3])
    if len(missing) > 3:
        names += ", ..."
    skip_reason = f"{len(missing)} collections without a value of this run and model: {names}"
    verdicts = []
    for measure, value in values.items():
        if value is None:
            verdict = CaseVerdict(Status.SKIP, measure, against=PAPER, reason=skip_reason)
        else:
            verdict = compare_printed(mean.paper[measure], value, mean.tolerance, measure)
        verdicts.append(verdict)
    return verdicts


def _against_accepted(
    mean: Mean, values: Mapping[str, float | None], rows: Sequence[CaseRow]
) -> Iterator[CaseVerdict]:
    """The verdicts on a mean against the mean of the accepted values, if every collection has one.

    Its tolerance is the mean of the collections' tolerances, because one training changes all of them together.
    """
    for measure, value in values.items():
        verdicts: dict[str, CaseVerdict] = {}
        for row in rows:
            verdict = row.verdict(measure, ACCEPTED)
            if verdict:
                verdicts[row.case.collection] = verdict
        accepted: dict[str, float] = {}
        tolerances: dict[str, float] = {}
        for collection, verdict in verdicts.items():
            if verdict.expected is not None:
                accepted[collection] = verdict.expected
                tolerances[collection] = verdict.tolerance or 0.0
        expected, _ = mean_over(mean.group, accepted)
        tolerance, _ = mean_over(mean.group, tolerances)
        if value is not None and expected is not None and tolerance is not None:
            yield compare_means(value, expected, tolerance, measure)


def row_lines(row: CaseRow) -> list[str]:
    """The lines printed when a case is done: its status, its values and the reasons."""
    head = f"{row.status:<6} {row.case.id}"
    if row.result and row.result.reused:
        since = "nothing changed since"
        if row.result.index_damage:
            since = f"before its index was damaged: {row.result.index_damage}"
        head += f"  (measured {row.result.date}, {since})"
    lines = [head, *_verdict_lines(row.verdicts)]
    if row.result and row.case.paper and not row.case.compare:
        numbers = (f"{measure} {number}" for measure, number in row.case.paper.items())
        printed = ", ".join(numbers)
        lines.append(f"       not compared with the paper ({printed}), which has other weights")
    return lines


def mean_lines(row: MeanRow) -> list[str]:
    """The lines printed for a mean: its status, its value and the reasons."""
    return [f"{row.status:<6} {row.id}", *_verdict_lines(row.verdicts)]


def _verdict_lines(verdicts: Iterable[CaseVerdict]) -> list[str]:
    """One line for each verdict: status, value, expected value, tolerance and reason, as far as it has them."""
    lines = []
    for verdict in verdicts:
        parts = []
        if verdict.value is not None:
            parts.append(f"{verdict.status:<6}")
            parts.append(f"{verdict.measure} {verdict.value:.4f}")
        if verdict.expected is not None:
            parts.append(f"{verdict.against} {verdict.expected:.4f}")
        if verdict.tolerance:
            parts.append(f"+-{verdict.tolerance:.4f}")
        if verdict.reason:
            parts.append(verdict.reason)
        lines.append("       " + "  ".join(parts))
    return lines


def _count_statuses(noun: str, rows: Sequence[JudgedRow]) -> str:
    """``3 cases: 2 OK, 1 FAIL``."""
    if len(rows) != 1:
        noun += "s"
    return f"{len(rows)} {noun}: {_listed(Counter(row.status for row in rows))}"


def _listed(counts: Counter[Status]) -> str:
    """``2 OK, 1 FAIL``: the least urgent status first."""
    return ", ".join(f"{counts[status]} {status}" for status in reversed(Status) if counts[status])


def side_counts(rows: Sequence[CaseRow]) -> dict[str, str]:
    """``{"paper": "3 OK, 1 FAIL", "accepted": "4 OK"}``: comparisons of single measures by side and status."""
    counts: dict[str, Counter[Status]] = {side: Counter() for side in SIDES}
    for row in rows:
        for verdict in row.verdicts:
            if verdict.measure and verdict.against in counts:
                counts[verdict.against][verdict.status] += 1
    return {side: _listed(counts[side]) or "nothing compared" for side in SIDES}


def as_list(rows: Sequence[CaseRow]) -> str:
    """See :meth:`JudgedCases.listing`."""
    body = []
    for row in rows:
        case = row.case
        accepted = {}
        for measure, value in row.accepted.get("values", {}).items():
            accepted[measure] = f"{value:.4f}"
        body.append(
            [
                case.id,
                case.tier,
                case.collection,
                case.test,
                case.mode,
                _first(case.paper),
                _first(accepted) or NOT_HERE,
            ]
        )
    return table(body, ["case", "tier", "collection", "test", "mode", "paper", "measured"])


def as_text(judged: JudgedCases) -> str:
    """What a run prints: the lines of each case and mean, and the summary."""
    lines = []
    for row in judged.rows:
        lines += row_lines(row)
    for mean in judged.means:
        lines += mean_lines(mean)
    lines.append(judged.summary)
    return "\n".join(lines)


def case_dict(case: Case) -> Mapping[str, Any]:
    """The case's fields, its id and the digest of its configuration."""
    return {**asdict(case), "id": case.id, "configuration": case.configuration}


def environment_line(row: CaseRow) -> str:
    """When and where the accepted values were measured; empty if there are none."""
    environment = row.accepted.get("environment")
    if not environment:
        return ""
    return f"{row.accepted['date']}: {describe(environment)}"


def _first(values: Mapping[str, str]) -> str:
    """The first measure with its value, and the number of further ones."""
    if not values:
        return ""
    measure, value = next(iter(values.items()))
    first = f"{measure} {value}"
    if len(values) > 1:
        first += f" +{len(values) - 1}"
    return first


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
    heads_and_counts = zip(SIDE_HEADS, counts, strict=True)
    sides = ", ".join(f"{head}: {words}" for head, words in heads_and_counts)
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
