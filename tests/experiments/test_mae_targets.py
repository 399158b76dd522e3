"""Pre-training on the collection that is searched: plan, data, and the answer by the registered rule."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from mae_from_scratch import Step, read_settings, states, unfinished
from mae_tables import over_seeds
from mae_target_data import write_squad
from mae_target_tables import TargetResult, answer, read_arms, report, results
from mae_targets import GENERAL, NONE, REGISTERED, TargetPlan, main

from dupmae_ir.errors import InputError
from dupmae_ir.eval.significance import Interval
from dupmae_ir.io.qrels import read_qrels

PAGE = Path(__file__).resolve().parents[2] / "experiments" / "mae-seeds-and-targets.md"
SETTINGS = read_settings()
RULE = SETTINGS["decision"]


@pytest.fixture
def plan(tmp_path):
    return TargetPlan(SETTINGS, tmp_path / "data", tmp_path / "out")


def test_every_step_needs_earlier_steps_only_and_has_its_own_output(plan):
    before = set()
    for step in plan.steps():
        assert before.issuperset(step.after), step.name
        before.add(step.name)
    steps = plan.steps()
    assert len({step.done for step in steps}) == len({step.name for step in steps}) == len(steps)


def test_the_arms_differ_in_their_text_and_updates_only(plan, monkeypatch):
    monkeypatch.setattr(plan, "_updates", len)
    steps = {step.name: step for step in plan.steps()}
    words = {arm: steps[f"target.{arm}.seed0"].words() for arm in (GENERAL, "stdlib", "squad")}
    assert "classic_books" in " ".join(words[GENERAL])
    assert "classic_books" not in " ".join(words["stdlib"])
    assert [word for word in words["stdlib"] if word not in words["squad"]] == [
        str(plan.home / "target.stdlib.seed0"),
        str(plan.collections / "stdlib" / "corpus.jsonl"),
    ]
    for name in ("target.none.500.seed0.0", "target.stdlib.500.seed0.0"):
        assert "--learning-rate 0.0003" in " ".join(steps[name].words())


def test_any_collection_can_be_the_target(tmp_path):
    plan = TargetPlan(SETTINGS, tmp_path, tmp_path / "out", [tmp_path / "mine"])
    names = {step.name for step in plan.steps()}
    assert "target.mine.seed0" in names
    assert "target.stdlib.seed0" not in names


def test_a_target_without_a_corpus_is_refused(tmp_path, capsys):
    words = ["--data", str(tmp_path), "--output", str(tmp_path / "o"), "--list"]
    assert main([*words, "--target", str(tmp_path)]) == 2
    assert "no corpus.jsonl" in capsys.readouterr().err


def test_the_page_has_the_amounts_of_the_settings():
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    amounts = SETTINGS["targets"]
    assert f"{amounts['word_pieces'] // 1_000_000} million word pieces" in page
    assert f"{amounts['squad_questions']:,} of these questions" in page
    assert "2.5e-4" in page
    assert amounts["pretrain"]["learning_rate"] == 2.5e-4
    for name in REGISTERED:
        assert f"`{name}`" in page


def test_a_sentence_that_answers_several_questions_is_one_document(tmp_path):
    pairs = [("q1", "one"), ("q2", "two"), ("q3", "one")]
    with gzip.open(tmp_path / "squad.jsonl.gz", "wt", encoding="utf-8") as f:
        f.writelines(json.dumps({"query": q, "positive": p}) + "\n" for q, p in pairs)
    (tmp_path / "squad").mkdir()
    counts = write_squad(tmp_path / "squad.jsonl.gz", tmp_path / "squad", 5)
    assert counts == {"documents": 2, "queries": 3}
    assert len(read_qrels(tmp_path / "squad")) == 3
    with pytest.raises(InputError, match="no such file"):
        write_squad(tmp_path / "none", tmp_path, 1)


# ---- Steps that are not needed


def step(name, folder, *after):
    return Step(name, folder / name, lambda: [], after)


def test_a_model_whose_read_out_is_finished_is_not_made_again(tmp_path):
    steps = [
        step("start", tmp_path),
        step("tuned.a", tmp_path, "start"),
        step("read.a", tmp_path, "tuned.a"),
        step("tuned.b", tmp_path, "start"),
        step("read.b", tmp_path, "tuned.b"),
    ]
    (tmp_path / "read.a").touch()
    assert unfinished(steps) == {"start", "tuned.b", "read.b"}
    assert list(states(steps, steps))[1:3] == ["not needed  tuned.a", "done        read.a"]
    (tmp_path / "read.b").touch()
    assert unfinished(steps) == set()


# ---- The answer


def write_arms(folder, gain):
    """Read-outs of two seeds with a difference of ``gain`` between the collection's text and general text."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    base = rng.random(300) / 2
    for arm, more in ((NONE, 0.0), (GENERAL, 0.0), ("mine", gain)):
        for seed, size in ((0, 0), (1, 0), (0, 500), (1, 500), (0, 4000), (1, 4000)):
            values = np.clip(base + more + rng.normal(0, 0.02, 300), 0, 1).tolist()
            one = {
                "scores": {"cls": {"nDCG@10": float(np.mean(values))}},
                "per_query": {"cls": {"nDCG@10": values}},
            }
            settings = {"arm": arm, "seed": seed, "size": size, "again": 0}
            record = {"settings": settings, "sets": {"mine": one, "dev": one}}
            path = folder / f"readout.target.{arm}.{size}.seed{seed}.0.json"
            path.write_text(json.dumps(record))


