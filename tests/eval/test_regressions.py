"""Regressions from TOML file to verdict: tier tiny, planted defects, and the commands of every full-tier case."""

from __future__ import annotations

import html
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from accept_cases import main as accept
from scipy.stats import bootstrap
from support.index_samples import first_segment

from dupmae_ir.encode.__main__ import main as encode_main
from dupmae_ir.errors import InputError, UnknownName
from dupmae_ir.eval.regressions import cases
from dupmae_ir.eval.regressions.__main__ import main
from dupmae_ir.eval.regressions.config import TIERS, ListOptions
from dupmae_ir.eval.regressions.execute import Result, command_lines
from dupmae_ir.eval.regressions.report import CaseRow, means
from dupmae_ir.eval.regressions.run import CaseSelection
from dupmae_ir.eval.regressions.verdict import CaseVerdict, Status, judge
from dupmae_ir.eval.regressions.workspace import Workspace
from dupmae_ir.finetune.stages import plan
from dupmae_ir.io.locks import exclusive, lock_path
from dupmae_ir.models.checkpoints.layout import folder_digest

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "eval"


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Output folder after running the untrained cases of tier tiny."""
    output = tmp_path_factory.mktemp("regressions") / "runs"
    names = [f"tiny/{n}" for n in ("bm25", "dense", "impact", "hybrid")]
    assert main(["run", *names, "--output", str(output), "--quiet"]) == 0
    return output


@pytest.fixture
def work(measured, tmp_path):
    """A copy to plant defects in. The result of tiny/hybrid is removed; its index is kept."""
    output = tmp_path / "runs"
    shutil.copytree(measured, output)
    (output / "runs" / "tiny" / "hybrid.json").unlink()
    return output


def index_of(output: Path) -> Path:
    (index,) = (p for p in (output / "indexes").glob("tiny--tiny--*") if p.is_dir())
    return index


def encode(output: Path, *extra: str) -> None:
    corpus = output / "collections/tiny/corpus.jsonl"
    model = output / "models/tiny"
    words = [
        "--corpus",
        str(corpus),
        "--index",
        str(index_of(output)),
        "--overwrite",
        "--quiet",
        "--threads",
        "1",
    ]
    given = [] if "--model" in extra else ["--model", str(model)]
    assert encode_main([*words, *given, *extra]) == 0


def run_hybrid(output: Path, capsys: pytest.CaptureFixture[str], *extra: str) -> tuple[int, str]:
    capsys.readouterr()
    status = main(["run", "tiny/hybrid", "--output", str(output), "--quiet", *extra])
    printed = capsys.readouterr()
    return status, printed.out + printed.err


def test_tiny_equals_the_accepted_values(measured, capsys):
    capsys.readouterr()
    assert main(["report", "tiny", "--output", str(measured), "--format", "json"]) == 0
    reported = {c["case"]["name"]: c for c in json.loads(capsys.readouterr().out)["cases"]}
    for name in ("bm25", "dense", "impact", "hybrid"):
        assert reported[name]["status"] in ("OK", "OKISH"), reported[name]["verdicts"]
        assert reported[name]["result"]["index"]["documents"] == 244
    assert "not run in this folder" in reported["dupmae"]["verdicts"][0]["reason"]


def test_an_unchanged_case_is_not_run_again(work, capsys):
    before = (work / "runs/tiny/dense.trec").stat().st_mtime_ns
    assert main(["run", "tiny/dense", "--output", str(work), "--quiet"]) == 0
    assert "nothing changed since" in capsys.readouterr().err
    assert (work / "runs/tiny/dense.trec").stat().st_mtime_ns == before


def test_a_modified_run_file_is_searched_again(work, capsys):
    path = work / "runs/tiny/dense.trec"
    good = path.read_bytes()
    path.write_bytes(good.replace(b"d1 ", b"d2 "))
    assert main(["run", "tiny/dense", "--output", str(work)]) == 0
    assert "changed, swapped or removed; searching again" in capsys.readouterr().err
    assert path.read_bytes() == good


def test_a_wrong_scale_fails_before_searching(work, capsys):
    (work / "runs/tiny/hybrid.trec").unlink()
    encode(work, "--scale", "5")
    status, printed = run_hybrid(work, capsys)
    assert status == 1
    assert "FAIL   tiny/hybrid" in printed
    assert "scale is 5, accepted was 8.864" in printed
    assert "sum of impacts is" in printed
    assert "(scale 5 instead of 8.864)" in printed
    assert not (work / "runs/tiny/hybrid.trec").exists()


def test_swapped_ids(work, capsys):
    for name in ("docid", "cls/docid"):
        path = first_segment(index_of(work)) / name
        first, second, *rest = path.read_text().splitlines()
        path.write_text("\n".join([second, first, *rest]) + "\n")
    status, printed = run_hybrid(work, capsys)
    assert status == 1
    assert "its sha256 is not the one that meta.json records" in printed


def test_a_missing_shard(work, capsys):
    encode(work, "--window", "64", "--shard", "0/2")
    status, printed = run_hybrid(work, capsys)
    assert status == 1
    assert "this is shard 0 of 2, not merged: 128 documents" in printed
    assert "documents is 128, accepted was 244" in printed


def test_an_index_of_another_model(work, capsys):
    from dupmae_ir.models.checkpoints.loading import load_model
    from dupmae_ir.models.checkpoints.saving import save_model

    model, tokenizer, config = load_model(work / "models/tiny")
    model.projection.weight.data.mul_(1.01)
    save_model(work / "other", model, tokenizer, config)
    encode(work, "--model", str(work / "other"))
    status, printed = run_hybrid(work, capsys)
    assert status == 1
    assert "index: built with other weights" in printed


def changed_recipes(tmp_path: Path, *changes: tuple[str, str]) -> Path:
    folder = tmp_path / "eval"
    shutil.copytree(RECIPES, folder)
    text = (folder / "tiny.toml").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "tiny.toml").write_text(text)
    return folder


def test_self_retrieval_not_removed(work, tmp_path, capsys):
    case = 'name = "hybrid"\nmode = "hybrid"\n'
    folder = changed_recipes(tmp_path, (case, case + "search = {remove_query = false}\n"))
    status, printed = run_hybrid(work, capsys, "--recipes", str(folder))
    assert status == 1
    assert "self-retrieval not removed: 4 topics retrieve themselves (q0, q1, q2, ...)" in printed


@pytest.mark.nightly
def test_another_configuration_fails_until_accepted(work, tmp_path, capsys):
    case = 'name = "hybrid"\nmode = "hybrid"\n'
    folder = changed_recipes(tmp_path, (case, case + "search = {dense_weight = 0.5}\n"))
    status, printed = run_hybrid(work, capsys, "--recipes", str(folder))
    assert status == 1
    assert "the settings differ from those of the accepted values" in printed
    options = ["tiny/hybrid", "--output", str(work), "--recipes", str(folder)]
    assert accept([*options]) == 0
    assert run_hybrid(work, capsys, "--recipes", str(folder))[0] == 0
    # The accepted values of the other cases and the hand-written part have not changed.
    again = cases.load(folder)["tiny"]
    before = cases.load(RECIPES)["tiny"]
    assert again.accepted["dense"] == before.accepted["dense"]
    assert again.accepted_queries["dense"] == before.accepted_queries["dense"]
    assert again.accepted["hybrid"]["values"] != before.accepted["hybrid"]["values"]
    assert "search = {dense_weight = 0.5}" in (folder / "tiny.toml").read_text()


def test_a_new_model_is_measured_and_fails_until_accepted(work, tmp_path, capsys):
    weights = cases.load(RECIPES)["tiny"].accepted["hybrid"]["weights"]
    folder = changed_recipes(
        tmp_path, (weights, "0" * 64), ("sum_of_impacts = 808346", "sum_of_impacts = 1")
    )
    # As if it were downloaded, with the same bytes on every machine.
    models = folder / "models.toml"
    models.write_text(
        models.read_text().replace("tiny = true", 'url = "https://host"\nfiles = ["weights"]')
    )
    options = [
        "--output",
        str(work),
        "--recipes",
        str(folder),
        "--model",
        f"tiny={work / 'models/tiny'}",
    ]
    status, printed = run_hybrid(work, capsys, *options[2:])
    assert status == 1
    assert "the weights differ from those of the accepted values (000000000000, now" in printed
    assert accept(["tiny/hybrid", *options]) == 0
    assert run_hybrid(work, capsys, *options[2:])[0] == 0
    # Generated weights depend on the version of torch.
    generated = folder_digest(work / "models/tiny")
    assert cases.load(folder)["tiny"].accepted["hybrid"]["weights"] == generated


def test_a_changed_index_is_accepted_only_after_removing_its_old_values(work, tmp_path, capsys):
    folder = changed_recipes(tmp_path, ("sum_of_impacts = 808346", "sum_of_impacts = 1"))
    status, printed = run_hybrid(work, capsys, "--recipes", str(folder))
    assert status == 1
    assert "sum of impacts is 808,346, accepted was 1" in printed
    assert accept(["tiny/hybrid", "--output", str(work), "--recipes", str(folder)]) == 2
    assert (
        "if this change is intended, remove [accepted.hybrid] and run the case again"
        in capsys.readouterr().err
    )


def test_better_does_not_pass(work, tmp_path, capsys):
    value = cases.load(RECIPES)["tiny"].accepted["dense"]["values"]["nDCG@10"]
    folder = changed_recipes(tmp_path, (repr(value), "0.01"), ("threads = 1\n", "threads = 2\n"))
    path = folder / "accepted/tiny.json"
    queries = json.loads(path.read_text())
    queries["dense"]["nDCG@10"] = dict.fromkeys(queries["dense"]["nDCG@10"], 0.01)
    path.write_text(json.dumps(queries))
    capsys.readouterr()
    assert (
        main(["run", "tiny/dense", "--output", str(work), "--quiet", "--recipes", str(folder)]) == 1
    )
    assert "BETTER  nDCG@10" in capsys.readouterr().err


def test_results_of_other_code_are_stale_in_reports(work, capsys):
    path = work / "runs/tiny/dense.json"
    result = json.loads(path.read_text())
    result["key"]["code"] = "other"
    path.write_text(json.dumps(result))
    capsys.readouterr()
    assert main(["report", "tiny/dense", "--output", str(work)]) == 0
    assert "with other code; run it again" in capsys.readouterr().out
    assert accept(["tiny/dense", "--output", str(work)]) == 2


def test_report_formats(measured, tmp_path, capsys):
    options = ["tiny", "--output", str(measured)]
    page = tmp_path / "page.html"
    assert main(["report", *options, "--format", "html", "--file", str(page)]) == 0
    text = page.read_text()
    assert '<details id="tiny/hybrid">' in text
    assert "dupmae-ir search --index" in text
    assert "not run in this folder" in text
    capsys.readouterr()
    assert main(["report", *options]) == 0
    assert re.search(r"OK +tiny/hybrid\n +OK +nDCG@10", capsys.readouterr().out)


def test_the_page_of_all_cases_is_short_and_its_links_lead_somewhere(tmp_path):
    page = tmp_path / "page.html"
    known = cases.load(RECIPES)
    assert (
        main(["report", "--format", "html", "--file", str(page), "--output", "runs/regressions"])
        == 0
    )
    text = page.read_text()
    assert len(text.encode()) < 300_000
    anchors = re.findall('id="([^"]+)"', text)
    assert len(set(anchors)) == len(anchors)
    assert set(re.findall('href="#([^"]+)"', text)) <= set(anchors)
    assert all(
        f'id="{case.id}"' in text for regression in known.values() for case in regression.cases
    )


def test_the_page_has_the_commands_of_the_cases_that_were_run(measured, tmp_path):
    """Every line of a case: index, search and evaluation."""
    page = tmp_path / "page.html"
    names = ("tiny/hybrid", "tiny/dupmae")
    output = str(measured)
    assert (
        main(["report", *names, "--format", "html", "--file", str(page), "--output", output]) == 0
    )
    text = html.unescape(page.read_text())
    selection = CaseSelection(ListOptions(names=names, output=output))
    for case in selection.cases:
        for line in command_lines(case, selection.workspace(case)):
            assert line in text


@pytest.mark.parametrize("tier", TIERS)
def test_every_case_prints_its_commands(tier, capsys):
    assert main(["run", "--tier", tier, "--dry-run", "--output", "out"]) == 0
    printed = capsys.readouterr().out
    chosen = cases.select(cases.load(RECIPES), [], tier)
    assert printed.count("dupmae-ir search ") == len(chosen)
    assert "''" not in printed  # no empty input of a recipe
    if tier == "full":
        for words in (
            "--method dupmae",
            "--method master",
            "--method cot-mote",
            "--distill kl",
            "--encoder mote",
        ):
            assert words in printed


def test_training_commands_can_be_parsed():
    """Every recipe's steps, up to the one the model needs, have only settings that their commands know."""
    workspace = Workspace(RECIPES, Path("out"))
    trained = [m for m in workspace.models.values() if m.recipe]
    assert len(trained) > 60
    for model in trained:
        steps, _ = plan(*workspace.training(model, fetch=False), last=model.step)
        assert steps[-1].name == model.step


