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
from dupmae_ir.eval.regressions.workspace import short_digest
from dupmae_ir.eval.significance import bootstrap_intervals

LEVEL = 0.95
"""Of the bootstrap intervals."""
ROUNDING = 1e-12
"""Largest difference between equal means, which may be rounded differently."""
QUERY_ROUNDING = 1e-5
"""Largest difference between equal values of a query: accepted ones are stored with six digits."""
MAX_NAMED_QUERIES = 5
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
    """One comparison of one measure; or the status of the complete case if ``measure`` is empty."""

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
        reason = "not run here"
        if accepted:
            reason = f"accepted {accepted['date']}; not run in this folder"
        return [CaseVerdict(Status.SKIP, reason=reason)]
    if result.skipped:
        return [CaseVerdict(Status.SKIP, reason=result.skipped)]
    if result.stand_in and not result.problems:
        values = ", ".join(f"{measure} {value:.4f}" for measure, value in result.values.items())
        reason = f"completed on a synthetic stand-in collection, whose values are not comparable: {values}"
        return [CaseVerdict(Status.SKIP, reason=reason)]
    verdicts = [CaseVerdict(Status.FAIL, reason=problem) for problem in result.problems]
    if accepted:
        verdicts += _against_accepted(case, result, accepted, queries, fixed)
    if result.problems:
        # The values of a run that fails its checks mean nothing; only causes are reported.
        return [verdict for verdict in verdicts if not verdict.measure]
    if case.compare:
        verdicts += [_against_paper(case, result, measure) for measure in case.paper]
    if not verdicts:
        reason = "measured, but there is no printed or accepted value to compare with yet"
        return [CaseVerdict(Status.SKIP, reason=reason)]
    return verdicts


def overall(verdicts: Iterable[CaseVerdict], against: str = "") -> Status | None:
    """The most urgent status; None for no verdict. ``against``: only verdicts on that side and on the case itself."""
    statuses = set()
    for verdict in verdicts:
        if not against or verdict.against in ("", against):
            statuses.add(verdict.status)
    # Statuses are listed by urgency.
    for status in Status:
        if status in statuses:
            return status
    return None


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
        reason = "accepted for the collection of another Python version"
        return [CaseVerdict(Status.SKIP, against=ACCEPTED, reason=reason)]
    verdicts = [CaseVerdict(Status.FAIL, against=ACCEPTED, reason=reason) for reason in changed]
    for measure in dict.fromkeys([*accepted.get("values", {}), *result.values]):
        accepted_queries = queries.get(measure, {})
        verdicts.append(_judge_measure(case, result, accepted, accepted_queries, measure, fixed))
    return verdicts


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
            digests = f"{short_digest(then)}, now {short_digest(now.get(name))}"
            yield f"the {label} differ from those of the accepted values ({digests})"
    if fixed and accepted.get("weights") != result.key.get("weights"):
        then = short_digest(accepted.get("weights"))
        weights = short_digest(result.key.get("weights"))
        yield f"the weights differ from those of the accepted values ({then}, now {weights}){intended}"


def _judge_measure(
    case: Case,
    result: Result,
    accepted: Mapping[str, Any],
    accepted_queries: Mapping[str, float],
    measure: str,
    fixed: bool,
) -> CaseVerdict:
    """The verdict on one measure against its accepted value. ``accepted_queries``: its accepted value per query."""
    value = result.values.get(measure)
    expected = accepted.get("values", {}).get(measure)
    verdict = CaseVerdict(Status.FAIL, measure, value, expected, ACCEPTED)
    if value is None:
        return replace(verdict, reason="accepted, but no longer measured")
    if expected is None:
        return replace(verdict, reason="measured, but no value was accepted")
    if abs(value - expected) <= ROUNDING:
        return replace(verdict, status=Status.OK, tolerance=0.0)

    same_environment = dict(result.environment) == accepted.get("environment")
    reason = "same environment" if same_environment else "different environment"
    changes = changed_queries(result.per_query[measure], accepted_queries)
    if changes:
        largest = ", ".join(f"{qid} {change:+.3f}" for qid, change in changes[:MAX_NAMED_QUERIES])
        reason += f"; {len(changes)} queries changed, most of all {largest}"
    tolerance = _tolerance(case, result, accepted_queries, measure, fixed, same_environment)
    if tolerance == 0.0:
        return replace(verdict, tolerance=0.0, reason=f"must be equal; {reason}")
    status = _classify(value - expected, tolerance)
    return replace(verdict, status=status, tolerance=tolerance, reason=reason)


def _tolerance(
    case: Case,
    result: Result,
    accepted_queries: Mapping[str, float],
    measure: str,
    fixed: bool,
    same_environment: bool,
) -> float:
    """The largest difference from the accepted value that passes; 0.0: it must be equal."""
    if case.mode == "bm25":
        return 0.0
    if same_environment and (case.exact or fixed):
        return 0.0
    if fixed and case.drift is not None:
        return case.drift
    seed_deviation = case.seed_deviation.get(measure)
    if seed_deviation is not None:
        return TWO_SEEDS * seed_deviation
    values = result.per_query[measure]
    # Fixed weights without a stated drift must give equal values everywhere. Without the same queries there are no
    # paired differences.
    if fixed or values.keys() != accepted_queries.keys():
        return 0.0
    return _noise(value - accepted_queries[qid] for qid, value in values.items())


