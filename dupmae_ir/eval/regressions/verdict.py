"""What a result says: OK, OKISH, BETTER, FAIL, SKIP or STALE, for every measure and for the case.

Held against the value that was accepted last, with the queries paired: the tolerance is the 95 % bootstrap interval of
the mean difference, so that FAIL means outside noise. Held against a paper's number there is no value per query to pair
with: the tolerance is the case's own, or the interval of our mean, and the printed number's last digit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from dupmae_ir.eval.regressions.cases import Case
from dupmae_ir.eval.regressions.work import Result

LEVEL = 0.95
SAME = 1e-12
"""Difference of two means that were summed in the same order on the same machine."""
MOVED = 5
"""Queries named of those that moved most."""


class Status(StrEnum):
    """In the order of what a reader must know first."""

    FAIL = "FAIL"
    STALE = "STALE"
    BETTER = "BETTER"
    SKIP = "SKIP"
    OKISH = "OKISH"
    OK = "OK"

    @property
    def passes(self) -> bool:
        """False for what must be looked at. BETTER is not a pass before it was accepted."""
        return self in (Status.OK, Status.OKISH, Status.SKIP)


@dataclass(frozen=True)
class Verdict:
    """About one measure, or (``measure`` empty) about the case as a whole."""

    status: Status
    measure: str = ""
    value: float | None = None
    expected: float | None = None
    against: str = ""  #: accepted or paper
    tolerance: float | None = None
    reason: str = ""


def judge(
    case: Case,
    result: Result | None,
    accepted: Mapping[str, Any],
    queries: Mapping[str, Mapping[str, float]],
    fixed: bool = False,
) -> list[Verdict]:
    """``accepted``: the case's block in the TOML file; ``queries``: measure -> query id -> value when accepted;
    ``fixed``: the weights are the same everywhere, and not trained anew on every machine.
    """
    if result is None:
        then = f"accepted {accepted['date']}; not run in this folder" if accepted else "not run here"
        return [Verdict(Status.SKIP, reason=then)]
    if result.skipped:
        return [Verdict(Status.SKIP, reason=result.skipped)]
    if result.problems:
        return [Verdict(Status.FAIL, reason=problem) for problem in result.problems]
    if result.stand_in:
        found = ", ".join(f"{m} {v:.4f}" for m, v in result.values.items())
        reason = f"ran whole on a look-alike collection, whose numbers mean nothing: {found}"
        return [Verdict(Status.SKIP, reason=reason)]
    if accepted:
        if accepted.get("configuration") != case.configuration:
            return [Verdict(Status.STALE, reason="the accepted values are of another configuration; look, then accept")]
        if accepted.get("collection") != result.key.get("collection"):
            # The embedded collection is the interpreter's documentation, another with every version.
            status = Status.SKIP if case.collection == "demo" else Status.STALE
            return [Verdict(status, reason="the accepted values are of another edition of the collection")]
        if fixed and accepted.get("weights") != result.key.get("weights"):
            return [Verdict(Status.STALE, reason="the accepted values are of other weights; look, then accept")]
        return [_against_accepted(case, result, accepted, queries.get(m, {}), m) for m in result.values]
    if case.compare and case.paper:
        return [_against_paper(case, result, m) for m in case.paper]
    return [Verdict(Status.SKIP, reason="measured, and nothing to hold it against: no value was accepted yet")]


def overall(verdicts: Iterable[Verdict]) -> Status:
    """The status that a reader must know first."""
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
    told: dict[str, Any] = {"measure": measure, "value": value, "expected": expected, "against": "accepted"}
    if abs(value - expected) <= SAME:
        return Verdict(Status.OK, **told, tolerance=0.0, reason=_beside_paper(case, measure, value))
    if case.exact and same:
        reason = "same environment, other number" + _moved(result, then, measure)
        return Verdict(Status.FAIL, **told, tolerance=0.0, reason=reason)
    tolerance = _paired_noise(result.per_query[measure], then)
    reason = ("same environment" if same else "other environment") + _moved(result, then, measure)
    return Verdict(_side(value - expected, tolerance), **told, tolerance=tolerance, reason=reason)


def _beside_paper(case: Case, measure: str, value: float) -> str:
    """How far the paper's number is, in words."""
    if (printed := case.paper.get(measure)) is None:
        return ""
    return f"paper {printed} ({value - float(printed):+.4f})" + ("" if case.compare else ", of other weights")


def _against_paper(case: Case, result: Result, measure: str) -> Verdict:
    printed = case.paper[measure]
    value, expected = result.values[measure], float(printed)
    rounding = 0.5 * 10.0 ** -len(printed.partition(".")[2])
    tolerance = rounding + (_own_noise(result.per_query[measure]) if case.tolerance is None else case.tolerance)
    told: dict[str, Any] = {
        "measure": measure,
        "value": value,
        "expected": expected,
        "against": "paper",
        "tolerance": tolerance,
    }
    if abs(value - expected) <= rounding + SAME:
        return Verdict(Status.OK, **told)
    return Verdict(_side(value - expected, tolerance), **told)


def _side(difference: float, tolerance: float) -> Status:
    if abs(difference) <= tolerance:
        return Status.OKISH
    return Status.BETTER if difference > 0 else Status.FAIL


def _paired_noise(now: Mapping[str, float], then: Mapping[str, float]) -> float:
    """Half the 95 % bootstrap interval of the mean difference, around 0. 0 where the queries are not known."""
    if now.keys() != then.keys():
        return 0.0
    return _half_interval(np.array([now[q] - then[q] for q in now]))


def _own_noise(values: Mapping[str, float]) -> float:
    """Half the 95 % bootstrap interval of a mean over these queries."""
    return _half_interval(np.array(list(values.values())))


def _half_interval(values: np.ndarray) -> float:
    from dupmae_ir.eval.significance import bootstrap_intervals

    (interval,) = bootstrap_intervals(values[:, None], level=LEVEL)
    return (interval.high - interval.low) / 2 if interval else 0.0


def _moved(result: Result, then: Mapping[str, float], measure: str) -> str:
    """The queries that moved most, in words."""
    now = result.per_query[measure]
    # Accepted values of queries are kept to six digits.
    moved = [(q, now[q] - then[q]) for q in now if q in then and abs(now[q] - then[q]) > 1e-5]
    if not moved:
        return ""
    first = ", ".join(f"{q} {d:+.3f}" for q, d in sorted(moved, key=lambda m: -abs(m[1]))[:MOVED])
    return f"; {len(moved)} queries moved, most of all {first}"
