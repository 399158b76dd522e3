"""Regressions from TOML to verdict: the tiny tier whole, planted defects, and every recipe of the full tier planned."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from dupmae_ir.errors import InputError, UnknownName
from dupmae_ir.eval.regressions import cases
from dupmae_ir.eval.regressions.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "eval"


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The untrained cases of tier tiny, carried out."""
    output = tmp_path_factory.mktemp("regressions") / "runs"
    names = [f"tiny/{n}" for n in ("bm25", "dense", "impact", "hybrid")]
    junit = output.with_name("junit.xml")
    assert main(["run", *names, "--output", str(output), "--quiet", "--junit", str(junit)]) == 0
    return output


@pytest.fixture
def work(measured, tmp_path):
    """A copy of it to plant defects in; the measurement of tiny/hybrid is gone, its index is there."""
    output = tmp_path / "runs"
    shutil.copytree(measured, output)
    (output / "runs" / "tiny" / "hybrid.json").unlink()
    return output


def index_of(output: Path) -> Path:
    (index,) = (p for p in (output / "indexes").glob("tiny--tiny--*") if p.is_dir())
    return index


def encode(output: Path, *extra: str) -> None:
    from dupmae_ir.encode.__main__ import main as encode_main

    corpus, model = output / "collections/tiny/corpus.jsonl", output / "models/tiny"
    words = ["--corpus", str(corpus), "--index", str(index_of(output)), "--overwrite", "--quiet", "--threads", "1"]
    given = [] if "--model" in extra else ["--model", str(model)]
    assert encode_main([*words, *given, *extra]) == 0


def run_hybrid(output: Path, capsys: pytest.CaptureFixture[str], *extra: str) -> tuple[int, str]:
    capsys.readouterr()
    status = main(["run", "tiny/hybrid", "--output", str(output), "--quiet", *extra])
    told = capsys.readouterr()
    return status, told.out + told.err


def test_tiny_equals_what_was_accepted(measured, capsys):
    capsys.readouterr()
    assert main(["report", "tiny", "--output", str(measured), "--format", "json"]) == 0
    told = {c["case"]["name"]: c for c in json.loads(capsys.readouterr().out)["cases"]}
    for name in ("bm25", "dense", "impact", "hybrid"):
        assert told[name]["status"] in ("OK", "OKISH"), told[name]["verdicts"]
        assert told[name]["result"]["index"]["documents"] == 244
    assert "not run in this folder" in told["dupmae"]["verdicts"][0]["reason"]
    suite = ElementTree.parse(measured.with_name("junit.xml")).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("4", "0")


def test_nothing_changed_is_not_run_again(work, capsys):
    before = (work / "runs/tiny/dense.trec").stat().st_mtime_ns
    assert main(["run", "tiny/dense", "--output", str(work), "--quiet"]) == 0
    assert "nothing changed since" in capsys.readouterr().err
    assert (work / "runs/tiny/dense.trec").stat().st_mtime_ns == before


def test_a_run_file_that_was_touched_is_made_again(work, capsys):
    path = work / "runs/tiny/dense.trec"
    good = path.read_bytes()
    path.write_bytes(good.replace(b"d1 ", b"d2 "))
    assert main(["run", "tiny/dense", "--output", str(work)]) == 0
    assert "is not the run that was measured; searching again" in capsys.readouterr().err
    assert path.read_bytes() == good


def test_wrong_scale_is_told_before_anything_is_searched(work, capsys):
    (work / "runs/tiny/hybrid.trec").unlink()
    encode(work, "--scale", "5")
    status, told = run_hybrid(work, capsys)
    assert status == 1
    assert "FAIL   tiny/hybrid" in told
    assert "scale is 5, 8.864 was accepted" in told
    assert "sum of impacts is" in told
    assert "(scale 5 instead of 8.864)" in told
    assert not (work / "runs/tiny/hybrid.trec").exists()


def test_swapped_ids(work, capsys):
    for name in ("docid", "cls/docid"):
        path = index_of(work) / name
        first, second, *rest = path.read_text().splitlines()
        path.write_text("\n".join([second, first, *rest]) + "\n")
    status, told = run_hybrid(work, capsys)
    assert status == 1
    assert "ids are not the collection's, row by row: row 0 is 'd1' and should be 'd0' (2 such rows" in told


def test_a_missing_shard(work, capsys):
    encode(work, "--window", "64", "--shard", "0/2")
    status, told = run_hybrid(work, capsys)
    assert status == 1
    assert "this is shard 0 of 2, not merged: 128 documents" in told
    assert "documents is 128, 244 was accepted" in told


