"""Ways in which a verdict could pass while wrong: stale models, easier topics, short runs, leaked topics."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from test_planted_mistakes import beir_rows

from dupmae_ir.errors import InputError
from dupmae_ir.eval.regressions import cases
from dupmae_ir.eval.regressions.cases import Case
from dupmae_ir.eval.regressions.config import RunCasesOptions
from dupmae_ir.eval.regressions.execute import Result, input_problems, leak_problems
from dupmae_ir.eval.regressions.report import means
from dupmae_ir.eval.regressions.run import CaseSelection
from dupmae_ir.eval.regressions.verdict import PAPER, Status, judge
from dupmae_ir.eval.regressions.workspace import SIDECAR, Workspace
from dupmae_ir.finetune.stages import STATE
from dupmae_ir.models.checkpoints.layout import folder_digest

RECIPES = Path(__file__).resolve().parents[2] / "eval"


def case_named(name: str) -> Case:
    regression, _, case = name.partition("/")
    (found,) = (c for c in cases.load(RECIPES)[regression].cases if c.name == case)
    return found


def result_of(case: Case, **fields: object) -> Result:
    """A result with the paper's own numbers."""
    values = {m: float(v) for m, v in case.paper.items()}
    per_query = {m: {f"q{n}": v for n in range(9)} for m, v in values.items()}
    return Result(
        case.id, configuration=case.configuration, values=values, per_query=per_query, **fields
    )


@pytest.mark.parametrize("dropped", [0, 40])
def test_easier_topics_of_a_local_folder_are_a_problem(dropped, tmp_path, shared_data):
    folder = tmp_path / "scifact"
    shutil.copytree(shared_data / "scifact" / "qrels", folder / "qrels")
    for name in ("corpus.jsonl", "queries.jsonl"):
        (folder / name).symlink_to(shared_data / "scifact" / name)
    header, *lines = (folder / "qrels/test.tsv").read_text().splitlines(keepends=True)
    left = set(sorted({line.split("\t")[0] for line in lines})[dropped:])
    (folder / "qrels/test.tsv").write_text(
        header + "".join(line for line in lines if line.split("\t")[0] in left)
    )
    files = Workspace(RECIPES, tmp_path, data=tmp_path).collection("beir-scifact")
    problems = input_problems(case_named("dupmae.beir/scifact"), files)
    assert bool(problems) == bool(dropped)
    if dropped:
        assert "260 judged queries" in problems[0]
        assert any("different topics" in p for p in problems)
        assert any("different judgements" in p for p in problems)


def test_a_given_model_is_labelled_and_passes_for_no_paper(tmp_path):
    case = case_named("dupmae.beir/scifact")
    given = {"dupmae-beir": "somewhere/else"}
    assert [v.status for v in judge(case, result_of(case), {}, {})] == [Status.OK]
    verdicts = judge(case, result_of(case, given=given), {}, {})
    assert [(v.status, v.against) for v in verdicts] == [(Status.SKIP, PAPER)]
    assert "somewhere/else" in verdicts[0].reason
    # The label is stored with the result: a report without --model has it too.
    selection = CaseSelection(RunCasesOptions(names=(case.id,), output=str(tmp_path)))
    row = selection.row(case, result_of(case, given=given))
    assert "given: dupmae-beir = somewhere/else" in row.origin
    assert "trained by" not in row.origin
    assert "trained by" in selection.row(case, None).origin


def test_a_given_models_commands_do_not_train(tmp_path):
    case = case_named("dupmae.beir/scifact")
    options = RunCasesOptions(
        names=(case.id,), output=str(tmp_path), model=("dupmae-beir=somewhere",)
    )
    lines = CaseSelection(options).row(case, None).commands()
    assert not any("pretrain" in line or "finetune" in line for line in lines)


@pytest.mark.parametrize("hits", [100, 1000])
def test_a_run_shorter_than_a_measure_is_refused(hits, tmp_path):
    shutil.copytree(RECIPES, tmp_path / "eval")
    path = tmp_path / "eval/retromae.msmarco-passage.toml"
    path.write_text(f"search = {{hits = {hits}}}\n{path.read_text()}")
    if hits == 1000:
        cases.load(tmp_path / "eval")
        return
    with pytest.raises(InputError, match=r"R@1000 needs 1000 hits per query, .* stops at 100"):
        cases.load(tmp_path / "eval")