@pytest.mark.parametrize(("gain", "says"), [(0.05, "mine: worth it"), (0.0, "mine: not worth it")])
def test_the_report_has_the_answer(tmp_path, gain, says):
    write_arms(tmp_path / "records", gain)
    page = report(tmp_path / "records")
    assert says in page
    assert "| no further pre-training | 500 |" in page


def test_differences_are_between_the_same_seeds(tmp_path):
    write_arms(tmp_path / "records", 0.05)
    found = results(read_arms(tmp_path / "records"), [0, 500])
    assert [result.size for result in found] == [0, 500]
    assert found[1].mean == pytest.approx(0.05, abs=0.005)
    assert found[1].by_seed == pytest.approx((0.05, 0.05), abs=0.005)
    assert found[0].p is None
    assert found[1].p < 1e-6


def outcome(size, mean, low, high, by_seed, p):
    return TargetResult("mine", size, mean, Interval(low, high), by_seed, p)


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ([outcome(500, 0.02, 0.01, 0.03, (0.01, 0.03), 0.01)], "worth it"),
        ([outcome(500, 0.02, 0.01, 0.03, (-0.01, 0.05), 0.01)], "undecided"),
        ([outcome(500, 0.02, -0.01, 0.05, (0.01, 0.03), 0.2)], "undecided"),
        ([outcome(500, 0.0, -0.005, 0.005, (0.0, 0.0), 0.9)], "not worth it"),
        ([outcome(0, 0.02, 0.01, 0.03, (0.02, 0.02), None)], "undecided"),
    ],
)
def test_the_answer_follows_the_rule(found, says):
    assert answer(found, "mine", RULE) == says


def test_a_folder_without_records_is_refused(tmp_path):
    with pytest.raises(InputError, match="no read-outs"):
        report(tmp_path)


# ---- Over seeds


def test_differences_over_seeds_are_one_for_each_seed(tmp_path):
    rng = np.random.default_rng(0)
    for seed, gain in ((0, 0.04), (1, 0.06), (2, 0.05)):
        for method, more in (("mlm", 0.0), ("retromae", gain)):
            values = (rng.random(50) * 0 + 0.3 + more).tolist()
            one = {"per_query": {"cls": {"nDCG@10": values}}}
            settings = {"method": method, "seed": seed, "size": 500, "again": 0}
            record = {"settings": settings, "sets": {"dev": one}}
            path = tmp_path / f"readout.stage2.{method}.500.seed{seed}.0.json"
            path.write_text(json.dumps(record))
    (result,) = over_seeds(tmp_path, "retromae", [500, 4000])
    assert result.differences == pytest.approx((0.04, 0.06, 0.05))
    assert result.interval.low == pytest.approx(0.05 - 4.303 * 0.01 / np.sqrt(3), abs=1e-4)
    # Student's t with two degrees of freedom, twice Holm's smallest of two tests.
    assert result.p == pytest.approx(2 * 0.01307, abs=1e-3)