def test_another_model(work, capsys):
    from dupmae_ir.models.checkpoints.loading import load_model
    from dupmae_ir.models.checkpoints.saving import save_model

    model, tokenizer, config = load_model(work / "models/tiny")
    model.projection.weight.data.mul_(1.01)
    save_model(work / "other", model, tokenizer, config)
    encode(work, "--model", str(work / "other"))
    status, told = run_hybrid(work, capsys)
    assert status == 1
    assert "index: made with other weights" in told


def changed_recipes(tmp_path: Path, *changes: tuple[str, str]) -> Path:
    folder = tmp_path / "eval"
    shutil.copytree(RECIPES, folder)
    text = (folder / "tiny.toml").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "tiny.toml").write_text(text)
    return folder


def test_self_retrieval_kept(work, tmp_path, capsys):
    case = 'name = "hybrid"\nmode = "hybrid"\n'
    folder = changed_recipes(tmp_path, (case, case + "search = {remove_query = false}\n"))
    status, told = run_hybrid(work, capsys, "--recipes", str(folder))
    assert status == 1
    assert "self-retrieval kept: 4 topics find themselves (q0, q1, q2, ...)" in told


def test_another_configuration_is_stale_until_accepted(work, tmp_path, capsys):
    case = 'name = "hybrid"\nmode = "hybrid"\n'
    folder = changed_recipes(tmp_path, (case, case + "search = {dense_weight = 0.5}\n"))
    status, told = run_hybrid(work, capsys, "--recipes", str(folder))
    assert status == 1
    assert "STALE" in told
    assert "another configuration" in told
    options = ["tiny/hybrid", "--output", str(work), "--recipes", str(folder)]
    assert main(["accept", *options]) == 0
    assert run_hybrid(work, capsys, "--recipes", str(folder))[0] == 0
    # The other cases' accepted values are still there, and the hand-written part is as it was.
    again = cases.load(folder)["tiny"]
    before = cases.load(RECIPES)["tiny"]
    assert again.accepted["dense"] == before.accepted["dense"]
    assert again.accepted_queries["dense"] == before.accepted_queries["dense"]
    assert again.accepted["hybrid"]["values"] != before.accepted["hybrid"]["values"]
    assert "search = {dense_weight = 0.5}" in (folder / "tiny.toml").read_text()


def test_a_new_model_is_measured_and_stale_until_accepted(work, tmp_path, capsys):
    weights = cases.load(RECIPES)["tiny"].accepted["hybrid"]["weights"]
    folder = changed_recipes(tmp_path, (weights, "0" * 64), ("sum_of_impacts = 808346", "sum_of_impacts = 1"))
    # As if downloaded: the same bytes on every machine.
    models = folder / "models.toml"
    models.write_text(models.read_text().replace("tiny = true", 'url = "https://host"\nfiles = ["weights"]'))
    options = ["--output", str(work), "--recipes", str(folder), "--model", f"tiny={work / 'models/tiny'}"]
    status, told = run_hybrid(work, capsys, *options[2:])
    assert status == 1
    assert "the accepted values are of other weights; look, then accept" in told
    assert main(["accept", "tiny/hybrid", *options]) == 0
    assert run_hybrid(work, capsys, *options[2:])[0] == 0
    assert cases.load(folder)["tiny"].accepted["hybrid"]["weights"] == weights


def test_a_changed_index_is_not_accepted_before_its_old_values_are_removed(work, tmp_path, capsys):
    folder = changed_recipes(tmp_path, ("sum_of_impacts = 808346", "sum_of_impacts = 1"))
    status, told = run_hybrid(work, capsys, "--recipes", str(folder))
    assert status == 1
    assert "sum of impacts is 808,346, 1 was accepted" in told
    assert main(["accept", "tiny/hybrid", "--output", str(work), "--recipes", str(folder)]) == 2
    assert "if that is meant, remove [accepted.hybrid] and run it again" in capsys.readouterr().err


def test_better_is_not_a_pass(work, tmp_path, capsys):
    value = cases.load(RECIPES)["tiny"].accepted["dense"]["values"]["nDCG@10"]
    folder = changed_recipes(tmp_path, (repr(value), "0.01"), ("exact = true\n", ""))
    path = folder / "accepted/tiny.json"
    queries = json.loads(path.read_text())
    queries["dense"]["nDCG@10"] = dict.fromkeys(queries["dense"]["nDCG@10"], 0.01)
    path.write_text(json.dumps(queries))
    capsys.readouterr()
    assert main(["run", "tiny/dense", "--output", str(work), "--quiet", "--recipes", str(folder)]) == 1
    assert "BETTER  nDCG@10" in capsys.readouterr().err


