"""One mistake at a time in data, expectations, model or settings of tier tiny: each must FAIL and name its cause."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from accept_cases import main as accept
from support.seeds import sample

from dupmae_ir.encode.__main__ import main as encode_main
from dupmae_ir.eval.regressions import cases
from dupmae_ir.eval.regressions.__main__ import main
from dupmae_ir.eval.regressions.execute import Result
from dupmae_ir.eval.regressions.report import (
    FAILED,
    PAPER_FAILED,
    CaseRow,
    JudgedCases,
    as_text,
    means,
)
from dupmae_ir.eval.regressions.verdict import (
    ACCEPTED,
    PAPER,
    CaseVerdict,
    Status,
    compare_means,
    judge,
)
from dupmae_ir.models.checkpoints.loading import load_model
from dupmae_ir.models.checkpoints.saving import save_model

RECIPES = Path(__file__).resolve().parents[2] / "eval"
CASES = ("tiny/bm25", "tiny/dense", "tiny/hybrid")


@dataclass(frozen=True)
class Place:
    """A measured output folder and the recipes whose values were accepted from it."""

    output: Path
    recipes: Path

    @property
    def collection(self) -> Path:
        return self.output / "collections" / "tiny"

    def call(self, verb: str, *words: str) -> int:
        options = [*words, "--output", str(self.output), "--recipes", str(self.recipes)]
        return accept(options) if verb == "accept" else main([verb, *options])

    def edit(self, path: Path, old: str, new: str) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    def edit_recipe(self, old: str, new: str) -> None:
        self.edit(self.recipes / "tiny.toml", old, new)


@pytest.fixture(scope="module")
def accepted(tmp_path_factory):
    """Tier tiny without training, measured and accepted here, so that every value must be equal."""
    root = tmp_path_factory.mktemp("planted")
    shutil.copytree(RECIPES, root / "eval")
    place = Place(root / "runs", root / "eval")
    place.call("run", *CASES, "--quiet")
    for name in ("bm25", "dense", "impact", "hybrid", "retromae", "dupmae", "master", "cot-mote"):
        _forget(place.recipes / "tiny.toml", name)
    assert place.call("run", *CASES, "--quiet") == 0
    assert place.call("accept", *CASES) == 0
    assert place.call("run", *CASES, "--quiet") == 0
    return place


def _forget(path: Path, name: str) -> None:
    before, _, block = path.read_text().partition(f"[accepted.{name}]")
    path.write_text(before + block[block.index("environment =") :].partition("\n")[2])


@pytest.fixture
def place(accepted, tmp_path):
    shutil.copytree(accepted.output, tmp_path / "runs")
    shutil.copytree(accepted.recipes, tmp_path / "eval")
    return Place(tmp_path / "runs", tmp_path / "eval")


def _first_line(path: Path) -> str:
    return path.read_text().splitlines(keepends=True)[0]


def judgement(place: Place) -> None:
    path = place.collection / "qrels/test.tsv"
    query, docid, grade = path.read_text().splitlines()[1].split("\t")
    place.edit(path, f"{query}\t{docid}\t{grade}\n", f"{query}\td239\t{grade}\n")


def dropped_judgements(place: Place) -> None:
    path = place.collection / "qrels/test.tsv"
    path.write_text(
        "".join(line for line in path.read_text().splitlines(True) if not line.startswith("q7\t"))
    )


def document(place: Place) -> None:
    path = place.collection / "corpus.jsonl"
    row = json.loads(_first_line(path))
    place.edit(path, _first_line(path), json.dumps({**row, "text": row["text"] + " baba"}) + "\n")


def topic(place: Place) -> None:
    path = place.collection / "queries.jsonl"
    row = json.loads(_first_line(path))
    place.edit(path, _first_line(path), json.dumps({**row, "text": row["text"] + " baba"}) + "\n")


def dropped_query(place: Place) -> None:
    path = place.collection / "queries.jsonl"
    place.edit(path, _first_line(path), "")


def paper_value(place: Place) -> None:
    place.edit_recipe('name = "dense"\n', 'name = "dense"\npaper = {"nDCG@10" = "0.900"}\n')


def accepted_value(place: Place) -> None:
    value = cases.load(place.recipes)["tiny"].accepted["bm25"]["values"]["R@100"]
    place.edit_recipe(f'"R@100" = {value!r}', f'"R@100" = {value + 0.0001!r}')


def accepted_index(place: Place) -> None:
    place.edit_recipe("sum_of_impacts = ", "sum_of_impacts = 1")
    (place.output / "runs/tiny/dense.json").unlink()


def wrong_measure(place: Place) -> None:
    place.edit_recipe('measures = ["nDCG@10"', 'measures = ["nDCG@5"')


def changed_setting(place: Place) -> None:
    place.edit_recipe('mode = "hybrid"\n', 'mode = "hybrid"\nsearch = {dense_weight = 0.5}\n')


def another_mode(place: Place) -> None:
    place.edit_recipe('name = "hybrid"\nmode = "hybrid"', 'name = "hybrid"\nmode = "impact"')


def self_retrieval(place: Place) -> None:
    place.edit_recipe('mode = "hybrid"\n', 'mode = "hybrid"\nsearch = {remove_query = false}\n')


def _other_model(place: Place, change: Callable[..., None]) -> Path:
    model, tokenizer, config = load_model(place.output / "models/tiny")
    change(model)
    save_model(place.output / "other", model, tokenizer, config)
    return place.output / "other"


def weight(place: Place) -> list[str]:
    def change(model):
        model.projection.weight.data[0, 0] += 1

    return ["--model", f"tiny={_other_model(place, change)}"]


def _encode(place: Place, *extra: str) -> None:
    (index,) = (p for p in (place.output / "indexes").glob("tiny--tiny--*") if p.is_dir())
    words = [
        "--corpus",
        str(place.collection / "corpus.jsonl"),
        "--index",
        str(index),
        "--overwrite",
        "--quiet",
    ]
    assert encode_main([*words, "--threads", "1", *extra]) == 0
    (place.output / "runs/tiny/dense.json").unlink()


def index_of_another_model(place: Place) -> None:
    _encode(
        place,
        "--model",
        str(_other_model(place, lambda model: model.projection.weight.data.mul_(1.01))),
    )


def index_with_another_scale(place: Place) -> None:
    _encode(place, "--model", str(place.output / "models/tiny"), "--scale", "5")


MISTAKES = [
    (judgement, "tiny/bm25", "the judgements differ from those of the accepted values"),
    (dropped_judgements, "tiny/bm25", "the judgements differ from those of the accepted values"),
    (document, "tiny/bm25", "the documents differ from those of the accepted values"),
    (topic, "tiny/bm25", "the topics differ from those of the accepted values"),
    (dropped_query, "tiny/bm25", "1 of 48 judged topics are missing (q0)"),
    (paper_value, "tiny/dense", "paper 0.9000"),
    (accepted_value, "tiny/bm25", "must be equal"),
    (accepted_index, "tiny/dense", "sum of impacts is"),
    (wrong_measure, "tiny/bm25", "accepted, but no longer measured"),
    (changed_setting, "tiny/hybrid", "the settings differ from those of the accepted values"),
    (another_mode, "tiny/hybrid", "the settings differ from those of the accepted values"),
    (self_retrieval, "tiny/hybrid", "4 topics retrieve themselves"),
    (weight, "tiny/dense", "the weights differ from those of the accepted values"),
    (index_of_another_model, "tiny/dense", "built with other weights"),
    (index_with_another_scale, "tiny/dense", "scale is 5, accepted was"),
]


@pytest.mark.parametrize(
    "mistake",
    sample([*MISTAKES[::2], *MISTAKES[1::2]], push=8),
    ids=lambda mistake: mistake[0].__name__,
)
def test_a_planted_mistake_fails_with_its_cause(place, capsys, mistake):
    plant, case, cause = mistake
    options = plant(place) or []
    capsys.readouterr()
    status = PAPER_FAILED if plant is paper_value else FAILED
    assert place.call("run", case, "--quiet", *options) == status
    printed = capsys.readouterr().err
    assert f"FAIL   {case}" in printed
    assert cause in printed


def test_a_swapped_run_fails_in_reports_and_cannot_be_accepted(place, capsys):
    runs = place.output / "runs/tiny"
    shutil.copy(runs / "dense.trec", runs / "hybrid.trec")
    capsys.readouterr()
    assert place.call("report", "tiny/hybrid") == 0
    printed = capsys.readouterr().out
    assert "FAIL" in printed
    assert "is not the run that was measured" in printed
    assert place.call("accept", "tiny/hybrid") == 2
    # Running the case searches again.
    assert place.call("run", "tiny/hybrid", "--quiet") == 0


def test_an_edited_value_is_not_the_runs(place, capsys):
    path = place.output / "runs/tiny/dense.json"
    result = json.loads(path.read_text())
    result["values"]["nDCG@10"] = 0.5
    path.write_text(json.dumps(result))
    capsys.readouterr()
    assert place.call("report", "tiny/dense") == 0
    printed = capsys.readouterr().out
    assert "FAIL" in printed
    assert "values differ from those of its run" in printed
    assert place.call("accept", "tiny/dense") == 2
    # Running the case measures the run again.
    assert place.call("run", "tiny/dense", "--quiet") == 0
    assert "nothing changed since" not in capsys.readouterr().err
    assert json.loads(path.read_text())["values"]["nDCG@10"] != 0.5


def test_both_sides_have_a_status(place, capsys):
    paper_value(place)
    capsys.readouterr()
    assert place.call("run", "tiny/dense", "--quiet", "--json") == PAPER_FAILED
    made = json.loads(capsys.readouterr().out)
    (case,) = made["cases"]
    assert (made["passed"], made["exit_status"]) == (False, PAPER_FAILED)
    assert (case["against_paper"], case["against_accepted"], case["status"]) == (
        "FAIL",
        "OK",
        "FAIL",
    )
    assert place.call("report", "tiny/dense") == 0
    printed = capsys.readouterr().out
    assert re.search(r"FAIL +nDCG@10 0\.\d+ +paper 0\.9000", printed)
    assert re.search(r"OK +nDCG@10 0\.\d+ +accepted 0\.\d+", printed)


def test_a_value_above_the_papers_passes_once_accepted(place):
    place.edit_recipe(
        'name = "dense"\n', 'name = "dense"\npaper = {"nDCG@10" = "0.001"}\ntolerance = 0.0\n'
    )
    assert place.call("run", "tiny/dense", "--quiet") == 0
    _forget(place.recipes / "tiny.toml", "dense")
    assert place.call("run", "tiny/dense", "--quiet") == PAPER_FAILED


def beir_rows(change: float = 0.0) -> tuple[cases.Regression, list[CaseRow]]:
    """The cases of bm25.beir, measured as printed; one forum of CQADupStack differs by ``change``."""
    regression = cases.load(RECIPES)["bm25.beir"]
    rows = []
    for case in regression.cases:
        values = {m: float(v) for m, v in case.paper.items()}
        if case.name == "cqadupstack-tex":
            values["nDCG@10"] += change
        per_query = {m: {"q": v} for m, v in values.items()}
        result = Result(
            case.id, configuration=case.configuration, values=values, per_query=per_query
        )
        rows.append(CaseRow(judge(case, result, {}, {}), case, result, {}, list, ""))
    return regression, rows


def test_means_and_forums_are_judged():
    regression, rows = beir_rows()
    found = means(regression, rows)
    assert JudgedCases(rows, found).exit_status == 0, [m.verdicts for m in found]
    wrong = replace(
        regression, means=tuple(replace(m, paper={"nDCG@10": "0.900"}) for m in regression.means)
    )
    found = means(wrong, rows)
    result = json.loads(JudgedCases(rows, found).json())
    assert not result["passed"]
    assert {m["status"] for m in result["means"]} == {"FAIL"}
    assert as_text(JudgedCases(rows, found)).count("FAIL   bm25.beir/mean:") == len(found)
    _, rows = beir_rows(-0.03)
    assert [r.case.name for r in rows if not r.passes] == ["cqadupstack-tex"]
    missing = means(regression, [r for r in rows if r.case.name != "scifact"])
    assert any(m.status is Status.SKIP for m in missing)


def test_means_are_judged_against_accepted_values_too():
    """BM25's mean must equal that of the accepted values; a trained model's may differ by what its sets may."""
    regression, rows = beir_rows()
    accepted = {
        r.case.id: {
            "configuration": r.case.configuration,
            "values": dict(r.result.values),
            "environment": {},
        }
        for r in rows
    }
    assert not any(m.verdict("nDCG@10", ACCEPTED) for m in means(regression, rows))

    def judged(change: float) -> list[CaseVerdict]:
        _, now = beir_rows(change)
        known = [
            replace(
                r,
                accepted=accepted[r.case.id],
                verdicts=judge(r.case, r.result, accepted[r.case.id], {}),
            )
            for r in now
        ]
        return [m.verdict("nDCG@10", ACCEPTED) for m in means(regression, known)]

    assert [v.status for v in judged(0.0)] == ["OK"] * 3
    assert [v.status for v in judged(-0.001)] == ["FAIL"] * 3
    assert [v.reason for v in judged(-0.001)] == ["must be equal"] * 3
    assert compare_means(0.449, 0.45, 0.002, "nDCG@10").status == "OKISH"
    assert compare_means(0.447, 0.45, 0.002, "nDCG@10").status == "FAIL"


def test_a_skipped_case_fails_if_it_is_required(tmp_path, capsys):
    options = ["default.cacm/bm25", "--output", str(tmp_path), "--quiet"]
    assert main(["run", *options]) == 0
    assert "nothing was compared" in capsys.readouterr().err
    assert main(["run", *options, "--fail-on-skip"]) == 1
    assert "required, but skipped" in capsys.readouterr().err


def test_tolerances_of_trained_and_fixed_rows():
    """Two seeds for trained rows, the stated drift for fixed weights elsewhere, nothing for BM25."""
    (case,) = (
        c for c in cases.load(RECIPES)["dupmae.msmarco-passage"].cases if c.name == "stage2-dev"
    )
    measure = "RR@10"
    case = replace(case, paper={})
    block = {
        "configuration": case.configuration,
        "values": {measure: 0.4},
        "environment": {"system": "other"},
    }

    def status(value: float, of: cases.Case = case, fixed: bool = False) -> CaseVerdict:
        result = Result(of.id, values={measure: value}, per_query={measure: {"q": value}})
        (verdict,) = judge(of, result, {**block, "configuration": of.configuration}, {}, fixed)
        assert verdict.against == ACCEPTED
        return verdict

    assert status(0.4 - 0.0035).status == "OKISH"
    assert status(0.4 - 0.0037).status == "FAIL"
    assert status(0.4 + 0.0037).status == "BETTER"
    assert status(0.4 - 0.0001, replace(case, seed_deviation={}, drift=None), True).status == "FAIL"
    assert (
        status(0.4 - 0.0001, replace(case, seed_deviation={}, drift=0.002), True).status == "OKISH"
    )
    assert status(0.4 - 0.0001, replace(case, mode="bm25", drift=0.002)).status == "FAIL"
    result = Result(case.id, values={measure: 0.4}, per_query={measure: {"q": 0.4}})
    (verdict,) = judge(replace(case, paper={measure: "0.402"}), result, {}, {})
    assert (verdict.against, verdict.status) == (PAPER, "OKISH")


EVERY_TIER = (
    "tiny/dense",
    "default.cacm/bm25",
    "default.scifact/hybrid",
    "retromae.beir/scifact",
    "bm25.beir/scifact",
)


@pytest.mark.parametrize("name", EVERY_TIER)
def test_a_change_of_one_thing_fails_in_every_tier(name):
    """The tiers share the verdicts: one other judgement, document, topic, weight or value is a FAIL with its cause."""
    regression, _, case_name = name.partition("/")
    (case,) = (c for c in cases.load(RECIPES)[regression].cases if c.name == case_name)
    case = replace(case, measures=case.all_measures, paper={})
    digests = {"topics": "t" * 64, "judgements": "j" * 64}
    values = dict.fromkeys(case.all_measures, 0.5)
    accepted = {
        "configuration": case.configuration,
        "collection": "d" * 64,
        "weights": "w" * 64,
        **digests,
        "values": values,
        "environment": {},
    }
    result = Result(
        case.id,
        configuration=case.configuration,
        values=values,
        per_query={m: {"q": v} for m, v in values.items()},
        key={"collection": "d" * 64, "weights": "w" * 64},
        inputs=digests,
    )

    def failures(changed: Result, expected: dict[str, object] | None = None) -> list[str]:
        found = judge(case, changed, expected or accepted, {}, fixed=True)
        return [v.reason for v in found if v.status is Status.FAIL]

    assert failures(result) == []
    one_judgement = replace(result, inputs={**digests, "judgements": "x" * 64})
    one_topic = replace(result, inputs={**digests, "topics": "x" * 64})
    assert "the judgements differ" in failures(one_judgement)[0]
    assert "the topics differ" in failures(one_topic)[0]
    assert (
        "the documents differ"
        in failures(replace(result, key={**result.key, "collection": "x" * 64}))[0]
    )
    assert (
        "the weights differ"
        in failures(replace(result, key={**result.key, "weights": "x" * 64}))[0]
    )
    expected = {**accepted, "values": dict.fromkeys(values, 0.5001)}
    assert "must be equal" in failures(result, expected)[0]


SMALL = [
    (
        "corpus.jsonl",
        '"text": "',
        '"text": "algorithm ',
        "the documents differ from those of the accepted values",
    ),
    ("qrels/test.tsv", "\t1\n", "\t2\n", "the judgements differ from those of the accepted values"),
    (
        "queries.jsonl",
        '"text": "',
        '"text": "algorithm ',
        "the topics differ from those of the accepted values",
    ),
]


@pytest.fixture(scope="module")
def cacm(tmp_path_factory, shared_data):
    """(folder of collections, recipes, output) of BM25 on CACM, measured and equal to what is accepted."""
    root = tmp_path_factory.mktemp("small")
    shutil.copytree(shared_data / "cacm", root / "data" / "cacm")
    shutil.copytree(RECIPES, root / "eval")
    place = Place(root / "runs", root / "eval")
    assert (
        place.call("run", "default.cacm/bm25", "--collections", str(root / "data"), "--quiet") == 0
    )
    return root


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "old", "new", "cause"), SMALL, ids=[row[0] for row in SMALL])
def test_one_change_of_a_real_collection_fails(cacm, tmp_path, capsys, name, old, new, cause):
    shutil.copytree(cacm, tmp_path / "all")
    place = Place(tmp_path / "all/runs", tmp_path / "all/eval")
    place.edit(tmp_path / "all/data/cacm" / name, old, new)
    capsys.readouterr()
    assert (
        place.call(
            "run", "default.cacm/bm25", "--collections", str(tmp_path / "all/data"), "--quiet"
        )
        == FAILED
    )
    assert cause in capsys.readouterr().err


def test_one_accepted_value_of_a_real_collection_fails(cacm, tmp_path, capsys):
    shutil.copytree(cacm, tmp_path / "all")
    place = Place(tmp_path / "all/runs", tmp_path / "all/eval")
    value = cases.load(place.recipes)["default.cacm"].accepted["bm25"]["values"]["R@100"]
    place.edit(
        place.recipes / "default.cacm.toml", f'"R@100" = {value!r}', f'"R@100" = {value + 0.0001!r}'
    )
    capsys.readouterr()
    assert (
        place.call(
            "run", "default.cacm/bm25", "--collections", str(tmp_path / "all/data"), "--quiet"
        )
        == FAILED
    )
    assert "must be equal" in capsys.readouterr().err