def test_a_mean_takes_only_sound_values_of_this_run():
    regression, rows = beir_rows()
    assert {m.status for m in means(regression, rows)} == {Status.OK}

    def statuses(**changes: object) -> set[Status]:
        changed = [replace(r, **changes) if r.case.name == "scifact" else r for r in rows]
        return {m.status for m in means(regression, changed)}

    scifact = next(r for r in rows if r.case.name == "scifact")
    block = {
        "values": dict(scifact.result.values),
        "date": "2020-01-01",
        "configuration": "",
        "environment": {},
    }
    assert statuses(result=None, verdicts=judge(scifact.case, None, block, {}), accepted=block) >= {
        Status.SKIP
    }
    failed = replace(scifact.result, problems=("index: another one",))
    assert statuses(result=failed, verdicts=judge(scifact.case, failed, {}, {})) >= {Status.SKIP}
    assert statuses(result=replace(scifact.result, given={"m": "folder"})) >= {Status.SKIP}


@pytest.mark.parametrize("torch", ["1.8.0", None])
def test_a_model_trained_with_other_libraries_is_stale(torch, tmp_path):
    """In verdicts, so in JUnit, report and JSON; ``None``: a complete step without a record."""
    case = case_named("dupmae.beir/scifact")
    selection = CaseSelection(RunCasesOptions(names=(case.id,), output=str(tmp_path)))
    workspace = selection.workspace(case)
    (output,) = {workspace.model_folder(case.model).parent}
    output.mkdir(parents=True)
    key = json.loads(json.dumps(workspace._training_key()))
    sidecar = output.with_name(f"{output.name}.{SIDECAR}")
    (output / STATE).write_text('{"stage1": {}}')
    sidecar.write_text(json.dumps({"stage1": key}))
    assert selection.row(case, result_of(case)).status is Status.OK
    assert "torch" in selection.row(case, result_of(case)).origin
    key["environment"]["torch"] = torch
    sidecar.write_text(json.dumps({"stage1": key} if torch else {}))
    row = selection.row(case, result_of(case))
    assert row.status is Status.STALE
    assert not row.passes
    assert ("torch 1.8.0, now" if torch else "unrecorded") in row.reasons("nDCG@10")


def test_a_trained_model_that_was_edited_is_named(tmp_path):
    """Even if the values stay within their tolerance."""
    case = case_named("dupmae.beir/scifact")
    selection = CaseSelection(RunCasesOptions(names=(case.id,), output=str(tmp_path)))
    workspace = selection.workspace(case)
    trained = workspace.model_folder(case.model)
    trained.mkdir(parents=True)
    (trained / "config.json").write_text("{}", encoding="utf-8")
    weights = trained / "model.safetensors"
    weights.write_bytes(b"as trained")
    key = json.loads(json.dumps(workspace._training_key()))
    record = {trained.name: {**key, "weights": folder_digest(trained)}}
    output = trained.parent
    (output / STATE).write_text(json.dumps({trained.name: {}}), encoding="utf-8")
    output.with_name(f"{output.name}.{SIDECAR}").write_text(json.dumps(record), encoding="utf-8")
    assert selection.row(case, result_of(case)).status is Status.OK
    weights.write_bytes(b"edited here")
    row = selection.row(case, result_of(case))
    assert row.status is Status.STALE
    assert not row.passes
    reasons = row.reasons("nDCG@10")
    assert f"{trained.name} of dupmae-beir was edited after its training" in reasons
    assert folder_digest(trained)[:12] in reasons


def test_test_topics_among_the_training_queries_are_a_problem(tmp_path):
    workspace = Workspace(RECIPES, tmp_path)
    case = case_named("tiny/dupmae")
    files = workspace.collection("tiny")
    assert list(leak_problems(case, workspace, files)) == []
    queries = [json.loads(line) for line in files.queries.read_text().splitlines()]
    pairs = files.corpus.with_name("pairs.jsonl")
    rows = [json.loads(line) for line in pairs.read_text().splitlines()]
    leaked = [
        {**row, "query": query["text"].upper()}
        for row, query in zip(rows, queries[:5], strict=False)
    ]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in [*leaked, *rows]))
    (problem,) = leak_problems(case, workspace, files)
    assert "5 of 48 topics" in problem
