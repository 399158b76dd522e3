"""Compares the values of a result with two expectations, the paper's and the accepted ones, each with its own status.

Deterministic systems (BM25, fixed weights) must give the accepted value exactly; ``drift`` in the TOML file allows a
stated difference on another processor. Trained rows may differ by what two seeds differ by (``seed_deviation``), or, if
that is not stated, by the 95 % bootstrap interval of the mean paired difference. The digests of documents, topics and
judgements must equal the accepted ones, whatever the values are.

Papers print no values per query: the tolerance is stated in the case, or covers what two trainings differ by, or is the
bootstrap interval of the measured mean; half a unit of the printed number's last digit is added.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
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
PAPER = "paper"
ACCEPTED = "accepted"
SIDES = (PAPER, ACCEPTED)
"""What a value is compared with."""
Z = 1.96
"""Half-width of the 95 % interval of a normal distribution, in standard deviations."""
TWO_SEEDS = Z * math.sqrt(2)
"""Half-width of the 95 % interval of the difference of two trainings, in standard deviations over seeds."""
INPUTS = {"collection": "documents", "topics": "topics", "judgements": "judgements"}
"""Digest in an accepted block -> what it covers."""


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
class CaseVerdict:
    """One comparison of one measure; or the status of the whole case if ``measure`` is empty."""

    status: Status
    measure: str = ""
    value: float | None = None
    expected: float | None = None
    against: str = ""  #: PAPER or ACCEPTED; empty for a verdict on the case itself
    tolerance: float | None = None
    reason: str = ""


def judge(
    case: Case,
    result: Result | None,
    accepted: Mapping[str, Any],
    queries: Mapping[str, Mapping[str, float]],
    fixed: bool = False,
) -> list[CaseVerdict]:
    """The verdicts on a result: up to two per measure, against the paper and against the accepted value.

    Args:
        case: the case.
        result: its result; None if it was not run.
        accepted: its accepted block in the TOML file.
        queries: accepted values per query: measure -> query id -> value.
        fixed: the weights are the same bytes on every machine, not trained there.
    """
    if result is None:
        reason = (
            f"accepted {accepted['date']}; not run in this folder" if accepted else "not run here"
        )
        return [CaseVerdict(Status.SKIP, reason=reason)]
    if result.skipped:
        return [CaseVerdict(Status.SKIP, reason=result.skipped)]
    if result.stand_in and not result.problems:
        values = ", ".join(f"{m} {v:.4f}" for m, v in result.values.items())
        reason = f"completed on a synthetic stand-in collection, whose values are not comparable: {values}"
        return [CaseVerdict(Status.SKIP, reason=reason)]
    verdicts = [CaseVerdict(Status.FAIL, reason=problem) for problem in result.problems]
    verdicts += _against_accepted(case, result, accepted, queries, fixed) if accepted else ()
    if result.problems:
        # The values of a run that fails its checks mean nothing; only causes are reported.
        return [v for v in verdicts if not v.measure]
    verdicts += [_against_paper(case, result, m) for m in case.paper] if case.compare else ()
    reason = "measured, but there is no printed or accepted value to compare with yet"
    return verdicts or [CaseVerdict(Status.SKIP, reason=reason)]


def overall(verdicts: Iterable[CaseVerdict], against: str = "") -> Status | None:
    """The most urgent status; with ``against``, of that side and of verdicts on the whole case. None for no verdict."""
    order = list(Status)
    statuses = [v.status for v in verdicts if not against or v.against in ("", against)]
    return min(statuses, key=order.index) if statuses else None


def _against_accepted(
    case: Case,
    result: Result,
    accepted: Mapping[str, Any],
    queries: Mapping[str, Mapping[str, float]],
    fixed: bool,
) -> list[CaseVerdict]:
    changed = list(_changed_inputs(case, result, accepted, fixed))
    if changed and case.collection == "demo":
        # The embedded collection is the interpreter's documentation, which differs between Python versions.
        return [
            CaseVerdict(
                Status.SKIP,
                against=ACCEPTED,
                reason="accepted for the collection of another Python version",
            )
        ]
    verdicts = [CaseVerdict(Status.FAIL, against=ACCEPTED, reason=reason) for reason in changed]
    measures = dict.fromkeys([*accepted.get("values", {}), *result.values])
    return verdicts + [
        _measure(case, result, accepted, queries.get(m, {}), m, fixed) for m in measures
    ]


def _changed_inputs(
    case: Case, result: Result, accepted: Mapping[str, Any], fixed: bool
) -> Iterator[str]:
    """What the accepted values belong to and the result does not: settings, documents, topics, judgements, weights."""
    intended = "; if this is intended, check the values, then accept them"
    if accepted.get("configuration") != case.configuration:
        yield f"the settings differ from those of the accepted values{intended}"
    now = {"collection": result.key.get("collection"), **result.inputs}
    for name, label in INPUTS.items():
        then = accepted.get(name)
        if then is not None and now.get(name) != then:
            yield f"the {label} differ from those of the accepted values ({_short(then)}, now {_short(now.get(name))})"
    if fixed and accepted.get("weights") != result.key.get("weights"):
        then, weights = accepted.get("weights"), result.key.get("weights")
        yield f"the weights differ from those of the accepted values ({_short(then)}, now {_short(weights)}){intended}"


def _measure(
    case: Case,
    result: Result,
    accepted: Mapping[str, Any],
    then: Mapping[str, float],
    measure: str,
    fixed: bool,
) -> CaseVerdict:
    """The verdict on one measure against its accepted value."""
    value, expected = result.values.get(measure), accepted.get("values", {}).get(measure)
    if value is None:
        return CaseVerdict(
            Status.FAIL,
            measure,
            None,
            expected,
            ACCEPTED,
            reason="accepted, but no longer measured",
        )
    if expected is None:
        return CaseVerdict(
            Status.FAIL,
            measure,
            value,
            None,
            ACCEPTED,
            reason="measured, but no value was accepted",
        )
    if abs(value - expected) <= SAME:
        return CaseVerdict(Status.OK, measure, value, expected, ACCEPTED, tolerance=0.0)
    same = dict(result.environment) == accepted.get("environment")
    reason = "same environment" if same else "different environment"
    if changed := changed_queries(result.per_query[measure], then):
        largest = ", ".join(f"{q} {d:+.3f}" for q, d in changed[:SHOWN])
        reason += f"; {len(changed)} queries changed, most of all {largest}"
    tolerance = _allowed(case, result, then, measure, fixed, same)
    if tolerance == 0.0:
        return CaseVerdict(
            Status.FAIL, measure, value, expected, ACCEPTED, 0.0, f"must be equal; {reason}"
        )
    status = _classify(value - expected, tolerance)
    return CaseVerdict(status, measure, value, expected, ACCEPTED, tolerance, reason)


def _allowed(
    case: Case, result: Result, then: Mapping[str, float], measure: str, fixed: bool, same: bool
) -> float:
    """The largest difference from the accepted value that passes; 0.0: it must be equal."""
    if case.mode == "bm25" or (same and (case.exact or fixed)):
        return 0.0
    if fixed and case.drift is not None:
        return case.drift
    if (seeds := case.seed_deviation.get(measure)) is not None:
        return TWO_SEEDS * seeds
    now = result.per_query[measure]
    # Without the same queries there are no paired differences.
    return 0.0 if fixed or now.keys() != then.keys() else _noise(now[q] - then[q] for q in now)


def _against_paper(case: Case, result: Result, measure: str) -> CaseVerdict:
    if measure not in result.values:
        return CaseVerdict(
            Status.FAIL, measure, None, float(case.paper[measure]), PAPER, reason="not measured"
        )
    value, tolerance = result.values[measure], case.tolerance
    if result.given:
        names = ", ".join(f"{name} = {folder}" for name, folder in result.given.items())
        reason = f"given model, not compared with the paper: {names}"
        return CaseVerdict(
            Status.SKIP, measure, value, float(case.paper[measure]), PAPER, reason=reason
        )
    if tolerance is None:
        seeds = case.seed_deviation.get(measure)
        tolerance = (
            _noise(result.per_query[measure].values()) if seeds is None else TWO_SEEDS * seeds
        )
    verdict = compare_printed(case.paper[measure], value, tolerance, measure)
    power = without_power(case, measure, tolerance)
    return (
        replace(verdict, reason="; ".join(filter(None, [verdict.reason, power])))
        if verdict.status.passes
        else verdict
    )


def without_power(case: Case, measure: str, tolerance: float) -> str:
    """Which other system of the same printed table would pass as this one; empty if none would, or none is printed."""
    name, number, table = case.rivals.get(measure, ("", "inf", ""))
    verdict = (
        compare_printed(case.paper[measure], float(number), tolerance, measure) if name else None
    )
    passes = verdict and verdict.status in (Status.OK, Status.OKISH)
    return f"no power: {name}'s {number} ({table}) is within the tolerance too" if passes else ""


def against_control(
    case: Case, result: Result | None, control: Case, other: Result | None
) -> list[CaseVerdict]:
    """Verdicts on the measured differences between a case and its control, from paired queries.

    They are compared with the differences that the paper prints.
    """
    if (
        result is None
        or other is None
        or any(r.problems or r.given or r.stand_in for r in (result, other))
    ):
        return []
    verdicts = []
    for measure in (
        m
        for m in case.paper
        if m in control.paper and m in result.per_query and m in other.per_query
    ):
        now, then = result.per_query[measure], other.per_query[measure]
        difference = result.values[measure] - other.values[measure]
        expected = float(case.paper[measure]) - float(control.paper[measure])
        seeds = case.seed_deviation.get(measure)
        # Two trainings here and two in the paper, all with seeds of their own; else the spread over the queries.
        noise = (
            _noise(now[q] - then[q] for q in now.keys() & then.keys())
            if seeds is None
            else 2 * Z * seeds
        )
        allowed = noise + 10.0 ** -len(case.paper[measure].partition(".")[2])
        status = Status.OKISH if abs(difference - expected) <= allowed else Status.FAIL
        reason = (
            f"difference to {control.id} {difference:+.4f}, printed {expected:+.4f} +-{allowed:.4f}"
        )
        verdicts.append(CaseVerdict(status, measure, difference, expected, PAPER, allowed, reason))
    return verdicts


def compare_printed(printed: str, value: float, tolerance: float, measure: str) -> CaseVerdict:
    """The verdict on a value against a printed number: OK if equal to its digits, else by ``tolerance``."""
    rounding = 0.5 * 10.0 ** -len(printed.partition(".")[2])
    difference = value - float(printed)
    allowed = rounding + tolerance
    status = Status.OK if abs(difference) <= rounding + SAME else _classify(difference, allowed)
    reason = "" if status is Status.OK else f"{difference:+.4f}"
    return CaseVerdict(status, measure, value, float(printed), PAPER, allowed, reason)


def compare_means(value: float, expected: float, tolerance: float, measure: str) -> CaseVerdict:
    """The verdict on a mean over collections against the mean of their accepted values."""
    difference = value - expected
    if abs(difference) <= SAME:
        return CaseVerdict(Status.OK, measure, value, expected, ACCEPTED, tolerance)
    reason = f"{difference:+.4f}" if tolerance else "must be equal"
    return CaseVerdict(
        _classify(difference, tolerance), measure, value, expected, ACCEPTED, tolerance, reason
    )


def _classify(difference: float, tolerance: float) -> Status:
    if abs(difference) <= tolerance:
        return Status.OKISH
    return Status.BETTER if difference > 0 else Status.FAIL


def _noise(values: Iterable[float]) -> float:
    """Half the width of the 95 % bootstrap interval of the mean."""
    (interval,) = bootstrap_intervals(np.array(list(values))[:, None], level=LEVEL)
    return (interval.high - interval.low) / 2 if interval else 0.0


def changed_queries(now: Mapping[str, float], then: Mapping[str, float]) -> list[tuple[str, float]]:
    """(query id, difference) of the queries whose values changed, largest differences first."""
    # Accepted values per query are stored with six digits.
    changed = [(q, now[q] - then[q]) for q in now if q in then and abs(now[q] - then[q]) > 1e-5]
    return sorted(changed, key=lambda item: -abs(item[1]))


def _short(digest: str | None) -> str:
    return digest[:12] if digest else "none"