def _against_paper(case: Case, result: Result, measure: str) -> CaseVerdict:
    printed = float(case.paper[measure])
    if measure not in result.values:
        return CaseVerdict(Status.FAIL, measure, None, printed, PAPER, reason="not measured")
    value = result.values[measure]
    if result.given:
        names = ", ".join(f"{name} = {folder}" for name, folder in result.given.items())
        reason = f"given model, not compared with the paper: {names}"
        return CaseVerdict(Status.SKIP, measure, value, printed, PAPER, reason=reason)

    tolerance = case.tolerance
    seed_deviation = case.seed_deviation.get(measure)
    if tolerance is None and seed_deviation is not None:
        tolerance = TWO_SEEDS * seed_deviation
    elif tolerance is None:
        tolerance = _noise(result.per_query[measure].values())
    verdict = compare_printed(case.paper[measure], value, tolerance, measure)
    power = without_power(case, measure, tolerance)
    if verdict.status.passes and power:
        reason = f"{verdict.reason}; {power}" if verdict.reason else power
        return replace(verdict, reason=reason)
    return verdict


def without_power(case: Case, measure: str, tolerance: float) -> str:
    """Which other system of the same printed table would pass as this one; empty if none would, or none is printed."""
    if measure not in case.rivals:
        return ""
    name, number, table = case.rivals[measure]
    if not name:
        return ""
    verdict = compare_printed(case.paper[measure], float(number), tolerance, measure)
    if verdict.status not in (Status.OK, Status.OKISH):
        return ""
    return f"no power: {name}'s {number} ({table}) is within the tolerance too"


def against_control(
    case: Case, result: Result | None, control: Case, control_result: Result | None
) -> list[CaseVerdict]:
    """Verdicts on the measured differences between a case and its control, from paired queries.

    They are compared with the differences that the paper prints.
    """
    if result is None or control_result is None:
        return []
    for compared in (result, control_result):
        if compared.problems or compared.given or compared.stand_in:
            return []
    verdicts = []
    for measure, printed in case.paper.items():
        if measure not in control.paper:
            continue
        if measure not in result.per_query or measure not in control_result.per_query:
            continue
        difference = result.values[measure] - control_result.values[measure]
        expected = float(printed) - float(control.paper[measure])
        seed_deviation = case.seed_deviation.get(measure)
        if seed_deviation is not None:
            # Two trainings here and two in the paper, each with its own seed.
            noise = 2 * Z * seed_deviation
        else:
            values = result.per_query[measure]
            control_values = control_result.per_query[measure]
            # In a fixed order: the bootstrap draws by position, and the order of a set differs between processes.
            common = sorted(values.keys() & control_values.keys())
            noise = _noise(values[qid] - control_values[qid] for qid in common)
        # Each of the two printed numbers may be off by half a unit of its last digit.
        allowed = noise + 10.0 ** -_decimals(printed)
        status = Status.OKISH if abs(difference - expected) <= allowed else Status.FAIL
        reason = (
            f"difference to {control.id} {difference:+.4f}, printed {expected:+.4f} +-{allowed:.4f}"
        )
        verdicts.append(CaseVerdict(status, measure, difference, expected, PAPER, allowed, reason))
    return verdicts


def compare_printed(printed: str, value: float, tolerance: float, measure: str) -> CaseVerdict:
    """The verdict on a value against a printed number: OK if equal to its digits, else by ``tolerance``."""
    half_unit = 0.5 * 10.0 ** -_decimals(printed)
    difference = value - float(printed)
    allowed = half_unit + tolerance
    if abs(difference) <= half_unit + ROUNDING:
        return CaseVerdict(Status.OK, measure, value, float(printed), PAPER, allowed)
    status = _classify(difference, allowed)
    reason = f"{difference:+.4f}"
    return CaseVerdict(status, measure, value, float(printed), PAPER, allowed, reason)


def _decimals(printed: str) -> int:
    """Number of digits after the point."""
    _, _, digits = printed.partition(".")
    return len(digits)


def compare_means(value: float, expected: float, tolerance: float, measure: str) -> CaseVerdict:
    """The verdict on a mean over collections against the mean of their accepted values."""
    difference = value - expected
    if abs(difference) <= ROUNDING:
        return CaseVerdict(Status.OK, measure, value, expected, ACCEPTED, tolerance)
    status = _classify(difference, tolerance)
    reason = f"{difference:+.4f}" if tolerance else "must be equal"
    return CaseVerdict(status, measure, value, expected, ACCEPTED, tolerance, reason)


def _classify(difference: float, tolerance: float) -> Status:
    if abs(difference) <= tolerance:
        return Status.OKISH
    if difference > 0:
        return Status.BETTER
    return Status.FAIL


def _noise(values: Iterable[float]) -> float:
    """Half the width of the 95 % bootstrap interval of the mean."""
    (interval,) = bootstrap_intervals(np.array(list(values))[:, None], level=LEVEL)
    if interval is None:
        return 0.0
    return (interval.high - interval.low) / 2


def changed_queries(
    values: Mapping[str, float], accepted: Mapping[str, float]
) -> list[tuple[str, float]]:
    """(query id, difference) of the queries whose values changed, largest differences first."""
    changes = []
    for qid, value in values.items():
        if qid in accepted and abs(value - accepted[qid]) > QUERY_ROUNDING:
            changes.append((qid, value - accepted[qid]))
    return sorted(changes, key=lambda change: -abs(change[1]))