def test_every_target_number_of_the_papers_has_a_case(shared_data):
    """The printed numbers of the four papers, except those that docs/reproduction.md lists as omitted."""
    reported = json.loads((shared_data.parent / "spec/reported_numbers.json").read_text())
    omitted = {"CoT-MAE v2"}
    ours = {
        float(printed)
        for regression in cases.load(RECIPES).values()
        for item in (*regression.cases, *regression.means)
        for printed in item.paper.values()
    }
    rounded = ours | {round(v, 3) for v in ours}
    missing = []
    for entry in reported["entries"]:
        if entry["role"] != "target" or entry["dataset"].startswith("glue"):
            continue
        if entry["system"] in omitted:
            continue
        if (
            entry["source"].startswith("003")
            and entry["dataset"].startswith("beir")
            and entry["system"] != "CoT-MoTE"
        ):
            continue
        # 0.475 is an arithmetic error of the arXiv version for 0.477.
        if entry["value"] not in rounded and entry["value"] != 0.475:
            missing.append(entry)
    assert missing == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("title =", "titel ="), "no key named 'titel'. Did you mean 'title'?"),
        (('tier = "tiny"', 'tier = "huge"'), "tier is 'huge'; use one of tiny, small, full"),
        (('mode = "dense"', 'mode = "dens"'), "mode is 'dens'"),
        (
            ('model = "tiny-dupmae"', 'model = "tiny-dupmea"'),
            "no model 'tiny-dupmea' in models.toml. Did you mean",
        ),
        (('parts = "cls"', 'part = "cls"'), "part"),
        (('["nDCG@10", "RR@10", "R@100"]', '["nDGC@10"]'), "nDGC"),
        (('name = "dense"\n', 'name = "impact"\n'), "case names must be unique"),
        (
            ('name = "dense"\n', 'name = "dense"\npaper = {"RR@10" = 0.41}\n'),
            "the paper's numbers must be strings",
        ),
        (("[accepted.dense]", "[accepted.dence]"), "accepted values for dence, but no such case"),
        (('tier = "tiny"', 'tier = "tiny'), "not valid TOML"),
    ],
)
def test_a_mistake_in_a_file_is_reported_with_its_key(tmp_path, change, words):
    folder = changed_recipes(tmp_path, change)
    with pytest.raises(InputError) as error:
        cases.load(folder)
    assert words in str(error.value)
    assert str(folder / "tiny.toml") in str(error.value)
    assert "\n" not in str(error.value)


