"""The power of a tolerance: would another printed system pass, and is the difference to a control the paper's?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from plan_cases import COSTS, PlanOptions, in_order_of_cost, largest_tolerance, main, plan_cases
from power import PrintedRow, as_record, costs, nearest_rivals, power_text, printed_rows

from dupmae_ir.errors import UnknownName
from dupmae_ir.eval.regressions.cases import RIVALS, Case, load
from dupmae_ir.eval.regressions.config import RunCasesOptions
from dupmae_ir.eval.regressions.execute import Result
from dupmae_ir.eval.regressions.run import CaseSelection
from dupmae_ir.eval.regressions.verdict import Status, against_control, judge, without_power

FOLDER = Path(__file__).resolve().parents[2] / "eval"


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    return {case.id: case for regression in load(FOLDER).values() for case in regression.cases}


@pytest.fixture(scope="module")
def rows() -> list[PrintedRow]:
    return printed_rows(FOLDER)


def scores(
    case: Case, mean: float, queries: int = 2000, seed: int = 0, base: np.ndarray | None = None
) -> Result:
    """A result whose reciprocal ranks have exactly this mean, paired with those of ``base`` if given."""
    values = np.random.default_rng(seed).uniform(size=queries) if base is None else base
    values = values - values.mean() + mean
    per_query = {"RR@10": {f"q{n}": float(v) for n, v in enumerate(values)}}
    return Result(
        case.id, configuration=case.configuration, values={"RR@10": mean}, per_query=per_query
    )


def test_the_record_of_other_numbers_is_that_of_the_papers(papers):
    record = (FOLDER / RIVALS).read_text(encoding="utf-8")
    assert as_record(nearest_rivals(FOLDER, papers)) == record, (
        "python tools/power.py --papers FOLDER --record"
    )


def test_the_nearest_other_number_decides_the_power(cases):
    case = cases["dupmae.msmarco-passage/stage3-dev"]
    name, number, table = case.rivals["RR@10"]
    assert (name, number, table) == ("RetroMAE (stage 3)", "0.416", "DupMAE (ACL 2023) Table 1")
    assert without_power(case, "RR@10", 0.0036) == ""
    assert without_power(case, "RR@10", 0.0098).startswith("no power: RetroMAE (stage 3)'s 0.416")
    assert without_power(case, "P@5", 1.0) == ""  # no printed number, no statement


def test_a_verdict_says_that_it_has_no_power(cases):
    """RetroMAE's ablations: basic decoding passes as the control's number."""
    case = replace(
        cases["retromae-ablations.msmarco-passage/basic-1-dev"], paper={"RR@10": "0.3462"}
    )
    (verdict,) = judge(case, scores(case, 0.3465), {}, {})
    assert verdict.status is Status.OKISH
    assert "no power: " in verdict.reason
    assert verdict.tolerance is not None
    (exact,) = judge(replace(case, tolerance=0.0001), scores(case, 0.3463), {}, {})
    assert "no power" not in exact.reason


def test_the_difference_to_the_control_fails_where_the_number_passes(cases):
    """Both rows pass alone, but the ablation has the control's value: the paper's loss of 0.0091 is not there."""
    control = replace(
        cases["retromae-ablations.msmarco-passage/default-dev"], paper={"RR@10": "0.3553"}
    )
    case = replace(
        cases["retromae-ablations.msmarco-passage/basic-1-dev"], paper={"RR@10": "0.3462"}
    )
    assert case.control == control.id
    values = np.random.default_rng(1).uniform(size=2000)
    other = scores(control, 0.3508, base=values)
    same = scores(case, 0.3507, base=values + np.random.default_rng(2).normal(0, 0.05, size=2000))
    assert all(
        v.status.passes for c, r in ((control, other), (case, same)) for v in judge(c, r, {}, {})
    )
    (verdict,) = against_control(case, same, control, other)
    assert verdict.status is Status.FAIL
    assert (
        "difference to retromae-ablations.msmarco-passage/default-dev -0.0001, printed -0.0091"
        in verdict.reason
    )
    lower = scores(
        case, 0.3508 - 0.0091, base=values + np.random.default_rng(2).normal(0, 0.05, size=2000)
    )
    (verdict,) = against_control(case, lower, control, other)
    assert verdict.status is Status.OKISH


@pytest.mark.parametrize(
    "fields", [{"problems": ["no"]}, {"given": {"m": "f"}}, {"stand_in": True}]
)
def test_no_difference_is_judged_of_unsound_results(cases, fields):
    case = cases["retromae-ablations.msmarco-passage/basic-1-dev"]
    control = cases["retromae-ablations.msmarco-passage/default-dev"]
    good = scores(control, 0.35)
    assert against_control(case, good, control, good)
    assert against_control(case, replace(scores(case, 0.35), **fields), control, good) == []
    assert against_control(case, good, control, None) == []


def test_every_control_is_a_case(cases, tmp_path):
    ablations = [case for case in cases.values() if case.control]
    assert len(ablations) == 20 + 5 + 9 + 20 + 6
    assert all(c.control in cases for c in ablations)
    selection = CaseSelection(RunCasesOptions(names=(ablations[0].id,), output=str(tmp_path)))
    with pytest.raises(UnknownName, match="basic-9"):
        selection.row(replace(ablations[0], control="basic-9"), None)


@pytest.mark.parametrize(("key", "judged"), [({}, 1), ({"code": "of yesterday"}, 0)])
def test_a_control_of_other_code_is_not_compared(cases, tmp_path, monkeypatch, key, judged):
    case = cases["retromae-ablations.msmarco-passage/basic-1-dev"]
    other = replace(
        scores(cases["retromae-ablations.msmarco-passage/default-dev"], 0.3508), key=key
    )
    monkeypatch.setattr("dupmae_ir.eval.regressions.run.load_result", lambda _: other)
    selection = CaseSelection(RunCasesOptions(names=(case.id,), output=str(tmp_path)))
    verdicts = selection.row(case, scores(case, 0.3417)).verdicts
    assert sum("difference to" in verdict.reason for verdict in verdicts) == judged


def test_the_largest_tolerance_and_the_cost_of_a_row(cases, rows):
    assert largest_tolerance(cases["retromae.msmarco-passage/distill-dev"], "RR@10") == 0.002
    assert largest_tolerance(cases["dupmae.msmarco-passage/stage3-dev"], "RR@10") == pytest.approx(
        0.0036, abs=1e-4
    )
    ablation = largest_tolerance(cases["retromae-ablations.msmarco-passage/default-dev"], "RR@10")
    assert ablation == pytest.approx(1.96 * (0.3553 * 0.6447 / 6980) ** 0.5)
    by_id = {row.case.id: row for row in rows}
    assert by_id["retromae.msmarco-passage/distill-dev"].hours == 0
    stage3 = by_id["dupmae.msmarco-passage/stage3-dev"]
    stage2 = by_id["dupmae.msmarco-passage/stage2-dev"]
    assert stage3.hours > stage2.hours > 100
    assert stage3.strong
    assert not by_id["retromae-ablations.msmarco-passage/default-dev"].strong
    assert "3 of " in power_text(rows, 3)


def test_what_one_gpu_measures_in_a_week_begins_with_the_released_checkpoints(rows, capsys):
    assert as_record(costs(rows)) == (FOLDER / COSTS).read_text(), (
        "python tools/power.py --papers FOLDER --record"
    )
    planned = plan_cases(PlanOptions(measurable=True))
    free = [one for one in planned if one.training == 0]
    assert planned[0].case.regression == "retromae.beir"
    assert "retromae.msmarco-passage/distill-dev" in {one.case.id for one in free}
    totals = [one.together for one in planned]
    assert totals == sorted(totals)
    assert totals[-1] <= 168
    assert (
        len(plan_cases(PlanOptions(measurable=True, hours=1.0)))
        < len(planned)
        < len(plan_cases(PlanOptions()))
    )
    assert main(["--measurable", "retromae.msmarco-passage"]) == 0
    assert capsys.readouterr().out.startswith(
        "dupmae-ir eval.regressions run retromae.msmarco-passage/"
    )
    assert main(["--hours", "3"]) == 2


def test_a_model_and_its_index_are_paid_for_once(cases):
    case = cases["dupmae.msmarco-passage/stage3-dev"]
    other = replace(case, name="again")
    (first, second) = in_order_of_cost(
        [case, other], {case.id: (9.0, 1.0), other.id: (9.0, 1.0)}, 10.0
    )
    assert (first.together, second.together, second.training, second.encoding) == (
        10.0,
        10.0,
        0.0,
        0.0,
    )