def test_results_of_other_code_are_stale_in_reports(work, capsys):
    path = work / "runs/tiny/dense.json"
    told = json.loads(path.read_text())
    told["key"]["code"] = "other"
    path.write_text(json.dumps(told))
    capsys.readouterr()
    assert main(["report", "tiny/dense", "--output", str(work)]) == 0
    assert "by other code; run it again" in capsys.readouterr().out
    assert main(["accept", "tiny/dense", "--output", str(work)]) == 2


def test_every_format_of_the_report(measured, tmp_path, capsys):
    options = ["tiny", "--output", str(measured)]
    page = tmp_path / "page.html"
    assert main(["report", *options, "--format", "html", "--file", str(page)]) == 0
    text = page.read_text()
    assert '<details id="tiny/hybrid">' in text
    assert "dupmae-ir search --index" in text
    assert "not run in this folder" in text
    capsys.readouterr()
    assert main(["report", *options]) == 0
    assert "| `tiny/hybrid` | nDCG@10 |" in capsys.readouterr().out
    assert main(["report", *options, "--format", "junit"]) == 0
    suite = ElementTree.fromstring(capsys.readouterr().out.split("\n", 1)[1])
    assert suite.get("skipped") == "4"


@pytest.mark.parametrize("tier", cases.TIERS)
def test_every_case_prints_its_commands(tier, capsys):
    assert main(["run", "--tier", tier, "--dry-run", "--output", "out"]) == 0
    told = capsys.readouterr().out
    chosen = cases.select(cases.load(RECIPES), [], tier)
    assert told.count("dupmae-ir search ") == len(chosen)
    assert "''" not in told  # no input of a recipe is left empty
    if tier == "full":
        for words in ("--method dupmae", "--method master", "--method cot-mote", "--distill kl", "--encoder mote"):
            assert words in told


def test_training_commands_are_ones_the_parser_takes():
    """Every step of every model's recipe has settings its command knows, at least up to the step that is needed."""
    from dupmae_ir.eval.regressions.place import Place
    from dupmae_ir.finetune.stages import plan

    place = Place(RECIPES, Path("out"))
    trained = [m for m in place.models.values() if m.recipe]
    assert len(trained) > 60
    for model in trained:
        steps, _ = plan(*place.training(model, fetch=False), last=model.step)
        assert steps[-1].name == model.step


def test_every_number_the_papers_target_has_a_recipe(shared_data):
    """The printed numbers of the four papers, except those that docs/reproduction.md names as left out."""
    told = json.loads((shared_data.parent / "spec/reported_numbers.json").read_text())
    left_out = {"CoT-MAE v2"}
    ours = {
        float(printed)
        for regression in cases.load(RECIPES).values()
        for item in (*regression.cases, *regression.means)
        for printed in item.paper.values()
    }
    rounded = ours | {round(v, 3) for v in ours}
    missing = []
    for entry in told["entries"]:
        if entry["role"] != "target" or entry["dataset"].startswith("glue"):
            continue
        if entry["system"] in left_out:
            continue
        if entry["source"].startswith("003") and entry["dataset"].startswith("beir") and entry["system"] != "CoT-MoTE":
            continue
        # 0.475 is an arithmetic error of the arXiv version for 0.477.
        if entry["value"] not in rounded and entry["value"] != 0.475:
            missing.append(entry)
    assert missing == []


def test_docs_of_the_reproduction_are_up_to_date(capsys):
    assert main(["report", "--tier", "full", "--format", "reproduction", "--output", "nowhere"]) == 0
    table = capsys.readouterr().out.strip()
    assert table in (ROOT / "docs/reproduction.md").read_text(encoding="utf-8"), "make docs"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("title =", "titel ="), "no key named 'titel'. Did you mean 'title'?"),
        (('tier = "tiny"', 'tier = "huge"'), "tier is 'huge'; use one of tiny, small, full"),
        (('mode = "dense"', 'mode = "dens"'), "mode is 'dens'"),
        (('model = "tiny-dupmae"', 'model = "tiny-dupmea"'), "no model 'tiny-dupmea' in models.toml. Did you mean"),
        (('parts = "cls"', 'part = "cls"'), "part"),
        (('["nDCG@10", "RR@10", "R@100"]', '["nDGC@10"]'), "nDGC"),
        (('name = "dense"\n', 'name = "impact"\n'), "each with a name of its own"),
        (('name = "dense"\n', 'name = "dense"\npaper = {"RR@10" = 0.41}\n'), "the paper's numbers are text"),
        (("[accepted.dense]", "[accepted.dence]"), "accepted values of dence, which is no case here"),
        (('tier = "tiny"', 'tier = "tiny'), "not valid TOML"),
    ],
)
def test_mistakes_in_a_file_are_told_by_key(tmp_path, change, words):
    folder = changed_recipes(tmp_path, change)
    with pytest.raises(InputError) as told:
        cases.load(folder)
    assert words in str(told.value)
    assert str(folder / "tiny.toml") in str(told.value)
    assert "\n" not in str(told.value)


