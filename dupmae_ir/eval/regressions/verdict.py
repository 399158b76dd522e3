"""Compares the values of a result with the expected ones: OK, OKISH, BETTER, FAIL, SKIP or STALE.

Accepted values are compared query by query: the tolerance is the 95 % bootstrap interval of the mean difference, so
FAIL means a difference beyond noise. Papers print no values per query: the tolerance is the case's own, or the
bootstrap interval of the measured mean, plus half a unit of the printed number's last digit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from dupmae_ir.eval.regressions.cases import Case
from dupmae_ir.eval.regressions.execute import Result
from dupmae_ir.eval.significance import bootstrap_intervals

LEVEL = 0.95
SAME = 1e-12
"""Largest difference between equal means, which may be rounded differently."""
SHOWN = 5
"""Queries to name, largest differences first."""


class Status(StrEnum):
    """Status of a measure or a case, most urgent first."""

    FAIL = "FAIL"
    STALE = "STALE"
    BETTER = "BETTER"
    SKIP = "SKIP"
    OKISH = "OKISH"
    OK = "OK"

    @property
    def passes(self) -> bool:
        """False if somebody must look at it. BETTER does not pass until the new value is accepted."""
        return self in (Status.OK, Status.OKISH, Status.SKIP)


@dataclass(frozen=True)
class Verdict:
    """The status of one measure, or of the whole case if ``measure`` is empty."""

    status: Status
    measure: str = ""
    value: float | None = None
    expected: float | None = None
    against: str = ""  #: "accepted" or "paper"
    tolerance: float | None = None
    reason: str = ""


def judge(
    case: Case,
    result: Result | None,
    accepted: Mapping[str, Any],
    queries: Mapping[str, Mapping[str, float]],
    fixed: bool = False,
) -> list[Verdict]:
    """The verdicts on a result: one per measure, or one or more on the whole case.

    Args:
        case: the case.
        result: its result; None if it was not run.
        accepted: its accepted block in the TOML file.
        queries: accepted values per query: measure -> query id -> value.
        fixed: the weights are the same bytes on every machine, not trained there.
    """
    if result is None:
        reason = f"accepted {accepted['date']}; not run in this folder" if accepted else "not run here"
        return [Verdict(Status.SKIP, reason=reason)]
    if result.skipped:
        return [Verdict(Status.SKIP, reason=result.skipped)]
    if result.problems:
        return [Verdict(Status.FAIL, reason=problem) for problem in result.problems]
    if result.stand_in:
        values = ", ".join(f"{m} {v:.4f}" for m, v in result.values.items())
        reason = f"completed on a synthetic stand-in collection, whose values are not comparable: {values}"
        return [Verdict(Status.SKIP, reason=reason)]
    if accepted:
        if stale := _stale(case, result, accepted, fixed):
            return [stale]
        return [_against_accepted(case, result, accepted, queries.get(m, {}), m) for m in result.values]
    if case.compare and case.paper:
        return [_against_paper(case, result, m) for m in case.paper]
    return [Verdict(Status.SKIP, reason="measured, but there is no accepted value to compare with yet")]


def _stale(case: Case, result: Result, accepted: Mapping[str, Any], fixed: bool) -> Verdict | None:
    """A verdict if the accepted values belong to another configuration, collection or model."""
    if accepted.get("configuration") != case.configuration:
        reason = "the accepted values are for another configuration; check the new ones, then accept them"
        return Verdict(Status.STALE, reason=reason)
    if accepted.get("collection") != result.key.get("collection"):
        # The embedded collection is the interpreter's documentation, which differs between Python versions.
        status = Status.SKIP if case.collection == "demo" else Status.STALE
        return Verdict(status, reason="the accepted values are for another version of the collection")
    if fixed and accepted.get("weights") != result.key.get("weights"):
        reason = "the accepted values are for other weights; check the new ones, then accept them"
        return Verdict(Status.STALE, reason=reason)
    return None


def overall(verdicts: Iterable[Verdict]) -> Status:
    """The most urgent status."""
    order = list(Status)
    return min((v.status for v in verdicts), key=order.index)


def _against_accepted(
    case: Case, result: Result, accepted: Mapping[str, Any], then: Mapping[str, float], measure: str
) -> Verdict:
    value = result.values[measure]
    expected = accepted.get("values", {}).get(measure)
    if expected is None:
        return Verdict(Status.STALE, measure, value, reason="no value of this measure was accepted")
    same = dict(result.environment) == accepted.get("environment")
    if abs(value - expected) <= SAME:
        reason = _paper_difference(case, measure, value)
        return Verdict(Status.OK, measure, value, expected, "accepted", tolerance=0.0, reason=reason)
    if case.exact and same:
        reason = "same environment, different value" + _changed_queries(result, then, measure)
        return Verdict(Status.FAIL, measure, value, expected, "accepted", tolerance=0.0, reason=reason)
    tolerance = _paired_noise(result.per_query[measure], then)
    reason = ("same environment" if same else "different environment") + _changed_queries(result, then, measure)
    status = _classify(value - expected, tolerance)
    return Verdict(status, measure, value, expected, "accepted", tolerance=tolerance, reason=reason)


def _paper_difference(case: Case, measure: str, value: float) -> str:
    """The difference from the paper's number, in words."""
    if (printed := case.paper.get(measure)) is None:
        return ""
    return f"paper {printed} ({value - float(printed):+.4f})" + ("" if case.compare else ", with other weights")


def _against_paper(case: Case, result: Result, measure: str) -> Verdict:
    printed = case.paper[measure]
    value, expected = result.values[measure], float(printed)
    rounding = 0.5 * 10.0 ** -len(printed.partition(".")[2])
    tolerance = rounding + (_own_noise(result.per_query[measure]) if case.tolerance is None else case.tolerance)
    equal = abs(value - expected) <= rounding + SAME
    status = Status.OK if equal else _classify(value - expected, tolerance)
    return Verdict(status, measure, value, expected, "paper", tolerance)


def _classify(difference: float, tolerance: float) -> Status:
    if abs(difference) <= tolerance:
        return Status.OKISH
    return Status.BETTER if difference > 0 else Status.FAIL


def _paired_noise(now: Mapping[str, float], then: Mapping[str, float]) -> float:
    """Half the width of the 95 % bootstrap interval of the mean difference; 0 if the queries are not the same."""
    if now.keys() != then.keys():
        return 0.0
    return _half_interval(np.array([now[q] - then[q] for q in now]))


def _own_noise(values: Mapping[str, float]) -> float:
    """Half the width of the 95 % bootstrap interval of the mean."""
    return _half_interval(np.array(list(values.values())))


def _half_interval(values: np.ndarray) -> float:
    (interval,) = bootstrap_intervals(values[:, None], level=LEVEL)
    return (interval.high - interval.low) / 2 if interval else 0.0


def _changed_queries(result: Result, then: Mapping[str, float], measure: str) -> str:
    """The queries whose values changed most, in words."""
    now = result.per_query[measure]
    # Accepted values per query are stored with six digits.
    changed = [(q, now[q] - then[q]) for q in now if q in then and abs(now[q] - then[q]) > 1e-5]
    if not changed:
        return ""
    largest = sorted(changed, key=lambda item: -abs(item[1]))[:SHOWN]
    return f"; {len(changed)} queries changed, most of all {', '.join(f'{q} {d:+.3f}' for q, d in largest)}"