def test_unknown_names_get_a_suggestion():
    known = cases.load(RECIPES)
    with pytest.raises(UnknownName, match=r"Did you mean 'dupmae\.beir'"):
        cases.select(known, ["dupmea.beir"], None)
    with pytest.raises(UnknownName, match="Did you mean 'hybrid'"):
        cases.select(known, ["tiny/hybird"], None)


def test_a_missing_collection_is_skipped_with_the_reason(tmp_path, capsys):
    assert main(["run", "default.cacm/bm25", "--output", str(tmp_path), "--quiet"]) == 0
    printed = capsys.readouterr()
    assert "SKIP   default.cacm/bm25" in printed.err
    assert "name the folder that contains it, in BEIR's layout, with --collections" in printed.err


def test_a_second_process_is_refused(tmp_path, capsys):
    output = tmp_path / "runs"
    with exclusive(lock_path(output), "running regressions"):
        assert main(["run", "tiny/bm25", "--output", str(output)]) == 2
    assert "is running regressions in" in capsys.readouterr().err


def test_results_as_json(measured, capsys):
    options = ["tiny/bm25", "tiny/dense", "--output", str(measured), "--json"]
    capsys.readouterr()
    assert main(["run", *options]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["passed"]
    assert [c["result"]["reused"] for c in result["cases"]] == [True, True]
    assert main(["report", *options]) == 0
    assert [c["status"] for c in json.loads(capsys.readouterr().out)["cases"]] == [
        c["status"] for c in result["cases"]
    ]
    assert main(["list", *options]) == 0
    assert [c["id"] for c in json.loads(capsys.readouterr().out)["cases"]] == [
        "tiny/bm25",
        "tiny/dense",
    ]


def test_a_cached_run_over_a_damaged_index_says_which_it_was(measured, tmp_path, capsys):
    output = tmp_path / "runs"
    shutil.copytree(measured, output)
    words = ["run", "tiny/dense", "--output", str(output), "--quiet"]
    assert main(words) == 0
    assert "nothing changed since" in capsys.readouterr().err
    (postings,) = (output / "indexes").rglob("postings/impacts.npy")
    damaged = bytearray(postings.read_bytes())
    damaged[-1] ^= 1
    postings.write_bytes(damaged)
    assert main(words) == 0
    printed = capsys.readouterr().err
    assert "before its index was damaged:" in printed
    assert postings.name in printed
    assert "nothing changed since" not in printed


def test_what_was_not_measured_is_not_accepted(tmp_path, capsys):
    assert accept(["tiny/bm25", "--output", str(tmp_path)]) == 2
    assert "tiny/bm25: nothing was measured; run it first" in capsys.readouterr().err


def test_misuse_is_one_line_and_status_2(tmp_path, capsys):
    for words, expected in [
        (["run", "--recipes", str(tmp_path)], "no models.toml here"),
        (["run", "tiny", "--tier", "full"], "no case of tier full"),
        (["run", "tiny", "--model", "tiny"], "must be NAME=FOLDER"),
        (["rum"], "Did you mean 'run'"),
    ]:
        assert main(words) == 2
        printed = capsys.readouterr().err
        assert expected in printed
        assert printed.count("\n") == 1


@pytest.mark.nightly
def test_the_whole_tiny_tier(tmp_path):
    """Every method is pre-trained and fine-tuned for a few steps, indexed and searched."""
    assert main(["run", "--tier", "tiny", "--output", str(tmp_path / "runs")]) == 0


@pytest.mark.nightly
def test_a_trained_method_from_scratch(tmp_path, capsys):
    assert main(["run", "tiny/dupmae", "--output", str(tmp_path / "runs"), "--quiet"]) == 0
    assert "OK" in capsys.readouterr().err


def test_a_mean_over_beir_counts_cqadupstack_once_and_requires_every_set():
    regression = cases.load(RECIPES)["cot-mote.beir"]
    values = {case.name: 0.01 * n for n, case in enumerate(regression.cases)}
    rows = [
        CaseRow(
            [CaseVerdict(Status.OK)],
            case,
            Result(case.id, values={"nDCG@10": values[case.name]}),
            {},
            list,
            "",
        )
        for case in regression.cases
    ]
    found = {m.mean.name: m for m in means(regression, rows)}
    forums = [v for name, v in values.items() if name.startswith("cqadupstack")]
    sets = [v for name, v in values.items() if not name.startswith("cqadupstack")]
    assert (len(forums), len(sets)) == (12, 13)
    forum = sum(forums) / 12
    assert found["cqadupstack"].values["nDCG@10"] == pytest.approx(forum, abs=1e-12)
    assert found["average-14"].values["nDCG@10"] == pytest.approx(
        (sum(sets) + forum) / 14, abs=1e-12
    )
    without = means(regression, [row for row in rows if row.case.name != "cqadupstack-gis"])
    average = {m.mean.name: m for m in without}["average-14"]
    assert average.values["nDCG@10"] is None
    assert any("gis" in name for name in average.missing)


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (0.3930, "OK"),
        (0.3934, "OK"),
        (0.3921, "OKISH"),
        (0.3949, "OKISH"),
        (0.39, "FAIL"),
        (0.396, "BETTER"),
    ],
)
def test_comparison_with_a_papers_number(value, status):
    (case,) = (c for c in cases.load(RECIPES)["retromae.beir"].cases if c.name == "scifact")
    case = replace(case, paper={"nDCG@10": "0.393"}, tolerance=0.002)
    queries = {f"q{n}": value for n in range(50)}
    result = Result(case.id, values={"nDCG@10": value}, per_query={"nDCG@10": queries})
    (verdict,) = judge(case, result, {}, {})
    assert verdict.status == status
    assert verdict.tolerance == pytest.approx(0.0025)


def test_the_default_tolerance_is_the_bootstrap_interval_over_queries():
    (case,) = (c for c in cases.load(RECIPES)["retromae.beir"].cases if c.name == "scifact")
    case = replace(case, paper={"nDCG@10": "0.50"}, tolerance=None)
    drawn = np.random.default_rng(1).random(200)
    result = Result(
        case.id,
        values={"nDCG@10": float(drawn.mean())},
        per_query={"nDCG@10": {f"q{n}": v for n, v in enumerate(drawn.tolist())}},
    )
    (verdict,) = judge(case, result, {}, {})
    interval = bootstrap((drawn,), np.mean, method="percentile", rng=3).confidence_interval
    assert verdict.tolerance - 0.005 == pytest.approx((interval.high - interval.low) / 2, rel=0.05)
    assert verdict.status == "OKISH"