def test_unknown_names_get_a_suggestion():
    known = cases.load(RECIPES)
    with pytest.raises(UnknownName, match=r"Did you mean 'dupmae\.beir'"):
        cases.select(known, ["dupmea.beir"], None)
    with pytest.raises(UnknownName, match="Did you mean 'hybrid'"):
        cases.select(known, ["tiny/hybird"], None)


def test_a_collection_that_is_not_here_is_skipped_with_the_reason(tmp_path, capsys):
    assert main(["run", "default.cacm/bm25", "--output", str(tmp_path), "--quiet"]) == 0
    told = capsys.readouterr()
    assert "SKIP   default.cacm/bm25" in told.err
    assert "name the folder that holds it, in BEIR's layout, with --collections" in told.err


def test_misuse_is_one_line_and_status_2(tmp_path, capsys):
    for words, expected in [
        (["run", "--recipes", str(tmp_path)], "holds no models.toml"),
        (["run", "tiny", "--tier", "full"], "no case of tier full"),
        (["run", "tiny", "--model", "tiny"], "wants NAME=FOLDER"),
        (["accept", "tiny/bm25", "--output", str(tmp_path)], "nothing was measured; run it first"),
        (["rum"], "Did you mean 'run'"),
    ]:
        assert main(words) == 2
        told = capsys.readouterr().err
        assert expected in told
        assert told.count("\n") == 1


@pytest.mark.slow
def test_the_whole_tiny_tier(tmp_path):
    """Every method pre-trained and fine-tuned for a few steps, indexed, searched."""
    assert main(["run", "--tier", "tiny", "--output", str(tmp_path / "runs")]) == 0


def test_a_trained_method_from_nothing_to_its_value(tmp_path, capsys):
    assert main(["run", "tiny/dupmae", "--output", str(tmp_path / "runs"), "--quiet"]) == 0
    assert "OK" in capsys.readouterr().err


def test_a_mean_over_beir_is_one_of_sets_and_none_with_a_set_missing():
    from dupmae_ir.eval.regressions.report import Row, means
    from dupmae_ir.eval.regressions.verdict import Status, Verdict
    from dupmae_ir.eval.regressions.work import Result

    regression = cases.load(RECIPES)["cot-mote.beir"]
    values = {case.name: 0.01 * n for n, case in enumerate(regression.cases)}
    rows = [
        Row(case, Result(case.id, values={"nDCG@10": values[case.name]}), [Verdict(Status.OK)], {}, list, "")
        for case in regression.cases
    ]
    found = {m.mean.name: m for m in means(regression, rows)}
    forums = [v for name, v in values.items() if name.startswith("cqadupstack")]
    sets = [v for name, v in values.items() if not name.startswith("cqadupstack")]
    assert (len(forums), len(sets)) == (12, 13)
    forum = sum(forums) / 12
    assert found["cqadupstack"].values["nDCG@10"] == pytest.approx(forum, abs=1e-12)
    assert found["average-14"].values["nDCG@10"] == pytest.approx((sum(sets) + forum) / 14, abs=1e-12)
    without = means(regression, [row for row in rows if row.case.name != "cqadupstack-gis"])
    told = {m.mean.name: m for m in without}["average-14"]
    assert told.values["nDCG@10"] is None
    assert any("gis" in name for name in told.missing)


@pytest.mark.parametrize(
    ("value", "status"),
    [(0.3930, "OK"), (0.3934, "OK"), (0.3921, "OKISH"), (0.3949, "OKISH"), (0.39, "FAIL"), (0.396, "BETTER")],
)
def test_a_papers_number_with_the_same_weights(value, status):
    from dupmae_ir.eval.regressions.verdict import judge
    from dupmae_ir.eval.regressions.work import Result

    (case,) = (c for c in cases.load(RECIPES)["retromae.beir"].cases if c.name == "scifact")
    from dataclasses import replace

    case = replace(case, paper={"nDCG@10": "0.393"}, tolerance=0.002)
    queries = {f"q{n}": value for n in range(50)}
    result = Result(case.id, values={"nDCG@10": value}, per_query={"nDCG@10": queries})
    (verdict,) = judge(case, result, {}, {})
    assert verdict.status == status
    assert verdict.tolerance == pytest.approx(0.0025)


def test_without_a_told_tolerance_a_paper_is_held_against_the_queries_spread():
    from dataclasses import replace

    import numpy as np
    from scipy.stats import bootstrap

    from dupmae_ir.eval.regressions.verdict import judge
    from dupmae_ir.eval.regressions.work import Result

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
